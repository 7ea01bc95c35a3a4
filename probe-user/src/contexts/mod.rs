//! The verbs objects of a process that already runs, found in its memory, and the functions its data path goes through.
//!
//! Probes that see objects when they are made are of no use for a process that made them before. What a provider put
//! into `context->ops` and into extended objects still stands in the process's memory, which [`find`] searches: read
//! only, present pages only, within a budget. Each function is named by the file it lies in, so that a probe can be
//! attached there, also in another mount namespace.

mod beginnings;
pub(crate) mod layout;
mod live;
mod memory;
mod regions;
mod search;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::entry::{self, Choice, Entry, Kernel, Owner};
use crate::providers::Role;
use crate::target::{MappedFile, identity};

pub use live::{ObjectAt, function_words, places_of};
pub use search::{Budget, Cut, Device};

use beginnings::{Beginnings, Begins};
use memory::Process;
use regions::Regions;
use search::Descriptors;

/// Why a process could not be searched.
#[derive(Debug, thiserror::Error)]
pub enum ContextsError {
    /// The process is gone.
    #[error("there is no process {0}")]
    Gone(u32),
    /// It may not be looked into.
    #[error("may not read the memory of process {0}: needs CAP_SYS_PTRACE, or its user and ptrace_scope 0")]
    Denied(u32),
    /// Something else.
    #[error("cannot search process {0}")]
    Io(u32, #[source] io::Error),
    /// Struct layouts are known for x86-64 only.
    #[error("where objects lie in memory is known for x86-64 only")]
    Architecture,
}

/// Where a function lies.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// The file, as the process maps it.
    pub file: MappedFile,
    /// Offset of the function's entry in the file.
    pub offset: u64,
}

/// A device context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// Address of the `ibv_context`.
    pub address: u64,
    /// Whose device.
    pub device: Device,
    /// Its name.
    pub device_name: String,
    /// Its operations.
    pub functions: BTreeMap<Role, Place>,
}

/// A queue pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qp {
    /// Address of the `ibv_qp`.
    pub address: u64,
    /// Address of its context.
    pub context: u64,
    /// QP number.
    pub number: u32,
    /// State, as libibverbs keeps it (`IBV_QPS_…`).
    pub state: u32,
    /// Type (`IBV_QPT_…`).
    pub qp_type: u32,
    /// Address of the completion queue of sends; 0 for none.
    pub send_cq: u64,
    /// Address of the completion queue of receives; 0 for none.
    pub recv_cq: u64,
    /// Functions of its extended API; empty where it has none.
    pub functions: BTreeMap<Role, Place>,
}

/// A completion queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cq {
    /// Address of the `ibv_cq`.
    pub address: u64,
    /// Address of its context.
    pub context: u64,
    /// libibverbs' handle.
    pub handle: u32,
    /// Entries it holds.
    pub cqe: u32,
    /// Functions of its extended API; empty where it has none.
    pub functions: BTreeMap<Role, Place>,
}

/// What was found in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The process.
    pub pid: u32,
    /// Contexts.
    pub contexts: Vec<Context>,
    /// Queue pairs.
    pub qps: Vec<Qp>,
    /// Completion queues.
    pub cqs: Vec<Cq>,
    /// Bytes read from the process.
    pub bytes_read: u64,
    /// Time it took.
    pub took: Duration,
    /// Why the search ended early; `None` when all was seen.
    pub cut: Option<Cut>,
}

