//! Processor time that calls cost in the model, spent by the program's thread as on a host with the NIC.

use crate::abi::consts::IBV_QPS_RTS;
use crate::device::process::Process;
use crate::object::qp::{Qp, Requester};
use crate::sys::clock;
use std::cell::Cell;

/// The time, where calls take a modelled time; 0 without a model.
#[inline]
pub fn call_begins(process: &Process) -> u64 {
    if process.pacer.is_some() { clock::now_ns() } else { 0 }
}

/// Hands the requests numbered `from` and on, just posted, to the timing model, if there is one. Requests to a QP in
/// error, which are flushed at once, or in SQD, which wait for the program, take no NIC's time. The call began at `start_ns`.
#[inline]
pub fn posted(qp: &Qp, r: &mut Requester, from: u64, start_ns: u64) -> CallCost {
    let process = r.fixed.process;
    match &process.pacer {
        Some(pacer) if from < r.queue.posted && qp.state() == IBV_QPS_RTS => {
            let span_ns = pacer.span_ns(pacer.post(r, from).cpu);
            process.wire.due_earlier(pacer.next_due());
            CallCost { start_ns, span_ns }
        }
        _ => CallCost::NONE,
    }
}

/// What a poll costs that took `n` completions and began to look for them at `start_ns`.
#[inline]
pub fn polled(process: &Process, start_ns: u64, n: u64) -> CallCost {
    match &process.pacer {
        Some(pacer) if n > 0 => CallCost { start_ns, span_ns: n * pacer.poll_ns },
        _ => CallCost::NONE,
    }
}

/// What is caught up with after a standstill must not make calls free for long.
const LENT_AT_MOST_NS: u64 = 50_000;

thread_local! {
    /// Time this thread has lent the device and not got back: see [`lend`].
    static LENT: Cell<u64> = const { Cell::new(0) };
}

/// This thread did the device's work since `start_ns`, until now, which is returned. A NIC would have done it by itself, beside
/// the program: what the program's next calls cost is that much less, or a busy program would be slower than the model says.
pub fn lend(start_ns: u64) -> u64 {
    let now = clock::now_ns();
    LENT.set((LENT.get() + now.saturating_sub(start_ns)).min(LENT_AT_MOST_NS));
    now
}

/// Processor time that a call costs in the model.
#[derive(Clone, Copy)]
pub struct CallCost {
    start_ns: u64,
    span_ns: u64,
}

impl CallCost {
    /// None: there is no model.
    pub const NONE: Self = Self { start_ns: 0, span_ns: 0 };

    /// Spends it, as the program's thread would. Short and on purpose: what doorbells and lists do to a busy core is part
    /// of what the model shows.
    #[inline]
    pub fn spend(self) {
        if self.span_ns != 0 {
            spend(self.start_ns, self.span_ns);
        }
    }
}

fn spend(start_ns: u64, span_ns: u64) {
    const AT_MOST_NS: u64 = 2_000_000;
    /// What reading the clock and leaving the call take. What is later than that was taken by others.
    const CLOCK_NS: u64 = 200;
    let span_ns = span_ns.min(AT_MOST_NS);
    let lent = LENT.get().min(span_ns);
    let end = start_ns + span_ns - lent;
    let mut now = clock::now_ns();
    while now < end {
        std::hint::spin_loop();
        now = clock::now_ns();
    }
    // Every call ends a reading of the clock late; at some hundred thousand calls a second that would slow the program.
    LENT.set((LENT.get() - lent + (now - end).min(CLOCK_NS)).min(LENT_AT_MOST_NS));
}

/// Takes the time a modelled control operation takes, sleeping.
pub fn take_time(start_ns: u64, span_ns: u64) {
    let left = (start_ns + span_ns).saturating_sub(clock::now_ns());
    if left > 50_000 {
        std::thread::sleep(std::time::Duration::from_nanos(left));
    } else {
        spend(start_ns, span_ns);
    }
}
