//! Reading the memory of another process without changing it.
//!
//! Only pages that are present are read: reading memory the process has never touched makes the kernel give it pages
//! and page tables.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// The memory of a process, read only.
pub trait Memory {
    /// Tells of consecutive pages from the one at `start` on whether each is present.
    ///
    /// # Errors
    /// When that cannot be told: then nothing may be read.
    fn present(&mut self, start: u64, pages: &mut [bool]) -> io::Result<()>;

    /// Copies memory out, and returns how many bytes could be copied.
    fn read(&mut self, address: u64, into: &mut [u8]) -> usize;

    /// One word, if its page is present.
    fn word(&mut self, address: u64) -> Option<u64> {
        let mut here = [false];
        let page = address / PAGE * PAGE;
        if address % PAGE > PAGE - 8 || self.present(page, &mut here).is_err() || here != [true] {
            return None;
        }
        let mut bytes = [0; 8];
        (self.read(address, &mut bytes) == 8).then(|| u64::from_ne_bytes(bytes))
    }
}

/// A process of this machine.
pub struct Process {
    pid: libc::pid_t,
    pagemap: File,
}

impl Process {
    /// Opens the page map of a process.
    ///
    /// # Errors
    /// When the process is gone or may not be looked into.
    pub fn open(pid: u32) -> io::Result<Self> {
        let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
        let pid = pid.try_into().map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        Ok(Self { pid, pagemap })
    }
}

impl Memory for Process {
    fn present(&mut self, start: u64, pages: &mut [bool]) -> io::Result<()> {
        /// Bytes of an entry of the page map, and its bit "page present".
        const ENTRY: u64 = 8;
        const PRESENT: u64 = 1 << 63;
        let mut bytes = [0; 8 * 512];
        for (index, part) in pages.chunks_mut(512).enumerate() {
            let from = (start / PAGE + index as u64 * 512).saturating_mul(ENTRY);
            let Some(wanted) = bytes.get_mut(..part.len() * 8) else { continue };
            self.pagemap.read_exact_at(wanted, from)?;
            for (page, entry) in part.iter_mut().zip(wanted.as_chunks::<8>().0) {
                *page = u64::from_ne_bytes(*entry) & PRESENT != 0;
            }
        }
        Ok(())
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> usize {
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let Ok(base) = usize::try_from(address) else { return 0 };
        let remote = libc::iovec { iov_base: base as *mut libc::c_void, iov_len: into.len() };
        // SAFETY: the local range is `into`; the remote one is only an address to the kernel.
        let read = unsafe { libc::process_vm_readv(self.pid, &local, 1, &remote, 1, 0) };
        usize::try_from(read).unwrap_or(0).min(into.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_memory_is_present_and_untouched_memory_stays_so() {
        const LENGTH: usize = 16 * 4096;
        // SAFETY: a new private mapping, written within its bounds.
        let at = unsafe {
            let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at = libc::mmap(std::ptr::null_mut(), LENGTH, libc::PROT_READ | libc::PROT_WRITE, how, -1, 0);
            libc::madvise(at, LENGTH, libc::MADV_NOHUGEPAGE);
            at.cast::<u64>().add(512).write(0x1122_3344);
            at as u64
        };
        let mut process = Process::open(std::process::id()).unwrap();
        let mut pages = [false; 3];
        process.present(at, &mut pages).unwrap();
        assert_eq!(pages, [false, true, false]);
        assert_eq!(process.word(at + PAGE), Some(0x1122_3344));
        assert_eq!(process.word(at), None);
        process.present(at, &mut pages).unwrap();
        assert_eq!(pages, [false, true, false], "asking for a word has touched nothing");
        assert_eq!(process.word(at + PAGE - 4), None);
    }
}