/// Searches a process for its verbs objects.
///
/// `confirmed` are the numbers of the queue pairs that the kernel lists for it, where it was asked and has RDMA: others
/// are copies of queue pairs that are gone.
///
/// # Errors
/// [`ContextsError`] when the process is gone or its memory may not be read.
pub fn find(pid: u32, confirmed: Option<&BTreeSet<u32>>, budget: &Budget) -> Result<Found, ContextsError> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(ContextsError::Architecture);
    }
    let failed = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound => ContextsError::Gone(pid),
        io::ErrorKind::PermissionDenied => ContextsError::Denied(pid),
        _ if e.raw_os_error() == Some(libc::ESRCH) => ContextsError::Gone(pid),
        _ => ContextsError::Io(pid, e),
    };
    let started = Instant::now();
    let maps = File::open(format!("/proc/{pid}/maps")).map_err(failed)?;
    let regions = Regions::parse(BufReader::new(maps)).map_err(failed)?;
    let mut memory = Process::open(pid).map_err(failed)?;
    let found = search::search(&mut memory, &regions, &Links(pid), confirmed, budget).map_err(failed)?;
    let places = |functions: BTreeMap<Role, u64>| {
        functions.into_iter().filter_map(|(role, at)| Some((role, at_work(pid, &regions, at)?))).collect()
    };
    let contexts = found.contexts.into_iter().map(|c| Context {
        address: c.address,
        device: c.device,
        device_name: c.device_name,
        functions: places(c.functions),
    });
    let qps = found.qps.into_iter().map(|q| Qp {
        address: q.address,
        context: q.context,
        number: q.number,
        state: q.state,
        qp_type: q.qp_type,
        send_cq: q.send_cq,
        recv_cq: q.recv_cq,
        functions: places(q.functions),
    });
    let cqs = found.cqs.into_iter().map(|c| Cq {
        address: c.address,
        context: c.context,
        handle: c.handle,
        cqe: c.cqe,
        functions: places(c.functions),
    });
    Ok(Found {
        pid,
        contexts: contexts.collect(),
        qps: qps.collect(),
        cqs: cqs.collect(),
        bytes_read: found.bytes_read,
        took: started.elapsed(),
        cut: found.cut,
    })
}

fn place(pid: u32, regions: &Regions, address: u64) -> Option<Place> {
    let region = regions.at(address).filter(|r| r.is_code)?;
    let offset = (address - region.start).checked_add(region.offset)?;
    Some(Place { file: region.file(pid), offset })
}

/// The same of a function that does something: libibverbs has functions that stand in a context for what its provider does
/// not have, and for all of it until the provider has filled it in. Others of its functions are what a provider goes
/// through (`ibv_cmd_req_notify_cq`).
fn at_work(pid: u32, regions: &Regions, address: u64) -> Option<Place> {
    place(pid, regions, address).filter(|place| !is_stand_in(place))
}

fn is_stand_in(place: &Place) -> bool {
    let name = place.file.path.file_name().and_then(|name| name.to_str());
    if !name.is_some_and(|name| name.starts_with("libibverbs.so")) {
        return false;
    }
    let mut code = [0; 16];
    let read = place.file.open().and_then(|file| file.read_at(&mut code, place.offset));
    read.is_ok_and(|n| answers_at_once(&code[..n.min(code.len())]))
}

/// `mov $errno,%eax; ret`, perhaps behind an `endbr64`.
fn answers_at_once(code: &[u8]) -> bool {
    let code = code.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]).unwrap_or(code);
    matches!(code, [0xb8, _, _, _, _, 0xc3, ..])
}

/// The place in a file of code at an address of a process; `None` where there is none.
pub fn code_at(pid: u32, address: u64) -> Option<Place> {
    let maps = File::open(format!("/proc/{pid}/maps")).ok()?;
    place(pid, &Regions::parse(BufReader::new(maps)).ok()?, address)
}

struct Links(u32);

impl Descriptors for Links {
    fn link(&self, fd: u32) -> Option<String> {
        let link = fs::read_link(format!("/proc/{}/fd/{fd}", self.0)).ok()?;
        link.to_str().map(str::to_owned)
    }
}

/// A function of the data path, to be probed once for all objects that use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Site {
    /// What it does.
    pub role: Role,
    /// Path of its file, in the process's mount namespace.
    pub path: PathBuf,
    /// Offset of its entry in the file.
    pub file_offset: u64,
    /// Device and inode number of the file, where it could be opened.
    pub file: Option<(u64, u64)>,
    /// Bytes from the entry to the instruction to probe.
    pub probe_delta: Option<u64>,
    /// What a hit costs.
    pub class: Option<entry::Class>,
    /// Why there, or why not.
    pub reason: String,
}

/// The functions all objects of a process go through, each once, and where probes would sit on this kernel.
pub fn sites(found: &Found, kernel: &Kernel) -> Vec<Site> {
    places(found, kernel).into_iter().map(|(site, _)| site).collect()
}

/// As [`sites`], each with the file it lies in.
pub fn places(found: &Found, kernel: &Kernel) -> Vec<(Site, MappedFile)> {
    let of_contexts = found.contexts.iter().map(|c| &c.functions);
    let of_objects = found.qps.iter().map(|q| &q.functions).chain(found.cqs.iter().map(|c| &c.functions));
    let mut beginnings = Beginnings::default();
    let mut all: BTreeMap<(Role, u64, &Path), (&MappedFile, Begins)> = BTreeMap::new();
    for functions in of_contexts.chain(of_objects) {
        let begins = beginnings.of_all(functions.values());
        for (role, place) in functions {
            let known = all.entry((*role, place.offset, &place.file.path)).or_insert((&place.file, begins));
            // One object that is beyond doubt is enough.
            known.1 = known.1.min(begins);
        }
    }
    all.into_iter()
        .map(|((role, offset, _), (file, begins))| (site(role, offset, file, begins, kernel), file.clone()))
        .collect()
}

