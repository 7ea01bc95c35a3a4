//! Wire types shared by the BPF programs and user space.
#![no_std]
