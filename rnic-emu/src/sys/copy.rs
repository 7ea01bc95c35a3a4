//! Copying payload between registered memory and the wire.

/// Copies `n` bytes as a NIC's DMA would: the last bytes of a message appear last.
///
/// Programs that learn of a WRITE by polling its last byte rely on that order; a plain `memcpy` of a short message may
/// store the tail first. Ranges may overlap (a loopback WRITE onto its own source).
///
/// # Safety
/// `src` is readable and `dst` writable for `n` bytes.
#[inline]
pub unsafe fn deliver(dst: *mut u8, src: *const u8, n: usize) {
    if n <= 8 {
        // SAFETY: the caller's promise.
        return unsafe { std::ptr::copy(src, dst, n) };
    }
    // SAFETY: the caller's promise; the tail is read before the head is written, in case the ranges overlap.
    unsafe {
        let tail = src.add(n - 8).cast::<u64>().read_unaligned();
        std::ptr::copy(src, dst, n - 8);
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        dst.add(n - 8).cast::<u64>().write_unaligned(tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_arrives_whole_and_touches_nothing_else() {
        for n in 0..200 {
            let src: Vec<u8> = (0..n).map(|i| i as u8 ^ 0x5a).collect();
            let mut dst = vec![0xee; n + 2];
            // SAFETY: both have room for n bytes.
            unsafe { deliver(dst[1..].as_mut_ptr(), src.as_ptr(), n) };
            assert_eq!(dst[1..=n], src[..]);
            assert_eq!((dst[0], dst[n + 1]), (0xee, 0xee));
        }
    }

    #[test]
    fn overlapping_ranges_arrive_as_if_copied_through_a_buffer() {
        let mut bytes: Vec<u8> = (0..100).collect();
        let p = bytes.as_mut_ptr();
        // SAFETY: both ranges lie in the vector.
        unsafe { deliver(p.add(10), p, 90) };
        assert_eq!(bytes[10..], (0..90).collect::<Vec<u8>>());
    }
}
