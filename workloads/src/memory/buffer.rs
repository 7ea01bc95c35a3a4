//! Buffers of a stated kind.

use super::huge::{Pool, Reservation, may_reserve};
use super::kind::MemoryKind;
use super::smaps::{self, Pages};
use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use std::io;
use std::ptr::{NonNull, null_mut};

/// What a buffer turned out to be, as the kernel reports it after every page was touched.
#[derive(Clone, Debug, Serialize)]
pub struct Obtained {
    /// Kind that was asked for.
    pub asked: MemoryKind,
    /// Kind that was used after falling back.
    pub used: MemoryKind,
    /// Why a fallback was needed.
    pub fallback: Option<String>,
    /// Page size of the mapping, in bytes; 0 when the kernel does not tell.
    pub page_size: u64,
    /// Bytes that lie in transparent or hugetlb huge pages.
    pub huge_bytes: u64,
    /// Length of the buffer in bytes.
    pub length: u64,
}

impl Obtained {
    /// Effective page size for translation: the huge size only when the whole buffer lies in huge pages.
    pub fn effective_page(&self) -> u64 {
        if self.page_size > 4096 {
            self.page_size
        } else if self.huge_bytes >= self.length && self.length > 0 {
            2 << 20
        } else {
            4096
        }
    }

    /// One line for people.
    pub fn describe(&self) -> String {
        let share = if self.length == 0 { 0.0 } else { 100.0 * self.huge_bytes as f64 / self.length as f64 };
        let mut line = format!(
            "{} KiB of {}: page size {} KiB, {:.0} % in huge pages",
            self.length.div_ceil(1024),
            self.used,
            self.page_size / 1024,
            share.min(100.0)
        );
        if let Some(reason) = &self.fallback {
            line.push_str(&format!(" (asked for {}: {reason})", self.asked));
        }
        line
    }
}

enum Owner {
    Heap,
    Mapping { start: NonNull<u8>, length: usize },
}

/// Zeroed memory with a stable address. The device writes to it behind the compiler's back, so contents are only read and
/// written through the volatile accessors.
pub struct Buffer {
    start: NonNull<u8>,
    length: usize,
    owner: Owner,
    obtained: Obtained,
    /// Pages added to the kernel's pool for this buffer; given back once it is unmapped.
    _reservation: Option<Reservation>,
}

impl Buffer {
    /// Allocates `length` bytes of that kind, every page touched. Falls back to the next kind, and says so, when huge pages
    /// cannot be had.
    pub fn allocate(kind: MemoryKind, length: usize) -> Result<Buffer> {
        // Every page will be touched: the kernel would promise more than it has, and kill somebody when it is claimed.
        if let Some(available) = super::available_memory()
            && length as u64 > available
        {
            bail!(
                "{} MiB of memory needed, {} MiB available; make --region or --size smaller",
                length >> 20,
                available >> 20
            );
        }
        let mut used = kind;
        let mut fallback = None;
        loop {
            match Buffer::try_kind(used, length) {
                Ok(mut buffer) => {
                    buffer.touch();
                    let seen = smaps::pages(buffer.start.as_ptr() as usize, length).unwrap_or_default();
                    buffer.obtained = describe(kind, used, fallback, length, seen);
                    return Ok(buffer);
                }
                Err(error) => {
                    let Some(next) = used.fallback() else {
                        return Err(error).with_context(|| format!("allocating {length} bytes of {used}"));
                    };
                    fallback.get_or_insert_with(|| error.to_string());
                    used = next;
                }
            }
        }
    }

    /// Allocates page-aligned memory without touching it: the first use takes the page faults.
    pub fn untouched(length: usize) -> Result<Buffer> {
        Buffer::try_kind(MemoryKind::Aligned, length)
    }

    fn try_kind(kind: MemoryKind, length: usize) -> Result<Buffer> {
        if length == 0 {
            bail!("a buffer of 0 bytes was asked for");
        }
        match kind {
            MemoryKind::Malloc => Buffer::heap(length),
            MemoryKind::Aligned => Buffer::mapped(kind, length, 0, Some(libc::MADV_NOHUGEPAGE)),
            MemoryKind::Thp => Buffer::mapped(kind, length, 0, Some(libc::MADV_HUGEPAGE)),
            MemoryKind::Huge2M => Buffer::hugetlb(kind, length, libc::MAP_HUGE_2MB),
            MemoryKind::Huge1G => Buffer::hugetlb(kind, length, libc::MAP_HUGE_1GB),
        }
    }

