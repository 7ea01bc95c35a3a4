//! Where things are: the workspace, what cargo built, and the cache that outlives a clean clone.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The workspace's top folder.
pub fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// Cargo's target folder: `CARGO_TARGET_DIR`, which is relative to the caller's folder, else `target` in the workspace.
pub fn target() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) if !dir.is_empty() => std::path::absolute(&dir).unwrap_or_else(|_| dir.into()),
        _ => workspace().join("target"),
    }
}

/// Where cargo leaves the binaries of a profile.
pub fn binaries(release: bool) -> PathBuf {
    target().join(if release { "release" } else { "debug" })
}

/// The cache for downloads and built tools, outside `target/` so that a clean clone finds them again.
pub fn cache() -> Result<PathBuf> {
    cache_from(env::var_os("XDG_CACHE_HOME"), env::var_os("HOME"))
        .context("neither XDG_CACHE_HOME nor HOME is set to an absolute path: set one, the cache lives there")
}

/// The XDG rule: an absolute `XDG_CACHE_HOME` wins, a relative one is ignored.
fn cache_from(xdg: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |value: Option<OsString>| value.map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute(xdg).or_else(|| absolute(home).map(|home| home.join(".cache")))?;
    Some(base.join("rdma-probe"))
}

/// Finds a program on PATH, and in the system folders an ordinary user's PATH may lack.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    env::split_paths(&path).chain(system).map(|dir| dir.join(name)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(text: &str) -> Option<OsString> {
        Some(OsString::from(text))
    }

    #[test]
    fn cache_prefers_an_absolute_xdg_cache_home() {
        assert_eq!(cache_from(os("/c"), os("/h")), Some(PathBuf::from("/c/rdma-probe")));
    }

    #[test]
    fn a_relative_or_empty_xdg_cache_home_is_ignored() {
        assert_eq!(cache_from(os("c"), os("/h")), Some(PathBuf::from("/h/.cache/rdma-probe")));
        assert_eq!(cache_from(os(""), os("/h")), Some(PathBuf::from("/h/.cache/rdma-probe")));
    }

    #[test]
    fn without_any_absolute_home_there_is_no_cache() {
        assert_eq!(cache_from(None, None), None);
        assert_eq!(cache_from(None, os("h")), None);
    }
}
