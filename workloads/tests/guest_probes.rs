//! Probes and tap against ground truth on real soft-RoCE.

mod probes;

use std::path::Path;

fn counted_exactly(data_path: &[&str]) {
    let device = std::env::var("RDMA_DEV").expect("RDMA_DEV names the guest's device");
    probes::counted_exactly(Path::new("rdma-probe"), &device, data_path);
}

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn the_tap_counts_every_variant_as_the_workload_does() {
    counted_exactly(&["--tap"]);
}

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn the_probes_count_every_variant_as_the_workload_does() {
    counted_exactly(&["--data-path", "full"]);
}
