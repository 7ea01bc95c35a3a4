//! The sources of one recording together, and what they add to its samples.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::Source;
use crate::devices::{self, Changes, EmulatedCounters};
use crate::sample::{
    Call, DataPath, Device, NO_POST_SEEN, Observed, ObservedBy, ProcessId, ProcessSample, Record,
};

/// Times a process is asked for emulated devices before it is believed to have none.
const ASKED_AT_MOST: u8 = 3;

/// Sources of posts and polls, those asked first believed first, and the counters of the host's devices.
#[derive(Default)]
pub struct Sources {
    all: Vec<Box<dyn Source>>,
    /// Who counts the posts and polls of a process: the first that saw any. Two would be added up.
    counted_by: HashMap<ProcessId, usize>,
    changes: Changes,
    /// How often each process was asked for emulated devices.
    asked: HashMap<ProcessId, u8>,
    emulated: BTreeMap<String, Device>,
    emulated_counters: EmulatedCounters,
    /// Processes of which was told that no post or poll of theirs passes a probe.
    silent: HashSet<ProcessId>,
}

impl Sources {
    /// Adds a source, believed less than those before.
    pub fn add(&mut self, source: Box<dyn Source>) {
        self.all.push(source);
    }

    /// See [`Source::watch`].
    pub fn watch(&mut self, id: ProcessId, running: bool) {
        self.all.iter_mut().for_each(|source| source.watch(id, running));
    }

    /// Adds what changed to the samples of the processes, and what the session's own probes counted (`None` where none
    /// look at posts), which are believed least; the devices that changed.
    pub fn sample(
        &mut self,
        last: bool,
        probed: Option<Vec<(ProcessId, DataPath)>>,
        processes: &mut Vec<ProcessSample>,
    ) -> Vec<Device> {
        let mut devices = self.changes.since(devices::counters());
        let probing = probed.is_some();
        let probed = probed.unwrap_or_default();
        let told: Vec<_> = self.all.iter_mut().map(|source| source.sample(last)).chain([probed]).collect();
        for (index, paths) in told.into_iter().enumerate() {
            for (id, path) in paths {
                if path.observed.by != ObservedBy::Nothing {
                    self.counted_by.entry(id).or_insert(index);
                }
                if self.counted_by.get(&id).is_none_or(|by| *by == index) {
                    put(processes, id, path);
                }
            }
        }
        for source in &mut self.all {
            let new = source.devices();
            self.emulated.extend(new.iter().map(|device| (device.name.clone(), device.clone())));
            devices.extend(new);
        }
        if probing {
            self.tell_silent(processes);
        }
        devices.extend(self.emulated(processes));
        let counted = self.counted_by_emulated();
        devices.extend(self.changes.since(counted));
        once_each(devices)
    }

    /// The emulated device with its counters. They are those of a process: where it has several devices, they belong to
    /// none of them.
    fn counted_by_emulated(&mut self) -> Vec<Device> {
        let counters = self.emulated_counters.read();
        let (Some(counters), 1) = (counters, self.emulated.len()) else { return Vec::new() };
        let mut devices: Vec<Device> = self.emulated.values().cloned().collect();
        if let Some(port) = devices.first_mut().and_then(|device| device.ports.first_mut()) {
            port.counters = counters;
        }
        devices
    }

    /// Says of processes that have queues, and of which the probes saw no post and no poll, that this may have two
    /// reasons.
    fn tell_silent(&mut self, processes: &mut [ProcessSample]) {
        for process in processes {
            let has_queues =
                [Call::CreateQp, Call::CreateCq].iter().any(|call| process.calls.contains_key(call));
            if has_queues
                && process.data_path.is_none()
                && !self.counted_by.contains_key(&process.id)
                && self.silent.insert(process.id)
            {
                let observed = Observed { why: NO_POST_SEEN.to_owned(), ..Observed::default() };
                process.data_path = Some(DataPath { observed, ..DataPath::default() });
            }
        }
    }

    /// Emulated devices that these processes have and that were not told yet. A program may load the library late: it
    /// is asked at each of its first samples.
    fn emulated(&mut self, processes: &[ProcessSample]) -> Vec<Device> {
        let mut new = Vec::new();
        for process in processes {
            let asked = self.asked.entry(process.id).or_default();
            if *asked >= ASKED_AT_MOST {
                continue;
            }
            *asked += 1;
            for device in devices::emulated_devices_of(process.id.pid) {
                *asked = ASKED_AT_MOST;
                self.emulated_counters.watch(process.id);
                if self.emulated.insert(device.name.clone(), device.clone()).is_none() {
                    new.push(device);
                }
            }
        }
        new
    }

    /// Verdicts that are new.
    pub fn verdicts(&mut self) -> Vec<Record> {
        self.all.iter_mut().flat_map(|source| source.verdicts()).map(Record::Probe).collect()
    }

    /// See [`Source::records`].
    pub fn records(&mut self, last: bool) -> Vec<Record> {
        self.all.iter_mut().flat_map(|source| source.records(last)).collect()
    }

