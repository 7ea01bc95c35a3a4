//! What the probe sites are shown of the extended API: work requests as the chain that the classic API would have been
//! given, completion entries as the array it would have filled.
//!
//! Noted only while a profiler asks for operations to be told.

use probe_common::site::{self, FOUND_BEFORE, MOST_SHOWN, Rates, Stream, chain};
use probe_common::verbs::{SendWr, WrStart};

use crate::abi::{self, CqEx, DataBuf, Sge, Wc};
use crate::messages;
use crate::shared;

/// Entries of a list that are shown: one more than a profiler looks at, which tells it that there are more.
const MOST_SGES: usize = site::MOST_SGES + 1;
/// Completion entries that are shown; a profiler reads no more.
const MOST_FOUND: usize = 1024;

/// True while a profiler asks for anything.
#[inline(always)]
pub fn is_asked() -> bool {
    shared::get().is_some_and(|shared| shared.rates() != Rates::NONE)
}

/// The work requests of a batch.
#[derive(Default)]
pub struct Sends {
    wrs: Vec<SendWr>,
    sges: Vec<Sge>,
    /// Work requests begun.
    begun: u64,
}

impl Sends {
    /// A batch begins.
    #[inline(always)]
    pub fn clear(&mut self) {
        if self.begun != 0 {
            self.wrs.clear();
            self.sges.clear();
            self.begun = 0;
        }
    }

    /// A work request begins.
    #[cold]
    pub fn begin(&mut self, wr_id: u64, opcode: u32, signalled: bool, (remote_addr, rkey): (u64, u32)) {
        self.begun += 1;
        if self.wrs.len() < MOST_SHOWN {
            let send_flags = if signalled { abi::SEND_SIGNALED } else { 0 };
            let start = WrStart { wr_id, opcode, send_flags, remote_addr, ..WrStart::default() };
            self.wrs.push(SendWr::naming(start, rkey));
        }
    }

    /// It has these buffers.
    #[cold]
    fn buffers(&mut self, inline: bool, buffers: impl Iterator<Item = (u64, u64, u32)>) {
        if self.begun != self.wrs.len() as u64 {
            return;
        }
        let Some(SendWr { start: wr, .. }) = self.wrs.last_mut() else { return };
        let before = self.sges.len();
        self.sges.extend(buffers.take(MOST_SGES).map(|(addr, length, lkey)| Sge {
            addr,
            length: u32::try_from(length).unwrap_or(u32::MAX),
            lkey,
        }));
        wr.num_sge = wr.num_sge.saturating_add(u32::try_from(self.sges.len() - before).unwrap_or(0));
        if inline {
            wr.send_flags |= abi::SEND_INLINE;
        }
    }

    /// It has these entries.
    ///
    /// # Safety
    /// `list` has `count` entries.
    #[inline(always)]
    pub unsafe fn sges(&mut self, list: *const Sge, count: usize) {
        if self.begun != 0 && !list.is_null() {
            // SAFETY: as promised.
            let entry = |index| unsafe { &*list.add(index) };
            self.buffers(false, (0..count).map(entry).map(|sge| (sge.addr, u64::from(sge.length), sge.lkey)));
        }
    }

    /// Its data is copied from these buffers.
    ///
    /// # Safety
    /// `list` has `count` entries.
    #[inline(always)]
    pub unsafe fn inline(&mut self, list: *const DataBuf, count: usize) {
        if self.begun != 0 && !list.is_null() {
            // SAFETY: as promised.
            let entry = |index| unsafe { &*list.add(index) };
            self.buffers(
                true,
                (0..count).map(entry).map(|buffer| (buffer.addr as u64, buffer.length as u64, 0)),
            );
        }
    }

    /// The address of the chain, as long as nothing else is noted; 0 where not all of the batch was noted.
    pub fn chain(&mut self, wrs: u64) -> usize {
        if self.begun != wrs {
            return 0;
        }
        let cut = wrs > self.wrs.len() as u64;
        usize::try_from(chain(&mut self.wrs, &self.sges, cut)).unwrap_or(0)
    }
}

/// The completion entries of an extended poll.
#[derive(Default)]
pub struct Finds {
    entries: Vec<Wc>,
    found_ns: Vec<u64>,
}

