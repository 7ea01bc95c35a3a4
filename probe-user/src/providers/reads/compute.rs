//! What single instructions make of registers and flags.

use iced_x86::{ConditionCode, Instruction, Mnemonic, OpKind, Register};

use super::machine::{Flags, Machine, State};
use super::value::{Bit, Value, Word};

impl Machine<'_> {
    /// Carries out an instruction that goes on to the next; false where it is not understood.
    pub fn compute(&mut self, state: &mut State, i: &Instruction) -> bool {
        let bits = width(i, 0);
        match i.mnemonic() {
            Mnemonic::Cdqe => return state.extend(32, Register::RAX),
            Mnemonic::Cwde => return state.extend(16, Register::EAX),
            _ if bits == 0 => return false,
            _ => {}
        }
        let to = i.op0_register();
        let value = match i.mnemonic() {
            Mnemonic::Mov | Mnemonic::Movzx => self.operand(state, i, 1),
            Mnemonic::Movsx | Mnemonic::Movsxd => {
                Value::Word(self.operand(state, i, 1).word().extended(width(i, 1)))
            }
            Mnemonic::Lea => self.address(state, i),
            Mnemonic::Bswap => Value::Word(state.read(to).word().swapped(bits / 8)),
            Mnemonic::Not => Value::Word(state.read(to).word().xor(Word::of(u64::MAX))),
            Mnemonic::Shl | Mnemonic::Shr | Mnemonic::Sar | Mnemonic::Rol | Mnemonic::Ror => {
                match self.shift(state, i, bits) {
                    Some(value) => Value::Word(value),
                    None => return false,
                }
            }
            Mnemonic::And | Mnemonic::Or | Mnemonic::Xor | Mnemonic::Test => {
                let value = Value::Word(self.combine(state, i, bits));
                if i.mnemonic() == Mnemonic::Test {
                    return true;
                }
                value
            }
            Mnemonic::Add
            | Mnemonic::Sub
            | Mnemonic::Cmp
            | Mnemonic::Adc
            | Mnemonic::Sbb
            | Mnemonic::Inc
            | Mnemonic::Dec
            | Mnemonic::Neg => {
                let value = self.add(state, i, bits);
                if i.mnemonic() == Mnemonic::Cmp {
                    return true;
                }
                value
            }
            Mnemonic::Bt => {
                self.test_bit(state, i, bits);
                return true;
            }
            _ if i.condition_code() != ConditionCode::None && i.op0_kind() == OpKind::Register => {
                let holds = state.flags.hold(i.condition_code());
                if i.op_count() == 1 { set(holds) } else { self.moved_if(state, i, holds) }
            }
            _ => return false,
        };
        state.write(to, value)
    }

    fn moved_if(&mut self, state: &State, i: &Instruction, holds: Option<bool>) -> Value {
        let (old, new) = (state.read(i.op0_register()), self.operand(state, i, 1));
        match holds {
            Some(true) => new,
            Some(false) => old,
            None if old == new => old,
            None => Value::Word(old.word().either(new.word())),
        }
    }

    fn shift(&mut self, state: &mut State, i: &Instruction, bits: usize) -> Option<Word> {
        let count = self.operand(state, i, 1).word().number(8)?;
        let count = i32::try_from(count & if bits == 64 { 63 } else { 31 }).ok()?;
        let from = state.read(i.op0_register()).word();
        if count == 0 {
            return Some(from);
        }
        let turns = usize::try_from(count).ok()? % bits;
        let zero = Bit::Known(false);
        let is_turned = matches!(i.mnemonic(), Mnemonic::Rol | Mnemonic::Ror);
        let value = match i.mnemonic() {
            Mnemonic::Shl => from.shifted(count, bits, zero),
            Mnemonic::Shr => from.shifted(-count, bits, zero),
            Mnemonic::Sar => from.shifted(-count, bits, *from.0.get(bits - 1)?),
            Mnemonic::Rol => from.turned(turns, bits),
            _ => from.turned(bits - turns, bits),
        };
        let before = state.flags;
        state.flags = Flags { carry: None, overflow: None, ..flags_of(value, bits) };
        if is_turned {
            state.flags = Flags { carry: None, overflow: None, ..before };
        }
        Some(value)
    }

    fn combine(&mut self, state: &mut State, i: &Instruction, bits: usize) -> Word {
        let (a, b) = (self.operand(state, i, 0).word(), self.operand(state, i, 1).word());
        let value = match i.mnemonic() {
            Mnemonic::Or => a.or(b),
            Mnemonic::Xor if is_twice_the_same(i) => Word::of(0),
            Mnemonic::Xor => a.xor(b),
            _ => a.and(b),
        };
        let value = value.low(bits);
        state.flags = flags_of(value, bits);
        value
    }

    fn add(&mut self, state: &mut State, i: &Instruction, bits: usize) -> Value {
        let a = self.operand(state, i, 0);
        let one = Value::Word(Word::of(1));
        let carry = state.flags.carry;
        // As a sum, a difference or a difference from nothing, of two operands and what was carried.
        let (a, b, subtracts, carried) = match i.mnemonic() {
            Mnemonic::Inc => (a, one, false, Some(false)),
            Mnemonic::Dec => (a, one, true, Some(false)),
            Mnemonic::Neg => (Value::Word(Word::of(0)), a, true, Some(false)),
            Mnemonic::Adc => (a, self.operand(state, i, 1), false, carry),
            Mnemonic::Sbb if is_twice_the_same(i) => {
                (Value::Word(Word::of(0)), Value::Word(Word::of(0)), true, carry)
            }
            Mnemonic::Sub if is_twice_the_same(i) => {
                (Value::Word(Word::of(0)), Value::Word(Word::of(0)), true, Some(false))
            }
            mnemonic => (a, self.operand(state, i, 1), mnemonic != Mnemonic::Add, Some(false)),
        };
        let is_step = matches!(i.mnemonic(), Mnemonic::Inc | Mnemonic::Dec);
        let is_plain = is_step || matches!(i.mnemonic(), Mnemonic::Add | Mnemonic::Sub);
        let pointed = if is_plain && bits == 64 { self.pointed(a) } else { None };
        let (value, mut flags) = sum(a.word().low(bits), b.word().low(bits), carried, subtracts, bits);
        if is_step {
            flags.carry = carry;
        }
        state.flags = flags;
        match (pointed, b.word().number(64)) {
            (Some((pointer, at)), Some(b)) if subtracts => {
                Value::Address(pointer, at.wrapping_sub_unsigned(b))
            }
            (Some((pointer, at)), Some(b)) => Value::Address(pointer, at.wrapping_add_unsigned(b)),
            _ => Value::Word(value),
        }
    }

    fn test_bit(&mut self, state: &mut State, i: &Instruction, bits: usize) {
        let index = self.operand(state, i, 1).word().number(width(i, 1).min(8));
        // With an index in a register, a bit of memory may lie beyond the operand.
        let is_here = i.op0_kind() == OpKind::Register;
        let word = if is_here { state.read(i.op0_register()).word() } else { Word::UNKNOWN };
        let place = index.and_then(|index| usize::try_from(index).ok()).map(|index| index % bits);
        state.flags.carry = match place.and_then(|place| word.0.get(place)) {
            Some(Bit::Known(is_set)) => Some(*is_set),
            _ => None,
        };
        (state.flags.sign, state.flags.overflow) = (None, None);
    }
}

