//! The tap's functions in `context->ops`.
//!
//! Each sums up what it was given, calls the provider, and counts what came of it. `"C-unwind"`: soft-RoCE's post is a
//! cancellation point, and the unwinding of a cancelled thread must pass through these frames.

use std::ffi::c_int;

use probe_common::counters::source;
use probe_common::messages::kind as message;
use probe_common::site::{Queue, Refused, Stream};
use probe_common::tap::{cq, kind, qp};

use crate::abi::{Cq, Object, Qp, RecvWr, SendWr, Wc};
use crate::contexts::{self, Call};
use crate::digest::{Digest, OPCODES, place_of};
use crate::messages;
use crate::sites;
use crate::thread::{self, Entry};

type PostSend = unsafe extern "C-unwind" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int;
type PostRecv = unsafe extern "C-unwind" fn(*mut Object, *mut RecvWr, *mut *mut RecvWr) -> c_int;
type PollCq = unsafe extern "C-unwind" fn(*mut Cq, c_int, *mut Wc) -> c_int;
type ReqNotifyCq = unsafe extern "C-unwind" fn(*mut Cq, c_int) -> c_int;

/// The provider's function for an object; `None` when it is not known, which only a context that is a copy of another
/// can bring about.
///
/// # Safety
/// `F` is the type of the function at that place, and `object` a live object.
#[inline(always)]
unsafe fn provider<F: Copy>(entry: Option<&Entry>, object: *const Object, call: Call) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    let function = match entry {
        // SAFETY: entries point into the static table of contexts.
        Some(entry) => unsafe { (*entry.tapped).original(call) },
        // SAFETY: as promised.
        None => contexts::original(unsafe { (*object).context }, call),
    };
    // SAFETY: a function pointer of that type, taken from the place of that call.
    (function != 0).then(|| unsafe { std::mem::transmute_copy::<usize, F>(&function) })
}

pub unsafe extern "C-unwind" fn post_send(object: *mut Qp, wr: *mut SendWr, bad: *mut *mut SendWr) -> c_int {
    let entry = thread::here(object as usize, kind::QP);
    // SAFETY: the program's own call, passed on; the function stood in the place of post_send.
    unsafe {
        let Some(call) = provider::<PostSend>(entry.as_ref(), object.cast(), Call::PostSend) else {
            return libc::ENOSYS;
        };
        let Some(entry) = entry else { return call(object, wr, bad) };
        let digest = Digest::of_send(wr, entry.signal_all, |place| entry.add(qp::OPCODES + place, 1));
        let told = thread::fires(Stream::of_post(digest.signalled));
        if let Some(exponent) = told {
            let flags = digest.flags(Queue::Send, false).one_in(exponent);
            sites::posted(object as usize, &digest, flags, wr as usize);
        }
        let log = messages::log().map(|log| (log, log.sends(object, wr, digest.wrs, entry.signal_all)));
        let mut bad_here = unwritten();
        let result = call(object, wr, &mut bad_here);
        pass_on(bad_here, bad);
        let posted = if result == 0 {
            count_posted(&entry, &digest, true);
            digest.wrs
        } else {
            post_send_failed(&entry, object, wr, bad_here, &digest, result, told)
        };
        if let Some((log, begun)) = log {
            log.posted(begun, message::SEND, object.cast(), posted, result);
        }
        result
    }
}

/// # Safety
/// As for the call that failed; `bad` is what the provider wrote, or unwritten.
///
/// `told` is how the digest of the whole was told, if it was. Returns how many work requests were posted.
#[cold]
unsafe fn post_send_failed(
    entry: &Entry,
    object: *mut Qp,
    wr: *mut SendWr,
    bad: *mut SendWr,
    digest: &Digest,
    result: c_int,
    told: Option<u32>,
) -> u64 {
    // A provider that names no work request has refused the call before looking at any.
    let from = if bad == unwritten() { wr } else { bad };
    let mut others = [0_u64; OPCODES];
    // SAFETY: the part that was not posted is the caller's still.
    let rest = unsafe { Digest::of_send(from, entry.signal_all, |place| others[place] += 1) };
    others[place_of(rest.first)] += rest.of_first;
    let mut posted = digest.without(&rest);
    // Opcodes other than the first one's were counted while walking.
    for (place, count) in others.into_iter().enumerate().filter(|(_, count)| *count != 0) {
        if place == place_of(digest.first) {
            posted.of_first = digest.of_first.saturating_sub(count);
        } else {
            entry.add(qp::OPCODES + place, count.wrapping_neg());
        }
    }
    entry.add(qp::POST_FAILED, 1);
    count_posted(entry, &posted, false);
    if let Some(exponent) = told {
        let flags = rest.flags(Queue::Send, false).one_in(exponent).after(posted.wrs);
        let why = Refused::pack(result.unsigned_abs(), from as u64);
        sites::verbs_tap_post_failed(object as usize, rest.wrs, rest.bytes, flags.0, rest.sges, why.0);
    }
    posted.wrs
}

