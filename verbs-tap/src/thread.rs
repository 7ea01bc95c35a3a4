//! What a thread remembers: for each object it uses, where it counts and whom to call.
//!
//! [`here`] is on the path of every operation: one load of a thread-local pointer, one probe of the thread's own hash
//! table, one check that nothing was destroyed since. Everything else (a new thread, a new object, an object destroyed
//! somewhere) goes through [`meet`], under the lock and with `errno` kept.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};

use probe_common::site::{Chance, Stream};
use probe_common::tap::{SHARED_SLOTS, Slot, kind, state};

use crate::abi;
use crate::contexts::{self, Tapped};
use crate::extended::Extended;
use crate::objects;
use crate::quiet::KeepErrno;
use crate::shared::{self, Claim, LOCK, Shared};

/// Entries of a thread's first table; it doubles when half full.
const FIRST_CAPACITY: usize = 256;
/// A table that would grow beyond this begins anew: what it held is met again, at the cost of the slow path.
const LARGEST_CAPACITY: usize = 1 << 14;

/// One object as this thread knows it.
#[derive(Clone, Copy)]
pub struct Entry {
    address: usize,
    epoch: u32,
    /// The slot is written by other threads too.
    shared: bool,
    /// 1 where every send work request makes a completion.
    pub signal_all: bool,
    slot: *const Slot,
    /// The functions to call.
    pub tapped: *const Tapped,
    /// Functions of the extended API; null where the object has none.
    pub extended: *mut Extended,
    object: u64,
}

struct Thread {
    entries: *mut Entry,
    capacity: usize,
    filled: usize,
    /// Which of its operations are told at probe sites.
    chance: Chance,
    tid: u32,
}

thread_local! {
    // No destructor and a constant start: reading it is a plain load, also while the thread is being torn down.
    static THREAD: Cell<*mut Thread> = const { Cell::new(ptr::null_mut()) };
}

/// Key whose destructor runs at the end of a thread; 0 = none yet, otherwise the key plus one.
static KEY: AtomicU64 = AtomicU64::new(0);

impl Entry {
    /// Adds to a counter of this thread's slot.
    #[inline(always)]
    pub fn add(&self, counter: usize, n: u64) {
        // SAFETY: the slot lies in the shared file, which stays mapped while this entry is valid (its epoch matches).
        let Some(place) = unsafe { &*self.slot }.counters.get(counter) else { return };
        if self.shared {
            place.fetch_add(n, Relaxed);
        } else {
            place.store(place.load(Relaxed).wrapping_add(n), Relaxed);
        }
    }

    /// A counter of this thread's slot.
    #[inline(always)]
    pub fn get(&self, counter: usize) -> u64 {
        // SAFETY: as in `add`.
        unsafe { &*self.slot }.counters.get(counter).map_or(0, |c| c.load(Relaxed))
    }

    /// Replaces a counter that is not a sum; of no meaning where threads share the slot, and left alone there.
    #[inline(always)]
    pub fn set(&self, counter: usize, n: u64) {
        if self.shared {
            return;
        }
        // SAFETY: as in `add`.
        if let Some(place) = unsafe { &*self.slot }.counters.get(counter) {
            place.store(n, Relaxed);
        }
    }
}

/// Where this thread counts for the object at `address`. `None`: it cannot be counted, only passed on.
#[inline(always)]
pub fn here(address: usize, object_kind: u32) -> Option<Entry> {
    let thread = THREAD.with(Cell::get);
    if !thread.is_null() {
        // SAFETY: set by `meet` to a Thread of this thread alone; freed only by this thread's end, which clears it.
        let entry = unsafe { (*thread).look_up(address) };
        if let Some(entry) = entry
            && entry.epoch == objects::epoch()
        {
            return Some(*entry);
        }
    }
    meet(address, object_kind)
}

/// How many operations of its stream this one stands for at a probe site, as a power of two; `None` when the profiler
/// does not want to see it.
#[inline(always)]
pub fn fires(stream: Stream) -> Option<u32> {
    match shared::get()?.rates().exponent(stream)? {
        0 => Some(0),
        exponent => by_chance(exponent),
    }
}

/// This thread's id; 0 before it has used a verb.
pub fn tid() -> u32 {
    let thread = THREAD.with(Cell::get);
    // SAFETY: as in `here`.
    if thread.is_null() { 0 } else { unsafe { (*thread).tid } }
}

fn by_chance(exponent: u32) -> Option<u32> {
    let thread = THREAD.with(Cell::get);
    if thread.is_null() {
        return None;
    }
    // SAFETY: as in `here`.
    let (chance, tid) = unsafe { (&mut (*thread).chance, (*thread).tid) };
    chance.is_told(exponent, tid).then_some(exponent)
}

