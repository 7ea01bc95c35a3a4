//! What was counted of objects that are posted to again and again, at their places beside the table.

use probe_common::counters::{AT_PLACE, ObjectCounters, ObjectKey};
use probe_common::hot::{Place, owner};

use crate::collect::wire::{DataPathTables, PlainObjectKey, PlainPlace};

/// Looks at an entry that changes while it is read, at most.
const LOOKS: usize = 4;

impl DataPathTables {
    /// All that was counted of an object whose entry was read: at its place too, where it has one.
    pub(super) fn whole(&self, key: &ObjectKey, entry: ObjectCounters) -> ObjectCounters {
        let entry_now = |key: &ObjectKey| self.objects.get(&PlainObjectKey(*key), 0).ok().map(|c| c.0);
        whole(key, entry, entry_now, |number| self.places.get(&number, 0).ok().map(|place| place.0))
    }

    /// The place of an object of a process that is no more is anybody's.
    pub(super) fn free(&mut self, key: &ObjectKey) {
        let Ok(entry) = self.objects.get(&PlainObjectKey(*key), 0) else { return };
        let Some(number) = number(&entry.0) else { return };
        if self.places.get(&number, 0).is_ok_and(|PlainPlace(place)| is_of(&place, key)) {
            // SAFETY: plain numbers, for which all zeroes are valid.
            let nobody: Place = unsafe { std::mem::zeroed() };
            let _ = self.places.set(number, PlainPlace(nobody), 0);
        }
    }
}

/// The entry of an object and what was counted at its place. `entry_now` and `place_now` read either as they are now.
///
/// A program that destroys the object first gives up the place, then keeps what was counted there under a key of its own,
/// and then moves the entry: where the place is no longer the object's, the entry was read too early, or has moved. Each
/// count is in one of them; what changes hands while it is read may be missing until the next reading, and is never there
/// twice.
fn whole(
    key: &ObjectKey,
    mut entry: ObjectCounters,
    entry_now: impl Fn(&ObjectKey) -> Option<ObjectCounters>,
    place_now: impl Fn(u32) -> Option<Place>,
) -> ObjectCounters {
    for _ in 0..LOOKS {
        let Some(number) = number(&entry) else { break };
        let more = if key.ended_ns == 0 {
            // Read twice: in between it was the object's all the time.
            let [first, then] = [place_now(number), place_now(number)];
            first
                .zip(then)
                .filter(|(first, then)| is_of(first, key) && is_of(then, key))
                .map(|p| p.0.counters)
        } else {
            entry_now(&ObjectKey { ended_ns: key.ended_ns | AT_PLACE, ..*key })
        };
        if let Some(more) = more {
            entry.sum(key.kind.into(), &more);
            break;
        }
        let Some(now) = entry_now(key).filter(|now| now.number == entry.number) else { break };
        entry = now;
    }
    entry
}

/// The place of an object, from its entry.
fn number(entry: &ObjectCounters) -> Option<u32> {
    u32::try_from(entry.place.checked_sub(1)?).ok()
}

fn is_of(place: &Place, key: &ObjectKey) -> bool {
    place.owner == owner(key.tgid, key.kind.into(), key.source)
        && (place.address, place.start_ns) == (key.address, key.start_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_common::counters::{kind, qp, source};

    const LIVING: ObjectKey = ObjectKey {
        start_ns: 3,
        address: 0x10,
        ended_ns: 0,
        tgid: 5,
        kind: kind::QP as u16,
        source: source::TAP,
    };

    fn counted(calls: u64, place: u64) -> ObjectCounters {
        // SAFETY: plain numbers, for which all zeroes are valid.
        let mut counters: ObjectCounters = unsafe { std::mem::zeroed() };
        (counters.counters[qp::POST_CALLS], counters.place, counters.number) = (calls, place, 17);
        counters
    }

    fn place(calls: u64, start_ns: u64) -> Place {
        let owner = owner(5, kind::QP, source::TAP);
        Place { owner, address: 0x10, start_ns, walks: 1, counters: counted(calls, 0) }
    }

    fn calls(counters: &ObjectCounters) -> u64 {
        counters.counters[qp::POST_CALLS]
    }

    #[test]
    fn an_object_is_its_entry_and_its_place() {
        let read = |at: Place| calls(&whole(&LIVING, counted(2, 8), |_| None, |n| (n == 7).then_some(at)));
        assert_eq!(read(place(40, 3)), 42);
        // Of a process that had this pid before.
        assert_eq!(read(place(40, 2)), 2);
        let without = whole(&LIVING, counted(2, 0), |_| panic!("not to be read"), |_| panic!("nor this"));
        assert_eq!(calls(&without), 2);
    }

    #[test]
    fn what_was_counted_at_a_place_that_was_given_up_is_seen_once() {
        // The place was given up after the entry was read; the entry has gone since, and another object has come.
        let other = ObjectCounters { number: 18, ..counted(9, 8) };
        let gone = whole(&LIVING, counted(2, 8), |_| Some(other), |_| Some(place(1, 99)));
        assert_eq!(calls(&gone), 2);
        // Of one that has ended, it is kept beside it.
        let ended = ObjectKey { ended_ns: 100, ..LIVING };
        let kept = |key: &ObjectKey| (key.ended_ns == 101).then(|| counted(40, 0));
        assert_eq!(calls(&whole(&ended, counted(2, 8), kept, |_| None)), 42);
    }
}
