//! Entries whose return is awaited, per thread.
//!
//! A return is matched with its entry by the stack pointer, never by "the latest entry": a function may be left by
//! longjmp, by an exception, or by the cancellation of its thread, and then its return never comes. Frames of
//! functions that are no more are recognised at the next probe hit of the thread and dropped.

use core::arch::asm;

use aya_ebpf::bindings::BPF_NOEXIST;
use probe_common::hook::Cookie;
use probe_common::wire::{MAX_DEPTH, PARTS, PAYLOAD_WORDS};

use crate::arch;
use crate::maps::{EMPTY_STACK, STACKS};
use crate::user::word;

/// Which stack a probed function runs on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The thread's own.
    User,
    /// The kernel's, above whatever the thread was doing.
    Kernel,
}

/// The same call was already in progress: part of it, not another one.
pub const NESTED: u32 = 1;
/// The frame is a kernel function's.
pub const KERNEL: u32 = 2;
/// Inside a registration.
pub const IN_REGISTRATION: u32 = 4;
/// The page faults at entry are known.
pub const FAULTS_KNOWN: u32 = 8;
/// Inside a library call that is watched.
pub const IN_LIBRARY: u32 = 16;

/// One awaited return.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Frame {
    /// Stack pointer at entry.
    pub sp: u64,
    /// Address of the function.
    pub entry: u64,
    /// Where it returns to, as the stack says at entry.
    pub return_address: u64,
    /// When it was entered.
    pub entered_ns: u64,
    /// What is probed.
    pub cookie: u64,
    /// `NESTED`, `KERNEL`, …
    pub flags: u32,
    /// Errno told by a function called inside; 0 for none.
    pub inner_errno: i32,
    /// Bit n: part n was seen.
    pub parts_seen: u64,
    /// Time of each part inside.
    pub part_ns: [u64; PARTS],
    /// Page faults: of the thread at entry for a pin, else those taken in pins inside.
    pub page_faults: u64,
    /// First six arguments.
    pub args: [u64; 6],
    /// Digested arguments.
    pub payload: [u64; PAYLOAD_WORDS],
}

impl Frame {
    /// Whether the stack still holds what lets the function return.
    #[inline(always)]
    fn is_in_place(&self) -> bool {
        let Some(found) = word(self.sp) else { return false };
        if Cookie(self.cookie).by_instruction() {
            found == self.return_address
        } else {
            arch::is_return_trampoline(found)
        }
    }
}

const _: () = assert!(MAX_DEPTH == 8, "`ThreadStack::frame` masks with 7");

/// The frames of a thread, innermost last.
#[repr(C)]
pub struct ThreadStack {
    /// Frames in use.
    pub depth: u64,
    /// Flags of the frame that is being made.
    pub flags: u32,
    /// The frames.
    pub frames: [Frame; MAX_DEPTH],
}

impl ThreadStack {
    /// The stack of a thread; made if wanted.
    #[inline(always)]
    pub fn of(pid_tgid: u64, make: bool) -> Option<*mut Self> {
        if let Some(found) = STACKS.get_ptr_mut(&pid_tgid) {
            return Some(found);
        }
        if !make {
            return None;
        }
        let empty = EMPTY_STACK.get_ptr(0)?;
        // SAFETY: the entry exists as long as the program is loaded and is never written.
        let _ = STACKS.insert(&pid_tgid, unsafe { &*empty }, BPF_NOEXIST as u64);
        STACKS.get_ptr_mut(&pid_tgid)
    }

    /// The frame at an index.
    #[inline(always)]
    pub unsafe fn frame(this: *mut Self, mut index: u64) -> *mut Frame {
        // The mask is what lets the verifier see that the index is in bounds. Written in Rust, the compiler would prove
        // it unnecessary, drop it, and leave the verifier without the proof.
        // SAFETY: masked into the array.
        unsafe {
            asm!("{0} &= 7", inout(reg) index);
            (&raw mut (*this).frames).cast::<Frame>().add(index as usize)
        }
    }

    /// How many frames are in use. Always read anew: what the verifier knows of a number it takes along for each number
    /// there may be, and of what is read from a table it knows nothing.
    #[inline(always)]
    pub unsafe fn depth(this: *mut Self) -> u64 {
        // SAFETY: the caller's.
        unsafe { (&raw const (*this).depth).read_volatile() }
    }

    /// Keeps so many frames.
    #[inline(always)]
    pub unsafe fn set_depth(this: *mut Self, depth: u64) {
        // SAFETY: the caller's.
        unsafe { (&raw mut (*this).depth).write_volatile(depth) };
    }

    /// Drops frames whose functions are no more, seen from an entry at `sp`.
    #[inline(always)]
    pub unsafe fn prune_at_entry(this: *mut Self, sp: u64, cookie: Cookie, side: Side) {
        let depth = unsafe { Self::depth(this) };
        // None of these functions calls itself: where one is entered, an earlier entry of it has been left by another
        // way. What it left on the stack may still look whole, in a variable that was never written.
        let mut i = 0;
        while i < MAX_DEPTH as u64 {
            if i >= depth {
                break;
            }
            let frame = unsafe { &*Self::frame(this, i) };
            if frame.cookie == cookie.0 && cookie.site() != 0 {
                unsafe { Self::set_depth(this, i) };
                break;
            }
            i += 1;
        }
        let mut depth = unsafe { Self::depth(this) };
        let mut i = 0;
        while i < MAX_DEPTH {
            if depth == 0 || depth > MAX_DEPTH as u64 {
                break;
            }
            let top = unsafe { &*Self::frame(this, depth - 1) };
            let stale = match (side, top.flags & KERNEL != 0) {
                // The thread runs in user mode: every kernel function it called has returned.
                (Side::User, true) => true,
                // A frame below the stack pointer, or whose return address is not the trampoline, was abandoned. An
                // equal stack pointer with the trampoline in place is a tail call: the frame lives.
                (Side::User, false) => top.sp < sp || !top.is_in_place(),
                (Side::Kernel, true) => top.sp <= sp,
                (Side::Kernel, false) => false,
            };
            if !stale {
                break;
            }
            depth -= 1;
            i += 1;
        }
        unsafe { Self::set_depth(this, depth) };
    }

    /// Drops frames above the one that now returns; true if that one is on top then.
    #[inline(always)]
    pub unsafe fn unwind_to(this: *mut Self, sp: u64, cookie: Cookie, side: Side) -> bool {
        let mut depth = unsafe { Self::depth(this) };
        let mut found = false;
        let mut i = 0;
        while i < MAX_DEPTH {
            if depth == 0 || depth > MAX_DEPTH as u64 {
                break;
            }
            let top = unsafe { &*Self::frame(this, depth - 1) };
            let kernel = top.flags & KERNEL != 0;
            match side {
                Side::User => {
                    if !kernel && top.sp >= sp {
                        found = top.sp == sp;
                        break;
                    }
                }
                Side::Kernel => {
                    // Kernel functions are not left by other ways; but a return may have been missed for want of a
                    // slot, and its frame then lies above.
                    if !kernel {
                        break;
                    }
                    if top.cookie == cookie.0 {
                        found = true;
                        break;
                    }
                }
            }
            depth -= 1;
            i += 1;
        }
        // A kernel return without a frame says nothing about the frames there are.
        if found || side == Side::User {
            unsafe { Self::set_depth(this, depth) };
        }
        found
    }
}
