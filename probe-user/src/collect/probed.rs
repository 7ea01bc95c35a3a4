//! From readings of the data-path probes to samples: objects get names that are never used again, and only what changed
//! is told.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use probe_common::wire::part;

use crate::data_path::{Failed, Failure, Object, Reading, SlicesTold, Source};
use crate::entry::Class;
use crate::sample::{
    Counting, DataPath, FailedCqes, Instruction, Observed, ObservedBy, PostedTo, ProcessId, QueueDetail,
    QueueSample, ReapLatency, RefusedPosts, Strides,
};
use crate::tap::{Kind, counts, opcode};

/// What was told so far, by process.
#[derive(Debug, Default)]
pub struct Probed {
    told: HashMap<ProcessId, Told>,
}

#[derive(Debug, Default)]
struct Told {
    last_name: u64,
    living: HashMap<(Kind, u64, u32), u64>,
    ended: HashMap<(Kind, u64, u64), u64>,
    queues: HashMap<u64, QueueSample>,
    latest: Option<DataPath>,
}

impl Probed {
    /// What changed since the last call, by process.
    pub fn changed(&mut self, readings: &BTreeMap<ProcessId, Reading>) -> Vec<(ProcessId, DataPath)> {
        readings
            .iter()
            .filter_map(|(id, reading)| Some((*id, self.told.entry(*id).or_default().changed(reading)?)))
            .collect()
    }

    /// Forgets processes that are no more.
    pub fn forget(&mut self, gone: &HashSet<ProcessId>) {
        self.told.retain(|id, _| !gone.contains(id));
    }
}

impl Told {
    fn changed(&mut self, reading: &Reading) -> Option<DataPath> {
        let mut totals = counts(&reading.unlisted_counts, None);
        let mut queues = Vec::new();
        let mut by = ObservedBy::Function;
        for (name, object) in self.named(&reading.objects) {
            let queue = queue(name, object, reading);
            totals.add(&queue.counts);
            // Where several places count, the one that most of the process's queues pass is as good as another: each
            // queue says its own where it differs.
            by = observed_by(object.source);
            if self.queues.get(&name) != Some(&queue) {
                queues.push(queue.clone());
                self.queues.insert(name, queue);
            }
        }
        totals.threads = None;
        // Those of living queues are among the failures.
        totals.post_errnos.clear();
        for failure in reading.failures.iter().filter(|f| f.what == Failed::Post) {
            let errno = i32::try_from(failure.code).unwrap_or(-1);
            *totals.post_errnos.entry(errno).or_default() += failure.count;
        }
        let cqes = reading.failures.iter().filter(|f| f.what == Failed::Cqe);
        let failed_by_qp: Vec<_> = cqes.map(failed_cqes).collect();
        if !failed_by_qp.is_empty() {
            totals.detail.get_or_insert_default().failed_by_qp = failed_by_qp;
        }
        let refused: Vec<_> = reading.failures.iter().filter_map(refused_posts).collect();
        if !refused.is_empty() {
            totals.detail.get_or_insert_default().refused = refused;
        }
        let latencies: Vec<_> = reading
            .post_to_reap
            .iter()
            .map(|l| ReapLatency {
                opcode: opcode(l.opcode),
                size_class: l.size_class,
                latency_ns: l.ns.clone(),
            })
            .collect();
        if !latencies.is_empty() {
            totals.detail.get_or_insert_default().post_to_reap_ns = latencies;
        }
        if !reading.cqe_to_post.0.is_empty() {
            totals.detail.get_or_insert_default().cqe_to_post_ns = Some(reading.cqe_to_post.clone());
        }
        // Where a process is sampled, each of its queues says how far.
        let sampled = reading.objects.iter().any(|object| is_sampled(object, reading));
        for queue in &mut queues {
            let own = queue.observed.take();
            queue.observed = own.filter(|own| own.by != by || own.counting != Counting::Every || sampled);
        }
        let cost =
            reading.costs.iter().find(|(source, _)| observed_by(**source) == by).map(|(_, cost)| *cost);
        let slices = || reading.slices.iter().flatten();
        // Both parts may have one reason.
        let whys: BTreeSet<_> =
            slices().flat_map(|slices| slices.refused.iter().chain(&slices.unbounded)).cloned().collect();
        let why = whys.into_iter().collect::<Vec<_>>().join("; ");
        let observed = Observed {
            why: if by == ObservedBy::Function { why } else { String::new() },
            instruction: cost.map(|cost| instruction(cost.class)),
            hit_ns: cost.and_then(|cost| cost.hit_ns),
            // Rounded: a trace need not tell of each millionth more.
            overhead: reading.overhead.map(|share| rounded(share, 5)),
            profiler: reading.profiler.map(|cpus| rounded(cpus, 3)),
            slice_slowdown: slices().map(|slices| rounded(slices.slowdown, 2)).reduce(f64::max),
            ..trust(by, &reading.objects.iter().collect::<Vec<_>>(), reading)
        };
        let path = DataPath { observed, totals, ..DataPath::default() };
        if queues.is_empty() && self.latest.as_ref() == Some(&path) {
            return None;
        }
        self.latest = Some(path.clone());
        Some(DataPath { queues, ..path })
    }

