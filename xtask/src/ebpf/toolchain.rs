//! Toolchains that can compile for BPF: a compiler with the sources of `core`, and a linker that shares its LLVM.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::record::Versions;
use crate::command;
use crate::setup::tools;

/// A usable toolchain.
#[derive(Debug, Clone)]
pub struct Toolchain {
    kind: Kind,
    /// Where the compiler's libraries and sources are.
    pub sysroot: PathBuf,
    /// bpf-linker.
    pub linker: PathBuf,
    /// llvm-objcopy.
    pub objcopy: PathBuf,
    /// What it is made of.
    pub versions: Versions,
}

/// Who provides the compiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Debian's rustc-web with rust-web-src: a stable compiler that is told to accept nightly features.
    Debian,
    /// rustup's nightly with its rust-src component.
    Nightly,
}

/// Debian's compiler, not rustup's proxy of the same name.
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";

impl Toolchain {
    /// Finds one: Debian's first, since the committed object is made with it.
    ///
    /// # Errors
    /// When there is none, with what each one lacks.
    pub fn find() -> Result<Self> {
        let mut lacks = Vec::new();
        for kind in [Kind::Debian, Kind::Nightly] {
            match Self::of(kind) {
                Ok(toolchain) => return Ok(toolchain),
                Err(error) => lacks.push(format!("  {}: {error:#}", kind.name())),
            }
        }
        bail!(
            "no toolchain here compiles for BPF:\n{}\nOn Debian `cargo xtask setup --ebpf` installs one; with rustup: \
             `rustup toolchain install nightly -c rust-src` and `cargo install bpf-linker`",
            lacks.join("\n")
        )
    }

    fn of(kind: Kind) -> Result<Self> {
        let sysroot = PathBuf::from(command::text(kind.rustc().args(["--print", "sysroot"]))?);
        let core = sysroot.join("lib/rustlib/src/rust/library/core/Cargo.toml");
        if !core.exists() {
            bail!("no sources of core (\"{}\")", core.display());
        }
        let verbose = command::text(kind.rustc().arg("-vV"))?;
        let linker = tools::find(tools::LINKER).context("no bpf-linker")?;
        let objcopy = kind.objcopy(&sysroot, &verbose)?;
        let versions = versions(&verbose, &command::text(Command::new(&linker).arg("--version"))?)?;
        Ok(Self { kind, sysroot, linker, objcopy, versions })
    }

    /// A cargo that compiles with it.
    pub fn cargo(&self) -> Command {
        match self.kind {
            Kind::Debian => {
                let mut cargo = command::cargo();
                cargo.env("RUSTC", DEBIAN_RUSTC).env("RUSTC_BOOTSTRAP", "1");
                cargo
            }
            Kind::Nightly => {
                let mut rustup = Command::new("rustup");
                rustup.args(["run", "nightly", "cargo"]);
                // `cargo xtask` was itself started by rustup's proxy, which pinned these for its children.
                rustup.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env_remove("RUSTC");
                rustup
            }
        }
    }
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Debian => "Debian's rustc-web",
            Self::Nightly => "rustup's nightly",
        }
    }

    fn objcopy(self, sysroot: &Path, verbose: &str) -> Result<PathBuf> {
        let path = match self {
            Self::Debian => {
                let major = tools::llvm_major(verbose).context("the compiler does not name its LLVM")?;
                PathBuf::from(format!("/usr/lib/llvm-{major}/bin/llvm-objcopy"))
            }
            Self::Nightly => {
                let host = verbose.lines().find_map(|line| line.strip_prefix("host: "));
                let host = host.context("the compiler does not name its host")?;
                sysroot.join("lib/rustlib").join(host).join("bin/rust-objcopy")
            }
        };
        if !path.exists() {
            bail!("no \"{}\"", path.display());
        }
        Ok(path)
    }

    fn rustc(self) -> Command {
        match self {
            Self::Debian => Command::new(Path::new(DEBIAN_RUSTC)),
            Self::Nightly => {
                let mut rustup = Command::new("rustup");
                rustup.args(["run", "nightly", "rustc"]).env_remove("RUSTUP_TOOLCHAIN");
                rustup
            }
        }
    }
}

/// Reads `rustc -vV` and `bpf-linker --version`.
fn versions(rustc: &str, linker: &str) -> Result<Versions> {
    let rustc_line = rustc.lines().next().and_then(|line| line.strip_prefix("rustc "));
    let llvm_line = rustc.lines().find_map(|line| line.strip_prefix("LLVM version: "));
    let linker_line = linker.lines().next().and_then(|line| line.strip_prefix("bpf-linker "));
    Ok(Versions {
        rustc: rustc_line.context("rustc does not name its version")?.trim().to_owned(),
        llvm: llvm_line.context("rustc does not name its LLVM")?.trim().to_owned(),
        bpf_linker: linker_line.context("bpf-linker does not name its version")?.trim().to_owned(),
    })
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Versions { rustc, llvm, bpf_linker } = &self.versions;
        write!(f, "{} {rustc}, LLVM {llvm}, bpf-linker {bpf_linker}", self.kind.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_the_programs_print() {
        let rustc = "rustc 1.96.0 (ac68faa20 2026-05-25)\nbinary: rustc\nLLVM version: 22.1.8\n";
        let read = versions(rustc, "bpf-linker 0.13.0\n").unwrap();
        assert_eq!((read.rustc.as_str(), read.llvm.as_str()), ("1.96.0 (ac68faa20 2026-05-25)", "22.1.8"));
        assert_eq!(read.bpf_linker, "0.13.0");
    }

    #[test]
    fn unreadable_versions_are_an_error_and_not_empty() {
        assert!(versions("", "bpf-linker 0.13.0").is_err());
        assert!(versions("rustc 1.96.0\n", "bpf-linker 0.13.0").is_err());
        assert!(versions("rustc 1.96.0\nLLVM version: 22.1.8\n", "ld 2.40").is_err());
    }
}
