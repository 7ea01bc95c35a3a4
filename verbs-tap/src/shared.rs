//! The file shared with a profiler: made, given out slot by slot, folded when it is full, left behind by forked
//! children. Layout in [`probe_common::tap`].
//!
//! Everything here is a slow path under [`LOCK`], except [`Shared::rates`] and the counting itself.

use std::ffi::CStr;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release};

use probe_common::site::Rates;
use probe_common::tap::{self, Header, SHARED_SLOTS, SLOTS, Slot, state};

use crate::memfd::{self, Memfd};
use crate::messages;
use crate::objects;
use crate::quiet::Lock;

/// Guards every slow path: objects, slots, threads.
pub static LOCK: Lock = Lock::new();

static MAPPED: AtomicPtr<Header> = AtomicPtr::new(ptr::null_mut());
static FD: AtomicI32 = AtomicI32::new(-1);
static INODE: AtomicU64 = AtomicU64::new(0);
/// Set when the file could not be made: it is not tried again for every call.
static GAVE_UP: AtomicU32 = AtomicU32::new(0);
/// Set in a forked child until it makes its own file: the lists of slots are still the parent's.
static FORKED: AtomicU32 = AtomicU32::new(0);
/// Links the slots of one object, so that its end is known without a search. 0 ends a list (slot 0 is shared).
static NEXT: [AtomicU32; SLOTS] = [const { AtomicU32::new(0) }; SLOTS];

/// Slots whose objects are gone: without one, a full file is not searched at every claim.
static GONE: AtomicU32 = AtomicU32::new(0);

const FILE_NAME: &CStr = c"verbs-tap";

/// The mapped file.
#[derive(Clone, Copy)]
pub struct Shared(NonNull<Header>);

/// The file, made now if this process has none yet. `None` when it cannot be made. Needs [`LOCK`].
pub fn get_or_make() -> Option<Shared> {
    get().or_else(make)
}

/// The file, if it is there.
pub fn get() -> Option<Shared> {
    NonNull::new(MAPPED.load(Relaxed)).map(Shared)
}

fn make() -> Option<Shared> {
    if GAVE_UP.load(Relaxed) != 0 {
        return None;
    }
    if FORKED.swap(0, Relaxed) != 0 {
        GONE.store(0, Relaxed);
        for next in &NEXT {
            next.store(0, Relaxed);
        }
        objects::forget_slots_of_parent();
    }
    // Before the counters, which a profiler takes for the sign that there is something to read.
    messages::make_if_asked();
    let made = map_new_file();
    match made {
        Some(shared) => MAPPED.store(shared.0.as_ptr(), Release),
        None => GAVE_UP.store(1, Relaxed),
    }
    made
}

fn map_new_file() -> Option<Shared> {
    let Memfd { fd, inode, at } = memfd::make(FILE_NAME, tap::BYTES)?;
    FD.store(fd, Relaxed);
    INODE.store(inode, Relaxed);
    let shared = Shared(at.cast());
    shared.initialise();
    Some(shared)
}

/// In a forked child: leave the parent's file alone. A new one is made when the child first uses verbs. The caller has
/// reset its thread, so that nothing points into the file.
pub fn abandon_in_child() {
    let header = MAPPED.swap(ptr::null_mut(), Relaxed);
    GAVE_UP.store(0, Relaxed);
    memfd::abandon(header.cast(), tap::BYTES, FD.swap(-1, Relaxed), INODE.load(Relaxed));
    messages::abandon_in_child();
    FORKED.store(1, Relaxed);
}

/// Who a slot is for.
#[derive(Clone, Copy)]
pub struct Claim {
    pub kind: u32,
    pub object: u64,
    pub address: u64,
    pub context: u64,
    pub number: u32,
    pub tid: u32,
    pub signal_all: u32,
}

