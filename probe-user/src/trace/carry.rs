//! How things stand at a moment: what a trace that begins in the middle of a recording must say first, so that it is
//! understood without what came before.

use std::collections::{BTreeMap, HashMap};

use crate::sample::{
    Call, DataPath, Detail, Device, Event, Facts, Header, Lost, Probe, Process, ProcessId, ProcessSample,
    QueueKind, QueueSample, Record, Sample, Symbol,
};

/// Live objects remembered; further ones are unknown to the trace that begins later, as those are that are older than a
/// recording.
const MAX_OBJECTS: usize = 1_000_000;
/// Processes, probes, devices and symbols remembered, each.
const MAX_NAMES: usize = 1 << 17;
/// Events remembered of one object: its creation and the changes that brought it where it is.
const MAX_EVENTS: usize = 8;

/// The sum of all records so far.
#[derive(Debug, Clone, Default)]
pub struct Carry {
    header: Header,
    processes: BTreeMap<ProcessId, Process>,
    probes: BTreeMap<(String, String), Probe>,
    facts: BTreeMap<ProcessId, Facts>,
    counters: BTreeMap<ProcessId, ProcessSample>,
    queues: BTreeMap<(ProcessId, QueueKind, u64), QueueSample>,
    devices: BTreeMap<String, Device>,
    symbols: HashMap<(ProcessId, u64), Symbol>,
    objects: HashMap<(ProcessId, Kind, u64), Vec<Event>>,
    lost: Lost,
    sampled_ns: u64,
    /// Processes that have ended, with the moment of the first sample after that.
    ended: HashMap<ProcessId, Option<u64>>,
}

/// Pointers of different kinds of objects may be equal over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Mr,
    Qp,
    Cq,
    Srq,
    Pd,
    Channel,
    Context,
}

impl Carry {
    /// Takes in the next record.
    pub fn take(&mut self, record: &Record) {
        match record {
            Record::Header(header) => {
                self.header = header.clone();
                self.sampled_ns = header.t_ns;
            }
            Record::Process(process) => self.process(process),
            Record::Probe(probe) => {
                if self.probes.len() < MAX_NAMES {
                    self.probes.insert((probe.name.clone(), probe.place.clone()), probe.clone());
                }
            }
            Record::Facts(facts) => {
                if self.facts.len() < MAX_NAMES || self.facts.contains_key(&facts.id) {
                    self.facts.insert(facts.id, facts.clone());
                }
            }
            Record::Sample(sample) => self.sample(sample),
            Record::Event(event) if event.errno == 0 => self.event(event),
            Record::Symbol(symbol) => {
                if self.symbols.len() < MAX_NAMES {
                    self.symbols.insert((symbol.id, symbol.addr), symbol.clone());
                }
            }
            Record::Event(_)
            | Record::Post(_)
            | Record::Poll(_)
            | Record::Gap(_)
            | Record::Connection(_)
            | Record::Message(_)
            | Record::Finding(_)
            | Record::Footer(_) => {}
        }
    }

    /// The header and the first records of a trace that begins at the latest sample.
    pub fn begin(&self) -> (Header, Vec<Record>) {
        let since_anchor = self.sampled_ns.saturating_sub(self.header.t_ns);
        let mut devices = self.header.devices.clone();
        for device in &mut devices {
            if let Some(now) = self.devices.get(&device.name) {
                device.clone_from(now);
            }
        }
        let header = Header {
            t_ns: self.sampled_ns,
            wall_ns: self.header.wall_ns.saturating_add(since_anchor),
            continued: true,
            devices,
            ..self.header.clone()
        };
        let mut records: Vec<Record> = self.processes.values().cloned().map(Record::Process).collect();
        records.extend(self.facts.values().cloned().map(Record::Facts));
        records.extend(self.probes.values().cloned().map(Record::Probe));
        records.extend(self.symbols.values().cloned().map(Record::Symbol));
        let mut events: Vec<_> = self.objects.values().flatten().collect();
        events.sort_by_key(|event| (event.t_ns.saturating_add(event.duration_ns), event.tid));
        records.extend(events.into_iter().cloned().map(Record::Event));
        let mut processes: Vec<_> = self.counters.values().cloned().collect();
        for process in &mut processes {
            if let Some(data_path) = &mut process.data_path {
                let first = (process.id, QueueKind::Qp, 0);
                let of_process = self.queues.range(first..).take_while(|((id, ..), _)| *id == process.id);
                data_path.queues = of_process.map(|(_, queue)| queue.clone()).collect();
            }
        }
        let lost = self.lost.clone();
        records.push(Record::Sample(Sample { t_ns: self.sampled_ns, processes, lost, devices: Vec::new() }));
        (header, records)
    }

    /// What has been missed so far.
    pub fn lost(&self) -> Lost {
        self.lost.clone()
    }

