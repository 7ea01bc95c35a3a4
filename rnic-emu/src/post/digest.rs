//! What one posting call did, counted while it is done: for the QP's counters and for the probe sites.

use crate::abi::consts::*;
use crate::object::send_queue::{SendQueue, SendWqe};
use crate::sites;
use crate::stats::{QpCounter, QpStats};
use crate::told;
use probe_common::alone;
use probe_common::counters::source;
use probe_common::site::{Flags, Queue, Refused, Stream};

/// Sums over the requests a call posted.
pub struct Digest {
    /// The queue posted to, as tracers know it: the address of the program's object.
    object: usize,
    queue: Queue,
    extended: bool,
    /// Requests.
    pub n: u64,
    bytes: u64,
    n_sge: u64,
    signalled: u64,
    inline: u64,
    opcodes: u16,
    /// How it was told, if it was.
    told: Option<u32>,
}

impl Digest {
    /// Nothing yet, of a call that posts to `object`.
    pub fn new(object: usize, queue: Queue, extended: bool) -> Self {
        Self {
            object,
            queue,
            extended,
            n: 0,
            bytes: 0,
            n_sge: 0,
            signalled: 0,
            inline: 0,
            opcodes: 0,
            told: None,
        }
    }

    /// Adds a posted send.
    #[inline]
    pub fn send(&mut self, wqe: &SendWqe, sig_all: bool, stats: &QpStats) {
        self.recv(u64::from(wqe.len), u64::from(wqe.n_sge));
        self.signalled += u64::from(sig_all || u32::from(wqe.flags) & IBV_SEND_SIGNALED != 0);
        self.inline += u64::from(wqe.inline);
        self.opcodes |= 1 << (wqe.opcode & 15);
        stats.add(opcode_counter(wqe.opcode), 1);
    }

    /// Adds a posted receive.
    #[inline]
    pub fn recv(&mut self, bytes: u64, n_sge: u64) {
        self.n += 1;
        self.bytes += bytes;
        self.n_sge += n_sge;
    }

    /// Adds the sums to a send queue's counters.
    pub fn count_send(&self, stats: &QpStats) {
        stats.add(QpCounter::SendCalls, 1);
        stats.add(QpCounter::SendWrs, self.n);
        stats.add(QpCounter::Signalled, self.signalled);
        stats.add(QpCounter::Inline, self.inline);
        stats.add(QpCounter::SendBytes, self.bytes);
        stats.add(QpCounter::SendSges, self.n_sge);
    }

    fn flags(&self, exponent: u32) -> u64 {
        Flags::pack(self.signalled, self.inline, self.opcodes, self.queue, self.extended).one_in(exponent).0
    }

    /// Tells tracers what was posted. Called with the queue's lock held, before anything is done about it: a completion
    /// must not be polled before its request was seen.
    #[inline]
    pub fn tell(&mut self, first_wr: usize) {
        self.told = told::exponent(Stream::of_post(self.signalled));
        if let Some(exponent) = self.told {
            self.show(exponent, first_wr);
        }
    }

    /// The same of a batch of the extended API, which `queue` holds from request number `first` on.
    #[inline]
    pub fn tell_built(&mut self, queue: &mut SendQueue, first: u64) {
        self.told = told::exponent(Stream::of_post(self.signalled));
        if let Some(exponent) = self.told {
            let mut shown = std::mem::take(&mut queue.shown);
            self.show(exponent, shown.of(queue, first));
            queue.shown = shown;
        }
    }

    fn show(&self, exponent: u32, first_wr: usize) {
        let flags = Flags(self.flags(exponent)).by(source::EMULATOR);
        // SAFETY: the site does nothing; its arguments are for tracers. What the first request says was taken from it.
        unsafe {
            if matches!(self.queue, Queue::Send) {
                let digest = alone::Digest {
                    queue: self.object,
                    wrs: self.n,
                    bytes: self.bytes,
                    flags,
                    sges: self.n_sge,
                    first: first_wr,
                };
                digest.tell_sends(sites::rnic_emu_posted);
            } else {
                sites::rnic_emu_posted(self.object, self.n, self.bytes, flags.0, self.n_sge, first_wr);
            }
        }
    }

    /// Tells tracers that the call fails, where they were told of the call; `bad_wr` is the address of the request that it
    /// refuses, 0 where that is not known.
    #[inline]
    pub fn tell_failure(&self, errno: i32, bad_wr: usize) {
        if let Some(exponent) = self.told
            && errno != 0
        {
            let flags = Flags(self.flags(exponent)).after(self.n);
            // SAFETY: as above.
            unsafe {
                sites::rnic_emu_post_failed(
                    self.object,
                    0,
                    0,
                    flags.0,
                    0,
                    Refused::pack(errno.unsigned_abs(), bad_wr as u64).0,
                );
            }
        }
    }
}

fn opcode_counter(opcode: u8) -> QpCounter {
    match u32::from(opcode) {
        IBV_WR_RDMA_WRITE => QpCounter::Writes,
        IBV_WR_RDMA_WRITE_WITH_IMM => QpCounter::WritesImm,
        IBV_WR_SEND => QpCounter::Sends,
        IBV_WR_SEND_WITH_IMM => QpCounter::SendsImm,
        IBV_WR_RDMA_READ => QpCounter::Reads,
        IBV_WR_ATOMIC_CMP_AND_SWP => QpCounter::CompareSwaps,
        IBV_WR_ATOMIC_FETCH_AND_ADD => QpCounter::FetchAdds,
        IBV_WR_LOCAL_INV => QpCounter::LocalInvs,
        IBV_WR_BIND_MW => QpCounter::Binds,
        _ => QpCounter::SendsInv,
    }
}
