//! Completion queues and completion channels.

use super::{Context, VerbsError, check, ffi};
use crate::interrupt;
use crate::truth::{self, Entry};
use std::cell::Cell;
use std::os::fd::RawFd;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;
use std::time::Duration;

/// Most completions one [`Cq::poll`] returns.
pub const WC_BATCH: usize = 32;

struct ChannelInner {
    raw: NonNull<ffi::ibv_comp_channel>,
    tally: Entry,
    _context: Context,
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: created once; CQs bound to it hold an Rc and are gone by now.
        unsafe { ffi::ibv_destroy_comp_channel(self.raw.as_ptr()) };
    }
}

/// A completion channel: a file descriptor that becomes readable when an armed CQ gets a completion.
#[derive(Clone)]
pub struct Channel(Rc<ChannelInner>);

impl Channel {
    /// Creates a channel on an open device.
    pub fn new(context: &Context) -> Result<Channel, VerbsError> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { ffi::ibv_create_comp_channel(context.raw()) })
            .ok_or_else(|| VerbsError::last("ibv_create_comp_channel"))?;
        truth::record(|truth| truth.channels_created += 1);
        Ok(Channel(Rc::new(ChannelInner { raw, tally: Entry::open(), _context: context.clone() })))
    }

    /// Descriptor to wait on with poll or epoll.
    pub fn fd(&self) -> RawFd {
        // SAFETY: the channel is alive.
        unsafe { self.0.raw.as_ref() }.fd
    }

    /// Waits until the descriptor is readable. False when `limit` passed or a signal arrived first.
    pub fn wait(&self, limit: Duration) -> bool {
        let mut fds = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        let millis = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one valid pollfd, alive for the call.
        let ready = unsafe { libc::poll(&mut fds, 1, millis) };
        ready > 0 && interrupt::pending().is_none()
    }

    /// Takes one event off the channel, acknowledging it. Call only when the descriptor is readable: it blocks otherwise.
    pub fn take(&self) -> Result<(), VerbsError> {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel is alive and both out-pointers are writable.
        if unsafe { ffi::ibv_get_cq_event(self.0.raw.as_ptr(), &mut cq, &mut context) } != 0 {
            return Err(VerbsError::last("ibv_get_cq_event"));
        }
        self.0.tally.events.add(1);
        // SAFETY: `cq` was just returned for an event that has not been acknowledged yet. Acknowledging at once costs a
        // lock, but a CQ with unacknowledged events cannot be destroyed when a run is cut short.
        unsafe { ffi::ibv_ack_cq_events(cq, 1) };
        Ok(())
    }
}

/// A completion queue.
pub struct Cq {
    raw: NonNull<ffi::ibv_cq>,
    poll: unsafe extern "C" fn(*mut ffi::ibv_cq, i32, *mut ffi::ibv_wc) -> i32,
    notify: unsafe extern "C" fn(*mut ffi::ibv_cq, i32) -> i32,
    tally: Entry,
    channel: Option<Channel>,
    /// One writer per tally: keeps the type off other threads.
    _single: Cell<()>,
    _context: Context,
}

impl Cq {
    /// Creates a queue of at least `entries`, optionally bound to a channel.
    pub fn new(context: &Context, entries: u32, channel: Option<&Channel>) -> Result<Cq, VerbsError> {
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        let bound = channel.map_or(null_mut(), |channel| channel.0.raw.as_ptr());
        // SAFETY: context and channel are alive and kept so by the new object; vector 0 always exists.
        let raw = unsafe { ffi::ibv_create_cq(context.raw(), entries, null_mut(), bound, 0) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::last("ibv_create_cq"))?;
        truth::record(|truth| truth.cqs_created += 1);
        let ops = context.ops();
        Ok(Cq {
            raw,
            poll: ops.poll_cq.ok_or_else(|| missing("ibv_poll_cq"))?,
            notify: ops.req_notify_cq.ok_or_else(|| missing("ibv_req_notify_cq"))?,
            tally: Entry::open(),
            channel: channel.cloned(),
            _single: Cell::new(()),
            _context: context.clone(),
        })
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_cq {
        self.raw.as_ptr()
    }

    /// The channel it was bound to.
    pub fn channel(&self) -> Option<&Channel> {
        self.channel.as_ref()
    }

    /// Reaps up to [`WC_BATCH`] completions into `into`; returns how many.
    #[inline]
    pub fn poll(&self, into: &mut [ffi::ibv_wc; WC_BATCH]) -> Result<usize, VerbsError> {
        // SAFETY: the queue is alive and the array has room for the number asked for.
        let found = unsafe { (self.poll)(self.raw.as_ptr(), WC_BATCH as i32, into.as_mut_ptr()) };
        self.tally.polls.add(1);
        let Ok(found) = usize::try_from(found) else {
            return Err(VerbsError::returned("ibv_poll_cq", found).hint("the completion queue overran"));
        };
        if found == 0 {
            self.tally.empty_polls.add(1);
        } else {
            self.tally.cqes.add(found as u64);
            let errors = into.iter().take(found).filter(|wc| !wc.is_valid()).count();
            self.tally.cqe_errors.add(errors as u64);
        }
        Ok(found.min(WC_BATCH))
    }

    /// Reaps one completion at most; returns how many.
    pub fn poll_one(&self) -> Result<usize, VerbsError> {
        let mut one = ffi::ibv_wc::default();
        // SAFETY: the queue is alive and there is room for the one asked for.
        let found = unsafe { (self.poll)(self.raw.as_ptr(), 1, &raw mut one) };
        self.tally.polls.add(1);
        let found = usize::try_from(found).map_err(|_| VerbsError::returned("ibv_poll_cq", found))?;
        match found {
            0 => self.tally.empty_polls.add(1),
            _ => {
                self.tally.cqes.add(1);
                self.tally.cqe_errors.add(u64::from(!one.is_valid()));
            }
        }
        Ok(found.min(1))
    }

    /// Calls of [`Cq::poll`] so far, those that found nothing, and completions reaped.
    pub fn counts(&self) -> (u64, u64, u64) {
        (self.tally.polls.get(), self.tally.empty_polls.get(), self.tally.cqes.get())
    }

    /// Asks for an event at the next completion.
    pub fn arm(&self) -> Result<(), VerbsError> {
        self.tally.notify_requests.add(1);
        // SAFETY: the queue is alive.
        check("ibv_req_notify_cq", unsafe { (self.notify)(self.raw.as_ptr(), 0) })
    }
}

fn missing(call: &'static str) -> VerbsError {
    VerbsError { call, cause: std::io::Error::from_raw_os_error(libc::EOPNOTSUPP), hint: String::new() }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: created once; QPs that use it hold an Rc and are gone by now.
        if unsafe { ffi::ibv_destroy_cq(self.raw.as_ptr()) } == 0 {
            truth::record(|truth| truth.cqs_destroyed += 1);
        }
    }
}
