//! Where results go.

use anyhow::{Context as _, Result};
use serde::Serialize;
use std::fs;
use std::io::Write as _;
use std::path::Path;

/// Says something on standard error. Unlike `eprintln!` it does not panic when nobody reads any more.
macro_rules! note {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "rdma-workload: {}", format_args!($($text)*));
    }};
}
pub(crate) use note;

/// Writes text to a file, or to standard output; a reader that has gone away is the end of the run, not a failure.
pub fn emit(to: Option<&Path>, text: &str) -> Result<()> {
    if let Some(path) = to {
        return fs::write(path, text).with_context(|| format!("writing {}", path.display()));
    }
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("writing to standard output"),
    }
}

/// A value as indented JSON with a final newline.
pub fn json(value: &impl Serialize) -> Result<String> {
    Ok(format!("{}\n", serde_json::to_string_pretty(value)?))
}