fn set(holds: Option<bool>) -> Value {
    Value::Word(holds.map_or(Word::UNKNOWN.low(1), |holds| Word::of(holds.into())))
}

/// Bits of an operand: of a general register, an immediate or memory; 0 where it is something else.
fn width(i: &Instruction, operand: u32) -> usize {
    match i.op_kind(operand) {
        OpKind::Register if i.op_register(operand).is_gpr() => i.op_register(operand).size() * 8,
        OpKind::Memory => match i.memory_size().size() {
            // An address that is only computed.
            0 => 64,
            bytes => bytes * 8,
        },
        OpKind::Immediate8 => 8,
        _ => 0,
    }
}

fn is_twice_the_same(i: &Instruction) -> bool {
    i.op1_kind() == OpKind::Register && i.op0_register() == i.op1_register()
}

/// What a bitwise operation leaves.
fn flags_of(value: Word, bits: usize) -> Flags {
    let own = value.0.get(..bits).unwrap_or_default();
    let zero = if own.contains(&Bit::Known(true)) {
        Some(false)
    } else {
        own.iter().all(|bit| *bit == Bit::Known(false)).then_some(true)
    };
    let sign = own.last().and_then(|bit| bit.known());
    Flags { carry: Some(false), zero, sign, overflow: Some(false), result: Some(value.low(bits)) }
}

