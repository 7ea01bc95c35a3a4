//! The profiler against ground truth, on the emulated device.

use crate::kit::built;
use crate::probes::counted_exactly;

#[test]
fn the_tap_counts_every_variant_as_the_workload_does() {
    built("rnic-emu-preload", "librnic_emu.so");
    built("verbs-tap", "libverbs_tap.so");
    counted_exactly(&built("probe-user", "rdma-probe"), "emu0", &["--tap"]);
}
