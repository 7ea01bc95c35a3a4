//! Requests of the extended API as tracers see them: the chain that the classic API would have been given.

use crate::abi::consts::*;
use crate::object::send_queue::SendQueue;
use probe_common::site::{MOST_SHOWN, chain};
use probe_common::verbs::{SendWr, Sge, WrStart};

/// Room for a chain; grows with the batches that are told.
#[derive(Default)]
pub struct Shown {
    wrs: Vec<SendWr>,
    sges: Vec<Sge>,
}

impl Shown {
    /// The address of a chain of the requests from number `first` on, as long as nothing else is shown; 0 for none.
    pub fn of(&mut self, queue: &SendQueue, first: u64) -> usize {
        self.wrs.clear();
        self.sges.clear();
        let most = first + MOST_SHOWN as u64;
        for counter in first..queue.posted.min(most) {
            let wqe = queue.wqe(counter);
            let mut send_flags = u32::from(wqe.flags);
            if queue.sig_all {
                send_flags |= IBV_SEND_SIGNALED;
            }
            let before = self.sges.len();
            if wqe.inline {
                send_flags |= IBV_SEND_INLINE;
                // Copied when it was given; the first buffer stands for all.
                self.sges.push(Sge { addr: wqe.compare_add, length: wqe.len, lkey: 0 });
            } else {
                let sges = queue.sges(counter).iter();
                self.sges.extend(sges.map(|s| Sge { addr: s.addr, length: s.length, lkey: s.lkey }));
            }
            let start = WrStart {
                wr_id: wqe.wr_id,
                num_sge: (self.sges.len() - before) as u32,
                opcode: u32::from(wqe.opcode),
                send_flags,
                remote_addr: wqe.remote_addr,
                ..WrStart::default()
            };
            self.wrs.push(SendWr::naming(start, wqe.rkey));
        }
        chain(&mut self.wrs, &self.sges, queue.posted > most) as usize
    }
}
