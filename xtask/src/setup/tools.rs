//! Tools that cargo builds, kept in the cache so that a clean clone does not build them again.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command;
use crate::paths;

/// A program from the crates registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tool {
    /// Crate and program name.
    pub name: &'static str,
    /// Version that is known to work.
    pub version: &'static str,
    /// Why it is needed.
    pub why: &'static str,
    /// Arguments for `cargo install` beyond the usual.
    arguments: Vec<String>,
    /// Environment for the build.
    env: Vec<(&'static str, String)>,
}

/// Name of the linker for BPF objects.
pub const LINKER: &str = "bpf-linker";
/// LLVM versions for which that version of the linker has a feature.
pub const LINKER_LLVM: RangeInclusive<u32> = 21..=23;
/// Name of the checker of dependencies.
pub const DENY: &str = "cargo-deny";

/// The linker, for a compiler with this LLVM.
pub fn bpf_linker(llvm_major: u32) -> Tool {
    Tool {
        name: LINKER,
        version: "0.13.0",
        why: "links the BPF object",
        // The default features want a newer LLVM than the compiler has, and the two must agree.
        arguments: vec!["--no-default-features".into(), "--features".into(), format!("llvm-{llvm_major}")],
        // Without it the link fails with "unable to find library -lLLVM".
        env: vec![("LLVM_PREFIX", format!("/usr/lib/llvm-{llvm_major}"))],
    }
}

/// The checker of licences, sources and advisories.
pub fn cargo_deny() -> Tool {
    Tool {
        name: DENY,
        version: "0.20.2",
        why: "checks licences, sources and advisories of the dependencies",
        arguments: Vec::new(),
        env: Vec::new(),
    }
}

impl Tool {
    /// Builds it into the cache.
    ///
    /// # Errors
    /// When cargo fails; what it said is quoted.
    pub fn install(&self) -> Result<()> {
        println!("setup: building {} {} ({}), once", self.name, self.version, self.why);
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["install", "--locked", "--quiet", self.name, "--version", self.version]);
        cargo.args(&self.arguments).arg("--root").arg(root()?);
        // Its intermediate files belong to nobody's target folder.
        cargo.env_remove("CARGO_TARGET_DIR").envs(self.env.iter().cloned());
        command::output(&mut cargo).with_context(|| format!("cannot build {}", self.name)).map(drop)
    }
}

/// A tool's program, where it is built already or the user has one on PATH.
pub fn find(name: &str) -> Option<PathBuf> {
    let cached = root().ok().map(|root| root.join("bin").join(name));
    cached.filter(|path| path.is_file()).or_else(|| paths::program(name))
}

fn root() -> Result<PathBuf> {
    Ok(paths::cache()?.join("toolchain"))
}

/// The LLVM major version of the compiler that Debian packages with its sources.
///
/// # Errors
/// When that compiler is not there or does not name its LLVM.
pub fn debian_llvm_major() -> Result<u32> {
    let verbose = command::text(Command::new("/usr/bin/rustc").arg("-vV"))?;
    let Some(major) = llvm_major(&verbose) else { bail!("/usr/bin/rustc does not name its LLVM version") };
    Ok(major)
}

/// The major number in the line `LLVM version: 22.1.8` of `rustc -vV`.
pub fn llvm_major(verbose: &str) -> Option<u32> {
    let version = verbose.lines().find_map(|line| line.strip_prefix("LLVM version: "))?;
    version.split('.').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_llvm_version_is_read_from_rustc() {
        assert_eq!(llvm_major("rustc 1.96.0\nrelease: 1.96.0\nLLVM version: 22.1.8\n"), Some(22));
        assert_eq!(llvm_major("LLVM version: 9\n"), Some(9));
        assert_eq!(llvm_major("rustc 1.96.0\n"), None);
        assert_eq!(llvm_major("LLVM version: x.1\n"), None);
    }
}
