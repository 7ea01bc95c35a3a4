//! Counting event descriptors: readable while something waits, one unit per event.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// An eventfd with semaphore reads.
pub struct Bell {
    fd: OwnedFd,
}

impl Bell {
    /// A bell nobody has rung. Blocking, as a device's event files are until the program says otherwise.
    pub fn new(nonblocking: bool) -> io::Result<Self> {
        let flags =
            libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE | if nonblocking { libc::EFD_NONBLOCK } else { 0 };
        // SAFETY: no pointers involved.
        let fd = unsafe { libc::eventfd(0, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just created, owned by nobody else.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// The descriptor, for poll, epoll and the program.
    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Adds one event.
    pub fn ring(&self) {
        ring_fd(self.raw());
    }

    /// Takes one event, waiting for it if the descriptor is blocking. The error is that of `read`.
    pub fn take(&self) -> io::Result<()> {
        let mut n = 0u64;
        // SAFETY: reads eight bytes into `n`.
        let r = unsafe { libc::read(self.raw(), (&raw mut n).cast(), 8) };
        if r == 8 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Takes one event if there is one, whatever the blocking mode.
    pub fn take_if_any(&self) -> bool {
        let mut p = libc::pollfd { fd: self.raw(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&mut p, 1, 0) == 1 && self.take().is_ok() }
    }
}

/// Adds one event to an eventfd known by number only.
pub fn ring_fd(fd: RawFd) {
    let one = 1u64;
    // SAFETY: writes eight bytes from `one`. It can only fail if the counter is full, and then the bell has been rung.
    unsafe { libc::write(fd, (&raw const one).cast(), 8) };
}