impl Finds {
    /// Nothing found yet.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.entries.clear();
        self.found_ns.clear();
    }

    /// Notes the entry that an extended CQ stands at.
    ///
    /// # Safety
    /// `ex` stands at a completion entry, in this thread.
    #[cold]
    pub unsafe fn note(&mut self, ex: *mut CqEx) {
        if self.entries.len() == MOST_FOUND {
            return;
        }
        // SAFETY: as promised; functions of fields that were not asked for when the CQ was made are absent. What an entry
        // that failed was, its opcode does not tell.
        let wc = unsafe {
            let (wr_id, status) = ((*ex).wr_id, (*ex).status);
            let opcode = if status == 0 { abi::read_field(ex, abi::wc::OPCODE) } else { None };
            Wc {
                wr_id,
                status,
                opcode: opcode.unwrap_or(0),
                qp_num: abi::read_field(ex, abi::wc::QP_NUM).unwrap_or(0),
                ..Wc::default()
            }
        };
        let every = shared::get().is_some_and(|shared| shared.rates().exponent(Stream::Finds) == Some(0));
        self.entries.push(wc);
        self.found_ns.push(if every { messages::begin().ns() } else { 0 });
    }

    /// The address of these `found` ones, as long as nothing else is noted, and what is to be said of them; 0 where not
    /// all of them were noted.
    #[cold]
    pub fn entries(&mut self, found: u64) -> (usize, u32) {
        if self.entries.is_empty() || self.entries.len() as u64 != found.min(MOST_FOUND as u64) {
            return (0, 0);
        }
        if self.found_ns.contains(&0) {
            return (self.entries.as_ptr() as usize, 0);
        }
        let now = messages::begin().ns();
        for (wc, found) in self.entries.iter_mut().zip(&self.found_ns) {
            wc.imm_data = u32::try_from(now.saturating_sub(*found)).unwrap_or(u32::MAX);
        }
        (self.entries.as_ptr() as usize, FOUND_BEFORE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::opcode;

    #[test]
    fn a_batch_is_shown_as_the_chain_it_might_have_been() {
        let list = [Sge { addr: 4096, length: 8, lkey: 1 }, Sge { addr: 8192, length: 16, lkey: 1 }];
        let buffer = DataBuf { addr: std::ptr::without_provenance_mut(64), length: 5 };
        let mut sends = Sends::default();
        sends.begin(7, opcode::RDMA_WRITE, true, (0x5000, 9));
        // SAFETY: lists of ours.
        unsafe { sends.sges(list.as_ptr(), list.len()) };
        sends.begin(8, opcode::SEND, false, (0, 0));
        // SAFETY: as above.
        unsafe { sends.inline(&raw const buffer, 1) };
        assert_eq!(sends.chain(2), sends.wrs.as_ptr() as usize);
        let [SendWr { start: first, .. }, SendWr { start: second, .. }] = sends.wrs[..] else {
            panic!("{:?}", sends.wrs)
        };
        assert_eq!((first.wr_id, first.num_sge, first.remote_addr, first.rkey), (7, 2, 0x5000, 9));
        assert_eq!(sends.sges[1], Sge { addr: 8192, length: 16, lkey: 1 });
        assert_eq!((first.send_flags, second.send_flags), (abi::SEND_SIGNALED, abi::SEND_INLINE));
        assert_eq!((first.next, second.next), (&raw const sends.wrs[1] as u64, 0));
        assert_eq!(second.sg_list, &raw const sends.sges[2] as u64);
        assert_eq!(sends.sges[2], Sge { addr: 64, length: 5, lkey: 0 });
        sends.clear();
        assert_eq!(sends.chain(0), 0);
    }

    #[test]
    fn a_batch_begun_before_anybody_asked_is_not_shown() {
        let mut sends = Sends::default();
        let sge = Sge { addr: 4096, length: 8, lkey: 1 };
        // Of a request that was not noted.
        // SAFETY: a list of ours.
        unsafe { sends.sges(&raw const sge, 1) };
        assert!(sends.sges.is_empty());
        sends.begin(8, opcode::SEND, false, (0, 0));
        assert_eq!(sends.chain(2), 0);
    }

    #[test]
    fn of_a_batch_that_is_too_long_the_first_are_shown_and_that_there_are_more() {
        let mut sends = Sends::default();
        let sge = Sge { addr: 4096, length: 8, lkey: 1 };
        let all = MOST_SHOWN as u64 + 3;
        for number in 0..all {
            sends.begin(number, opcode::SEND, false, (0, 0));
            // SAFETY: a list of ours.
            unsafe { sends.sges(&raw const sge, 1) };
        }
        assert_ne!(sends.chain(all), 0);
        assert_eq!((sends.wrs.len(), sends.sges.len()), (MOST_SHOWN, MOST_SHOWN));
        assert!(sends.wrs.iter().all(|wr| wr.start.num_sge == 1 && wr.start.next != 0));
    }

    #[test]
    fn completion_entries_are_shown_where_all_of_them_were_noted() {
        let mut finds = Finds { entries: vec![Wc::default(); 2], found_ns: vec![1, 0] };
        assert_eq!(finds.entries(3), (0, 0));
        // One was found when nobody asked for the time.
        assert_eq!(finds.entries(2), (finds.entries.as_ptr() as usize, 0));
        finds.found_ns[1] = messages::begin().ns();
        assert_eq!(finds.entries(2), (finds.entries.as_ptr() as usize, FOUND_BEFORE));
        // The first since the machine began, longer than fits: said as the most that does.
        assert!(finds.entries[0].imm_data >= finds.entries[1].imm_data);
        finds.clear();
        assert_eq!(finds.entries(0), (0, 0));
    }
}
