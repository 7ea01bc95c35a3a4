//! Exports that deal with devices before one is open: the list, with ours in front of the machine's own.

use crate::dispatch::{exports, null};
use crate::next::Next;
use emu::abi::{ibv_context, ibv_device};
use emu::device::{context::DeviceContext, gid, list};
use libc::{c_char, c_int, c_void};
use std::ffi::CStr;

type Devices = *mut *mut ibv_device;

/// Words before the list a program sees: the machine's own list, to be freed with it.
const HIDDEN: usize = 1;

/// Whether a device is ours.
fn owns_device(device: *mut ibv_device) -> bool {
    list::index_of(device).is_some()
}

fn index(device: *mut ibv_device) -> usize {
    list::index_of(device).unwrap_or(0)
}

fn name(device: *mut ibv_device) -> &'static CStr {
    list::devices().get(index(device)).map_or(c"", |d| d.name())
}

exports! {
    /// The name of a device.
    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char where owns_device(device), else std::ptr::null()
        => name(device).as_ptr();
    /// Its EUI-64, in network byte order.
    fn ibv_get_device_guid(device: *mut ibv_device) -> u64 where owns_device(device), else 0
        => gid::guid(index(device));
    /// Its index in the kernel: none.
    fn ibv_get_device_index(device: *mut ibv_device) -> c_int where owns_device(device), else -1 => -1;
    /// Opens it.
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context where owns_device(device), else null()
        => emu::control::or_null(DeviceContext::open(index(device)));
    /// Reads a sysfs file of a device: emulated ones have none.
    fn ibv_read_ibdev_sysfs_file(
        buf: *mut c_char, size: usize, device: *mut c_void, format: *const c_char, a: usize, b: usize, d: usize
    ) -> c_int where owns_device(device.cast()), else -1 => {
        emu::control::set_errno(libc::ENOENT);
        -1
    };
}

static NEXT_LIST: Next = Next::of(c"ibv_get_device_list");
static NEXT_FREE: Next = Next::of(c"ibv_free_device_list");

/// All devices: the emulated ones first, then the machine's own. Where the kernel has no RDMA at all, and libibverbs
/// therefore answers ENOSYS, there are still the emulated ones.
///
/// # Safety
/// As the function of the same name in libibverbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(num: *mut c_int) -> Devices {
    let ours = list::devices();
    let (theirs, n) = next_list();
    // SAFETY: room for the hidden word, all devices and the terminating null.
    unsafe {
        let block = libc::calloc(HIDDEN + ours.len() + n + 1, size_of::<usize>()).cast::<*mut ibv_device>();
        if block.is_null() {
            return null();
        }
        block.write(theirs.cast());
        let seen = block.add(HIDDEN);
        for (i, device) in ours.iter().enumerate() {
            seen.add(i).write(device.ibv());
        }
        for i in 0..n {
            seen.add(ours.len() + i).write(*theirs.add(i));
        }
        if !num.is_null() {
            num.write((ours.len() + n) as c_int);
        }
        seen
    }
}

fn next_list() -> (Devices, usize) {
    let next = NEXT_LIST.get();
    if next.is_null() {
        return (std::ptr::null_mut(), 0);
    }
    let mut n = 0;
    // SAFETY: libibverbs' own function of this name.
    let theirs = unsafe {
        let next: unsafe extern "C" fn(*mut c_int) -> Devices = std::mem::transmute(next);
        next(&mut n)
    };
    // A kernel without RDMA is no error here, and must not look like one to a program that prints errno.
    if theirs.is_null() { (theirs, 0) } else { (theirs, n.max(0) as usize) }
}

/// Frees a list.
///
/// # Safety
/// A list from [`ibv_get_device_list`], or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: Devices) {
    if list.is_null() {
        return;
    }
    // SAFETY: the caller's promise: the hidden word lies before the list.
    unsafe {
        let block = list.sub(HIDDEN);
        let theirs: Devices = (*block).cast();
        let next = NEXT_FREE.get();
        if !theirs.is_null() && !next.is_null() {
            let next: unsafe extern "C" fn(Devices) = std::mem::transmute(next);
            next(theirs);
        }
        libc::free(block.cast());
    }
}

/// Name and address of every export here.
pub fn all() -> Vec<(&'static str, usize)> {
    let mut all = table();
    all.push(("ibv_get_device_list", ibv_get_device_list as *const () as usize));
    all.push(("ibv_free_device_list", ibv_free_device_list as *const () as usize));
    all
}
