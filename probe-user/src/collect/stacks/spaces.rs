//! Which file's code lies where in which process.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::target::{MappedFile, identity};

/// Processes whose code is remembered, and mappings of each.
const MAX_PROCESSES: usize = 8192;
const MAX_MAPPINGS: usize = 2048;
/// Files held open, so that their symbols can be read when the process has ended.
const MAX_FILES: usize = 256;
/// A process is read again for an address that is not known, but not more often than this.
const READ_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Where an address lies.
#[derive(Debug, Clone)]
pub struct Place {
    /// File, by its path in the process's own mount namespace.
    pub path: Arc<Path>,
    /// Offset in it.
    pub offset: u64,
    /// The file itself, where it could be opened.
    pub file: Option<Arc<File>>,
}

#[derive(Debug, Clone)]
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    path: Arc<Path>,
    file: Option<Arc<File>>,
}

#[derive(Debug, Default)]
struct Space {
    mappings: Vec<Mapping>,
    read: Option<Instant>,
}

/// The code of all processes of a recording.
#[derive(Debug, Default)]
pub struct Spaces {
    processes: HashMap<u32, Space>,
    files: HashMap<(u64, u64), Arc<File>>,
}

impl Spaces {
    /// A process maps code of a file: `offset` bytes into it, at the address range of `mapped`. `inode` tells the file
    /// from another one at that path, where the process is gone already.
    pub fn note(&mut self, mapped: &MappedFile, offset: u64, inode: Option<u64>) {
        let Some((start, end)) = bounds(&mapped.range) else { return };
        let by_path = || {
            let file = File::open(&mapped.path).ok()?;
            (inode.is_some() && identity(&file).ok().map(|(_, inode)| inode) == inode).then_some(file)
        };
        let file = mapped.open().ok().or_else(by_path).and_then(|file| self.share(file));
        let mapping = Mapping { start, end, offset, path: mapped.path.as_path().into(), file };
        if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(&mapped.pid) {
            // With the whole host watched, most never make a call of interest, and nobody tells of their end. Those
            // that live are read again when it matters.
            self.processes.clear();
        }
        let space = self.processes.entry(mapped.pid).or_default();
        // What was there before is no more.
        space.mappings.retain(|old| old.end <= start || old.start >= end);
        if space.mappings.len() < MAX_MAPPINGS {
            space.mappings.push(mapping);
        }
    }

    /// Whether anything is known of a process.
    pub fn knows(&self, pid: u32) -> bool {
        self.processes.get(&pid).is_some_and(|space| !space.mappings.is_empty())
    }

    /// Where an address of a process lies; looks at the process itself where that is not known yet.
    pub fn find(&mut self, pid: u32, address: u64) -> Option<Place> {
        if let Some(place) = self.known(pid, address) {
            return Some(place);
        }
        let read = self.processes.get(&pid).and_then(|space| space.read);
        if read.is_some_and(|at| at.elapsed() < READ_AGAIN_AFTER) {
            return None;
        }
        self.read(pid);
        self.known(pid, address)
    }

    fn known(&self, pid: u32, address: u64) -> Option<Place> {
        let mappings = &self.processes.get(&pid)?.mappings;
        let found = mappings.iter().find(|m| (m.start..m.end).contains(&address))?;
        let offset = (address - found.start).checked_add(found.offset)?;
        Some(Place { path: Arc::clone(&found.path), offset, file: found.file.clone() })
    }

    fn read(&mut self, pid: u32) {
        // A process that has ended has no more to tell, and what is known of it stays.
        if let Ok(maps) = File::open(format!("/proc/{pid}/maps")) {
            for line in BufReader::new(maps).split(b'\n').take(100_000) {
                let Ok(line) = line else { break };
                if let Some((mapped, offset)) = mapping(pid, &String::from_utf8_lossy(&line)) {
                    self.note(&mapped, offset, None);
                }
            }
        }
        if self.processes.len() < MAX_PROCESSES || self.processes.contains_key(&pid) {
            self.processes.entry(pid).or_default().read = Some(Instant::now());
        }
    }

