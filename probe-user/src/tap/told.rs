//! From readings of the tap to samples: what changed since the one before, and nothing from before the recording.

use std::collections::BTreeMap;

use crate::sample::{DataPath, Observed, ObservedBy, Opcode, QueueCounts, QueueSample};

use super::{Counts, Object, Reading};

/// What has been told of one process. Its program may be replaced (exec): the new one counts from nothing, in a file of
/// its own, and the sums go on.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Counted before the recording.
    before: Option<Before>,
    /// Sums of programs that were replaced, and the calls they could not count.
    replaced: (QueueCounts, u64),
    /// Objects of this program are named from here on.
    first_object: u64,
    latest: Option<DataPath>,
    objects: BTreeMap<u64, QueueSample>,
}

#[derive(Debug)]
struct Before {
    total: QueueCounts,
    uncounted: u64,
    objects: BTreeMap<u64, Object>,
}

impl Told {
    /// What `reading` counted already is not part of the recording.
    pub(super) fn starting_with(reading: Reading) -> Self {
        let Reading { objects, total, uncounted, .. } = reading;
        let objects = objects.into_iter().map(|object| (object.id, object)).collect();
        Self { before: Some(Before { total: counts(&total, None), uncounted, objects }), ..Self::default() }
    }

    /// The program was replaced; `told` before was the last of it.
    pub(super) fn replaced(&mut self) {
        if let Some(latest) = self.latest.take() {
            self.replaced = (latest.totals, latest.uncounted);
        }
        self.before = None;
        self.first_object = self.objects.keys().next_back().map_or(self.first_object, |last| last + 1);
    }

    /// What to tell of a reading; `None` where nothing changed.
    pub(super) fn changed(&mut self, reading: &Reading) -> Option<DataPath> {
        let mut totals = counts(&reading.total, None);
        if let Some(before) = &self.before {
            totals = totals.since(&before.total);
        }
        totals.add(&self.replaced.0);
        let uncounted_before = self.before.as_ref().map_or(0, |before| before.uncounted);
        let path = DataPath {
            observed: Observed { by: ObservedBy::Tap, ..Observed::default() },
            totals,
            queues: Vec::new(),
            uncounted: reading.uncounted.saturating_sub(uncounted_before) + self.replaced.1,
            unseen: unseen(reading),
        };
        let queues = self.changed_queues(reading);
        if queues.is_empty() && self.latest.as_ref() == Some(&path) {
            return None;
        }
        self.latest = Some(path.clone());
        Some(DataPath { queues, ..path })
    }

    fn changed_queues(&mut self, reading: &Reading) -> Vec<QueueSample> {
        let mut now: BTreeMap<u64, QueueSample> = BTreeMap::new();
        for object in &reading.objects {
            let before = self.before.as_ref().and_then(|before| before.objects.get(&object.id));
            // A queue that was gone before the recording began is none of its queues.
            if before.is_some_and(|before| before.gone) {
                continue;
            }
            let queue = queue(self.first_object.saturating_add(object.id), object, before);
            now.insert(queue.object, queue);
        }
        let mut changed: Vec<QueueSample> = Vec::new();
        for (name, known) in &mut self.objects {
            // Folded into the sums of what is gone.
            if !known.gone && !now.contains_key(name) {
                known.gone = true;
                changed.push(known.clone());
            }
        }
        for (name, queue) in now {
            if self.objects.get(&name) != Some(&queue) {
                changed.push(queue.clone());
                self.objects.insert(name, queue);
            }
        }
        self.shed();
        changed
    }

    /// Keeps no counts of queues that are gone and told: only the last name is needed.
    fn shed(&mut self) {
        const KEPT: usize = 1 << 16;
        while self.objects.len() > KEPT {
            let Some(name) = self.objects.iter().find(|(_, queue)| queue.gone).map(|(name, _)| *name) else {
                return;
            };
            self.objects.remove(&name);
        }
    }
}

fn queue(name: u64, object: &Object, before: Option<&Object>) -> QueueSample {
    let threads = object.threads.iter().map(|thread| thread.threads.max(1)).fold(0, u32::saturating_add);
    let mut counted = counts(&object.counts, Some(threads));
    if let Some(before) = before {
        counted = counted.since(&counts(&before.counts, None));
    }
    QueueSample {
        queue: object.kind.into(),
        object: name,
        pointer: object.address,
        number: object.number,
        gone: object.gone,
        observed: None,
        counts: counted,
    }
}

/// The tap's counts as traces carry them.
pub(crate) fn counts(c: &Counts, threads: Option<u32>) -> QueueCounts {
    let mut opcodes = BTreeMap::new();
    for (name, n) in &c.opcodes {
        *opcodes.entry(opcode(name)).or_default() += n;
    }
    QueueCounts {
        post_calls: c.post_calls,
        post_failed: c.post_failed,
        post_errnos: BTreeMap::new(),
        wrs: c.wrs,
        signalled: c.signalled,
        inline: c.inline,
        bytes: c.bytes,
        sges: c.sges,
        longest_unsignalled: c.longest_unsignalled,
        opcodes,
        recv_calls: c.recv_calls,
        recv_failed: c.recv_failed,
        recv_wrs: c.recv_wrs,
        recv_bytes: c.recv_bytes,
        recv_sges: c.recv_sges,
        cut: c.cut,
        aborted: c.aborted,
        polls: c.polls,
        empty_polls: c.empty_polls,
        failed_polls: c.failed_polls,
        cqes: c.cqes,
        cqe_errors: c.cqe_errors,
        cut_polls: c.cut_polls,
        statuses: c.statuses.clone(),
        notifies: c.notifies,
        threads,
        detail: None,
    }
}