fn site(role: Role, file_offset: u64, mapped: &MappedFile, begins: Begins, kernel: &Kernel) -> Site {
    /// Longer than any entry.
    const CODE: usize = 256;
    let mut code = vec![0; CODE];
    let opened = mapped.open().and_then(|file| {
        let read = file.read_at(&mut code, file_offset)?;
        code.truncate(read);
        identity(&file)
    });
    let path = mapped.path.clone();
    let unprobed = |reason: String, file| Site {
        role,
        path: path.clone(),
        file_offset,
        file,
        probe_delta: None,
        class: None,
        reason,
    };
    let file = match opened {
        Ok(file) => file,
        Err(error) => return unprobed(format!("cannot open the file: {error}"), None),
    };
    let doubt = match begins {
        Begins::Here => None,
        Begins::Unknown => Some("the file does not say where its functions begin"),
        Begins::NotHere => Some("what the object points to are no functions: it is gone"),
    };
    if let Some(doubt) = doubt {
        return unprobed(doubt.to_owned(), Some(file));
    }
    let entry =
        Entry { code: &code, offset: file_offset, arguments: role.arguments(), owner: Owner::Foreign };
    match entry::choose(&entry, kernel) {
        Ok(Choice { delta, class, reason }) => Site {
            role,
            path,
            file_offset,
            file: Some(file),
            probe_delta: Some(delta),
            class: Some(class),
            reason: reason.text().to_owned(),
        },
        Err(refusal) => unprobed(refusal.to_string(), Some(file)),
    }
}

#[cfg(test)]
mod tests {
    use object::{Object as _, ObjectSymbol as _};

    use super::*;

    #[test]
    fn a_process_without_verbs_has_none() {
        let found = find(std::process::id(), None, &Budget::default()).unwrap();
        assert!(found.contexts.is_empty() && found.qps.is_empty() && found.cqs.is_empty());
        assert!(found.bytes_read > 0);
    }

    #[test]
    fn a_function_that_answers_at_once_stands_in_for_one() {
        assert!(answers_at_once(&[0xb8, 0x5f, 0, 0, 0, 0xc3]));
        assert!(answers_at_once(&[0xf3, 0x0f, 0x1e, 0xfa, 0xb8, 0x5f, 0, 0, 0, 0xc3, 0x66]));
        // One that goes on, one that is cut short, none.
        assert!(!answers_at_once(&[0xb8, 0x5f, 0, 0, 0, 0x48, 0xc3]));
        assert!(!answers_at_once(&[0xb8, 0x5f, 0, 0, 0]) && !answers_at_once(&[]));
    }

    #[test]
    fn what_libibverbs_does_itself_for_a_provider_is_no_stand_in() {
        let path = fs::canonicalize("/usr/lib/x86_64-linux-gnu/libibverbs.so.1").expect("libibverbs");
        let data = fs::read(&path).expect("libibverbs");
        let file = object::File::parse(&*data).expect("an ELF file");
        let mapped = MappedFile { pid: std::process::id(), range: "0-0".to_owned(), path, deleted: false };
        let is_stand_in_at = |offset| is_stand_in(&Place { file: mapped.clone(), offset });
        for name in ["ibv_cmd_req_notify_cq", "ibv_cmd_poll_cq", "ibv_cmd_post_send"] {
            let symbol = file.dynamic_symbols().find(|symbol| symbol.name() == Ok(name)).expect("a function");
            // What is code stands in that file where it is mapped.
            assert!(!is_stand_in_at(symbol.address()), "{name}");
        }
        let eopnotsupp = [0xb8, 0x5f, 0, 0, 0, 0xc3];
        let stand_in = data.windows(6).position(|code| code == eopnotsupp).expect("one that stands in");
        assert!(is_stand_in_at(stand_in as u64));
    }

    #[test]
    fn a_process_that_is_gone_is_named() {
        let error = find(u32::MAX - 1, None, &Budget::default()).unwrap_err();
        assert_eq!(error.to_string(), format!("there is no process {}", u32::MAX - 1));
    }
}