impl Thread {
    #[inline(always)]
    fn look_up(&self, address: usize) -> Option<&Entry> {
        let mask = self.capacity - 1;
        let mut at = spread(address) & mask;
        // The table is never more than half full, so an empty place ends every probe.
        loop {
            // SAFETY: `entries` points to `capacity` entries, a power of two, and `at` is masked.
            let entry = unsafe { &*self.entries.add(at) };
            if entry.address == address {
                return Some(entry);
            }
            if entry.address == 0 {
                return None;
            }
            at = (at + 1) & mask;
        }
    }

    fn put(&mut self, new: Entry) {
        if (self.filled + 1) * 2 > self.capacity {
            self.grow();
        }
        let mask = self.capacity - 1;
        let mut at = spread(new.address) & mask;
        loop {
            // SAFETY: as in `look_up`.
            let entry = unsafe { &mut *self.entries.add(at) };
            if entry.address == 0 || entry.address == new.address {
                self.filled += usize::from(entry.address == 0);
                *entry = new;
                return;
            }
            at = (at + 1) & mask;
        }
    }

    /// A larger table, without the objects that are gone; or, where that cannot be had, an empty one.
    fn grow(&mut self) {
        let live = self.entries().filter(|e| objects::find(e.address).is_some()).count();
        let wanted = if (live + 1) * 4 > self.capacity { self.capacity * 2 } else { self.capacity };
        let old = Self { ..*self };
        self.filled = 0;
        let larger = if wanted <= LARGEST_CAPACITY { map(wanted) } else { None };
        match larger {
            Some(entries) => {
                (self.entries, self.capacity) = (entries, wanted);
                for entry in old.entries().filter(|e| objects::find(e.address).is_some()) {
                    self.put(*entry);
                }
                unmap(old.entries, old.capacity);
            }
            // SAFETY: `capacity` entries, of which all-zero is the empty one.
            None => unsafe { ptr::write_bytes(self.entries, 0, self.capacity) },
        }
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        // SAFETY: `capacity` entries, all-zero or written by `put`; all-zero is a valid Entry.
        unsafe { std::slice::from_raw_parts(self.entries, self.capacity) }.iter().filter(|e| e.address != 0)
    }
}

/// Objects come from malloc: the low four bits are zero.
#[inline(always)]
fn spread(address: usize) -> usize {
    (address >> 4) ^ (address >> 12)
}

/// Memory for some values, all zero. Not from malloc: the program may have replaced it, or be inside it.
fn map<T>(count: usize) -> Option<*mut T> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping, page aligned, which is more than any T here needs.
    let at = unsafe { libc::mmap(ptr::null_mut(), count * size_of::<T>(), access, how, -1, 0) };
    (at != libc::MAP_FAILED).then(|| at.cast())
}

/// Gives back what [`map`] gave.
fn unmap<T>(at: *mut T, count: usize) {
    // SAFETY: mapped by `map` with this type and count, and no reference is left.
    unsafe { libc::munmap(at.cast(), count * size_of::<T>()) };
}

/// First meeting of this thread with an object, or the first after some object was destroyed.
#[cold]
#[inline(never)]
fn meet(address: usize, object_kind: u32) -> Option<Entry> {
    let _errno = KeepErrno::new();
    let met = try_to_meet(address, object_kind);
    if met.is_none()
        && let Some(shared) = shared::get()
    {
        shared.header().uncounted.fetch_add(1, Relaxed);
    }
    met
}

fn try_to_meet(address: usize, object_kind: u32) -> Option<Entry> {
    // SAFETY: the program passed this object to a verb; all kinds begin with their context.
    let context = unsafe { (*(address as *const abi::Object)).context };
    let tapped = contexts::find(context)?;
    let thread = of_this_thread()?;
    let epoch = objects::epoch();
    let object = objects::find_or_enter(address, object_kind);
    let id = object.map_or(0, |o| o.id.load(Relaxed));
    // SAFETY: `of_this_thread` returns this thread's own.
    let known = unsafe { (*thread).look_up(address) }.copied();
    let held = LOCK.hold();
    let shared = shared::get_or_make()?;
    let mut entry = match known {
        Some(known) if known.object == id && id != 0 && shared_is_same(known.slot, shared) => known,
        _ => {
            // SAFETY: as above.
            let tid = unsafe { (*thread).tid };
            let index = match object {
                Some(object) => shared.claim(&object.slots, &claim(object, address, context, tid)),
                None => probe_common::tap::shared::overflow(object_kind),
            };
            Entry {
                address,
                epoch,
                shared: index < SHARED_SLOTS,
                signal_all: object.is_some_and(|o| o.signal_all.load(Relaxed) == 1),
                slot: shared.slot(index),
                tapped,
                extended: ptr::null_mut(),
                object: id,
            }
        }
    };
    drop(held);
    entry.epoch = epoch;
    entry.extended = object.map_or(ptr::null_mut(), |o| o.extended.load(Relaxed));
    // SAFETY: as above.
    unsafe { (*thread).put(entry) };
    Some(entry)
}

