//! The profiler against ground truth, on the emulated device.

use crate::probes::counted_exactly;

#[test]
fn the_tap_counts_every_variant_as_the_workload_does() {
    testkit::built("rnic-emu-preload", "librnic_emu.so");
    testkit::built("verbs-tap", "libverbs_tap.so");
    counted_exactly(&testkit::built("probe-user", "rdma-probe"), "emu0", &["--tap"]);
}
