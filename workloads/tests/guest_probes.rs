//! Probes against ground truth on real soft-RoCE; the tap is held against it natively.

mod probes;

use std::path::Path;

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn the_probes_count_every_variant_as_the_workload_does() {
    let device = std::env::var("RDMA_DEV").expect("RDMA_DEV names the guest's device");
    probes::counted_exactly(Path::new("rdma-probe"), &device, &["--data-path", "full"]);
}