/// `a + b + carried`, or `a − b − carried`, so many bits wide, as far as it is known: bit by bit from below.
fn sum(a: Word, b: Word, carried: Option<bool>, subtracts: bool, bits: usize) -> (Word, Flags) {
    // A difference is the sum with all bits of the other, and the carry, turned round.
    let b = if subtracts { b.xor(Word::of(u64::MAX)) } else { b };
    let mut carry = carried.map(|carried| carried != subtracts);
    let (mut value, mut before) = (Word::of(0), carry);
    for (place, (x, y)) in a.0.into_iter().zip(b.0).take(bits).enumerate() {
        let (p, q) = (x.known(), y.known());
        value.0[place] = match (p, q, carry) {
            (Some(p), Some(q), Some(c)) => Bit::Known(p ^ q ^ c),
            (Some(p), _, Some(c)) if p == c => y,
            (_, Some(q), Some(c)) if q == c => x,
            _ => Bit::Unknown,
        };
        before = carry;
        carry = match (p, q, carry) {
            (Some(a), Some(b), _) | (Some(a), _, Some(b)) | (_, Some(a), Some(b)) if a == b => Some(a),
            (Some(p), Some(q), Some(c)) => Some(u8::from(p) + u8::from(q) + u8::from(c) >= 2),
            _ => None,
        };
    }
    let overflow = carry.zip(before).map(|(out, into)| out != into);
    let carry = carry.map(|carry| carry != subtracts);
    (value, Flags { carry, overflow, ..flags_of(value, bits) })
}

impl Flags {
    /// Whether a condition holds; `None` where that is not known.
    pub fn hold(self, condition: ConditionCode) -> Option<bool> {
        let below_or_equal = || match (self.carry, self.zero) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        };
        let less = || Some(self.sign? != self.overflow?);
        let less_or_equal = || if self.zero == Some(true) { Some(true) } else { Some(self.zero? || less()?) };
        match condition {
            ConditionCode::o => self.overflow,
            ConditionCode::no => self.overflow.map(|set| !set),
            ConditionCode::b => self.carry,
            ConditionCode::ae => self.carry.map(|set| !set),
            ConditionCode::e => self.zero,
            ConditionCode::ne => self.zero.map(|set| !set),
            ConditionCode::be => below_or_equal(),
            ConditionCode::a => below_or_equal().map(|holds| !holds),
            ConditionCode::s => self.sign,
            ConditionCode::ns => self.sign.map(|set| !set),
            ConditionCode::l => less(),
            ConditionCode::ge => less().map(|holds| !holds),
            ConditionCode::le => less_or_equal(),
            ConditionCode::g => less_or_equal().map(|holds| !holds),
            _ => None,
        }
    }
}

impl State {
    /// What a register holds, with zeroes above what is named.
    pub fn read(&self, register: Register) -> Value {
        if !register.is_gpr() {
            return Value::UNKNOWN;
        }
        let value = self.registers[register.full_register().number() & 15];
        match register.size() {
            8 => value,
            bytes => Value::Word(value.word().shifted(-high(register), 64, Bit::Unknown).low(bytes * 8)),
        }
    }

    /// Writes a register as the processor does: half of one clears the other half, less leaves the rest as it was.
    pub fn write(&mut self, register: Register, value: Value) -> bool {
        if !register.is_gpr() {
            return false;
        }
        let place = &mut self.registers[register.full_register().number() & 15];
        *place = match register.size() {
            8 => value,
            4 => Value::Word(value.word().low(32)),
            bytes => {
                let from = usize::from(high(register) != 0) * 8;
                Value::Word(place.word().with(from, bytes * 8, value.word()))
            }
        };
        true
    }

