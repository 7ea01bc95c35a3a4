//! From the tables of counters to samples: what changed since the one before.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use probe_common::CallId;
use probe_common::wire::{BucketKey, CallCounters, CallKey};

use super::decode::call;
use crate::sample::{CallCount, ProcessId, ProcessSample};

/// One reading of the tables.
#[derive(Debug, Default)]
pub struct Reading {
    /// Counters.
    pub calls: Vec<(CallKey, CallCounters)>,
    /// Histogram buckets.
    pub buckets: Vec<(BucketKey, u64)>,
}

/// What has been reported so far.
#[derive(Debug, Default)]
pub struct Reported {
    last: HashMap<CallKey, CallCounters>,
}

impl Reported {
    /// The processes whose counters differ from the last reading, with all their counters and histograms.
    pub fn changed(&mut self, reading: &Reading) -> Vec<ProcessSample> {
        let mut changed = BTreeSet::new();
        for (key, counters) in &reading.calls {
            if self.last.insert(*key, *counters) != Some(*counters) {
                changed.insert(process(key.tgid, key.start_ns));
            }
        }
        let mut samples: BTreeMap<ProcessId, ProcessSample> =
            changed.into_iter().map(|id| (id, ProcessSample { id, ..ProcessSample::default() })).collect();
        for (key, counters) in &reading.calls {
            let Some(sample) = samples.get_mut(&process(key.tgid, key.start_ns)) else { continue };
            let Some(id) = CallId::from_number(key.call) else { continue };
            let count = CallCount {
                entered: counters.entered,
                returned: counters.returned,
                failed: counters.failed,
                bytes: counters.bytes,
                total_ns: counters.total_ns,
            };
            sample.calls.insert(call(id), count);
        }
        for (key, n) in &reading.buckets {
            let Some(sample) = samples.get_mut(&process(key.tgid, key.start_ns)) else { continue };
            let Some(id) = CallId::from_number(key.call) else { continue };
            sample.latency_ns.entry(call(id)).or_default().0.insert(key.bucket, *n);
        }
        samples.into_values().collect()
    }

    /// Forgets processes that are no more.
    pub fn forget(&mut self, gone: &HashSet<ProcessId>) {
        self.last.retain(|key, _| !gone.contains(&process(key.tgid, key.start_ns)));
    }
}

const fn process(tgid: u32, start_ns: u64) -> ProcessId {
    ProcessId { pid: tgid, start_ns }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Call;

    fn key(tgid: u32, start_ns: u64, call: CallId) -> CallKey {
        CallKey { start_ns, tgid, call: call as u8, zero: [0; 3] }
    }

    fn counters(entered: u64) -> CallCounters {
        CallCounters { entered, ..CallCounters::default() }
    }

    #[test]
    fn only_processes_whose_counters_changed_are_sampled_and_then_whole() {
        let mut reported = Reported::default();
        let mut reading = Reading {
            calls: vec![
                (key(1, 10, CallId::RegMr), counters(1)),
                (key(1, 10, CallId::DeregMr), counters(1)),
                (key(2, 10, CallId::RegMr), counters(1)),
            ],
            buckets: Vec::new(),
        };
        assert_eq!(reported.changed(&reading).len(), 2);
        assert!(reported.changed(&reading).is_empty());
        reading.calls[0].1.entered = 5;
        let again = reported.changed(&reading);
        assert_eq!(again.len(), 1);
        assert_eq!(again[0].id.pid, 1);
        assert_eq!(again[0].calls[&Call::RegMr].entered, 5);
        assert_eq!(again[0].calls[&Call::DeregMr].entered, 1);
    }

    #[test]
    fn two_lives_of_one_pid_are_two_processes() {
        let mut reported = Reported::default();
        let reading = Reading {
            calls: vec![(key(7, 10, CallId::RegMr), counters(1)), (key(7, 20, CallId::RegMr), counters(2))],
            buckets: Vec::new(),
        };
        let samples = reported.changed(&reading);
        assert_eq!(samples.iter().map(|s| s.id.start_ns).collect::<Vec<_>>(), [10, 20]);
    }

    #[test]
    fn a_number_of_no_known_call_is_left_out() {
        let mut unknown = key(1, 10, CallId::RegMr);
        unknown.call = 222;
        let samples = Reported::default()
            .changed(&Reading { calls: vec![(unknown, counters(1))], buckets: Vec::new() });
        assert!(samples[0].calls.is_empty());
    }
}
