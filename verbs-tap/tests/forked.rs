//! Forked children. A file of its own: in a process whose tables are full, a child's queue pair has no name.
#![expect(clippy::undocumented_unsafe_blocks, reason = "fork, wait and calls on leaked objects")]

mod fake;

use std::ptr;

use fake::{adopt, chain, context, qp};
use probe_common::site::Rates;
use probe_user::tap::{Reading, Tap};

#[test]
fn a_forked_child_counts_for_itself_and_survives_its_sites() {
    let context = context();
    adopt(context);
    let qp = qp(context, 4711);
    let (wrs, _sge) = chain(1, 8, |_| 0);
    let mut bad = ptr::null_mut();
    assert_eq!(qp.post_send(wrs.as_ptr(), &mut bad), 0);
    let parent = Tap::of(std::process::id()).expect("process").expect("a tap");
    parent.ask(Rates::ALL);
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
    parent.ask(Rates::NONE);
    assert_eq!(of_child.objects.iter().map(|o| (o.number, o.counts.wrs)).collect::<Vec<_>>(), [(4711, 5)]);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
    let after = parent.read().expect("a reading");
    assert_eq!(of_parent(&after), of_parent(&before), "the child counts nothing for its parent");
}