    fn heap(length: usize) -> Result<Buffer> {
        // SAFETY: calloc with non-zero sizes; the result is checked.
        let start = NonNull::new(unsafe { libc::calloc(1, length) }.cast::<u8>())
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Buffer::wrap(start, length, Owner::Heap, MemoryKind::Malloc))
    }

    fn hugetlb(kind: MemoryKind, length: usize, size_flag: i32) -> Result<Buffer> {
        let page = kind.page_size();
        let needed = (length.div_ceil(page)) as u64;
        let reservation = match Pool::of(page as u64) {
            None => bail!("this machine has no {kind}"),
            Some(pool) if pool.free >= needed => None,
            Some(_) if may_reserve() => Some(Reservation::make(page as u64, needed)?),
            // Refused before mapping: a mapping that finds the pool empty later dies of SIGBUS.
            Some(pool) => {
                bail!("{needed} needed, {} free; reserve them with --reserve-hugepages as root", pool.free)
            }
        };
        let mut buffer = Buffer::mapped(kind, length, libc::MAP_HUGETLB | size_flag, None)?;
        buffer._reservation = reservation;
        Ok(buffer)
    }

    fn mapped(kind: MemoryKind, length: usize, flags: i32, advice: Option<i32>) -> Result<Buffer> {
        let page = kind.page_size();
        let rounded = length.checked_next_multiple_of(page).context("size overflows")?;
        // Transparent huge pages need an aligned start, and an unmapped page on both sides keeps the kernel from merging
        // the mapping with a neighbour whose pages would then be counted as ours.
        let margin = if flags & libc::MAP_HUGETLB != 0 { 0 } else { page + 2 * 4096 };
        let whole = rounded.checked_add(margin).context("size overflows")?;
        let protection = if margin == 0 { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choosing.
        let base = unsafe {
            libc::mmap(null_mut(), whole, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags, -1, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        let base = NonNull::new(base.cast::<u8>()).context("mapped at address zero")?;
        let owner = Owner::Mapping { start: base, length: whole };
        if margin == 0 {
            return Ok(Buffer::wrap(base, length, owner, kind));
        }
        let aligned = (base.as_ptr() as usize + 4096).next_multiple_of(page) - base.as_ptr() as usize;
        // SAFETY: `aligned + rounded` is within the mapping: aligned ≤ page + 4096 and the margin is page + 8192.
        let start = unsafe { base.add(aligned) };
        let buffer = Buffer::wrap(start, length, owner, kind);
        // SAFETY: the range lies inside our own mapping.
        if unsafe { libc::mprotect(start.as_ptr().cast(), rounded, libc::PROT_READ | libc::PROT_WRITE) } != 0
        {
            return Err(io::Error::last_os_error().into());
        }
        if let Some(advice) = advice {
            // SAFETY: as above.
            let status = unsafe { libc::madvise(start.as_ptr().cast(), rounded, advice) };
            // A kernel without transparent huge pages refuses both advices; without them 4 KiB pages are what there is.
            if status != 0 && kind == MemoryKind::Thp {
                bail!("the kernel has no transparent huge pages");
            }
        }
        Ok(buffer)
    }

    fn wrap(start: NonNull<u8>, length: usize, owner: Owner, kind: MemoryKind) -> Buffer {
        let obtained = describe(kind, kind, None, length, Pages::default());
        Buffer { start, length, owner, obtained, _reservation: None }
    }

    /// Writes one byte to every 4 KiB page, taking all page faults now.
    pub fn touch(&self) {
        for offset in (0..self.length).step_by(4096) {
            self.write_byte(offset, 0);
        }
    }

    /// Length in bytes; never 0.
    #[expect(clippy::len_without_is_empty, reason = "an empty buffer is refused at allocation")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Address of the first byte.
    pub fn addr(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// What the kernel gave.
    pub fn obtained(&self) -> &Obtained {
        &self.obtained
    }

    /// Pointer to `offset`, which must lie within (or one past) the buffer.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.length, "offset {offset} outside a buffer of {}", self.length);
        // SAFETY: checked above.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// Writes one byte.
    pub fn write_byte(&self, offset: usize, value: u8) {
        assert!(offset < self.length);
        // SAFETY: within the buffer; volatile because a device may read it at any time.
        unsafe { self.at(offset).write_volatile(value) };
    }

    /// Reads the aligned 64-bit word at `offset`.
    pub fn word(&self, offset: usize) -> u64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.length);
        // SAFETY: within the buffer and aligned; volatile because a device may write it at any time.
        unsafe { self.at(offset).cast::<u64>().read_volatile() }
    }

    /// Writes the aligned 64-bit word at `offset`.
    pub fn set_word(&self, offset: usize, value: u64) {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.length);
        // SAFETY: as in `word`.
        unsafe { self.at(offset).cast::<u64>().write_volatile(value) };
    }

    /// Copies `bytes` from `source` at the given offsets; both ranges must lie within their buffers.
    pub fn copy_from(&self, at: usize, source: &Buffer, from: usize, bytes: usize) {
        assert!(at.checked_add(bytes).is_some_and(|end| end <= self.length));
        assert!(from.checked_add(bytes).is_some_and(|end| end <= source.length));
        // SAFETY: both ranges are in bounds; `copy` allows overlap.
        unsafe { std::ptr::copy(source.at(from), self.at(at), bytes) };
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match self.owner {
            // SAFETY: allocated by calloc, freed once.
            Owner::Heap => unsafe { libc::free(self.start.as_ptr().cast()) },
            // SAFETY: our own mapping, unmapped once.
            Owner::Mapping { start, length } => unsafe {
                libc::munmap(start.as_ptr().cast(), length);
            },
        }
    }
}

