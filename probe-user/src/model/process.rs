//! Everything known of one process.

use std::collections::{BTreeMap, HashSet};

use crate::sample::{Call, CallCount, Detail, Event, Facts, Histogram, Process, ProcessSample, QueueKind};

use super::calls::CallStats;
use super::cm::Cm;
use super::data_path::DataPath;
use super::messages::Messages;
use super::queues::Queues;
use super::registration::{Region, Registrations};
use super::room::{Population, Room, clipped};
use super::sites::Sites;

/// Types of async events kept apart; the kernel knows about twenty.
const MAX_ASYNC_TYPES: usize = 64;

/// Calls whose events build the picture of live objects.
const OBJECT_CALLS: [Call; 15] = [
    Call::RegMr,
    Call::RegDmabufMr,
    Call::ReregMr,
    Call::DeregMr,
    Call::CreateQp,
    Call::DestroyQp,
    Call::ModifyQp,
    Call::CreateCq,
    Call::DestroyCq,
    Call::CreateSrq,
    Call::DestroySrq,
    Call::AllocPd,
    Call::DeallocPd,
    Call::CreateCompChannel,
    Call::DestroyCompChannel,
];

/// Objects of a kind of which nothing but existence matters: PDs, completion channels, open devices.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Objects {
    live: HashSet<u64>,
    /// How many are and were alive.
    pub population: Population,
}

impl Objects {
    fn made(&mut self, object: u64, room: &mut Room) {
        if !self.live.contains(&object) && room.take() {
            self.live.insert(object);
            self.population.born();
        }
    }

    fn unmade(&mut self, object: u64, room: &mut Room) {
        if self.live.remove(&object) {
            room.give(1);
            self.population.died();
        }
    }

    fn all_gone(&mut self, room: &mut Room) {
        room.give(self.live.len());
        self.live.clear();
        self.population.live = 0;
    }
}

/// Pins of user memory in the kernel, from their events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pins {
    /// Pins made inside a registration, which belong to a region.
    pub in_registration: u64,
    /// Other pins: rings of queues, doorbells.
    pub elsewhere: u64,
    /// Page faults taken inside pins: memory touched for the first time.
    pub page_faults: u64,
}

/// One process, as the records so far tell it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ProcessModel {
    /// As last read.
    pub info: Process,
    /// Its limits, environment and placement as last read, sizes at their largest.
    pub facts: Option<Facts>,
    /// Moments of its first call and of the last sign of life; both 0 before any.
    pub active_ns: (u64, u64),
    /// Per kind of call; absent when never seen.
    pub calls: BTreeMap<Call, CallStats>,
    /// Memory regions.
    pub registrations: Registrations,
    /// QPs, CQs, SRQs.
    pub queues: Queues,
    /// Posts and polls.
    pub data_path: DataPath,
    /// Single work requests, where the recording has them.
    pub messages: Messages,
    /// The places in the program that make calls.
    pub sites: Sites,
    /// Connection management.
    pub cm: Cm,
    /// Protection domains.
    pub pds: Objects,
    /// Completion channels.
    pub channels: Objects,
    /// Open devices.
    pub contexts: Objects,
    /// Pins of user memory.
    pub pins: Pins,
    /// Completion events acknowledged.
    pub acknowledged: u64,
    /// Async events received, by the verbs' type number.
    pub async_events: BTreeMap<u32, u64>,
    /// Times the process replaced its program (exec) while recorded.
    pub execs: u64,
}

impl ProcessModel {
    /// Takes in what was read of the process; another executable means exec, which ends every object.
    pub(super) fn described(&mut self, process: &Process, room: &mut Room) {
        let exec = !self.info.exe.is_empty() && !process.exe.is_empty() && self.info.exe != process.exe;
        if exec {
            self.execs += 1;
            self.all_gone(process.t_ns, room);
        }
        if process.exited && process.t_ns >= self.active_ns.0 {
            self.active_ns.1 = self.active_ns.1.min(process.t_ns);
        }
        let exe = if process.exe.is_empty() { self.info.exe.clone() } else { clipped(&process.exe) };
        self.info = Process {
            comm: clipped(&process.comm),
            exe,
            cgroup: clipped(&process.cgroup),
            ..process.clone()
        };
    }

    /// Gives back the room of everything the process owns.
    pub(super) fn forget(&mut self, room: &mut Room) {
        self.all_gone(self.info.t_ns, room);
    }

    fn all_gone(&mut self, t_ns: u64, room: &mut Room) {
        self.registrations.all_gone(room);
        self.queues.all_gone(t_ns, room);
        self.data_path.all_gone();
        self.sites.all_gone(room);
        self.cm.all_gone(room);
        for objects in [&mut self.pds, &mut self.channels, &mut self.contexts] {
            objects.all_gone(room);
        }
    }

