//! What a chain of work requests comes to.
//!
//! Walked before it is posted: once the provider has it, another thread may reap and free it. After a failure only the
//! part from `bad_wr` on is walked again, which was not posted and so belongs to the caller still.

use probe_common::site::{Flags, Queue};

use crate::abi::{self, RecvWr, SendWr, Sge, opcode};

/// Longer chains are cut, and counted as such: a chain that loops must not hang the program before the provider has
/// refused it.
const LONGEST_CHAIN: u64 = 1 << 20;
/// No device takes more entries in one work request; a larger number is a mistake the provider will refuse.
const MOST_SGES: i32 = 512;

/// Opcodes counted apart; further ones share the last place.
pub const OPCODES: usize = 16;

/// Place of an opcode among the counters of opcodes.
#[inline(always)]
pub fn place_of(op: u32) -> usize {
    usize::try_from(op).unwrap_or(OPCODES).min(OPCODES - 1)
}

/// Length of the payload in a list.
///
/// # Safety
/// `list` is null or has `count` entries, unless `count` is more than any device takes.
#[inline(always)]
pub unsafe fn bytes(list: *const Sge, count: i32) -> u64 {
    if list.is_null() || !(1..=MOST_SGES).contains(&count) {
        return 0;
    }
    // SAFETY: within the list.
    (0..count.unsigned_abs() as usize).map(|index| u64::from(unsafe { (*list.add(index)).length })).sum()
}

/// Sums over a chain. Plain numbers, so that they stay in registers: whoever walks counts the opcodes that are not the
/// first one's himself.
#[derive(Clone, Copy, Default)]
pub struct Digest {
    pub wrs: u64,
    pub signalled: u64,
    pub inline: u64,
    pub bytes: u64,
    pub sges: u64,
    /// Opcode of the first send work request, and how many have it.
    pub first: u32,
    pub of_first: u64,
    /// Bit n set where an opcode of place n occurs.
    mask: u16,
    pub run: Runs,
    pub cut: bool,
}

/// Unsignalled work requests in a row.
#[derive(Clone, Copy, Default)]
pub struct Runs {
    pub first: u64,
    pub longest: u64,
    pub last: u64,
}

impl Digest {
    /// Adds one send work request; `other` counts its opcode if that is not the first one's.
    #[inline(always)]
    pub fn send(&mut self, op: u32, signalled: bool, inline: bool, other: impl FnOnce(usize)) {
        if self.wrs == 0 {
            self.first = op;
        }
        if op == self.first {
            self.of_first += 1;
        } else {
            other(place_of(op));
        }
        self.mask |= 1 << place_of(op);
        self.wrs += 1;
        self.signalled += u64::from(signalled);
        self.inline += u64::from(inline);
        if signalled {
            if self.signalled == 1 {
                self.run.first = self.run.last;
            }
            self.run.longest = self.run.longest.max(self.run.last);
            self.run.last = 0;
        } else {
            self.run.last += 1;
        }
    }

    /// The chain of `ibv_post_send`, `signal_all` as the QP was made.
    ///
    /// # Safety
    /// `wr` is null or a chain that the program passed to `ibv_post_send`.
    #[inline(always)]
    pub unsafe fn of_send(mut wr: *const SendWr, signal_all: bool, mut other: impl FnMut(usize)) -> Self {
        let mut digest = Self::default();
        while !wr.is_null() {
            if digest.wrs == LONGEST_CHAIN {
                digest.cut = true;
                break;
            }
            // SAFETY: a work request of the chain.
            let this = unsafe { &*wr };
            let signalled = signal_all || this.send_flags & abi::SEND_SIGNALED != 0;
            digest.send(this.opcode, signalled, this.send_flags & abi::SEND_INLINE != 0, &mut other);
            // These two carry no list, and programs leave the fields unset.
            if !matches!(this.opcode, opcode::LOCAL_INV | opcode::BIND_MW) {
                // SAFETY: the list of a work request of the chain.
                unsafe { digest.list(this.sg_list, this.num_sge) };
            }
            wr = this.next;
        }
        digest
    }

    /// The chain of `ibv_post_recv` or `ibv_post_srq_recv`.
    ///
    /// # Safety
    /// `wr` is null or a chain that the program passed to one of them.
    #[inline(always)]
    pub unsafe fn of_receive(mut wr: *const RecvWr) -> Self {
        let mut digest = Self::default();
        while !wr.is_null() {
            if digest.wrs == LONGEST_CHAIN {
                digest.cut = true;
                break;
            }
            // SAFETY: a work request of the chain.
            let this = unsafe { &*wr };
            digest.wrs += 1;
            // SAFETY: the list of a work request of the chain.
            unsafe { digest.list(this.sg_list, this.num_sge) };
            wr = this.next;
        }
        digest
    }

    /// Adds the lengths of a list.
    ///
    /// # Safety
    /// `list` is null or has `count` entries, unless `count` is more than any device takes.
    #[inline(always)]
    pub unsafe fn list(&mut self, list: *const Sge, count: i32) {
        // SAFETY: as promised.
        self.bytes += unsafe { bytes(list, count) };
        if !list.is_null() && (1..=MOST_SGES).contains(&count) {
            self.sges += u64::from(count.unsigned_abs());
        }
    }

