//! The library under test, and programs that are tried with it.

#![allow(dead_code, reason = "each test uses its part of the kit")]

use std::path::PathBuf;
use std::sync::OnceLock;

/// The library.
pub fn library() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| testkit::built("rnic-emu-preload", "librnic_emu.so")).clone()
}
