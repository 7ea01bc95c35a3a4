//! Collection: from loaded probes to records.

pub mod clock;
mod counters;
pub mod decode;
pub mod facts;
mod librarian;
mod mappings;
mod probed;
mod processes;
mod session;
mod source;
mod sources;
mod stacks;
pub mod wire;

pub use session::{Options, Posts, Session};
pub use source::Source;
