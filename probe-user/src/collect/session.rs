//! A recording in progress: probes attached, records coming out.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aya::maps::{MapData, PerCpuArray, RingBuf};
use probe_common::CallId;
use probe_common::wire::{BucketKey, CallKey, CallMessage, Loss, MessageKind};

use super::Source;
use super::clock::now_ns;
use super::counters::{Reading, Reported};
use super::decode;
use super::facts::Surroundings;
use super::librarian::Librarian;
use super::mappings::Mappings;
use super::probed::Probed;
use super::processes::Processes;
use super::sources::Sources;
use super::stacks::{Spaces, Stacks};
use super::wire::{
    self, Buckets, Counters, PlainBucketKey, PlainCallKey, PlainTarget, call_message, process_message,
};
use crate::attach::{
    KernelProbes, LoadError, Programs, Setting, pid_namespace_is_initial, verdict_on_loading,
};
use crate::contexts::ObjectAt;
use crate::data_path::{
    Allowed, Asking, Attacher, Calibration, Costs, Counting, Governor, Reading as DataPathReading, Recipes,
    Targets, Told,
};
use crate::hooks::{KERNEL_HOOKS, library_hooks};
use crate::kernel::{self, Btf, Offsets};
use crate::providers;
use crate::sample::{DataPath, Lost, Probe, ProcessId, Record, Sample, Verdict};
use crate::target::{self, MappedFile};

/// Most events taken out of the ring before the rest of the loop gets its turn.
const MAX_EVENTS_AT_ONCE: usize = 20_000;

/// What is recorded.
#[derive(Debug, Clone)]
pub struct Options {
    /// Every process, instead of those given to [`Session::watch`] and their children.
    pub whole_host: bool,
    /// Attach to the kernel too.
    pub kernel: bool,
    /// How posts and polls are watched.
    pub data_path: Posts,
    /// Have the tap of a process that runs under it call its sites, so that these count too.
    pub fire_taps: bool,
    /// Time between two samples.
    pub interval: Duration,
}

/// How posts and polls are watched.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Posts {
    /// Not at all.
    #[default]
    Off,
    /// As far as what that costs is allowed.
    Sampled(Allowed),
    /// Every one, whatever that costs.
    Full,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            whole_host: false,
            kernel: true,
            data_path: Posts::Off,
            fire_taps: false,
            interval: Duration::from_secs(1),
        }
    }
}

/// A recording in progress. Without the permission to load programs it still tells of processes, and why it tells no
/// more.
pub struct Session {
    options: Options,
    probing: Option<Probing>,
    processes: Processes,
    /// Processes whose end was seen: their counters are read once more, then removed.
    ending: HashSet<ProcessId>,
    next_sample: Instant,
    pending: Vec<Record>,
    sources: Sources,
    probed: Probed,
    surroundings: Surroundings,
}

/// What exists only where programs could be loaded.
struct Probing {
    // The programs stay loaded as long as this is held.
    programs: Arc<Programs>,
    kernel: KernelProbes,
    librarian: Librarian,
    events: RingBuf<MapData>,
    calls: Counters,
    buckets: Buckets,
    lost: PerCpuArray<MapData, u64>,
    targets: Targets,
    reported: Reported,
    data_path: Option<Counting>,
    stacks: Stacks,
}

impl Session {
    /// Loads the programs and attaches to the kernel. What cannot be attached is told as verdicts among the records.
    pub fn start(options: Options) -> Self {
        let mut session = Self {
            next_sample: Instant::now() + options.interval,
            options,
            probing: None,
            processes: Processes::default(),
            ending: HashSet::new(),
            pending: Vec::new(),
            sources: Sources::default(),
            probed: Probed::default(),
            surroundings: Surroundings::default(),
        };
        match session.load() {
            Ok(probing) => session.probing = Some(probing),
            Err(error) => session.tell_all(&verdict_on_loading(&error)),
        }
        session
    }

