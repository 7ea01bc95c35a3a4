//! Another process' requests to us, and our answers.

use super::memory::{AWAKE, HELPER, Parts, TOTAL};
use super::packet::{ABSENT, ACK, ATOMIC, CHUNK, DATA, GAP, NAK, Packet, RC, RNR, UC, UD};
use super::ring::{Broken, Consumer, Producer};
use super::socket::Socket;
use crate::device::process::Process;
use crate::engine::responder::{self, Verdict};
use crate::object::qp_attr::PSN_MASK;
use crate::object::qp_table::slot_of;
use crate::stats::ProcessCounter;
use crate::sys::lock::Lock;
use crate::sys::memfd;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering::*, fence};

/// Most requests served before others get their turn.
pub const BUDGET: usize = 512;

/// Room for an owed ACK and one more answer, both without payload, and as much again.
const ANSWER_LINES: usize = 4;

/// A connection from one other process.
pub struct InLink {
    /// Its socket.
    pub socket: Socket,
    serving: Lock<Option<Serving>>,
}

struct Serving {
    requests: Consumer,
    answers: Producer,
    parts: Parts,
    /// A READ being answered: its request, with `offset` as far as the answer has got.
    read: Option<Packet>,
    /// The ACK owed: (to QP, from QP, PSN). Later ones for the same QP replace it.
    ack: Option<(u32, u32, u32)>,
    /// The ACK given early for the request being served.
    given: Option<(u32, u32, u32)>,
    /// Last, so that it is unmapped after the rings are gone.
    _memory: memfd::Shared,
}

impl InLink {
    /// A connection just accepted; its memory is still to come.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket: Socket::new(socket), serving: Lock::new(None) }
    }

    /// Clears a connection away; when this returns, nobody uses its socket or memory. Only the helper does.
    pub fn bury(&self) {
        self.socket.end();
        *self.serving.lock() = None;
    }

    /// Takes the peer's memory file into use, if it is what it should be. A second one is ignored.
    pub fn adopt(&self, fd: OwnedFd) {
        let mut serving = self.serving.lock();
        if serving.is_some() {
            return;
        }
        let map = if memfd::is_sealed(fd.as_fd(), TOTAL) {
            memfd::Shared::map(fd.as_fd(), TOTAL, true).ok()
        } else {
            None
        };
        let Some(map) = map else {
            self.socket.end();
            return;
        };
        map.keep_from_children();
        // SAFETY: the mapping has TOTAL bytes and is dropped after the rings.
        let parts = unsafe { Parts::of(map.base()) };
        let c = parts.control;
        *serving = Some(Serving {
            requests: Consumer::new(&c.request_head, &c.request_tail, parts.requests),
            answers: Producer::new(&c.answer_head, &c.answer_tail, parts.answers),
            parts,
            read: None,
            ack: None,
            given: None,
            _memory: map,
        });
    }

    /// Says how we want to be woken when requests come.
    pub fn set_rouse(&self, how: u64) {
        if let Some(s) = self.serving.lock().as_ref()
            && s.parts.control.rouse_responder.0.load(Relaxed) != how
        {
            s.parts.control.rouse_responder.0.store(how, SeqCst);
        }
    }

    /// Serves requests. True if there were any.
    pub fn progress(&self, process: &'static Process) -> bool {
        let Some(mut guard) = self.serving.try_lock() else { return false };
        let Some(serving) = guard.as_mut() else { return false };
        // Answers the peer gave before it sent what is waiting here come first: see `serve_record`.
        if let Ok(Some((packet, _))) = serving.requests.peek()
            && let Some(back) = process.wire.existing(slot_of(packet.src_qpn))
        {
            back.take_answers(process);
        }
        match serving.serve(process) {
            Ok(false) => false,
            Ok(true) => {
                serving.publish(process, &self.socket);
                true
            }
            Err(Broken) => {
                // Nothing more is read from it; the helper clears the rest away.
                *guard = None;
                self.socket.end();
                true
            }
        }
    }
}

impl Serving {
    fn serve(&mut self, process: &'static Process) -> Result<bool, Broken> {
        let mut did = false;
        if self.read.is_some() {
            did = self.answer_read(process)?;
            if self.read.is_some() {
                return Ok(did);
            }
        }
        for _ in 0..BUDGET {
            // An answer must always find room before its request is taken.
            if !self.room(ANSWER_LINES)? {
                break;
            }
            let Some((packet, payload)) = self.requests.peek()? else { break };
            did = true;
            if !matches!(packet.kind, RC | UC | UD) {
                return Err(Broken);
            }
            self.one(process, &packet, payload)?;
            if self.requests.advance(&packet) {
                self.settle()?;
            }
            if self.read.is_some() {
                break;
            }
        }
        self.settle()?;
        Ok(did)
    }

    /// Shows the requester what was answered, and only then what was taken: a request that was taken and has no answer
    /// counts as lost.
    fn settle(&mut self) -> Result<(), Broken> {
        self.flush_ack()?;
        self.answers.publish();
        self.requests.release();
        Ok(())
    }

