//! `cargo xtask screenshots`: every page of the dashboard as a picture, from a recorded trace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::command;
use crate::paths;

/// The trace shown: stock `ib_write_bw` on the emulated RNIC, as recorded.
const TRACE: &str = "rdma-tui/tests/traces/write_bw.trace";

/// Where the pictures are kept.
const FOLDER: &str = "docs/screens";

/// Arguments of `screenshots`.
#[derive(Debug, Args)]
pub struct Options {
    /// Fail where the pictures in docs/screens are not those the dashboard draws now
    #[arg(long)]
    pub check: bool,
}

/// Draws the pictures, or compares them.
///
/// # Errors
/// When the dashboard does not build or cannot read the trace; with `--check`, when a picture is stale.
pub fn main(options: &Options) -> Result<u8> {
    // The page of workloads shows the list that rdma-workload gives.
    command::run(command::cargo().args([
        "build",
        "--quiet",
        "--package",
        "rdma-tui",
        "--package",
        "workloads",
    ]))?;
    if options.check {
        check()?;
    } else {
        print!("{}", draw(&kept())?);
    }
    Ok(0)
}

/// Compares the pictures with what the programs draw that were built before.
///
/// # Errors
/// When the dashboard cannot read the trace or a picture is stale.
pub fn check() -> Result<()> {
    let kept = kept();
    let fresh = paths::target().join("screens");
    draw(&fresh)?;
    let stale = stale(&kept, &fresh)?;
    if stale.is_empty() {
        return Ok(());
    }
    bail!("no longer what the dashboard draws: {}; run `cargo xtask screenshots`", stale.join(", "))
}

fn kept() -> PathBuf {
    paths::workspace().join(FOLDER)
}

/// Draws every page into `folder`; returns the names of the files as the dashboard prints them.
fn draw(folder: &Path) -> Result<String> {
    let mut tui = Command::new(paths::binaries(false).join("rdma-tui"));
    tui.current_dir(paths::workspace()).args(["--replay", TRACE, "--size", "120x36", "--svg"]).arg(folder);
    command::output(&mut tui).map(|names| String::from_utf8_lossy(&names).into_owned())
}

/// Names of the pictures in `kept` that differ from those in `fresh` or are missing.
fn stale(kept: &Path, fresh: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let entries = fs::read_dir(fresh).with_context(|| format!("cannot read '{}'", fresh.display()))?;
    for entry in entries {
        let name = entry?.file_name();
        let read = |folder: &Path| fs::read(folder.join(&name)).unwrap_or_default();
        if read(kept) != read(fresh) {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_that_differs_or_is_missing_is_stale() {
        let folder = tempfile::tempdir().unwrap();
        let (kept, fresh) = (folder.path().join("kept"), folder.path().join("fresh"));
        for path in [&kept, &fresh] {
            fs::create_dir(path).unwrap();
            fs::write(path.join("same.svg"), "x").unwrap();
        }
        fs::write(kept.join("old.svg"), "1").unwrap();
        fs::write(fresh.join("old.svg"), "2").unwrap();
        fs::write(fresh.join("new.svg"), "3").unwrap();
        assert_eq!(stale(&kept, &fresh).unwrap(), ["new.svg", "old.svg"]);
    }
}
