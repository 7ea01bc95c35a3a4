//! The library under test, and programs that are tried with it.

#![allow(dead_code, reason = "each test uses its part of the kit")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The library, built first: cargo does not build a package's shared library for its tests.
pub fn library() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("rnic-emu-preload", "librnic_emu.so")).clone()
}

/// What `package` builds under the name `file`, built as this test is.
pub fn built(package: &str, file: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("own path");
    let profile_dir = exe.ancestors().nth(2).expect("a profile's folder");
    let target_dir = profile_dir.parent().expect("a target folder");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", package, "--target-dir"]).arg(target_dir);
    if profile_dir.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().expect("cargo").success(), "cannot build {package}");
    profile_dir.join(file).canonicalize().expect("what was just built")
}
