//! Queries of the device and its port.

use crate::abi::{consts::*, *};
use crate::device::{attr, context::DeviceContext, gid};
use crate::sys::clock;
use libc::{c_int, c_uint};

/// `ibv_query_device`.
///
/// # Safety
/// A live context of ours and a place for the answer.
pub unsafe fn query_device(context: *mut ibv_context, out: *mut ibv_device_attr) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { out.write(attr::device(DeviceContext::of(context))) };
    0
}

/// `ibv_query_device_ex`: writes at most `size` bytes, as older programs have a shorter struct.
///
/// # Safety
/// A live context of ours and `size` bytes for the answer.
pub unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const c_uint,
    out: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if input.as_ref().is_some_and(|comp_mask| *comp_mask != 0) || size < size_of::<ibv_device_attr>() {
            return libc::EINVAL;
        }
        put(&attr::device_ex(DeviceContext::of(context)), out.cast(), size);
    }
    0
}

/// `ibv_query_port` of current headers: writes at most `size` bytes.
///
/// # Safety
/// A live context of ours and `size` bytes for the answer.
pub unsafe extern "C" fn query_port(
    _context: *mut ibv_context,
    port: u8,
    out: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: the caller's promise.
    unsafe { put(&attr::port(), out.cast(), size) };
    0
}

/// # Safety
/// `out` has room for `size` bytes.
unsafe fn put<T>(value: &T, out: *mut u8, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: the caller's promise; a newer program's further fields are zeroed.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), out, known);
        std::ptr::write_bytes(out.add(known), 0, size - known);
    }
}

/// `ibv_query_rt_values_ex`: the device's clock is the host's monotonic one.
///
/// # Safety
/// A place for the answer.
pub unsafe extern "C" fn query_rt_values(_context: *mut ibv_context, out: *mut ibv_values_ex) -> c_int {
    const RAW_CLOCK: u32 = 1;
    // SAFETY: the caller's promise.
    let out = unsafe { &mut *out };
    if out.comp_mask & RAW_CLOCK != 0 {
        let now = clock::now_ns();
        out.raw_clock.tv_sec = (now / 1_000_000_000) as libc::time_t;
        out.raw_clock.tv_nsec = (now % 1_000_000_000) as libc::c_long;
    }
    out.comp_mask &= RAW_CLOCK;
    0
}

/// `ibv_query_gid`; -1 with `errno` for an entry that does not exist.
///
/// # Safety
/// A live context of ours and a place for the answer.
pub unsafe fn query_gid(context: *mut ibv_context, port: u8, index: c_int, out: *mut ibv_gid) -> c_int {
    if port != 1 || index != 0 {
        super::set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the caller's promise.
    unsafe { out.write(gid::of_device(DeviceContext::of(context).device)) };
    0
}

/// `ibv_query_gid_ex` and, with room for one, `ibv_query_gid_table`.
///
/// # Safety
/// A live context of ours and `size` bytes for the answer.
pub unsafe fn query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    if port != 1 || flags != 0 {
        return libc::EINVAL;
    }
    if index != 0 {
        return libc::ENODATA;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let entry = ibv_gid_entry {
            gid: gid::of_device(DeviceContext::of(context).device),
            gid_index: 0,
            port_num: 1,
            gid_type: IBV_GID_TYPE_ROCE_V2,
            ndev_ifindex: 0,
        };
        put(&entry, out.cast(), size);
    }
    0
}

/// `ibv_query_gid_table`: how many entries were written, or a negative errno value.
///
/// # Safety
/// A live context of ours and room for `max` entries of `size` bytes.
pub unsafe fn query_gid_table(
    context: *mut ibv_context,
    out: *mut ibv_gid_entry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    if flags != 0 || max == 0 {
        return -(libc::EINVAL as isize);
    }
    // SAFETY: the caller's promise.
    unsafe { query_gid_ex(context, 1, 0, out, 0, size) };
    1
}

/// `ibv_query_pkey`: the one partition key, the default one.
///
/// # Safety
/// A place for the answer.
pub unsafe fn query_pkey(port: u8, index: c_int, out: *mut u16) -> c_int {
    if port != 1 || index != 0 {
        super::set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the caller's promise.
    unsafe { out.write(0xffff) };
    0
}

/// The private export `ibv_query_gid_type`.
///
/// # Safety
/// A place for the answer.
pub unsafe fn query_gid_type(port: u8, index: c_uint, out: *mut c_uint) -> c_int {
    if port != 1 || index != 0 {
        super::set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the caller's promise.
    unsafe { out.write(IBV_GID_TYPE_SYSFS_ROCE_V2) };
    0
}
