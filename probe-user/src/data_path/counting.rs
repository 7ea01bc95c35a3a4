//! Reading what the probes of the data path have counted.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use probe_common::counters::{AT_PLACE, CQE_TO_POST, Granted, ObjectCounters, ObjectKey, cq, detail};
use probe_common::wire::part;
use serde::Serialize;

use super::failures::{Failure, nearest};
use super::{Calibration, Costs, HitCost, Own, SlicesTold, Spending, Targets, Told};
use crate::attach::{LoadError, Programs};
use crate::collect::wire::{DataPathTables, PlainObjectKey};
use crate::sample::{Histogram, ProcessId};
use crate::tap::{Counts, Kind, opcode_name};

/// Objects that are gone, kept for each process by themselves; those beyond are added up.
const MOST_GONE: usize = 16_384;

/// Who counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A digested site of the tap.
    Tap,
    /// A digested site of the emulated device.
    Emulator,
    /// A function of a provider.
    Function,
}

impl Source {
    pub(super) fn from_wire(source: u16) -> Option<Self> {
        [Self::Tap, Self::Emulator, Self::Function].get(usize::from(source).checked_sub(1)?).copied()
    }
}

/// What was seen of the work requests of a queue pair beyond their counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Details {
    /// Work requests looked at.
    pub wrs: u64,
    /// Those with a local or remote address that is no multiple of 64.
    pub unaligned_64: u64,
    /// Those with a local or remote address that is no multiple of 4096.
    pub unaligned_4096: u64,
    /// Those whose payload is no multiple of 64 bytes.
    pub odd_lengths: u64,
    /// Those whose first buffer is that of the one before.
    pub local_same: u64,
    /// Those whose first buffer follows that of the one before.
    pub local_sequential: u64,
    /// Those that name remote memory.
    pub remote_wrs: u64,
    /// Those whose remote memory is that of the one before.
    pub remote_same: u64,
    /// Those whose remote memory follows that of the one before.
    pub remote_sequential: u64,
    /// Those that follow the one before in both.
    pub mergeable: u64,
    /// Those that were not inline and would have fitted; `None` where it is not known what fits.
    pub could_inline: Option<u64>,
}

/// One queue pair, completion queue or shared receive queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Object {
    /// What it is.
    pub kind: Kind,
    /// QP number; handle of a CQ or SRQ.
    pub number: u32,
    /// Its address in the process.
    pub address: u64,
    /// Address of its context.
    pub context: u64,
    /// Type of a queue pair (`IBV_QPT_…`); 0 for others.
    pub qp_type: u32,
    /// Addresses of a queue pair's completion queues for sends and receives, and of its shared receive queue.
    pub queues: [u64; 3],
    /// When it was destroyed (`CLOCK_MONOTONIC`, ns); `None` while it lives, or where that was not watched.
    pub ended_ns: Option<u64>,
    /// Who counted.
    pub source: Source,
    /// Threads that posted or polled: at least so many.
    pub threads: u32,
    /// Times another thread than the one before posted or polled.
    pub thread_changes: u64,
    /// Most completion entries one poll found.
    pub most_cqes: u64,
    /// Of a completion queue: events taken though it had not been polled since it was armed.
    pub blind_events: u64,
    /// Of a completion queue: completion entries an extended poll stood at of which it was guessed what they complete.
    pub guessed_cqes: u64,
    /// Send work requests by size class: n for more than 2^(n−1) and at most 2^n bytes.
    pub sizes: BTreeMap<u8, u64>,
    /// Send work requests the queue holds; `None` where the queue pair was not seen being made.
    pub max_send_wr: Option<u32>,
    /// Most send work requests posted and not known complete; `None` where they were not followed.
    pub most_outstanding: Option<u64>,
    /// Of a queue pair that is gone: see [`Reading::unmatched`].
    pub unmatched: u64,
    /// See [`Details`].
    pub details: Details,
    /// Calls that were looked at; the counts stand for all.
    pub looked_at: u64,
    /// Variances of the counts of calls, and of work requests or completion entries; 0 where they are no estimates by
    /// chance.
    pub variances: [u64; 2],
    /// The counts.
    pub counts: Counts,
}

impl Object {
    /// Calls there were, as far as known.
    pub fn calls(&self) -> u64 {
        if self.kind == Kind::Cq {
            self.counts.polls
        } else {
            self.counts.post_calls + self.counts.recv_calls
        }
    }

