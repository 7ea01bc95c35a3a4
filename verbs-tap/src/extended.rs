//! The extended API: functions that stand in each `ibv_qp_ex` and `ibv_cq_ex`.
//!
//! Between `wr_start` and `wr_complete`, and between `start_poll` and `end_poll`, the object belongs to one thread (the
//! provider locks it, or the program promises), so what a batch comes to is summed up in the object's own memory and
//! counted at the end. A batch given up by `wr_abort` counts nothing.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::Release};

use probe_common::messages::kind as message;
use probe_common::site::{Queue, Refused, Stream};
use probe_common::tap::{cq, kind, qp};

use crate::abi::{self, CqEx, DataBuf, QpEx, Sge, opcode, wr};
use crate::classic::{count_posted, count_status};
use crate::digest::{Digest, OPCODES};
use crate::messages::{self, Begun, Log, Send};
use crate::objects;
use crate::shared;
use crate::shown::{self, Finds, Sends};
use crate::sites;
use crate::thread::{self, Entry};

const START_POLL: usize = 0;
const NEXT_POLL: usize = 1;
const END_POLL: usize = 2;

/// What the tap keeps for one extended object.
pub struct Extended {
    /// The provider's functions, in the order of the object's own.
    originals: [AtomicUsize; wr::COUNT],
    batch: UnsafeCell<Batch>,
}

#[derive(Default)]
struct Batch {
    digest: Digest,
    /// Opcodes other than that of the batch's first work request.
    others: [u32; OPCODES],
    /// The work request that is built, where the log wants it: told when the next one begins, its lists being known.
    building: Option<Send>,
    inline_before: u64,
    /// When the completion entries walked since `start_poll` were asked for.
    polling: Option<Begun>,
    /// Completion entries walked since `start_poll`.
    polled: u64,
    /// What the probe sites are shown.
    sends: Sends,
    finds: Finds,
}

impl Batch {
    /// Tells the work request that was built last. Until then its `bytes` are what the batch had before it.
    #[cold]
    fn tell(&mut self, log: Log, ex: *const QpEx) {
        if let Some(send) = self.building.take() {
            let bytes = self.digest.bytes - send.bytes;
            let inline = self.inline_before != self.digest.inline;
            log.send(messages::begin(), ex.cast(), &Send { bytes, inline, ..send });
        }
    }
}

impl Extended {
    fn new() -> Self {
        Self { originals: [const { AtomicUsize::new(0) }; wr::COUNT], batch: UnsafeCell::default() }
    }

    fn original(&self, place: usize) -> usize {
        self.originals.get(place).map_or(0, |o| o.load(Relaxed))
    }

    /// Puts our function where the provider's stands, unless it is there already or there is none.
    fn tap(&self, at: &AtomicUsize, place: usize, ours: usize) {
        let current = at.load(Relaxed);
        let Some(original) = self.originals.get(place) else { return };
        if current == 0 || current == ours {
            return;
        }
        if original.load(Relaxed) != 0
            && let Some(shared) = shared::get()
        {
            shared.header().retapped.fetch_add(1, Relaxed);
        }
        original.store(current, Release);
        at.store(ours, Release);
    }
}

/// Taps an extended queue pair, or what its provider has replaced in it since: mlx5 changes `wr_complete` when the
/// state of the queue pair changes.
///
/// # Safety
/// `ex` is a live `ibv_qp_ex`; `atomic_write` only where it was made with that operation.
pub unsafe fn tap_qp(ex: *mut QpEx, atomic_write: bool) {
    let Some(object) = objects::find_or_enter(ex as usize, kind::QP) else { return };
    let extended = extended_of(object);
    // SAFETY: as promised.
    for (place, at) in unsafe { (*ex).calls.iter() }.enumerate() {
        if let Some(ours) = our_qp_call(place) {
            extended.tap(at, place, ours);
        }
    }
    if atomic_write {
        // SAFETY: the field lies behind those every version has, and exists where the operation could be asked for.
        let at = unsafe { &*(&raw const (*ex).calls).cast::<AtomicUsize>().add(wr::ATOMIC_WRITE) };
        extended.tap(at, wr::ATOMIC_WRITE, wr_atomic_write as *const () as usize);
    }
}

