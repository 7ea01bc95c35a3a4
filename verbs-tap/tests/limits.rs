//! More objects than there is room for: it fills the tables of its process for good.

mod fake;

use std::ptr;

use fake::{adopt, chain, context, qp, tap_symbol};
use probe_user::tap::{Reading, Tap};

fn read(pid: u32) -> Reading {
    Tap::of(pid).expect("process").expect("a tap").read().expect("a reading")
}

#[test]
fn a_thousand_rounds_of_many_queue_pairs_lose_no_count() {
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
fn the_sites_do_not_cross_a_page() {
    for name in ["verbs_tap_posted", "verbs_tap_post_failed", "verbs_tap_polled"] {
        let at = tap_symbol(name);
        assert!(at % 4096 <= 4096 - 8, "{name} at {at:#x}: the kernel never rewrites a nop across pages");
    }
}
