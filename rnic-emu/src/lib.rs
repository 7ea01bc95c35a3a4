//! An emulated RNIC that any libibverbs program can use.
//!
//! The preloadable library (`rnic-emu-preload`) interposes libibverbs' exports and hands calls on emulated devices to
//! [`control`] and, through the operations table of the context, to the probe [`sites`], behind which [`post`] and
//! [`poll`] lie. The [`engine`] carries work requests out, in this process or over the [`wire`] in another.

pub mod abi;
pub mod control;
pub mod device;
mod engine;
pub mod launch;
pub mod model;
mod object;
mod poll;
mod post;
pub mod sites;
pub mod stats;
mod sys;
mod told;
mod wire;