    /// Has posts and polls counted by `source`, for processes watched from now on.
    pub fn add_source(&mut self, source: Box<dyn Source>) {
        self.sources.add(source);
    }

    /// True where probes could be loaded: otherwise only processes are told of.
    pub fn is_probing(&self) -> bool {
        self.probing.is_some()
    }

    /// Watches a process, all its threads, and from now on its children.
    ///
    /// # Errors
    /// When the process is gone, or the table of watched processes is full.
    pub fn watch(&mut self, pid: u32) -> io::Result<()> {
        self.watch_from(pid, true)?;
        if let Some(probing) = &mut self.probing {
            probing.librarian.watch(pid);
            if probing.data_path.is_some() {
                probing.librarian.search(pid);
            }
        }
        Ok(())
    }

    /// What a hit of a data-path probe costs on this machine, waited for at most so long; `None` where the data path is
    /// not watched, or that is not known yet.
    pub fn calibration(&self, within: Duration) -> Option<Calibration> {
        let probing = self.probing.as_ref()?;
        probing.data_path.as_ref()?.calibration(&probing.programs, within)
    }

    /// Waits until everything that was asked for so far is in place.
    pub fn settle(&mut self) {
        self.prepare(Vec::new());
    }

    /// What the data path of every watched process has come to; empty where it is not watched.
    pub fn data_path(&mut self) -> BTreeMap<ProcessId, DataPathReading> {
        let counting = self.probing.as_mut().and_then(|probing| probing.data_path.as_mut());
        counting.map(Counting::read).unwrap_or_default()
    }

    /// Watches a process that has yet to become what it will be: what it maps now is of no interest.
    ///
    /// # Errors
    /// As [`Session::watch`].
    pub fn watch_before_exec(&mut self, pid: u32) -> io::Result<()> {
        self.watch_from(pid, false)
    }

    fn watch_from(&mut self, pid: u32, running: bool) -> io::Result<()> {
        let start_ns = target::start_ns_of(pid).ok_or(io::ErrorKind::NotFound)?;
        self.pending.extend(self.processes.meet(ProcessId { pid, start_ns }));
        self.sources.watch(ProcessId { pid, start_ns }, running);
        if let Some(probing) = &mut self.probing {
            probing
                .targets
                .watch(pid, start_ns)
                .map_err(|error| io::Error::other(format!("the table of watched processes: {error}")))?;
            if let Some(data_path) = &mut probing.data_path {
                data_path.watch(pid);
            }
            // What it maps next may be all there is of it: it can be gone before its exec is told.
            probing.librarian.note(pid);
        }
        Ok(())
    }

    /// Puts probes into files that a command is about to load.
    pub fn prepare(&mut self, mut files: Vec<PathBuf>) {
        if let Some(probing) = &mut self.probing {
            if probing.data_path.is_some() {
                // Loaded by name when a device is looked for, shortly before it is used.
                files.extend(providers::installed(Path::new("/")));
            }
            probing.librarian.prepare(files);
        }
    }

    /// Puts probes into files that a process maps.
    pub fn prepare_mapped(&mut self, files: Vec<MappedFile>) {
        if let Some(probing) = &mut self.probing {
            probing.librarian.prepare_mapped(files);
        }
    }

