//! Between processes of one host: shared memory rings, found through abstract sockets, woken only when asleep.
//!
//! A process claims a *slot* (the upper bits of its QP numbers) by binding the abstract socket of that slot, which the
//! kernel frees when the process dies, however it dies. To send requests to another process it connects to that
//! process' socket and passes a sealed memory file with two rings: its requests, and the answers to them. Each
//! direction of traffic thus has a connection of its own, and a closed connection is a dead peer.
//!
//! Whatever lies in shared memory may be rewritten by the peer at any moment: headers are copied out once and then
//! checked, indices are bounded, and payload is only ever copied where a memory key allows.

pub mod helper;
#[cfg(test)]
mod hostile;
pub mod in_link;
pub mod links;
pub mod memory;
pub mod out_link;
pub mod packet;
pub mod rendezvous;
pub mod ring;
pub mod socket;

pub use links::Wire;
