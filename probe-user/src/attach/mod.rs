//! Putting probes into libraries and the kernel, and saying how it went.

mod kernel;
mod library;
mod multi;
mod perf;
mod program;
mod tracefs;
mod verdict;

pub use kernel::KernelProbes;
pub use library::{Attachment, LibraryProbes, drop_links};
pub use multi::attach_file as attach_many;
pub use perf::{Link, Pmu, pid_namespace_is_initial};
pub use program::{LoadError, Programs, Setting};
pub use tracefs::{FileEvent, FileEvents};
pub use verdict::{AttachError, Circumstances, verdict_of, verdict_on_loading};
