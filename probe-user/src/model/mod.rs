//! What the records mean: per process the calls, regions and queues, and what was missed.
//!
//! A model is built by feeding records one at a time, live or from a file, and holds memory per object, not per
//! event: a trace of any length is summed up in the space its live objects need. Nothing here reads or writes anything.

mod calls;
mod cm;
mod data_path;
mod histogram;
mod messages;
mod page_cost;
mod process;
mod queues;
mod recent;
mod registration;
mod room;
mod sites;
mod trouble;

use std::collections::{BTreeMap, HashMap};

use crate::pairing::Pairing;
use crate::sample::{
    Connection, Device, Footer, Header, Lost, Probe, Process, ProcessId, Record, Sample, Symbol, Verdict,
};

pub use calls::{CallStats, Interval};
pub use cm::{Cm, Step};
pub use data_path::{DataPath, Queue, QueueInterval, Tally, size_class};
pub use histogram::{bounds, bucket_of};
pub use messages::Messages;
pub use page_cost::{Fit, PAGE_BYTES, PageCost, pages_of};
pub use process::{Objects, Pins, ProcessModel};
pub use queues::{Cq, Qp, Queues, Srq, Transition};
pub use recent::RecentRanges;
pub use registration::{
    Alike, EndedRegion, Overlap, Part, Population64, Region, Registrations, SizeClass, SplitTotals,
};
pub use room::Population;
pub use sites::{Site, Sites};
pub use trouble::{CONGESTED_PER_SECOND, CONGESTION_COUNTERS, LOSS_COUNTERS, SENT_AGAIN, Trouble, Troubled};

use room::Room;

/// Processes told apart; a host that starts more during one recording has the rest counted in
/// [`Model::untold_records`].
const MAX_PROCESSES: usize = 1 << 16;

/// Probes and devices told apart.
const MAX_NAMES: usize = 1 << 12;

/// Addresses of stacks whose names are kept.
const MAX_SYMBOLS: usize = 1 << 18;

/// Connections of a merged trace that are kept.
const MAX_CONNECTIONS: usize = 1 << 20;

/// Everything the records so far tell.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Model {
    /// The trace's header.
    pub header: Header,
    /// The footer, once read: how the recording ended.
    pub footer: Option<Footer>,
    /// Moment of the latest record.
    pub now_ns: u64,
    /// Moments of the last two samples: rates are over this interval.
    pub interval: (u64, u64),
    /// Latest verdict of each probe, by name and place.
    pub probes: BTreeMap<(String, String), Probe>,
    /// Devices as last seen, by name.
    pub devices: BTreeMap<String, Device>,
    /// What was missed.
    pub lost: Lost,
    /// Processes.
    pub processes: BTreeMap<ProcessId, ProcessModel>,
    /// Records of processes beyond those told apart.
    pub untold_records: u64,
    /// Where the window of interest begins, when it is not the whole recording.
    pub window_start_ns: Option<u64>,
    /// Where it ends, when not with the recording.
    pub window_end_ns: Option<u64>,
    /// What the addresses in stacks are.
    pub symbols: HashMap<(ProcessId, u64), Symbol>,
    /// Queue pairs that talk to each other, in a merged trace.
    pub connections: Vec<Connection>,
    /// Single work requests and their completions.
    pub pairing: Pairing,
    /// How often counters of loss and congestion grew from one sample to the next.
    pub trouble: Trouble,
    lost_before: Lost,
    room: Room,
    /// Where a recording that goes on from another begins by itself.
    begins_at: Option<u64>,
}

