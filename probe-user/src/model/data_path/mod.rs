//! Posts and polls: per process and per queue.

mod counts;

pub use counts::size_class;
