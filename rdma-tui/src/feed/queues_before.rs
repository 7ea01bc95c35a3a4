//! What queues had counted when a recording began, to be taken off what they count later.

use std::collections::BTreeMap;

use probe_user::sample::{DataPath, QueueCounts, QueueKind};

/// Latest counts of the queues of one process.
#[derive(Debug, Clone, Default)]
pub struct QueuesBefore {
    totals: QueueCounts,
    uncounted: u64,
    queues: BTreeMap<(QueueKind, u64), QueueCounts>,
}

impl QueuesBefore {
    /// Takes in what a sample tells. A queue that is gone has told its last.
    pub fn remember(&mut self, path: &DataPath) {
        self.totals = path.totals.clone();
        self.uncounted = path.uncounted;
        for queue in &path.queues {
            let key = (queue.queue, queue.object);
            if queue.gone {
                self.queues.remove(&key);
            } else {
                self.queues.insert(key, queue.counts.clone());
            }
        }
    }

    /// Takes off `path` what was counted before.
    pub fn take_off(&self, path: &mut DataPath) {
        path.totals = path.totals.since(&self.totals);
        path.uncounted = path.uncounted.saturating_sub(self.uncounted);
        for queue in &mut path.queues {
            if let Some(before) = self.queues.get(&(queue.queue, queue.object)) {
                queue.counts = queue.counts.since(before);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_user::sample::QueueSample;

    fn path(object: u64, wrs: u64, gone: bool) -> DataPath {
        let counts = QueueCounts { wrs, ..QueueCounts::default() };
        let queue = QueueSample { object, gone, counts: counts.clone(), ..QueueSample::default() };
        DataPath { totals: counts, queues: vec![queue], ..DataPath::default() }
    }

    #[test]
    fn only_what_came_after_the_beginning_is_left() {
        let mut before = QueuesBefore::default();
        before.remember(&path(1, 10, false));
        before.remember(&path(2, 15, true));
        let mut later = path(1, 40, false);
        before.take_off(&mut later);
        assert_eq!((later.totals.wrs, later.queues[0].counts.wrs), (25, 30));
        let mut new = path(3, 40, false);
        before.take_off(&mut new);
        assert_eq!(new.queues[0].counts.wrs, 40, "a queue made since has counted nothing before");
        assert_eq!(before.queues.len(), 1, "what is gone takes no room");
    }
}
