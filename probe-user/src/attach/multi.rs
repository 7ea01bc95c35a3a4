//! Many places of a file with one link (Linux 6.6): attached and detached in one go, where with a link per place the
//! kernel waits about 80 ms for each.
//!
//! The kernel wants such programs loaded for this way of attaching, which aya does not offer: the object is parsed a
//! second time, bound to the maps that aya has made, and loaded here, with its types: of programs that hand functions of
//! theirs to the kernel (`bpf_loop`) it wants to know which these are.

use std::collections::HashSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::thread;

use aya::Ebpf;
use aya_obj::Object;
use aya_obj::generated::bpf_func_info;

use super::perf::Link;
use super::program::{LibrarySet, Pair};
use super::{AttachError, LoadError};

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_BTF_LOAD: libc::c_int = 18;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_PROG_TYPE_KPROBE: u32 = 2;
const BPF_TRACE_UPROBE_MULTI: u32 = 48;
const BPF_F_UPROBE_MULTI_RETURN: u32 = 1;

/// `union bpf_attr` for `BPF_BTF_LOAD`.
#[repr(C)]
#[derive(Default)]
struct TypesAttr {
    btf: u64,
    log_buf: u64,
    btf_size: u32,
    log_size: u32,
}

/// `union bpf_attr` for `BPF_PROG_LOAD`, up to `func_info_cnt`.
#[repr(C)]
#[derive(Default)]
struct LoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
    prog_btf_fd: u32,
    func_info_rec_size: u32,
    func_info: u64,
    func_info_cnt: u32,
    zero: u32,
}

/// `union bpf_attr` for `BPF_LINK_CREATE` of many uprobes.
#[repr(C)]
#[derive(Default)]
struct LinkCreateAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    ref_ctr_offsets: u64,
    cookies: u64,
    cnt: u32,
    multi_flags: u32,
    pid: u32,
    zero: u32,
}

/// An object whose programs can be loaded for attaching to many places.
pub struct Many {
    object: Object,
    /// Its types, where the kernel took them.
    types: Option<OwnedFd>,
}

impl std::fmt::Debug for Many {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Many").finish_non_exhaustive()
    }
}

impl Many {
    /// Loads a program by its name.
    ///
    /// # Errors
    /// [`LoadError::Broken`] with the kernel's answer.
    pub fn load(&self, name: &str) -> Result<OwnedFd, LoadError> {
        load_program(&self.object, self.types.as_ref(), name)
    }
}

/// Loads the library programs for attaching to many places, on the maps of a loaded object.
///
/// # Errors
/// On kernels before 6.6, which do not know this way of attaching.
pub fn load(object: &[u8], ebpf: &Ebpf) -> Result<(LibrarySet, Many), LoadError> {
    let broken = |what: &dyn std::fmt::Display| LoadError::Broken(what.to_string());
    let mut parsed = Object::parse(object).map_err(|error| broken(&error))?;
    let types = load_types(&mut parsed);
    let mut bound = Vec::new();
    for (name, map) in parsed.maps.clone() {
        let made = ebpf.map(&name).ok_or_else(|| broken(&format!("no map '{name}'")))?;
        bound.push((name, fd_of(made).ok_or_else(|| broken(&"a map of unknown kind"))?, map));
    }
    let text: HashSet<usize> = parsed.functions.keys().map(|(section, _)| *section).collect();
    parsed
        .relocate_maps(bound.iter().map(|(name, fd, map)| (name.as_str(), *fd, map)), &text)
        .map_err(|error| broken(&error))?;
    parsed.relocate_calls(&text).map_err(|error| broken(&error))?;
    let many = Many { object: parsed, types };
    if !is_known(many.load(SMALL)?.as_fd()) {
        return Err(broken(&"this kernel attaches place by place"));
    }
    // The kernel takes most of the time until probes are in place to verify these: side by side.
    let load = |name: &'static str| {
        let many = &many;
        move || many.load(name)
    };
    let [enter, leave, exit] = thread::scope(|scope| {
        ["library_enter", "library_return", "library_exit"].map(|name| scope.spawn(load(name))).map(
            |thread| thread.join().unwrap_or_else(|_| Err(broken(&"a thread that loads a program ended"))),
        )
    });
    Ok((LibrarySet { pair: Pair { enter: enter?, leave: leave? }, exit: exit? }, many))
}