fn describe(
    asked: MemoryKind,
    used: MemoryKind,
    fallback: Option<String>,
    length: usize,
    seen: Pages,
) -> Obtained {
    Obtained {
        asked,
        used,
        fallback,
        page_size: seen.kernel_page_size,
        huge_bytes: (seen.transparent_huge + seen.hugetlb).min(length as u64),
        length: length as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_pages_are_aligned_zeroed_and_not_huge() {
        let buffer = Buffer::allocate(MemoryKind::Aligned, 8 << 20).unwrap();
        assert!(buffer.addr().is_multiple_of(4096));
        assert_eq!(buffer.word(4 << 20), 0);
        assert_eq!(buffer.obtained().page_size, 4096);
        assert_eq!(buffer.obtained().huge_bytes, 0);
    }

    #[test]
    fn a_kind_that_cannot_be_had_names_its_fallback() {
        // More 1 GiB pages than any machine running this test has free.
        let buffer = Buffer::allocate(MemoryKind::Huge1G, 4096).unwrap();
        let obtained = buffer.obtained();
        assert_eq!(obtained.asked, MemoryKind::Huge1G);
        if obtained.used != MemoryKind::Huge1G {
            assert!(obtained.fallback.is_some());
            assert!(obtained.describe().contains("asked for 1 GiB huge pages"));
        }
    }

    #[test]
    fn nothing_and_too_much_are_refused() {
        assert!(Buffer::allocate(MemoryKind::Aligned, 0).is_err());
        assert!(Buffer::allocate(MemoryKind::Thp, usize::MAX - 100).is_err());
        let error = Buffer::allocate(MemoryKind::Aligned, 1 << 46).err().map(|error| error.to_string());
        assert!(error.is_some_and(|text| text.contains("--region")));
    }

    #[test]
    fn partly_huge_memory_counts_as_small_pages() {
        let seen = Pages { kernel_page_size: 4096, resident: 4 << 20, transparent_huge: 2 << 20, hugetlb: 0 };
        let partly = describe(MemoryKind::Thp, MemoryKind::Thp, None, 4 << 20, seen);
        assert_eq!(partly.effective_page(), 4096);
        let whole = describe(MemoryKind::Thp, MemoryKind::Thp, None, 2 << 20, seen);
        assert_eq!(whole.effective_page(), 2 << 20);
    }
}
