//! Which byte tells completion entries of sends from those of receives.
//!
//! The function behind `ibv_wc_read_opcode` is read once for each value of each byte it looks at, whatever all other bytes
//! are, and the byte is taken that tells most. Where its value leaves it open, a second one may decide: mlx5 returns the
//! opcode of a send from another byte of the entry, and for some of those what stands in its completion queue.

use std::fmt;

use probe_common::recipe::{Set, Side as Which, Split};

use super::machine::{Assumed, Byte, Code, Machine};
use super::value::{Bit, Word};
use super::{Shown, path};

/// A function is read for all values of a byte only where one of so many, far apart, tells a side.
const SAMPLES: u8 = 16;

/// Which bytes tell sends from receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Side {
    pub first: Split,
    /// Values of the first byte for which the second tells.
    pub more: Set,
    pub then: Split,
}

/// What the function tells; `None` where that is nothing, or only one side.
pub fn side(code: &Code<'_>, function: u64) -> Option<Side> {
    let (byte, first) = best(code, function, &[])?;
    let mut side = Side { first, more: Set::default(), then: Split::default() };
    // Whatever bits of the first byte make no difference stay open: one reading for all.
    let open = open_cube(&first);
    if let Some((mask, value, more)) = open
        && let Some((_, then)) = best(code, function, &[Assumed { byte, mask, value }])
    {
        (side.more, side.then) = (more, then);
    }
    let tells = |of: fn(&Split) -> &Set| of(&side.first).len() + of(&side.then).len() > 0;
    (tells(|split| &split.sends) && tells(|split| &split.receives)).then_some(side)
}

/// The byte that tells most, besides what is assumed. Of several that tell as much, any is right: what a byte tells holds
/// whatever the others are.
fn best(code: &Code<'_>, function: u64, assumed: &[Assumed]) -> Option<(Byte, Split)> {
    let mut machine = Machine::new(code);
    machine.assumed = assumed.to_vec();
    machine.results(function)?;
    let is_assumed = |byte: &&Byte| assumed.iter().any(|assumed| assumed.byte == **byte);
    let looked_at = machine.bytes.iter().filter(|byte| !machine.followed.contains(byte));
    let bytes = looked_at.filter(|byte| !is_assumed(byte));
    let splits = bytes.filter_map(|byte| Some((*byte, split(code, function, assumed, *byte)?)));
    splits.max_by_key(|(_, split)| split.sends.len() + split.receives.len())
}

/// What the values of one byte tell; `None` where that is nothing.
fn split(code: &Code<'_>, function: u64, assumed: &[Assumed], byte: Byte) -> Option<Split> {
    let which = |value: u8| {
        let mut machine = Machine::new(code);
        machine.assumed = [assumed, &[Assumed { byte, mask: u8::MAX, value }]].concat();
        let mut sides = machine.results(function)?.into_iter().map(|word| side_of(word?));
        let first = sides.next()??;
        sides.all(|other| other == Some(first)).then_some(first)
    };
    let mut samples = (0..SAMPLES).map(|n| n * (u8::MAX / (SAMPLES - 1)));
    if !samples.any(|value| which(value).is_some()) {
        return None;
    }
    let mut split = Split { at: path(byte.0, byte.1), ..Split::default() };
    for value in 0..=u8::MAX {
        match which(value) {
            Some(Which::Receive) => split.receives.put(value),
            Some(Which::Send) => split.sends.put(value),
            None => {}
        }
    }
    Some(split)
}

