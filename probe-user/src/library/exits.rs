//! The instructions a function returns by.
//!
//! A return probe replaces the return address on the stack, and as long as the call is in progress nobody can unwind
//! through it: when a thread is cancelled inside (waiting for a completion event, say), the destructors and cleanup
//! handlers of all its callers are skipped. Probes on the return instructions themselves change nothing on the stack.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};

/// Longest function looked at.
const MAX_BYTES: usize = 64 << 10;

/// Offsets of the return instructions from the start of `code`, the whole function. `None` where the function may also
/// be left otherwise: by a jump to another function, or by code that is not understood.
pub fn exits(code: &[u8]) -> Option<Vec<u64>> {
    if !cfg!(target_arch = "x86_64") || code.is_empty() || code.len() > MAX_BYTES {
        return None;
    }
    let end = code.len() as u64;
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut found = Vec::new();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            return None;
        }
        match instruction.flow_control() {
            FlowControl::Return => found.push(instruction.ip()),
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
                if instruction.near_branch_target() >= end =>
            {
                return None;
            }
            // Through a register: the table of a `switch`. Through memory: somebody else's function.
            FlowControl::IndirectBranch if instruction.op0_kind() != OpKind::Register => return None,
            _ => {}
        }
    }
    (!found.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_return_of_a_function_is_found() {
        // test edi,edi; jne +1; ret; xor eax,eax; ret
        let code = [0x85, 0xff, 0x75, 0x01, 0xc3, 0x31, 0xc0, 0xc3];
        assert_eq!(exits(&code), Some(vec![4, 7]));
    }

    #[test]
    fn a_function_that_ends_in_another_has_no_exits_of_its_own() {
        // jmp far beyond
        assert_eq!(exits(&[0xe9, 0x00, 0x10, 0x00, 0x00]), None);
        // jmp *0x10(%rax); the ret behind it is not all there is
        assert_eq!(exits(&[0xff, 0x60, 0x10, 0xc3]), None);
        // je to before the function
        assert_eq!(exits(&[0x74, 0x80, 0xc3]), None);
    }

    #[test]
    fn a_switch_through_a_register_stays_inside() {
        // jmp *%rax; ret
        assert_eq!(exits(&[0xff, 0xe0, 0xc3]), Some(vec![2]));
    }

    #[test]
    fn what_is_no_code_has_no_exits() {
        assert_eq!(exits(&[]), None);
        assert_eq!(exits(&[0x06, 0xc3]), None);
        assert_eq!(exits(&[0x90, 0x90]), None);
        assert_eq!(exits(&vec![0xc3; MAX_BYTES + 1]), None);
    }
}
