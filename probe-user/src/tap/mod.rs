//! The counters of a process that runs under `verbs-tap`, read from the memory it shares.
//!
//! They are exact and need no privilege beyond that of looking into the process. The file stays readable after the
//! process has ended, for whoever opened it before. Layout in [`probe_common::tap`].

mod file;
mod memfd;
mod messages;
mod reading;
mod source;
mod told;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

pub use file::{Tap, TapError};
pub use messages::MessageLog;
pub use reading::{Counts, Kind, Object, Reading, ThreadCounts, opcode_name};
pub use source::TapSource;
pub(crate) use told::{counts, opcode};

/// File name of the preloadable library.
pub const LIBRARY: &str = "libverbs_tap.so";

/// Where the library is: beside the running program, or where installations keep it. `None` if it is at none of these.
pub fn library() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let beside = program.parent()?;
    [beside.join(LIBRARY), beside.join("deps").join(LIBRARY), beside.join("../lib/rdma-probe").join(LIBRARY)]
        .into_iter()
        .find(|path| path.is_file())
}

/// `LD_PRELOAD` for a program that is to run under the tap: before whatever is preloaded already, so that the verbs of
/// an emulated device are behind the tap.
pub fn preload(library: &Path) -> OsString {
    preload_before(library, std::env::var_os("LD_PRELOAD").as_deref())
}

/// `LD_PRELOAD` with the tap before what it would otherwise be.
pub fn preload_before(library: &Path, already: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(already) = already.filter(|value| !value.is_empty()) {
        value.push(":");
        value.push(already);
    }
    value
}
