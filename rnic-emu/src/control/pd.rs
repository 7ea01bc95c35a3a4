//! Protection domains, thread domains, parent domains.

use super::or_null;
use crate::abi::*;
use crate::device::context::DeviceContext;
use crate::object::pd::{Pd, Td};
use crate::stats::ProcessCounter;
use libc::c_int;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// `ibv_alloc_pd`.
///
/// # Safety
/// A live context of ours.
pub unsafe fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller's promise.
    let ctx = unsafe { DeviceContext::of(context) };
    or_null(ctx.alive().map(|process| {
        process.stats.add(ProcessCounter::PdsAllocated, 1);
        let handle = process.handle();
        new_pd(context, handle, handle, None)
    }))
}

fn new_pd(context: *mut ibv_context, handle: u32, id: u32, below: Option<&'static Pd>) -> *mut ibv_pd {
    let pd = Pd { ibv: ibv_pd { context, handle }, id, users: AtomicU32::new(0), below };
    Box::into_raw(Box::new(pd)).cast()
}

/// `ibv_dealloc_pd`: EBUSY while anything lives in it.
///
/// # Safety
/// A live PD of ours that nobody uses any more.
pub unsafe fn dealloc_pd(ibv: *mut ibv_pd) -> c_int {
    // SAFETY: the caller's promise.
    let pd = unsafe { Pd::of(ibv) };
    if pd.users.load(Acquire) != 0 {
        return libc::EBUSY;
    }
    if let Some(below) = pd.below {
        below.users.fetch_sub(1, AcqRel);
    }
    // SAFETY: the box `new_pd` leaked, used by nobody.
    drop(unsafe { Box::from_raw(ibv.cast::<Pd>()) });
    0
}

/// `ibv_alloc_td`.
///
/// # Safety
/// A live context of ours and a valid attribute.
pub unsafe extern "C" fn alloc_td(context: *mut ibv_context, comp_mask: *mut u32) -> *mut ibv_td {
    // SAFETY: the caller's promise.
    let mask = unsafe { *comp_mask };
    or_null(if mask != 0 {
        Err(libc::EINVAL)
    } else {
        Ok(Box::into_raw(Box::new(Td { ibv: ibv_td { context }, users: AtomicU32::new(0) })).cast())
    })
}

/// `ibv_dealloc_td`.
///
/// # Safety
/// A live TD of ours.
pub unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: the caller's promise: the box `alloc_td` leaked.
    drop(unsafe { Box::from_raw(td.cast::<Td>()) });
    0
}

/// `ibv_alloc_parent_domain`: a PD whose objects belong to the PD below. Allocators are not called: the emulated queues
/// are no memory a device would read.
///
/// # Safety
/// A live context of ours and a valid attribute.
pub unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const ALLOCATORS: u32 = 1;
    const PD_CONTEXT: u32 = 2;
    // SAFETY: the caller's promise.
    let (attr, ctx) = unsafe { (&*attr, DeviceContext::of(context)) };
    if attr.pd.is_null() || attr.comp_mask & !(ALLOCATORS | PD_CONTEXT) != 0 {
        return or_null(Err(libc::EINVAL));
    }
    // SAFETY: a live PD of ours.
    let below = unsafe { Pd::of(attr.pd) };
    or_null(ctx.alive().map(|process| {
        below.users.fetch_add(1, AcqRel);
        new_pd(context, process.handle(), below.id, Some(below))
    }))
}