/// False for a slot of the file a forked child has left behind.
fn shared_is_same(slot: *const Slot, shared: Shared) -> bool {
    let first: *const Slot = shared.slot(0);
    let last: *const Slot = shared.slot(usize::MAX);
    (first..=last).contains(&slot)
}

fn claim(object: &objects::Object, address: usize, context: *const abi::Context, tid: u32) -> Claim {
    let object_kind = object.kind.load(Relaxed);
    // SAFETY: the program passed this object to a verb of its kind.
    let number = unsafe {
        match object_kind {
            kind::QP => (*(address as *const abi::Qp)).qp_num,
            kind::CQ => (*(address as *const abi::Cq)).handle,
            _ => (*(address as *const abi::Srq)).handle,
        }
    };
    Claim {
        kind: object_kind,
        object: object.id.load(Relaxed),
        address: address as u64,
        context: context as u64,
        number,
        tid,
        signal_all: object.signal_all.load(Relaxed),
    }
}

/// This thread's memory, made now if it has none.
fn of_this_thread() -> Option<*mut Thread> {
    let known = THREAD.with(Cell::get);
    if !known.is_null() {
        return Some(known);
    }
    let entries = map(FIRST_CAPACITY)?;
    // SAFETY: gettid has no arguments.
    let tid = u32::try_from(unsafe { libc::gettid() }).unwrap_or(0);
    let thread: *mut Thread = map(1)?;
    // SAFETY: mapped just now, large enough and aligned for one Thread.
    unsafe {
        thread.write(Thread { entries, capacity: FIRST_CAPACITY, filled: 0, chance: Chance::NEW, tid });
    };
    THREAD.with(|t| t.set(thread));
    if let Some(key) = key() {
        // SAFETY: the key was made by pthread_key_create. Set again in a thread that posts while it is torn down, it
        // makes the destructor run once more.
        unsafe { libc::pthread_setspecific(key, thread.cast()) };
    }
    Some(thread)
}

fn key() -> Option<libc::pthread_key_t> {
    let _held = LOCK.hold();
    let known = KEY.load(Relaxed);
    if known != 0 {
        return libc::pthread_key_t::try_from(known - 1).ok();
    }
    let mut key = 0;
    // SAFETY: a destructor with the right type; `key` is written.
    (unsafe { libc::pthread_key_create(&mut key, Some(thread_ends)) } == 0).then(|| {
        KEY.store(u64::from(key) + 1, Relaxed);
        key
    })
}

/// The thread ends: its counts stand, its slots may go to another thread of the same object.
extern "C" fn thread_ends(thread: *mut c_void) {
    let _errno = KeepErrno::new();
    THREAD.with(|t| t.set(ptr::null_mut()));
    let at = thread.cast::<Thread>();
    // SAFETY: what `of_this_thread` stored under the key; nothing else points to it now.
    let thread = unsafe { at.read() };
    let _held = LOCK.hold();
    for entry in thread.entries().filter(|e| !e.shared) {
        // SAFETY: slots stay mapped while the process that claimed them lives; a forked child forgets them first.
        let slot = unsafe { &*entry.slot };
        let mine = slot.tid.load(Relaxed) == thread.tid && slot.object.load(Relaxed) == entry.object;
        if mine && slot.state.load(Relaxed) == state::LIVE {
            slot.state.store(state::ORPHAN, Release);
        }
    }
    unmap(thread.entries, thread.capacity);
    unmap(at, 1);
}

/// In a forked child: its one thread remembers slots of the parent's file and the parent's thread id.
pub fn forget_in_child() {
    let at = THREAD.with(|t| t.replace(ptr::null_mut()));
    if !at.is_null() {
        // SAFETY: this thread's own; the key's value is cleared below so that its end does not free it again.
        let thread = unsafe { at.read() };
        unmap(thread.entries, thread.capacity);
        unmap(at, 1);
        let known = KEY.load(Relaxed);
        if let Ok(key) = libc::pthread_key_t::try_from(known.wrapping_sub(1)) {
            // SAFETY: the key exists, since this thread had memory.
            unsafe { libc::pthread_setspecific(key, ptr::null()) };
        }
    }
}
