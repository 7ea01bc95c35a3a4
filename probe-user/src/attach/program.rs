//! Loading the BPF object.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use aya::maps::{Array, Map, MapData, PerCpuArray, RingBuf};
use aya::programs::{KProbe, ProgramError, RawTracePoint, UProbe};
use aya::{Ebpf, EbpfError, EbpfLoader};
use probe_common::wire::{KernelOffsets, LOSSES, Site, Slice, Target};

use super::multi::{self, Many};
use crate::collect::wire::{
    Buckets, Counters, DataPathTables, FunctionTables, PlainRecipe, PlainSite, TargetTables,
};

/// Names a BPF object to use in place of the one built in.
const OBJECT_VARIABLE: &str = "RDMA_PROBE_BPF_OBJECT";

static BUILT_IN: &[u8] = aya::include_bytes_aligned!("../../../probe-ebpf/prebuilt/probe.bpfel.o");

/// Why the programs could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The object named by the environment could not be read.
    #[error("cannot read the BPF object '{}' named by {OBJECT_VARIABLE}: {source}", path.display())]
    Object {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The kernel does not let this user load programs.
    #[error("the kernel refuses to load BPF programs: {0}")]
    Denied(String),
    /// The probes report pids of the initial namespace, which are not ours.
    #[error(
        "this process is in a pid namespace of its own, where the kernel's pids mean nothing: run it in the host's (docker: --pid=host)"
    )]
    PidNamespace,
    /// The object or the kernel is not as expected.
    #[error("cannot load the BPF programs: {0}")]
    Broken(String),
}

/// What the programs are told when loaded.
#[derive(Debug, Clone, Copy, Default)]
pub struct Setting {
    /// Watch every process.
    pub whole_host: bool,
    /// Note what queue pairs are made with, for the data path.
    pub data_path: bool,
    /// Offsets of kernel fields.
    pub offsets: KernelOffsets,
}

/// A program for the entry and one for the return of a function.
#[derive(Debug)]
pub struct Pair {
    /// Entry.
    pub enter: OwnedFd,
    /// Return.
    pub leave: OwnedFd,
}

/// The programs for library functions.
#[derive(Debug)]
pub struct LibrarySet {
    /// Entry and return.
    pub pair: Pair,
    /// Return instructions.
    pub exit: OwnedFd,
}

/// The programs for library functions, by the way this kernel attaches them.
#[derive(Debug)]
pub enum LibraryPrograms {
    /// To any number of places at once (Linux 6.6).
    ManyAtOnce(LibrarySet),
    /// Place by place.
    OneByOne(LibrarySet),
}

impl LibraryPrograms {
    /// The programs, whichever way they are attached.
    pub fn set(&self) -> &LibrarySet {
        let (Self::ManyAtOnce(set) | Self::OneByOne(set)) = self;
        set
    }
}

/// The loaded programs, and their maps until somebody takes them.
#[derive(Debug)]
pub struct Programs {
    /// For library functions.
    pub library: LibraryPrograms,
    /// Where the kernel attaches a program to many places at once.
    many: Option<Many>,
    ebpf: Mutex<Ebpf>,
}

impl Programs {
    /// Loads the object into the kernel; nothing is attached yet.
    ///
    /// # Errors
    /// [`LoadError`], which tells a missing permission from a defect.
    pub fn load(setting: &Setting) -> Result<Self, LoadError> {
        let replaced = std::env::var_os(OBJECT_VARIABLE).map(PathBuf::from);
        let read = |path: &Path| {
            std::fs::read(path).map_err(|source| LoadError::Object { path: path.to_owned(), source })
        };
        let other = replaced.as_deref().map(read).transpose()?;
        let whole_host = u32::from(setting.whole_host);
        let note_made = u32::from(setting.data_path);
        let profiler = std::process::id();
        let offsets = setting.offsets.words();
        let object = other.as_deref().unwrap_or(BUILT_IN);
        let mut ebpf = EbpfLoader::new()
            .btf(None)
            .override_global("WHOLE_HOST", &whole_host, true)
            .override_global("NOTE_MADE", &note_made, true)
            .override_global("PROFILER_TGID", &profiler, true)
            .override_global("OFFSETS", &offsets[..], true)
            .load(object)
            .map_err(|error| from_ebpf(&error))?;
        let (library, many) = match multi::load(object, &ebpf) {
            Ok((set, many)) => (LibraryPrograms::ManyAtOnce(set), Some(many)),
            // An older kernel, or one that refuses us altogether: then the second attempt says why.
            Err(_) => {
                let mut load = |name| load::<UProbe>(&mut ebpf, name, UProbe::load);
                let pair = Pair { enter: load("library_enter")?, leave: load("library_return")? };
                (LibraryPrograms::OneByOne(LibrarySet { pair, exit: load("library_exit")? }), None)
            }
        };
        Ok(Self { library, many, ebpf: Mutex::new(ebpf) })
    }

