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
const OPCODES: usize = 16;

fn place_of(op: u32) -> usize {
    usize::try_from(op).unwrap_or(OPCODES).min(OPCODES - 1)
}

/// Sums over a chain.
#[derive(Clone, Copy, Default)]
pub struct Digest {
    pub wrs: u64,
    pub signalled: u64,
    pub inline: u64,
    pub bytes: u64,
    pub sges: u64,
    /// Opcode of the first send work request, and how many have it.
    first: u32,
    of_first: u64,
    /// How many have each other opcode. Absent in most chains: an array to clear and to walk costs as much as the rest
    /// of the tap.
    others: Option<[u32; OPCODES]>,
    /// Work requests before the first signalled one, after the last, and the most between two.
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
    /// Adds one send work request.
    #[inline(always)]
    pub fn send(&mut self, op: u32, signalled: bool, inline: bool) {
        if self.wrs == 0 {
            self.first = op;
        }
        if op == self.first {
            self.of_first += 1;
        } else {
            self.other(op);
        }
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

    #[cold]
    fn other(&mut self, op: u32) {
        let others = self.others.get_or_insert_default();
        if let Some(count) = others.get_mut(place_of(op)) {
            *count = count.wrapping_add(1);
        }
    }

    /// Calls `add` with each opcode's place and count.
    #[inline(always)]
    pub fn each_opcode(&self, mut add: impl FnMut(usize, u64)) {
        if self.of_first != 0 {
            add(place_of(self.first), self.of_first);
        }
        if let Some(others) = &self.others {
            for (place, count) in others.iter().enumerate().filter(|(_, count)| **count != 0) {
                add(place, u64::from(*count));
            }
        }
    }

    /// The chain of `ibv_post_send`, `signal_all` as the QP was made.
    ///
    /// # Safety
    /// `wr` is null or a chain that the program passed to `ibv_post_send`.
    #[inline(always)]
    pub unsafe fn of_send(mut wr: *const SendWr, signal_all: bool) -> Self {
        let mut digest = Self::default();
        while !wr.is_null() {
            if digest.wrs == LONGEST_CHAIN {
                digest.cut = true;
                break;
            }
            // SAFETY: a work request of the chain.
            let this = unsafe { &*wr };
            let signalled = signal_all || this.send_flags & abi::SEND_SIGNALED != 0;
            digest.send(this.opcode, signalled, this.send_flags & abi::SEND_INLINE != 0);
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
        if list.is_null() || !(1..=MOST_SGES).contains(&count) {
            return;
        }
        for index in 0..count.unsigned_abs() as usize {
            // SAFETY: within the list.
            self.bytes += u64::from(unsafe { (*list.add(index)).length });
        }
        self.sges += u64::from(count.unsigned_abs());
    }

    /// What is left when `rest` was not posted.
    pub fn without(&self, rest: &Self) -> Self {
        let mut left = *self;
        left.wrs = self.wrs.saturating_sub(rest.wrs);
        left.signalled = self.signalled.saturating_sub(rest.signalled);
        left.inline = self.inline.saturating_sub(rest.inline);
        left.bytes = self.bytes.saturating_sub(rest.bytes);
        left.sges = self.sges.saturating_sub(rest.sges);
        rest.each_opcode(|place, count| {
            if place == place_of(left.first) && left.of_first >= count {
                left.of_first -= count;
            } else if let Some(of_other) = left.others.as_mut().and_then(|o| o.get_mut(place)) {
                *of_other = of_other.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
            }
        });
        left.cut |= rest.cut;
        left
    }

    /// As a probe site passes it.
    pub fn flags(&self, queue: Queue, extended: bool) -> Flags {
        let mut opcodes = 0_u16;
        self.each_opcode(|place, _| opcodes |= 1 << place);
        Flags::pack(self.signalled, self.inline, opcodes, queue, extended)
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
        let digest = unsafe { Digest::of_send(chain(&mut wrs), false) };
        assert_eq!(
            (digest.wrs, digest.signalled, digest.inline, digest.bytes, digest.sges),
            (4, 1, 1, 512, 8)
        );
        assert_eq!((digest.run.first, digest.run.longest, digest.run.last), (2, 2, 1));
        let mut counts = Vec::new();
        digest.each_opcode(|place, count| counts.push((place, count)));
        assert_eq!(counts, [(0, 4)]);
        // SAFETY: the same chain.
        let all = unsafe { Digest::of_send(wrs.as_ptr(), true) };
        assert_eq!((all.signalled, all.run.longest), (4, 0));
    }

    #[test]
    fn what_was_not_posted_is_subtracted() {
        let mut list = [Sge { addr: 0, length: 8, lkey: 0 }];
        let mut wrs = [write(&mut list, 0), write(&mut list, abi::SEND_SIGNALED), write(&mut list, 0)];
        // SAFETY: chains of ours.
        let (whole, rest) =
            unsafe { (Digest::of_send(chain(&mut wrs), false), Digest::of_send(&wrs[1], false)) };
        let posted = whole.without(&rest);
        assert_eq!((posted.wrs, posted.signalled, posted.bytes), (1, 0, 8));
    }

    #[test]
    fn opcodes_are_counted_apart_and_subtracted_apart() {
        let opcodes =
            [opcode::SEND, opcode::RDMA_READ, opcode::SEND, opcode::RDMA_READ, 99, opcode::RDMA_READ];
        let count = |ops: &[u32]| {
            let mut digest = Digest::default();
            ops.iter().for_each(|op| digest.send(*op, false, false));
            digest
        };
        let counts = |digest: &Digest| {
            let mut counts = Vec::new();
            digest.each_opcode(|place, count| counts.push((place, count)));
            counts
        };
        let whole = count(&opcodes);
        assert_eq!(counts(&whole), [(2, 2), (4, 3), (15, 1)]);
        assert_eq!(counts(&whole.without(&count(&opcodes[3..]))), [(2, 2), (4, 1)]);
        assert_eq!(counts(&whole.without(&whole)), []);
        assert_eq!(whole.flags(Queue::Send, false).opcodes(), 1 << 2 | 1 << 4 | 1 << 15);
    }

    #[test]
    fn unset_lists_and_wild_counts_are_not_read() {
        let mut wr = write(&mut [], 0);
        wr.num_sge = 3;
        wr.sg_list = ptr::null_mut();
        // SAFETY: null lists are not read.
        assert_eq!(unsafe { Digest::of_send(&wr, false) }.bytes, 0);
        wr.sg_list = ptr::dangling_mut();
        for count in [-1, 513, i32::MIN, i32::MAX] {
            wr.num_sge = count;
            // SAFETY: counts out of range are not read.
            assert_eq!(unsafe { Digest::of_send(&wr, false) }.sges, 0);
        }
        wr.num_sge = 1;
        wr.opcode = opcode::LOCAL_INV;
        // SAFETY: this opcode has no list.
        assert_eq!(unsafe { Digest::of_send(&wr, false) }.sges, 0);
    }

    #[test]
    fn a_chain_that_loops_is_cut() {
        let mut wr = write(&mut [], 0);
        wr.next = &mut wr;
        // SAFETY: a chain of one, for ever.
        let digest = unsafe { Digest::of_send(&wr, false) };
        assert!(digest.cut && digest.wrs == LONGEST_CHAIN);
    }
}