    /// Work requests, or completion entries.
    pub fn items(&self) -> u64 {
        if self.kind == Kind::Cq { self.counts.cqes } else { self.counts.wrs + self.counts.recv_wrs }
    }
}

/// What the data path of one process has come to.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Reading {
    /// What a hit costs the process, by who counts.
    pub costs: BTreeMap<Source, HitCost>,
    /// Objects, by kind and number.
    pub objects: Vec<Object>,
    /// Objects that are gone and not listed.
    pub unlisted: u64,
    /// Their counts.
    pub unlisted_counts: Counts,
    /// Failures.
    pub failures: Vec<Failure>,
    /// From the post of a signalled work request to the poll that reaped its completion entry, in ns.
    pub post_to_reap: Vec<ReapLatency>,
    /// From a poll that found completion entries to the next post of the same thread, in ns.
    pub cqe_to_post: Histogram,
    /// Completion entries whose work request was not found: it was posted before the probes were there, or the order of
    /// the entries was another. They have no latency.
    pub unmatched: u64,
    /// Share of the process's CPU time that hits have cost so far; `None` where that is not known.
    pub overhead: Option<f64>,
    /// CPUs that the profiler itself uses, for all it watches; `None` where that is not known.
    pub profiler: Option<f64>,
    /// How functions of providers are watched, where not all the time: posts, and polls.
    pub slices: [Option<SlicesTold>; part::COUNT],
}

/// Latencies of one opcode and size class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReapLatency {
    /// Opcode.
    pub opcode: &'static str,
    /// Size class, as in [`Object::sizes`].
    pub size_class: u8,
    /// Latencies in ns.
    pub ns: Histogram,
}

impl Reading {
    /// Sums over all objects.
    pub fn total(&self) -> Counts {
        let mut total = self.unlisted_counts.clone();
        for object in &self.objects {
            total.add(&object.counts);
        }
        total
    }

    fn add(&mut self, object: Object) {
        let is_gone = object.ended_ns.is_some();
        if is_gone && self.objects.iter().filter(|o| o.ended_ns.is_some()).count() >= MOST_GONE {
            self.unlisted += 1;
            self.unlisted_counts.add(&object.counts);
        } else {
            self.objects.push(object);
        }
    }
}

/// The tables of the data path.
pub struct Counting {
    tables: DataPathTables,
    costs: Costs,
    spending: Spending,
    own: Own,
    told: Told,
    /// What is no longer in the table, by process.
    gone: BTreeMap<ProcessId, Reading>,
}

impl Counting {
    /// Takes the tables of loaded programs. What hits cost is read from `costs`, what they hit from `targets`, and what
    /// the governor did from `told`.
    ///
    /// # Errors
    /// [`LoadError`] when the object has no such tables.
    pub fn new(
        programs: &mut Programs,
        costs: Costs,
        targets: Targets,
        told: Told,
    ) -> Result<Self, LoadError> {
        let spending = Spending::new(targets, costs.clone());
        let (tables, own) = (programs.take_data_path()?, Own::begin());
        Ok(Self { tables, costs, spending, own, told, gone: BTreeMap::new() })
    }

    /// See [`Costs::calibration_within`]; measured now, if it was not.
    pub fn calibration(&self, programs: &Arc<Programs>, within: Duration) -> Option<Calibration> {
        self.costs.calibrate(programs);
        self.costs.calibration_within(within)
    }

    /// A process is watched from now on.
    pub fn watch(&mut self, pid: u32) {
        self.spending.begin(pid);
    }

