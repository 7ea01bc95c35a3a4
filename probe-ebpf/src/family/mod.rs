//! What is read of each family of calls: `enter` before the function runs, `leave` after, into the frame's payload.
//! `leave` returns the bytes the call was about.

mod cm;
mod modify;
mod queues;
mod registration;
mod umem;
mod waits;

use probe_common::counters::kind;
use probe_common::hook::Cookie;
use probe_common::{CallId, Layout};

use crate::frames::Frame;

/// Reads what must be read before the call.
#[inline(always)]
pub fn enter(cookie: Cookie, frame: &mut Frame) {
    let layout = cookie.layout();
    if layout == Layout::DeregMr as u8 {
        registration::enter_dereg(frame);
    } else if layout == Layout::DestroyQp as u8 {
        queues::enter_destroy_qp(frame);
    } else if layout == Layout::ModifyQp as u8 {
        modify::enter(frame);
    } else if layout == Layout::Cq as u8 {
        queues::enter_cq(frame);
    } else if layout == Layout::KernelRange as u8 {
        umem::enter_range(cookie, frame);
    } else if layout == Layout::KernelUmem as u8 {
        umem::enter_release(frame);
    }
}

/// The kind of data-path object that a call destroys: its first argument.
#[inline(always)]
pub fn destroys(cookie: Cookie) -> Option<u32> {
    let call = cookie.call();
    if call == CallId::DestroyQp as u8 {
        Some(kind::QP)
    } else if call == CallId::DestroyCq as u8 {
        Some(kind::CQ)
    } else if call == CallId::DestroySrq as u8 {
        Some(kind::SRQ)
    } else {
        None
    }
}

/// Reads what can be read after the call; returns the bytes it was about, 0 where that means nothing.
#[inline(always)]
pub fn leave(frame: *mut Frame, value: u64, failed: bool) -> u64 {
    family_leave(frame, value, u64::from(failed))
}

/// The same, verified by itself (see the crate).
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn family_leave(frame: *mut Frame, value: u64, failed: u64) -> u64 {
    if frame.is_null() {
        return 0;
    }
    // SAFETY: the frame is this thread's own.
    let frame = unsafe { &mut *frame };
    let (cookie, failed) = (Cookie(frame.cookie), failed != 0);
    let layout = cookie.layout();
    if layout >= Layout::RegMr as u8 && layout <= Layout::DeregMr as u8 {
        return registration::leave(layout, frame, value, failed);
    }
    if layout == Layout::KernelRange as u8 || layout == Layout::KernelUmem as u8 {
        return umem::leave(frame);
    }
    if layout == Layout::ReturnedObject as u8 {
        frame.payload[0] = value;
    } else if layout == Layout::Object as u8 {
        frame.payload[0] = frame.args[0];
    } else if layout >= Layout::CreateQp as u8 && layout <= Layout::CreateQpEx as u8 {
        queues::leave_create_qp(layout, frame, value, failed);
    } else if layout >= Layout::CreateCq as u8 && layout <= Layout::CreateCqEx as u8 {
        queues::leave_create_cq(layout, frame, value, failed);
    } else if layout == Layout::CreateSrq as u8 || layout == Layout::CmdCreateSrqEx as u8 {
        queues::leave_create_srq(layout, frame, value);
    } else if layout == Layout::GetCqEvent as u8 {
        waits::leave_get_cq_event(frame, failed);
    } else if layout == Layout::AckCqEvents as u8 {
        waits::leave_ack(frame);
    } else if layout == Layout::GetAsyncEvent as u8 {
        waits::leave_async_event(frame, failed);
    } else if layout == Layout::Cm as u8 {
        frame.payload[0] = frame.args[0];
    } else if layout == Layout::GetCmEvent as u8 {
        cm::leave_get_event(frame, failed);
    }
    0
}
