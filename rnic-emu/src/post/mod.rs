//! Posting work requests: reading what the program hands us into the queues.

pub mod check;
pub mod digest;
pub mod recv;
pub mod send;
pub mod shown;
pub mod wr_api;
