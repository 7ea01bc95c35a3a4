//! Finding other processes: abstract sockets, one name per slot and user, gone with the process that bound them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Processes of one user on one host that can have devices open at once.
pub const SLOTS: usize = 256;

fn address(slot: u8) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: plain data.
    let mut a: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    a.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // SAFETY: takes no arguments.
    let name = format!("\0rnic-emu/{}/{slot}", unsafe { libc::getuid() });
    for (to, from) in a.sun_path.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    (a, (size_of::<libc::sa_family_t>() + name.len()) as libc::socklen_t)
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers involved.
    let fd = unsafe {
        libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just created, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes the first free slot: binds and listens on its name. EAGAIN when all are taken.
pub fn claim() -> io::Result<(u8, OwnedFd)> {
    let fd = socket()?;
    for slot in 0..SLOTS {
        let (a, len) = address(slot as u8);
        // SAFETY: a valid address of that length.
        let bound = unsafe { libc::bind(fd.as_raw_fd(), (&raw const a).cast(), len) } == 0;
        if bound {
            // SAFETY: plain call on our descriptor.
            return match unsafe { libc::listen(fd.as_raw_fd(), SLOTS as i32) } {
                0 => Ok((slot as u8, fd)),
                _ => Err(io::Error::last_os_error()),
            };
        }
        let e = io::Error::last_os_error();
        if e.raw_os_error() != Some(libc::EADDRINUSE) {
            return Err(e);
        }
    }
    Err(io::Error::from_raw_os_error(libc::EAGAIN))
}

/// Connects to the process at `slot` and hands it `memory`.
pub fn connect(slot: u8, memory: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let fd = socket()?;
    let (a, len) = address(slot);
    // SAFETY: a valid address of that length.
    if unsafe { libc::connect(fd.as_raw_fd(), (&raw const a).cast(), len) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // The name is only unique per network namespace; whoever answers must be us.
    if !same_user(fd.as_raw_fd()) {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    send_fd(fd.as_raw_fd(), memory.as_raw_fd())?;
    Ok(fd)
}

/// Accepts a waiting connection of our own user, `None` if there is none.
pub fn accept(listener: BorrowedFd<'_>) -> Option<OwnedFd> {
    loop {
        // SAFETY: the address is not asked for.
        let fd = unsafe {
            libc::accept4(
                listener.as_raw_fd(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
            )
        };
        if fd < 0 {
            return None;
        }
        // SAFETY: just created, owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        if same_user(fd.as_raw_fd()) {
            return Some(fd);
        }
    }
}

fn same_user(fd: RawFd) -> bool {
    // SAFETY: plain data.
    let mut cred: libc::ucred = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes; getuid takes no arguments.
    unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut cred).cast(), &mut len) == 0
            && cred.uid == libc::getuid()
    }
}

/// Room for one control message with one descriptor.
#[repr(C, align(8))]
struct ControlBuffer([u8; 32]);

fn send_fd(socket: RawFd, fd: RawFd) -> io::Result<()> {
    let mut byte = b'm';
    let mut iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = ControlBuffer([0; 32]);
    // SAFETY: the message refers to buffers alive for the call; the control buffer has room for one descriptor.
    let sent = unsafe {
        let mut msg: libc::msghdr = std::mem::zeroed();
        msg.msg_iov = &mut iov;
        msg.msg_iovlen = 1;
        msg.msg_control = control.0.as_mut_ptr().cast();
        msg.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as usize;
        let c = libc::CMSG_FIRSTHDR(&msg);
        (*c).cmsg_level = libc::SOL_SOCKET;
        (*c).cmsg_type = libc::SCM_RIGHTS;
        (*c).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
        libc::CMSG_DATA(c).cast::<RawFd>().write_unaligned(fd);
        libc::sendmsg(socket, &msg, libc::MSG_NOSIGNAL)
    };
    if sent == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What a connection's socket had to say.
#[derive(Default)]
pub struct Heard {
    /// The peer's memory file.
    pub memory: Option<OwnedFd>,
    /// The peer is gone.
    pub closed: bool,
}

/// Reads what is waiting on a connection, without blocking. Bytes only mean "wake up".
pub fn hear(socket: RawFd) -> Heard {
    let mut heard = Heard::default();
    loop {
        let mut bytes = [0u8; 256];
        let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut control = ControlBuffer([0; 32]);
        // SAFETY: the message refers to buffers alive for the call; received descriptors are owned at once.
        let n = unsafe {
            let mut msg: libc::msghdr = std::mem::zeroed();
            msg.msg_iov = &mut iov;
            msg.msg_iovlen = 1;
            msg.msg_control = control.0.as_mut_ptr().cast();
            msg.msg_controllen = control.0.len();
            let n = libc::recvmsg(socket, &mut msg, libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT);
            let c = libc::CMSG_FIRSTHDR(&msg);
            if n > 0
                && !c.is_null()
                && (*c).cmsg_level == libc::SOL_SOCKET
                && (*c).cmsg_type == libc::SCM_RIGHTS
            {
                let bytes = ((*c).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                // A peer may send more descriptors than agreed: own them all, so that the others are closed.
                for i in 0..bytes / size_of::<RawFd>() {
                    let fd = libc::CMSG_DATA(c).cast::<RawFd>().add(i).read_unaligned();
                    heard.memory = Some(OwnedFd::from_raw_fd(fd));
                }
            }
            n
        };
        match n {
            0 => heard.closed = true,
            1.. => continue,
            _ => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::EAGAIN) => {}
                _ => heard.closed = true,
            },
        }
        return heard;
    }
}

/// Wakes the helper at the other end. A full socket buffer has woken it already.
pub fn rouse(socket: RawFd) {
    let byte = b'w';
    // SAFETY: sends one byte from the stack.
    unsafe {
        libc::send(socket, (&raw const byte).cast(), 1, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::memfd;
    use std::os::fd::AsFd;

    #[test]
    fn a_claimed_slot_is_free_again_when_its_holder_is_gone() {
        let (a, held) = claim().expect("a slot");
        let (b, other) = claim().expect("another slot");
        assert_ne!(a, b);
        let memory = memfd::create(c"test", 4096).expect("memfd");
        let out = connect(a, memory.as_fd()).expect("connect");
        let inn = accept(held.as_fd()).expect("accept");
        let heard = hear(inn.as_raw_fd());
        assert!(heard.memory.is_some_and(|m| memfd::is_sealed(m.as_fd(), 4096)) && !heard.closed);
        rouse(out.as_raw_fd());
        assert!(!hear(inn.as_raw_fd()).closed);
        drop(out);
        assert!(hear(inn.as_raw_fd()).closed);
        drop((held, other));
        assert!(connect(a, memory.as_fd()).is_err());
    }
}
