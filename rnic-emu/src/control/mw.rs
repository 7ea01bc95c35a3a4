//! Memory windows.

use super::or_null;
use crate::abi::{consts::*, *};
use crate::device::context::DeviceContext;
use crate::engine::local_ops;
use crate::object::pd::Pd;
use crate::post;
use crate::stats::ProcessCounter;
use libc::c_int;
use std::sync::atomic::Ordering::*;

/// `ibv_alloc_mw`.
///
/// # Safety
/// A live PD of ours.
pub unsafe extern "C" fn alloc_mw(ibv: *mut ibv_pd, kind: u32) -> *mut ibv_mw {
    // SAFETY: the caller's promise.
    let (pd, ctx) = unsafe { (Pd::of(ibv), DeviceContext::of((*ibv).context)) };
    or_null(ctx.alive().and_then(|process| {
        if kind != IBV_MW_TYPE_1 && kind != IBV_MW_TYPE_2 {
            return Err(libc::EINVAL);
        }
        let index = process.keys.reserve()?;
        pd.users.fetch_add(1, AcqRel);
        process.stats.add(ProcessCounter::MwsAllocated, 1);
        let mw = ibv_mw { context: pd.ibv.context, pd: ibv, rkey: index << 8, handle: index, kind };
        Ok(Box::into_raw(Box::new(mw)))
    }))
}

/// `ibv_dealloc_mw`.
///
/// # Safety
/// A live window of ours.
pub unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller's promise.
    let (window, ctx) = unsafe { (&*mw, DeviceContext::of((*mw).context)) };
    let Ok(process) = ctx.alive() else { return libc::EIO };
    // Not by the window's own key: after a binding that failed, that is not the one that opens it.
    let key = process.keys.opening(window.handle);
    let grant = process.keys.pin(key).map(|p| p.grant());
    if let Some(grant) = grant {
        local_ops::unbind(process, key, &grant);
    }
    process.keys.unreserve(window.handle);
    // SAFETY: the PD lives as long as its windows; the box `alloc_mw` leaked.
    unsafe {
        Pd::of(window.pd).users.fetch_sub(1, AcqRel);
        drop(Box::from_raw(mw));
    }
    0
}

/// `ibv_bind_mw`: posts the binding of a window of type 1, under its next key.
///
/// # Safety
/// A live QP and window of ours, and a valid description.
pub unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the caller's promise.
    let (bind, rkey) = unsafe { (&*bind, (*mw).rkey) };
    let next_key = rkey & !0xff | (rkey + 1) & 0xff;
    // SAFETY: plain data; all zeroes is a valid request.
    let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
    wr.wr_id = bind.wr_id;
    wr.opcode = IBV_WR_BIND_MW;
    wr.send_flags = bind.send_flags;
    wr.bind_mw = ibv_send_wr_bind { mw, rkey: next_key, bind_info: bind.bind_info };
    let mut bad = std::ptr::null_mut();
    // SAFETY: one valid request.
    unsafe { post::send::post_send(qp, &mut wr, &mut bad) }
}