    /// Loads the programs for kernel functions.
    ///
    /// # Errors
    /// As [`Programs::load`].
    pub fn load_kernel(&mut self) -> Result<Pair, LoadError> {
        Ok(Pair {
            enter: load::<KProbe>(self.ebpf(), "kernel_enter", KProbe::load)?,
            leave: load::<KProbe>(self.ebpf(), "kernel_return", KProbe::load)?,
        })
    }

    /// Attaches the programs that follow processes: `sched_process_fork`, `_exec` and `_exit`. Returns what went wrong
    /// with each, if anything.
    pub fn follow_processes(&mut self) -> Vec<(&'static str, Result<(), LoadError>)> {
        [
            ("process_fork", "sched_process_fork"),
            ("process_exec", "sched_process_exec"),
            ("process_exit", "sched_process_exit"),
        ]
        .into_iter()
        .map(|(program, tracepoint)| (tracepoint, self.attach_tracepoint(program, tracepoint)))
        .collect()
    }

    fn attach_tracepoint(&mut self, program: &str, tracepoint: &str) -> Result<(), LoadError> {
        let program: &mut RawTracePoint = self
            .ebpf()
            .program_mut(program)
            .ok_or_else(|| LoadError::Broken(format!("the object has no program '{program}'")))?
            .try_into()
            .map_err(|error| from_program(&error))?;
        program.load().map_err(|error| from_program(&error))?;
        program.attach(tracepoint).map_err(|error| from_program(&error))?;
        Ok(())
    }

    /// The ring buffer. Each map can be taken once.
    ///
    /// # Errors
    /// [`LoadError::Broken`] when the object has no such map.
    pub fn take_events(&mut self) -> Result<RingBuf<MapData>, LoadError> {
        self.take("EVENTS")
    }

    /// The counters.
    ///
    /// # Errors
    /// As [`Programs::take_events`].
    pub fn take_calls(&mut self) -> Result<Counters, LoadError> {
        self.take("CALLS")
    }

    /// The histograms.
    ///
    /// # Errors
    /// As [`Programs::take_events`].
    pub fn take_buckets(&mut self) -> Result<Buckets, LoadError> {
        self.take("BUCKETS")
    }

    /// The losses.
    ///
    /// # Errors
    /// As [`Programs::take_events`].
    pub fn take_lost(&mut self) -> Result<PerCpuArray<MapData, u64>, LoadError> {
        let lost: PerCpuArray<MapData, u64> = self.take("LOST")?;
        if lost.len() != LOSSES {
            return Err(LoadError::Broken("the object counts other losses".to_owned()));
        }
        Ok(lost)
    }

    /// The watched processes.
    ///
    /// # Errors
    /// As [`Programs::take_events`].
    pub fn take_targets(&mut self) -> Result<TargetTables, LoadError> {
        Ok(TargetTables {
            watched: self.take("TARGETS")?,
            accounts: self.take("HOT_PROCESSES")?,
            bystanders: self.take("BYSTANDERS")?,
        })
    }

