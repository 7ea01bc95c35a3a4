//! `cargo xtask build --ebpf`: the BPF object, from source, with whichever toolchain is here.
//!
//! Users get the object that is committed beside [`RECORD`], so that nobody needs LLVM to build the product. What
//! made it is recorded, and with the same toolchain the same bytes must come out again.

pub mod identity;
mod record;
mod toolchain;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::command;
use crate::paths;
use record::Record;
pub use toolchain::Toolchain;

/// Folder of the BPF programs, in the workspace.
const SOURCE: &str = "probe-ebpf";
/// What the sources of the object are: the programs and the types they share with user space.
const SOURCES: [&str; 6] = [
    "probe-ebpf/Cargo.toml",
    "probe-ebpf/Cargo.lock",
    "probe-ebpf/src",
    "probe-ebpf/build.rs",
    "probe-common/Cargo.toml",
    "probe-common/src",
];
/// The committed object, in the workspace.
const OBJECT: &str = "probe-ebpf/prebuilt/probe.bpfel.o";
/// What made it.
const RECORD: &str = "probe-ebpf/prebuilt/TOOLCHAIN";
/// Rust's name for little-endian BPF.
const TARGET: &str = "bpfel-unknown-none";

/// How a rebuilt object compares with the committed one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison {
    /// The same bytes.
    Same,
    /// Other bytes, at this path, from the recorded toolchain: the committed object is not what its source says.
    Different(PathBuf),
    /// Another toolchain than the recorded one made the object at this path.
    OtherToolchain(PathBuf),
}

/// Builds the object and commits it to its place, with the record of what made it.
///
/// # Errors
/// When there is no toolchain for it, or the programs do not compile.
pub fn build() -> Result<()> {
    let toolchain = Toolchain::find()?;
    println!("build: BPF object with {toolchain}");
    let built = compile(&toolchain)?;
    let record =
        Record { made_by: toolchain.versions.clone(), object: sha256(&built)?, source: source_digest()? };
    write(OBJECT, &fs::read(&built)?)?;
    write(RECORD, record.to_string().as_bytes())?;
    println!("build: wrote {OBJECT} ({} bytes) and {RECORD}", fs::metadata(&built)?.len());
    Ok(())
}

/// Builds the object anew and compares it with the committed one, which stays as it is.
///
/// # Errors
/// When nothing is committed, there is no toolchain, or the programs do not compile.
pub fn check() -> Result<Comparison> {
    let record = committed()?;
    let toolchain = Toolchain::find()?;
    let built = compile(&toolchain)?;
    let same_bytes = fs::read(&built)? == fs::read(paths::workspace().join(OBJECT))?;
    Ok(match (same_bytes, record.made_by == toolchain.versions) {
        (true, _) => Comparison::Same,
        (false, true) => Comparison::Different(built),
        (false, false) => Comparison::OtherToolchain(built),
    })
}

/// True when the committed object was made from sources with the same digest as those here; needs no toolchain.
///
/// # Errors
/// When nothing is committed, or the object is not the recorded one.
pub fn is_current() -> Result<bool> {
    Ok(committed()?.source == source_digest()?)
}

/// The manifest of the BPF programs, which are no member of the workspace.
pub fn manifest() -> PathBuf {
    paths::workspace().join(SOURCE).join("Cargo.toml")
}

/// True when there are BPF programs and an object made of them.
pub fn is_committed() -> bool {
    paths::workspace().join(OBJECT).exists()
}

/// The record of the committed object, which must be the one recorded.
fn committed() -> Result<Record> {
    let path = paths::workspace().join(RECORD);
    let text = fs::read_to_string(&path).with_context(|| {
        format!("no record of what made the BPF object: `cargo xtask build --ebpf` writes {RECORD}")
    })?;
    let record: Record = text.parse().with_context(|| format!("cannot read {RECORD}"))?;
    ensure!(
        sha256(&paths::workspace().join(OBJECT))? == record.object,
        "{OBJECT} is not the object that {RECORD} describes: rebuild it with `cargo xtask build --ebpf`"
    );
    Ok(record)
}