/// The side of an opcode (`IBV_WC_…`), as far as its bits are known: `IBV_WC_RECV` is a bit, which the operations on
/// tags of a shared receive queue have as well, and the opcodes of drivers, which are of send queues.
fn side_of(opcode: Word) -> Option<Which> {
    const RECEIVES: std::ops::RangeInclusive<u8> = 0x80..=0x86;
    const DRIVERS: std::ops::RangeInclusive<u8> = 0x87..=0x89;
    let (mut known, mut set) = (0_u8, 0_u8);
    for (n, bit) in opcode.0.iter().take(8).enumerate() {
        if let Bit::Known(is_set) = bit {
            known |= 1 << n;
            set |= u8::from(*is_set) << n;
        }
    }
    let side = |opcode: u8| match opcode {
        0..0x80 => Some(Which::Send),
        _ if RECEIVES.contains(&opcode) => Some(Which::Receive),
        _ if DRIVERS.contains(&opcode) => Some(Which::Send),
        _ => None,
    };
    let mut may_be = (0..=u8::MAX).filter(|opcode| opcode & known == set).map(side);
    let first = may_be.next()??;
    may_be.all(|other| other == Some(first)).then_some(first)
}

/// Values that leave it open, all with the same bits under a mask and all that have these: the lowest of them and its
/// likes. mlx5's entries of sends are those with a zero in the upper half of a byte.
fn open_cube(split: &Split) -> Option<(u8, u8, Set)> {
    let is_open = |value: &u8| split.of(*value).is_none();
    let first = (0..=u8::MAX).find(is_open)?;
    // Bits that may be turned round, each with all those before.
    let mut free = 0_u8;
    for bit in 0..8 {
        let wider = free | 1 << bit;
        if (0..=u8::MAX).filter(|value| value & !wider == first & !wider).all(|value| is_open(&value)) {
            free = wider;
        }
    }
    let mut more = Set::default();
    (0..=u8::MAX).filter(|value| value & !free == first & !free).for_each(|value| more.put(value));
    Some((!free, first & !free, more))
}

impl fmt::Display for Side {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let split = |split: &Split, more: u32| {
            let (sends, receives) = (split.sends.len(), split.receives.len());
            let open = 256 - sends - receives - more;
            format!("{}: {sends} values are sends, {receives} receives, {open} open", Shown(&split.at))
        };
        out.write_str(&split(&self.first, self.more.len()))?;
        if !self.more.is_empty() {
            write!(out, "; for {} more, {}", self.more.len(), split(&self.then, 0))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opcode_tells_its_side_as_far_as_its_bits_are_known() {
        let sides = [0, 7, 0x80, 0x86, 0x88, 0x8a].map(|opcode| side_of(Word::of(opcode)));
        let (send, receive) = (Some(Which::Send), Some(Which::Receive));
        assert_eq!(sides, [send, send, receive, receive, send, None]);
        // 0x80, 0x81, 0x84 or 0x85.
        let open = Word::of(0x85).with(0, 1, Word::UNKNOWN).with(2, 1, Word::UNKNOWN);
        assert_eq!(side_of(open), receive);
        assert_eq!(side_of(Word::of(0x85).with(1, 1, Word::UNKNOWN)), None);
        assert_eq!(side_of(Word::UNKNOWN.low(7)), send);
        assert_eq!(side_of(Word::UNKNOWN), None);
    }

    #[test]
    fn values_that_leave_it_open_are_taken_together_where_they_share_their_bits() {
        let mut split = Split::default();
        (0x10..=u8::MAX).for_each(|value| split.sends.put(value));
        let (mask, value, more) = open_cube(&split).unwrap();
        assert_eq!((mask, value, more.len()), (0xf0, 0, 16));
        // One value more that stands alone is left out; one less, and the others are no cube.
        split.sends = Set::default();
        (0x10..u8::MAX).for_each(|value| split.sends.put(value));
        assert_eq!(open_cube(&split).unwrap().2.len(), 16);
        split.receives.put(0);
        let (mask, value, more) = open_cube(&split).unwrap();
        assert_eq!((mask, value, more.len()), (0xf1, 1, 8));
        (0..=u8::MAX).for_each(|value| split.sends.put(value));
        assert_eq!(open_cube(&split), None);
    }
}
