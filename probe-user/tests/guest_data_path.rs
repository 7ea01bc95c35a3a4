//! The data path of stock programs on a stock, stripped provider, on real soft-RoCE.

mod data_path;

use serde_json::Value;

use data_path::{
    BANDWIDTH, Case, attach_to_running, attach_to_running_by, check, check_buffers, check_posts,
    count_script, perftest, posts,
};

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn perftest_on_a_stripped_provider_is_counted_to_the_last_request() {
    // On soft-RoCE an unreliable connection of perftest's loses messages, and the server waits for them for ever.
    let cases: Vec<Case> = BANDWIDTH.into_iter().filter(|case| !case.more.contains("-c U")).collect();
    let told = count_script(&perftest(&cases, "", "-d $RDMA_DEV -x $RDMA_GID_INDEX", "$RDMA_IP", 19_400));
    check(&cases, &told, false);
}

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn a_running_program_and_its_child_are_counted_to_the_last_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = posts(folder.path());
    let told = attach_to_running(&program, &["classic", "40", "fork"], &[]);
    check_posts(&told, 2, &[]);
    check_buffers(&told);
}

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn the_extended_interface_of_a_stripped_provider_is_counted_to_the_last_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = posts(folder.path());
    for interface in ["extended", "extended-post", "extended-poll"] {
        let told = attach_to_running(&program, &[interface, "40", "rxe"], &[]);
        check_posts(&told, 1, &[]);
        check_buffers(&told);
    }
}

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn the_extended_interface_of_a_stripped_provider_tells_what_is_not_seen_of_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = posts(folder.path());
    // librxe's next_poll would be single-stepped, and is left alone.
    let told = attach_to_running_by(&["--overhead", "50"], &program, &["extended", "40", "rxe"], &[]);
    let did: Value = serde_json::from_str(told.printed.trim()).expect("what it did");
    let counted = told.of(did["pid"].as_u64().expect("a pid"));
    let said = |field: &str| did[field].as_u64().expect("a number");
    // One completion entry of each poll is seen, and that there may be more. There were.
    let (cqes, cut) = (counted.total("cqes"), counted.total("cut_polls"));
    assert!(cqes > 0 && cqes == cut, "{:?}", counted.0);
    assert!(said("cqes") > said("polls") - said("empty_polls"), "{did}");
    // What was reaped by those is not known either.
    assert_eq!((counted.latencies(), counted.unmatched()), (0, 0), "{:?}", counted.0);
}
