//! Reading the code of a short function that only reads memory: every way through it, with what it returns.
//!
//! The function is given the address of an object and nothing else. What it reads from there on has a name each byte;
//! constants of the library are read from its file. A branch that depends on what is not known goes both ways. A way that
//! calls, writes memory, or does anything that is not understood ends with an unknown result: that is no error, as long
//! as the others say enough.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use iced_x86::{ConditionCode, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use probe_common::recipe::MOST_HOPS;

use super::super::library::Library;
use super::value::{Bit, Value, Word};

/// Ways through a function that are followed, and instructions on each: readers have a dozen.
const MOST_WAYS: usize = 96;
const LONGEST_WAY: usize = 256;
/// Instructions read in all for one library, over and over: mlx5, whose opcodes are the longest to tell, takes a tenth.
const MOST_STEPS: usize = 2_000_000;
/// Bytes of memory that are told apart.
const MOST_BYTES: usize = 512;

/// What is found where so many pointers have been followed from the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Pointer {
    pub hops: usize,
    /// Where each lies, in bytes from what the one before points to.
    pub to: [i64; MOST_HOPS],
}

/// A byte of memory: so many bytes from what a pointer points to.
pub type Byte = (Pointer, i64);

/// What a byte of memory is taken to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assumed {
    pub byte: Byte,
    /// The bits that are.
    pub mask: u8,
    pub value: u8,
}

/// A library whose code is read, and how much more of it may be.
pub struct Code<'a> {
    library: &'a Library,
    left: Cell<usize>,
}

impl<'a> Code<'a> {
    pub fn new(library: &'a Library) -> Self {
        Self { library, left: Cell::new(MOST_STEPS) }
    }
}

/// A reader of code.
pub struct Machine<'a> {
    code: &'a Code<'a>,
    /// Bytes that are taken to have these values, as far as the bits of the mask go.
    pub assumed: Vec<Assumed>,
    /// The bytes of memory that were read, by their number.
    pub bytes: Vec<Byte>,
    numbers: BTreeMap<Byte, u16>,
    /// Those that were read to be followed.
    pub followed: BTreeSet<Byte>,
}

/// What the last computation left, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags {
    pub carry: Option<bool>,
    pub zero: Option<bool>,
    pub sign: Option<bool>,
    pub overflow: Option<bool>,
    /// What was computed: nothing but zeroes where `zero` is set.
    pub result: Option<Word>,
}

/// Where a way has come to.
#[derive(Clone)]
pub struct State {
    at: u64,
    steps: usize,
    pub registers: [Value; 16],
    pub flags: Flags,
}

/// What an instruction leads to.
enum Step {
    Next,
    Returns,
    To(u64),
    /// There, or to the next.
    Either(u64),
    NotUnderstood,
}

impl<'a> Machine<'a> {
    pub fn new(code: &'a Code<'a>) -> Self {
        Self {
            code,
            assumed: Vec::new(),
            bytes: Vec::new(),
            numbers: BTreeMap::new(),
            followed: BTreeSet::new(),
        }
    }

    /// What the function at `start` returns on every way through it: `None` for a way that is not understood to its end.
    /// Nothing at all where there are too many ways.
    pub fn results(&mut self, start: u64) -> Option<Vec<Option<Word>>> {
        let mut registers = [Value::UNKNOWN; 16];
        registers[Register::RDI.number()] = Value::Address(Pointer::default(), 0);
        let mut ways = VecDeque::from([State { at: start, steps: 0, registers, flags: Flags::default() }]);
        let (mut results, mut met) = (Vec::new(), 1);
        while let Some(mut state) = ways.pop_front() {
            let result = loop {
                let Some(instruction) = self.instruction(&state) else { break None };
                state.steps += 1;
                state.at = instruction.next_ip();
                match self.step(&mut state, &instruction) {
                    Step::Next => {}
                    Step::To(target) => state.at = target,
                    Step::Either(target) => {
                        met += 1;
                        if met > MOST_WAYS {
                            return None;
                        }
                        let mut other = State { at: target, ..state.clone() };
                        let condition = instruction.condition_code();
                        if matches!(condition, ConditionCode::e | ConditionCode::ne) {
                            other.learn(condition == ConditionCode::e);
                            state.learn(condition != ConditionCode::e);
                        }
                        ways.push_back(other);
                    }
                    Step::Returns => break Some(state.registers[Register::RAX.number()].word()),
                    Step::NotUnderstood => break None,
                }
            };
            results.push(result);
        }
        Some(results)
    }

    fn instruction(&self, state: &State) -> Option<Instruction> {
        let left = self.code.left.get().checked_sub(1)?;
        self.code.left.set(left);
        if state.steps >= LONGEST_WAY {
            return None;
        }
        let code = self.code.library.code_at(state.at);
        let instruction = Decoder::with_ip(64, code, state.at, DecoderOptions::NONE).decode();
        (!instruction.is_invalid()).then_some(instruction)
    }

