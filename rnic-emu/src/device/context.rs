//! An open device.

use super::{list, process::Process};
use crate::abi::*;
use crate::object::async_event::AsyncEvents;
use crate::{control, sites};
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};

/// Completion vectors a device offers; they only spread interrupts on hardware, here all are alike.
const COMP_VECTORS: i32 = 8;

/// What `ibv_open_device` makes: the program's view first, then ours.
#[repr(C)]
pub struct DeviceContext {
    /// The program's view; the `ibv_context` it holds is this struct's last field.
    pub verbs: verbs_context,
    /// The process the device belongs to.
    pub process: &'static Process,
    /// Which device this is.
    pub device: usize,
    /// Asynchronous events not yet fetched.
    pub async_events: AsyncEvents,
    /// The program's `cmd_fd`, owned here.
    _cmd_fd: OwnedFd,
}

impl DeviceContext {
    /// Opens device `index`.
    ///
    /// # Errors
    /// The errno to report.
    pub fn open(index: usize) -> Result<*mut ibv_context, i32> {
        let device = list::devices().get(index).ok_or(libc::ENODEV)?;
        let process = Process::current_or_new()?;
        let cmd_fd = process.stats.fd().try_clone().map_err(|_| libc::EMFILE)?;
        let async_events = AsyncEvents::new().map_err(|_| libc::EMFILE)?;
        // SAFETY: tables of optional function pointers and integers; all zeroes is a valid value.
        let mut verbs: verbs_context = unsafe { std::mem::zeroed() };
        verbs.sz = size_of::<verbs_context>();
        verbs.query_port = Some(control::query::query_port);
        verbs.query_device_ex = Some(control::query::query_device_ex);
        verbs.query_rt_values = Some(control::query::query_rt_values);
        verbs.create_qp_ex = Some(sites::rnic_emu_create_qp_ex);
        verbs.create_cq_ex = Some(sites::rnic_emu_create_cq_ex);
        verbs.create_srq_ex = Some(sites::rnic_emu_create_srq_ex);
        verbs.alloc_td = Some(control::pd::alloc_td);
        verbs.dealloc_td = Some(control::pd::dealloc_td);
        verbs.alloc_parent_domain = Some(control::pd::alloc_parent_domain);
        let c = &mut verbs.context;
        c.device = device.ibv();
        c.cmd_fd = cmd_fd.as_raw_fd();
        c.async_fd = async_events.fd();
        c.num_comp_vectors = COMP_VECTORS;
        c.abi_compat = usize::MAX as *mut libc::c_void;
        c.ops.alloc_mw = Some(control::mw::alloc_mw);
        c.ops.bind_mw = Some(control::mw::bind_mw);
        c.ops.dealloc_mw = Some(control::mw::dealloc_mw);
        c.ops.post_send = Some(sites::rnic_emu_post_send);
        c.ops.post_recv = Some(sites::rnic_emu_post_recv);
        c.ops.post_srq_recv = Some(sites::rnic_emu_post_srq_recv);
        c.ops.poll_cq = Some(sites::rnic_emu_poll_cq);
        c.ops.req_notify_cq = Some(sites::rnic_emu_req_notify_cq);
        let boxed = Box::new(Self { verbs, process, device: index, async_events, _cmd_fd: cmd_fd });
        process.stats.add(crate::stats::ProcessCounter::ContextsOpened, 1);
        let context = Box::into_raw(boxed);
        // SAFETY: just made.
        Ok(unsafe { &raw mut (*context).verbs.context })
    }

    /// Our struct around a context of ours.
    ///
    /// # Safety
    /// `context` came from [`Self::open`] and is still open.
    pub unsafe fn of(context: *mut ibv_context) -> &'static Self {
        // SAFETY: the caller's promise; the context is a field of our struct at this distance.
        unsafe { &*context.byte_sub(offset_of!(verbs_context, context)).cast::<Self>() }
    }

    /// Whether a context is one of ours: its device is.
    ///
    /// # Safety
    /// `context` is a live context of any provider.
    pub unsafe fn is_ours(context: *mut ibv_context) -> bool {
        // SAFETY: the caller's promise; every context begins with its device.
        !context.is_null() && list::index_of(unsafe { (*context).device }).is_some()
    }

    /// Closes the device.
    ///
    /// # Safety
    /// `context` came from [`Self::open`] and nobody uses it any more.
    pub unsafe fn close(context: *mut ibv_context) -> i32 {
        // SAFETY: the caller's promise: this is the box `open` leaked.
        drop(unsafe { Box::from_raw(context.byte_sub(offset_of!(verbs_context, context)).cast::<Self>()) });
        0
    }

    /// This device in this process, or EIO in a forked child that inherited the context.
    pub fn alive(&self) -> Result<&'static Process, i32> {
        if Process::is_current(self.process) { Ok(self.process) } else { Err(libc::EIO) }
    }
}
