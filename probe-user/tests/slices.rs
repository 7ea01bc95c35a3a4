//! What slices of time estimate at functions of a stock provider is within the bounds that are told, or has none and says
//! so. On the real, stripped mlx5, whose kernel and device are made up; needs root, and a kernel without RDMA.

mod support;

use std::path::Path;

use support::announced::{Announced, MLX5};
use support::steady::{Load, Place, counted};

const PLAIN: Load =
    Load { name: "", rate: 0, list: 1, every: 1, depth: 64, work: 0, sleeps: false, pace_ns: 0 };

/// Bound by its pace, asleep meanwhile; by its device; by its own work.
const LOADS: [Load; 3] = [
    Load { name: "20 k/s, asleep", rate: 20_000, every: 4, sleeps: true, ..PLAIN },
    Load { name: "device, lists", pace_ns: 10_000, list: 4, every: 4, depth: 128, ..PLAIN },
    Load { name: "own work", work: 30_000, every: 16, depth: 4096, ..PLAIN },
];

/// Posts, work requests, signalled ones, completions and bytes may have a bound.
const BOUNDED: [usize; 5] = [0, 1, 2, 3, 6];

#[test]
fn what_slices_estimate_is_within_what_they_tell_or_has_no_bound() {
    // SAFETY: the call has no preconditions.
    if unsafe { libc::geteuid() } != 0 || Path::new("/sys/class/infiniband").exists() {
        eprintln!("skipped: this needs root, and a kernel without RDMA");
        return;
    }
    if !Path::new("/sys/bus/event_source/devices/uprobe/type").exists() {
        eprintln!("skipped: this kernel has no user probes");
        return;
    }
    let announced = Announced::new(&MLX5);
    let (mut held, mut bounded) = (0, 0);
    for load in &LOADS {
        let counted = counted(&Place::Announced(&announced), load, 10, false);
        for which in BOUNDED {
            let figure = counted.figure(which);
            println!("{} {which}: {figure:?}", load.name);
            let Some(holds) = figure.holds(load.depth) else { continue };
            bounded += 1;
            held += i32::from(holds);
            // One that is not in it must not be far from it either.
            let wider = support::steady::Held { bound: figure.bound.map(|bound| bound * 2.0), ..figure };
            assert_eq!(wider.holds(load.depth), Some(true), "{load:?} {which}: {figure:?} {}", counted.told);
        }
        // What the requests were like does not depend on how many were seen.
        let total = |name: &str| counted.told["total"][name].as_f64().expect("a figure");
        assert_eq!(total("wrs"), total("post_calls") * f64::from(load.list), "{}", counted.told);
        assert_eq!(total("bytes"), total("wrs") * 64.0, "{}", counted.told);
    }
    println!("{held} of {bounded} bounds hold");
    // Of each run the figures share a fate: posts and what goes with them, and completions.
    assert!(held * 3 >= bounded * 2, "{held} of {bounded} bounds hold");
}
