//! Memory registration.

use super::or_null;
use crate::abi::{consts::*, *};
use crate::device::context::DeviceContext;
use crate::engine::pacing;
use crate::object::key::Grant;
use crate::object::mr::Mr;
use crate::object::pd::Pd;
use crate::stats::ProcessCounter;
use crate::sys::clock;
use libc::{c_int, c_void};
use std::sync::atomic::Ordering::*;

const SUPPORTED: u32 = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
    | IBV_ACCESS_MW_BIND
    | IBV_ACCESS_ZERO_BASED
    | IBV_ACCESS_HUGETLB
    | IBV_ACCESS_OPTIONAL_RANGE;

/// Checks access flags as the kernel does.
///
/// # Errors
/// EOPNOTSUPP for on-demand paging, EINVAL for unknown flags and for remote writes without local ones.
pub fn check_access(access: u32) -> Result<(), i32> {
    let remote_writes = access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0;
    if access & IBV_ACCESS_ON_DEMAND != 0 {
        Err(libc::EOPNOTSUPP)
    } else if access & !SUPPORTED != 0 || remote_writes && access & IBV_ACCESS_LOCAL_WRITE == 0 {
        Err(libc::EINVAL)
    } else {
        Ok(())
    }
}

/// `ibv_reg_mr_iova2`, to which all other registrations come.
///
/// # Safety
/// A live PD of ours.
pub unsafe fn reg_mr(pd: *mut ibv_pd, addr: *mut c_void, len: usize, iova: u64, access: u32) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    or_null(unsafe { register(pd, addr, len, iova, access) })
}

/// # Safety
/// As [`reg_mr`].
unsafe fn register(
    ibv: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: u32,
) -> Result<*mut ibv_mr, i32> {
    // SAFETY: the caller's promise.
    let (pd, ctx) = unsafe { (Pd::of(ibv), DeviceContext::of((*ibv).context)) };
    let process = ctx.alive()?;
    check_access(access)?;
    let iova = if access & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { iova };
    if len == 0 || (addr as usize).checked_add(len).is_none() || iova.checked_add(len as u64).is_none() {
        return Err(libc::EINVAL);
    }
    let start = clock::now_ns();
    populate(addr, len, access)?;
    let index = process.keys.reserve()?;
    let key = index << 8 | u32::from(next_tag(index));
    process.keys.open(key, grant(pd, addr, len, iova, access));
    if let Some(pacer) = &process.pacer {
        pacing::take_time(start, pacer.register(key, addr as u64, len as u64));
    }
    pd.users.fetch_add(1, AcqRel);
    process.stats.add(ProcessCounter::MrsRegistered, 1);
    process.stats.add(ProcessCounter::MrBytes, len as u64);
    let mr = Mr {
        ibv: ibv_mr {
            context: pd.ibv.context,
            pd: ibv,
            addr,
            length: len,
            handle: index,
            lkey: key,
            rkey: key,
        },
        iova,
        access,
    };
    Ok(Box::into_raw(Box::new(mr)).cast())
}

fn grant(pd: &Pd, addr: *mut c_void, len: usize, iova: u64, access: u32) -> Grant {
    Grant { base: addr as u64, iova, len: len as u64, access, pd: pd.id, qpn: 0, parent: 0 }
}

/// The low byte of a key: differs between successive users of an index, so that a stale key is noticed.
fn next_tag(index: u32) -> u8 {
    use std::sync::atomic::AtomicU32;
    static COUNT: AtomicU32 = AtomicU32::new(0);
    (COUNT.fetch_add(1, Relaxed).wrapping_mul(37) ^ index) as u8
}

/// Makes the pages present, as pinning does: registration costs what touching costs, and fails where memory is missing or
/// may not be written.
///
/// # Errors
/// EFAULT, as the kernel's pinning; ENOMEM when there is no memory.
fn populate(addr: *mut c_void, len: usize, access: u32) -> Result<(), i32> {
    const PAGE: usize = 4096;
    let start = addr as usize & !(PAGE - 1);
    let end = (addr as usize + len).checked_next_multiple_of(PAGE).ok_or(libc::EINVAL)?;
    let writes = access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0;
    let advice = if writes { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: advice on the program's own range; nothing is changed but what is present.
    if unsafe { libc::madvise(start as *mut c_void, end - start, advice) } == 0 {
        return Ok(());
    }
    // Linux before 5.14 does not know this advice: there, at least see that the range is mapped. Otherwise unmapped,
    // inaccessible and unwritable memory each have an error of their own here; pinning says EFAULT for all.
    if populate_is_known() { Err(libc::EFAULT) } else { mapped(start, end - start) }
}

fn populate_is_known() -> bool {
    static KNOWN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *KNOWN.get_or_init(|| {
        // SAFETY: advice on an empty range: only says whether it is known.
        unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_POPULATE_READ) == 0 }
    })
}

fn mapped(start: usize, len: usize) -> Result<(), i32> {
    // SAFETY: a flush of nothing; fails with ENOMEM where the range is not mapped.
    let r = unsafe { libc::msync(start as *mut c_void, len, libc::MS_ASYNC) };
    if r == 0 { Ok(()) } else { Err(libc::EFAULT) }
}