/// Counts one post call and what it posted. Runs of unsignalled work requests are followed only while nothing fails.
#[inline(always)]
pub fn count_posted(entry: &Entry, digest: &Digest, follow_runs: bool) {
    entry.add(qp::POST_CALLS, 1);
    entry.add(qp::WRS, digest.wrs);
    entry.add(qp::BYTES, digest.bytes);
    entry.add(qp::SGES, digest.sges);
    if digest.signalled != 0 {
        entry.add(qp::SIGNALLED, digest.signalled);
    }
    if digest.inline != 0 {
        entry.add(qp::INLINE, digest.inline);
    }
    if digest.cut {
        entry.add(qp::CUT, 1);
    }
    entry.add(qp::OPCODES + place_of(digest.first), digest.of_first);
    if follow_runs && digest.signalled != digest.wrs {
        follow_run(entry, digest);
    } else if digest.signalled != 0 {
        entry.set(qp::UNSIGNALLED_RUN, 0);
    }
}

fn follow_run(entry: &Entry, digest: &Digest) {
    let before = entry.get(qp::UNSIGNALLED_RUN);
    let (longest, now) = if digest.signalled == 0 {
        (before + digest.wrs, before + digest.wrs)
    } else {
        ((before + digest.run.first).max(digest.run.longest).max(digest.run.last), digest.run.last)
    };
    entry.set(qp::UNSIGNALLED_RUN, now);
    if longest > entry.get(qp::LONGEST_UNSIGNALLED) {
        entry.set(qp::LONGEST_UNSIGNALLED, longest);
    }
}

pub unsafe extern "C-unwind" fn post_recv(
    object: *mut Object,
    wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: the program's own call, passed on.
    unsafe { receive(object, wr, bad, kind::QP, Call::PostRecv, Queue::Receive) }
}

pub unsafe extern "C-unwind" fn post_srq_recv(
    object: *mut Object,
    wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: the program's own call, passed on.
    unsafe { receive(object, wr, bad, kind::SRQ, Call::PostSrqRecv, Queue::SharedReceive) }
}

/// # Safety
/// As for `post_recv` or `post_srq_recv` itself.
#[inline(always)]
unsafe fn receive(
    object: *mut Object,
    wr: *mut RecvWr,
    bad: *mut *mut RecvWr,
    object_kind: u32,
    which: Call,
    queue: Queue,
) -> c_int {
    let entry = thread::here(object as usize, object_kind);
    // SAFETY: as promised; the function stood in the place of that call.
    unsafe {
        let Some(call) = provider::<PostRecv>(entry.as_ref(), object, which) else { return libc::ENOSYS };
        let Some(entry) = entry else { return call(object, wr, bad) };
        let mut digest = Digest::of_receive(wr);
        let told = thread::fires(Stream::Posts);
        if let Some(exponent) = told {
            let flags = digest.flags(queue, false).by(source::TAP).one_in(exponent);
            sites::verbs_tap_posted(
                object as usize,
                digest.wrs,
                digest.bytes,
                flags.0,
                digest.sges,
                wr as usize,
            );
        }
        let kind =
            if matches!(queue, Queue::SharedReceive) { message::SHARED_RECEIVE } else { message::RECEIVE };
        let log = messages::log().map(|log| (log, log.receives(kind, object, wr, digest.wrs)));
        let mut bad_here = unwritten();
        let result = call(object, wr, &mut bad_here);
        pass_on(bad_here, bad);
        if result != 0 {
            let none = bad_here == unwritten() || bad_here == wr;
            let rest = if none { digest } else { Digest::of_receive(bad_here) };
            digest = digest.without(&rest);
            entry.add(qp::RECV_FAILED, 1);
            if let Some(exponent) = told {
                let flags = rest.flags(queue, false).one_in(exponent).after(digest.wrs);
                let from = if bad_here == unwritten() { wr } else { bad_here };
                let why = Refused::pack(result.unsigned_abs(), from as u64);
                sites::verbs_tap_post_failed(
                    object as usize,
                    rest.wrs,
                    rest.bytes,
                    flags.0,
                    rest.sges,
                    why.0,
                );
            }
        }
        entry.add(qp::RECV_CALLS, 1);
        entry.add(qp::RECV_WRS, digest.wrs);
        entry.add(qp::RECV_BYTES, digest.bytes);
        entry.add(qp::RECV_SGES, digest.sges);
        if digest.cut {
            entry.add(qp::CUT, 1);
        }
        if let Some((log, begun)) = log {
            log.posted(begun, kind, object, digest.wrs, result);
        }
        result
    }
}

