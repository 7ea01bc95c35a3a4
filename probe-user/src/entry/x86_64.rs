//! Which x86-64 instructions the kernel emulates at a user probe, and the walk over a function's entry.
//!
//! From the kernel's `arch/x86/kernel/uprobes.c`: `push` of a general register (5.1 and later; 4.x single-steps it), nops
//! of opcode `90` with any prefix, relative `jmp`, `jcc` and `call` without an operand-size prefix. From 6.18 also nops
//! of opcode `0f 1f`, and `0f 1f 44 00 00` is rewritten into a call unless it crosses a page.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register,
};

use super::{Choice, Class, Entry, Kernel, Owner, Reason, Refusal};

const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
const PAGE: u64 = 4096;
/// Instructions looked at: entries settle within a handful, and the walk must end on any bytes.
const LONGEST_WALK: usize = 24;
/// Integer arguments of the System V ABI, in order.
const ARGUMENTS: [Register; 6] =
    [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8, Register::R9];

pub(super) fn choose(entry: &Entry<'_>, kernel: &Kernel) -> Result<Choice, Refusal> {
    if let Owner::Ours { fork_handler } = entry.owner
        && let Some(choice) = own_site(entry, kernel, fork_handler)
    {
        return Ok(choice);
    }
    let targets = branch_targets(entry.code);
    let mut written = Written::new(entry.arguments);
    let mut fallback = None;
    let mut met_foreign_nop = false;
    for instruction in decode(entry.code).take(LONGEST_WALK) {
        if instruction.is_invalid() {
            break;
        }
        let delta = instruction.ip();
        if would_be_rewritten(entry, kernel, delta) {
            met_foreign_nop = true;
        } else {
            let reached_once = !targets.contains(&delta);
            if let Some(reason) = emulated(&instruction, entry.code, kernel).filter(|_| reached_once) {
                return Ok(Choice { delta, class: Class::Emulated, reason });
            }
            fallback = fallback.or(reached_once.then_some(delta)).or((delta == 0).then_some(0));
        }
        if instruction.flow_control() != FlowControl::Next || written.after(&instruction) {
            break;
        }
    }
    match fallback {
        Some(delta) => Ok(Choice { delta, class: Class::SingleStepped, reason: Reason::NothingEmulated }),
        None if met_foreign_nop => Err(Refusal::ForeignNop),
        None => Err(Refusal::NotCode),
    }
}

/// The instructions of `code`, their addresses counted from its start.
fn decode(code: &[u8]) -> impl Iterator<Item = Instruction> + '_ {
    Decoder::with_ip(64, code, 0, DecoderOptions::NONE).into_iter()
}

/// A site of ours begins with the nop and a jump behind it; `None` when the bytes are not such a site.
fn own_site(entry: &Entry<'_>, kernel: &Kernel, fork_handler: bool) -> Option<Choice> {
    if !entry.code.starts_with(&NOP5) {
        return None;
    }
    let crosses = crosses_page(entry.offset);
    if kernel.rewrites_nop5 && fork_handler && !crosses {
        return Some(Choice { delta: 0, class: Class::Optimised, reason: Reason::OwnNop });
    }
    let jump = decode(entry.code).nth(1).filter(is_relative_jump)?;
    let reason = if !kernel.rewrites_nop5 {
        Reason::JumpKernelDoesNotRewrite
    } else if crosses {
        Reason::JumpNopCrossesPage
    } else {
        Reason::JumpChildrenUnprotected
    };
    Some(Choice { delta: jump.ip(), class: Class::Emulated, reason })
}

fn crosses_page(offset: u64) -> bool {
    offset % PAGE > PAGE - NOP5.len() as u64
}

/// True where a probe would make the kernel write a call that forked children inherit without its trampoline.
fn would_be_rewritten(entry: &Entry<'_>, kernel: &Kernel, delta: u64) -> bool {
    let at = usize::try_from(delta).ok().and_then(|d| entry.code.get(d..));
    kernel.rewrites_nop5
        && at.is_some_and(|code| code.starts_with(&NOP5))
        && !crosses_page(entry.offset.wrapping_add(delta))
}

/// Why the kernel emulates this instruction; `None` when it single-steps it.
fn emulated(instruction: &Instruction, code: &[u8], kernel: &Kernel) -> Option<Reason> {
    let first = usize::try_from(instruction.ip()).ok().and_then(|at| code.get(at).copied())?;
    let narrowed = first == 0x66;
    match instruction.code() {
        Code::Push_r64 if !narrowed => Some(Reason::Push),
        Code::Nopd | Code::Nopw | Code::Nopq => Some(Reason::Nop),
        Code::Nop_rm32 | Code::Nop_rm16 if kernel.emulates_long_nops && matches!(first, 0x0f | 0x66) => {
            Some(Reason::Nop)
        }
        Code::Call_rel32_64 if !narrowed => Some(Reason::Call),
        _ if is_relative_jump(instruction) && !narrowed => Some(Reason::Jump),
        _ => None,
    }
}

