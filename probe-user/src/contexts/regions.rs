//! The address space of a process, as `/proc/PID/maps` tells it.

use std::io::{self, BufRead};
use std::path::PathBuf;

use crate::target::MappedFile;

/// Mappings looked at. Far more than real programs have; a hostile one cannot make the search endless.
const MOST_MAPPINGS: usize = 200_000;

/// One mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Readable and writable memory of the process's own: where objects live.
    pub is_data: bool,
    /// Code from a file.
    pub is_code: bool,
    /// Offset in the file of `start`.
    pub offset: u64,
    /// Path, with the kernel's mark of deletion; empty for anonymous memory.
    pub path: String,
}

/// All mappings, ascending.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Regions(Vec<Region>);

impl Regions {
    /// Parses `/proc/PID/maps`; lines that make no sense are passed over.
    ///
    /// # Errors
    /// When the file cannot be read to its end.
    pub fn parse(maps: impl BufRead) -> io::Result<Self> {
        let mut regions = Vec::new();
        for line in maps.split(b'\n').take(MOST_MAPPINGS) {
            let line = line?;
            regions.extend(region(&String::from_utf8_lossy(&line)));
        }
        regions.sort_by_key(|r: &Region| r.start);
        Ok(Self(regions))
    }

    /// The mapping an address lies in.
    pub fn at(&self, address: u64) -> Option<&Region> {
        let after = self.0.partition_point(|r| r.end <= address);
        self.0.get(after).filter(|r| r.start <= address)
    }

    /// True for an address in code from a file.
    pub fn is_code(&self, address: u64) -> bool {
        self.at(address).is_some_and(|r| r.is_code)
    }

    /// True for an address in writable memory.
    pub fn is_data(&self, address: u64) -> bool {
        self.at(address).is_some_and(|r| r.is_data)
    }

    /// The mappings in which objects may live.
    pub fn data(&self) -> impl Iterator<Item = &Region> + '_ {
        self.0.iter().filter(|r| r.is_data)
    }
}

impl Region {
    /// File name of what is mapped, without the mark of deletion.
    pub fn file_name(&self) -> &str {
        let path = self.path.strip_suffix(DELETED).unwrap_or(&self.path);
        path.rsplit('/').next().unwrap_or_default()
    }

    /// The mapped file of a process.
    pub fn file(&self, pid: u32) -> MappedFile {
        let (path, deleted) = match self.path.strip_suffix(DELETED) {
            Some(path) => (path, true),
            None => (self.path.as_str(), false),
        };
        MappedFile {
            pid,
            range: format!("{:x}-{:x}", self.start, self.end),
            path: PathBuf::from(path),
            deleted,
        }
    }
}

const DELETED: &str = " (deleted)";

/// `start-end perms offset device inode path`.
fn region(line: &str) -> Option<Region> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?.as_bytes();
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let path = fields.nth(2).unwrap_or_default().trim_start().to_owned();
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    if end <= start {
        return None;
    }
    // Device memory must not be read: reading may have effects. The kernel's own pages hold no objects.
    let ordinary = !path.starts_with("/dev/") && !path.starts_with("[v");
    let has = |n: usize, letter: u8| permissions.get(n) == Some(&letter);
    let is_data = ordinary && has(0, b'r') && has(1, b'w') && has(3, b'p');
    let is_code = has(2, b'x') && path.starts_with('/');
    Some(Region { start, end, is_data, is_code, offset, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_told_apart() {
        let text = "\
7f0000000000-7f0000002000 r-xp 00001000 08:01 77                         /usr/lib/libx.so (deleted)
555500000000-555500010000 rw-p 00000000 00:00 0                          [heap]
7f1000000000-7f1000001000 rw-s 00000000 00:05 9                          /dev/infiniband/uverbs0
7f2000000000-7f2000001000 rw-p 00000000 00:05 9                          /dev/zero
7ffe00000000-7ffe00001000 r--p 00000000 00:00 0                          [vvar]
7f3000000000-7f3000001000 rwxp 00000000 00:00 0
backwards
200-100 rw-p 00000000 00:00 0
";
        let regions = Regions::parse(text.as_bytes()).unwrap();
        let data: Vec<u64> = regions.data().map(|r| r.start).collect();
        assert_eq!(data, [0x5555_0000_0000, 0x7f30_0000_0000]);
        assert!(regions.is_code(0x7f00_0000_1fff) && !regions.is_code(0x7f00_0000_2000));
        assert!(!regions.is_code(0x7f30_0000_0000), "code without a file cannot be probed");
        let library = regions.at(0x7f00_0000_0000).unwrap();
        assert_eq!((library.file_name(), library.offset), ("libx.so", 0x1000));
        let file = library.file(5);
        assert_eq!((file.path, file.deleted), (PathBuf::from("/usr/lib/libx.so"), true));
        assert_eq!(file.range, "7f0000000000-7f0000002000");
    }

    #[test]
    fn addresses_between_mappings_are_in_none() {
        let regions = Regions::parse(&b"1000-2000 rw-p 0 0:0 0\n3000-4000 rw-p 0 0:0 0\n"[..]).unwrap();
        for (address, inside) in
            [(0xfff, false), (0x1000, true), (0x1fff, true), (0x2000, false), (0x3000, true)]
        {
            assert_eq!(regions.is_data(address), inside, "{address:#x}");
        }
    }
}