    /// The objects with their names. An address used again belongs to another object: of those that ended since the
    /// last reading, the one that ended first is the one that lived then.
    fn named<'r>(&mut self, objects: &'r [Object]) -> Vec<(u64, &'r Object)> {
        let mut ended: Vec<_> =
            objects.iter().filter_map(|object| Some((object.ended_ns?, object))).collect();
        ended.sort_by_key(|(ended_ns, _)| *ended_ns);
        let mut named = Vec::new();
        for (ended_ns, object) in ended {
            let key = (object.kind, object.address, ended_ns);
            let name = match self.ended.get(&key) {
                Some(name) => *name,
                None => self.living.remove(&identity(object)).unwrap_or_else(|| self.new_name()),
            };
            self.ended.insert(key, name);
            named.push((name, object));
        }
        for object in objects.iter().filter(|object| object.ended_ns.is_none()) {
            let name = match self.living.get(&identity(object)) {
                Some(name) => *name,
                None => self.new_name(),
            };
            self.living.insert(identity(object), name);
            named.push((name, object));
        }
        named
    }

    fn new_name(&mut self) -> u64 {
        self.last_name += 1;
        self.last_name
    }
}

fn identity(object: &Object) -> (Kind, u64, u32) {
    (object.kind, object.address, object.number)
}

fn failed_cqes(f: &Failure) -> FailedCqes {
    FailedCqes { status: f.code, qpn: f.number, count: f.count, first: Some(Box::new(f.first.clone())) }
}

fn refused_posts(f: &Failure) -> Option<RefusedPosts> {
    let queue = match f.what {
        Failed::Post => PostedTo::Send,
        Failed::Receive => PostedTo::Receive,
        Failed::SharedReceive => PostedTo::SharedReceive,
        Failed::Cqe => return None,
    };
    let (number, errno) = (f.number, i32::try_from(f.code).unwrap_or(-1));
    Some(RefusedPosts { queue, number, errno, count: f.count, first: Some(Box::new(f.first.clone())) })
}

fn instruction(class: Class) -> Instruction {
    match class {
        Class::Optimised => Instruction::Optimised,
        Class::Emulated => Instruction::Emulated,
        Class::SingleStepped => Instruction::SingleStepped,
    }
}

fn observed_by(source: Source) -> ObservedBy {
    match source {
        Source::Tap | Source::Emulator => ObservedBy::Site,
        Source::Function => ObservedBy::Function,
    }
}

/// Whether what is counted of an object is not all: others stand for some calls, or were made while nobody looked.
fn is_sampled(object: &Object, reading: &Reading) -> bool {
    object.looked_at < object.calls() || slices_of(object, reading).is_some()
}

/// The slices of time in which an object was seen; `None` where it was watched all its time.
fn slices_of<'r>(object: &Object, reading: &'r Reading) -> Option<&'r SlicesTold> {
    let part = if object.kind == Kind::Cq { part::POLLS } else { part::POSTS };
    let slices = reading.slices[part].as_ref().filter(|_| object.source == Source::Function)?;
    object.ended_ns.is_none_or(|ended_ns| ended_ns > slices.since_ns).then_some(slices)
}