/// `jmp` and `jcc` with a displacement; not `loop` and `jrcxz`, which the kernel single-steps.
fn is_relative_jump(instruction: &Instruction) -> bool {
    matches!(instruction.code(), Code::Jmp_rel8_64 | Code::Jmp_rel32_64) || instruction.is_jcc_short_or_near()
}

/// Where the branches inside `code` lead: an instruction that a loop comes back to is not executed once per call.
fn branch_targets(code: &[u8]) -> Vec<u64> {
    decode(code)
        .filter(|i| {
            matches!(i.flow_control(), FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch)
        })
        .map(|i| i.near_branch_target())
        .collect()
}

/// Watches the argument registers of the walk.
struct Written {
    arguments: &'static [Register],
    info: InstructionInfoFactory,
}

impl Written {
    fn new(arguments: usize) -> Self {
        let arguments = ARGUMENTS.get(..arguments).unwrap_or(&ARGUMENTS);
        Self { arguments, info: InstructionInfoFactory::new() }
    }

    /// True when, after this instruction, an argument may no longer be where the caller put it.
    fn after(&mut self, instruction: &Instruction) -> bool {
        self.info.info(instruction).used_registers().iter().any(|used| {
            let writes = !matches!(used.access(), OpAccess::None | OpAccess::Read | OpAccess::CondRead);
            writes && self.arguments.contains(&used.register().full_register())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::Machine;
    use super::*;

    const OLD: Kernel = Kernel { machine: Machine::X86_64, rewrites_nop5: false, emulates_long_nops: false };
    const NEW: Kernel = Kernel { machine: Machine::X86_64, rewrites_nop5: true, emulates_long_nops: true };
    const OURS: Owner = Owner::Ours { fork_handler: true };

    fn at(code: &[u8], offset: u64, owner: Owner, kernel: &Kernel) -> Result<Choice, Refusal> {
        super::super::choose(&Entry { code, offset, arguments: 3, owner }, kernel)
    }

    fn foreign(code: &[u8], kernel: &Kernel) -> Result<Choice, Refusal> {
        at(code, 0x1000, Owner::Foreign, kernel)
    }

    fn emulated_at(delta: u64, reason: Reason) -> Result<Choice, Refusal> {
        Ok(Choice { delta, class: Class::Emulated, reason })
    }

    #[test]
    fn the_entry_of_debians_rxe_post_send_is_its_push() {
        // librxe-rdmav34.so of rdma-core 44.0-2: push r15; mov r15,rdi; push r14; push r13; …
        let code = [0x41, 0x57, 0x49, 0x89, 0xff, 0x41, 0x56, 0x41, 0x55];
        for kernel in [&OLD, &NEW] {
            let choice = foreign(&code, kernel);
            assert_eq!(choice, emulated_at(0, Reason::Push));
            assert!(choice.unwrap().return_probe_possible());
        }
    }

    #[test]
    fn a_push_behind_moves_that_keep_the_arguments_is_taken() {
        // endbr64; mov r11,rsi; push rbp
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0x49, 0x89, 0xf3, 0x55];
        let choice = foreign(&code, &NEW);
        assert_eq!(choice, emulated_at(7, Reason::Push));
        assert!(!choice.unwrap().return_probe_possible());
    }

    #[test]
    fn a_push_behind_an_overwritten_argument_is_not() {
        // mov esi,1 (writes half of rsi, and so all of it); push rbp
        let code = [0xbe, 1, 0, 0, 0, 0x55];
        let single = Choice { delta: 0, class: Class::SingleStepped, reason: Reason::NothingEmulated };
        assert_eq!(foreign(&code, &NEW), Ok(single));
        // Where one argument is read, rsi may go.
        let entry = Entry { code: &code, offset: 0, arguments: 1, owner: Owner::Foreign };
        assert_eq!(super::super::choose(&entry, &NEW), emulated_at(5, Reason::Push));
    }

    #[test]
    fn an_instruction_that_a_loop_comes_back_to_is_passed_over() {
        // nop; push rbp; jmp -4 (to the nop) : the nop runs more than once per call
        let code = [0x90, 0x55, 0xeb, 0xfc];
        assert_eq!(foreign(&code, &OLD), emulated_at(1, Reason::Push));
    }

    #[test]
    fn the_straight_line_ends_at_a_return() {
        // lea eax,[rdi+1]; ret; push rbp
        let code = [0x8d, 0x47, 0x01, 0xc3, 0x55];
        assert_eq!(foreign(&code, &NEW).map(|c| c.class), Ok(Class::SingleStepped));
    }

    #[test]
    fn relative_branches_are_emulated_but_not_loop_or_jrcxz() {
        assert_eq!(foreign(&[0xe9, 0x10, 0, 0, 0], &OLD), emulated_at(0, Reason::Jump));
        assert_eq!(foreign(&[0x85, 0xd2, 0x74, 0x10, 0xc3], &OLD), emulated_at(2, Reason::Jump));
        assert_eq!(foreign(&[0xe8, 0x10, 0, 0, 0], &OLD), emulated_at(0, Reason::Call));
        assert_eq!(foreign(&[0xe3, 0x10, 0xc3], &OLD).map(|c| c.class), Ok(Class::SingleStepped));
        assert_eq!(foreign(&[0xff, 0xe0], &OLD).map(|c| c.class), Ok(Class::SingleStepped));
    }

    #[test]
    fn short_nops_are_emulated_everywhere_and_long_ones_from_6_18() {
        assert_eq!(foreign(&[0x66, 0x90, 0xc3], &OLD), emulated_at(0, Reason::Nop));
        let nop4 = [0x0f, 0x1f, 0x40, 0x00, 0xc3];
        assert_eq!(foreign(&nop4, &OLD).map(|c| c.class), Ok(Class::SingleStepped));
        assert_eq!(foreign(&nop4, &NEW), emulated_at(0, Reason::Nop));
    }

    #[test]
    fn a_foreign_nop5_is_never_probed_where_it_would_be_rewritten() {
        // nop5; push rbp
        let code = [0x0f, 0x1f, 0x44, 0, 0, 0x55];
        assert_eq!(foreign(&code, &NEW), emulated_at(5, Reason::Push));
        // nop5; ret: the return still has the arguments, and is single-stepped.
        let single = Choice { delta: 5, class: Class::SingleStepped, reason: Reason::NothingEmulated };
        assert_eq!(foreign(&[0x0f, 0x1f, 0x44, 0, 0, 0xc3], &NEW), Ok(single));
        assert_eq!(foreign(&[0x0f, 0x1f, 0x44, 0, 0], &NEW), Err(Refusal::ForeignNop));
        // Where it crosses a page it is only emulated; where nothing is rewritten, only single-stepped.
        assert_eq!(at(&code, 0x1ffd, Owner::Foreign, &NEW), emulated_at(0, Reason::Nop));
        assert_eq!(foreign(&[0x0f, 0x1f, 0x44, 0, 0], &OLD).map(|c| c.class), Ok(Class::SingleStepped));
    }

    #[test]
    fn an_own_site_uses_its_nop_only_where_children_survive_it() {
        // nop5; jmp rel32
        let code = [0x0f, 0x1f, 0x44, 0, 0, 0xe9, 0, 1, 0, 0];
        let optimised = Choice { delta: 0, class: Class::Optimised, reason: Reason::OwnNop };
        assert_eq!(at(&code, 0x1010, OURS, &NEW), Ok(optimised));
        assert_eq!(at(&code, 0x1010, OURS, &OLD), emulated_at(5, Reason::JumpKernelDoesNotRewrite));
        let careless = Owner::Ours { fork_handler: false };
        assert_eq!(at(&code, 0x1010, careless, &NEW), emulated_at(5, Reason::JumpChildrenUnprotected));
        assert_eq!(at(&code, 0x1ffc, OURS, &NEW), emulated_at(5, Reason::JumpNopCrossesPage));
        assert_eq!(at(&code, 0x1ffb, OURS, &NEW), Ok(optimised));
    }

    #[test]
    fn bytes_that_are_no_code_are_refused() {
        assert_eq!(foreign(&[], &NEW), Err(Refusal::NotCode));
        assert_eq!(foreign(&[0x06, 0x06], &NEW), Err(Refusal::NotCode));
        assert_eq!(foreign(&[0xe9, 0x10], &NEW), Err(Refusal::NotCode));
    }

    #[test]
    fn every_first_byte_gets_an_answer_without_a_panic() {
        for first in 0..=u8::MAX {
            for second in [0x00, 0x0f, 0x44, 0x66, 0x90, 0xff] {
                let _ = foreign(&[first, second, 0x44, 0, 0, first, second, 0xc3], &NEW);
                let _ = at(&[first, second], u64::MAX, OURS, &OLD);
            }
        }
    }
}