impl Model {
    /// A model of nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in the next record.
    pub fn push(&mut self, record: &Record) {
        if let Some(begin) = self.begins_at
            && begin_of(record).is_some_and(|at| at > begin)
        {
            self.start_window(begin);
        }
        match record {
            Record::Header(header) => {
                self.header = header.clone();
                self.begins_at = header.continued.then_some(header.t_ns);
                self.now_ns = self.now_ns.max(header.t_ns);
                self.interval = (header.t_ns, header.t_ns);
                self.see_devices(&header.devices);
            }
            Record::Process(process) => self.see_process(process),
            Record::Probe(probe) => {
                let key = (room::clipped(&probe.name), room::clipped(&probe.place));
                if self.probes.len() < MAX_NAMES || self.probes.contains_key(&key) {
                    self.probes.insert(key, probe.clone());
                }
            }
            Record::Facts(facts) => {
                self.now_ns = self.now_ns.max(facts.t_ns);
                if let Some((process, _)) = self.process(facts.id) {
                    process.surrounded(facts);
                }
            }
            Record::Sample(sample) => self.see_sample(sample),
            Record::Event(event) => {
                self.now_ns = self.now_ns.max(event.t_ns.saturating_add(event.duration_ns));
                if let Some((process, room)) = self.process(event.id) {
                    process.event(event, room);
                }
            }
            Record::Symbol(symbol) => {
                let key = (symbol.id, symbol.addr);
                if self.symbols.len() < MAX_SYMBOLS || self.symbols.contains_key(&key) {
                    let symbol = Symbol {
                        name: room::clipped(&symbol.name),
                        module: room::clipped(&symbol.module),
                        source: room::clipped(&symbol.source),
                        ..symbol.clone()
                    };
                    self.symbols.insert(key, symbol);
                }
            }
            Record::Connection(connection) => {
                if self.connections.len() < MAX_CONNECTIONS {
                    self.connections.push(*connection);
                }
            }
            Record::Post(post) => {
                self.now_ns = self.now_ns.max(post.t_ns.saturating_add(post.duration_ns));
                if let Some((process, _)) = self.process(post.id) {
                    process.messages.posted(post);
                }
            }
            Record::Poll(poll) => {
                self.now_ns = self.now_ns.max(poll.t_ns.saturating_add(poll.duration_ns));
            }
            Record::Gap(gap) => {
                if let Some((process, _)) = self.process(gap.id) {
                    process.messages.lost(gap);
                }
            }
            // Both its ends are there as a post and a poll.
            Record::Message(_) => {}
            // The recorder's judgement; what the records mean is judged from the records.
            Record::Finding(_) => {}
            Record::Footer(footer) => {
                self.now_ns = self.now_ns.max(footer.t_ns);
                self.lost = most(&self.lost, &footer.lost);
                self.footer = Some(footer.clone());
            }
        }
        let processes = &mut self.processes;
        self.pairing.take(record, |one| {
            if let Some(process) = processes.get_mut(&one.id) {
                process.messages.paired(&one);
            }
        });
    }

    /// Begins the window of interest at `t_ns`: objects stay alive, counts and totals begin at nothing.
    pub fn start_window(&mut self, t_ns: u64) {
        self.window_start_ns = Some(t_ns);
        self.begins_at = None;
        self.lost_before = self.lost.clone();
        self.trouble = Trouble::default();
        let room = &mut self.room;
        self.processes.values_mut().for_each(|process| process.start_window(room));
    }

    /// The file whose probes came latest after a process had mapped it, and how long, ns; `None` where all were there first. What
    /// was called in that time is in no count.
    pub fn latest_probes(&self) -> Option<(&str, u64)> {
        let live = self.probes.values().filter(|p| p.call.is_some() && p.verdict == Verdict::Live);
        let late = live.filter_map(|p| Some((p, p.late_ns?)));
        let (probe, late_ns) = late.max_by_key(|(_, late_ns)| *late_ns)?;
        Some((probe.place.rsplit_once("+0x").map_or(probe.place.as_str(), |(file, _)| file), late_ns))
    }

    /// What was missed within the window of interest.
    pub fn lost(&self) -> Lost {
        let Lost { ring_events, unpaired, kernel_returns, uncounted } = &self.lost_before;
        Lost {
            ring_events: self.lost.ring_events.saturating_sub(*ring_events),
            unpaired: self.lost.unpaired.saturating_sub(*unpaired),
            kernel_returns: self.lost.kernel_returns.saturating_sub(*kernel_returns),
            uncounted: self.lost.uncounted.saturating_sub(*uncounted),
        }
    }

    /// Length of the recording, or of the window of interest, so far.
    pub fn duration_ns(&self) -> u64 {
        let end = self.window_end_ns.unwrap_or(self.now_ns).min(self.now_ns);
        end.saturating_sub(self.window_start_ns.unwrap_or(self.header.t_ns))
    }

    /// Wall clock (Unix epoch) of a moment of the recording, ns.
    pub fn wall_ns(&self, t_ns: u64) -> u64 {
        let since_anchor = i128::from(t_ns) - i128::from(self.header.t_ns);
        u64::try_from(i128::from(self.header.wall_ns) + since_anchor).unwrap_or(0)
    }

