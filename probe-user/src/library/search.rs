//! Which verbs libraries a command will load, as far as can be told before it runs: with the probes in place
//! beforehand, its very first call is seen.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::needed::needed;

/// Name beginnings of the libraries looked for in search folders.
const NAMES: [&str; 3] = ["libibverbs", "librdmacm", "librnic_emu"];
const CACHE_MAGIC: &[u8] = b"glibc-ld.so.cache1.1";

/// The verbs libraries the dynamic linker's cache knows.
pub fn cached_libraries() -> Vec<PathBuf> {
    fs::read("/etc/ld.so.cache").map(|data| in_cache(&data)).unwrap_or_default()
}

/// Files that may hold verbs for a command: what the cache knows, what is preloaded, and what lies in the search path
/// of the environment or beside the program (`../lib`, as in a conda environment or an installation below `/opt`), or beside
/// this one: programs that bring the emulated device preload it into themselves.
pub fn candidates(program: Option<&Path>, preload: Option<&OsStr>, search: Option<&OsStr>) -> Vec<PathBuf> {
    let mut found: BTreeSet<PathBuf> = cached_libraries().into_iter().collect();
    if let Some(preload) = preload {
        found.extend(preloaded(preload));
    }
    let around = |program: &Path| {
        let folder = fs::canonicalize(program).ok()?.parent()?.to_owned();
        Some([folder.join("../lib"), folder.join("../lib64"), folder.join("../lib/rdma-probe"), folder])
    };
    let beside =
        program.and_then(around).into_iter().chain(std::env::current_exe().ok().as_deref().and_then(around));
    for folder in search.map(std::env::split_paths).into_iter().flatten().chain(beside.flatten()) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if NAMES.iter().any(|wanted| name.starts_with(wanted)) && name.contains(".so") {
                found.insert(entry.path());
            }
        }
    }
    if let Some(program) = program {
        found.insert(program.to_owned());
        found.extend(needed(program, search));
    }
    found.into_iter().collect()
}

/// `LD_PRELOAD`: separated by colons or blanks.
fn preloaded(list: &OsStr) -> impl Iterator<Item = PathBuf> {
    list.as_bytes()
        .split(|byte| matches!(byte, b':' | b' '))
        .filter(|name| name.contains(&b'/'))
        .map(|name| PathBuf::from(OsStr::from_bytes(name)))
}

/// The cache of glibc: header of 48 bytes (magic of 20, number of entries at 20), entries of 24 bytes with offsets of
/// name and path at 4 and 8, counted from the start of the file.
fn in_cache(data: &[u8]) -> Vec<PathBuf> {
    if !data.starts_with(CACHE_MAGIC) {
        return Vec::new();
    }
    let number = |at: usize| {
        let bytes = data.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let text = |at: usize| {
        let rest = data.get(at..)?;
        Some(&rest[..memchr::memchr(0, rest)?])
    };
    let count = number(20).unwrap_or(0).min(data.len() / 24);
    (0..count)
        .filter_map(|i| {
            let entry = 48 + i * 24;
            let name = text(number(entry + 4)?)?;
            let wanted = NAMES.iter().any(|wanted| name.starts_with(wanted.as_bytes()));
            wanted.then(|| Some(PathBuf::from(OsStr::from_bytes(text(number(entry + 8)?)?))))?
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut strings = Vec::new();
        let base = 48 + entries.len() * 24;
        let mut table = Vec::new();
        for (name, path) in entries {
            let mut put = |text: &str| {
                let at = (base + strings.len()) as u32;
                strings.extend(text.bytes().chain([0]));
                at
            };
            let (name, path) = (put(name), put(path));
            table.extend([1u32, name, path, 0, 0, 0].iter().flat_map(|n| n.to_le_bytes()));
        }
        let mut data = CACHE_MAGIC.to_vec();
        data.extend((entries.len() as u32).to_le_bytes());
        data.resize(48, 0);
        data.extend(table);
        data.extend(strings);
        data
    }

    #[test]
    fn the_cache_gives_the_verbs_libraries_and_no_others() {
        let data = cache(&[
            ("libc.so.6", "/lib/libc.so.6"),
            ("libibverbs.so.1", "/opt/v/libibverbs.so.1"),
            ("librdmacm.so.1", "/lib/librdmacm.so.1"),
        ]);
        assert_eq!(
            in_cache(&data),
            [PathBuf::from("/opt/v/libibverbs.so.1"), PathBuf::from("/lib/librdmacm.so.1")]
        );
    }

    #[test]
    fn a_damaged_cache_gives_less_and_never_a_panic() {
        let data = cache(&[("libibverbs.so.1", "/lib/libibverbs.so.1")]);
        for cut in 0..data.len() {
            let _ = in_cache(&data[..cut]);
        }
        let mut huge = data.clone();
        huge[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
        huge[52..56].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(in_cache(&huge).is_empty());
    }

    #[test]
    fn preloads_are_split_as_the_linker_splits_them() {
        let found: Vec<_> = preloaded(OsStr::new("/a/x.so:/b/y.so /c/z.so  libm.so")).collect();
        assert_eq!(found, [PathBuf::from("/a/x.so"), PathBuf::from("/b/y.so"), PathBuf::from("/c/z.so")]);
    }

    #[test]
    fn a_folder_of_the_search_path_is_looked_through() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("libibverbs.so.1.9"), "").unwrap();
        fs::write(folder.path().join("libother.so"), "").unwrap();
        let found = candidates(None, None, Some(folder.path().as_os_str()));
        assert!(found.contains(&folder.path().join("libibverbs.so.1.9")));
        assert!(!found.contains(&folder.path().join("libother.so")));
    }
}
