//! Libraries that export verbs: what they export, which version of a symbol a program gets, where they are found.

mod elf;
mod exits;
mod needed;
mod search;

pub use elf::{Export, Image, ParseError};
pub use search::{cached_libraries, candidates};
