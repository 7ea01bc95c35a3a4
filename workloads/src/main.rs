//! `rdma-workload`: run and compare the reference workloads.

fn main() {}
