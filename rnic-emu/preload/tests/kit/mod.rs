//! The library under test, and programs that are tried with it.

#![allow(dead_code, reason = "each test uses its part of the kit")]

use std::path::PathBuf;

/// The library.
pub fn library() -> PathBuf {
    testkit::built("rnic-emu-preload", "librnic_emu.so")
}
