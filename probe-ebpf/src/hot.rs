//! Places of objects and processes that are hit again and again; see [`probe_common::hot`].
//!
//! A lookup in a hash table is a good part of what a hit costs, one in an array nothing: it is no call. Whoever comes
//! through a table leaves a place behind ([`keep`]), where the next hit finds all it needs ([`find`]).

use core::arch::asm;

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::macros::map;
use aya_ebpf::maps::Array;
use probe_common::counters::{ObjectCounters, qp};
use probe_common::hot::{ACCOUNTS, Account, BUSY, OPENING, PLACES, Place, account_of, owner, place_of};
use probe_common::wire::{Spent, Target, hits};

use crate::count;
use crate::maps::TARGETS;
use crate::meter::Meter;
use crate::subject::Subject;
use crate::user::clear;

/// Of objects.
#[map]
static HOT_OBJECTS: Array<Place> = Array::with_max_entries(PLACES as u32, 0);

/// Of processes, by pid.
#[map]
static HOT_PROCESSES: Array<Account> = Array::with_max_entries(ACCOUNTS as u32, 0);

/// What a place begins as: taken, and nothing counted.
#[map]
static NEW_PLACE: Array<Place> = Array::with_max_entries(1, 0);

/// What a hit finds.
pub struct Found {
    pub subject: Subject,
    pub counters: *mut ObjectCounters,
    /// False where work requests are not to be looked at.
    pub walks: bool,
    spent: *mut Spent,
}

impl Found {
    /// Begins the hit, of a kind of [`hits`]: from here on it is carried out at this place.
    #[inline(always)]
    pub fn hit(&self, kind: usize) -> Meter {
        Meter::begin(self.spent, kind)
    }
}

/// The place of an object that the current thread uses; `None` where it has none.
///
/// A process is taken to be the one that took its place, as long as nobody has noticed its end.
#[inline(always)]
pub fn find(object_kind: u32, address: u64, by: u16) -> Option<Found> {
    let pid_tgid = bpf_get_current_pid_tgid();
    let tgid = (pid_tgid >> 32) as u32;
    let owner = owner(tgid, object_kind, by);
    let place = HOT_OBJECTS.get_ptr_mut(place_of(owner, address))?;
    let account = HOT_PROCESSES.get_ptr_mut(account_of(tgid))?;
    // SAFETY: live map values.
    unsafe {
        let is_its = (*place).owner == owner
            && (*place).address == address
            && (*account).tgid == tgid as u64
            && (*account).target.start_ns == (*place).start_ns;
        is_its.then_some(())?;
        Some(Found {
            subject: Subject { pid_tgid, start_ns: (*place).start_ns },
            counters: &raw mut (*place).counters,
            walks: (*place).walks != 0,
            spent: &raw mut (*account).target.spent,
        })
    }
}

/// Gives an object a place, if it has none and its is free.
#[inline(always)]
pub fn keep(
    subject: Subject,
    entry: *mut ObjectCounters,
    object_kind: u32,
    address: u64,
    by: u16,
    walks: bool,
) {
    // SAFETY: a live map value.
    if unsafe { (*entry).place } != 0 || !open(subject) {
        return;
    }
    let owner = owner(subject.tgid(), object_kind, by);
    let index = place_of(owner, address);
    let Some(place) = HOT_OBJECTS.get_ptr_mut(index) else { return };
    let Some(new) = NEW_PLACE.get_ptr_mut(0) else { return };
    // SAFETY: live map values; this thread alone writes the place once it is busy.
    unsafe {
        if (*place).owner != 0 || !take(&raw mut (*place).owner, BUSY) {
            return;
        }
        // What another object has left behind goes, by a copy: the place is to stay busy meanwhile.
        (*new).owner = BUSY;
        let _ = HOT_OBJECTS.set(index, &*new, 0);
        (*place).address = address;
        (*place).start_ns = subject.start_ns;
        (*place).walks = walks as u64;
        (*place).counters.number = (*entry).number;
        (*place).counters.granted = (*entry).granted;
        hand_over(entry, &raw mut (*place).counters);
        // First the entry says where more is counted, then it is.
        (&raw mut (*entry).place).write_volatile(index as u64 + 1);
        (&raw mut (*place).owner).write_volatile(owner);
    }
}

