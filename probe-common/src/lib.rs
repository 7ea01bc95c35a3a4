//! Wire types shared by the BPF programs, user space and the preloaded libraries.
#![no_std]

pub mod site;
pub mod tap;
