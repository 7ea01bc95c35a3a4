//! What is watched: processes, the libraries they map, and commands started under the profiler.

mod command;
mod maps;
mod process;

pub use command::{Identity, Paused, Running, invoking_user, program_file};
pub use maps::{MappedFile, identity, mapped_files};
pub use process::{children_of, direct_children_of, has_ended, parent_of, process, start_ns_of};