    /// What changed for one kind of call over the last interval; `None` when nothing did.
    pub fn interval_of<'a>(&self, stats: &'a CallStats) -> Option<&'a Interval> {
        (stats.interval.to_ns == self.interval.1 && stats.interval.to_ns > 0).then_some(&stats.interval)
    }

    fn process(&mut self, id: ProcessId) -> Option<(&mut ProcessModel, &mut Room)> {
        if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(&id) {
            self.untold_records += 1;
            return None;
        }
        let process = self.processes.entry(id).or_insert_with(|| ProcessModel {
            info: Process { id, ..Process::default() },
            ..ProcessModel::default()
        });
        Some((process, &mut self.room))
    }

    fn see_process(&mut self, record: &Process) {
        self.now_ns = self.now_ns.max(record.t_ns);
        if let Some((process, room)) = self.process(record.id) {
            process.described(record, room);
        }
    }

    fn see_sample(&mut self, sample: &Sample) {
        self.now_ns = self.now_ns.max(sample.t_ns);
        if sample.t_ns > self.interval.1 {
            self.interval = (self.interval.1, sample.t_ns);
        }
        let (from, to) = self.interval;
        self.lost = most(&self.lost, &sample.lost);
        let grew = trouble::grew(&self.devices, &sample.devices, to.saturating_sub(from));
        let troubled = self.trouble.passed((from, to), grew);
        for of_process in &sample.processes {
            if let Some((process, room)) = self.process(of_process.id) {
                process.sampled(of_process, (from, to), troubled, room);
            }
        }
        self.see_devices(&sample.devices);
    }

    fn see_devices(&mut self, devices: &[Device]) {
        for device in devices {
            let name = room::clipped(&device.name);
            if let Some(known) = self.devices.get_mut(&name) {
                update(known, device);
            } else if self.devices.len() < MAX_NAMES {
                self.devices.insert(name, device.clone());
            }
        }
    }

    /// Forgets the processes that ended first, so that at most `most` ended ones are still told of.
    ///
    /// For who watches a host for months; a recording is read to its end and forgets nothing.
    pub fn forget_ended(&mut self, most: usize) {
        let ended = self.processes.values().filter(|p| p.info.exited).count();
        if ended <= most {
            return;
        }
        let mut by_end: Vec<_> =
            self.processes.values().filter(|p| p.info.exited).map(|p| (p.info.t_ns, p.info.id)).collect();
        by_end.sort_unstable();
        for (_, id) in by_end.into_iter().take(ended - most) {
            if let Some(mut gone) = self.processes.remove(&id) {
                gone.forget(&mut self.room);
            }
            self.symbols.retain(|(process, _), _| *process != id);
        }
    }

    /// Objects remembered over all processes: what memory grows with.
    pub fn objects(&self) -> usize {
        self.processes.values().map(ProcessModel::objects).sum()
    }
}

/// A sample tells only what changed of a device: the rest stays as the header told it.
fn update(known: &mut Device, new: &Device) {
    for port in &new.ports {
        match known.ports.iter_mut().find(|p| p.number == port.number) {
            Some(known) => {
                if !port.state.is_empty() {
                    known.state.clone_from(&port.state);
                }
                known.counters.extend(port.counters.iter().map(|(name, value)| (name.clone(), *value)));
            }
            None => known.ports.push(port.clone()),
        }
    }
}

/// The moment that decides whether a record belongs to what came before a recording's own beginning.
fn begin_of(record: &Record) -> Option<u64> {
    match record {
        Record::Event(event) => Some(event.t_ns.saturating_add(event.duration_ns)),
        Record::Post(post) => Some(post.t_ns.saturating_add(post.duration_ns)),
        Record::Poll(poll) => Some(poll.t_ns.saturating_add(poll.duration_ns)),
        Record::Sample(sample) => Some(sample.t_ns),
        Record::Footer(footer) => Some(footer.t_ns),
        _ => None,
    }
}

/// Cumulative counts of what was missed only grow; parts of one sample may carry them twice.
fn most(a: &Lost, b: &Lost) -> Lost {
    Lost {
        ring_events: a.ring_events.max(b.ring_events),
        unpaired: a.unpaired.max(b.unpaired),
        kernel_returns: a.kernel_returns.max(b.kernel_returns),
        uncounted: a.uncounted.max(b.uncounted),
    }
}
