//! What the hostile process does: everything the kernel lets it.

use super::{Knowledge, Nonsense, answer, request};
use crate::sys::memfd;
use crate::wire::memory::{Parts, RING, TOTAL};
use crate::wire::packet::{ACK, Packet, RC};
use crate::wire::rendezvous;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};

/// How long one attack goes on.
const ROUND: Duration = Duration::from_millis(15);

/// Sends requests of all kinds of nonsense to the target at `slot`, scribbling over all of the shared memory meanwhile.
pub fn with_requests(nonsense: &mut Nonsense, know: &Knowledge, slot: u8) {
    let Ok((memory, socket)) = connection(slot) else { return };
    // SAFETY: the mapping has TOTAL bytes and outlives the round.
    let parts = unsafe { Parts::of(memory.base()) };
    let stop = AtomicBool::new(false);
    let scribbles = nonsense.below(3) != 0;
    let seed = nonsense.next();
    std::thread::scope(|s| {
        if scribbles {
            s.spawn(|| scribble(&memory, &mut Nonsense(seed), know, &stop));
        }
        let start = Instant::now();
        let (mut head, mut psn) = (0u64, 0);
        while start.elapsed() < ROUND && !rendezvous::hear(socket.as_raw_fd()).closed {
            for _ in 0..1 + nonsense.below(20) {
                let packet = request(nonsense, know, psn);
                psn += 1;
                // SAFETY: inside the ring; positions are multiples of a line.
                unsafe { parts.requests.add(head as usize & (RING - 1)).cast::<Packet>().write(packet) };
                head += packet.size().min(RING / 4) as u64;
            }
            let announced = if scribbles { nonsense.mostly(head, &[head + 1, u64::MAX, 0]) } else { head };
            parts.control.request_head.0.store(announced, SeqCst);
            let taken = parts.control.answer_head.0.load(SeqCst);
            parts.control.answer_tail.0.store(taken, SeqCst);
            rendezvous::rouse(socket.as_raw_fd());
            std::thread::sleep(Duration::from_micros(nonsense.below(100) as u64));
        }
        stop.store(true, Relaxed);
    });
}

