//! Device contexts: whose operations pass through the tap, and what stood there before.
//!
//! Inline verbs (`ibv_post_send`, `ibv_poll_cq`, …) call through `context->ops`, and inline creators through the
//! `verbs_context` before it. [`adopt`] puts the tap's functions there. It is called for a context whenever one passes
//! an exported verb, so that operations a provider has replaced in the meantime are tapped again.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use crate::abi::{self, Context, before_context, op};
use crate::quiet::Held;
use crate::shared::{self, LOCK, Shared};
use crate::{classic, fork, made};

/// Contexts at once. Programs have one per device and, rarely, one per thread.
const CAPACITY: usize = 64;

/// Functions of a context that the tap replaces.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Call {
    PollCq,
    ReqNotifyCq,
    PostSrqRecv,
    PostSend,
    PostRecv,
    CreateQpEx,
    CreateCqEx,
}

const CALLS: [Call; 7] = [
    Call::PollCq,
    Call::ReqNotifyCq,
    Call::PostSrqRecv,
    Call::PostSend,
    Call::PostRecv,
    Call::CreateQpEx,
    Call::CreateCqEx,
];

/// One context and its own functions.
pub struct Tapped {
    context: AtomicUsize,
    originals: [AtomicUsize; CALLS.len()],
}

static TABLE: [Tapped; CAPACITY] = [const {
    Tapped { context: AtomicUsize::new(0), originals: [const { AtomicUsize::new(0) }; CALLS.len()] }
}; CAPACITY];

impl Tapped {
    /// The provider's function. Never 0 while the tap's stands in its place.
    #[inline(always)]
    pub fn original(&self, call: Call) -> usize {
        self.originals.get(call as usize).map_or(0, |o| o.load(Relaxed))
    }
}

/// What is known of a context.
pub fn find(context: *const Context) -> Option<&'static Tapped> {
    TABLE
        .iter()
        .map_while(|t| match t.context.load(Acquire) {
            0 => None,
            address => Some((address, t)),
        })
        .find_map(|(address, t)| (address == context as usize).then_some(t))
}

/// The provider's function for a context, also for one that is a copy of a tapped one: then it is the only function
/// there is for this call, or none (0).
pub fn original(context: *const Context, call: Call) -> usize {
    if let Some(tapped) = find(context) {
        return tapped.original(call);
    }
    let mut known = TABLE.iter().map(|t| t.original(call)).filter(|f| *f != 0);
    let first = known.next().unwrap_or(0);
    if known.all(|f| f == first) { first } else { 0 }
}

/// Taps a context, or what its provider has replaced in it since.
pub fn adopt(context: *mut Context) {
    if context.is_null() || is_complete(context) {
        return;
    }
    fork::protect_children();
    let held = LOCK.hold();
    let Some(shared) = shared::get_or_make() else { return };
    let header = shared.header();
    let known = find(context);
    let place = known.or_else(|| TABLE.iter().find(|t| t.context.load(Relaxed) == 0));
    let Some(place) = place.filter(|_| is_writable(context)) else {
        header.untapped_contexts.fetch_add(1, Relaxed);
        return;
    };
    for call in CALLS {
        // SAFETY: a live context that the provider has just made or the program has just passed to a verb.
        if let Some(at) = unsafe { place_of(context, call) } {
            tap(place, at, call, known.is_some(), &shared, &held);
        }
    }
    if known.is_none() {
        place.context.store(context as usize, Release);
        header.contexts.fetch_add(1, Relaxed);
    }
}

/// A closed context's address may come back as another context, of another provider.
pub fn closed(context: *const Context) {
    let _held = LOCK.hold();
    if let Some(tapped) = find(context) {
        for original in &tapped.originals {
            original.store(0, Relaxed);
        }
        if let Some(shared) = shared::get() {
            shared.header().contexts.fetch_sub(1, Relaxed);
        }
    }
}

/// True when there is nothing to do: the common case, without the lock.
fn is_complete(context: *mut Context) -> bool {
    // SAFETY: as in `adopt`.
    find(context).is_some()
        && CALLS.into_iter().all(|call| unsafe {
            place_of(context, call)
                .is_none_or(|at| matches!(at.load(Relaxed), f if f == 0 || f == ours(call)))
        })
}