    fn process(&mut self, process: &Process) {
        let exec = self.processes.get(&process.id).is_some_and(|known| {
            !known.exe.is_empty() && !process.exe.is_empty() && known.exe != process.exe
        });
        if exec {
            self.objects.retain(|(id, ..), _| *id != process.id);
        }
        if self.processes.len() < MAX_NAMES || self.processes.contains_key(&process.id) {
            self.processes.insert(process.id, process.clone());
        }
        if process.exited {
            self.ended.insert(process.id, None);
        }
    }

    fn sample(&mut self, sample: &Sample) {
        self.sampled_ns = self.sampled_ns.max(sample.t_ns);
        self.lost = sample.lost.clone();
        for one in &sample.processes {
            self.counted(one);
        }
        for device in &sample.devices {
            let known = self.devices.entry(device.name.clone()).or_insert_with(|| device.clone());
            for port in &device.ports {
                match known.ports.iter_mut().find(|p| p.number == port.number) {
                    Some(known) => known.counters.extend(port.counters.clone()),
                    None => known.ports.push(port.clone()),
                }
            }
        }
        // What a process did last is told by the sample after its end; then it is history.
        let over: Vec<_> = self
            .ended
            .iter_mut()
            .filter_map(|(id, first)| {
                let first = *first.get_or_insert(sample.t_ns);
                (sample.t_ns > first).then_some(*id)
            })
            .collect();
        for id in &over {
            self.ended.remove(id);
            self.processes.remove(id);
            self.counters.remove(id);
            self.facts.remove(id);
        }
        if !over.is_empty() {
            self.objects.retain(|(id, ..), _| !over.contains(id));
            self.queues.retain(|(id, ..), _| !over.contains(id));
            self.symbols.retain(|(id, _), _| !over.contains(id));
        }
    }

    fn counted(&mut self, one: &ProcessSample) {
        let all = self.counters.entry(one.id).or_default();
        all.id = one.id;
        all.calls.extend(&one.calls);
        all.latency_ns.extend(one.latency_ns.iter().map(|(call, h)| (*call, h.clone())));
        let Some(data_path) = &one.data_path else { return };
        for queue in &data_path.queues {
            let key = (one.id, queue.queue, queue.object);
            if queue.gone {
                self.queues.remove(&key);
            } else if self.queues.len() < MAX_OBJECTS || self.queues.contains_key(&key) {
                self.queues.insert(key, queue.clone());
            }
        }
        all.data_path = Some(DataPath { queues: Vec::new(), ..data_path.clone() });
    }

    fn event(&mut self, event: &Event) {
        let (kind, ends) = match event.call {
            Call::RegMr | Call::RegDmabufMr | Call::ReregMr => (Kind::Mr, false),
            Call::CreateQp | Call::ModifyQp => (Kind::Qp, false),
            Call::CreateCq | Call::ResizeCq => (Kind::Cq, false),
            Call::CreateSrq => (Kind::Srq, false),
            Call::AllocPd => (Kind::Pd, false),
            Call::CreateCompChannel => (Kind::Channel, false),
            Call::OpenDevice => (Kind::Context, false),
            Call::DeregMr => (Kind::Mr, true),
            Call::DestroyQp => (Kind::Qp, true),
            Call::DestroyCq => (Kind::Cq, true),
            Call::DestroySrq => (Kind::Srq, true),
            Call::DeallocPd => (Kind::Pd, true),
            Call::DestroyCompChannel => (Kind::Channel, true),
            Call::CloseDevice => (Kind::Context, true),
            _ => return,
        };
        let Some(object) = pointer(&event.detail) else { return };
        let key = (event.id, kind, object);
        if ends {
            self.objects.remove(&key);
            return;
        }
        let changes = matches!(event.call, Call::ModifyQp | Call::ReregMr | Call::ResizeCq);
        if self.objects.len() >= MAX_OBJECTS && !self.objects.contains_key(&key) {
            return;
        }
        let story = self.objects.entry(key).or_default();
        if !changes {
            // Its pointer in use again: another object.
            story.clear();
        }
        if story.len() >= MAX_EVENTS {
            // The creation stays, the oldest change goes.
            story.remove(1);
        }
        story.push(event.clone());
    }
}

/// The object a call was about.
fn pointer(detail: &Detail) -> Option<u64> {
    match detail {
        Detail::Mr { mr, .. } => Some(*mr),
        Detail::Qp { qp, .. } => Some(*qp),
        Detail::ModifyQp(attributes) => Some(attributes.qp),
        Detail::Cq { cq, .. } => Some(*cq),
        Detail::Srq { srq, .. } => Some(*srq),
        Detail::Object { object } | Detail::Wait { object, .. } => Some(*object),
        _ => None,
    }
}
