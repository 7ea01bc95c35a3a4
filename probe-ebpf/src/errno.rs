//! The errno a library call left behind, read where the program itself would read it.
//!
//! A library that sets errno calls `__errno_location` through its GOT. From the probed function's address follows
//! where the library is loaded, from there the slot, the function, and the place of errno in the thread's local
//! storage: nothing has to be known of the process beforehand, so also its first failure is told.

use crate::arch;
use crate::maps::{SITES, offset};
use crate::subject::current_task;
use crate::user::{half, kernel, read, word};

/// The calling thread's errno, for a function of the given site that was entered at `entry`.
#[inline(always)]
pub fn of_thread(site: u16, entry: u64) -> Option<i32> {
    let fsbase_offset = offset!(task_fsbase);
    let site = SITES.get(site as u32)?;
    if fsbase_offset == 0 || site.errno_slot_vaddr == 0 {
        return None;
    }
    let base = entry.wrapping_sub(site.entry_vaddr);
    let function = word(base.wrapping_add(site.errno_slot_vaddr))?;
    let code = read::<[u8; 16]>(function)?;
    let distance = word(arch::errno_slot(function, &code)?)?;
    let thread_pointer = kernel::<u64>(current_task().wrapping_add(fsbase_offset))?;
    let errno = half(thread_pointer.wrapping_add(distance))? as i32;
    // Anything else is not an errno: the thread has set its thread pointer in a way the kernel was not told of.
    (errno > 0 && errno < 4096).then_some(errno)
}
