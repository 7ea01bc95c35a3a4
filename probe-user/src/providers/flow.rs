//! A small abstract reading of straight machine code: which function addresses it stores where, and what it calls.
//!
//! Only constants that name functions or data of the library are followed (`lea reg, [rip+x]`), through moves between
//! registers and the pairs that vectorising compilers build in SSE registers (`movq`, `punpcklqdq`, `movups`). Every
//! instruction is read in order; behind a return or jump the registers are those of the branch that leads there. What a
//! branch leads back to is read again, with what the registers hold then.

use std::collections::BTreeMap;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};

/// What a function does that matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Calls (or jumps to) `target` with this constant as second argument, where it is one.
    Call { target: u64, second_argument: Option<u64> },
    /// Stores the constant `value` at `[object + displacement]`.
    Store { object: Object, displacement: u64, value: u64 },
}

/// What a base register points to, from one write of the register to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Object {
    pub register: Register,
    /// Writes of the register before.
    pub version: u32,
}

/// The constants that registers hold at one point.
#[derive(Clone)]
struct Constants {
    general: [Option<u64>; 16],
    /// What a register holds instead where a condition said so (`cmov`).
    otherwise: [Option<u64>; 16],
    vector: [[Option<u64>; 2]; 16],
    versions: [u32; 16],
}

/// Branches back that are followed in one function, and instructions read behind each: compilers let branches end in
/// common code of a few stores.
const MOST_BRANCHES_BACK: usize = 64;
const LONGEST_BEHIND: usize = 64;

/// Reads the code of one function that begins at `start`.
pub fn acts(code: &[u8], start: u64) -> Vec<Act> {
    let mut paths =
        Paths { constants: Constants::unknown(), pending: BTreeMap::new(), table: None, back: Vec::new() };
    let mut info = InstructionInfoFactory::new();
    let mut acts = Vec::new();
    let mut fell_through = true;
    for instruction in Decoder::with_ip(64, code, start, DecoderOptions::NONE).into_iter() {
        if instruction.is_invalid() {
            break;
        }
        paths.arrive(instruction.ip(), fell_through);
        paths.constants.step(&instruction, &mut info, &mut acts);
        fell_through = paths.leave(&instruction);
    }
    for (target, mut constants) in paths.back {
        let behind = target.checked_sub(start).and_then(|at| code.get(usize::try_from(at).ok()?..));
        let decoder = Decoder::with_ip(64, behind.unwrap_or_default(), target, DecoderOptions::NONE);
        for instruction in decoder.into_iter().take(LONGEST_BEHIND) {
            if instruction.is_invalid() {
                break;
            }
            constants.step(&instruction, &mut info, &mut acts);
            if !falls_through(&instruction) {
                break;
            }
        }
    }
    acts
}

/// True when the next instruction may follow this one.
fn falls_through(i: &Instruction) -> bool {
    let ends = [FlowControl::UnconditionalBranch, FlowControl::IndirectBranch, FlowControl::Return];
    !ends.contains(&i.flow_control())
}

/// What registers hold where branches lead.
struct Paths {
    constants: Constants,
    /// By target: the state at the first branch to it.
    pending: BTreeMap<u64, Constants>,
    /// The state at the last jump through a table, whose targets are not known.
    table: Option<Constants>,
    /// Where branches lead back, and the state there.
    back: Vec<(u64, Constants)>,
}

impl Paths {
    fn arrive(&mut self, at: u64, fell_through: bool) {
        let saved = self.pending.remove(&at);
        if !fell_through {
            self.constants = saved.or_else(|| self.table.clone()).unwrap_or_else(Constants::unknown);
        }
    }

    /// True when the next instruction follows this one.
    fn leave(&mut self, i: &Instruction) -> bool {
        let flow = i.flow_control();
        if matches!(flow, FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch) {
            let target = i.near_branch_target();
            if target > i.ip() {
                self.pending.entry(target).or_insert_with(|| self.constants.clone());
            } else if self.back.len() < MOST_BRANCHES_BACK {
                self.back.push((target, self.constants.clone()));
            }
        }
        if flow == FlowControl::IndirectBranch {
            self.table = Some(self.constants.clone());
        }
        falls_through(i)
    }
}

