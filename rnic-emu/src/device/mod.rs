//! The emulated devices, the process that has them open, and what they say about themselves.

pub mod attr;
pub mod config;
pub mod context;
pub mod gid;
pub mod list;
pub mod process;
pub mod speed;