    /// Reads everything, by process. What is gone is taken out of the table, which is bounded, and kept here.
    pub fn read(&mut self) -> BTreeMap<ProcessId, Reading> {
        let mut living: BTreeMap<ProcessId, Reading> = BTreeMap::new();
        let walked = self.tables.objects.iter().filter_map(Result::ok);
        let walked = walked.map(|(key, counters)| (key.0, counters.0));
        // What was counted at the place of one that is gone is read with its entry.
        let walked = walked.filter(|(key, _)| key.ended_ns & AT_PLACE == 0);
        let now = |key: &ObjectKey| self.tables.objects.get(&PlainObjectKey(*key), 0).ok().map(|c| c.0);
        for (key, entry) in settled(walked, now) {
            let counters = self.tables.whole(&key, entry);
            let Some(object) = object(&key, &counters) else { continue };
            let id = ProcessId { pid: key.tgid, start_ns: key.start_ns };
            if key.ended_ns == 0 {
                living.entry(id).or_default().objects.push(object);
            } else {
                // Removed only now: a key that goes while the table is walked makes the walk start again.
                let _ = self.tables.objects.remove(&PlainObjectKey(key));
                let at_place = ObjectKey { ended_ns: key.ended_ns | AT_PLACE, ..key };
                let _ = self.tables.objects.remove(&PlainObjectKey(at_place));
                self.gone.entry(id).or_default().add(object);
            }
        }
        let mut all = self.gone.clone();
        for (id, reading) in living {
            all.entry(id).or_default().objects.extend(reading.objects);
        }
        let mut failures: BTreeMap<ProcessId, Vec<(Source, Failure)>> = BTreeMap::new();
        for (key, failed) in self.tables.failures.iter().filter_map(Result::ok) {
            let Some(failure) = Failure::of(&key.0, &failed.0) else { continue };
            let id = ProcessId { pid: key.0.tgid, start_ns: key.0.start_ns };
            failures.entry(id).or_default().push(failure);
        }
        for (id, failures) in failures {
            all.entry(id).or_default().failures = nearest(failures);
        }
        self.read_latencies(&mut all);
        let (slices, profiler) = (self.told.slices(), self.own.share());
        for (id, reading) in &mut all {
            reading.overhead = self.spending.share(id.pid);
            reading.profiler = profiler;
            reading.slices.clone_from(&slices);
            reading.unmatched += reading.objects.iter().map(|object| object.unmatched).sum::<u64>();
            reading.objects = once_each(std::mem::take(&mut reading.objects));
            reading.objects.sort_by_key(|o| (o.kind, o.number, o.ended_ns.is_none(), o.ended_ns));
            Failure::in_order(&mut reading.failures);
            let sources: BTreeSet<Source> = reading.objects.iter().map(|object| object.source).collect();
            reading.costs = sources.into_iter().filter_map(|by| Some((by, self.costs.of(by)?))).collect();
        }
        all
    }

    fn read_latencies(&self, all: &mut BTreeMap<ProcessId, Reading>) {
        let rings = self.tables.rings.iter().filter_map(Result::ok);
        let unmatched: BTreeMap<_, _> =
            rings.map(|(key, ring)| ((key.0.tgid, key.0.start_ns, key.0.number), ring.0.unmatched)).collect();
        for ((pid, start_ns, _), unmatched) in unmatched {
            if let Some(reading) = all.get_mut(&ProcessId { pid, start_ns }) {
                reading.unmatched += unmatched;
            }
        }
        let mut by_class: BTreeMap<(ProcessId, u16), Histogram> = BTreeMap::new();
        for (key, count) in self.tables.latencies.iter().filter_map(Result::ok) {
            let id = ProcessId { pid: key.0.tgid, start_ns: key.0.start_ns };
            by_class.entry((id, key.0.class)).or_default().0.insert(key.0.bucket, count);
        }
        for ((id, class), ns) in by_class {
            let Some(reading) = all.get_mut(&id) else { continue };
            let [opcode, size_class] = class.to_le_bytes();
            if class == CQE_TO_POST {
                reading.cqe_to_post = ns;
            } else {
                let opcode = opcode_name(opcode);
                reading.post_to_reap.push(ReapLatency { opcode, size_class, ns });
            }
        }
    }

    /// Forgets processes that are no more.
    pub fn forget(&mut self, ended: &HashSet<ProcessId>) {
        self.gone.retain(|id, _| !ended.contains(id));
        self.spending.forget(&ended.iter().map(|id| id.pid).collect());
        let is_ended = |pid, start_ns| ended.contains(&ProcessId { pid, start_ns });
        let keys: Vec<_> = self.tables.objects.keys().filter_map(Result::ok).collect();
        for key in keys.into_iter().filter(|key| is_ended(key.0.tgid, key.0.start_ns)) {
            self.tables.free(&key.0);
            let _ = self.tables.objects.remove(&key);
        }
        let keys: Vec<_> = self.tables.rings.keys().filter_map(Result::ok).collect();
        for key in keys.into_iter().filter(|key| is_ended(key.0.tgid, key.0.start_ns)) {
            let _ = self.tables.rings.remove(&key);
        }
        let keys: Vec<_> = self.tables.senders.keys().filter_map(Result::ok).collect();
        for key in keys.into_iter().filter(|key| is_ended(key.0.tgid, key.0.start_ns)) {
            let _ = self.tables.senders.remove(&key);
        }
        let keys: Vec<_> = self.tables.latencies.keys().filter_map(Result::ok).collect();
        for key in keys.into_iter().filter(|key| is_ended(key.0.tgid, key.0.start_ns)) {
            let _ = self.tables.latencies.remove(&key);
        }
        let keys: Vec<_> = self.tables.failures.keys().filter_map(Result::ok).collect();
        for key in keys.into_iter().filter(|key| is_ended(key.0.tgid, key.0.start_ns)) {
            let _ = self.tables.failures.remove(&key);
        }
    }
}

