//! What the kernel says a range of our memory is made of (`/proc/self/smaps`).

use std::fs;

/// Sums over the mappings that overlap a range, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Largest page size of the overlapping mappings.
    pub kernel_page_size: u64,
    /// Resident bytes (hugetlb pages are not counted here by the kernel).
    pub resident: u64,
    /// Bytes in transparent huge pages.
    pub transparent_huge: u64,
    /// Bytes in hugetlb pages.
    pub hugetlb: u64,
}

/// Reads the pages behind `[start, start + length)`; `None` when the kernel does not tell.
pub fn pages(start: usize, length: usize) -> Option<Pages> {
    Some(parse(&fs::read_to_string("/proc/self/smaps").ok()?, start, start.checked_add(length)?))
}

fn parse(text: &str, start: usize, end: usize) -> Pages {
    let mut sum = Pages::default();
    let mut inside = false;
    for line in text.lines() {
        if let Some((from, to)) = range(line) {
            inside = from < end && to > start;
        } else if inside && let Some((key, bytes)) = field(line) {
            match key {
                "KernelPageSize" => sum.kernel_page_size = sum.kernel_page_size.max(bytes),
                "Rss" => sum.resident += bytes,
                "AnonHugePages" => sum.transparent_huge += bytes,
                "Private_Hugetlb" | "Shared_Hugetlb" => sum.hugetlb += bytes,
                _ => {}
            }
        }
    }
    sum
}

/// `7f00-7f10 rw-p …`: the head of a mapping.
fn range(line: &str) -> Option<(usize, usize)> {
    let (from, to) = line.split_whitespace().next()?.split_once('-')?;
    Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
}

/// `Rss:    16 kB`: one field of a mapping, in bytes.
fn field(line: &str) -> Option<(&str, u64)> {
    let (key, rest) = line.split_once(':')?;
    let kilobytes: u64 = rest.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some((key, kilobytes.checked_mul(1024)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
KernelPageSize:        4 kB
Rss:                4096 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me ac
7f0000400000-7f0000800000 rw-p 00000000 00:0f 42 /anon_hugepage (deleted)
KernelPageSize:     2048 kB
Rss:                   0 kB
Private_Hugetlb:    4096 kB
";

    #[test]
    fn only_overlapping_mappings_are_summed() {
        let first = parse(SAMPLE, 0x7f00_0000_0000, 0x7f00_0040_0000);
        assert_eq!(first.kernel_page_size, 4096);
        assert_eq!(first.transparent_huge, 2 << 20);
        assert_eq!(first.hugetlb, 0);
        let second = parse(SAMPLE, 0x7f00_0040_1000, 0x7f00_0040_2000);
        assert_eq!((second.kernel_page_size, second.hugetlb), (2 << 20, 4 << 20));
    }

    #[test]
    fn lines_that_are_not_sizes_are_passed_over() {
        assert_eq!(field("VmFlags: rd wr"), None);
        assert_eq!(field("Rss: many kB"), None);
        assert_eq!(parse("garbage\n\n:\n", 0, 10), Pages::default());
    }

    #[test]
    fn our_own_memory_is_found() {
        let memory = vec![1u8; 1 << 20];
        let found = pages(memory.as_ptr() as usize, memory.len()).unwrap();
        assert!(found.kernel_page_size >= 4096 && found.resident >= 1 << 20);
    }
}