    /// What was computed last is zero on this way, or is not: what that says of bits of memory is known of registers from
    /// here on. Compilers return the zero they have compared with.
    pub fn learn(&mut self, is_zero: bool) {
        let Some(result) = self.flags.result else { return };
        let mut open = result.0.into_iter().filter(|bit| *bit != Bit::Known(false));
        let learnt: Vec<Bit> = match (open.next(), open.next()) {
            _ if is_zero => result.0.into_iter().filter(|bit| matches!(bit, Bit::Of { .. })).collect(),
            // Not zero, and only one bit may be set: it is.
            (Some(bit @ Bit::Of { .. }), None) => vec![bit],
            _ => return,
        };
        for value in &mut self.registers {
            if let Value::Word(word) = value {
                for bit in &mut word.0 {
                    if learnt.contains(bit) {
                        *bit = Bit::Known(!is_zero);
                    }
                }
            }
        }
    }

    /// Extends the lower `bits` bits of the accumulator with their sign into `to`.
    fn extend(&mut self, bits: usize, to: Register) -> bool {
        let value = self.registers[Register::RAX.number()].word().extended(bits);
        self.write(to, Value::Word(value))
    }
}

/// Bits below what a register names.
fn high(register: Register) -> i32 {
    if matches!(register, Register::AH | Register::BH | Register::CH | Register::DH) { 8 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_differences_of_known_numbers_are_those_of_the_processor() {
        let numbers = [0_u8, 1, 2, 0x4f, 0x7f, 0x80, 0x81, 0xfe, 0xff];
        for (a, b) in numbers.into_iter().flat_map(|a| numbers.map(|b| (a, b))) {
            for carried in [false, true] {
                let words = (Word::of(a.into()), Word::of(b.into()));
                let (value, flags) = sum(words.0, words.1, Some(carried), false, 8);
                let (plain, first) = a.overflowing_add(b);
                let (expected, second) = plain.overflowing_add(carried.into());
                assert_eq!(value.number(8), Some(expected.into()));
                assert_eq!((flags.carry, flags.zero), (Some(first | second), Some(expected == 0)));
                let wide = i16::from(a as i8) + i16::from(b as i8) + i16::from(carried);
                assert_eq!(flags.overflow, Some(i8::try_from(wide).is_err()), "{a} + {b} + {carried}");
                let (value, flags) = sum(words.0, words.1, Some(carried), true, 8);
                let (plain, first) = a.overflowing_sub(b);
                let (expected, second) = plain.overflowing_sub(carried.into());
                assert_eq!(value.number(8), Some(expected.into()));
                assert_eq!(flags.carry, Some(first | second), "{a} - {b} - {carried}");
                let wide = i16::from(a as i8) - i16::from(b as i8) - i16::from(carried);
                assert_eq!(flags.overflow, Some(i8::try_from(wide).is_err()), "{a} - {b} - {carried}");
            }
        }
    }

    #[test]
    fn a_comparison_that_the_known_bits_decide_is_decided() {
        // 0000xxxx is less than 0x4f; 0100xxxx may be.
        let nibble = |high: u64| Word::UNKNOWN.low(4).or(Word::of(high << 4));
        let compared = |high| sum(nibble(high), Word::of(0x4f), Some(false), true, 8).1;
        assert_eq!(compared(0).hold(ConditionCode::a), Some(false));
        assert_eq!(compared(4).hold(ConditionCode::a), None);
        assert_eq!(compared(5).hold(ConditionCode::ae), Some(true));
        // What is added above bits that are not known.
        let (value, _) = sum(Word::UNKNOWN.low(3), Word::of(0x80), Some(false), false, 32);
        assert_eq!(value.0[7], Bit::Known(true));
        assert_eq!(value.0[8], Bit::Known(false));
    }

    #[test]
    fn conditions_hold_as_far_as_their_flags_are_known() {
        let unknown = Flags::default();
        let equal = Flags { zero: Some(true), ..unknown };
        assert_eq!(equal.hold(ConditionCode::be), Some(true));
        assert_eq!(equal.hold(ConditionCode::le), Some(true));
        assert_eq!(equal.hold(ConditionCode::b), None);
        assert_eq!(equal.hold(ConditionCode::p), None);
        let less = Flags { zero: Some(false), sign: Some(true), overflow: Some(false), ..unknown };
        assert_eq!(less.hold(ConditionCode::l), Some(true));
        assert_eq!(less.hold(ConditionCode::g), Some(false));
    }
}
