//! Requests that never leave the device: binding and invalidating memory windows.

use super::requester::Step;
use super::retire;
use crate::abi::consts::*;
use crate::device::process::Process;
use crate::object::key::Grant;
use crate::object::qp::Requester;
use crate::object::send_queue::SendWqe;
use std::sync::atomic::Ordering::*;

/// Executes LOCAL_INV.
pub fn invalidate(r: &mut Requester, counter: u64, wqe: &SendWqe) -> Step {
    if !close_window(r.fixed.process, wqe.rkey, r.fixed.qpn, r.fixed.pd) {
        return Step::Failed(IBV_WC_MW_BIND_ERR);
    }
    retire::done(&mut r.queue, counter, IBV_WC_SUCCESS);
    Step::Next
}

/// Closes the window a key opens, if it is one of `pd` that this QP may invalidate. False if it is not.
pub fn close_window(process: &Process, rkey: u32, qpn: u32, pd: u32) -> bool {
    let Some(grant) = process.keys.pin(rkey).map(|p| p.grant()) else { return false };
    if grant.parent == 0 || grant.pd != pd || grant.qpn != qpn {
        return false;
    }
    unbind(process, rkey, &grant)
}

/// Closes the window `rkey` opens with `grant`.
pub fn unbind(process: &Process, rkey: u32, grant: &Grant) -> bool {
    let closed = process.keys.close(rkey);
    if closed && let Some(parent) = process.keys.entry(grant.parent) {
        parent.windows().fetch_sub(1, AcqRel);
    }
    closed
}

/// Executes BIND_MW: `remote_addr` and `compare_add` are the window's address and length, `swap` the region's key and
/// the window's old key, `imm` the access flags, `rkey` the new key, `remote_device` the window's type.
pub fn bind(r: &mut Requester, counter: u64, wqe: &SendWqe) -> Step {
    let process = r.fixed.process;
    let (region_key, old_key) = (wqe.swap as u32, (wqe.swap >> 32) as u32);
    let type_2 = u32::from(wqe.remote_device) == IBV_MW_TYPE_2;
    let old = process.keys.pin(old_key).map(|p| p.grant());
    if wqe.rkey >> 8 != old_key >> 8 || type_2 && old.is_some() {
        return Step::Failed(IBV_WC_MW_BIND_ERR);
    }
    if let Some(old) = old {
        unbind(process, old_key, &old);
    }
    // Binding nothing leaves the window closed.
    if wqe.compare_add != 0 {
        let Some(grant) = window(r, wqe, region_key, type_2) else {
            return Step::Failed(IBV_WC_MW_BIND_ERR);
        };
        process.keys.open(wqe.rkey, grant);
    }
    retire::done(&mut r.queue, counter, IBV_WC_SUCCESS);
    Step::Next
}

fn window(r: &Requester, wqe: &SendWqe, region_key: u32, type_2: bool) -> Option<Grant> {
    let keys = &r.fixed.process.keys;
    let pin = keys.pin(region_key)?;
    let region = pin.grant();
    let offset = wqe.remote_addr.checked_sub(region.iova)?;
    let end = offset.checked_add(wqe.compare_add)?;
    let writes = wqe.imm & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0;
    let allowed = region.parent == 0
        && region.pd == r.fixed.pd
        && region.access & IBV_ACCESS_MW_BIND != 0
        && (!writes || region.access & IBV_ACCESS_LOCAL_WRITE != 0)
        && end <= region.len;
    if !allowed {
        return None;
    }
    keys.entry(region_key)?.windows().fetch_add(1, AcqRel);
    let zero_based = wqe.imm & IBV_ACCESS_ZERO_BASED != 0;
    Some(Grant {
        base: region.base + offset,
        iova: if zero_based { 0 } else { wqe.remote_addr },
        len: wqe.compare_add,
        access: wqe.imm,
        pd: region.pd,
        qpn: if type_2 { r.fixed.qpn } else { 0 },
        parent: region_key,
    })
}