/// A program that is verified at once.
const SMALL: &str = "wr_abort_enter";

/// Whether the kernel knows this way of attaching. Older ones load the program all the same, and refuse its link with
/// "invalid argument" before they look at anything; newer ones find that a folder takes no probe.
fn is_known(program: BorrowedFd<'_>) -> bool {
    let refused = attach_file(program, "/", &[(0, 0)], false).err();
    refused.and_then(|error| error.source.raw_os_error()) == Some(libc::EBADF)
}

/// Attaches a program at many places of a file (offset and cookie), for all processes.
///
/// # Errors
/// When any of the places takes no probe: then none has one.
pub fn attach_file(
    program: BorrowedFd<'_>,
    path: &str,
    places: &[(u64, u64)],
    returns: bool,
) -> Result<Link, AttachError> {
    const STEP: &str = "bpf(BPF_LINK_CREATE) of many uprobes";
    let invalid = || AttachError { step: STEP, source: io::ErrorKind::InvalidInput.into() };
    let path = CString::new(path).map_err(|_| invalid())?;
    let (offsets, cookies): (Vec<u64>, Vec<u64>) = places.iter().copied().unzip();
    let attr = LinkCreateAttr {
        prog_fd: program.as_raw_fd().cast_unsigned(),
        attach_type: BPF_TRACE_UPROBE_MULTI,
        path: path.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        cookies: cookies.as_ptr() as u64,
        cnt: u32::try_from(offsets.len()).map_err(|_| invalid())?,
        multi_flags: if returns { BPF_F_UPROBE_MULTI_RETURN } else { 0 },
        ..LinkCreateAttr::default()
    };
    bpf(BPF_LINK_CREATE, &attr).map(Link::from).map_err(|source| AttachError { step: STEP, source })
}

fn fd_of(map: &aya::maps::Map) -> Option<i32> {
    use aya::maps::Map;
    let data = match map {
        Map::Array(data) | Map::HashMap(data) | Map::PerCpuArray(data) | Map::RingBuf(data) => data,
        _ => return None,
    };
    Some(data.fd().as_fd().as_raw_fd())
}

/// Hands the kernel the types of an object; `None` where it does not take them: then programs without functions of their
/// own can still be loaded.
fn load_types(object: &mut Object) -> Option<OwnedFd> {
    let types = object.fixup_and_sanitize_btf(aya::features().btf()?).ok()??.to_bytes();
    let attr = TypesAttr {
        btf: types.as_ptr() as u64,
        btf_size: u32::try_from(types.len()).ok()?,
        ..TypesAttr::default()
    };
    bpf(BPF_BTF_LOAD, &attr).ok()
}

fn load_program(object: &Object, types: Option<&OwnedFd>, name: &str) -> Result<OwnedFd, LoadError> {
    let broken = |what: String| LoadError::Broken(what);
    let program = object.programs.get(name).ok_or_else(|| broken(format!("no program '{name}'")))?;
    let function = object
        .functions
        .get(&program.function_key())
        .ok_or_else(|| broken(format!("program '{name}' has no code")))?;
    let mut prog_name = [0; 16];
    // The kernel wants a zero at the end.
    for (to, from) in prog_name.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    let functions = types.map(|types| (types, &function.func_info.func_info));
    let attr = LoadAttr {
        prog_btf_fd: functions.map_or(0, |(types, _)| types.as_raw_fd().cast_unsigned()),
        func_info_rec_size: functions.map_or(0, |_| size_of::<bpf_func_info>() as u32),
        func_info: functions.map_or(0, |(_, all)| all.as_ptr() as u64),
        func_info_cnt: functions.map_or(0, |(_, all)| u32::try_from(all.len()).unwrap_or(0)),
        prog_type: BPF_PROG_TYPE_KPROBE,
        insn_cnt: u32::try_from(function.instructions.len()).unwrap_or(u32::MAX),
        insns: function.instructions.as_ptr() as u64,
        license: program.license.as_ptr() as u64,
        prog_name,
        expected_attach_type: BPF_TRACE_UPROBE_MULTI,
        ..LoadAttr::default()
    };
    bpf(BPF_PROG_LOAD, &attr)
        .map_err(|error| broken(format!("cannot load '{name}' for many places: {error}")))
}

fn bpf<T>(command: libc::c_int, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: the attribute is as long as said, and what it points to outlives the call, which only reads.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attr), size_of::<T>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just returned this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
