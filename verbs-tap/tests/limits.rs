//! More objects than there is room for, and forked children: each test needs a process of its own.
#![expect(clippy::undocumented_unsafe_blocks, reason = "fork, wait and calls on leaked objects")]

mod fake;

use std::ptr;
use std::sync::Mutex;

use fake::{adopt, chain, context, qp, tap_symbol};
use probe_user::tap::{Reading, Tap};

/// The shared file is the process's: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn read(pid: u32) -> Reading {
    Tap::of(pid).expect("process").expect("a tap").read().expect("a reading")
}

#[test]
fn a_thousand_rounds_of_many_queue_pairs_lose_no_count() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let context = context();
    adopt(context);
    let before = read(std::process::id()).total.wrs;
    let (wrs, _sge) = chain(3, 8, |_| 0);
    let mut bad = ptr::null_mut();
    // More than the slots of the shared file (16,384) and, in the end, than the table of objects (65,536) holds.
    const OBJECTS: u32 = 90_000;
    for number in 0..OBJECTS {
        assert_eq!(qp(context, number).post_send(wrs.as_ptr(), &mut bad), 0);
    }
    let after = read(std::process::id());
    assert_eq!(after.total.wrs - before, u64::from(OBJECTS) * 3);
    assert!(after.unnamed.wrs > 0, "the rest is counted without a name");
    assert_eq!(after.uncounted, 0);
}

#[test]
fn a_forked_child_counts_for_itself_and_survives_its_sites() {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let context = context();
    adopt(context);
    let qp = qp(context, 4711);
    let (wrs, _sge) = chain(1, 8, |_| 0);
    let mut bad = ptr::null_mut();
    assert_eq!(qp.post_send(wrs.as_ptr(), &mut bad), 0);
    let parent = Tap::of(std::process::id()).expect("process").expect("a tap");
    parent.ask(1);
    let of_parent = |reading: &Reading| {
        reading.objects.iter().filter(|o| o.number == 4711).map(|o| o.counts.wrs).sum::<u64>()
    };
    let before = parent.read().expect("a reading");
    let mut pipe = [0; 2];
    unsafe { libc::pipe(pipe.as_mut_ptr()) };
    let child = unsafe { libc::fork() };
    if child == 0 {
        for _ in 0..5 {
            qp.post_send(wrs.as_ptr(), &mut bad);
        }
        let mut byte = 0_u8;
        unsafe {
            libc::close(pipe[1]);
            libc::read(pipe[0], (&raw mut byte).cast(), 1);
            libc::_exit(7);
        }
    }
    let pid = u32::try_from(child).expect("a pid");
    let started = std::time::Instant::now();
    let of_child = loop {
        if let Some(tap) = Tap::of(pid).expect("child") {
            let reading = tap.read().expect("a reading");
            if reading.total.wrs == 5 {
                break reading;
            }
        }
        assert!(started.elapsed().as_secs() < 20, "the child shows no counts");
        std::thread::yield_now();
    };
    let mut status = 0;
    unsafe {
        libc::close(pipe[1]);
        libc::waitpid(child, &mut status, 0);
    }
    parent.ask(0);
    assert_eq!(of_child.objects.iter().map(|o| (o.number, o.counts.wrs)).collect::<Vec<_>>(), [(4711, 5)]);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
    let after = parent.read().expect("a reading");
    assert_eq!(of_parent(&after), of_parent(&before), "the child counts nothing for its parent");
}

#[test]
fn the_sites_do_not_cross_a_page() {
    for name in ["verbs_tap_posted", "verbs_tap_post_failed", "verbs_tap_polled"] {
        let at = tap_symbol(name);
        assert!(at % 4096 <= 4096 - 8, "{name} at {at:#x}: the kernel never rewrites a nop across pages");
    }
}