    /// Descriptor that becomes readable when events should be taken soon.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.probing.as_ref().map(|probing| probing.events.as_raw_fd())
    }

    /// What has come since the last call: processes, verdicts, events, and a sample when one is due.
    pub fn take(&mut self) -> Vec<Record> {
        let mut records = std::mem::take(&mut self.pending);
        self.take_events(&mut records, MAX_EVENTS_AT_ONCE);
        if let Some(probing) = &self.probing {
            records.extend(probing.librarian.answers());
            records.extend(probing.stacks.found());
        }
        self.take_messages(&mut records, false);
        if Instant::now() >= self.next_sample {
            self.sample(&mut records, false);
            self.next_sample = Instant::now() + self.options.interval;
        }
        records
    }

    /// True when every process that was watched has ended.
    pub fn all_ended(&self) -> bool {
        self.processes.living().all(target::has_ended)
    }

    /// What has been missed so far.
    pub fn lost(&self) -> Lost {
        let Some(probing) = &self.probing else { return Lost::default() };
        let sum =
            |loss: Loss| probing.lost.get(&(loss as u32), 0).map_or(0, |per_cpu| per_cpu.iter().sum::<u64>());
        Lost {
            ring_events: sum(Loss::Ring),
            unpaired: sum(Loss::Unpaired),
            kernel_returns: probing.kernel.missed_returns(),
            uncounted: sum(Loss::Uncounted),
        }
    }

    /// Ends the recording: what is still in the ring, a last sample, the last verdicts; then everything is detached.
    pub fn finish(mut self) -> Vec<Record> {
        let mut records = std::mem::take(&mut self.pending);
        self.take_events(&mut records, usize::MAX);
        self.sample(&mut records, true);
        self.take_messages(&mut records, true);
        if let Some(probing) = self.probing.take() {
            let Probing { programs, kernel, librarian, stacks, .. } = probing;
            records.extend(stacks.finish());
            records.extend(librarian.end());
            kernel.detach();
            drop(programs);
        }
        records
    }

    fn load(&mut self) -> Result<Probing, LoadError> {
        if !pid_namespace_is_initial() {
            return Err(LoadError::PidNamespace);
        }
        let vmlinux = read_btf("vmlinux", None);
        let modules: Vec<_> = ["ib_core", "ib_uverbs", "rdma_rxe"]
            .into_iter()
            .filter_map(|module| read_btf(module, vmlinux.as_ref()))
            .collect();
        let offsets = match &vmlinux {
            Some(vmlinux) => kernel::offsets(vmlinux, &modules),
            None => Offsets { missing: vec!["/sys/kernel/btf/vmlinux".to_owned()], ..Offsets::default() },
        };
        let setting = Setting {
            whole_host: self.options.whole_host,
            data_path: self.options.data_path != Posts::Off,
            offsets: offsets.known,
        };
        let mut programs = Programs::load(&setting)?;
        let events = programs.take_events()?;
        let (calls, buckets) = (programs.take_calls()?, programs.take_buckets()?);
        let (lost, targets) = (programs.take_lost()?, Targets::new(programs.take_targets()?));
        let sites = programs.take_sites()?;
        self.follow_processes(&mut programs, &offsets);
        let kernel = self.attach_kernel(&mut programs, vmlinux.as_ref(), &modules);
        let costs = Costs::default();
        let told = Told::default();
        let counting = self.counting(&mut programs, &costs, &targets, &told);
        let taps = self.options.fire_taps;
        let asking = match self.options.data_path {
            Posts::Sampled(allowed) if counting.is_some() => {
                // Whoever takes a table keeps it: programs that are loaded later refer to it.
                let tables = programs.take_functions()?;
                let governor = Governor::start(allowed, taps, targets.clone(), costs.clone(), tables, told);
                Asking::Governed(governor.map_err(|error| no_thread(&error))?)
            }
            _ => Asking::Everything { taps },
        };
        let recipes = Recipes::new(programs.take_recipes()?);
        let programs = Arc::new(programs);
        let attacher =
            counting.is_some().then(|| Attacher::new(Arc::clone(&programs), asking, costs, recipes));
        let spaces = Arc::new(Mutex::new(Spaces::default()));
        let whole_host = self.options.whole_host;
        let (mappings, no_mappings) = match Mappings::new(whole_host, Arc::clone(&spaces)) {
            Ok(mappings) => (Some(mappings), None),
            Err(error) => (None, Some(error)),
        };
        let librarian =
            Librarian::start(Arc::clone(&programs), sites, attacher, whole_host, mappings.clone())
                .map_err(|error| no_thread(&error))?;
        self.pending.push(Record::Probe(Probe {
            name: "perf:mmap2".to_owned(),
            place: String::new(),
            call: None,
            t_ns: now_ns(),
            late_ns: None,
            verdict: match no_mappings {
                None => Verdict::Live,
                Some(error) => Verdict::NotHere {
                    why: format!(
                        "new mappings cannot be watched ({error}): processes are looked at every 100 ms"
                    ),
                },
            },
        }));
        Ok(Probing {
            programs,
            kernel,
            librarian,
            events,
            calls,
            buckets,
            lost,
            targets,
            reported: Reported::default(),
            data_path: counting,
            stacks: Stacks::new(spaces, mappings),
        })
    }

    /// The tables of the data path, if it is to be watched; why they cannot be had is told among the records.
    fn counting(
        &mut self,
        programs: &mut Programs,
        costs: &Costs,
        targets: &Targets,
        told: &Told,
    ) -> Option<Counting> {
        if self.options.data_path == Posts::Off {
            return None;
        }
        let tables = Counting::new(programs, costs.clone(), targets.clone(), told.clone());
        let broken = tables.as_ref().err().map(|error| Probe {
            name: "data-path".to_owned(),
            place: String::new(),
            call: None,
            t_ns: now_ns(),
            late_ns: None,
            verdict: verdict_on_loading(error),
        });
        self.pending.extend(broken.map(Record::Probe));
        tables.ok()
    }

    fn follow_processes(&mut self, programs: &mut Programs, offsets: &Offsets) {
        let missing: Vec<_> =
            offsets.missing.iter().filter(|field| !field.starts_with("ib_umem")).cloned().collect();
        for (name, outcome) in programs.follow_processes() {
            let verdict = match outcome {
                Ok(()) if missing.is_empty() => Verdict::Live,
                Ok(()) => Verdict::NotHere {
                    why: format!(
                        "children are not followed: the kernel's BTF does not tell {}",
                        missing.join(", ")
                    ),
                },
                Err(error) => verdict_on_loading(&error),
            };
            let probe = Probe {
                name: format!("tracepoint:{name}"),
                place: String::new(),
                call: None,
                t_ns: now_ns(),
                late_ns: None,
                verdict,
            };
            self.pending.push(Record::Probe(probe));
        }
    }

    fn attach_kernel(
        &mut self,
        programs: &mut Programs,
        vmlinux: Option<&Btf<'_>>,
        modules: &[Btf<'_>],
    ) -> KernelProbes {
        let functions =
            if self.options.kernel { kernel::functions(vmlinux, modules) } else { Ok(Default::default()) };
        let (attached, probes) = KernelProbes::attach(programs, &functions.unwrap_or_default());
        if self.options.kernel {
            self.pending.extend(probes.into_iter().map(Record::Probe));
        }
        attached
    }

    /// The same verdict on everything, where nothing could be loaded.
    fn tell_all(&mut self, verdict: &Verdict) {
        let names = library_hooks()
            .map(|hook| (hook.symbol.to_owned(), Some(hook.call)))
            .chain(KERNEL_HOOKS.iter().map(|hook| (format!("kernel:{}", hook.symbol), hook.call)));
        self.pending.extend(names.map(|(name, call)| {
            let call = call.map(decode::call);
            Record::Probe(Probe {
                name,
                place: String::new(),
                call,
                t_ns: now_ns(),
                late_ns: None,
                verdict: verdict.clone(),
            })
        }));
    }

    fn take_events(&mut self, records: &mut Vec<Record>, most: usize) {
        let Some(probing) = &mut self.probing else { return };
        let mut taken = 0;
        while taken < most {
            let Some(item) = probing.events.next() else { break };
            taken += 1;
            let kind = item.first_chunk().map_or(0, |word| u32::from_ne_bytes(*word));
            if kind == MessageKind::Call as u32 {
                let Some(message) = call_message(&item) else { continue };
                if probing.data_path.is_some()
                    && let Some(object) = made(&message)
                {
                    probing.librarian.object(message.header.tgid, object);
                }
                let Some(mut event) = decode::event(&message) else { continue };
                event.stack = wire::callers(&item);
                event.id = self.processes.identify(event.id.pid, event.id.start_ns);
                probing.stacks.take(event.id, &mut event.stack);
                records.extend(self.processes.meet(event.id));
                if !self.surroundings.knows(event.id) {
                    records.extend(self.surroundings.look(event.id));
                }
                records.push(Record::Event(event));
                continue;
            }
            let kinds = [MessageKind::Fork, MessageKind::Exec, MessageKind::Exit];
            let Some(kind) = kinds.into_iter().find(|known| *known as u32 == kind) else { continue };
            let Some(message) = process_message(&item) else { continue };
            records.extend(self.processes.told(kind, &message));
            if kind != MessageKind::Exit {
                let id = self.processes.identify(message.header.tgid, message.header.start_ns);
                self.sources.watch(id, false);
            }
            match kind {
                MessageKind::Exec => {
                    probing.librarian.watch_anew(message.header.tgid, message.header.t_ns);
                }
                MessageKind::Fork => {
                    probing.stacks.forked(message.parent_tgid, message.header.tgid);
                    probing.librarian.note(message.header.tgid);
                }
                _ => {}
            }
        }
    }

    /// Single posts and polls, each process being told of before its first.
    fn take_messages(&mut self, records: &mut Vec<Record>, last: bool) {
        let mut before = None;
        for record in self.sources.records(last) {
            let id = match &record {
                Record::Post(post) => Some(post.id),
                Record::Poll(poll) => Some(poll.id),
                _ => None,
            };
            if let Some(id) = id.filter(|id| before != Some(*id)) {
                before = Some(id);
                records.extend(self.processes.meet(id));
            }
            records.push(record);
        }
    }

    fn sample(&mut self, records: &mut Vec<Record>, last: bool) {
        let (gone, told) = self.processes.ended();
        let reapable = self.reapable(gone);
        let lost = self.lost();
        let reading = self.probing.as_ref().map(|probing| probing.read(&mut self.processes));
        let mut processes = match (&mut self.probing, &reading) {
            (Some(probing), Some(reading)) => probing.reported.changed(reading),
            _ => Vec::new(),
        };
        let probed = self.probed();
        let devices = self.sources.sample(last, probed, &mut processes);
        records.extend(self.sources.verdicts());
        for sample in &processes {
            records.extend(self.processes.meet(sample.id));
            records.extend(self.surroundings.look(sample.id));
        }
        if self.probing.is_some() || !processes.is_empty() || !devices.is_empty() {
            records.push(Record::Sample(Sample { t_ns: now_ns(), processes, lost, devices }));
        }
        if let (Some(probing), Some(reading)) = (&mut self.probing, &reading) {
            probing.forget(&reapable, reading);
        }
        self.sources.forget(&reapable);
        // What a process posted comes before its end.
        self.take_messages(records, false);
        self.probed.forget(&reapable);
        records.extend(told);
        for id in reapable {
            self.surroundings.forget(id);
            self.processes.forget(id);
        }
    }

    /// What the probes of the data path counted since the last sample; `None` where there are none.
    fn probed(&mut self) -> Option<Vec<(ProcessId, DataPath)>> {
        self.probing.as_ref()?.data_path.as_ref()?;
        let readings = self.data_path();
        let identified =
            readings.into_iter().map(|(id, r)| (self.processes.identify(id.pid, id.start_ns), r));
        let mut identified: BTreeMap<_, _> = identified.collect();
        if let Some(probing) = &mut self.probing {
            for (id, reading) in &mut identified {
                let refused = reading.failures.iter_mut().map(|failure| &mut failure.first.stack);
                refused.filter(|stack| !stack.is_empty()).for_each(|stack| probing.stacks.take(*id, stack));
            }
        }
        Some(self.probed.changed(&identified))
    }

    /// Of the processes that have ended, those that had ended at the last sample already: what they did last has been
    /// read since, and nothing is added to their counters any more.
    fn reapable(&mut self, gone: Vec<ProcessId>) -> HashSet<ProcessId> {
        let (reapable, ending): (HashSet<_>, HashSet<_>) =
            gone.into_iter().partition(|id| self.ending.contains(id));
        self.ending = ending;
        reapable
    }
}

