//! The queue pairs and completion queues of this process, by address.
//!
//! A fixed table: looked up without a lock from every thread's slow path, changed under [`LOCK`]. Objects are known
//! from their creation, or from the first operation on them; an address means the same object until it is destroyed.

use std::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use probe_common::tap::kind;

use crate::extended::Extended;
use crate::shared::{self, LOCK};

/// Objects that can be known at once; further ones are counted without a name.
const CAPACITY: usize = 65_536;
/// Places looked at for one address.
const LONGEST_PROBE: usize = 64;
/// A place whose object was destroyed; no address, since objects are aligned.
const REMOVED: usize = 1;

/// One object.
pub struct Object {
    address: AtomicUsize,
    /// Numbers objects from 1, never again the same.
    pub id: AtomicU64,
    pub kind: AtomicU32,
    /// See [`probe_common::tap::Slot::signal_all`].
    pub signal_all: AtomicU32,
    /// Head of its slots in the shared file.
    pub slots: AtomicU32,
    /// Functions of its extended API, where it has one.
    pub extended: AtomicPtr<Extended>,
}

static TABLE: [Object; CAPACITY] = [const {
    Object {
        address: AtomicUsize::new(0),
        id: AtomicU64::new(0),
        kind: AtomicU32::new(0),
        signal_all: AtomicU32::new(0),
        slots: AtomicU32::new(0),
        extended: AtomicPtr::new(std::ptr::null_mut()),
    }
}; CAPACITY];

static NEXT_ID: AtomicU64 = AtomicU64::new(1);
/// Changes whenever an address may come to mean another object: what threads remember is checked again then.
static EPOCH: AtomicU32 = AtomicU32::new(1);

#[inline]
pub fn epoch() -> u32 {
    EPOCH.load(Relaxed)
}

fn places(address: usize) -> impl Iterator<Item = &'static Object> {
    // Objects come from malloc: the low bits say nothing. The multiplier is 2^64 divided by the golden ratio.
    let hash = (address >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    (0..LONGEST_PROBE).filter_map(move |step| TABLE.get((hash + step) % CAPACITY))
}

pub fn find(address: usize) -> Option<&'static Object> {
    for object in places(address) {
        match object.address.load(Acquire) {
            found if found == address => return Some(object),
            0 => return None,
            _ => {}
        }
    }
    None
}

/// The object at an address; entered if it is not known. `None` when the table has no room.
pub fn find_or_enter(address: usize, object_kind: u32) -> Option<&'static Object> {
    find(address).or_else(|| {
        let _held = LOCK.hold();
        find(address).or_else(|| {
            let signal_all = if object_kind == kind::QP { 2 } else { 0 };
            enter(address, object_kind, signal_all)
        })
    })
}

/// A new object at this address, whatever was known of it before.
pub fn created(address: usize, object_kind: u32, signal_all: u32) -> Option<&'static Object> {
    let _held = LOCK.hold();
    if let Some(old) = find(address) {
        remove(old);
    }
    enter(address, object_kind, signal_all)
}

/// The object at this address is destroyed.
pub fn destroyed(address: usize) {
    let _held = LOCK.hold();
    if let Some(object) = find(address) {
        remove(object);
    }
}

fn enter(address: usize, object_kind: u32, signal_all: u32) -> Option<&'static Object> {
    let free = places(address).find(|object| matches!(object.address.load(Relaxed), 0 | REMOVED));
    let Some(object) = free else {
        if let Some(shared) = shared::get() {
            shared.header().unnamed_objects.fetch_add(1, Relaxed);
        }
        return None;
    };
    object.id.store(NEXT_ID.fetch_add(1, Relaxed), Relaxed);
    object.kind.store(object_kind, Relaxed);
    object.signal_all.store(signal_all, Relaxed);
    object.slots.store(0, Relaxed);
    object.extended.store(std::ptr::null_mut(), Relaxed);
    object.address.store(address, Release);
    Some(object)
}

fn remove(object: &'static Object) {
    EPOCH.fetch_add(1, Relaxed);
    object.address.store(REMOVED, Release);
    if let Some(shared) = shared::get() {
        shared.object_gone(&object.slots);
    }
    let extended = object.extended.swap(std::ptr::null_mut(), Relaxed);
    if !extended.is_null() {
        // SAFETY: made by Box::into_raw when the object was tapped, taken out of the only place that held it; the
        // object is destroyed, so no thread may be inside a call on it.
        drop(unsafe { Box::from_raw(extended) });
    }
}

/// In a forked child the slots are another file's: every object begins anew there.
pub fn forget_slots_of_parent() {
    EPOCH.fetch_add(1, Relaxed);
    for object in &TABLE {
        if object.address.load(Relaxed) > REMOVED {
            object.slots.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_used_again_is_another_object() {
        let address = 0x7000_0000_1000;
        let first = created(address, kind::QP, 0).unwrap().id.load(Relaxed);
        let before = epoch();
        destroyed(address);
        assert!(find(address).is_none());
        let second = created(address, kind::QP, 1).unwrap();
        assert_ne!(second.id.load(Relaxed), first);
        assert_ne!(epoch(), before);
        assert_eq!(second.signal_all.load(Relaxed), 1);
    }

    #[test]
    fn an_object_made_out_of_sight_is_entered_at_its_first_use() {
        let address = 0x7000_0000_2000;
        let object = find_or_enter(address, kind::QP).unwrap();
        assert_eq!(object.signal_all.load(Relaxed), 2);
        assert!(std::ptr::eq(object, find_or_enter(address, kind::QP).unwrap()));
    }

    #[test]
    fn places_of_destroyed_objects_are_used_again() {
        for round in 0..100_000_usize {
            let address = 0x7100_0000_0000 + round * 64;
            assert!(created(address, kind::CQ, 0).is_some(), "{round}");
            destroyed(address);
        }
    }
}
