//! What depends on the processor: registers, stack discipline, thread pointer. x86-64 is what is tested.

use aya_ebpf::bindings::pt_regs;

/// Stack pointer.
#[inline(always)]
pub fn stack_pointer(regs: *const pt_regs) -> u64 {
    // SAFETY: the kernel hands probe programs a valid pt_regs, and the verifier checks the access.
    unsafe { (*regs).rsp as u64 }
}

/// Frame pointer of the caller, at the entry and at the return of a function: callees preserve it. A program built
/// without frame pointers keeps there whatever it likes.
#[inline(always)]
pub fn frame_pointer(regs: *const pt_regs) -> u64 {
    // SAFETY: as in `stack_pointer`.
    unsafe { (*regs).rbp as u64 }
}

/// Instruction pointer: at an entry probe, the address of the function.
#[inline(always)]
pub fn instruction_pointer(regs: *const pt_regs) -> u64 {
    // SAFETY: as in `stack_pointer`.
    unsafe { (*regs).rip as u64 }
}

/// What the registers at a site tell of a work request alone, in the order of `probe_common::alone`: its number, its
/// remote address, the address of its buffer, and its keys.
#[inline(always)]
pub fn alone(regs: *const pt_regs) -> [u64; 4] {
    // SAFETY: as in `stack_pointer`.
    unsafe { [(*regs).rax as u64, (*regs).r10 as u64, (*regs).r11 as u64, (*regs).r12 as u64] }
}

/// What a function returns, at its return instruction.
#[inline(always)]
pub fn return_value(regs: *const pt_regs) -> u64 {
    // SAFETY: as in `stack_pointer`.
    unsafe { (*regs).rax as u64 }
}

/// The stack pointer a function had at entry, from the one at its return: `ret` has popped the return address.
#[inline(always)]
pub fn entry_stack_pointer(at_return: u64) -> u64 {
    at_return.wrapping_sub(8)
}

/// Whether the word found where a function's return address was pushed is the kernel's return trampoline: the first
/// byte of a page of its own. Anything else there means that the function was left by another way (longjmp, an
/// exception) and that its frame is no more.
#[inline(always)]
pub fn is_return_trampoline(word: u64) -> bool {
    word != 0 && word & 4095 == 0
}

/// Reads the displacement out of glibc's `__errno_location`: `mov disp(%rip),%rax; add %fs:0,%rax; ret`, perhaps
/// behind an `endbr64`. Returns the address of the slot that holds errno's distance from the thread pointer.
#[inline(always)]
pub fn errno_slot(function: u64, code: &[u8; 16]) -> Option<u64> {
    let endbr = code[0] == 0xf3 && code[1] == 0x0f && code[2] == 0x1e && code[3] == 0xfa;
    let (b0, b1, b2, d, next) = if endbr {
        (code[4], code[5], code[6], [code[7], code[8], code[9], code[10]], 11u64)
    } else {
        (code[0], code[1], code[2], [code[3], code[4], code[5], code[6]], 7u64)
    };
    if b0 != 0x48 || b1 != 0x8b || b2 != 0x05 {
        return None;
    }
    let displacement = i32::from_le_bytes(d);
    Some(function.wrapping_add(next).wrapping_add(displacement as i64 as u64))
}
