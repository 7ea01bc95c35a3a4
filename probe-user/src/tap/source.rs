//! The tap as a source of a recording: finds the files of watched processes and of their children as they appear, holds
//! them open beyond the end of the process, and tells what changed at every sample.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::collect::Source;
use crate::collect::clock::now_ns;
use crate::devices::emulated_devices_of;
use crate::sample::{DataPath, Device, Probe, ProcessId, Record, Verdict};
use crate::target;

use super::told::{Told, never_seen};
use super::{LIBRARY, MessageLog, Tap};

/// How often a process is looked into that began, or was replaced, a moment ago: it may open a device and end soon.
const LOOK_OFTEN: Duration = Duration::from_millis(2);
/// How often the others are.
const LOOK: Duration = Duration::from_millis(20);
/// How often the log of single work requests is looked at when it was empty.
const LOOK_FOR_MESSAGES: Duration = Duration::from_millis(1);
/// Entries taken from one process before the next has its turn.
const MESSAGES_AT_ONCE: usize = 1 << 16;
/// Records that wait for the recorder; while there are more, none are taken, so that memory is bounded. What the logs
/// cannot hold then is missing, and said to be.
const MOST_RECORDS: usize = 1 << 19;
/// How long a process is young.
const YOUNG: Duration = Duration::from_secs(5);
/// How often a process that has a file is asked whether it still is the same one.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Counts of processes that run under the tap. Needs no privilege beyond that of looking into them.
pub struct TapSource {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    told: bool,
}

#[derive(Default)]
struct Shared {
    processes: Mutex<HashMap<ProcessId, Watched>>,
    devices: Mutex<BTreeMap<String, Device>>,
    /// Posts and polls that the recorder has not taken yet.
    records: Mutex<Vec<Record>>,
    stop: AtomicBool,
}

struct Watched {
    /// When it was first, or last, worth looking at often.
    since: Instant,
    looked: Instant,
    /// Its files, one for each program it has been; the last one may still be written.
    taps: Vec<Tap>,
    /// The log of single work requests that goes with the last of them.
    log: Option<MessageLog>,
    /// Files whose last counts were told.
    done: usize,
    told: Told,
}

impl Watched {
    fn new() -> Self {
        let now = Instant::now();
        Self { since: now, looked: now, taps: Vec::new(), log: None, done: 0, told: Told::default() }
    }

    fn due(&self, now: Instant) -> bool {
        let every = match (self.taps.is_empty(), now.duration_since(self.since) < YOUNG) {
            (true, true) => LOOK_OFTEN,
            (true, false) => LOOK,
            (false, _) => LOOK_AGAIN,
        };
        now.duration_since(self.looked) >= every
    }

    /// Opens the file of the process, where it has one that is not open yet.
    fn look(&mut self, pid: u32) -> bool {
        // A process that is just ending cannot be looked into: that it has no file then is no failure.
        let Ok(Some(tap)) = Tap::of(pid) else { return false };
        let new = self.taps.last().is_none_or(|last| last.identity() != tap.identity());
        if new {
            self.taps.push(tap);
            self.log = MessageLog::of(pid).unwrap_or_default();
        }
        new
    }

    /// What changed; a file that cannot be read steadily now is read at the next sample.
    fn sample(&mut self) -> Option<DataPath> {
        let mut path: Option<DataPath> = None;
        for index in self.done..self.taps.len() {
            if index > self.done {
                self.told.replaced();
                self.done = index;
            }
            let Ok(reading) = self.taps[index].read() else { break };
            if let Some(more) = self.told.changed(&reading) {
                let before = path.take().map(|path| path.queues).unwrap_or_default();
                let queues = before.into_iter().chain(more.queues).collect();
                path = Some(DataPath { queues, ..more });
            }
        }
        path
    }
}

impl TapSource {
    /// Begins to look for files.
    ///
    /// # Errors
    /// When no thread can be made for it.
    pub fn start() -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut source = Self { shared, threads: Vec::new(), told: false };
        source.thread("tap", Shared::find)?;
        Ok(source)
    }

    /// Reads the logs of single work requests as well, of processes that keep one.
    ///
    /// # Errors
    /// When no thread can be made for it.
    pub fn with_messages(mut self) -> std::io::Result<Self> {
        self.thread("messages", Shared::read_messages)?;
        Ok(self)
    }

    fn thread(&mut self, name: &str, work: fn(&Shared)) -> std::io::Result<()> {
        let theirs = Arc::clone(&self.shared);
        self.threads.push(thread::Builder::new().name(name.to_owned()).spawn(move || work(&theirs))?);
        Ok(())
    }
}

