//! A hostile requester, one record at a time, in one process: every round is repeatable from its seed.

use super::target::{PEER, Target};
use super::{Nonsense, request};
use crate::device::process::Process;
use crate::sys::memfd;
use crate::wire::in_link::InLink;
use crate::wire::memory::{Parts, RING, TOTAL};
use crate::wire::packet::{CHUNK, Packet};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::*;

/// A slot nobody has claimed.
const NOWHERE: u32 = 0x77 << 16;

/// A peer that writes whatever it likes, headers and indices alike, cannot make us crash or touch memory it holds no
/// key for.
#[test]
fn a_hostile_peer_changes_only_what_its_key_opens() {
    let target = Target::new();
    let process = Process::current_or_new().expect("a process");
    let know = target.knowledge(NOWHERE | PEER);
    let mut broken = 0;
    let mut written = false;
    for seed in 0..400 {
        let mut nonsense = Nonsense(seed * 7919 + 1);
        target.ready(know.peer_qpn);
        let fd = memfd::create(c"hostile", TOTAL).expect("memfd");
        let theirs = memfd::Shared::map(fd.as_fd(), TOTAL, true).expect("map");
        // SAFETY: the mapping has TOTAL bytes and outlives this round.
        let parts = unsafe { Parts::of(theirs.base()) };
        let (_socket, other) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let link = InLink::new(other.into());
        link.adopt(fd);
        // SAFETY: the request ring.
        unsafe { std::ptr::write_bytes(parts.requests, seed as u8 | 0x80, RING) };
        let (mut head, mut psn) = (0u64, 0u32);
        for _ in 0..200 {
            let packet = request(&mut nonsense, &know, psn);
            psn = (psn + 1) & 0xff_ffff;
            // SAFETY: inside the ring; positions are multiples of a line.
            unsafe { parts.requests.add(head as usize & (RING - 1)).cast::<Packet>().write(packet) };
            let size = 64 + u64::from(packet.len.min(CHUNK)).next_multiple_of(64);
            head += nonsense.mostly(size, &[64, 128, RING as u64]);
            let announced = nonsense.mostly(head, &[head + 1, u64::MAX, 0]);
            parts.control.request_head.0.store(announced, SeqCst);
            let taken = parts.control.answer_head.0.load(SeqCst);
            parts.control.answer_tail.0.store(nonsense.mostly(taken, &[0, u64::MAX, head]), SeqCst);
            link.progress(process);
            while target.poll().is_some() {}
            if link.socket.is_dead() {
                broken += 1;
                break;
            }
        }
        link.bury();
        link.socket.close();
        target.assert_untouched(&format!("seed {seed}"));
        written |= target.was_written();
    }
    assert!(broken > 200, "nonsense ends connections: {broken} of 400");
    assert!(written, "some of it was served");
    assert!(process.keys.close(know.key), "no pin was left behind");
}
