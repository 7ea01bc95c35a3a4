//! Counters of rates: posts, work requests, completions and empty polls a second, per process.

use crate::model::{Model, ProcessModel, QueueInterval};
use crate::sample::{ProcessId, QueueCounts};

/// A rate: the counter's name, and what is counted.
type Rate = (&'static str, fn(&QueueCounts) -> u64);

const RATES: [Rate; 6] = [
    ("posts/s", |c| c.post_calls),
    ("WRs/s", |c| c.wrs),
    ("bytes/s", |c| c.bytes),
    ("receives/s", |c| c.recv_wrs),
    ("CQEs/s", |c| c.cqes),
    ("empty polls/s", |c| c.empty_polls),
];

/// One value of a counter.
pub(super) struct Value {
    pub(super) process: ProcessId,
    pub(super) name: &'static str,
    /// From when on it holds: a rate is that of the interval before its sample.
    pub(super) at_ns: u64,
    pub(super) value: u64,
}

/// The rates of the model's last interval: of every process that is observed, 0 where nothing changed.
pub(super) fn rates(model: &Model) -> Vec<Value> {
    let (from_ns, to_ns) = model.interval;
    let observed = model.processes.iter().filter(|(_, p)| p.data_path.is_observed());
    observed.flat_map(|(id, process)| of_process(*id, process, from_ns, to_ns)).collect()
}

fn of_process(process: ProcessId, model: &ProcessModel, from_ns: u64, to_ns: u64) -> Vec<Value> {
    let interval = model.data_path.totals.interval(to_ns);
    let rate = |of: fn(&QueueCounts) -> u64| interval.map_or(0.0, |i: &QueueInterval| i.per_second(of));
    RATES
        .iter()
        .map(|(name, of)| Value { process, name, at_ns: from_ns, value: rate(*of).round() as u64 })
        .collect()
}
