//! The probe sites: functions that do nothing but be probed. Their arguments are described in
//! [`probe_common::site`].
//!
//! Each is a 5-byte nop, a jump over nothing and a return. Where the kernel rewrites a probed nop into a call, a hit
//! costs no trap; elsewhere the probe sits on the jump, which the kernel emulates. A forked child inherits a rewritten
//! nop without the page it calls into (Linux 6.18), so [`renew_in_child`] gives it the file's own bytes back.

use std::ffi::c_void;

use probe_common::alone;
use probe_common::counters::source;
use probe_common::site::Flags;

use crate::digest::Digest;

/// Nothing is probed on machines for which the instruction bytes are not known.
macro_rules! site {
    ($(#[$doc:meta])* $name:ident($($argument:ident: $kind:ty),*)) => {
        $(#[$doc])*
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub extern "C" fn $name($($argument: $kind),*) {
            std::arch::naked_asm!(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00", ".byte 0xeb, 0x00", "ret")
        }

        $(#[$doc])*
        #[cfg(not(target_arch = "x86_64"))]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[inline(never)]
        pub extern "C" fn $name($($argument: $kind),*) {
            std::hint::black_box(($($argument),*));
        }
    };
}

site! {
    /// Before work requests go to the provider.
    verbs_tap_posted(qp: usize, n_wr: u64, bytes: u64, flags: u64, n_sge: u64, wr: usize)
}
site! {
    /// After a post failed: the part that was not posted.
    verbs_tap_post_failed(qp: usize, n_wr: u64, bytes: u64, flags: u64, n_sge: u64, why: u64)
}
site! {
    /// After a poll.
    verbs_tap_polled(cq: usize, n: i64, wc: usize, exponent: u32)
}

/// Tells of send work requests.
///
/// # Safety
/// `first` is 0 or the first one.
pub unsafe fn posted(queue: usize, digest: &Digest, flags: Flags, first: usize) {
    let digest = alone::Digest {
        queue,
        wrs: digest.wrs,
        bytes: digest.bytes,
        flags: flags.by(source::TAP),
        sges: digest.sges,
        first,
    };
    // SAFETY: a site of ours; as promised.
    unsafe { digest.tell_sends(verbs_tap_posted) };
}

/// In a forked child: drop the private copies of the sites' pages, so that they are read from the file again, and have
/// the kernel put probes that are still wanted into them, with the trampoline they need.
pub fn renew_in_child() {
    const PAGE: usize = 4096;
    let sites = [
        verbs_tap_posted as *const () as usize,
        verbs_tap_post_failed as *const () as usize,
        verbs_tap_polled as *const () as usize,
    ];
    for site in sites {
        for page in [site / PAGE * PAGE, (site + 7) / PAGE * PAGE] {
            // The kernel puts probes into a mapping when it is made, split or merged; the last two split it and merge
            // it again without a moment in which the code could not run.
            for advice in [libc::MADV_DONTNEED, libc::MADV_DONTDUMP, libc::MADV_DODUMP] {
                // SAFETY: pages of this library's read-only text: they are never written but by the kernel for probes,
                // so that dropping a private copy loses nothing.
                unsafe { libc::madvise(page as *mut c_void, PAGE, advice) };
            }
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_a_nop_a_jump_over_nothing_and_a_return() {
        // SAFETY: eight bytes of a function of ours.
        let bytes = unsafe { *(verbs_tap_posted as *const [u8; 8]) };
        assert_eq!(bytes, [0x0f, 0x1f, 0x44, 0, 0, 0xeb, 0, 0xc3]);
    }

    #[test]
    fn sites_can_be_called_before_and_after_their_pages_are_renewed() {
        verbs_tap_posted(1, 2, 3, 4, 5, 6);
        renew_in_child();
        verbs_tap_posted(1, 2, 3, 4, 5, 6);
        verbs_tap_post_failed(1, 2, 3, 4, 5, 6);
        verbs_tap_polled(1, -1, 0, 0);
    }
}