impl Constants {
    fn unknown() -> Self {
        Self { general: [None; 16], otherwise: [None; 16], vector: [[None; 2]; 16], versions: [0; 16] }
    }

    fn step(&mut self, i: &Instruction, info: &mut InstructionInfoFactory, acts: &mut Vec<Act>) {
        match i.flow_control() {
            FlowControl::Call | FlowControl::UnconditionalBranch if i.op0_kind() == OpKind::NearBranch64 => {
                let second_argument = self.of(Register::RSI);
                acts.push(Act::Call { target: i.near_branch_target(), second_argument });
                if i.flow_control() == FlowControl::Call {
                    self.forget_scratch();
                }
                return;
            }
            FlowControl::IndirectCall => return self.forget_scratch(),
            _ => {}
        }
        let known = self.result(i);
        if known.is_none() {
            if let Some((base, displacement)) = stored_to(i) {
                let version = general_index(base).and_then(|n| self.versions.get(n)).copied().unwrap_or(0);
                self.store(i, Object { register: base, version }, displacement, acts);
            }
            self.forget_written(i, info);
        }
        match known {
            Some(Value::General(register, value)) => self.set(register, value),
            Some(Value::Either(register, [value, otherwise])) => {
                self.set(register, value);
                if let Some(slot) = general_index(register).and_then(|n| self.otherwise.get_mut(n)) {
                    *slot = otherwise;
                }
            }
            Some(Value::Vector(register, pair)) => {
                if let Some(slot) = vector_index(register).and_then(|n| self.vector.get_mut(n)) {
                    *slot = pair;
                }
            }
            None => {}
        }
    }

    /// What an instruction leaves in its destination register, where it can be told.
    fn result(&self, i: &Instruction) -> Option<Value> {
        let (to, from) = (i.op0_register(), i.op1_register());
        match i.mnemonic() {
            Mnemonic::Lea if i.memory_base() == Register::RIP => {
                Some(Value::General(to, Some(i.ip_rel_memory_address())))
            }
            Mnemonic::Mov if to.is_gpr64() && from.is_gpr64() => {
                Some(Value::Either(to, [self.of(from), self.otherwise(from)]))
            }
            mnemonic if is_conditional_move(mnemonic) && to.is_gpr64() && from.is_gpr64() => {
                Some(Value::Either(to, [self.of(to), self.of(from)]))
            }
            Mnemonic::Movq if to.is_xmm() && from.is_gpr64() => {
                Some(Value::Vector(to, [self.of(from), None]))
            }
            Mnemonic::Movdqa | Mnemonic::Movaps if to.is_xmm() && from.is_xmm() => {
                Some(Value::Vector(to, self.pair(from)))
            }
            Mnemonic::Punpcklqdq if to.is_xmm() && from.is_xmm() => {
                Some(Value::Vector(to, [self.pair(to)[0], self.pair(from)[0]]))
            }
            Mnemonic::Pinsrq if to.is_xmm() && from.is_gpr64() && i.immediate8() == 1 => {
                Some(Value::Vector(to, [self.pair(to)[0], self.of(from)]))
            }
            _ => None,
        }
    }

    fn store(&self, i: &Instruction, object: Object, displacement: u64, acts: &mut Vec<Act>) {
        if i.mnemonic() == Mnemonic::Mov
            && let Some(value) = self.otherwise(i.op1_register())
        {
            acts.push(Act::Store { object, displacement, value });
        }
        let values = match i.mnemonic() {
            Mnemonic::Mov if i.op1_register().is_gpr64() => [self.of(i.op1_register()), None],
            Mnemonic::Movups | Mnemonic::Movaps | Mnemonic::Movdqa | Mnemonic::Movdqu => {
                self.pair(i.op1_register())
            }
            Mnemonic::Movq | Mnemonic::Movlps => [self.pair(i.op1_register())[0], None],
            _ => [None, None],
        };
        for (place, value) in [displacement, displacement.wrapping_add(8)].into_iter().zip(values) {
            if let Some(value) = value {
                acts.push(Act::Store { object, displacement: place, value });
            }
        }
    }