/// Has a place for the process; false where another one has it.
#[inline(always)]
fn open(subject: Subject) -> bool {
    let Some(account) = HOT_PROCESSES.get_ptr_mut(account_of(subject.tgid())) else { return false };
    let tgid = subject.tgid() as u64;
    // SAFETY: a live map value; this thread alone writes the place once it is opening it.
    unsafe {
        if (*account).tgid == tgid && (*account).target.start_ns == subject.start_ns {
            return true;
        }
        // Of a process that had this pid, and whose end was not noticed.
        let is_stale = (*account).tgid == tgid;
        if !is_stale && ((*account).tgid != 0 || !take(&raw mut (*account).tgid, OPENING)) {
            return false;
        }
        clear::<{ size_of::<Target>() / 8 }>((&raw mut (*account).target).cast());
        (&raw mut (*account).target.start_ns).write_volatile(subject.start_ns);
        (&raw mut (*account).tgid).write_volatile(tgid);
    }
    true
}

/// Writes `by` where there is a 0, which only one of several threads does.
///
/// # Safety
/// `word` lies in a map value, aligned.
#[inline(always)]
pub unsafe fn take(word: *mut u64, by: u64) -> bool {
    let before: u64;
    // SAFETY: as promised.
    unsafe {
        asm!("r0 = cmpxchg_64({0} + 0, r0, {1})", in(reg) word, in(reg) by, inlateout("r0") 0u64 => before);
    }
    before == 0
}

/// Has what goes before a work request continue elsewhere: what was posted last, and by whom.
///
/// # Safety
/// Live map values.
#[inline(always)]
unsafe fn hand_over(from: *const ObjectCounters, to: *mut ObjectCounters) {
    // SAFETY: as promised.
    unsafe {
        (*to).last[0] = (*from).last[0];
        (*to).last[1] = (*from).last[1];
        (*to).last[2] = (*from).last[2];
        (*to).last[3] = (*from).last[3];
        (*to).counters[qp::UNSIGNALLED_RUN] = (*from).counters[qp::UNSIGNALLED_RUN];
        (*to).counters[qp::LONGEST_UNSIGNALLED] = (*from).counters[qp::LONGEST_UNSIGNALLED];
        (*to).last_tid = (*from).last_tid;
    }
}

/// Before something is counted in an entry: what goes before it may have been counted at its place.
#[inline(always)]
pub fn go_on_from(entry: *mut ObjectCounters) {
    // SAFETY: live map values.
    unsafe {
        if let Some(place) = place_beside(entry) {
            hand_over(&raw const (*place).counters, entry);
        }
    }
}

/// After it: what comes next may be counted there.
#[inline(always)]
pub fn go_on_at(entry: *mut ObjectCounters) {
    // SAFETY: live map values.
    unsafe {
        if let Some(place) = place_beside(entry) {
            hand_over(entry, &raw mut (*place).counters);
        }
    }
}

#[inline(always)]
fn place_beside(entry: *const ObjectCounters) -> Option<*mut Place> {
    // SAFETY: a live map value.
    let place = unsafe { (*entry).place };
    if place == 0 {
        return None;
    }
    HOT_OBJECTS.get_ptr_mut((place - 1) as u32)
}

/// Takes an object's place from it: what was counted there, to be kept before the place is [`free`].
///
/// A reader reads the entry first, then the place, and takes it only where it belongs to the object before and after.
/// Here it is given up first, and kept elsewhere then: so nothing is seen twice, and what a reader who comes in between
/// misses, he finds the next time.
#[inline(always)]
pub fn give_up(entry: *const ObjectCounters) -> Option<*mut Place> {
    let place = place_beside(entry)?;
    // SAFETY: a live map value.
    unsafe { (&raw mut (*place).owner).write_volatile(BUSY) };
    Some(place)
}

/// Nobody has the place any more.
///
/// # Safety
/// It was given up.
#[inline(always)]
pub unsafe fn free(place: *mut Place) {
    // SAFETY: a live map value.
    unsafe { (&raw mut (*place).owner).write_volatile(0) };
}

/// A process is no more: its hits go to its entry among the watched ones, and its place is free.
///
/// Taken away first, then added: a reader who reads the entry first never sees them twice.
#[inline(always)]
pub fn process_ends(subject: Subject) {
    let Some(account) = HOT_PROCESSES.get_ptr_mut(account_of(subject.tgid())) else { return };
    // SAFETY: live map values; no thread of the process is left that could write here.
    unsafe {
        if (*account).tgid != subject.tgid() as u64 || (*account).target.start_ns != subject.start_ns {
            return;
        }
        let spent = (*account).target.spent;
        (&raw mut (*account).tgid).write_volatile(0);
        let Some(target) = TARGETS.get_ptr_mut(&subject.tgid()) else { return };
        // Only sites have hits at such places.
        let to = &raw mut (*target).spent;
        let mut kind = 0;
        while kind < hits::STREAMS {
            count::add((&raw mut (*to).hits).cast::<u64>().add(kind), spent.hits[kind]);
            count::add((&raw mut (*to).program_ns).cast::<u64>().add(kind), spent.program_ns[kind]);
            kind += 1;
        }
    }
}
