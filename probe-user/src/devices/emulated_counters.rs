//! What the emulated device counts itself, added up over the processes that have it: each has a device of its own, which
//! ends with it.

use std::collections::{BTreeMap, HashMap, HashSet};

use rnic_emu::stats::{self, ModelCounter, ProcessCounter, QpCounter};

use crate::sample::ProcessId;

/// Prefix of the timing model's counters; behind it come the names of [`ModelCounter`].
const MODEL: &str = "model_";

/// Counters of the ports, as a NIC has them.
const PORT: [QpCounter; 11] = [
    QpCounter::TxMessages,
    QpCounter::TxPackets,
    QpCounter::TxBytes,
    QpCounter::RxMessages,
    QpCounter::RxPackets,
    QpCounter::RxBytes,
    QpCounter::RnrSent,
    QpCounter::RnrReceived,
    QpCounter::Retries,
    QpCounter::Drops,
    QpCounter::SendErrors,
];

/// How well the real clock keeps up with the model's.
const PACING: [ProcessCounter; 2] = [ProcessCounter::PacedCompletions, ProcessCounter::PacedLate];

/// Counters by name.
type Counters = BTreeMap<String, u64>;

/// The counters last read of each process.
#[derive(Debug, Default)]
pub struct EmulatedCounters {
    of: HashMap<ProcessId, Counters>,
    ended: Counters,
}

impl EmulatedCounters {
    /// From now on the counters of this process are read.
    pub fn watch(&mut self, id: ProcessId) {
        self.of.entry(id).or_default();
    }

    /// The sum over all processes so far, read anew where they still live; `None` where there never was one.
    pub fn read(&mut self) -> Option<Counters> {
        for (id, counters) in &mut self.of {
            // A process that has ended, or has no device open just now, keeps what it had.
            if let Ok(snapshot) = stats::read(id.pid) {
                *counters = told(&snapshot);
            }
        }
        let mut sum = self.ended.clone();
        self.of.values().for_each(|counters| add(&mut sum, counters));
        (!sum.is_empty()).then_some(sum)
    }

    /// These processes are gone: their counts stand.
    pub fn forget(&mut self, gone: &HashSet<ProcessId>) {
        for (_, counters) in self.of.extract_if(|id, _| gone.contains(id)) {
            add(&mut self.ended, &counters);
        }
    }
}

fn told(snapshot: &stats::Snapshot) -> Counters {
    let port = PORT.iter().map(|counter| (counter.name().to_owned(), snapshot.qp_total(*counter)));
    let pacing = PACING.iter().map(|counter| (counter.name().to_owned(), snapshot.process(*counter)));
    let mut counters: Counters = port.chain(pacing).collect();
    if snapshot.model(ModelCounter::Posted) > 0 {
        let model = ModelCounter::ALL.iter();
        counters.extend(model.map(|c| (format!("{MODEL}{}", c.name()), snapshot.model(*c))));
    }
    counters
}

fn add(sum: &mut Counters, counters: &Counters) {
    for (name, value) in counters {
        let total = sum.entry(name.clone()).or_default();
        *total = total.saturating_add(*value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: ProcessId = ProcessId { pid: u32::MAX, start_ns: 1 };
    const BOB: ProcessId = ProcessId { pid: u32::MAX, start_ns: 2 };

    #[test]
    fn what_a_process_counted_stands_when_it_has_ended() {
        let mut counters = EmulatedCounters::default();
        assert_eq!(counters.read(), None);
        counters.watch(ALICE);
        assert_eq!(counters.read(), None);
        counters.of.insert(ALICE, [("tx_bytes".to_owned(), 3)].into());
        counters.of.insert(BOB, [("tx_bytes".to_owned(), 4), ("model_posted".to_owned(), 1)].into());
        let sum: Counters = [("tx_bytes".to_owned(), 7), ("model_posted".to_owned(), 1)].into();
        assert_eq!(counters.read(), Some(sum.clone()));
        counters.forget(&[BOB].into());
        assert_eq!(counters.read(), Some(sum));
        assert_eq!(counters.of.len(), 1);
    }
}
