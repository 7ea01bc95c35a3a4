//! The archive format of an initramfs ("newc", as the kernel documents it in `buffer-format.rst`).

/// Grows an archive in memory.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

const DIRECTORY: u32 = 0o040_755;
const EXECUTABLE: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

impl Archive {
    /// Adds a folder; its parent must be there already.
    pub fn directory(&mut self, path: &str) {
        self.entry(path, DIRECTORY, &[]);
    }

    /// Adds a file that can be executed.
    pub fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, EXECUTABLE, content);
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, to: &str) {
        self.entry(path, LINK, to.as_bytes());
    }

    /// Closes the archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    /// One header of thirteen eight-digit hexadecimal fields, the name with its NUL, the content; each padded to four.
    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let links = if mode == DIRECTORY { 2 } else { 1 };
        let size = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let name_size = u32::try_from(path.len() + 1).unwrap_or(u32::MAX);
        let (mtime, device) = (0, 0);
        let fields =
            [self.entries, mode, 0, 0, links, mtime, size, device, device, device, device, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_the_trailer_ends_the_archive() {
        let mut archive = Archive::default();
        archive.directory("bin");
        archive.file("bin/a", b"12345");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(&bytes[..6], b"070701");
        // A header is 110 bytes; "bin\0" makes 114, padded to 116, where the next one begins.
        assert_eq!(&bytes[116..122], b"070701");
        assert!(bytes.windows(10).any(|window| window == b"TRAILER!!!"));
    }

    #[test]
    fn sizes_are_hexadecimal_and_names_count_their_nul() {
        let mut archive = Archive::default();
        archive.file("abc", &[7; 300]);
        let bytes = archive.finish();
        let field = |index: usize| String::from_utf8_lossy(&bytes[6 + 8 * index..][..8]).into_owned();
        assert_eq!(field(6), "0000012C");
        assert_eq!(field(11), "00000004");
        assert_eq!(field(1), "000081ED");
    }
}