/// The entries of a table that changes while it is walked, each object once.
///
/// A program that destroys a queue moves its entry to another key. The kernel's walk then begins anew where it stood on
/// the one that went, and may meet the object under both: read as living and, a moment later, as ended. `now` looks an
/// entry up again. Such an object is the ended one, unless another one has come to its address.
fn settled(
    walked: impl Iterator<Item = (ObjectKey, ObjectCounters)>,
    now: impl Fn(&ObjectKey) -> Option<ObjectCounters>,
) -> BTreeMap<ObjectKey, ObjectCounters> {
    let mut entries: BTreeMap<ObjectKey, ObjectCounters> = walked.collect();
    let ended: BTreeSet<(ObjectKey, u32)> = entries
        .iter()
        .filter(|(key, _)| key.ended_ns != 0)
        .map(|(key, counters)| (ObjectKey { ended_ns: 0, ..*key }, counters.number))
        .collect();
    for (key, number) in ended {
        let Entry::Occupied(mut living) = entries.entry(key) else { continue };
        // The program's probe first writes the ended entry and then removes the living one.
        match now(&key).filter(|counters| counters.number != number) {
            Some(counters) => living.insert(counters),
            None => living.remove(),
        };
    }
    entries
}

/// Where an object's operations passed several places, the one nearest to the program counts.
fn once_each(objects: Vec<Object>) -> Vec<Object> {
    let mut best = BTreeMap::new();
    for object in &objects {
        let source = best.entry((object.kind, object.address, object.number)).or_insert(object.source);
        *source = object.source.min(*source);
    }
    let is_best = |o: &Object| best.get(&(o.kind, o.address, o.number)) == Some(&o.source);
    objects.into_iter().filter(is_best).collect()
}