    /// What is left when `rest` was not posted; opcodes are the caller's to correct.
    pub fn without(&self, rest: &Self) -> Self {
        let mut left = *self;
        left.wrs = self.wrs.saturating_sub(rest.wrs);
        left.signalled = self.signalled.saturating_sub(rest.signalled);
        left.inline = self.inline.saturating_sub(rest.inline);
        left.bytes = self.bytes.saturating_sub(rest.bytes);
        left.sges = self.sges.saturating_sub(rest.sges);
        left.cut |= rest.cut;
        left
    }

    /// As a probe site passes it.
    pub fn flags(&self, queue: Queue, extended: bool) -> Flags {
        Flags::pack(self.signalled, self.inline, self.mask, queue, extended)
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    fn chain(wrs: &mut [SendWr]) -> *const SendWr {
        for index in (1..wrs.len()).rev() {
            let next: *mut SendWr = &mut wrs[index];
            wrs[index - 1].next = next;
        }
        wrs.as_ptr()
    }

    fn write(list: &mut [Sge], flags: u32) -> SendWr {
        SendWr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: list.as_mut_ptr(),
            num_sge: i32::try_from(list.len()).unwrap(),
            opcode: opcode::RDMA_WRITE,
            send_flags: flags,
        }
    }

    #[test]
    fn a_chain_is_summed_up() {
        let mut list = [Sge { addr: 0, length: 100, lkey: 0 }, Sge { addr: 0, length: 28, lkey: 0 }];
        let mut wrs = [
            write(&mut list, 0),
            write(&mut list, abi::SEND_INLINE),
            write(&mut list, abi::SEND_SIGNALED),
            write(&mut list, 0),
        ];
        // SAFETY: a chain of ours.
        let digest = unsafe { Digest::of_send(chain(&mut wrs), false, |_| {}) };
        assert_eq!(
            (digest.wrs, digest.signalled, digest.inline, digest.bytes, digest.sges),
            (4, 1, 1, 512, 8)
        );
        assert_eq!((digest.run.first, digest.run.longest, digest.run.last), (2, 2, 1));
        assert_eq!((digest.first, digest.of_first), (opcode::RDMA_WRITE, 4));
        // SAFETY: the same chain.
        let all = unsafe { Digest::of_send(wrs.as_ptr(), true, |_| {}) };
        assert_eq!((all.signalled, all.run.longest), (4, 0));
    }

    #[test]
    fn what_was_not_posted_is_subtracted() {
        let mut list = [Sge { addr: 0, length: 8, lkey: 0 }];
        let mut wrs = [write(&mut list, 0), write(&mut list, abi::SEND_SIGNALED), write(&mut list, 0)];
        // SAFETY: chains of ours.
        let (whole, rest) = unsafe {
            (Digest::of_send(chain(&mut wrs), false, |_| {}), Digest::of_send(&wrs[1], false, |_| {}))
        };
        let posted = whole.without(&rest);
        assert_eq!((posted.wrs, posted.signalled, posted.bytes), (1, 0, 8));
    }

    #[test]
    fn opcodes_other_than_the_first_are_told_apart() {
        let mut digest = Digest::default();
        let mut others = [0; OPCODES];
        for op in [opcode::SEND, opcode::RDMA_READ, opcode::SEND, opcode::RDMA_READ, 99, opcode::RDMA_READ] {
            digest.send(op, false, false, |place| others[place] += 1);
        }
        assert_eq!((digest.first, digest.of_first, others[4], others[15]), (opcode::SEND, 2, 3, 1));
        assert_eq!(digest.flags(Queue::Send, false).opcodes(), 1 << 2 | 1 << 4 | 1 << 15);
    }

    #[test]
    fn unset_lists_and_wild_counts_are_not_read() {
        let mut wr = write(&mut [], 0);
        wr.num_sge = 3;
        wr.sg_list = ptr::null_mut();
        // SAFETY: null lists are not read.
        assert_eq!(unsafe { Digest::of_send(&wr, false, |_| {}) }.bytes, 0);
        wr.sg_list = ptr::dangling_mut();
        for count in [-1, 513, i32::MIN, i32::MAX] {
            wr.num_sge = count;
            // SAFETY: counts out of range are not read.
            assert_eq!(unsafe { Digest::of_send(&wr, false, |_| {}) }.sges, 0);
        }
        wr.num_sge = 1;
        wr.opcode = opcode::LOCAL_INV;
        // SAFETY: this opcode has no list.
        assert_eq!(unsafe { Digest::of_send(&wr, false, |_| {}) }.sges, 0);
    }

    #[test]
    fn a_chain_that_loops_is_cut() {
        let mut wr = write(&mut [], 0);
        wr.next = &mut wr;
        // SAFETY: a chain of one, for ever.
        let digest = unsafe { Digest::of_send(&wr, false, |_| {}) };
        assert!(digest.cut && digest.wrs == LONGEST_CHAIN);
    }
}
