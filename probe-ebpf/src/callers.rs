//! Who called: return addresses along the chain of frame pointers.
//!
//! The first address is what the probed function itself returns to, and is right in any program. Those behind it need
//! a program built with frame pointers; in others the chain breaks at once, since what the register holds there does
//! not look like one.

use probe_common::wire::STACK_FRAMES;

use crate::{arch, user};

/// Longest distance between two frames: larger ones mean that the register holds something else.
const MAX_FRAME_BYTES: u64 = 1 << 20;

/// Writes the callers of a function that returns to `return_address` and whose caller's frame pointer is
/// `frame_pointer`; `sp` bounds the chain from below.
#[inline(always)]
pub fn walk(into: &mut [u64; STACK_FRAMES], return_address: u64, mut frame_pointer: u64, sp: u64) {
    // SAFETY: as long as said.
    unsafe { user::clear::<STACK_FRAMES>(into.as_mut_ptr()) };
    into[0] = return_address;
    let mut below = sp;
    let mut i = 1;
    // Left where the chain breaks: gone on with, each place where it may would double the verifier's work.
    while i < STACK_FRAMES {
        // What a frame pointer points to: the caller's own one, and the caller's return address.
        let plausible = frame_pointer > below
            && frame_pointer.wrapping_sub(below) < MAX_FRAME_BYTES
            && frame_pointer & 7 == 0;
        if !plausible {
            break;
        }
        let Some(frame) = user::read::<[u64; 2]>(frame_pointer) else { break };
        below = frame_pointer;
        frame_pointer = frame[0];
        // A function that is itself watched by a return probe returns to the kernel's trampoline; its caller is not to be
        // had here, but the callers behind are.
        if !arch::is_return_trampoline(frame[1]) {
            into[i] = frame[1];
        }
        i += 1;
    }
}