    fn ebpf(&mut self) -> &mut Ebpf {
        self.ebpf.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads one program for user probes by its name: only now the kernel verifies it, which takes its time. To be asked
    /// once for each.
    ///
    /// # Errors
    /// As [`Programs::load`].
    pub fn load_uprobe(&self, name: &str) -> Result<OwnedFd, LoadError> {
        let mut ebpf = self.ebpf.lock().unwrap_or_else(PoisonError::into_inner);
        load::<UProbe>(&mut ebpf, name, UProbe::load)
    }

    /// The same, for attaching to many places at once; `None` where this kernel does not know that (before 6.6).
    ///
    /// # Errors
    /// As [`Programs::load`].
    pub fn load_uprobe_for_many(&self, name: &str) -> Option<Result<OwnedFd, LoadError>> {
        Some(self.many.as_ref()?.load(name))
    }

    /// How the functions of providers are watched.
    ///
    /// # Errors
    /// As [`Programs::take_events`].
    pub fn take_functions(&mut self) -> Result<FunctionTables, LoadError> {
        Ok(FunctionTables { slices: self.take("SLICES")?, hit: self.take("HIT")? })
    }

    /// Where the programs read whose completion entry an extended queue stands at.
    ///
    /// # Errors
    /// As [`Programs::take_events`].
    pub fn take_recipes(&mut self) -> Result<Array<MapData, PlainRecipe>, LoadError> {
        self.take("RECIPES")
    }

    /// The tables of the data path.
    ///
    /// # Errors
    /// As [`Programs::take_events`].
    pub fn take_data_path(&mut self) -> Result<DataPathTables, LoadError> {
        Ok(DataPathTables {
            objects: self.take("DATA_PATH")?,
            places: self.take("HOT_OBJECTS")?,
            failures: self.take("FAILURES")?,
            rings: self.take("RINGS")?,
            senders: self.take("SENDERS")?,
            latencies: self.take("LATENCIES")?,
        })
    }

    /// The sites in libraries.
    ///
    /// # Errors
    /// As [`Programs::take_events`].
    pub fn take_sites(&mut self) -> Result<Array<MapData, PlainSite>, LoadError> {
        self.take("SITES")
    }

    fn take<T: TryFrom<Map, Error = aya::maps::MapError>>(&mut self, name: &str) -> Result<T, LoadError> {
        let map = self
            .ebpf()
            .take_map(name)
            .ok_or_else(|| LoadError::Broken(format!("the object has no map '{name}'")))?;
        T::try_from(map).map_err(|error| LoadError::Broken(format!("map '{name}': {error}")))
    }
}

const _: () = assert!(size_of::<Site>() == 16 && size_of::<Target>() == 160 && size_of::<Slice>() == 40);

fn load<P>(
    ebpf: &mut Ebpf,
    name: &str,
    load: impl FnOnce(&mut P) -> Result<(), ProgramError>,
) -> Result<OwnedFd, LoadError>
where
    for<'a> &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
    P: AsProgramFd,
{
    let program = ebpf
        .program_mut(name)
        .ok_or_else(|| LoadError::Broken(format!("the object has no program '{name}'")))?;
    let program: &mut P = program.try_into().map_err(|error| from_program(&error))?;
    // What hits cost is measured with a program that attaching may want too, in whichever order: it is loaded once.
    if let Ok(loaded) = program.owned_fd() {
        return Ok(loaded);
    }
    load(program).map_err(|error| from_program(&error))?;
    program.owned_fd().map_err(|error| from_program(&error))
}

/// The program's descriptor as one of our own.
trait AsProgramFd {
    fn owned_fd(&self) -> Result<OwnedFd, ProgramError>;
}

macro_rules! as_program_fd {
    ($($kind:ty),*) => {
        $(impl AsProgramFd for $kind {
            fn owned_fd(&self) -> Result<OwnedFd, ProgramError> {
                self.fd()?.as_fd().try_clone_to_owned().map_err(ProgramError::IOError)
            }
        })*
    };
}

as_program_fd!(UProbe, KProbe);

fn from_ebpf(error: &EbpfError) -> LoadError {
    classify(error)
}

fn from_program(error: &ProgramError) -> LoadError {
    if let ProgramError::LoadError { io_error, verifier_log } = error
        // A program the verifier rejects is answered with "permission denied" too, but with its reasons.
        && (!is_permission(io_error) || !verifier_log.to_string().is_empty())
    {
        // The whole log is long; its end says what the verifier took exception to.
        let log = verifier_log.to_string();
        let end: Vec<_> = log.lines().rev().take(12).collect();
        let end: Vec<_> = end.into_iter().rev().collect();
        return LoadError::Broken(format!("{io_error}; the verifier says: {}", end.join(" | ")));
    }
    classify(error)
}

fn classify(error: &(dyn std::error::Error + 'static)) -> LoadError {
    let mut text = error.to_string();
    let mut cause = error.source();
    let mut denied = false;
    while let Some(inner) = cause {
        denied |= inner.downcast_ref::<std::io::Error>().is_some_and(is_permission);
        text += &format!(": {inner}");
        cause = inner.source();
    }
    if denied { LoadError::Denied(text) } else { LoadError::Broken(text) }
}

fn is_permission(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use probe_common::wire::function;

    /// Programs for user probes in libraries of verbs and of ours; the others are at functions of a provider.
    const IN_LIBRARIES: [&str; 6] =
        ["library_enter", "library_return", "library_exit", "site_posted", "site_post_failed", "site_polled"];

    /// Instructions that the verifier may go through for one program. Nearly all of the time that attaching takes is the
    /// verifier's, some µs for each; at a million it refuses.
    const MOST_VERIFIED: u64 = 100_000;

    /// How many it went through, where the kernel tells (Linux 5.16).
    fn verified(program: &OwnedFd) -> Option<u64> {
        let path = format!("/proc/self/fdinfo/{}", program.as_raw_fd());
        let text = std::fs::read_to_string(path).ok()?;
        text.lines().find_map(|line| line.strip_prefix("verified_insns:")?.trim().parse().ok())
    }

    #[test]
    fn this_kernel_accepts_every_program_without_much_thought() {
        for whole_host in [false, true] {
            let programs =
                match Programs::load(&Setting { whole_host, data_path: true, ..Setting::default() }) {
                    Ok(programs) => programs,
                    Err(error @ (LoadError::Denied(_) | LoadError::PidNamespace)) => {
                        eprintln!("skipped: {error}");
                        return;
                    }
                    Err(error) => panic!("{error}"),
                };
            let refusal = |name: &&str| match programs.load_uprobe(name) {
                Ok(program) => verified(&program)
                    .inspect(|n| println!("{name}: {n} instructions verified"))
                    .filter(|n| *n > MOST_VERIFIED)
                    .map(|n| format!("{name}: the verifier went through {n} instructions")),
                Err(error) => Some(format!("{name}: {error}")),
            };
            let refused: Vec<_> = IN_LIBRARIES.iter().chain(&function::NAMES).filter_map(refusal).collect();
            assert!(refused.is_empty(), "{refused:#?}");
        }
    }
}