impl Probing {
    fn read(&self, processes: &mut Processes) -> Reading {
        // A key that is removed while the table is walked makes the walk start again; keys are removed only here, by
        // this thread.
        let calls = self.calls.iter().filter_map(Result::ok).map(|(key, counters)| {
            let mut key = key.0;
            key.start_ns = processes.identify(key.tgid, key.start_ns).start_ns;
            (key, counters.0)
        });
        let calls: Vec<_> = calls.collect();
        let buckets = self.buckets.iter().filter_map(Result::ok).map(|(key, n)| {
            let mut key = key.0;
            key.start_ns = processes.identify(key.tgid, key.start_ns).start_ns;
            (key, n)
        });
        Reading { calls, buckets: buckets.collect() }
    }

    /// Removes the counters of processes that are no more, in one pass over what was just read.
    fn forget(&mut self, gone: &HashSet<ProcessId>, reading: &Reading) {
        if gone.is_empty() {
            return;
        }
        let is_gone = |pid, start_ns| gone.contains(&ProcessId { pid, start_ns });
        for (key, _) in reading.calls.iter().filter(|(key, _)| is_gone(key.tgid, key.start_ns)) {
            // On kernels that do not tell start times the key in the table has none.
            let unknown = CallKey { start_ns: 0, ..*key };
            let _ =
                self.calls.remove(&PlainCallKey(*key)).or_else(|_| self.calls.remove(&PlainCallKey(unknown)));
        }
        for (key, _) in reading.buckets.iter().filter(|(key, _)| is_gone(key.tgid, key.start_ns)) {
            let unknown = BucketKey { start_ns: 0, ..*key };
            let _ = self
                .buckets
                .remove(&PlainBucketKey(*key))
                .or_else(|_| self.buckets.remove(&PlainBucketKey(unknown)));
        }
        self.reported.forget(gone);
        if let Some(data_path) = &mut self.data_path {
            data_path.forget(gone);
        }
        for id in gone {
            // Unless the pid has a new owner that is watched too.
            let is_its = |target: PlainTarget| target.0.start_ns == id.start_ns;
            let removed = self
                .targets
                .with(|table| table.get(&id.pid, 0).is_ok_and(is_its) && table.remove(&id.pid).is_ok());
            if removed {
                self.librarian.forget(id.pid);
                self.stacks.forget(*id);
            }
        }
    }
}

