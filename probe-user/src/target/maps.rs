//! The files whose code a process maps.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Mappings looked at per process. A Java process has thousands; nobody has this many with code from files.
const MAX_MAPPINGS: usize = 100_000;

/// A file with code in a process's address space.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MappedFile {
    /// Process that maps it.
    pub pid: u32,
    /// Address range, as `/proc/PID/map_files` names it.
    pub range: String,
    /// Path in the process's own mount namespace, without a mark of deletion.
    pub path: PathBuf,
    /// True when that path no longer leads to the file.
    pub deleted: bool,
}

impl MappedFile {
    /// Opens the very file that is mapped, also when its path is gone or leads elsewhere by now (an upgraded package,
    /// another container's mount namespace).
    ///
    /// # Errors
    /// When neither the mapping nor the path can be opened: without the capability for the former, a deleted file is
    /// out of reach.
    pub fn open(&self) -> io::Result<File> {
        let by_mapping = File::open(format!("/proc/{}/map_files/{}", self.pid, self.range));
        if by_mapping.is_ok() || self.deleted {
            return by_mapping;
        }
        let below_root = self.path.strip_prefix("/").unwrap_or(&self.path);
        File::open(PathBuf::from(format!("/proc/{}/root", self.pid)).join(below_root))
    }
}

/// Device and inode number: what makes two paths the same file.
///
/// # Errors
/// When the file cannot be asked.
pub fn identity(file: &File) -> io::Result<(u64, u64)> {
    let meta = file.metadata()?;
    Ok((meta.dev(), meta.ino()))
}

/// The files with code that a process maps, each once.
///
/// # Errors
/// When `/proc/PID/maps` cannot be read: the process is gone, or not ours to look at.
pub fn mapped_files(pid: u32) -> io::Result<Vec<MappedFile>> {
    parse(pid, BufReader::new(File::open(format!("/proc/{pid}/maps"))?))
}

fn parse(pid: u32, maps: impl BufRead) -> io::Result<Vec<MappedFile>> {
    let mut seen = HashSet::new();
    let mut files = Vec::new();
    for line in maps.split(b'\n').take(MAX_MAPPINGS) {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        let Some((range, device_and_inode, path)) = executable(&line) else { continue };
        if seen.insert((device_and_inode.to_owned(), path.to_owned())) {
            let (path, deleted) = match path.strip_suffix(" (deleted)") {
                Some(path) => (path, true),
                None => (path, false),
            };
            files.push(MappedFile { pid, range: range.to_owned(), path: path.into(), deleted });
        }
    }
    Ok(files)
}

/// `range perms offset device inode path` of a line that maps code from a file.
fn executable(line: &str) -> Option<(&str, &str, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (permissions, rest) = rest.split_once(' ')?;
    let (_offset, rest) = rest.split_once(' ')?;
    let path_at = rest.find('/')?;
    let device_and_inode = rest.get(..path_at)?.trim_end();
    let path = rest.get(path_at..)?;
    (permissions.as_bytes().get(2) == Some(&b'x')).then_some((range, device_and_inode, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_from_files_is_taken_and_each_file_once() {
        let text = "\
55550000-55551000 r--p 00000000 08:01 100 /usr/bin/prog
55551000-55552000 r-xp 00001000 08:01 100 /usr/bin/prog
55552000-55553000 r-xp 00002000 08:01 100 /usr/bin/prog
7f000000-7f001000 r-xp 00000000 08:01 200 /lib/with blank.so (deleted)
7f100000-7f101000 r-xp 00000000 00:00 0
7fff0000-7fff1000 r-xp 00000000 00:00 0 [vdso]
7fff2000-7fff3000 rw-p 00000000 00:00 0 [stack]
nonsense
";
        let files = parse(5, text.as_bytes()).unwrap();
        assert_eq!(files.len(), 2);
        assert_eq!(files[0].path, PathBuf::from("/usr/bin/prog"));
        assert_eq!(files[0].range, "55551000-55552000");
        assert!(!files[0].deleted);
        assert_eq!(files[1].path, PathBuf::from("/lib/with blank.so"));
        assert!(files[1].deleted);
    }

    #[test]
    fn this_process_maps_itself() {
        let files = mapped_files(std::process::id()).unwrap();
        let exe = std::env::current_exe().unwrap();
        let own = files.iter().find(|file| file.path == exe).expect("own code");
        let opened = identity(&own.open().unwrap()).unwrap();
        assert_eq!(opened, identity(&File::open(exe).unwrap()).unwrap());
    }
}
