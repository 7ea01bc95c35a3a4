//! The queue of events to come: a timing wheel.
//!
//! Almost every event lies within a few microseconds, so an event is put into one of 4,096 slots of 2 ns by its time (a
//! linked list through one arena: no allocation in steady state) and a slot is sorted only when its turn comes: most hold
//! one event alone. Events beyond the wheel's 8 µs wait in a heap. Equal times keep the order in which they were pushed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::time::Ps;

const SHIFT: u32 = 11;
const SLOTS: usize = 4096;
const MASK: u64 = SLOTS as u64 - 1;
const NONE: u32 = u32::MAX;
/// Up to so many events are sorted as they come out of their slot.
const FEW: usize = 16;

/// What is to happen: a kind and two numbers whose meaning the kind decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event<K> {
    /// What happens.
    pub kind: K,
    /// To whom: a QP, a work request, a node.
    pub a: u32,
    /// A further argument.
    pub b: u32,
}

/// An event of the wheel. Those of one slot are linked newest first, which is all the order equal times need.
#[derive(Clone, Copy, Debug)]
struct Node<K> {
    time: Ps,
    event: Event<K>,
    next: u32,
}

/// Events ordered by time, first in first out among equals.
#[derive(Clone, Debug)]
pub struct Wheel<K> {
    /// An array, so that a slot's number needs no check against its length.
    heads: Box<[u32; SLOTS]>,
    /// One bit per slot, and one bit per word of those: the next occupied slot is found in two looks.
    bits: [u64; SLOTS / 64],
    summary: u64,
    arena: Vec<Node<K>>,
    free: u32,
    /// The slot whose turn it is, sorted latest first.
    current: Vec<Node<K>>,
    /// Absolute number of that slot.
    cursor: u64,
    /// Events beyond the wheel's reach from the cursor.
    far: BinaryHeap<Reverse<(Ps, u64, Event<K>)>>,
    /// Events ever put into the heap, which does not keep the order of equal times by itself.
    seq: u64,
}

impl<K: Copy + Ord> Default for Wheel<K> {
    fn default() -> Self {
        Self {
            heads: Box::new([NONE; SLOTS]),
            bits: [0; SLOTS / 64],
            summary: 0,
            arena: Vec::new(),
            free: NONE,
            current: Vec::new(),
            cursor: 0,
            far: BinaryHeap::new(),
            seq: 0,
        }
    }
}

impl<K: Copy + Ord> Wheel<K> {
    /// Adds an event. A time already past counts as the present.
    #[inline]
    pub fn push(&mut self, time: Ps, event: Event<K>) {
        let slot = time >> SHIFT;
        if slot > self.cursor && slot - self.cursor < SLOTS as u64 {
            self.link(slot, time, event);
        } else {
            self.push_elsewhere(slot, time, event);
        }
    }

    /// Adds an event to the present, or beyond the wheel's reach. Kept out of the common case.
    #[inline(never)]
    fn push_elsewhere(&mut self, slot: u64, time: Ps, event: Event<K>) {
        if slot <= self.cursor {
            let place = self.current.partition_point(|n| n.time > time);
            self.current.insert(place, Node { time, event, next: NONE });
        } else {
            self.seq += 1;
            self.far.push(Reverse((time, self.seq, event)));
        }
    }

    /// Time of the earliest event.
    pub fn next_time(&mut self) -> Option<Ps> {
        if self.current.is_empty() {
            self.come_near();
            let slot = self.next_occupied()?;
            self.turn(slot);
        }
        self.current.last().map(|n| n.time)
    }

    /// Takes the earliest event if it is due by `until`.
    #[inline]
    pub fn pop_until(&mut self, until: Ps) -> Option<(Ps, Event<K>)> {
        if self.current.is_empty() {
            self.come_near();
            let slot = self.next_occupied()?;
            let at = (slot & MASK) as usize;
            let index = self.heads[at];
            let place = self.arena.get_mut(index as usize)?;
            // An event that has its slot to itself needs no sorting.
            if place.next == NONE {
                if place.time > until {
                    return None;
                }
                let (time, event) = (place.time, place.event);
                place.next = self.free;
                self.free = index;
                self.clear(at);
                self.arrive(slot);
                return Some((time, event));
            }
            self.turn(slot);
        }
        if self.current.last()?.time > until {
            return None;
        }
        self.current.pop().map(|n| (n.time, n.event))
    }