fn no_thread(error: &io::Error) -> LoadError {
    LoadError::Broken(format!("cannot start a thread: {error}"))
}

/// The object whose functions may be new after a call: one that was made, or a queue pair that changed its state, which
/// makes mlx5 replace functions.
fn made(message: &CallMessage) -> Option<ObjectAt> {
    let object = message.payload[0];
    if message.errno != 0 || object == 0 {
        return None;
    }
    match CallId::from_number(message.call)? {
        CallId::OpenDevice => Some(ObjectAt::Context(object)),
        CallId::CreateQp | CallId::ModifyQp => Some(ObjectAt::Qp(object)),
        CallId::CreateCq => Some(ObjectAt::Cq(object)),
        CallId::CreateSrq => Some(ObjectAt::Srq(object)),
        _ => None,
    }
}

fn read_btf<'base>(name: &str, base: Option<&'base Btf<'base>>) -> Option<Btf<'base>> {
    // A module's BTF without its base says nothing.
    if name != "vmlinux" && base.is_none() {
        return None;
    }
    let wanted = |name: &str| kernel::STRUCTURES.contains(&name) || kernel::is_hooked(name);
    Btf::parse(std::fs::read(format!("/sys/kernel/btf/{name}")).ok()?, base, &wanted).ok()
}