/// Compiles the programs; returns the object's path below `target/`.
fn compile(toolchain: &Toolchain) -> Result<PathBuf> {
    let source = paths::workspace().join(SOURCE);
    ensure!(manifest().exists(), "there are no BPF programs in {SOURCE}/");
    let target = paths::target().join("ebpf");
    let mut cargo = toolchain.cargo();
    cargo.current_dir(&source);
    cargo.args(["build", "--quiet", "--locked", "--release", "-Zbuild-std=core", "--target", TARGET]);
    cargo.arg("--target-dir").arg(&target);
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags(toolchain)?.join("\x1f")).env_remove("RUSTFLAGS");
    cargo.env("RUSTC_WRAPPER", std::env::current_exe().context("cannot find xtask's own path")?);
    cargo.env(identity::VARIABLE, "1");
    command::run(&mut cargo).context("the BPF programs do not build")?;
    let object = target.join("probe.bpfel.o");
    strip(toolchain, &target.join(TARGET).join("release/probe"), &object)?;
    let bytes = fs::read(&object).with_context(|| format!("no object at \"{}\"", object.display()))?;
    if let Some(path) = private_paths(toolchain)?.iter().find(|path| contains(&bytes, path)) {
        bail!("the BPF object has a path of this machine inside, \"{path}\": it would differ on every other");
    }
    Ok(object)
}

/// Leaves out DWARF, which nothing reads: the kernel and the loader go by BTF.
fn strip(toolchain: &Toolchain, from: &Path, to: &Path) -> Result<()> {
    let mut objcopy = Command::new(&toolchain.objcopy);
    command::run(objcopy.arg("--strip-debug").arg(from).arg(to)).context("cannot strip the BPF object")
}

/// Compiler flags: BTF, and names instead of this machine's paths.
fn flags(toolchain: &Toolchain) -> Result<Vec<String>> {
    let linker = toolchain.linker.to_str().context("the linker's path is not UTF-8")?;
    let mut flags = vec![format!("-Clinker={linker}"), "-Clink-arg=--btf".to_owned()];
    let names = ["/source", "/cargo", "/rust", "/rust"];
    for (path, name) in private_paths(toolchain)?.iter().zip(names) {
        flags.push(format!("--remap-path-prefix={path}={name}"));
    }
    Ok(flags)
}

/// The workspace, cargo's home, and the compiler's sources by both their names.
fn private_paths(toolchain: &Toolchain) -> Result<Vec<String>> {
    let cargo_home = match std::env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cargo"),
    };
    let sources = toolchain.sysroot.join("lib/rustlib/src/rust");
    // Debian keeps them elsewhere and links to them; `library` is the link or below it.
    let library = fs::canonicalize(sources.join("library"))?;
    let real = library.parent().unwrap_or(&library).to_path_buf();
    let mut paths = vec![paths::workspace(), cargo_home, sources, real];
    paths.dedup();
    let text =
        |path: &PathBuf| path.to_str().map(str::to_owned).context("a path of the toolchain is not UTF-8");
    paths.iter().map(text).collect()
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// A digest over names and contents of all source files, in a stable order.
fn source_digest() -> Result<String> {
    let mut files = Vec::new();
    for source in SOURCES {
        collect(&paths::workspace().join(source), &mut files)?;
    }
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let name = file.strip_prefix(paths::workspace()).unwrap_or(&file);
        let content = fs::read(&file).with_context(|| format!("cannot read \"{}\"", file.display()))?;
        all.extend_from_slice(format!("{} {}\n", name.display(), content.len()).as_bytes());
        all.extend_from_slice(&content);
    }
    digest(&all)
}

/// The files at and below a path; none where it does not exist.
fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            collect(&entry?.path(), files)?;
        }
    } else if path.exists() {
        files.push(path.to_path_buf());
    }
    Ok(())
}

fn sha256(path: &Path) -> Result<String> {
    digest(&fs::read(path).with_context(|| format!("cannot read \"{}\"", path.display()))?)
}

/// SHA-256 in hexadecimal, by coreutils.
fn digest(bytes: &[u8]) -> Result<String> {
    let mut child = command::tool("sha256sum")?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    // It reads everything before it writes its one line, so there is nothing to deadlock on.
    child.stdin.take().context("sha256sum has no input")?.write_all(bytes)?;
    let output = child.wait_with_output()?;
    let line = String::from_utf8_lossy(&output.stdout);
    let digest = line.split_whitespace().next().unwrap_or_default();
    ensure!(output.status.success() && digest.len() == 64, "sha256sum printed \"{}\"", line.trim());
    Ok(digest.to_owned())
}

/// Writes a file of the workspace, whole or not at all.
fn write(name: &str, bytes: &[u8]) -> Result<()> {
    let path = paths::workspace().join(name);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let part = path.with_extension("part");
    fs::write(&part, bytes).with_context(|| format!("cannot write \"{}\"", part.display()))?;
    fs::rename(&part, &path).with_context(|| format!("cannot write \"{}\"", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_sha_256() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest(b"").unwrap(), empty);
    }

    #[test]
    fn a_path_is_found_anywhere_in_the_object() {
        assert!(contains(b"\0\0/home/me/src\0", "/home/me"));
        assert!(!contains(b"/home", "/home/me"));
    }
}