impl Shared {
    pub fn header(&self) -> &'static Header {
        // SAFETY: mapped for the life of the process (a child abandons it before anything else runs there).
        unsafe { self.0.as_ref() }
    }

    pub fn slot(&self, index: usize) -> &'static Slot {
        // SAFETY: the index is within the SLOTS that follow the header in the mapping.
        unsafe { &*self.0.as_ptr().add(1).cast::<Slot>().add(index.min(SLOTS - 1)) }
    }

    /// What the profiler wants of the probe sites.
    #[inline]
    pub fn rates(&self) -> Rates {
        Rates(self.header().fire.load(Relaxed))
    }

    fn initialise(&self) {
        let header = self.header();
        header.version.store(tap::VERSION, Relaxed);
        header.slot_bytes.store(u32::try_from(size_of::<Slot>()).unwrap_or(0), Relaxed);
        header.slots.store(u32::try_from(SLOTS).unwrap_or(0), Relaxed);
        header.used.store(u32::try_from(SHARED_SLOTS).unwrap_or(0), Relaxed);
        header.pid.store(std::process::id(), Relaxed);
        for kind in [tap::kind::QP, tap::kind::CQ, tap::kind::SRQ] {
            for index in [tap::shared::retired(kind), tap::shared::overflow(kind)] {
                self.slot(index).kind.store(kind, Relaxed);
                self.slot(index).state.store(state::LIVE, Relaxed);
            }
        }
        header.magic.store(tap::MAGIC, Release);
    }

    /// A slot for one thread and object; `list` is the head of the object's slots. Falls back to the overflow slot.
    ///
    /// Needs [`LOCK`].
    pub fn claim(&self, list: &AtomicU32, claim: &Claim) -> usize {
        if let Some(index) = self.own(list, claim.tid) {
            return index;
        }
        let used = self.header().used.load(Relaxed) as usize;
        // Half of the slots keep threads apart; then a thread goes on where an ended one of the same object stopped.
        let index = if used < SLOTS / 2 { self.fresh() } else { None }
            .or_else(|| self.adopt(list))
            .or_else(|| self.fresh())
            .or_else(|| self.reclaim());
        let Some(index) = index else { return tap::shared::overflow(claim.kind) };
        let slot = self.slot(index);
        let adopted = slot.object.load(Relaxed) == claim.object;
        slot.kind.store(claim.kind, Relaxed);
        slot.object.store(claim.object, Relaxed);
        slot.address.store(claim.address, Relaxed);
        slot.context.store(claim.context, Relaxed);
        slot.number.store(claim.number, Relaxed);
        slot.signal_all.store(claim.signal_all, Relaxed);
        slot.tid.store(claim.tid, Relaxed);
        slot.owners.store(if adopted { slot.owners.load(Relaxed) + 1 } else { 1 }, Relaxed);
        slot.state.store(state::LIVE, Release);
        if !adopted && let (Some(next), Ok(here)) = (NEXT.get(index), u32::try_from(index)) {
            next.store(list.load(Relaxed), Relaxed);
            list.store(here, Relaxed);
        }
        index
    }

    fn fresh(&self) -> Option<usize> {
        let used = self.header().used.load(Relaxed);
        let index = usize::try_from(used).ok().filter(|i| *i < SLOTS)?;
        self.header().used.store(used + 1, Relaxed);
        Some(index)
    }

    /// The slot this thread has already, where it has forgotten it.
    fn own(&self, list: &AtomicU32, tid: u32) -> Option<usize> {
        chain(list).find(|index| {
            let slot = self.slot(*index);
            slot.state.load(Relaxed) == state::LIVE && slot.tid.load(Relaxed) == tid
        })
    }

    fn adopt(&self, list: &AtomicU32) -> Option<usize> {
        chain(list).find(|index| self.slot(*index).state.load(Relaxed) == state::ORPHAN)
    }

    /// Takes back a slot whose object is gone: its counts move to the retired slot of its kind.
    fn reclaim(&self) -> Option<usize> {
        /// Where the last search ended: slots are taken back in turn.
        static CURSOR: AtomicU32 = AtomicU32::new(0);
        if GONE.load(Relaxed) == 0 {
            return None;
        }
        let start = CURSOR.load(Relaxed) as usize % SLOTS;
        let index = (start..SLOTS)
            .chain(0..start)
            .filter(|index| *index >= SHARED_SLOTS)
            .find(|index| self.slot(*index).state.load(Relaxed) == state::GONE)?;
        CURSOR.store(u32::try_from(index + 1).unwrap_or(0), Relaxed);
        self.fold(index);
        GONE.fetch_sub(1, Relaxed);
        Some(index)
    }

    fn fold(&self, index: usize) {
        let header = self.header();
        let from = self.slot(index);
        let kind = from.kind.load(Relaxed);
        let into = self.slot(tap::shared::retired(kind));
        header.folding.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        for (place, (from, into)) in from.counters.iter().zip(&into.counters).enumerate() {
            let value = from.load(Relaxed);
            if kind != tap::kind::CQ && place == tap::qp::LONGEST_UNSIGNALLED {
                into.fetch_max(value, Relaxed);
            } else {
                into.fetch_add(value, Relaxed);
            }
            from.store(0, Relaxed);
        }
        from.object.store(0, Relaxed);
        from.state.store(state::FREE, Relaxed);
        header.folding.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }

    /// The object of this list is destroyed. Needs [`LOCK`].
    pub fn object_gone(&self, list: &AtomicU32) {
        for index in chain(list) {
            self.slot(index).state.store(state::GONE, Release);
            GONE.fetch_add(1, Relaxed);
        }
        list.store(0, Relaxed);
    }
}

/// The slots of one object's list. The list ends at a slot that was never linked, and cannot be longer than all slots.
fn chain(list: &AtomicU32) -> impl Iterator<Item = usize> {
    let follow = |index: &usize| {
        let next = NEXT.get(*index)?.load(Relaxed);
        usize::try_from(next).ok().filter(|n| *n != 0)
    };
    let first = usize::try_from(list.load(Relaxed)).ok().filter(|n| *n != 0);
    std::iter::successors(first, follow).take(SLOTS)
}
