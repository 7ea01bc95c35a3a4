//! What a peer that breaks every rule can do to us: nothing beyond what its keys open.

mod attack;
mod process;
mod ring;
mod target;

use super::packet::{CHUNK, Packet, RC, UC, UD};

/// A generator of nonsense, repeatable from its seed.
struct Nonsense(u64);

impl Nonsense {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 16
    }

    fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }

    /// One of `choices`.
    fn among<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Mostly `usual`, now and then one of `others`: nonsense only gets deep when the rest makes sense.
    fn mostly<T: Copy>(&mut self, usual: T, others: &[T]) -> T {
        if self.next().is_multiple_of(24) { self.among(others) } else { usual }
    }
}

/// What a hostile peer knows about its target.
#[derive(Clone, Copy, Debug, Default)]
struct Knowledge {
    /// The target's QP, and the one the target takes the peer's to be.
    qpn: u32,
    peer_qpn: u32,
    /// A region it holds the key of.
    key: u32,
    base: u64,
    /// A key that was never given to it.
    foreign_key: u32,
    foreign_base: u64,
}

/// A request that makes sense in most places, with sequence number `psn`.
fn request(nonsense: &mut Nonsense, know: &Knowledge, psn: u32) -> Packet {
    let len = nonsense.among(&[0, 8, 64, 1000]);
    let anything = nonsense.next();
    let far = nonsense.among(&[65_535, u64::MAX, 1 << 16, u64::MAX - 65_536]);
    let inside = know.base.wrapping_add(anything % 8000 / 8 * 8);
    let outside = know.base.wrapping_add(nonsense.among(&[far, 1, far.wrapping_add(1)]));
    Packet {
        kind: nonsense.mostly(RC, &[UC, UD, 0, 1, 200]),
        opcode: nonsense.mostly(nonsense.0 as u8 % 10, &[77, 255]),
        flags: anything as u8,
        device: nonsense.mostly(0, &[1, 255]),
        dst_qpn: nonsense.mostly(know.qpn, &[0, know.qpn + 1, anything as u32]),
        src_qpn: nonsense.mostly(know.peer_qpn, &[0, u32::MAX]),
        psn: nonsense.mostly(psn, &[psn + 1, psn.wrapping_sub(1), u32::MAX]),
        packets: nonsense.mostly(1, &[0, u32::MAX]),
        total: nonsense.mostly(len, &[0, 5000, 70_000, u32::MAX]),
        offset: nonsense.mostly(0, &[len, 16_384, u32::MAX]),
        len: nonsense.mostly(len, &[CHUNK, CHUNK + 1, u32::MAX]),
        rkey: nonsense.mostly(know.key, &[know.key ^ 1, u32::MAX, 0, know.foreign_key]),
        raddr: nonsense.mostly(inside, &[outside, know.foreign_base, 0, u64::MAX]),
        imm: anything as u32,
        a: anything,
        b: nonsense.next(),
    }
}

/// An answer of that kind, to requests numbered from 0.
fn answer(nonsense: &mut Nonsense, know: &Knowledge) -> Packet {
    use super::packet::{ABSENT, ACK, ATOMIC, DATA, GAP, NAK, RNR};
    let anything = nonsense.next();
    let offset = nonsense.among(&[0, 1000, 16_384, CHUNK * 3, u32::MAX]);
    let psn = nonsense.below(24) as u32;
    let usual = nonsense.among(&[ACK, ACK, DATA, DATA, DATA, ATOMIC, ATOMIC, RNR, GAP, ABSENT, NAK]);
    let len = nonsense.among(&[0, 8, 1000]);
    Packet {
        kind: nonsense.mostly(usual, &[0, 1, 2, 255]),
        opcode: anything as u8,
        flags: (anything >> 8) as u8,
        device: nonsense.mostly(0, &[1, 255]),
        dst_qpn: nonsense.mostly(know.qpn, &[0, know.qpn + 1, anything as u32]),
        src_qpn: nonsense.mostly(know.peer_qpn, &[0, u32::MAX]),
        psn: nonsense.mostly(psn, &[u32::MAX, 0xff_ffff, anything as u32]),
        total: nonsense.among(&[0, 8, 1000, 40_000, u32::MAX]),
        offset: nonsense.mostly(0, &[offset]),
        len: nonsense.mostly(len, &[CHUNK, CHUNK + 1, u32::MAX]),
        a: anything,
        b: nonsense.next(),
        ..Packet::default()
    }
}