/// Writes random words and headers to random places of the shared memory.
fn scribble(memory: &memfd::Shared, nonsense: &mut Nonsense, know: &Knowledge, stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        for _ in 0..200 {
            // The first lines of each ring are where records are read.
            let line = nonsense.below(if nonsense.0 & 1 == 0 { TOTAL / 64 } else { 256 }) * 64;
            // SAFETY: inside the mapping. The target may be reading it: that is the point.
            unsafe {
                let at = memory.base().add(line);
                match nonsense.below(8) {
                    0 if line >= 4096 => at.cast::<Packet>().write_volatile(request(nonsense, know, 3)),
                    1 if line >= 4096 => at.cast::<Packet>().write_volatile(answer(nonsense, know)),
                    2 if line < 4096 => at.cast::<u64>().write_volatile(nonsense.next()),
                    _ if line >= 4096 => {
                        at.cast::<u64>().add(nonsense.below(8)).write_volatile(nonsense.next());
                    }
                    _ => {}
                }
            }
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Waits for the target to connect and answers its requests with nonsense.
pub fn with_answers(nonsense: &mut Nonsense, know: &Knowledge, listener: BorrowedFd<'_>) {
    let start = Instant::now();
    let mut socket = None;
    let mut memory = None;
    while start.elapsed() < ROUND && memory.is_none() {
        socket = socket.or_else(|| rendezvous::accept(listener));
        memory = socket.as_ref().and_then(|s: &OwnedFd| rendezvous::hear(s.as_raw_fd()).memory);
        std::thread::sleep(Duration::from_micros(100));
    }
    let (Some(socket), Some(memory)) = (socket, memory) else { return };
    let Ok(memory) = memfd::Shared::map(memory.as_fd(), TOTAL, true) else { return };
    // SAFETY: the mapping has TOTAL bytes and outlives the round.
    let parts = unsafe { Parts::of(memory.base()) };
    let stop = AtomicBool::new(false);
    let seed = nonsense.next();
    let scribbles = nonsense.below(3) == 0;
    std::thread::scope(|s| {
        if scribbles {
            s.spawn(|| scribble(&memory, &mut Nonsense(seed), know, &stop));
        }
        let (mut head, start) = (0u64, Instant::now());
        while start.elapsed() < ROUND && !rendezvous::hear(socket.as_raw_fd()).closed {
            for _ in 0..1 + nonsense.below(8) {
                let packet = answer(nonsense, know);
                let at = head as usize & (RING - 1);
                // SAFETY: inside the ring; positions are multiples of a line.
                unsafe {
                    let payload = packet.size().min(RING - at) - 64;
                    parts.answers.add(at).cast::<Packet>().write(packet);
                    parts.answers.add(at + 64).write_bytes(0xee, payload.min(1 << 16));
                }
                head += packet.size().min(RING / 4) as u64;
            }
            parts.control.answer_head.0.store(nonsense.mostly(head, &[head, head + 64]), SeqCst);
            let asked = parts.control.request_head.0.load(SeqCst);
            parts.control.request_tail.0.store(nonsense.mostly(asked, &[asked, 0]), SeqCst);
            rendezvous::rouse(socket.as_raw_fd());
            std::thread::sleep(Duration::from_micros(nonsense.below(100) as u64));
        }
        stop.store(true, Relaxed);
    });
}

/// Connects with memory files that are not what they should be, and with none.
pub fn with_files(nonsense: &mut Nonsense, slot: u8) {
    for _ in 0..8 {
        let len = nonsense.among(&[0, 4096, TOTAL - 1, TOTAL]);
        // SAFETY: a valid name; the descriptor is owned at once.
        let file =
            unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"hostile".as_ptr(), libc::MFD_ALLOW_SEALING)) };
        // SAFETY: our own descriptor; that these may fail does not matter.
        unsafe {
            libc::ftruncate(file.as_raw_fd(), len as libc::off_t);
            if nonsense.below(2) == 0 {
                libc::fcntl(
                    file.as_raw_fd(),
                    libc::F_ADD_SEALS,
                    nonsense.among(&[
                        libc::F_SEAL_GROW,
                        libc::F_SEAL_SHRINK,
                        libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL,
                    ]),
                );
            }
        }
        let null = std::fs::File::open("/dev/null").expect("exists");
        let handed = if nonsense.below(4) == 0 { null.as_fd() } else { file.as_fd() };
        let Ok(socket) = rendezvous::connect(slot, handed) else { continue };
        for _ in 0..nonsense.below(5) {
            rendezvous::rouse(socket.as_raw_fd());
        }
        std::thread::sleep(Duration::from_micros(nonsense.below(500) as u64));
        // Were it mapped, this would kill whoever looks at it.
        // SAFETY: our own descriptor.
        unsafe { libc::ftruncate(file.as_raw_fd(), 0) };
        rendezvous::rouse(socket.as_raw_fd());
    }
}

/// Behaves: one WRITE of eight bytes, acknowledged. The target's QP expects sequence number 0.
pub fn with_nothing(know: &Knowledge, slot: u8) -> bool {
    let Ok((memory, socket)) = connection(slot) else { return false };
    // SAFETY: the mapping has TOTAL bytes and outlives its use.
    let parts = unsafe { Parts::of(memory.base()) };
    let packet = Packet {
        kind: RC,
        dst_qpn: know.qpn,
        src_qpn: know.peer_qpn,
        total: 8,
        len: 8,
        packets: 1,
        rkey: know.key,
        raddr: know.base,
        ..Packet::default()
    };
    // SAFETY: inside the rings, which are ours until the head is announced.
    unsafe { parts.requests.cast::<Packet>().write(packet) };
    parts.control.request_head.0.store(128, SeqCst);
    rendezvous::rouse(socket.as_raw_fd());
    let start = Instant::now();
    while parts.control.answer_head.0.load(SeqCst) == 0 {
        if start.elapsed() > Duration::from_secs(5) {
            return false;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    // SAFETY: as above; it has been announced.
    unsafe { parts.answers.cast::<Packet>().read_volatile().kind == ACK }
}

fn connection(slot: u8) -> std::io::Result<(memfd::Shared, OwnedFd)> {
    let fd = memfd::create(c"hostile", TOTAL)?;
    let memory = memfd::Shared::map(fd.as_fd(), TOTAL, true)?;
    let socket = rendezvous::connect(slot, fd.as_fd())?;
    Ok((memory, socket))
}