    fn of(&self, register: Register) -> Option<u64> {
        self.general.get(general_index(register)?).copied().flatten()
    }

    fn otherwise(&self, register: Register) -> Option<u64> {
        self.otherwise.get(general_index(register)?).copied().flatten()
    }

    fn pair(&self, register: Register) -> [Option<u64>; 2] {
        vector_index(register).and_then(|n| self.vector.get(n)).copied().unwrap_or_default()
    }

    fn set(&mut self, register: Register, value: Option<u64>) {
        if let Some(slot) = general_index(register).and_then(|n| self.general.get_mut(n)) {
            *slot = value;
        }
        if let Some(slot) = general_index(register).and_then(|n| self.otherwise.get_mut(n)) {
            *slot = None;
        }
        if let Some(version) = general_index(register).and_then(|n| self.versions.get_mut(n)) {
            *version = version.wrapping_add(1);
        }
    }

    fn forget_written(&mut self, i: &Instruction, info: &mut InstructionInfoFactory) {
        for used in info.info(i).used_registers() {
            if matches!(used.access(), OpAccess::None | OpAccess::Read | OpAccess::CondRead) {
                continue;
            }
            self.set(used.register().full_register(), None);
            if let Some(slot) = vector_index(used.register()).and_then(|n| self.vector.get_mut(n)) {
                *slot = [None, None];
            }
        }
    }

    /// What a callee may change.
    fn forget_scratch(&mut self) {
        for register in [
            Register::RAX,
            Register::RCX,
            Register::RDX,
            Register::RSI,
            Register::RDI,
            Register::R8,
            Register::R9,
            Register::R10,
            Register::R11,
        ] {
            self.set(register, None);
        }
        self.vector = [[None; 2]; 16];
    }
}

enum Value {
    General(Register, Option<u64>),
    Either(Register, [Option<u64>; 2]),
    Vector(Register, [Option<u64>; 2]),
}

fn is_conditional_move(mnemonic: Mnemonic) -> bool {
    use Mnemonic::{
        Cmova, Cmovae, Cmovb, Cmovbe, Cmove, Cmovg, Cmovge, Cmovl, Cmovle, Cmovne, Cmovno, Cmovnp, Cmovns,
        Cmovo, Cmovp, Cmovs,
    };
    matches!(
        mnemonic,
        Cmova
            | Cmovae
            | Cmovb
            | Cmovbe
            | Cmove
            | Cmovg
            | Cmovge
            | Cmovl
            | Cmovle
            | Cmovne
            | Cmovno
            | Cmovnp
            | Cmovns
            | Cmovo
            | Cmovp
            | Cmovs
    )
}

fn stored_to(i: &Instruction) -> Option<(Register, u64)> {
    let plain = i.op0_kind() == OpKind::Memory && i.memory_index() == Register::None;
    (plain && i.memory_base().is_gpr64()).then(|| (i.memory_base(), i.memory_displacement64()))
}

fn general_index(register: Register) -> Option<usize> {
    register.is_gpr64().then(|| register.number())
}

