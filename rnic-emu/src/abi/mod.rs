//! The libibverbs ABI, as C programs compiled against `infiniband/verbs.h` see it.
//!
//! Written out here rather than generated: the structs are a frozen ABI, the build then needs neither clang nor
//! rdma-core's headers, and the library that is preloaded *beside* libibverbs must not itself depend on it. Names are
//! the header's own, so that both can be read side by side. `layout.rs` pins every offset a tracer or program relies on.
#![expect(
    missing_docs,
    reason = "fields and constants are documented by infiniband/verbs.h, whose names they keep"
)]

pub mod consts;
mod context;
mod cq;
mod device;
#[cfg(test)]
mod layout;
mod memory;
mod qp;
mod wr;

pub use context::*;
pub use cq::*;
pub use device::*;
pub use memory::*;
pub use qp::*;
pub use wr::*;
