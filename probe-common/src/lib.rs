//! Wire types shared by the BPF programs, user space and the preloaded libraries.
//!
//! Everything here is plain data with a fixed layout (`repr(C)`, no padding that carries meaning, no pointers), so that
//! the BPF object and the program that loads it agree whatever compiler made each.
#![no_std]

// For libraries that tell; the programs take the registers as they come.
#[cfg(not(target_arch = "bpf"))]
pub mod alone;
pub mod call;
pub mod counters;
pub mod failures;
pub mod histogram;
pub mod hook;
pub mod hot;
// Memory shared between processes; Rust has no atomics for the BPF target, and its programs have no part in it.
#[cfg(not(target_arch = "bpf"))]
pub mod messages;
pub mod recipe;
pub mod site;
#[cfg(not(target_arch = "bpf"))]
pub mod tap;
pub mod under_way;
pub mod verbs;
pub mod wire;

pub use call::CallId;
pub use hook::{Hook, Layout, Part, Returns};
