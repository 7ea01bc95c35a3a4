//! A ring of records between one producer and one consumer that need not trust each other.
//!
//! Positions count bytes for ever and are kept privately on each side; the shared words only announce them. A position
//! announced by the peer is used after checking that it is possible, and a header after copying it out.

use super::memory::{Line, RING};
use super::packet::{CHUNK, LINE, PAD, Packet};
use std::sync::atomic::Ordering::*;

/// The peer announced something impossible: it is broken or hostile, and the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// The writing side.
pub struct Producer {
    head_word: &'static Line,
    tail_word: &'static Line,
    data: *mut u8,
    head: u64,
    tail: u64,
}

/// The reading side.
pub struct Consumer {
    head_word: &'static Line,
    tail_word: &'static Line,
    data: *mut u8,
    head: u64,
    tail: u64,
    released: u64,
}

// SAFETY: the memory outlives both sides (they are dropped before it is unmapped) and is only reached under a lock.
unsafe impl Send for Producer {}
// SAFETY: as above.
unsafe impl Send for Consumer {}

fn offset(position: u64) -> usize {
    position as usize & (RING - 1)
}

impl Producer {
    /// A producer for an empty ring of [`RING`] bytes at `data`.
    pub fn new(head_word: &'static Line, tail_word: &'static Line, data: *mut u8) -> Self {
        Self { head_word, tail_word, data, head: 0, tail: 0 }
    }

    /// Writes a record whose payload `fill` copies in. `Ok(false)` if there is no room now.
    ///
    /// # Errors
    /// [`Broken`] if the consumer claims to have read what was not written.
    #[inline]
    pub fn push(&mut self, packet: &Packet, fill: impl FnOnce(*mut u8)) -> Result<bool, Broken> {
        self.push_if(packet, |at| {
            fill(at);
            true
        })
    }

    /// Writes a record unless `fill` refuses. `Ok(false)` if it did, or if there is no room now.
    ///
    /// # Errors
    /// As [`Self::push`].
    #[inline]
    pub fn push_if(&mut self, packet: &Packet, fill: impl FnOnce(*mut u8) -> bool) -> Result<bool, Broken> {
        debug_assert!(packet.len <= CHUNK);
        let size = packet.size();
        let to_end = RING - offset(self.head);
        let needed = if size > to_end { size + to_end } else { size };
        if !self.has_room(needed)? {
            return Ok(false);
        }
        if size > to_end {
            let pad = Packet { kind: PAD, len: (to_end - LINE) as u32, ..Packet::default() };
            self.write(&pad);
            self.head += to_end as u64;
        }
        // SAFETY: the record fits before the end of the ring, and the consumer is done with that part.
        if !fill(unsafe { self.data.add(offset(self.head) + LINE) }) {
            return Ok(false);
        }
        self.write(packet);
        self.head += size as u64;
        Ok(true)
    }

    fn write(&mut self, packet: &Packet) {
        // SAFETY: in the ring and aligned: positions are multiples of LINE.
        unsafe { self.data.add(offset(self.head)).cast::<Packet>().write(*packet) };
    }

    /// Whether `needed` bytes are free.
    #[inline]
    fn has_room(&mut self, needed: usize) -> Result<bool, Broken> {
        let free = |tail| RING as u64 - (self.head - tail);
        if free(self.tail) >= needed as u64 {
            return Ok(true);
        }
        let tail = self.tail_word.0.load(Acquire);
        if tail < self.tail || tail > self.head {
            return Err(Broken);
        }
        self.tail = tail;
        Ok(free(tail) >= needed as u64)
    }

    /// Whether `lines` lines in one piece are free, whatever padding the end of the ring may need.
    #[inline]
    pub fn has_room_for(&mut self, lines: usize) -> Result<bool, Broken> {
        self.has_room(2 * lines * LINE)
    }

    /// Lets the consumer see what was pushed.
    #[inline]
    pub fn publish(&mut self) {
        self.head_word.0.store(self.head, Release);
    }
}

impl Consumer {
    /// A consumer of an empty ring of [`RING`] bytes at `data`.
    pub fn new(head_word: &'static Line, tail_word: &'static Line, data: *mut u8) -> Self {
        Self { head_word, tail_word, data, head: 0, tail: 0, released: 0 }
    }