fn tap(place: &Tapped, at: &AtomicUsize, call: Call, known: bool, shared: &Shared, _held: &Held<'_>) {
    let current = at.load(Relaxed);
    let Some(original) = place.originals.get(call as usize) else { return };
    let before = original.load(Relaxed);
    // 0: the provider has no such function. Someone else's wrapper around ours must not be wrapped again: it would call
    // us and we it, for ever. A provider's replacement comes from the library that the function before came from.
    if current == 0 || current == ours(call) || (before != 0 && !same_library(before, current)) {
        return;
    }
    original.store(current, Release);
    at.store(ours(call), Release);
    if known && before != 0 {
        shared.header().retapped.fetch_add(1, Relaxed);
    }
}

fn ours(call: Call) -> usize {
    match call {
        Call::PollCq => classic::poll_cq as *const () as usize,
        Call::ReqNotifyCq => classic::req_notify_cq as *const () as usize,
        Call::PostSrqRecv => classic::post_srq_recv as *const () as usize,
        Call::PostSend => classic::post_send as *const () as usize,
        Call::PostRecv => classic::post_recv as *const () as usize,
        Call::CreateQpEx => made::create_qp_ex as *const () as usize,
        Call::CreateCqEx => made::create_cq_ex as *const () as usize,
    }
}

/// Where a context keeps a function; `None` where its version of the struct has no such place.
///
/// # Safety
/// `context` is a live `ibv_context`.
unsafe fn place_of(context: *mut Context, call: Call) -> Option<&'static AtomicUsize> {
    let word = match call {
        Call::PollCq => op::POLL_CQ,
        Call::ReqNotifyCq => op::REQ_NOTIFY_CQ,
        Call::PostSrqRecv => op::POST_SRQ_RECV,
        Call::PostSend => op::POST_SEND,
        Call::PostRecv => op::POST_RECV,
        // SAFETY: as promised.
        Call::CreateQpEx => return unsafe { before(context, before_context::CREATE_QP_EX) },
        // SAFETY: as promised.
        Call::CreateCqEx => return unsafe { before(context, before_context::CREATE_CQ_EX) },
    };
    // SAFETY: as promised; atomics have the layout of the words they replace.
    unsafe { (*context).ops.get(word) }
}

/// A word of the `verbs_context` that lies before an `ibv_context`, if there is one and it reaches that far.
///
/// # Safety
/// `context` is a live `ibv_context`.
unsafe fn before(context: *mut Context, words: usize) -> Option<&'static AtomicUsize> {
    // SAFETY: as promised; where abi_compat is all ones, the words before the struct are its verbs_context's.
    unsafe {
        if (*context).abi_compat != usize::MAX {
            return None;
        }
        let size = context.cast::<usize>().sub(before_context::SIZE).read();
        let reaches = size >= size_of::<Context>() + words * size_of::<usize>();
        reaches.then(|| &*context.cast::<AtomicUsize>().sub(words))
    }
}

/// Whether the operations of a context can be written: asked of the kernel, by having it write back what is there.
fn is_writable(context: *mut Context) -> bool {
    // SAFETY: reads the operations of a live context and lets the kernel write the same bytes to the same place, which
    // fails where this process could not write them.
    unsafe {
        let ops = &raw mut (*context).ops;
        let mut copy = MaybeUninit::<[usize; abi::OPS]>::uninit();
        std::ptr::copy_nonoverlapping(ops.cast::<usize>(), copy.as_mut_ptr().cast(), abi::OPS);
        let bytes = size_of::<[usize; abi::OPS]>();
        let from = libc::iovec { iov_base: copy.as_mut_ptr().cast(), iov_len: bytes };
        let to = libc::iovec { iov_base: ops.cast(), iov_len: bytes };
        let written = libc::process_vm_writev(libc::getpid(), &from, 1, &to, 1, 0);
        // Where the call is forbidden (seccomp), contexts are taken to be what they are everywhere: on the heap.
        written == libc::ssize_t::try_from(bytes).unwrap_or(-1) || *libc::__errno_location() != libc::EFAULT
    }
}

fn same_library(a: usize, b: usize) -> bool {
    let library = |function: usize| {
        let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: dladdr only compares the address with loaded libraries, and fills the struct on success.
        unsafe {
            let found = libc::dladdr(function as *const libc::c_void, info.as_mut_ptr()) != 0;
            found.then(|| info.assume_init().dli_fbase as usize)
        }
    };
    library(a).is_some() && library(a) == library(b)
}