fn object(key: &ObjectKey, c: &ObjectCounters) -> Option<Object> {
    let kind = Kind::from_wire(key.kind.into())?;
    let sizes = (0..).zip(c.sizes).filter(|(_, n)| *n != 0).collect();
    let d = &c.details;
    let granted: &Granted = &c.granted;
    let counts = Counts::from_wire(kind, &c.counts(key.kind.into()));
    let mut object = Object {
        kind,
        number: c.number,
        address: key.address,
        context: c.context,
        qp_type: c.qp_type,
        queues: c.queues,
        ended_ns: (key.ended_ns != 0).then_some(key.ended_ns),
        source: Source::from_wire(key.source)?,
        threads: d[detail::THREADS].count_ones(),
        thread_changes: d[detail::THREAD_CHANGES],
        most_cqes: if kind == Kind::Cq { c.counters[cq::MOST_CQES] } else { 0 },
        blind_events: d[detail::BLIND_EVENTS],
        guessed_cqes: d[detail::GUESSED],
        sizes,
        max_send_wr: (granted.known != 0).then_some(granted.max_send_wr),
        most_outstanding: Some(d[detail::MOST_OUTSTANDING]).filter(|most| *most != 0),
        unmatched: d[detail::UNMATCHED],
        details: Details {
            wrs: d[detail::WRS],
            unaligned_64: d[detail::UNALIGNED_64],
            unaligned_4096: d[detail::UNALIGNED_4096],
            odd_lengths: d[detail::ODD_LENGTHS],
            local_same: d[detail::LOCAL_SAME],
            local_sequential: d[detail::LOCAL_SEQUENTIAL],
            remote_wrs: d[detail::REMOTE_WRS],
            remote_same: d[detail::REMOTE_SAME],
            remote_sequential: d[detail::REMOTE_SEQUENTIAL],
            mergeable: d[detail::MERGEABLE],
            could_inline: (granted.known != 0).then_some(d[detail::COULD_INLINE]),
        },
        looked_at: 0,
        variances: [d[detail::CALL_VARIANCE], d[detail::VARIANCE]],
        counts,
    };
    object.looked_at = object.calls().saturating_sub(d[detail::UNSEEN_CALLS]);
    Some(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_common::counters::{COUNTERS, kind, qp, source};

    fn counted(address: u64, by: u16, wrs: u64, ended_ns: u64) -> Object {
        let key = ObjectKey { start_ns: 1, address, ended_ns, tgid: 5, kind: kind::QP as u16, source: by };
        // SAFETY: plain numbers, for which all zeroes are valid.
        let mut counters: ObjectCounters = unsafe { std::mem::zeroed() };
        counters.counters = [0; COUNTERS];
        (counters.counters[qp::WRS], counters.number, counters.sizes[6]) = (wrs, 17, wrs);
        object(&key, &counters).unwrap()
    }

    fn entry(ended_ns: u64, number: u32, wrs: u64) -> (ObjectKey, ObjectCounters) {
        let key = ObjectKey {
            start_ns: 1,
            address: 0x10,
            ended_ns,
            tgid: 5,
            kind: kind::QP as u16,
            source: source::FUNCTION,
        };
        // SAFETY: plain numbers, for which all zeroes are valid.
        let mut counters: ObjectCounters = unsafe { std::mem::zeroed() };
        (counters.counters[qp::WRS], counters.number) = (wrs, number);
        (key, counters)
    }

    #[test]
    fn an_object_that_ends_while_the_table_is_walked_is_counted_once() {
        let wrs = |walked: &[(u64, u32, u64)], now: Option<(u32, u64)>| {
            let walked = walked.iter().map(|(ended_ns, number, wrs)| entry(*ended_ns, *number, *wrs));
            let settled = settled(walked, |_| now.map(|(number, wrs)| entry(0, number, wrs).1));
            settled.iter().map(|(key, c)| (key.ended_ns, c.counters[qp::WRS])).collect::<Vec<_>>()
        };
        // Walked anew after another one went.
        assert_eq!(wrs(&[(0, 17, 5), (0, 17, 6)], None), [(0, 6)]);
        // Read as living, then moved; its old entry may still be about to go.
        assert_eq!(wrs(&[(0, 17, 5), (99, 17, 6)], None), [(99, 6)]);
        assert_eq!(wrs(&[(0, 17, 5), (99, 17, 6)], Some((17, 6))), [(99, 6)]);
        // Another one has come to its address since.
        assert_eq!(wrs(&[(0, 17, 5), (99, 17, 6)], Some((18, 1))), [(0, 1), (99, 6)]);
        assert_eq!(wrs(&[(0, 18, 1), (98, 16, 3), (99, 17, 6)], Some((18, 2))), [(0, 2), (98, 3), (99, 6)]);
    }

    #[test]
    fn an_object_counted_at_several_places_is_listed_once() {
        let twice = vec![
            counted(0x10, source::FUNCTION, 5, 0),
            counted(0x10, source::TAP, 4, 0),
            counted(0x20, source::FUNCTION, 3, 0),
        ];
        let once = once_each(twice);
        assert_eq!(
            once.iter().map(|o| (o.source, o.counts.wrs)).collect::<Vec<_>>(),
            [(Source::Tap, 4), (Source::Function, 3)]
        );
    }

    #[test]
    fn a_number_used_again_at_the_same_address_stays_two_objects() {
        let objects = vec![counted(0x10, source::FUNCTION, 5, 99), counted(0x10, source::FUNCTION, 2, 0)];
        let objects = once_each(objects);
        assert_eq!(objects.iter().map(|o| o.ended_ns).collect::<Vec<_>>(), [Some(99), None]);
        let reading = Reading { objects, ..Reading::default() };
        assert_eq!(reading.total().wrs, 7);
    }

    #[test]
    fn counters_of_a_kind_nobody_knows_are_no_object() {
        let key = ObjectKey { start_ns: 1, address: 1, ended_ns: 0, tgid: 5, kind: 9, source: 1 };
        // SAFETY: as above.
        let counters: ObjectCounters = unsafe { std::mem::zeroed() };
        assert!(object(&key, &counters).is_none());
        assert!(object(&ObjectKey { kind: 1, source: 0, ..key }, &counters).is_none());
    }
}
