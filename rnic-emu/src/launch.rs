//! Starting a program with emulated devices: where the library is, what environment it needs.

use crate::device::config::{ENV_DEVICES, ENV_PART_ID, ENV_PROFILE, ENV_SPEED};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Name of the library to preload.
pub const LIBRARY: &str = "librnic_emu.so";
/// Environment variable that says where it is.
pub const ENV_LIBRARY: &str = "RNIC_EMU_LIB";

/// What the devices shall be like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Number of devices.
    pub devices: Option<usize>,
    /// Part ID they present.
    pub part_id: Option<u32>,
    /// Timing profile: a built-in name, or a path.
    pub profile: Option<String>,
    /// Speed modelled time runs at, as [`Speed`](crate::device::speed::Speed) reads it.
    pub speed: Option<String>,
}

/// The library was not found.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{LIBRARY} is neither named by {ENV_LIBRARY} nor beside this program (looked in {}); \
     build it with `cargo build -p rnic-emu-preload`", .looked.display()
)]
pub struct NoLibrary {
    looked: PathBuf,
}

/// The library to preload: the one named in the environment, or the one beside this program.
///
/// # Errors
/// [`NoLibrary`] says where it was looked for.
pub fn library(named: Option<&OsStr>, program: &Path) -> Result<PathBuf, NoLibrary> {
    if let Some(path) = named.filter(|p| !p.is_empty()).map(PathBuf::from) {
        return if path.is_file() { Ok(absolute(path)) } else { Err(NoLibrary { looked: path }) };
    }
    let dir = program.parent().unwrap_or(Path::new("."));
    // Test and example programs lie one folder below the library.
    [dir.join(LIBRARY), dir.join("..").join(LIBRARY), dir.join("../lib").join(LIBRARY)]
        .into_iter()
        .find(|p| p.is_file())
        .map(absolute)
        .ok_or_else(|| NoLibrary { looked: dir.into() })
}

/// The program may change its folder; the path must not depend on it.
fn absolute(path: PathBuf) -> PathBuf {
    path.canonicalize().unwrap_or(path)
}

/// Environment variables for the program, given the LD_PRELOAD it would otherwise have. Ours comes last: a layer the
/// user preloads (a tap, a sanitizer) must stay on top.
pub fn environment(library: &Path, preload: Option<&OsStr>, wanted: &Wanted) -> Vec<(OsString, OsString)> {
    let mut all = preload.filter(|p| !p.is_empty()).map(OsString::from).unwrap_or_default();
    if !all.is_empty() {
        all.push(":");
    }
    all.push(library);
    let mut vars = vec![("LD_PRELOAD".into(), all)];
    if let Some(n) = wanted.devices {
        vars.push((ENV_DEVICES.into(), n.to_string().into()));
    }
    if let Some(id) = wanted.part_id {
        vars.push((ENV_PART_ID.into(), id.to_string().into()));
    }
    if let Some(profile) = &wanted.profile {
        vars.push((ENV_PROFILE.into(), profile.into()));
    }
    if let Some(speed) = &wanted.speed {
        vars.push((ENV_SPEED.into(), speed.into()));
    }
    vars
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_already_preloaded_stays_and_comes_first() {
        let vars = environment(Path::new("/x/librnic_emu.so"), Some(OsStr::new("/a.so")), &Wanted::default());
        assert_eq!(vars, [("LD_PRELOAD".into(), "/a.so:/x/librnic_emu.so".into())]);
        let vars = environment(
            Path::new("/x.so"),
            Some(OsStr::new("")),
            &Wanted { devices: Some(2), part_id: Some(4123), ..Wanted::default() },
        );
        assert_eq!(vars.len(), 3);
        assert_eq!(vars[0].1, "/x.so");
    }

    #[test]
    fn a_missing_library_is_reported_with_the_place_and_the_fix() {
        let e = library(Some(OsStr::new("/nowhere.so")), Path::new("/bin/x")).expect_err("not there");
        assert!(e.to_string().contains("/nowhere.so") && e.to_string().contains("cargo build"), "{e}");
    }
}