    /// See [`Source::forget`].
    pub fn forget(&mut self, gone: &HashSet<ProcessId>) {
        self.all.iter_mut().for_each(|source| source.forget(gone));
        self.counted_by.retain(|id, _| !gone.contains(id));
        self.asked.retain(|id, _| !gone.contains(id));
        self.emulated_counters.forget(gone);
        self.silent.retain(|id| !gone.contains(id));
    }
}

/// Each device once: the last that was told of it, which has what those before had, and its counters.
fn once_each(devices: Vec<Device>) -> Vec<Device> {
    let mut once: Vec<Device> = Vec::with_capacity(devices.len());
    for device in devices {
        match once.iter_mut().find(|known| known.name == device.name) {
            Some(known) => *known = device,
            None => once.push(device),
        }
    }
    once
}

fn put(processes: &mut Vec<ProcessSample>, id: ProcessId, path: DataPath) {
    match processes.iter_mut().find(|process| process.id == id) {
        Some(process) => process.data_path = Some(path),
        None => processes.push(ProcessSample { id, data_path: Some(path), ..ProcessSample::default() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{CallCount, QueueCounts};

    const ALICE: ProcessId = ProcessId { pid: 7, start_ns: 1 };

    struct Made(Vec<DataPath>);

    impl Source for Made {
        fn watch(&mut self, _: ProcessId, _: bool) {}

        fn sample(&mut self, _: bool) -> Vec<(ProcessId, DataPath)> {
            if self.0.is_empty() { Vec::new() } else { vec![(ALICE, self.0.remove(0))] }
        }

        fn forget(&mut self, _: &HashSet<ProcessId>) {}
    }

    fn path(by: ObservedBy, wrs: u64) -> DataPath {
        let totals = QueueCounts { wrs, ..QueueCounts::default() };
        DataPath { observed: Observed { by, ..Observed::default() }, totals, ..DataPath::default() }
    }

    fn wrs(sources: &mut Sources) -> Vec<u64> {
        let mut processes = Vec::new();
        sources.sample(false, None, &mut processes);
        processes.iter().filter_map(|p| Some(p.data_path.as_ref()?.totals.wrs)).collect()
    }

    #[test]
    fn a_process_that_two_sources_see_is_counted_by_the_first_and_one_that_sees_nothing_does_not_count() {
        let mut sources = Sources::default();
        sources.add(Box::new(Made(vec![path(ObservedBy::Nothing, 0), path(ObservedBy::Nothing, 0)])));
        sources.add(Box::new(Made(vec![path(ObservedBy::Function, 5), path(ObservedBy::Function, 6)])));
        sources.add(Box::new(Made(vec![path(ObservedBy::Site, 70), path(ObservedBy::Site, 80)])));
        assert_eq!(wrs(&mut sources), [5]);
        assert_eq!(wrs(&mut sources), [6]);
        assert!(wrs(&mut sources).is_empty());
    }

    #[test]
    fn a_device_that_is_new_and_has_counted_already_is_told_once_with_its_counters() {
        let device = |name: &str, emulated| Device { name: name.into(), emulated, ..Device::default() };
        let told = once_each(vec![device("emu0", false), device("mlx5_0", false), device("emu0", true)]);
        assert_eq!(told, [device("emu0", true), device("mlx5_0", false)]);
    }

    #[test]
    fn a_process_with_queues_whose_posts_no_probe_saw_is_told_of_once() {
        let with = |call| ProcessSample {
            id: ALICE,
            calls: [(call, CallCount::default())].into(),
            ..ProcessSample::default()
        };
        let mut sources = Sources::default();
        let mut told = |call, probed| {
            let mut processes = vec![with(call)];
            sources.sample(false, probed, &mut processes);
            processes[0].data_path.take().map(|path| path.observed.why)
        };
        assert_eq!(told(Call::CreateQp, None), None, "nothing looks at posts");
        assert_eq!(told(Call::RegMr, Some(Vec::new())), None, "it has no queues");
        assert!(told(Call::CreateQp, Some(Vec::new())).unwrap().contains("passed a probe"));
        assert_eq!(told(Call::CreateQp, Some(Vec::new())), None);
        let seen = Some(vec![(ALICE, path(ObservedBy::Function, 5))]);
        assert_eq!(told(Call::CreateQp, seen).as_deref(), Some(""));
    }

    #[test]
    fn what_a_source_tells_joins_what_is_known_of_the_process() {
        let mut processes = vec![ProcessSample { id: ALICE, ..ProcessSample::default() }];
        put(&mut processes, ALICE, path(ObservedBy::Tap, 3));
        put(&mut processes, ProcessId { pid: 8, start_ns: 1 }, path(ObservedBy::Tap, 4));
        assert_eq!(
            processes.iter().map(|p| p.data_path.as_ref().unwrap().totals.wrs).collect::<Vec<_>>(),
            [3, 4]
        );
    }
}
