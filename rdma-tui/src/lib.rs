//! The live dashboard of a host's RDMA: what it does right now, what is wrong, what would help.
//!
//! [`app`] is a state machine without drawing, [`view`] draws it without deciding, [`feed`] brings records into
//! the [`app::world::World`] both look at, [`run`] waits for keys and data and brings the three together.

pub mod app;
pub mod cli;
pub mod feed;
pub mod input;
pub mod output;
pub mod run;
pub mod terminal;
pub mod theme;
pub mod view;