    /// Whether the answer ring has room. If not, the requester will wake us when it has made some.
    fn room(&mut self, lines: usize) -> Result<bool, Broken> {
        if self.answers.has_room_for(lines)? {
            return Ok(true);
        }
        // Say that we wait before looking once more: the requester may just have made room.
        self.parts.control.answers_stalled.0.store(1, SeqCst);
        fence(SeqCst);
        self.answers.has_room_for(lines)
    }

    fn one(&mut self, process: &'static Process, p: &Packet, payload: *const u8) -> Result<(), Broken> {
        let read = p.opcode == crate::abi::consts::IBV_WR_RDMA_READ as u8;
        if read && p.kind == RC {
            match responder::admit_read(process, p) {
                Verdict::Done => {
                    self.flush_ack()?;
                    self.read = Some(Packet { offset: 0, ..*p });
                    self.answer_read(process)?;
                }
                other => self.answer(p, other)?,
            }
            return Ok(());
        }
        self.given = None;
        let mut early = Ok(());
        // SAFETY: the ring keeps `len` payload bytes readable until the record is released.
        let verdict = unsafe {
            responder::serve_record(process, p, payload, &mut || {
                if p.kind == RC {
                    early = self.answer(p, Verdict::Done).and_then(|()| self.flush_ack());
                    self.answers.publish();
                }
            })
        };
        early?;
        if p.kind == RC { self.answer(p, verdict) } else { Ok(()) }
    }

    fn answer(&mut self, p: &Packet, verdict: Verdict) -> Result<(), Broken> {
        let back = Packet { dst_qpn: p.src_qpn, src_qpn: p.dst_qpn, psn: p.psn, ..Packet::default() };
        match verdict {
            Verdict::Done => {
                if self.ack.is_some_and(|(to, ..)| to != p.src_qpn) {
                    self.flush_ack()?;
                }
                let ack = Some((p.src_qpn, p.dst_qpn, p.psn));
                if ack != self.given {
                    self.ack = ack;
                }
                Ok(())
            }
            Verdict::Value(a) => self.control(Packet { kind: ATOMIC, a, ..back }),
            Verdict::Rnr(timer) => self.control(Packet { kind: RNR, flags: timer, ..back }),
            Verdict::Nak(status) => self.control(Packet { kind: NAK, flags: status, ..back }),
            Verdict::Gap(expected) => {
                self.control(Packet { kind: GAP, psn: expected | p.psn & !PSN_MASK, ..back })
            }
            // Also when the QP went while the message was coming in: its first chunk was taken without a word.
            Verdict::Lost if p.offset == 0 || p.is_last() => self.control(Packet { kind: ABSENT, ..back }),
            Verdict::Lost | Verdict::More | Verdict::Silent => Ok(()),
        }
    }

    fn control(&mut self, packet: Packet) -> Result<(), Broken> {
        self.flush_ack()?;
        self.answers.push(&packet, |_| ()).map(drop)
    }

    fn flush_ack(&mut self) -> Result<(), Broken> {
        if let Some((dst_qpn, src_qpn, psn)) = self.ack.take() {
            self.given = Some((dst_qpn, src_qpn, psn));
            let ack = Packet { kind: ACK, dst_qpn, src_qpn, psn, ..Packet::default() };
            self.answers.push(&ack, |_| ())?;
        }
        Ok(())
    }

    /// Goes on with the answer to a READ as far as there is room.
    fn answer_read(&mut self, process: &'static Process) -> Result<bool, Broken> {
        let mut did = false;
        while let Some(request) = self.read {
            let len = (request.total - request.offset).min(CHUNK);
            let data = Packet {
                kind: DATA,
                dst_qpn: request.src_qpn,
                src_qpn: request.dst_qpn,
                psn: request.psn,
                total: request.total,
                offset: request.offset,
                len,
                ..Packet::default()
            };
            if !self.room(data.size() / super::packet::LINE + ANSWER_LINES)? {
                break;
            }
            did = true;
            // There is room: only the region can be missing.
            let read = self.answers.push_if(&data, |at| {
                // SAFETY: push gives room for `len` bytes.
                unsafe { responder::read_chunk(process, &request, at, len) }
            })?;
            if !read {
                self.read = None;
                let status = responder::fail_read(process, &request);
                self.answer(&request, Verdict::Nak(status))?;
                break;
            }
            // The requester copies this chunk out while we copy the next one in.
            self.answers.publish();
            let offset = request.offset + len;
            self.read = (offset < request.total).then_some(Packet { offset, ..request });
        }
        Ok(did)
    }

    fn publish(&mut self, process: &Process, socket: &Socket) {
        self.answers.publish();
        // The requester sets its word and then looks at the ring; we write the ring and then look at its word.
        fence(SeqCst);
        let word = &self.parts.control.rouse_requester.0;
        if word.load(Relaxed) != AWAKE && word.swap(AWAKE, SeqCst) == HELPER {
            process.stats.add(ProcessCounter::BellsRung, 1);
            socket.rouse_peer();
        }
    }
}
