//! What the verifier must be shown, and the compiler must not see through.

use core::arch::asm;

/// A number cut to `MASK`. The compiler would drop the mask where it knows the range; the verifier does not know it.
#[inline(always)]
pub fn bounded<const MASK: u64>(mut number: u64) -> usize {
    // SAFETY: arithmetic on a register.
    unsafe { asm!("{0} &= {1}", inout(reg) number, const MASK, options(pure, nomem, nostack)) };
    number as usize
}

/// A number that the compiler knows nothing of: from what it knows it would make `<` into `!=`, and by that the verifier
/// does not see that a loop ends.
#[inline(always)]
pub fn opaque(mut number: u64) -> u64 {
    // An instruction it must be: without one, the kernel finds two lines of source at one place.
    // SAFETY: arithmetic on a register.
    unsafe { asm!("{0} += 0", inout(reg) number, options(pure, nomem, nostack)) };
    number
}

/// The highest bit of a number, 0 or 1. The compiler would make a branch of it, and the verifier follow both ways by
/// themselves.
#[inline(always)]
pub fn highest_bit(mut number: u64) -> u64 {
    // SAFETY: arithmetic on a register.
    unsafe { asm!("{0} >>= 63", inout(reg) number, options(pure, nomem, nostack)) };
    number
}