/// True where no other queue of its kind does anything.
fn is_only(object: &Object, reading: &Reading) -> bool {
    let is_cq = |object: &Object| object.kind == Kind::Cq;
    let others = reading.objects.iter().filter(|other| is_cq(other) == is_cq(object) && other.calls() > 0);
    others.count() <= 1
}

fn rounded(figure: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (figure * scale).round() / scale
}

/// How far the counts of these objects together can be trusted.
fn trust(by: ObservedBy, objects: &[&Object], reading: &Reading) -> Observed {
    let every = Observed { by, ..Observed::default() };
    if !objects.iter().any(|object| is_sampled(object, reading)) {
        return every;
    }
    let sum = |of: &dyn Fn(&Object) -> u64| objects.iter().map(|o| of(o)).fold(0, u64::saturating_add);
    let (looked_at, calls) = (sum(&|o| o.looked_at.min(o.calls())), sum(&Object::calls));
    let slices = || objects.iter().filter_map(|object| slices_of(object, reading));
    // Before the first slice has ended, nothing stands for the time in which nobody looked.
    let counting = if slices().any(|slices| slices.ratios || slices.slices == 0) {
        Counting::Ratios
    } else {
        Counting::Estimated
    };
    let of_slices = slices().try_fold(0.0, |worst: f64, slices| Some(worst.max(slices.error?)));
    let error =
        of_slices.map(|of_slices| error(objects).max(of_slices)).filter(|_| counting == Counting::Estimated);
    Observed {
        counting,
        share: rounded(looked_at as f64 / calls.max(1) as f64, 6),
        error: error.map(|error| rounded(error, 4)),
        ..every
    }
}

/// Relative error bound (95 %) of what chance has drawn: of the worst of calls, work requests and completion entries.
fn error(objects: &[&Object]) -> f64 {
    let relative = |variance: f64, count: u64| match count {
        0 => 0.0,
        // Nothing is known better than by chance, and no worse than not at all.
        count => (1.96 * variance.sqrt() / count as f64).min(1.0),
    };
    let of = |is_kind: fn(Kind) -> bool| {
        let those = || objects.iter().filter(move |o| is_kind(o.kind));
        let variance = |which: usize| those().map(|o| o.variances[which] as f64).sum::<f64>();
        let calls = relative(variance(0), those().map(|o| o.calls()).sum());
        calls.max(relative(variance(1), those().map(|o| o.items()).sum()))
    };
    of(|kind| kind == Kind::Cq).max(of(|kind| kind != Kind::Cq))
}

fn queue(name: u64, object: &Object, reading: &Reading) -> QueueSample {
    let mut counted = counts(&object.counts, Some(object.threads));
    if object.kind == Kind::Qp && object.ended_ns.is_none() {
        for failure in reading.failures.iter().filter(|f| f.what == Failed::Post && f.number == object.number)
        {
            let errno = i32::try_from(failure.code).unwrap_or(-1);
            counted.post_errnos.insert(errno, failure.count.min(object.counts.post_failed));
        }
    }
    counted.detail = detail(object).map(Box::new);
    let seen = trust(observed_by(object.source), &[object], reading);
    QueueSample {
        queue: object.kind.into(),
        object: name,
        pointer: object.address,
        number: object.number,
        gone: object.ended_ns.is_some(),
        observed: Some(Observed {
            // What slices differ by is known of all queues together only.
            error: seen.error.filter(|_| slices_of(object, reading).is_none() || is_only(object, reading)),
            ..seen
        }),
        counts: counted,
    }
}

