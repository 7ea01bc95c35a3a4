//! What the records mean: per process the calls, regions and queues, and what was missed.
//!
//! A model is built by feeding records one at a time, live or from a file, and holds memory per object, not per
//! event: a trace of any length is summed up in the space its live objects need. Nothing here reads or writes anything.

mod calls;
mod cm;
mod data_path;
mod histogram;
mod page_cost;
mod process;
mod queues;
mod recent;
mod registration;
mod room;

use std::collections::BTreeMap;

use crate::sample::{Device, Footer, Header, Lost, Probe, Process, ProcessId, Record, Sample};

pub use calls::{CallStats, Interval};
pub use cm::{Cm, Step};
pub use data_path::{DataPath, Queue, QueueInterval, Tally, size_class};
pub use histogram::{bounds, bucket_of};
pub use page_cost::{Fit, PAGE_BYTES, PageCost, pages_of};
pub use process::{Objects, Pins, ProcessModel};
pub use queues::{Cq, Qp, Queues, Srq, Transition};
pub use recent::RecentRanges;
pub use registration::{Part, Population64, Region, Registrations, SizeClass, SplitTotals};
pub use room::Population;

use room::Room;

/// Processes told apart; a host that starts more during one recording has the rest counted in
/// [`Model::untold_records`].
const MAX_PROCESSES: usize = 1 << 16;

/// Probes and devices told apart.
const MAX_NAMES: usize = 1 << 12;

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
    lost_before: Lost,
    room: Room,
}

impl Model {
    /// A model of nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in the next record.
    pub fn push(&mut self, record: &Record) {
        match record {
            Record::Header(header) => {
                self.header = header.clone();
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
            Record::Sample(sample) => self.see_sample(sample),
            Record::Event(event) => {
                self.now_ns = self.now_ns.max(event.t_ns.saturating_add(event.duration_ns));
                if let Some((process, room)) = self.process(event.id) {
                    process.event(event, room);
                }
            }
            Record::Footer(footer) => {
                self.now_ns = self.now_ns.max(footer.t_ns);
                self.lost = most(&self.lost, &footer.lost);
                self.footer = Some(footer.clone());
            }
        }
    }

    /// Begins the window of interest at `t_ns`: objects stay alive, counts and totals begin at nothing.
    pub fn start_window(&mut self, t_ns: u64) {
        self.window_start_ns = Some(t_ns);
        self.lost_before = self.lost.clone();
        let room = &mut self.room;
        self.processes.values_mut().for_each(|process| process.start_window(room));
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
        for of_process in &sample.processes {
            if let Some((process, room)) = self.process(of_process.id) {
                process.sampled(of_process, from, to, room);
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

/// Cumulative counts of what was missed only grow; parts of one sample may carry them twice.
fn most(a: &Lost, b: &Lost) -> Lost {
    Lost {
        ring_events: a.ring_events.max(b.ring_events),
        unpaired: a.unpaired.max(b.unpaired),
        kernel_returns: a.kernel_returns.max(b.kernel_returns),
        uncounted: a.uncounted.max(b.uncounted),
    }
}