/// The tap's last counter is shared by the opcodes it has no counter for; today that is one.
pub(crate) fn opcode(name: &str) -> Opcode {
    match name {
        "atomic_write_or_later" => Opcode::AtomicWrite,
        _ => serde_json::from_value(name.into()).unwrap_or(Opcode::Other),
    }
}

fn unseen(reading: &Reading) -> Vec<String> {
    let mut unseen = Vec::new();
    let mut tell = |n: u32, what: &str| {
        if n > 0 {
            unseen.push(format!("{n} {what}"));
        }
    };
    tell(reading.untapped_contexts, "open devices whose operations could not be tapped");
    tell(reading.unnamed_objects, "queues without a record of their own (they are in the totals)");
    tell(reading.foreign_libraries, "look-ups in a second libibverbs, which is not tapped");
    unseen
}

/// What is told of a process that never showed the tap's counters.
pub(super) fn never_seen() -> DataPath {
    let why = "it opened no RDMA device under the tap: it used none, or it does not load preloaded libraries \
               (statically linked, set-uid), or it lived too briefly to be looked into";
    let observed = Observed { why: why.to_owned(), ..Observed::default() };
    DataPath { observed, ..DataPath::default() }
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, ThreadCounts};
    use super::*;

    fn object(id: u64, wrs: u64, gone: bool) -> Object {
        let counts = Counts { wrs, opcodes: BTreeMap::from([("send", wrs)]), ..Counts::default() };
        let threads = vec![ThreadCounts { tid: 1, threads: 2, counts: counts.clone() }];
        Object {
            id,
            kind: Kind::Qp,
            address: 10,
            context: 1,
            number: 17,
            signal_all: None,
            gone,
            counts,
            threads,
        }
    }

    fn reading(total: u64, objects: Vec<Object>) -> Reading {
        Reading { total: Counts { wrs: total, ..Counts::default() }, objects, ..Reading::default() }
    }

    fn wrs(path: &DataPath) -> Vec<(u64, u64, bool)> {
        path.queues.iter().map(|queue| (queue.object, queue.counts.wrs, queue.gone)).collect()
    }

    #[test]
    fn only_what_changed_is_told_and_nothing_twice() {
        let mut told = Told::default();
        let first = told.changed(&reading(7, vec![object(1, 3, false), object(2, 4, false)])).unwrap();
        assert_eq!((first.totals.wrs, wrs(&first)), (7, vec![(1, 3, false), (2, 4, false)]));
        assert_eq!(first.queues[0].counts.threads, Some(2));
        assert_eq!(first.queues[0].counts.opcodes, BTreeMap::from([(Opcode::Send, 3)]));
        assert!(told.changed(&reading(7, vec![object(1, 3, false), object(2, 4, false)])).is_none());
        let second = told.changed(&reading(9, vec![object(1, 5, false), object(2, 4, false)])).unwrap();
        assert_eq!((second.totals.wrs, wrs(&second)), (9, vec![(1, 5, false)]));
    }

    #[test]
    fn a_queue_whose_slot_was_folded_is_told_gone_with_its_last_counts() {
        let mut told = Told::default();
        told.changed(&reading(3, vec![object(1, 3, false)]));
        let folded = told.changed(&reading(5, vec![])).unwrap();
        assert_eq!((folded.totals.wrs, wrs(&folded)), (5, vec![(1, 3, true)]));
        assert!(told.changed(&reading(5, vec![])).is_none());
    }

    #[test]
    fn what_was_counted_before_the_recording_is_left_out() {
        let mut told = Told::starting_with(reading(100, vec![object(1, 60, false), object(2, 40, true)]));
        let path =
            told.changed(&reading(110, vec![object(1, 65, false), object(2, 40, true), object(3, 5, false)]));
        let path = path.unwrap();
        assert_eq!((path.totals.wrs, wrs(&path)), (10, vec![(1, 5, false), (3, 5, false)]));
    }

    #[test]
    fn the_sums_of_a_replaced_program_go_on_and_its_queues_keep_their_names() {
        let mut told = Told::default();
        told.changed(&reading(7, vec![object(1, 3, false), object(2, 4, false)]));
        told.replaced();
        let path = told.changed(&reading(1, vec![object(1, 1, false)])).unwrap();
        assert_eq!((path.totals.wrs, wrs(&path)), (8, vec![(1, 3, true), (2, 4, true), (4, 1, false)]));
        told.replaced();
        assert_eq!(told.changed(&reading(2, vec![])).unwrap().totals.wrs, 10);
    }

    #[test]
    fn opcodes_of_the_tap_have_the_names_of_traces() {
        assert_eq!(opcode("rdma_read"), Opcode::RdmaRead);
        assert_eq!(opcode("atomic_write_or_later"), Opcode::AtomicWrite);
        assert_eq!(opcode("opcode_12"), Opcode::Other);
    }
}