/// What `bad_wr` holds until the provider writes it: an address no work request has.
fn unwritten<T>() -> *mut T {
    static NOWHERE: u64 = 0;
    (&raw const NOWHERE).cast_mut().cast()
}

/// Lets the program see what the provider wrote, and nothing where it wrote nothing.
///
/// # Safety
/// `bad` is what the program passed for the provider to write to.
#[inline(always)]
unsafe fn pass_on<T>(here: *mut T, bad: *mut *mut T) {
    if here != unwritten() {
        // SAFETY: as promised.
        unsafe { *bad = here };
    }
}

pub unsafe extern "C-unwind" fn poll_cq(object: *mut Cq, entries: c_int, wc: *mut Wc) -> c_int {
    let entry = thread::here(object as usize, kind::CQ);
    // SAFETY: the program's own call, passed on; the function stood in the place of poll_cq.
    unsafe {
        let Some(call) = provider::<PollCq>(entry.as_ref(), object.cast(), Call::PollCq) else {
            return -libc::ENOSYS;
        };
        let log = messages::log().map(|log| (log, messages::begin()));
        let n = call(object, entries, wc);
        let Some(entry) = entry else { return n };
        entry.add(cq::POLLS, 1);
        match u64::try_from(n) {
            Ok(0) => entry.add(cq::EMPTY, 1),
            Ok(found) => {
                entry.add(cq::CQES, found);
                for index in 0..found {
                    // SAFETY: the provider has filled that many.
                    count_status(&entry, (*wc.add(usize::try_from(index).unwrap_or(0))).status);
                }
            }
            Err(_) => entry.add(cq::FAILED, 1),
        }
        if let Some((log, begun)) = log
            && n > 0
        {
            log.completions(begun, object, wc, u64::from(n.unsigned_abs()));
        }
        if let Some(exponent) = thread::fires(if n == 0 { Stream::Empty } else { Stream::Finds }) {
            sites::verbs_tap_polled(object as usize, i64::from(n), wc as usize, exponent);
        }
        n
    }
}

/// Counts the status of one completion entry.
#[inline(always)]
pub fn count_status(entry: &Entry, status: u32) {
    let place = usize::try_from(status).unwrap_or(usize::MAX).min(cq::STATUS_COUNT - 1);
    entry.add(cq::STATUSES + place, 1);
    if status != 0 {
        entry.add(cq::CQE_ERRORS, 1);
    }
}

pub unsafe extern "C-unwind" fn req_notify_cq(object: *mut Cq, solicited_only: c_int) -> c_int {
    let entry = thread::here(object as usize, kind::CQ);
    // SAFETY: the program's own call, passed on; the function stood in the place of req_notify_cq.
    unsafe {
        let Some(call) = provider::<ReqNotifyCq>(entry.as_ref(), object.cast(), Call::ReqNotifyCq) else {
            return libc::ENOSYS;
        };
        if let Some(entry) = entry {
            entry.add(cq::NOTIFIES, 1);
        }
        call(object, solicited_only)
    }
}
