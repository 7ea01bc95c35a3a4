//! The data path of stock programs on the emulated device, by its probe sites and those of the tap.

mod data_path;

use std::path::Path;

use data_path::failed::{CASES, check_failed, fails};
use data_path::{
    BANDWIDTH, Case, attach_to_running, can_run, check, check_buffers, check_crowd, check_posts, compiled,
    count_script_with, perftest, posts,
};

/// Interfaces of `posts`: for posts and polls both, or one for either.
const INTERFACES: [&str; 4] = ["classic", "extended", "extended-post", "extended-poll"];

/// What is preloaded: the emulated device, and the tap before it.
fn preloads() -> [String; 2] {
    let device = testkit::built("rnic-emu-preload", "librnic_emu.so").display().to_string();
    let tap = testkit::built("verbs-tap", "libverbs_tap.so");
    let both = format!("{}:{device}", tap.display());
    [device, both]
}

#[test]
fn the_classic_interface_of_the_emulated_device_is_counted_to_the_last_request() {
    if !can_run() {
        return;
    }
    // What the shell has loaded is probed before its first command.
    let device = testkit::built("rnic-emu-preload", "librnic_emu.so");
    let script = perftest(&BANDWIDTH, "", "", "127.0.0.1", 19_500);
    let told = count_script_with(&script, &[("LD_PRELOAD", &device)]);
    check(&BANDWIDTH, &told, false);
}

#[test]
fn the_extended_interface_of_the_emulated_device_is_counted_to_the_last_request() {
    if !can_run() {
        return;
    }
    // A part ID perftest knows makes it post through `ibv_wr_*`.
    let device = testkit::built("rnic-emu-preload", "librnic_emu.so");
    let environment = [("LD_PRELOAD", device.as_path()), ("RNIC_EMU_PART_ID", Path::new("4119"))];
    let cases: Vec<Case> = BANDWIDTH.into_iter().filter(|case| !case.more.contains("-c UC")).collect();
    let told = count_script_with(&perftest(&cases, "", "", "127.0.0.1", 19_600), &environment);
    check(&cases, &told, true);
}

#[test]
fn a_running_program_and_a_child_that_posts_under_an_optimised_probe_are_counted() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = posts(folder.path());
    let device = testkit::built("rnic-emu-preload", "librnic_emu.so");
    let environment = [("LD_PRELOAD", device.to_str().expect("a path"))];
    for interface in INTERFACES {
        let told = attach_to_running(&program, &[interface, "60", "fork"], &environment);
        // Sites of the device do not tell of a batch given up.
        check_posts(&told, 2, &["aborted"]);
        check_buffers(&told);
    }
}

#[test]
fn a_program_under_the_tap_is_counted_once_although_it_passes_two_sites() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = posts(folder.path());
    let [_, preload] = preloads();
    for interface in INTERFACES {
        let told = attach_to_running(&program, &[interface, "60"], &[("LD_PRELOAD", &preload)]);
        // Sites of the tap do not tell of these.
        check_posts(&told, 1, &["aborted", "notifies"]);
        check_buffers(&told);
        let told = attach_to_running(&program, &[interface, "60", "both"], &[("LD_PRELOAD", &preload)]);
        check_posts(&told, 1, &["aborted", "notifies"]);
    }
}

#[test]
fn queue_pairs_that_come_again_or_want_the_same_place_and_threads_that_end_are_counted_to_the_last_request() {
    /// Queue pairs that come and go, threads that post to each, and queue pairs that stay: of these some want the same
    /// one of 4,096 places.
    const CROWD: [&str; 3] = ["20", "3", "600"];
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = compiled(folder.path(), "crowd");
    for preload in preloads() {
        let told = attach_to_running(&program, &CROWD, &[("LD_PRELOAD", &preload)]);
        check_crowd(&told, 20, 3);
    }
}

#[test]
fn requests_that_fail_are_told_as_the_program_says() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = fails(folder.path());
    for preload in preloads() {
        for interface in INTERFACES {
            let arguments = [&[interface][..], &CASES].concat();
            let told = attach_to_running(&program, &arguments, &[("LD_PRELOAD", &preload)]);
            check_failed(&told, &CASES, false);
        }
    }
}
