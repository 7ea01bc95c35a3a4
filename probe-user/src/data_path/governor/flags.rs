//! Asking a process for which operations it calls the sites of our libraries.

use probe_common::site::{Rates, STREAMS};
use rnic_emu::stats::{self, Asked, CqCounter, ProcessCounter, QpCounter};

use crate::tap::Tap;

/// The libraries of ours in one process.
#[derive(Default)]
pub struct Flags {
    tap: Option<Tap>,
    emulator: Option<Asked>,
}

impl Flags {
    /// Looks for libraries that were not found yet; true where one was. The tap's sites are only of interest
    /// with `taps`: it counts by itself.
    pub fn look(&mut self, pid: u32, taps: bool) -> bool {
        let mut found = false;
        if taps && self.tap.is_none() {
            self.tap = Tap::of(pid).ok().flatten();
            found |= self.tap.is_some();
        }
        if self.emulator.is_none() {
            self.emulator = Asked::of(pid).ok();
            found |= self.emulator.is_some();
        }
        found
    }

    /// True where there is something to ask.
    pub fn any(&self) -> bool {
        self.tap.is_some() || self.emulator.is_some()
    }

    /// Operations by stream since the process began, as the libraries count them by themselves; `None` where they cannot
    /// be read. How many of its posts had a signalled request is not among that: at most so many as there were such requests.
    pub fn operations(&self, pid: u32) -> Option<[u64; STREAMS]> {
        let mut all = [0_u64; STREAMS];
        let mut add = |posts: u64, signalled: u64, receives: u64, polls: u64, empty: u64| {
            let signalled = signalled.min(posts);
            let of_library =
                [(posts - signalled).saturating_add(receives), polls.saturating_sub(empty), empty, signalled];
            all.iter_mut().zip(of_library).for_each(|(sum, n)| *sum = sum.saturating_add(n));
        };
        if let Some(tap) = &self.tap {
            let total = tap.read().ok()?.total;
            add(total.post_calls, total.signalled, total.recv_calls, total.polls, total.empty_polls);
        }
        if self.emulator.is_some() {
            let counters = stats::read(pid).ok()?;
            let (qp, cq) = (|which| counters.qp_total(which), |which| counters.cq_total(which));
            add(
                qp(QpCounter::SendCalls),
                qp(QpCounter::Signalled),
                qp(QpCounter::RecvCalls).saturating_add(counters.process(ProcessCounter::SrqRecvCalls)),
                cq(CqCounter::PollCalls),
                cq(CqCounter::EmptyPolls),
            );
        }
        Some(all)
    }

    /// Asks for so many. A process that is gone need not answer.
    pub fn ask(&self, rates: Rates) {
        if let Some(tap) = &self.tap {
            tap.ask(rates);
        }
        if let Some(emulator) = &self.emulator {
            let _ = emulator.ask(rates);
        }
    }

    /// Leaves the process as it would be without us.
    pub fn restore(&self) {
        if let Some(tap) = &self.tap {
            tap.ask(Rates::NONE);
        }
        if let Some(emulator) = &self.emulator {
            let _ = emulator.ask(Rates::ALL);
        }
    }
}