/// `ibv_dereg_mr`: EBUSY while memory windows are bound to it.
///
/// # Safety
/// A live MR of ours.
pub unsafe fn dereg_mr(ibv: *mut ibv_mr) -> c_int {
    // SAFETY: the caller's promise.
    let (mr, ctx) = unsafe { (Mr::of(ibv), DeviceContext::of((*ibv).context)) };
    let Ok(process) = ctx.alive() else { return libc::EIO };
    let Some(entry) = process.keys.entry(mr.ibv.lkey) else { return libc::EINVAL };
    if entry.windows().load(Acquire) != 0 {
        return libc::EBUSY;
    }
    if let Some(pacer) = &process.pacer {
        let start = clock::now_ns();
        let span = pacer.deregister(mr.ibv.lkey, mr.ibv.addr as u64, mr.ibv.length as u64);
        pacing::take_time(start, span);
    }
    if process.keys.close(mr.ibv.lkey) {
        process.keys.unreserve(mr.ibv.handle);
    }
    process.stats.add(ProcessCounter::MrsDeregistered, 1);
    // SAFETY: the PD lives as long as its MRs; the box `register` leaked.
    unsafe {
        Pd::of(mr.ibv.pd).users.fetch_sub(1, AcqRel);
        drop(Box::from_raw(ibv.cast::<Mr>()));
    }
    0
}

/// `ibv_rereg_mr`: 0, or an `IBV_REREG_MR_ERR` code.
///
/// # Safety
/// A live MR of ours, and a live PD where one is to be set.
pub unsafe fn rereg_mr(
    ibv: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let (mr, ctx) = unsafe { (Mr::of(ibv), DeviceContext::of((*ibv).context)) };
    // SAFETY: as above.
    match unsafe { change(mr, ctx, flags, pd, addr, len, access as u32) } {
        Ok(()) => 0,
        Err(errno) => {
            super::set_errno(errno);
            IBV_REREG_MR_ERR_INPUT
        }
    }
}

/// # Safety
/// As [`rereg_mr`].
unsafe fn change(
    mr: &mut Mr,
    ctx: &DeviceContext,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    access: u32,
) -> Result<(), i32> {
    let process = ctx.alive()?;
    let all = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    if flags == 0 || flags & !all != 0 {
        return Err(libc::EINVAL);
    }
    let new_access = if flags & IBV_REREG_MR_CHANGE_ACCESS != 0 { access } else { mr.access };
    check_access(new_access)?;
    let (new_addr, new_len) = if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
        if len == 0 || (addr as usize).checked_add(len).is_none() {
            return Err(libc::EINVAL);
        }
        populate(addr, len, new_access)?;
        (addr, len)
    } else {
        (mr.ibv.addr, mr.ibv.length)
    };
    let new_pd = if flags & IBV_REREG_MR_CHANGE_PD != 0 { pd } else { mr.ibv.pd };
    if new_pd.is_null() {
        return Err(libc::EINVAL);
    }
    let busy = process.keys.entry(mr.ibv.lkey).is_none_or(|e| e.windows().load(Acquire) != 0);
    if busy {
        return Err(libc::EBUSY);
    }
    process.keys.close(mr.ibv.lkey);
    // SAFETY: the caller's promise.
    let (old, new) = unsafe { (Pd::of(mr.ibv.pd), Pd::of(new_pd)) };
    new.users.fetch_add(1, AcqRel);
    old.users.fetch_sub(1, AcqRel);
    if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
        mr.iova = if new_access & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { new_addr as u64 };
    }
    if let Some(pacer) = &process.pacer {
        let start = clock::now_ns();
        let old = pacer.deregister(mr.ibv.lkey, mr.ibv.addr as u64, mr.ibv.length as u64);
        let new = pacer.register(mr.ibv.lkey, new_addr as u64, new_len as u64);
        pacing::take_time(start, old + new);
    }
    (mr.ibv.addr, mr.ibv.length, mr.ibv.pd, mr.access) = (new_addr, new_len, new_pd, new_access);
    process.keys.open(mr.ibv.lkey, grant(new, new_addr, new_len, mr.iova, new_access));
    process.stats.add(ProcessCounter::MrsReregistered, 1);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_flags_are_checked_as_the_kernel_does() {
        assert_eq!(check_access(0), Ok(()));
        assert_eq!(check_access(IBV_ACCESS_REMOTE_WRITE), Err(libc::EINVAL));
        assert_eq!(check_access(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE), Ok(()));
        assert_eq!(check_access(IBV_ACCESS_ON_DEMAND), Err(libc::EOPNOTSUPP));
        assert_eq!(check_access(1 << 12), Err(libc::EINVAL));
        assert_eq!(check_access(1 << 20), Ok(()), "relaxed ordering is optional");
    }

    #[test]
    fn memory_that_is_not_there_or_not_writable_is_refused() {
        let text = memory_that_is_not_there_or_not_writable_is_refused as *const () as *mut c_void;
        assert_eq!(populate(text, 1, IBV_ACCESS_LOCAL_WRITE), Err(libc::EFAULT));
        assert_eq!(populate(text, 1, 0), Ok(()));
        assert_eq!(populate(4096 as *mut c_void, 4096, 0), Err(libc::EFAULT));
        let v = vec![0u8; 10_000];
        assert_eq!(populate(v.as_ptr().cast_mut().cast(), v.len(), IBV_ACCESS_LOCAL_WRITE), Ok(()));
    }
}
