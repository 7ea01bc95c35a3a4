//! Our requests to one other process, and its answers.

use super::memory::{AWAKE, Parts, TOTAL};
use super::packet::Packet;
use super::ring::{Broken, Consumer, Producer};
use super::{rendezvous, socket::Socket};
use crate::device::process::Process;
use crate::engine;
use crate::stats::ProcessCounter;
use crate::sys::lock::Lock;
use crate::sys::memfd;
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering::*, fence};

/// Most answers taken before others get their turn.
const BUDGET: usize = 512;

/// A connection to the process at one slot.
pub struct OutLink {
    /// The slot.
    pub slot: u8,
    /// Its socket.
    pub socket: Socket,
    /// Room in the request ring; `None` once the link is dead.
    pub send: Lock<Option<Sending>>,
    receive: Lock<Option<Receiving>>,
    memory: Lock<Option<memfd::Shared>>,
    /// QPs that found the ring full.
    waiting: Lock<Vec<u16>>,
}

/// The request side.
pub struct Sending {
    /// The request ring.
    pub ring: Producer,
    parts: Parts,
}

struct Receiving {
    ring: Consumer,
    parts: Parts,
}

impl OutLink {
    /// Connects to the process at `slot`.
    pub fn connect(slot: u8) -> std::io::Result<Self> {
        let fd = memfd::create(c"rnic-emu-ring", TOTAL)?;
        let map = memfd::Shared::map(fd.as_fd(), TOTAL, true)?;
        map.keep_from_children();
        let socket = Socket::new(rendezvous::connect(slot, fd.as_fd())?);
        // SAFETY: the mapping has TOTAL bytes; `bury` drops the rings before the mapping.
        let parts = unsafe { Parts::of(map.base()) };
        let c = parts.control;
        // Until told otherwise the responder's helper sleeps.
        c.rouse_responder.0.store(super::memory::HELPER, Relaxed);
        Ok(Self {
            slot,
            socket,
            send: Lock::new(Some(Sending {
                ring: Producer::new(&c.request_head, &c.request_tail, parts.requests),
                parts,
            })),
            receive: Lock::new(Some(Receiving {
                ring: Consumer::new(&c.answer_head, &c.answer_tail, parts.answers),
                parts,
            })),
            memory: Lock::new(Some(map)),
            waiting: Lock::new(Vec::with_capacity(64)),
        })
    }

    /// Ends the connection. The helper clears it away. Takes no lock that a holder of a send queue may not take. QPs with
    /// requests under way start their ACK timers: nothing will come back.
    pub fn condemn(&self, process: &'static Process) {
        if self.socket.end() {
            for qp in process.qps.all() {
                engine::requester::look_soon(qp, process);
            }
        }
    }

    /// Clears a connection away; when this returns, nobody uses its socket or memory. Only the helper, which holds no
    /// queue, does.
    pub fn bury(&self, process: &'static Process) {
        self.condemn(process);
        *self.send.lock() = None;
        *self.receive.lock() = None;
        *self.memory.lock() = None;
    }

    /// Shows the peer what was written to `sending`, and wakes it if it sleeps.
    #[inline]
    pub fn publish(&self, process: &Process, sending: &mut Sending) {
        sending.ring.publish();
        // The peer sets its word and then looks at the ring; we write the ring and then look at its word.
        fence(SeqCst);
        let word = &sending.parts.control.rouse_responder.0;
        if word.load(Relaxed) != AWAKE && word.swap(AWAKE, SeqCst) != AWAKE {
            process.stats.add(ProcessCounter::BellsRung, 1);
            self.socket.rouse_peer();
        }
    }

    /// Remembers a QP that has more to send than there is room.
    pub fn wait_for_room(&self, index: u16) {
        let mut waiting = self.waiting.lock();
        if !waiting.contains(&index) {
            waiting.push(index);
        }
    }

    /// Says how we want to be woken when something comes back.
    pub fn set_rouse(&self, how: u64) {
        if let Some(r) = self.receive.lock().as_ref()
            && r.parts.control.rouse_requester.0.load(Relaxed) != how
        {
            r.parts.control.rouse_requester.0.store(how, SeqCst);
        }
    }

    /// Takes answers and lets waiting QPs go on. True if there was anything to do.
    pub fn progress(&self, process: &'static Process) -> bool {
        let did = self.receive.try_lock().is_some_and(|mut r| self.take_from(process, &mut r));
        did | self.resume(process)
    }

    /// Takes the answers that have come, waiting for whoever is doing so now.
    pub fn take_answers(&self, process: &'static Process) {
        self.take_from(process, &mut self.receive.lock());
    }

    fn take_from(&self, process: &'static Process, receiving: &mut Option<Receiving>) -> bool {
        match receiving.as_mut().map(|r| r.take_answers(process, &self.socket)) {
            Some(Ok(any)) => any,
            Some(Err(Broken)) => {
                // Nothing more is read from it; the helper clears the rest away.
                *receiving = None;
                self.condemn(process);
                true
            }
            None => false,
        }
    }

    fn resume(&self, process: &'static Process) -> bool {
        if self.waiting.try_lock().is_none_or(|w| w.is_empty()) {
            return false;
        }
        let n = self.waiting.lock().len();
        let mut did = false;
        for _ in 0..n {
            let Some(index) = ({
                let mut waiting = self.waiting.lock();
                if waiting.is_empty() { None } else { Some(waiting.remove(0)) }
            }) else {
                break;
            };
            if let Some(qp) = process.qps.at(usize::from(index)) {
                did |= engine::requester::run(qp);
            }
        }
        did
    }
}

impl Receiving {
    fn take_answers(&mut self, process: &'static Process, socket: &Socket) -> Result<bool, Broken> {
        let mut n = 0;
        while n < BUDGET {
            let Some((packet, payload)) = self.ring.peek()? else { break };
            engine::answers::take(process, &packet, payload);
            if self.ring.advance(&packet) {
                self.ring.release();
            }
            n += 1;
        }
        self.ring.release();
        if n > 0 {
            fence(SeqCst);
            let stalled = &self.parts.control.answers_stalled.0;
            if stalled.load(Relaxed) != 0 && stalled.swap(0, SeqCst) != 0 {
                process.stats.add(ProcessCounter::BellsRung, 1);
                socket.rouse_peer();
            }
        }
        Ok(n > 0)
    }
}

impl Sending {
    /// Adds a request record.
    #[inline]
    pub fn push(&mut self, packet: &Packet, fill: impl FnOnce(*mut u8)) -> Result<bool, Broken> {
        self.ring.push(packet, fill)
    }
}
