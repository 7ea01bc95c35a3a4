//! The socket of a connection: shared between threads, closed by the helper alone.

use super::rendezvous;
use crate::sys::fork;
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::*};

/// A connection's socket and whether the connection still lives.
///
/// Any thread may find the peer broken and end the connection; only the helper, which waits on the socket, closes it,
/// so that its number never means another file to a thread that still holds it.
pub struct Socket {
    fd: AtomicI32,
    dead: AtomicBool,
}

impl Socket {
    /// A live connection.
    pub fn new(fd: OwnedFd) -> Self {
        let socket = Self { fd: AtomicI32::new(-1), dead: AtomicBool::new(true) };
        socket.open(fd);
        socket
    }

    /// Makes a closed socket a live connection again.
    pub fn open(&self, fd: OwnedFd) {
        let fd = fd.into_raw_fd();
        fork::close_in_children(fd);
        self.fd.store(fd, Release);
        self.dead.store(false, Release);
    }

    /// The descriptor, -1 once closed.
    pub fn raw(&self) -> RawFd {
        self.fd.load(Acquire)
    }

    /// Whether the connection has ended.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Acquire)
    }

    /// Whether it has ended and the descriptor is closed, too.
    pub fn is_closed(&self) -> bool {
        self.is_dead() && self.raw() < 0
    }

    /// Ends the connection; the peer sees it. True the first time.
    pub fn end(&self) -> bool {
        if self.dead.swap(true, AcqRel) {
            return false;
        }
        // SAFETY: plain call on a descriptor that only `close` closes.
        unsafe { libc::shutdown(self.raw(), libc::SHUT_RDWR) };
        true
    }

    /// Asks the kernel whether the other end is closed, without reading anything.
    pub fn peer_has_gone(&self) -> bool {
        let mut p = libc::pollfd { fd: self.raw(), events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&mut p, 1, 0) == 1 && p.revents & (libc::POLLRDHUP | libc::POLLHUP) != 0 }
    }

    /// Wakes the peer's helper.
    pub fn rouse_peer(&self) {
        rendezvous::rouse(self.raw());
    }

    /// Closes the descriptor of a dead connection. Only the helper does.
    pub fn close(&self) {
        let fd = self.fd.swap(-1, AcqRel);
        if fd >= 0 {
            fork::forget(fd);
            // SAFETY: ours, and nobody uses the number any more: the rings that were its users are gone.
            unsafe { libc::close(fd) };
        }
    }
}
