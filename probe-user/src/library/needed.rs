//! The libraries a program is linked to, found as the dynamic linker finds them: near enough to look at the right files
//! before the program runs. What is missed here is seen when it is mapped.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::LittleEndian;
use object::elf;
use object::read::elf::{Dyn, FileHeader};
use object::read::{ReadCache, ReadRef};

/// Files looked at per program.
const MAX_FILES: usize = 512;
/// Folders every linker searches.
const USUAL: [&str; 6] =
    ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// What a file asks of the dynamic linker.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wants {
    libraries: Vec<Vec<u8>>,
    /// `DT_RUNPATH`, or `DT_RPATH` where there is none.
    folders: Vec<PathBuf>,
}

/// The libraries a program needs, and those they need.
pub fn needed(program: &Path, search: Option<&OsStr>) -> BTreeSet<PathBuf> {
    let environment: Vec<PathBuf> =
        search.map(|path| std::env::split_paths(path).collect()).unwrap_or_default();
    let mut found = BTreeSet::new();
    let mut queue = vec![program.to_owned()];
    while let Some(path) = queue.pop() {
        let Some(wants) = wants(&path) else { continue };
        for library in wants.libraries {
            let name = Path::new(OsStr::from_bytes(&library));
            let usual = USUAL.iter().map(Path::new);
            let folders = wants.folders.iter().chain(&environment).map(PathBuf::as_path).chain(usual);
            let mut paths = folders.map(|folder| folder.join(name));
            if let Some(path) = paths.find(|path| path.is_file())
                && found.len() < MAX_FILES
                && found.insert(path.clone())
            {
                queue.push(path);
            }
        }
    }
    found
}

fn wants(path: &Path) -> Option<Wants> {
    let origin = std::fs::canonicalize(path).ok()?.parent()?.to_owned();
    parse(&ReadCache::new(File::open(path).ok()?), &origin)
}

/// `None` for what is no dynamic ELF file.
fn parse<'data, R: ReadRef<'data>>(data: R, origin: &Path) -> Option<Wants> {
    const LE: LittleEndian = LittleEndian;
    let header = elf::FileHeader64::<LittleEndian>::parse(data).ok()?;
    let sections = header.sections(LE, data).ok()?;
    let (dynamic, link) = sections.dynamic(LE, data).ok()??;
    let strings = sections.strings(LE, data, link).ok()?;
    let (mut wants, mut runpath, mut rpath) = (Wants::default(), None, None);
    for entry in dynamic {
        let Ok(Some(text)) = entry.string(LE, strings).map(Some) else { continue };
        match entry.tag(LE) {
            elf::DT_NEEDED => wants.libraries.push(text.to_owned()),
            elf::DT_RUNPATH => runpath = Some(text),
            elf::DT_RPATH => rpath = Some(text),
            _ => {}
        }
    }
    if let Some(list) = runpath.or(rpath) {
        wants.folders =
            list.split(|byte| *byte == b':').filter_map(|folder| expand(folder, origin)).collect();
    }
    Some(wants)
}

/// A folder with `$ORIGIN` replaced.
fn expand(folder: &[u8], origin: &Path) -> Option<PathBuf> {
    let text = std::str::from_utf8(folder).ok().filter(|text| !text.is_empty())?;
    let origin = origin.to_str()?;
    Some(text.replace("${ORIGIN}", origin).replace("$ORIGIN", origin).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verbs_program_needs_libibverbs_and_what_that_needs() {
        let found = needed(Path::new("/usr/bin/ibv_devinfo"), None);
        let has = |name: &str| {
            found.iter().any(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(name)))
        };
        assert!(has("libibverbs.so"), "{found:?}");
        assert!(has("libnl-3.so"), "{found:?}");
    }

    #[test]
    fn scripts_and_missing_files_need_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("run.sh");
        std::fs::write(&script, "#!/bin/sh\n").unwrap();
        assert!(needed(&script, None).is_empty());
        assert!(needed(Path::new("/nonexistent"), None).is_empty());
    }

    #[test]
    fn the_origin_is_the_folder_of_the_file_itself() {
        let origin = Path::new("/opt/app/bin");
        assert_eq!(expand(b"$ORIGIN/../lib", origin), Some("/opt/app/bin/../lib".into()));
        assert_eq!(expand(b"${ORIGIN}", origin), Some("/opt/app/bin".into()));
        assert_eq!(expand(b"", origin), None);
    }
}