/// Taps again what the provider has replaced in a queue pair that is tapped.
///
/// # Safety
/// `ex` is a live `ibv_qp_ex` if it was tapped before; otherwise it is not looked at.
pub unsafe fn retap_qp(ex: *mut QpEx) {
    let tapped = objects::find(ex as usize).is_some_and(|o| !o.extended.load(Relaxed).is_null());
    if tapped {
        // SAFETY: it was an ibv_qp_ex when it was tapped, and is not destroyed.
        unsafe { tap_qp(ex, false) };
    }
}

/// Taps an extended completion queue.
///
/// # Safety
/// `ex` is a live `ibv_cq_ex`.
pub unsafe fn tap_cq(ex: *mut CqEx) {
    let Some(object) = objects::find_or_enter(ex as usize, kind::CQ) else { return };
    let extended = extended_of(object);
    let ours =
        [start_poll as *const () as usize, next_poll as *const () as usize, end_poll as *const () as usize];
    // SAFETY: as promised.
    for (place, (at, ours)) in unsafe { (*ex).calls.iter() }.zip(ours).enumerate() {
        extended.tap(at, place, ours);
    }
}

fn extended_of(object: &'static objects::Object) -> &'static Extended {
    let known = object.extended.load(Relaxed);
    let at = if known.is_null() {
        let new = Box::into_raw(Box::new(Extended::new()));
        object.extended.store(new, Release);
        new
    } else {
        known
    };
    // SAFETY: freed only when the object is destroyed.
    unsafe { &*at }
}

/// The provider's function and what to count with. The object's memory is found without an entry too, so that the call
/// can always be passed on.
struct Here {
    entry: Option<Entry>,
    extended: &'static Extended,
}

#[inline(always)]
fn here(object: usize, object_kind: u32) -> Option<Here> {
    let entry = thread::here(object, object_kind);
    let known = match &entry {
        Some(entry) if !entry.extended.is_null() => entry.extended,
        _ => objects::find(object)?.extended.load(Relaxed),
    };
    // SAFETY: freed only when the object is destroyed.
    Some(Here { entry, extended: unsafe { known.as_ref() }? })
}

impl Here {
    /// # Safety
    /// Between `wr_start` and `wr_complete`, or `start_poll` and `end_poll`, of this thread.
    #[expect(clippy::mut_from_ref, reason = "between start and end the object belongs to one thread")]
    unsafe fn batch(&self) -> &mut Batch {
        // SAFETY: as promised.
        unsafe { &mut *self.extended.batch.get() }
    }
}

/// Calls the provider's function at a place.
macro_rules! pass {
    ($here:expr, $place:expr, fn($($kind:ty),*) $(-> $result:ty)?, ($($argument:expr),*)) => {{
        let function: unsafe extern "C-unwind" fn($($kind),*) $(-> $result)? =
            std::mem::transmute($here.extended.original($place));
        function($($argument),*)
    }};
}

/// A function that adds one work request to the batch.
macro_rules! builder {
    ($name:ident, $place:expr, $opcode:expr, $remote:expr, ($($argument:ident: $kind:ty),*)) => {
        unsafe extern "C-unwind" fn $name(ex: *mut QpEx $(, $argument: $kind)*) {
            // SAFETY: the program's own call, inside its batch, passed on to the function that stood there.
            unsafe {
                let Some(here) = here(ex as usize, kind::QP) else { return };
                let signal_all = here.entry.as_ref().is_some_and(|e| e.signal_all);
                let signalled = signal_all || (*ex).wr_flags & abi::SEND_SIGNALED != 0;
                let batch = here.batch();
                if let Some(log) = messages::log() {
                    batch.tell(log, ex);
                    let (wr_id, bytes) = ((*ex).wr_id, batch.digest.bytes);
                    batch.building = Some(Send { wr_id, opcode: $opcode, signalled, inline: false, bytes });
                    batch.inline_before = batch.digest.inline;
                }
                if shown::is_asked() {
                    let remote: fn($($kind),*) -> (u64, u32) = $remote;
                    batch.sends.begin((*ex).wr_id, $opcode, signalled, remote($($argument),*));
                }
                let Batch { digest, others, .. } = batch;
                digest.send($opcode, signalled, false, |place| others[place] = others[place].wrapping_add(1));
                pass!(here, $place, fn(*mut QpEx $(, $kind)*), (ex $(, $argument)*));
            }
        }
    };
}

builder!(wr_atomic_cmp_swp, wr::ATOMIC_CMP_SWP, opcode::ATOMIC_CMP_AND_SWP, |rkey, addr, _, _| (addr, rkey), (rkey: u32, addr: u64, compare: u64, swap: u64));
builder!(wr_atomic_fetch_add, wr::ATOMIC_FETCH_ADD, opcode::ATOMIC_FETCH_AND_ADD, |rkey, addr, _| (addr, rkey), (rkey: u32, addr: u64, add: u64));
builder!(wr_bind_mw, wr::BIND_MW, opcode::BIND_MW, |_, _, _| (0, 0), (mw: *mut c_void, rkey: u32, info: *const c_void));
builder!(wr_local_inv, wr::LOCAL_INV, opcode::LOCAL_INV, |_| (0, 0), (rkey: u32));
builder!(wr_rdma_read, wr::RDMA_READ, opcode::RDMA_READ, |rkey, addr| (addr, rkey), (rkey: u32, addr: u64));
builder!(wr_rdma_write, wr::RDMA_WRITE, opcode::RDMA_WRITE, |rkey, addr| (addr, rkey), (rkey: u32, addr: u64));
builder!(wr_rdma_write_imm, wr::RDMA_WRITE_IMM, opcode::RDMA_WRITE_WITH_IMM, |rkey, addr, _| (addr, rkey), (rkey: u32, addr: u64, imm: u32));
builder!(wr_send, wr::SEND, opcode::SEND, || (0, 0), ());
builder!(wr_send_imm, wr::SEND_IMM, opcode::SEND_WITH_IMM, |_| (0, 0), (imm: u32));
builder!(wr_send_inv, wr::SEND_INV, opcode::SEND_WITH_INV, |_| (0, 0), (rkey: u32));
builder!(wr_send_tso, wr::SEND_TSO, opcode::TSO, |_, _, _| (0, 0), (header: *mut c_void, header_size: u16, mss: u16));
builder!(wr_atomic_write, wr::ATOMIC_WRITE, opcode::ATOMIC_WRITE, |_, _, _| (0, 0), (rkey: u32, addr: u64, value: *const c_void));

unsafe extern "C-unwind" fn wr_set_inline_data(ex: *mut QpEx, addr: *mut c_void, length: usize) {
    // SAFETY: as for the builders.
    unsafe {
        let Some(here) = here(ex as usize, kind::QP) else { return };
        let Batch { digest, sends, .. } = here.batch();
        digest.inline += 1;
        digest.sges += 1;
        digest.bytes += length as u64;
        sends.inline(&DataBuf { addr, length }, 1);
        pass!(here, wr::SET_INLINE_DATA, fn(*mut QpEx, *mut c_void, usize), (ex, addr, length));
    }
}

unsafe extern "C-unwind" fn wr_set_inline_data_list(ex: *mut QpEx, count: usize, list: *const DataBuf) {
    // SAFETY: as for the builders; the list has `count` entries.
    unsafe {
        let Some(here) = here(ex as usize, kind::QP) else { return };
        let Batch { digest, sends, .. } = here.batch();
        sends.inline(list, count);
        digest.inline += 1;
        digest.sges += count as u64;
        for index in 0..count {
            digest.bytes += (*list.add(index)).length as u64;
        }
        pass!(here, wr::SET_INLINE_DATA_LIST, fn(*mut QpEx, usize, *const DataBuf), (ex, count, list));
    }
}

unsafe extern "C-unwind" fn wr_set_sge(ex: *mut QpEx, lkey: u32, addr: u64, length: u32) {
    // SAFETY: as for the builders.
    unsafe {
        let Some(here) = here(ex as usize, kind::QP) else { return };
        let Batch { digest, sends, .. } = here.batch();
        digest.sges += 1;
        digest.bytes += u64::from(length);
        sends.sges(&Sge { addr, length, lkey }, 1);
        pass!(here, wr::SET_SGE, fn(*mut QpEx, u32, u64, u32), (ex, lkey, addr, length));
    }
}

unsafe extern "C-unwind" fn wr_set_sge_list(ex: *mut QpEx, count: usize, list: *const Sge) {
    // SAFETY: as for the builders; the list has `count` entries.
    unsafe {
        let Some(here) = here(ex as usize, kind::QP) else { return };
        let Batch { digest, sends, .. } = here.batch();
        digest.list(list, i32::try_from(count).unwrap_or(i32::MAX));
        sends.sges(list, count);
        pass!(here, wr::SET_SGE_LIST, fn(*mut QpEx, usize, *const Sge), (ex, count, list));
    }
}

unsafe extern "C-unwind" fn wr_start(ex: *mut QpEx) {
    // SAFETY: the program's own call, passed on; the batch is this thread's once the provider has begun it.
    unsafe {
        let Some(here) = here(ex as usize, kind::QP) else { return };
        pass!(here, wr::START, fn(*mut QpEx), (ex));
        let batch = here.batch();
        if batch.digest.of_first != batch.digest.wrs {
            batch.others = [0; OPCODES];
        }
        batch.digest = Digest::default();
        batch.building = None;
        batch.sends.clear();
    }
}

unsafe extern "C-unwind" fn wr_complete(ex: *mut QpEx) -> c_int {
    // SAFETY: the program's own call, passed on; the batch is copied before the provider ends it, since another thread
    // may begin the next one at once.
    unsafe {
        let Some(here) = here(ex as usize, kind::QP) else { return libc::ENOSYS };
        let Batch { digest, others, .. } = here.batch();
        let digest = *digest;
        let others = (digest.of_first != digest.wrs).then_some(*others);
        let told = thread::fires(Stream::of_post(digest.signalled));
        let flags = digest.flags(Queue::Send, true).one_in(told.unwrap_or(0));
        let mut shown = 0;
        if told.is_some() {
            shown = here.batch().sends.chain(digest.wrs);
            sites::posted(ex as usize, &digest, flags, shown);
        }
        let log = messages::log().map(|log| {
            here.batch().tell(log, ex);
            (log, messages::begin())
        });
        let result = pass!(here, wr::COMPLETE, fn(*mut QpEx) -> c_int, (ex));
        if let Some((log, begun)) = log {
            let posted = if result == 0 { digest.wrs } else { 0 };
            log.posted(begun, message::SEND, ex.cast(), posted, result);
        }
        if let Some(entry) = here.entry {
            if result == 0 {
                count_posted(&entry, &digest, true);
                for (place, count) in others.iter().flatten().enumerate().filter(|(_, count)| **count != 0) {
                    entry.add(qp::OPCODES + place, u64::from(*count));
                }
            } else {
                // The whole batch is refused or accepted.
                entry.add(qp::POST_FAILED, 1);
                entry.add(qp::POST_CALLS, 1);
            }
        }
        if told.is_some() && result != 0 {
            // Nobody else has begun a batch meanwhile, unless several threads post to this queue pair.
            let why = Refused::pack(result.unsigned_abs(), shown as u64);
            sites::verbs_tap_post_failed(ex as usize, digest.wrs, digest.bytes, flags.0, digest.sges, why.0);
        }
        result
    }
}

unsafe extern "C-unwind" fn wr_abort(ex: *mut QpEx) {
    // SAFETY: the program's own call, passed on.
    unsafe {
        let Some(here) = here(ex as usize, kind::QP) else { return };
        if let Some(entry) = here.entry {
            entry.add(qp::ABORTED, 1);
        }
        if let Some(log) = messages::log() {
            log.posted(messages::begin(), message::SEND, ex.cast(), 0, libc::ECANCELED);
        }
        pass!(here, wr::ABORT, fn(*mut QpEx), (ex));
    }
}

fn our_qp_call(place: usize) -> Option<usize> {
    let ours = match place {
        wr::ATOMIC_CMP_SWP => wr_atomic_cmp_swp as *const (),
        wr::ATOMIC_FETCH_ADD => wr_atomic_fetch_add as *const (),
        wr::BIND_MW => wr_bind_mw as *const (),
        wr::LOCAL_INV => wr_local_inv as *const (),
        wr::RDMA_READ => wr_rdma_read as *const (),
        wr::RDMA_WRITE => wr_rdma_write as *const (),
        wr::RDMA_WRITE_IMM => wr_rdma_write_imm as *const (),
        wr::SEND => wr_send as *const (),
        wr::SEND_IMM => wr_send_imm as *const (),
        wr::SEND_INV => wr_send_inv as *const (),
        wr::SEND_TSO => wr_send_tso as *const (),
        wr::SET_INLINE_DATA => wr_set_inline_data as *const (),
        wr::SET_INLINE_DATA_LIST => wr_set_inline_data_list as *const (),
        wr::SET_SGE => wr_set_sge as *const (),
        wr::SET_SGE_LIST => wr_set_sge_list as *const (),
        wr::START => wr_start as *const (),
        wr::COMPLETE => wr_complete as *const (),
        wr::ABORT => wr_abort as *const (),
        _ => return None,
    };
    Some(ours as usize)
}

unsafe extern "C-unwind" fn start_poll(ex: *mut CqEx, attr: *mut c_void) -> c_int {
    // SAFETY: the program's own call, passed on; on success the walk is this thread's until end_poll.
    unsafe {
        let Some(here) = here(ex as usize, kind::CQ) else { return libc::ENOSYS };
        let begun = messages::log().map(|_| messages::begin());
        let result = pass!(here, START_POLL, fn(*mut CqEx, *mut c_void) -> c_int, (ex, attr));
        if let Some(entry) = &here.entry {
            entry.add(cq::POLLS, 1);
            match result {
                0 => count_entry(entry, ex),
                libc::ENOENT => entry.add(cq::EMPTY, 1),
                _ => entry.add(cq::FAILED, 1),
            }
        }
        if result == 0 {
            let batch = here.batch();
            (batch.polled, batch.polling) = (0, begun);
            batch.finds.clear();
            found(batch, ex);
        } else {
            let (n, stream) = match result {
                libc::ENOENT => (0, Stream::Empty),
                errno => (-i64::from(errno), Stream::Finds),
            };
            if let Some(exponent) = thread::fires(stream) {
                sites::verbs_tap_polled(ex as usize, n, 0, exponent);
            }
        }
        result
    }
}

unsafe extern "C-unwind" fn next_poll(ex: *mut CqEx) -> c_int {
    // SAFETY: the program's own call, inside its walk, passed on.
    unsafe {
        let Some(here) = here(ex as usize, kind::CQ) else { return libc::ENOSYS };
        let result = pass!(here, NEXT_POLL, fn(*mut CqEx) -> c_int, (ex));
        if result == 0 {
            found(here.batch(), ex);
            if let Some(entry) = &here.entry {
                count_entry(entry, ex);
            }
        }
        result
    }
}

unsafe extern "C-unwind" fn end_poll(ex: *mut CqEx) {
    // SAFETY: the program's own call, passed on; the count is copied before the walk ends.
    unsafe {
        let Some(here) = here(ex as usize, kind::CQ) else { return };
        let Batch { polled, polling, finds, .. } = here.batch();
        let (polled, polling) = (*polled, *polling);
        // Before it ends: what is shown is this thread's until then.
        if let Some(exponent) = thread::fires(Stream::Finds) {
            let (entries, how) = finds.entries(polled);
            let n = i64::try_from(polled).unwrap_or(i64::MAX);
            sites::verbs_tap_polled(ex as usize, n, entries, exponent | how);
        }
        pass!(here, END_POLL, fn(*mut CqEx), (ex));
        if let Some((log, begun)) = messages::log().zip(polling) {
            log.polled(begun, messages::begin(), ex.cast(), polled);
        }
    }
}

/// Another completion entry was found.
///
/// # Safety
/// `ex` stands at it.
#[inline(always)]
unsafe fn found(batch: &mut Batch, ex: *mut CqEx) {
    batch.polled += 1;
    if shown::is_asked() {
        // SAFETY: as promised.
        unsafe { batch.finds.note(ex) };
    }
}

/// # Safety
/// `ex` stands at a completion entry.
unsafe fn count_entry(entry: &Entry, ex: *mut CqEx) {
    if let Some(log) = messages::log() {
        // SAFETY: as promised.
        unsafe { log.completion(ex) };
    }
    entry.add(cq::CQES, 1);
    // SAFETY: as promised.
    count_status(entry, unsafe { (*ex).status });
}
