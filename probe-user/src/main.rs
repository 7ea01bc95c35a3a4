//! `rdma-probe`: record, report and diagnose RDMA programs.

fn main() {}
