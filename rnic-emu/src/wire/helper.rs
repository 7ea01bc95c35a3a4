//! The helper thread: serves requests while the program does something else, and keeps the timers.

use super::links::Watch;
use super::rendezvous;
use crate::device::process::Process;
use crate::stats::ProcessCounter;
use crate::sys::{clock, thread};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering::*;

/// How often the helper checks that a polling program still polls.
const CHECK_NS: u64 = 1_000_000;
/// How long it looks on after the last piece of work before it sleeps: waking it again costs the peer more.
const LINGER_NS: u64 = 15_000;

/// Starts it.
pub fn start(process: &'static Process) -> io::Result<()> {
    thread::spawn_without_signals("rnic-emu", move || run(process))
}

fn run(process: &'static Process) {
    thread::sleep_precisely();
    let wire = &process.wire;
    let mut last_work = 0;
    loop {
        let now = clock::now_ns();
        let did = process.run_due(now);
        match wire.watch() {
            Watch::Program => {
                let before = wire.looks.load(Relaxed);
                sleep(process, now, CHECK_NS);
                let idle_for = clock::now_ns() - now;
                if wire.looks.load(Relaxed) == before && idle_for >= CHECK_NS {
                    wire.leave_to_helper();
                }
            }
            Watch::Helper => {
                if wire.progress(process) | did {
                    last_work = now;
                    continue;
                }
                if now - last_work < LINGER_NS {
                    std::hint::spin_loop();
                    continue;
                }
                wire.leave_to_helper();
                if wire.progress(process) {
                    last_work = now;
                    continue;
                }
                sleep(process, now, u64::MAX);
            }
        }
    }
}

/// Waits for a peer, a new connection, our bell, the next timer, or `at_most_ns`.
fn sleep(process: &'static Process, now: u64, at_most_ns: u64) {
    let wire = &process.wire;
    let wake_at = process.next_due().min(now.saturating_add(at_most_ns));
    wire.helper_wakes_at.store(wake_at, SeqCst);
    // A timer set between reading the next one and announcing when we wake rings the bell only if it sees the
    // announcement: look again.
    let wake_at = wake_at.min(process.next_due());
    let outs: Vec<_> = wire.outs().collect();
    let ins: Vec<_> = wire.ins().collect();
    let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds: Vec<libc::pollfd> = vec![poll(wire.bell.raw()), poll(wire.listener().as_raw_fd())];
    fds.extend(outs.iter().map(|l| poll(l.socket.raw())));
    fds.extend(ins.iter().map(|l| poll(l.socket.raw())));
    let ns = wake_at.saturating_sub(now);
    let timeout = libc::timespec {
        tv_sec: (ns / 1_000_000_000).min(3600) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: valid entries and a valid timeout.
    let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as _, &timeout, std::ptr::null()) };
    wire.helper_wakes_at.store(u64::MAX, SeqCst);
    process.stats.add(ProcessCounter::HelperWakeups, 1);
    if ready <= 0 {
        return;
    }
    if fds[0].revents != 0 {
        while wire.bell.take().is_ok() {}
    }
    if fds[1].revents != 0 {
        while let Some(socket) = rendezvous::accept(wire.listener().as_fd()) {
            wire.admit(socket);
        }
    }
    let (out_fds, in_fds) = fds[2..].split_at(outs.len());
    for (link, fd) in outs.iter().zip(out_fds) {
        if fd.revents != 0 && rendezvous::hear(link.socket.raw()).closed {
            // Answers sent before the peer died still count.
            last_looks(|| link.progress(process));
            link.bury(process);
        }
    }
    for (link, fd) in ins.iter().zip(in_fds) {
        if fd.revents == 0 {
            continue;
        }
        let heard = rendezvous::hear(link.socket.raw());
        if let Some(fd) = heard.memory {
            link.adopt(fd);
        }
        if heard.closed {
            // So do requests: a program may send its last message and exit.
            last_looks(|| link.progress(process));
            link.bury();
        }
    }
    wire.reap(process);
}

/// Looks at a connection that has been closed until nothing is left in it, or as often as a full ring needs: a hostile
/// peer can go on writing to memory it still has mapped.
fn last_looks(mut progress: impl FnMut() -> bool) {
    const MOST: usize = 4 * super::memory::RING / super::packet::LINE / super::in_link::BUDGET;
    for _ in 0..MOST {
        if !progress() {
            return;
        }
    }
}