fn vector_index(register: Register) -> Option<usize> {
    register.is_xmm().then(|| register.number())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_stored_by_a_vectorised_fill_is_seen() {
        // lea rdx,[rip+0x10]; lea rax,[rip+0x20]; movq xmm0,rdx; movq xmm3,rax; punpcklqdq xmm0,xmm3;
        // movups [rbx+0x120],xmm0 : as librxe fills its extended queue pair
        let code = [
            0x48, 0x8d, 0x15, 0x10, 0, 0, 0, 0x48, 0x8d, 0x05, 0x20, 0, 0, 0, 0x66, 0x48, 0x0f, 0x6e, 0xc2,
            0x66, 0x48, 0x0f, 0x6e, 0xd8, 0x66, 0x0f, 0x6c, 0xc3, 0x0f, 0x11, 0x83, 0x20, 0x01, 0, 0,
        ];
        let (first, second) = (0x1017, 0x102e);
        let object = Object { register: Register::RBX, version: 0 };
        assert_eq!(
            acts(&code, 0x1000),
            [
                Act::Store { object, displacement: 0x120, value: first },
                Act::Store { object, displacement: 0x128, value: second },
            ]
        );
    }

    #[test]
    fn the_second_argument_of_a_call_is_followed_and_forgotten_after_it() {
        // lea rsi,[rip+0x100]; call +0; call +0
        let code = [0x48, 0x8d, 0x35, 0, 1, 0, 0, 0xe8, 0, 0, 0, 0, 0xe8, 0, 0, 0, 0];
        assert_eq!(
            acts(&code, 0),
            [
                Act::Call { target: 12, second_argument: Some(0x107) },
                Act::Call { target: 17, second_argument: None },
            ]
        );
    }

    #[test]
    fn a_base_that_is_written_points_to_another_object() {
        // lea rax,[rip+0x100]; mov [rdi+8],rax; mov rdi,[rdx]; mov [rdi+8],rax
        let code =
            [0x48, 0x8d, 0x05, 0, 1, 0, 0, 0x48, 0x89, 0x47, 0x08, 0x48, 0x8b, 0x3a, 0x48, 0x89, 0x47, 0x08];
        let versions: Vec<u32> = acts(&code, 0)
            .iter()
            .filter_map(|act| if let Act::Store { object, .. } = act { Some(object.version) } else { None })
            .collect();
        assert_eq!(versions, [0, 1]);
    }

    #[test]
    fn behind_a_return_registers_are_those_of_the_branch_that_leads_there() {
        // lea rax,[rip+0x100]; je +4; xor eax,eax; ret; (je leads here:) mov [rdi+8],rax
        let code = [0x48, 0x8d, 0x05, 0, 1, 0, 0, 0x74, 3, 0x31, 0xc0, 0xc3, 0x48, 0x89, 0x47, 0x08];
        let object = Object { register: Register::RDI, version: 0 };
        assert_eq!(acts(&code, 0), [Act::Store { object, displacement: 8, value: 0x107 }]);
    }

    #[test]
    fn code_that_a_branch_leads_back_to_is_read_with_the_registers_of_the_branch() {
        // lea rax,[rip+0x100]; mov [rdi+8],rax; ret; lea rax,[rip+0x200]; jmp back to the mov : as libhns fills the
        // setters of its extended queue pairs
        let code = [
            0x48, 0x8d, 0x05, 0, 1, 0, 0, 0x48, 0x89, 0x47, 0x08, 0xc3, 0x48, 0x8d, 0x05, 0, 2, 0, 0, 0xeb,
            0xf2,
        ];
        let object = Object { register: Register::RDI, version: 0 };
        let store = |value| Act::Store { object, displacement: 8, value };
        let stores: Vec<Act> =
            acts(&code, 0).into_iter().filter(|act| matches!(act, Act::Store { .. })).collect();
        assert_eq!(stores, [store(0x107), store(0x213)]);
    }

    #[test]
    fn a_conditional_move_stores_one_or_the_other() {
        // lea rax,[rip+0x10]; lea rdx,[rip+0x20]; cmovne rdx,rax; mov [rdi+0xa0],rdx : as libmlx4 fills its extended
        // completion queue
        let code = [
            0x48, 0x8d, 0x05, 0x10, 0, 0, 0, 0x48, 0x8d, 0x15, 0x20, 0, 0, 0, 0x48, 0x0f, 0x45, 0xd0, 0x48,
            0x89, 0x97, 0xa0, 0, 0, 0,
        ];
        let object = Object { register: Register::RDI, version: 0 };
        let store = |value| Act::Store { object, displacement: 0xa0, value };
        assert_eq!(acts(&code, 0), [store(0x17), store(0x2e)]);
    }

    #[test]
    fn a_register_written_by_anything_else_is_unknown() {
        // lea rax,[rip+0x100]; add rax,1; mov [rdi+8],rax
        let code = [0x48, 0x8d, 0x05, 0, 1, 0, 0, 0x48, 0x83, 0xc0, 0x01, 0x48, 0x89, 0x47, 0x08];
        assert_eq!(acts(&code, 0), []);
    }
}