    /// The oldest record: a copy of its header, and where its payload lies (which may change under us, but stays
    /// readable). Looks past padding.
    ///
    /// # Errors
    /// [`Broken`] if the producer announced something impossible.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<(Packet, *const u8)>, Broken> {
        loop {
            if self.tail == self.head {
                let head = self.head_word.0.load(Acquire);
                if head == self.head {
                    return Ok(None);
                }
                if head < self.head || head - self.tail > RING as u64 || !head.is_multiple_of(LINE as u64) {
                    return Err(Broken);
                }
                self.head = head;
            }
            let at = offset(self.tail);
            // SAFETY: in the ring and aligned. Volatile: the peer may change it while we look; the copy is what counts.
            let packet = unsafe { self.data.add(at).cast::<Packet>().read_volatile() };
            let is_pad = packet.kind == PAD;
            if !is_pad && packet.len > CHUNK {
                return Err(Broken);
            }
            let size = packet.size();
            if size > RING - at || size as u64 > self.head - self.tail {
                return Err(Broken);
            }
            if !is_pad {
                // SAFETY: as above.
                return Ok(Some((packet, unsafe { self.data.add(at + LINE) })));
            }
            self.tail += size as u64;
        }
    }

    /// Steps over the record `packet`, as [`Self::peek`] returned it. True when it is time to give room back, so that
    /// the producer need not wait for the end of a long batch.
    #[inline]
    pub fn advance(&mut self, packet: &Packet) -> bool {
        self.tail += packet.size() as u64;
        self.tail - self.released >= (RING / 8) as u64
    }

    /// Gives the producer everything consumed so far.
    #[inline]
    pub fn release(&mut self) {
        if self.released != self.tail {
            self.released = self.tail;
            self.tail_word.0.store(self.tail, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    struct Memory {
        head: &'static Line,
        tail: &'static Line,
        data: *mut u8,
    }

    fn memory() -> Memory {
        let line = || &*Box::leak(Box::new(Line(AtomicU64::new(0))));
        let words = Box::leak(vec![Packet::default(); RING / LINE].into_boxed_slice());
        Memory { head: line(), tail: line(), data: words.as_mut_ptr().cast() }
    }

    fn pair(m: &Memory) -> (Producer, Consumer) {
        (Producer::new(m.head, m.tail, m.data), Consumer::new(m.head, m.tail, m.data))
    }

    #[test]
    fn records_of_every_size_come_out_as_they_went_in_round_the_end() {
        let m = memory();
        let (mut p, mut c) = pair(&m);
        let mut sent = 0u32;
        let mut seen = 0u32;
        while seen < 5_000 {
            let len = sent.wrapping_mul(2_654_435_761) % (CHUNK + 1);
            let packet = Packet { kind: 2, psn: sent, len, ..Packet::default() };
            // SAFETY: push gives room for `len` bytes.
            let fill = |at: *mut u8| unsafe { std::ptr::write_bytes(at, sent as u8, len as usize) };
            if p.push(&packet, fill).expect("honest") {
                sent += 1;
                p.publish();
                continue;
            }
            while let Some((packet, at)) = c.peek().expect("honest") {
                assert_eq!(packet.psn, seen);
                // SAFETY: the payload has `len` bytes.
                let bytes = unsafe { std::slice::from_raw_parts(at, packet.len as usize) };
                assert!(bytes.iter().all(|b| *b == seen as u8));
                seen += 1;
                let _ = c.advance(&packet);
            }
            c.release();
        }
    }

    #[test]
    fn impossible_positions_and_lengths_break_the_connection() {
        for head in [1, 63, RING as u64 + 64, u64::MAX - 63] {
            let m = memory();
            let (_, mut c) = pair(&m);
            m.head.0.store(head, Relaxed);
            assert_eq!(c.peek().err(), Some(Broken), "{head}");
        }
        for len in [CHUNK + 1, u32::MAX, 4096] {
            let m = memory();
            let (_, mut c) = pair(&m);
            // SAFETY: inside the ring.
            unsafe { m.data.cast::<Packet>().write(Packet { kind: 2, len, ..Packet::default() }) };
            m.head.0.store(64, Relaxed);
            assert_eq!(c.peek().err(), Some(Broken), "{len}");
        }
        let m = memory();
        let (mut p, _) = pair(&m);
        m.tail.0.store(1 << 40, Relaxed);
        let big = Packet { kind: 2, len: CHUNK, ..Packet::default() };
        let r: Vec<_> = (0..100).map(|_| p.push(&big, |_| ())).collect();
        assert!(r.contains(&Err(Broken)));
    }

    #[test]
    fn padding_cannot_lead_outside() {
        let m = memory();
        let (_, mut c) = pair(&m);
        // SAFETY: inside the ring.
        unsafe { m.data.cast::<Packet>().write(Packet { kind: PAD, len: u32::MAX, ..Packet::default() }) };
        m.head.0.store(RING as u64, Relaxed);
        assert_eq!(c.peek().err(), Some(Broken));
    }
}
