//! Threads of the device inside a program that does not know of them.

use std::io;

/// Has this thread's sleeps end when they should: by default the kernel lets them run 50 µs over.
pub fn sleep_precisely() {
    // SAFETY: no pointers involved.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1usize, 0usize, 0usize, 0usize) };
}

/// Starts a detached thread that receives no signal of the program's.
///
/// A SIGALRM meant for the program that lands on our thread runs the program's handler there: programs such as perftest
/// count on it interrupting *their* thread.
pub fn spawn_without_signals(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // SAFETY: the sets live on our stack; the mask is restored below.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let r = std::thread::Builder::new().name(name.into()).stack_size(256 << 10).spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        r.map(drop)
    }
}
