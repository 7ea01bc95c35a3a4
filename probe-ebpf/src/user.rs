//! Reading the memory of the probed process and of the kernel. A page that is not there reads as nothing.

use core::ffi::c_void;
use core::mem::MaybeUninit;

use aya_ebpf::helpers::generated::{bpf_probe_read_kernel, bpf_probe_read_user};

/// A word of the process's memory.
#[inline(always)]
pub fn word(address: u64) -> Option<u64> {
    let mut value = 0u64;
    fill(&mut value, address).then_some(value)
}

/// Four bytes of the process's memory.
#[inline(always)]
pub fn half(address: u64) -> Option<u32> {
    let mut value = 0u32;
    fill(&mut value, address).then_some(value)
}

/// Copies `size_of::<T>()` bytes of the process's memory; false, and zeroes, where they cannot be read.
#[inline(always)]
pub fn fill<T>(into: &mut T, address: u64) -> bool {
    // SAFETY: the destination is as long as said; the helper checks the source.
    unsafe {
        bpf_probe_read_user(
            (into as *mut T).cast::<c_void>(),
            size_of::<T>() as u32,
            address as *const c_void,
        ) == 0
    }
}

/// A value of the process's memory; `None` where it cannot be read.
#[inline(always)]
pub fn read<T: Copy>(address: u64) -> Option<T> {
    // Not zeroed first: this target zeroes byte by byte.
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the destination is as long as said; the helper checks the source, and writes all of it when it succeeds.
    unsafe {
        let into = value.as_mut_ptr().cast::<c_void>();
        let read = bpf_probe_read_user(into, size_of::<T>() as u32, address as *const c_void);
        (read == 0).then(|| value.assume_init())
    }
}

/// Writes zero to words of a map value: the compiler makes ordinary writes into a call that zeroes byte by byte.
///
/// # Safety
/// `N` words at `at` may be written.
#[inline(always)]
pub unsafe fn clear<const N: usize>(at: *mut u64) {
    let mut index = 0;
    while index < N {
        // SAFETY: as promised.
        unsafe { at.add(index).write_volatile(0) };
        index += 1;
    }
}

/// A value of the kernel's memory.
#[inline(always)]
pub fn kernel<T: Default>(address: u64) -> Option<T> {
    let mut value = T::default();
    // SAFETY: the destination is as long as said; the helper checks the source.
    let read = unsafe {
        bpf_probe_read_kernel(
            (&raw mut value).cast::<c_void>(),
            size_of::<T>() as u32,
            address as *const c_void,
        )
    };
    (read == 0).then_some(value)
}