    /// Number of events waiting.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        let linked = self.heads.iter().map(|&head| {
            std::iter::successors(self.arena.get(head as usize), |n| self.arena.get(n.next as usize)).count()
        });
        self.current.len() + linked.sum::<usize>() + self.far.len()
    }

    #[inline]
    fn link(&mut self, slot: u64, time: Ps, event: Event<K>) {
        let at = (slot & MASK) as usize;
        let node = Node { time, event, next: self.heads[at] };
        let index = if self.free == NONE {
            self.arena.push(node);
            (self.arena.len() - 1) as u32
        } else {
            let index = self.free;
            self.free = self.arena[index as usize].next;
            self.arena[index as usize] = node;
            index
        };
        self.heads[at] = index;
        self.bits[at / 64] |= 1 << (at % 64);
        self.summary |= 1 << (at / 64);
    }

    /// Marks a slot as empty.
    #[inline]
    fn clear(&mut self, at: usize) {
        self.heads[at] = NONE;
        let word = &mut self.bits[at / 64];
        *word &= !(1 << (at % 64));
        if *word == 0 {
            self.summary &= !(1 << (at / 64));
        }
    }

    /// Makes an occupied slot the current one. The current one must be empty.
    #[inline(never)]
    fn turn(&mut self, slot: u64) {
        let at = (slot & MASK) as usize;
        let mut index = self.heads[at];
        self.clear(at);
        while let Some(place) = self.arena.get_mut(index as usize) {
            let node = *place;
            place.next = self.free;
            self.free = index;
            index = node.next;
            self.current.push(node);
            // Few share a slot, and the newest come first: they find their place in a step or two.
            let mut place = self.current.len() - 1;
            if place < FEW {
                while place > 0 && self.current[place - 1].time < node.time {
                    self.current.swap(place - 1, place);
                    place -= 1;
                }
            }
        }
        if self.current.len() > FEW {
            self.current.sort_by_key(|n| Reverse(n.time));
        }
        self.arrive(slot);
    }

    /// The cursor comes to a slot.
    #[inline]
    fn arrive(&mut self, slot: u64) {
        self.cursor = slot;
        if !self.far.is_empty() {
            self.bring_near();
        }
    }

    /// Goes to where the events beyond the wheel's reach begin when there are no others.
    #[inline]
    fn come_near(&mut self) {
        if self.summary == 0
            && let Some(Reverse((time, ..))) = self.far.peek()
        {
            self.cursor = (time >> SHIFT).saturating_sub(1);
            self.bring_near();
        }
    }

    /// Moves events from the heap that the wheel reaches now: before anything newer can be put into their slots.
    fn bring_near(&mut self) {
        while let Some(&Reverse((time, _, event))) = self.far.peek() {
            let slot = time >> SHIFT;
            if slot - self.cursor >= SLOTS as u64 {
                return;
            }
            self.far.pop();
            self.link(slot, time, event);
        }
    }

    /// First occupied slot after the cursor, going round once.
    #[inline]
    fn next_occupied(&self) -> Option<u64> {
        if self.summary == 0 {
            return None;
        }
        let start = ((self.cursor + 1) & MASK) as usize;
        let (word, bit) = (start / 64, start % 64);
        let here = self.bits[word] >> bit << bit;
        let found = if here != 0 {
            word * 64 + here.trailing_zeros() as usize
        } else {
            // Words after this one; then, round the end, from the first up to this one's lower bits.
            let later = if word == 63 { 0 } else { self.summary >> (word + 1) << (word + 1) };
            let word = if later != 0 { later } else { self.summary }.trailing_zeros() as usize;
            word * 64 + self.bits[word].trailing_zeros() as usize
        };
        let distance = (found as u64).wrapping_sub(start as u64) & MASK;
        Some(self.cursor + 1 + distance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::rng::Rng;

    #[test]
    fn events_come_out_by_time_and_equal_times_in_order_of_pushing() {
        let mut rng = Rng::new(7);
        let mut wheel = Wheel::default();
        let mut pending = 0u64;
        let (mut now, mut last, mut pushed) = (0, (0, 0), 0u32);
        for round in 0..200_000u64 {
            let spread = [10, 5_000, 3_000_000, 400_000_000][(round % 4) as usize];
            let time = now + rng.below(spread);
            wheel.push(time, Event { kind: 0u8, a: pushed, b: 0 });
            pushed += 1;
            pending += 1;
            if rng.below(3) > 0 {
                let (time, event) = wheel.pop_until(Ps::MAX).expect("one was just pushed");
                assert!(
                    time > last.0 || (time == last.0 && event.a > last.1),
                    "{time} {event:?} after {last:?}"
                );
                last = (time, event.a);
                now = time;
                pending -= 1;
            }
        }
        while let Some((time, event)) = wheel.pop_until(Ps::MAX) {
            assert!(time > last.0 || (time == last.0 && event.a > last.1));
            last = (time, event.a);
            pending -= 1;
        }
        assert_eq!(pending, 0);
        assert_eq!(wheel.len(), 0);
    }

    #[test]
    fn nothing_comes_out_before_its_time() {
        let mut wheel = Wheel::default();
        wheel.push(1_000_000_000, Event { kind: 0u8, a: 0, b: 0 });
        assert_eq!(wheel.pop_until(999_999_999), None);
        assert_eq!(wheel.next_time(), Some(1_000_000_000));
        wheel.push(5, Event { kind: 0u8, a: 1, b: 0 });
        assert_eq!(wheel.pop_until(10).map(|(t, e)| (t, e.a)), Some((5, 1)));
        assert_eq!(wheel.pop_until(1_000_000_000).map(|(_, e)| e.a), Some(0));
    }
}
