//! The real page size behind a buffer, found out rather than assumed.

const SMALL: u64 = 4096;
const HUGE: u64 = 2 << 20;

/// Page size of the memory at `addr`: that of the mapping it lies in, as the kernel reports it. Buffers shorter than a
/// huge page are not worth asking about.
pub fn page_size(addr: u64, len: u64) -> u64 {
    if len < HUGE {
        return SMALL;
    }
    std::fs::read_to_string("/proc/self/smaps").ok().and_then(|text| in_smaps(&text, addr)).unwrap_or(SMALL)
}

/// `KernelPageSize` of the mapping around `addr` in the text of an smaps file.
fn in_smaps(text: &str, addr: u64) -> Option<u64> {
    let mut inside = false;
    for line in text.lines() {
        if let Some(range) = line.split(' ').next().and_then(|w| w.split_once('-'))
            && let (Ok(from), Ok(to)) = (u64::from_str_radix(range.0, 16), u64::from_str_radix(range.1, 16))
        {
            inside = (from..to).contains(&addr);
        } else if inside && let Some(size) = line.strip_prefix("KernelPageSize:") {
            let kib: u64 = size.trim().strip_suffix("kB")?.trim().parse().ok()?;
            return kib.checked_mul(1024).filter(|b| b.is_power_of_two());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mapping_around_the_address_decides() {
        let text = "7f0000000000-7f0000200000 rw-p 0 00:00 0 \nSize: 2048 kB\nKernelPageSize:        4 kB\n\
                    7f0000200000-7f0000600000 rw-p 0 00:0f 1 /anon_hugepage\nKernelPageSize:     2048 kB\n";
        assert_eq!(in_smaps(text, 0x7f00_0000_1000), Some(4096));
        assert_eq!(in_smaps(text, 0x7f00_0020_0000), Some(2 << 20));
        assert_eq!(in_smaps(text, 0x7f00_0060_0000), None);
        assert_eq!(in_smaps("nonsense\n-\nKernelPageSize: x", 0), None);
    }

    #[test]
    fn ordinary_memory_has_small_pages() {
        let v = vec![1u8; 4 << 20];
        assert_eq!(page_size(v.as_ptr() as u64, v.len() as u64), 4096);
        assert_eq!(page_size(0, 100), 4096);
    }
}
