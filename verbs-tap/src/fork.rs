//! What a forked child must not inherit: the parent's counters, a lock held by a thread that does not exist there, and
//! probe sites that call into a page the child does not have.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::shared::{self, LOCK};
use crate::{sites, thread};

/// Installs the handler, once.
pub fn protect_children() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Ordering::Relaxed) {
        // SAFETY: a handler without arguments that makes only calls allowed in a child of a threaded program.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

unsafe extern "C" fn in_child() {
    let _errno = crate::quiet::KeepErrno::new();
    sites::renew_in_child();
    LOCK.reset_in_child();
    thread::forget_in_child();
    shared::abandon_in_child();
}