    /// Takes in its surroundings. At the end of a process its sizes shrink, which says nothing of what it needed.
    pub(super) fn surrounded(&mut self, facts: &Facts) {
        let mut facts = facts.clone();
        if let Some(before) = &self.facts {
            for (new, old) in [
                (&mut facts.pinned_bytes, before.pinned_bytes),
                (&mut facts.resident_bytes, before.resident_bytes),
                (&mut facts.hugetlb_bytes, before.hugetlb_bytes),
                (&mut facts.thp_bytes, before.thp_bytes),
                (&mut facts.mappings, before.mappings),
            ] {
                *new = (*new).max(old);
            }
        }
        self.facts = Some(facts);
    }

    fn was_active(&mut self, from_ns: u64, to_ns: u64) {
        let (first, last) = self.active_ns;
        self.active_ns = (if first == 0 { from_ns } else { first.min(from_ns) }, last.max(to_ns));
    }

    /// Takes in a sample, and whether counters of loss or congestion grew since the one before.
    pub(super) fn sampled(
        &mut self,
        sample: &ProcessSample,
        (from_ns, to_ns): (u64, u64),
        troubled: bool,
        room: &mut Room,
    ) {
        if let Some(path) = &sample.data_path {
            self.data_path.sampled(path, (from_ns, to_ns), troubled, room);
            for queue in &path.queues {
                match (queue.queue, queue.gone) {
                    (QueueKind::Qp, false) => self.queues.qp_posted(queue.pointer, queue.number, room),
                    (QueueKind::Qp, true) => self.queues.qp_posts_end(queue.pointer, room),
                    (QueueKind::Cq, false) => self.queues.cq_polled(queue.pointer, room),
                    (QueueKind::Cq, true) => self.queues.cq_polls_end(queue.pointer, room),
                    _ => {}
                }
            }
        }
        // What a sample tells of began an interval before at most; an event that came first, and the beginning and the
        // end of the program, know better.
        let lived = self.info.t_ns;
        let from_ns = if self.info.exited { from_ns } else { from_ns.max(lived.min(to_ns)) };
        let first = if self.active_ns.0 == 0 { from_ns } else { self.active_ns.0 };
        let last = if self.info.exited && lived >= first { to_ns.min(lived) } else { to_ns };
        self.was_active(first, last);
        for (call, count) in sample.calls.iter().filter(|(call, _)| **call != Call::Unknown) {
            let latency = sample.latency_ns.get(call);
            self.calls.entry(*call).or_default().sampled(count, latency, from_ns, to_ns);
        }
    }

    /// Takes in an event.
    pub(super) fn event(&mut self, event: &Event, room: &mut Room) {
        if event.call == Call::Unknown {
            return;
        }
        self.was_active(event.t_ns, event.t_ns.saturating_add(event.duration_ns));
        let bytes = match event.detail {
            Detail::Mr { length_bytes, .. } if event.call != Call::DeregMr => length_bytes,
            Detail::Pages { length_bytes, .. } => length_bytes,
            _ => 0,
        };
        self.calls.entry(event.call).or_default().seen(event, bytes);
        let site = self.sites.event(event, object_of(&event.detail), bytes, room);
        if event.errno == 0 {
            self.succeeded(event, site, room);
        } else if event.call == Call::ModifyQp {
            self.queues.event(event, room);
        }
    }

    fn succeeded(&mut self, event: &Event, site: Option<usize>, room: &mut Room) {
        let object = object_of(&event.detail);
        match event.call {
            Call::RegMr | Call::RegDmabufMr => {
                let Detail::Mr { split, .. } = &event.detail else {
                    let split = Default::default();
                    return self.registrations.registered(
                        0,
                        Region::default(),
                        &split,
                        event.duration_ns,
                        room,
                    );
                };
                let region = Region { site, ..region_of(event) };
                self.registrations.overlap.ran(event.t_ns, event.duration_ns, event.tid);
                self.registrations.registered(object, region, split, event.duration_ns, room);
            }
            Call::ReregMr => self.registrations.changed(object, &region_of(event)),
            Call::DeregMr => self.registrations.deregistered(object, event.t_ns, site, room),
            Call::CreateQp | Call::ModifyQp | Call::CreateCq | Call::CreateSrq => {
                self.queues.event(event, room);
                if event.call == Call::CreateQp {
                    self.queues.qp_made_at(object, site);
                }
            }
            Call::DestroyQp => self.queues.qp_destroyed(object, event.t_ns, room),
            Call::DestroyCq => self.queues.cq_destroyed(object, room),
            Call::DestroySrq => self.queues.srq_destroyed(object, room),
            Call::ResizeCq => {
                if let Detail::Cq { cq, cqe, .. } = event.detail {
                    self.queues.cq_resized(cq, cqe);
                }
            }
            Call::AllocPd => self.pds.made(object, room),
            Call::DeallocPd => self.pds.unmade(object, room),
            Call::CreateCompChannel => self.channels.made(object, room),
            Call::DestroyCompChannel => self.channels.unmade(object, room),
            Call::OpenDevice => self.contexts.made(object, room),
            Call::CloseDevice => self.contexts.unmade(object, room),
            Call::KernelPin => {
                if let Detail::Pages { page_faults, in_registration, .. } = event.detail {
                    let place = if in_registration {
                        &mut self.pins.in_registration
                    } else {
                        &mut self.pins.elsewhere
                    };
                    *place += 1;
                    self.pins.page_faults += u64::from(page_faults);
                }
            }
            Call::AckCqEvents => {
                if let Detail::Wait { value, .. } = event.detail {
                    self.acknowledged += u64::from(value);
                }
            }
            Call::GetAsyncEvent => {
                if let Detail::Wait { value, .. } = event.detail
                    && (self.async_events.len() < MAX_ASYNC_TYPES || self.async_events.contains_key(&value))
                {
                    *self.async_events.entry(value).or_default() += 1;
                }
            }
            _ => {
                if let Detail::Cm { id, event: kind, status } = event.detail {
                    self.cm.event(event, id, kind, status, room);
                }
            }
        }
    }