impl Shared {
    fn processes(&self) -> MutexGuard<'_, HashMap<ProcessId, Watched>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self) {
        let mut children_due = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            let mut young = false;
            let mut alive = Vec::new();
            for (id, watched) in self.processes().iter_mut() {
                young |= watched.taps.is_empty() && now.duration_since(watched.since) < YOUNG;
                if watched.due(now) {
                    watched.looked = now;
                    if watched.look(id.pid) {
                        self.note_devices(id.pid);
                    }
                }
                alive.push(*id);
            }
            if now >= children_due {
                children_due = now + LOOK;
                self.meet_children(&alive);
            }
            thread::sleep(if young { LOOK_OFTEN } else { LOOK });
        }
    }

    fn read_messages(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            if self.take_messages(false) == 0 {
                thread::sleep(LOOK_FOR_MESSAGES);
            }
        }
    }

    /// Takes what the logs have. Returns how many entries that were.
    fn take_messages(&self, last: bool) -> usize {
        if !last && self.records().len() > MOST_RECORDS {
            return 0;
        }
        let mut processes = self.processes();
        let mut taken = 0;
        let mut records = Vec::new();
        for (id, watched) in processes.iter_mut() {
            if let Some(log) = &mut watched.log {
                let most = if last { usize::MAX } else { MESSAGES_AT_ONCE };
                taken += log.take(*id, most, last, &mut records);
            }
        }
        self.records().append(&mut records);
        taken
    }

    fn records(&self) -> MutexGuard<'_, Vec<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meet_children(&self, parents: &[ProcessId]) {
        for child in parents.iter().flat_map(|parent| target::direct_children_of(parent.pid)) {
            let Some(start_ns) = target::start_ns_of(child) else { continue };
            let id = ProcessId { pid: child, start_ns };
            let mut processes = self.processes();
            // A parent that has not waited yet still lists those that ended: met again after they were told of to the end
            // and forgotten, they would seem never to have used a device.
            if !processes.contains_key(&id) && !target::has_ended(id) {
                processes.insert(id, Watched::new());
            }
        }
    }

    fn note_devices(&self, pid: u32) {
        let found = emulated_devices_of(pid);
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.extend(found.into_iter().map(|device| (device.name.clone(), device)));
    }
}

impl Source for TapSource {
    fn watch(&mut self, id: ProcessId, running: bool) {
        let mut processes = self.shared.processes();
        let known = processes.contains_key(&id);
        let watched = processes.entry(id).or_insert_with(Watched::new);
        watched.since = Instant::now();
        if running && !known && watched.look(id.pid) {
            if let Some(Ok(reading)) = watched.taps.first().map(Tap::read) {
                watched.told = Told::starting_with(reading);
            }
            self.shared.note_devices(id.pid);
        }
    }

    fn sample(&mut self, last: bool) -> Vec<(ProcessId, DataPath)> {
        let mut changed = Vec::new();
        for (id, watched) in self.shared.processes().iter_mut() {
            match watched.sample() {
                Some(path) => changed.push((*id, path)),
                None if last && watched.taps.is_empty() => changed.push((*id, never_seen())),
                None => {}
            }
        }
        changed
    }

    fn records(&mut self, last: bool) -> Vec<Record> {
        if last {
            self.shared.take_messages(true);
        }
        std::mem::take(&mut *self.shared.records())
    }

    fn forget(&mut self, gone: &HashSet<ProcessId>) {
        let mut processes = self.shared.processes();
        for id in gone {
            if let Some(log) = processes.remove(id).and_then(|watched| watched.log) {
                { log }.take(*id, usize::MAX, true, &mut self.shared.records());
            }
        }
    }

    fn verdicts(&mut self) -> Vec<Probe> {
        let seen = self.shared.processes().values().any(|watched| !watched.taps.is_empty());
        if !seen || std::mem::replace(&mut self.told, true) {
            return Vec::new();
        }
        vec![Probe {
            name: "tap".to_owned(),
            place: LIBRARY.to_owned(),
            call: None,
            t_ns: now_ns(),
            late_ns: None,
            verdict: Verdict::Live,
        }]
    }

    fn devices(&mut self) -> Vec<Device> {
        let mut devices = self.shared.devices.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *devices).into_values().collect()
    }
}

impl Drop for TapSource {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It ends within one look; a panic there was told when it happened.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_living_child_is_met_and_one_that_has_ended_is_not() {
        let mut children = [["sleep", "600"], ["sleep", "0"]]
            .map(|[program, argument]| Command::new(program).arg(argument).spawn().expect("a child"));
        let [living, ended] = [&children[0], &children[1]].map(|child| {
            let start_ns = target::start_ns_of(child.id()).expect("not waited for yet");
            ProcessId { pid: child.id(), start_ns }
        });
        while !target::has_ended(ended) {
            thread::sleep(Duration::from_millis(1));
        }
        let shared = Shared::default();
        shared.meet_children(&[ProcessId { pid: std::process::id(), start_ns: 0 }]);
        let met = [living, ended].map(|id| shared.processes().contains_key(&id));
        for child in &mut children {
            child.kill().and_then(|()| child.wait()).expect("it can be ended");
        }
        assert_eq!(met, [true, false]);
    }
}