    fn step(&mut self, state: &mut State, i: &Instruction) -> Step {
        let only_reads = matches!(
            i.mnemonic(),
            Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Bt | Mnemonic::Nop | Mnemonic::Jmp
        );
        let writes_memory = i.op0_kind() == OpKind::Memory && !only_reads;
        let is_repeated = i.has_rep_prefix() || i.has_repne_prefix();
        if writes_memory || i.has_lock_prefix() || is_repeated && i.mnemonic() != Mnemonic::Ret {
            return Step::NotUnderstood;
        }
        match i.mnemonic() {
            Mnemonic::Endbr64 | Mnemonic::Nop => Step::Next,
            Mnemonic::Ret if i.op_count() == 0 => Step::Returns,
            Mnemonic::Jmp if i.op0_kind() == OpKind::NearBranch64 => Step::To(i.near_branch_target()),
            Mnemonic::Jmp => match self.operand(state, i, 0).word().number(64) {
                Some(target) => Step::To(target),
                None => Step::NotUnderstood,
            },
            _ if i.is_jcc_short_or_near() => match state.flags.hold(i.condition_code()) {
                Some(true) => Step::To(i.near_branch_target()),
                Some(false) => Step::Next,
                None => Step::Either(i.near_branch_target()),
            },
            _ if self.compute(state, i) => Step::Next,
            _ => Step::NotUnderstood,
        }
    }

    /// What an operand holds, as wide as it is.
    pub fn operand(&mut self, state: &State, i: &Instruction, operand: u32) -> Value {
        match i.op_kind(operand) {
            OpKind::Register => state.read(i.op_register(operand)),
            OpKind::Memory => {
                let address = self.address(state, i);
                self.load(address, i.memory_size().size())
            }
            _ => i.try_immediate(operand).map_or(Value::UNKNOWN, |n| Value::Word(Word::of(n))),
        }
    }

    /// The address that an instruction's operand in memory has.
    pub fn address(&mut self, state: &State, i: &Instruction) -> Value {
        let (base, index) = (i.memory_base(), i.memory_index());
        if matches!(i.memory_segment(), Register::FS | Register::GS) {
            return Value::UNKNOWN;
        }
        if base == Register::RIP {
            return Value::Word(Word::of(i.ip_rel_memory_address()));
        }
        let is_short = base.is_gpr32() || index.is_gpr32();
        let displacement = i.memory_displacement64();
        let base = if base == Register::None { Value::Word(Word::of(0)) } else { state.read(base) };
        let index = if index == Register::None { Word::of(0) } else { state.read(index).word() };
        let Some(index) = index.number(64) else { return Value::UNKNOWN };
        let more = index.wrapping_mul(u64::from(i.memory_index_scale())).wrapping_add(displacement);
        let bits = if is_short { 32 } else { 64 };
        if let Some(base) = base.word().number(64) {
            return Value::Word(Word::of(base.wrapping_add(more)).low(bits));
        }
        match self.pointed(base) {
            Some((pointer, at)) if !is_short => Value::Address(pointer, at.wrapping_add_unsigned(more)),
            _ => Value::UNKNOWN,
        }
    }

    /// Where a value points, where that is known: an address, or a pointer that was read.
    pub fn pointed(&mut self, value: Value) -> Option<(Pointer, i64)> {
        let word = match value {
            Value::Address(pointer, at) => return Some((pointer, at)),
            Value::Word(word) => word,
        };
        let Bit::Of { byte, bit: 0 } = word.0[0] else { return None };
        let (of, first) = *self.bytes.get(usize::from(byte))?;
        let read: Vec<Byte> = (0..8).map(|n| (of, first.wrapping_add(n))).collect();
        let is_whole = word.0.iter().enumerate().all(|(n, bit)| match bit {
            Bit::Of { byte, bit } => {
                usize::from(*bit) == n % 8 && self.bytes.get(usize::from(*byte)) == Some(&read[n / 8])
            }
            _ => false,
        });
        let mut pointer = of;
        *pointer.to.get_mut(of.hops).filter(|_| is_whole)? = first;
        pointer.hops += 1;
        self.followed.extend(read);
        Some((pointer, 0))
    }

    fn load(&mut self, address: Value, bytes: usize) -> Value {
        if !matches!(bytes, 1 | 2 | 4 | 8) {
            return Value::UNKNOWN;
        }
        if let Some(address) = address.word().number(64) {
            let constant = self.code.library.constant(address, bytes);
            return constant.map_or(Value::UNKNOWN, |n| Value::Word(Word::of(n)));
        }
        let Some((pointer, at)) = self.pointed(address) else { return Value::UNKNOWN };
        let mut word = Word::of(0);
        for n in 0..bytes {
            let byte = self.byte((pointer, at.wrapping_add_unsigned(n as u64)));
            word = word.with(n * 8, 8, byte);
        }
        Value::Word(word)
    }

    fn byte(&mut self, byte: Byte) -> Word {
        let assumed = self.assumed.iter().find(|assumed| assumed.byte == byte).copied();
        let (mask, value) = assumed.map_or((0, 0), |assumed| (assumed.mask, assumed.value));
        let next = u16::try_from(self.bytes.len()).unwrap_or(u16::MAX);
        let number = match self.numbers.get(&byte) {
            Some(number) => *number,
            None if self.bytes.len() < MOST_BYTES => {
                self.bytes.push(byte);
                self.numbers.insert(byte, next);
                next
            }
            None => return Word::UNKNOWN,
        };
        let bit = |n: usize| match u8::try_from(n) {
            Ok(bit) if mask >> bit & 1 != 0 => Bit::Known(value >> bit & 1 != 0),
            Ok(bit) => Bit::Of { byte: number, bit },
            Err(_) => Bit::Unknown,
        };
        Word(std::array::from_fn(|n| if n < 8 { bit(n) } else { Bit::Known(false) }))
    }
}
