//! The library under test.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The library, built first: cargo does not build a package's shared library for its tests.
pub fn library() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            let exe = std::env::current_exe().expect("own path");
            let profile_dir = exe.ancestors().nth(2).expect("a profile's folder");
            let target_dir = profile_dir.parent().expect("a target folder");
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--quiet", "--package", "rnic-emu-preload", "--target-dir"]).arg(target_dir);
            if profile_dir.ends_with("release") {
                cargo.arg("--release");
            }
            assert!(cargo.status().expect("cargo").success(), "cannot build librnic_emu.so");
            profile_dir.join("librnic_emu.so").canonicalize().expect("the library just built")
        })
        .clone()
}