    /// A child begins with what its parent maps.
    pub fn inherit(&mut self, parent: u32, child: u32) {
        if self.processes.len() >= MAX_PROCESSES || self.knows(child) {
            return;
        }
        if let Some(mappings) = self.processes.get(&parent).map(|space| space.mappings.clone()) {
            self.processes.insert(child, Space { mappings, read: None });
        }
    }

    /// A process is no more.
    pub fn forget(&mut self, pid: u32) {
        self.processes.remove(&pid);
        if self.files.len() >= MAX_FILES {
            // Files that no process maps and nobody reads from any more.
            self.files.retain(|_, file| Arc::strong_count(file) > 1);
        }
    }

    /// One descriptor for a file, however many processes map it.
    fn share(&mut self, file: File) -> Option<Arc<File>> {
        let id = identity(&file).ok()?;
        if let Some(known) = self.files.get(&id) {
            return Some(Arc::clone(known));
        }
        if self.files.len() >= MAX_FILES {
            return None;
        }
        let file = Arc::new(file);
        self.files.insert(id, Arc::clone(&file));
        Some(file)
    }
}

/// `start-end` in hexadecimal.
fn bounds(range: &str) -> Option<(u64, u64)> {
    let (start, end) = range.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    (start < end).then_some((start, end))
}

/// A line of `/proc/PID/maps` that maps code from a file.
fn mapping(pid: u32, line: &str) -> Option<(MappedFile, u64)> {
    let mut words = line.splitn(4, ' ');
    let (range, permissions, offset) = (words.next()?, words.next()?, words.next()?);
    if permissions.as_bytes().get(2) != Some(&b'x') {
        return None;
    }
    let path = line.get(line.find('/')?..)?;
    let (path, deleted) = path.strip_suffix(" (deleted)").map_or((path, false), |path| (path, true));
    let mapped = MappedFile { pid, range: range.to_owned(), path: PathBuf::from(path), deleted };
    Some((mapped, u64::from_str_radix(offset, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(range: &str, path: &str) -> MappedFile {
        MappedFile { pid: u32::MAX - 1, range: range.to_owned(), path: path.into(), deleted: false }
    }

    #[test]
    fn an_address_lies_at_an_offset_of_the_file_mapped_last() {
        let mut spaces = Spaces::default();
        spaces.note(&mapped("1000-3000", "/old"), 0x1000, None);
        spaces.note(&mapped("2000-4000", "/new"), 0x5000, None);
        let pid = u32::MAX - 1;
        let place = spaces.find(pid, 0x2010).unwrap();
        assert_eq!((&*place.path, place.offset), (Path::new("/new"), 0x5010));
        assert!(spaces.find(pid, 0x1000).is_none(), "replaced as a whole");
        assert!(spaces.find(pid, 0x4000).is_none());
    }

    #[test]
    fn a_child_begins_with_its_parents_code_and_keeps_it_when_the_parent_is_gone() {
        let mut spaces = Spaces::default();
        spaces.note(&mapped("1000-3000", "/prog"), 0, None);
        spaces.inherit(u32::MAX - 1, u32::MAX - 2);
        spaces.forget(u32::MAX - 1);
        assert!(spaces.find(u32::MAX - 2, 0x1800).is_some());
        assert!(!spaces.knows(u32::MAX - 1));
    }

    #[test]
    fn this_very_function_is_found_in_this_very_program() {
        let address = this_very_function_is_found_in_this_very_program as *const () as u64;
        let place = Spaces::default().find(std::process::id(), address).unwrap();
        assert_eq!(&*place.path, std::env::current_exe().unwrap());
        assert!(place.file.is_some());
    }

    #[test]
    fn lines_that_map_no_code_of_a_file_are_left_out() {
        assert!(mapping(1, "55550000-55551000 r--p 00000000 08:01 100 /usr/bin/prog").is_none());
        assert!(mapping(1, "7fff0000-7fff1000 r-xp 00000000 00:00 0 [vdso]").is_none());
        let (file, offset) = mapping(1, "10-20 r-xp 00001000 08:01 100   /a b (deleted)").unwrap();
        assert_eq!((file.path.to_str(), file.deleted, offset), (Some("/a b"), true, 0x1000));
        assert!(mapping(1, "").is_none() && mapping(1, "x y z /").is_none());
    }
}
