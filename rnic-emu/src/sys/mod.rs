//! What the device needs of the operating system: locks, clock, descriptors, memory, threads.

pub mod bell;
pub mod clock;
pub mod copy;
pub mod fork;
pub mod lock;
pub mod memfd;
pub mod thread;
