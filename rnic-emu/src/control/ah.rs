//! Address handles.

use super::or_null;
use crate::abi::{consts::*, *};
use crate::device::{context::DeviceContext, gid};
use crate::object::ah::Ah;
use crate::object::pd::Pd;
use crate::object::qp_attr::address_ok;
use crate::stats::ProcessCounter;
use libc::c_int;
use std::sync::atomic::Ordering::*;

/// `ibv_create_ah`.
///
/// # Safety
/// A live PD of ours and a valid attribute.
pub unsafe fn create_ah(ibv: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller's promise.
    let (pd, ctx, attr) = unsafe { (Pd::of(ibv), DeviceContext::of((*ibv).context), *attr) };
    or_null(ctx.alive().and_then(|process| {
        if !address_ok(&attr) {
            return Err(libc::EINVAL);
        }
        pd.users.fetch_add(1, AcqRel);
        process.stats.add(ProcessCounter::AhsCreated, 1);
        let ah = Ah {
            ibv: ibv_ah { context: pd.ibv.context, pd: ibv, handle: process.handle() },
            attr,
            device: gid::to_device(&attr.grh.dgid),
        };
        Ok(Box::into_raw(Box::new(ah)).cast())
    }))
}

/// `ibv_destroy_ah`.
///
/// # Safety
/// A live address handle of ours.
pub unsafe fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the caller's promise: the box `create_ah` leaked, in a PD that outlives it.
    unsafe {
        Pd::of((*ah).pd).users.fetch_sub(1, AcqRel);
        drop(Box::from_raw(ah.cast::<Ah>()));
    }
    0
}

/// `ibv_init_ah_from_wc`: the way back to the sender of a datagram.
///
/// # Safety
/// A received completion, the 40 bytes before its payload, and a place for the answer.
pub unsafe fn init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
    out: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    let wc = unsafe { &*wc };
    if wc.wc_flags & IBV_WC_GRH == 0 || grh.is_null() {
        super::set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the caller's promise; the header is 40 bytes with the IPv4 header in the last 20.
    let bytes = unsafe { *grh.cast::<[u8; 40]>() };
    let mut dgid = ibv_gid::default();
    dgid.raw[10..12].fill(0xff);
    dgid.raw[12..].copy_from_slice(&bytes[32..36]);
    // SAFETY: the caller's promise.
    let own = gid::of_device(unsafe { DeviceContext::of(context) }.device);
    if bytes[20] >> 4 != 4 || own.raw[12..] != bytes[36..40] {
        super::set_errno(libc::ENOENT);
        return -1;
    }
    let attr = ibv_ah_attr {
        grh: ibv_global_route { dgid, sgid_index: 0, hop_limit: 0xff, ..Default::default() },
        sl: wc.sl,
        is_global: 1,
        port_num: port,
        ..Default::default()
    };
    // SAFETY: the caller's promise.
    unsafe { out.write(attr) };
    0
}
