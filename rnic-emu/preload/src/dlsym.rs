//! Programs that open libibverbs with `dlopen` and look its functions up on the handle.
//!
//! Preloading does not reach them: the handle leads straight to libibverbs. So `dlsym` and `dlvsym` are shadowed, too,
//! and answer with ours where libibverbs' own function would have been found. Everything else is passed on by a jump,
//! not a call: `RTLD_NEXT` and `RTLD_DEFAULT` look at who asked, which must stay the program.

use libc::{c_char, c_void};
use std::arch::naked_asm;
use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::*};

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

static REAL_DLSYM: AtomicUsize = AtomicUsize::new(0);
static REAL_DLVSYM: AtomicUsize = AtomicUsize::new(0);

/// The C library's own `dlsym`, on a handle or after this library.
///
/// # Safety
/// As `dlsym`.
pub unsafe fn real(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    match address(&REAL_DLSYM, c"dlsym") {
        0 => std::ptr::null_mut(),
        // SAFETY: the C library's function of this type.
        at => unsafe { std::mem::transmute::<usize, Dlsym>(at)(handle, name) },
    }
}

fn address(cell: &AtomicUsize, name: &CStr) -> usize {
    match cell.load(Acquire) {
        0 => {
            let at = crate::elf::in_c_library(name).unwrap_or(0);
            cell.store(at, Release);
            at
        }
        at => at,
    }
}

/// Looks a symbol up, as the C library does.
///
/// # Safety
/// As `dlsym`.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    naked_asm!(
        "push rdi", "push rsi", "sub rsp, 8",
        "call {ours}",
        "add rsp, 8", "pop rsi", "pop rdi",
        // rax: where to go on; rdx: what to return if nowhere.
        "test rax, rax", "jz 2f", "jmp rax",
        "2: mov rax, rdx", "ret",
        ours = sym decide_dlsym,
    )
}

/// Looks a symbol of one version up, as the C library does.
///
/// # Safety
/// As `dlvsym`.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    naked_asm!(
        "push rdi", "push rsi", "push rdx",
        "call {ours}",
        "mov rcx, rdx",
        "pop rdx", "pop rsi", "pop rdi",
        "test rax, rax", "jz 2f", "jmp rax",
        "2: mov rax, rcx", "ret",
        ours = sym decide_dlvsym,
    )
}

/// Where a lookup goes on, or what it yields.
#[repr(C)]
struct Decision {
    jump_to: usize,
    or_return: usize,
}

extern "C" fn decide_dlsym(handle: *mut c_void, name: *const c_char) -> Decision {
    let jump_to = address(&REAL_DLSYM, c"dlsym");
    // SAFETY: the program's arguments of `dlsym`.
    let theirs = || unsafe { real(handle, name) };
    decide(handle, name, jump_to, theirs)
}

extern "C" fn decide_dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> Decision {
    let jump_to = address(&REAL_DLVSYM, c"dlvsym");
    // SAFETY: the C library's function of this type, and the program's arguments.
    let theirs = || unsafe {
        if jump_to == 0 {
            return std::ptr::null_mut();
        }
        std::mem::transmute::<usize, Dlvsym>(jump_to)(handle, name, version)
    };
    decide(handle, name, jump_to, theirs)
}

fn decide(
    handle: *mut c_void,
    name: *const c_char,
    jump_to: usize,
    theirs: impl FnOnce() -> *mut c_void,
) -> Decision {
    let pass_on = Decision { jump_to, or_return: 0 };
    // Pseudo-handles find ours by themselves where they should, and a layer on top of us asks RTLD_NEXT for what is
    // below *it*.
    if handle.is_null() || handle == libc::RTLD_NEXT || name.is_null() {
        return pass_on;
    }
    // SAFETY: the program's C string.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    if !name.starts_with(b"ibv_") && !name.starts_with(b"_ibv_") {
        return pass_on;
    }
    let ours = std::str::from_utf8(name).ok().and_then(|n| exports().get(n)).copied();
    match ours {
        // Only where the library asked has the function: a program may probe for newer ones.
        Some(ours) if !theirs().is_null() => Decision { jump_to: 0, or_return: ours },
        _ => pass_on,
    }
}

fn exports() -> &'static HashMap<&'static str, usize> {
    static ALL: OnceLock<HashMap<&'static str, usize>> = OnceLock::new();
    ALL.get_or_init(|| crate::control::table().into_iter().chain(crate::device::all()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lookup_on_libibverbs_finds_ours_and_everything_else_is_passed_on() {
        // SAFETY: C strings, and functions of the C library's signatures.
        unsafe {
            let libc_handle = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY);
            assert_eq!(dlsym(libc_handle, c"getpid".as_ptr()) as usize, libc::getpid as *const () as usize);
            assert!(dlsym(libc_handle, c"ibv_open_device".as_ptr()).is_null(), "not in that library");
            assert!(!dlsym(std::ptr::null_mut(), c"getpid".as_ptr()).is_null());
            let verbs = libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
            if verbs.is_null() {
                return eprintln!("not run: libibverbs is not installed");
            }
            let ours = crate::device::ibv_get_device_list as *const () as usize;
            assert_eq!(dlsym(verbs, c"ibv_get_device_list".as_ptr()) as usize, ours);
            let versioned = dlvsym(verbs, c"ibv_get_device_list".as_ptr(), c"IBVERBS_1.1".as_ptr());
            assert_eq!(versioned as usize, ours);
            assert!(dlvsym(verbs, c"ibv_get_device_list".as_ptr(), c"IBVERBS_9.9".as_ptr()).is_null());
            assert!(!dlsym(verbs, c"ibv_wc_status_str".as_ptr()).is_null(), "not ours: libibverbs' own");
        }
    }
}