    /// Begins the window of interest.
    pub(super) fn start_window(&mut self, room: &mut Room) {
        self.data_path.start_window(room);
        self.messages = Messages::default();
        self.calls.values_mut().for_each(CallStats::start_window);
        self.registrations.start_window();
        self.queues.start_window();
        self.sites.start_window();
        self.cm.start_window();
        for objects in [&mut self.pds, &mut self.channels, &mut self.contexts] {
            objects.population.start_window();
        }
        self.pins = Pins::default();
        self.acknowledged = 0;
        self.async_events.clear();
        self.execs = 0;
    }

    /// True when a call, a post or a poll of it was watched.
    pub fn used_rdma(&self) -> bool {
        !self.calls.is_empty() || self.data_path.is_observed()
    }

    /// Counts of one kind of call; all zero when it was never seen.
    pub fn count(&self, call: Call) -> CallCount {
        self.calls.get(&call).map(CallStats::count).unwrap_or_default()
    }

    /// Calls of one kind that succeeded.
    pub fn succeeded_calls(&self, call: Call) -> u64 {
        self.calls.get(&call).map_or(0, CallStats::succeeded)
    }

    /// Counts of several kinds of call, added up.
    pub fn counts(&self, calls: &[Call]) -> CallCount {
        calls.iter().map(|call| self.count(*call)).fold(CallCount::default(), |a, b| CallCount {
            entered: a.entered.saturating_add(b.entered),
            returned: a.returned.saturating_add(b.returned),
            failed: a.failed.saturating_add(b.failed),
            bytes: a.bytes.saturating_add(b.bytes),
            total_ns: a.total_ns.saturating_add(b.total_ns),
        })
    }

    /// Latencies of several kinds of call in one histogram, ns.
    pub fn latency(&self, calls: &[Call]) -> Histogram {
        let mut all = Histogram::default();
        calls.iter().filter_map(|call| self.calls.get(call)).for_each(|stats| all.merge(&stats.latency()));
        all
    }

    /// The longest of several kinds of call, ns.
    pub fn longest_ns(&self, calls: &[Call]) -> Option<u64> {
        calls.iter().filter_map(|call| self.calls.get(call)?.longest_ns()).max()
    }

    /// Failures of several kinds of call by errno.
    pub fn errnos(&self, calls: &[Call]) -> BTreeMap<i32, u64> {
        let mut all = BTreeMap::new();
        for (errno, n) in calls.iter().filter_map(|call| self.calls.get(call)).flat_map(|stats| &stats.errnos)
        {
            *all.entry(*errno).or_default() += n;
        }
        all
    }

    /// Calls on objects that left no event: by so many the picture of live objects may be off.
    pub fn object_calls_without_event(&self) -> u64 {
        OBJECT_CALLS.iter().filter_map(|call| self.calls.get(call)).map(CallStats::without_event).sum()
    }

    /// Objects remembered of this process.
    pub(super) fn objects(&self) -> usize {
        self.registrations.regions().len()
            + self.registrations.ended().len()
            + self.queues.qps().len()
            + self.queues.cqs().len()
            + self.queues.srqs().len()
            + self.data_path.remembered()
            + self.pds.live.len()
            + self.channels.live.len()
            + self.contexts.live.len()
    }
}

fn region_of(event: &Event) -> Region {
    let Detail::Mr { pd, addr, length_bytes, access, lkey, rkey, .. } = event.detail else {
        return Region::default();
    };
    Region { pd, addr, length_bytes, access, lkey, rkey, since_ns: event.t_ns, site: None }
}

/// The object a call made, changed or destroyed; 0 where the detail names none.
fn object_of(detail: &Detail) -> u64 {
    match *detail {
        Detail::Mr { mr, .. } => mr,
        Detail::Qp { qp, .. } => qp,
        Detail::Cq { cq, .. } => cq,
        Detail::Srq { srq, .. } => srq,
        Detail::Object { object } | Detail::Wait { object, .. } => object,
        _ => 0,
    }
}