/// What the probes saw beyond counts; `None` where that is nothing.
fn detail(object: &Object) -> Option<QueueDetail> {
    let d = &object.details;
    let posted = |n: u64| (d.wrs > 0).then_some(n);
    // The first work request follows none.
    let elsewhere = |wrs: u64, known: u64| wrs.saturating_sub(known).saturating_sub(1);
    // Of work requests drawn by chance the ones before are not known.
    let followed = object.variances == [0; 2];
    let strides = |wrs: u64, same: u64, sequential: u64| {
        (wrs > 0 && followed).then(|| Strides { sequential, same, random: elsewhere(wrs, same + sequential) })
    };
    let detail = QueueDetail {
        examined_wrs: (d.wrs > 0 && d.wrs != object.counts.wrs).then_some(d.wrs),
        sizes: object.sizes.clone(),
        unaligned_64: posted(d.unaligned_64),
        unaligned_4096: posted(d.unaligned_4096),
        odd_lengths: posted(d.odd_lengths),
        remote_strides: strides(d.remote_wrs, d.remote_same, d.remote_sequential),
        local_strides: strides(d.wrs, d.local_same, d.local_sequential),
        could_inline: d.could_inline.and_then(posted),
        mergeable: posted(d.mergeable).filter(|_| followed),
        // Of what is under way, only a part is known then.
        most_outstanding: object.most_outstanding.filter(|_| followed),
        most_cqes_per_poll: (object.most_cqes > 0 && object.counts.cut_polls == 0)
            .then_some(object.most_cqes),
        // Where not every poll is looked at, one may have come between.
        blind_events: (object.blind_events > 0 && object.looked_at == object.calls())
            .then_some(object.blind_events),
        guessed_cqes: (object.guessed_cqes > 0).then_some(object.guessed_cqes),
        ..QueueDetail::default()
    };
    (detail != QueueDetail::default()).then_some(detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_path::{Details, SlicesTold};
    use crate::sample::FailedRequest;
    use crate::tap::Counts;

    const ALICE: ProcessId = ProcessId { pid: 7, start_ns: 1 };

    fn object(ended_ns: Option<u64>, wrs: u64) -> Object {
        Object {
            kind: Kind::Qp,
            number: 17,
            address: 10,
            context: 1,
            qp_type: 2,
            queues: [0; 3],
            ended_ns,
            source: Source::Function,
            threads: 1,
            thread_changes: 0,
            most_cqes: 0,
            blind_events: 0,
            guessed_cqes: 0,
            max_send_wr: None,
            most_outstanding: None,
            unmatched: 0,
            looked_at: 0,
            variances: [0; 2],
            sizes: BTreeMap::from([(6, wrs)]),
            details: Details { wrs, remote_wrs: wrs, remote_sequential: 1, ..Details::default() },
            counts: Counts { wrs, ..Counts::default() },
        }
    }

    fn told(probed: &mut Probed, objects: Vec<Object>) -> Vec<(u64, u64, bool)> {
        let reading = Reading { objects, ..Reading::default() };
        let changed = probed.changed(&BTreeMap::from([(ALICE, reading)]));
        let queues = changed.into_iter().flat_map(|(_, path)| path.queues);
        queues.map(|queue| (queue.object, queue.counts.wrs, queue.gone)).collect()
    }

    #[test]
    fn a_queue_keeps_its_name_over_its_end_and_the_next_at_its_address_gets_another() {
        let mut probed = Probed::default();
        assert_eq!(told(&mut probed, vec![object(None, 3)]), [(1, 3, false)]);
        assert!(told(&mut probed, vec![object(None, 3)]).is_empty());
        let both = || vec![object(Some(50), 5), object(Some(70), 1), object(None, 2)];
        assert_eq!(told(&mut probed, both()), [(1, 5, true), (2, 1, true), (3, 2, false)]);
        assert!(told(&mut probed, both()).is_empty());
    }

    #[test]
    fn what_was_drawn_by_chance_is_an_estimate_with_its_share_and_error() {
        // Ten posts in all, one of them looked at; on another queue pair all.
        let counts = |post_calls, wrs| Counts { post_calls, wrs, ..Counts::default() };
        let drawn = Object {
            looked_at: 100,
            variances: [90_000, 90_000],
            counts: counts(1000, 1000),
            ..object(None, 0)
        };
        let every = Object { looked_at: 1000, counts: counts(1000, 9000), address: 20, ..object(None, 0) };
        let reading =
            Reading { objects: vec![drawn, every], overhead: Some(0.007_654_321), ..Reading::default() };
        let changed = Probed::default().changed(&BTreeMap::from([(ALICE, reading)]));
        let path = &changed[0].1;
        assert_eq!((path.observed.counting, path.observed.share), (Counting::Estimated, 0.55));
        assert_eq!(path.observed.overhead, Some(0.007_65));
        assert_eq!(path.observed.error, Some(rounded(1.96 * 300.0 / 2000.0, 4)));
        let of: Vec<_> = path.queues.iter().map(|q| q.observed.as_ref().unwrap()).collect();
        assert_eq!((of[0].counting, of[0].share), (Counting::Estimated, 0.1));
        assert_eq!(of[0].error, Some(rounded(1.96 * 300.0 / 1000.0, 4)));
        assert_eq!((of[1].counting, of[1].error), (Counting::Every, None));
    }

    #[test]
    fn slices_of_single_stepped_functions_give_ratios() {
        let slices =
            SlicesTold { share: 0.1, error: Some(0.2), ratios: true, slices: 3, ..SlicesTold::default() };
        let counts = Counts { polls: 1000, ..Counts::default() };
        let seen = Object { kind: Kind::Cq, looked_at: 100, counts, ..object(None, 0) };
        let of = |ratios| {
            let slices = [None, Some(SlicesTold { ratios, ..slices.clone() })];
            trust(ObservedBy::Function, &[&seen], &Reading { slices, ..Reading::default() })
        };
        assert_eq!((of(true).counting, of(true).error), (Counting::Ratios, None));
        assert_eq!((of(false).counting, of(false).error), (Counting::Estimated, Some(0.2)));
        let none_yet = SlicesTold { ratios: false, slices: 0, ..slices.clone() };
        let reading = Reading { slices: [None, Some(none_yet)], ..Reading::default() };
        assert_eq!(trust(ObservedBy::Function, &[&seen], &reading).counting, Counting::Ratios);
        // Posts have slices of their own.
        let posted = Object {
            counts: Counts { post_calls: 1000, ..Counts::default() },
            kind: Kind::Qp,
            ..seen.clone()
        };
        let of_posts = SlicesTold { ratios: false, error: Some(0.1), ..slices.clone() };
        let reading = Reading { slices: [Some(of_posts), Some(slices)], ..Reading::default() };
        let of = |objects: &[&Object]| trust(ObservedBy::Function, objects, &reading);
        assert_eq!((of(&[&posted]).counting, of(&[&posted]).error), (Counting::Estimated, Some(0.1)));
        assert_eq!(of(&[&posted, &seen]).counting, Counting::Ratios);
    }

    #[test]
    fn totals_hold_what_is_no_longer_listed_and_failures_have_their_errno_and_status() {
        let first = FailedRequest { wr_id: Some(7), ..FailedRequest::default() };
        let failure = |what, code, count| Failure { number: 17, what, code, count, first: first.clone() };
        let reading = Reading {
            objects: vec![Object {
                counts: Counts { wrs: 3, post_failed: 2, ..Counts::default() },
                ..object(None, 3)
            }],
            unlisted: 1,
            unlisted_counts: Counts { wrs: 40, ..Counts::default() },
            failures: vec![failure(Failed::Post, 12, 2), failure(Failed::Cqe, 5, 9)],
            ..Reading::default()
        };
        let changed = Probed::default().changed(&BTreeMap::from([(ALICE, reading)]));
        let path = &changed[0].1;
        assert_eq!(path.queues[0].counts.post_errnos, BTreeMap::from([(12, 2)]));
        assert_eq!((path.observed.by, path.totals.wrs), (ObservedBy::Function, 43));
        assert_eq!(path.totals.post_errnos, BTreeMap::from([(12, 2)]));
        let detail = path.totals.detail.as_ref().unwrap();
        let first = Some(Box::new(first));
        assert_eq!(detail.failed_by_qp, [FailedCqes { status: 5, qpn: 17, count: 9, first: first.clone() }]);
        let refused = RefusedPosts { queue: PostedTo::Send, number: 17, errno: 12, count: 2, first };
        assert_eq!(detail.refused, [refused]);
        assert_eq!(detail.remote_strides, Some(Strides { sequential: 1, same: 0, random: 1 }));
        assert_eq!((detail.sizes[&6], detail.examined_wrs), (3, None));
    }
}
