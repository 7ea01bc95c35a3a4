//! All connections of the process, and who looks after them.

use super::in_link::InLink;
use super::memory::{AWAKE, HELPER};
use super::out_link::OutLink;
use super::{helper, rendezvous};
use crate::device::process::Process;
use crate::stats::ProcessCounter;
use crate::sys::bell::Bell;
use crate::sys::lock::Lock;
use crate::sys::{clock, fork};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// Connections in each direction.
pub const MAX_LINKS: usize = rendezvous::SLOTS;
/// After a failed connection, how long until it is tried again.
const RETRY_CONNECT_NS: u64 = 10_000_000;
/// Polls in a row without a helper's look that make the program count as polling.
const POLLING_AFTER: u64 = 64;

/// Looks without anything to do, some 50 µs of them, after which the program's thread offers its processor to others. A NIC
/// needs no processor to answer a program that polls without pause; another process does.
const YIELD_EVERY: u64 = 1024;

/// Who looks at the rings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Watch {
    /// The helper sleeps, and peers wake it.
    Helper = 0,
    /// The program polls; peers need not wake anybody, and the helper checks now and then that it still does.
    Program = 1,
}

/// Connections of the process.
pub struct Wire {
    slot: u8,
    listener: OwnedFd,
    /// Wakes the helper.
    pub bell: Bell,
    out: Box<[AtomicPtr<OutLink>]>,
    ins: Box<[AtomicPtr<InLink>]>,
    /// Entries of `out` and `ins` in use: nothing to look at while 0.
    open: AtomicUsize,
    failed_at: Box<[AtomicU64]>,
    connecting: Lock<()>,
    watch: AtomicU32,
    /// Times the program looked.
    pub looks: AtomicU64,
    /// Looks in a row that found nothing to do.
    idle_looks: AtomicU64,
    /// `looks` when the helper last went to sleep.
    looks_at_sleep: AtomicU64,
    helper_started: Lock<bool>,
    /// When the helper means to wake by itself.
    pub helper_wakes_at: AtomicU64,
}

fn empty<T>() -> Box<[AtomicPtr<T>]> {
    (0..MAX_LINKS).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect()
}

impl Wire {
    /// Claims a slot of the host.
    pub fn new() -> io::Result<Self> {
        let (slot, listener) = rendezvous::claim()?;
        let bell = Bell::new(true)?;
        fork::close_in_children(listener.as_raw_fd());
        fork::close_in_children(bell.raw());
        Ok(Self {
            slot,
            listener,
            bell,
            out: empty(),
            ins: empty(),
            open: AtomicUsize::new(0),
            failed_at: (0..MAX_LINKS).map(|_| AtomicU64::new(0)).collect(),
            connecting: Lock::new(()),
            watch: AtomicU32::new(Watch::Helper as u32),
            looks: AtomicU64::new(0),
            idle_looks: AtomicU64::new(0),
            looks_at_sleep: AtomicU64::new(0),
            helper_started: Lock::new(false),
            helper_wakes_at: AtomicU64::new(u64::MAX),
        })
    }

    /// Our slot.
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// Where other processes connect.
    pub fn listener(&self) -> &OwnedFd {
        &self.listener
    }

    /// Starts the helper thread, once.
    pub fn ensure_helper(&self, process: &'static Process) -> Result<(), i32> {
        let mut started = self.helper_started.lock();
        if !*started {
            helper::start(process).map_err(|e| e.raw_os_error().unwrap_or(libc::EAGAIN))?;
            *started = true;
        }
        Ok(())
    }

    /// The connection to whoever is at `slot` *now*: one to a predecessor that has died unnoticed is given up.
    pub fn to_present(&self, process: &'static Process, slot: u8) -> Option<&'static OutLink> {
        // SAFETY: null, or a leaked box.
        let existing = unsafe { self.out[usize::from(slot)].load(Acquire).as_ref() };
        if let Some(link) = existing
            && link.socket.peer_has_gone()
        {
            link.condemn(process);
        }
        self.to(process, slot)
    }

    /// The connection to the process at `slot`, made if there is none. `None` if nobody is there.
    pub fn to(&self, process: &'static Process, slot: u8) -> Option<&'static OutLink> {
        let entry = &self.out[usize::from(slot)];
        if let Some(link) = self.existing(slot) {
            return Some(link);
        }
        let failed_at = &self.failed_at[usize::from(slot)];
        let now = clock::now_ns();
        if now < failed_at.load(Relaxed).saturating_add(RETRY_CONNECT_NS) {
            return None;
        }
        let _one_at_a_time = self.connecting.lock();
        if let Some(link) = self.existing(slot) {
            return Some(link);
        }
        let Ok(link) = OutLink::connect(slot) else {
            failed_at.store(now, Relaxed);
            return None;
        };
        link.set_rouse(HELPER);
        let link: &'static OutLink = Box::leak(Box::new(link));
        let old = entry.swap(std::ptr::from_ref(link).cast_mut(), AcqRel);
        if old.is_null() {
            self.open.fetch_add(1, Release);
        }
        process.stats.add(ProcessCounter::Links, 1);
        // The helper must wait on the new socket, too.
        self.watch.store(Watch::Helper as u32, SeqCst);
        self.bell.ring();
        Some(link)
    }

    /// Takes a connection somebody made to us. Refused when there are too many. Only the helper calls this.
    pub fn admit(&self, socket: OwnedFd) {
        for entry in &self.ins {
            // SAFETY: null, or a leaked box.
            match unsafe { entry.load(Acquire).as_ref() } {
                None => {
                    entry.store(Box::into_raw(Box::new(InLink::new(socket))), Release);
                    self.open.fetch_add(1, Release);
                    return;
                }
                Some(link) if link.socket.is_closed() => return link.socket.open(socket),
                Some(_) => {}
            }
        }
    }

    /// Closes the sockets of connections that have ended. Only the helper calls this.
    pub fn reap(&self, process: &'static Process) {
        // SAFETY: null, or a leaked box.
        for link in self.out.iter().filter_map(|e| unsafe { e.load(Acquire).as_ref() }) {
            if link.socket.is_dead() && !link.socket.is_closed() {
                link.bury(process);
                link.socket.close();
            }
        }
        // SAFETY: as above.
        for link in self.ins.iter().filter_map(|e| unsafe { e.load(Acquire).as_ref() }) {
            if link.socket.is_dead() && !link.socket.is_closed() {
                link.bury();
                link.socket.close();
            }
        }
    }

    /// The living connection to the process at `slot`, if there is one.
    pub fn existing(&self, slot: u8) -> Option<&'static OutLink> {
        // SAFETY: null, or a leaked box.
        unsafe { self.out[usize::from(slot)].load(Acquire).as_ref() }.filter(|l| !l.socket.is_dead())
    }

    /// Connections to others.
    pub fn outs(&self) -> impl Iterator<Item = &'static OutLink> + '_ {
        // SAFETY: null, or a leaked box.
        self.out.iter().filter_map(|e| unsafe { e.load(Acquire).as_ref() }).filter(|l| !l.socket.is_dead())
    }

    /// Connections from others.
    pub fn ins(&self) -> impl Iterator<Item = &'static InLink> + '_ {
        // SAFETY: null, or a leaked box.
        self.ins.iter().filter_map(|e| unsafe { e.load(Acquire).as_ref() }).filter(|l| !l.socket.is_dead())
    }

    /// Moves everything that can move now. True if anything did.
    pub fn progress(&self, process: &'static Process) -> bool {
        if self.open.load(Acquire) == 0 {
            return false;
        }
        let mut did = false;
        for link in self.outs() {
            did |= link.progress(process);
        }
        for link in self.ins() {
            did |= link.progress(process);
        }
        did
    }

    /// The program's look at the rings, on every poll.
    #[inline]
    pub fn look(&self, process: &'static Process) {
        if self.open.load(Acquire) == 0 && process.pacer.is_none() {
            return;
        }
        let looks = self.looks.load(Relaxed) + 1;
        self.looks.store(looks, Relaxed);
        if self.progress(process) {
            self.idle_looks.store(0, Relaxed);
        } else if self.open.load(Relaxed) != 0 {
            let idle = self.idle_looks.load(Relaxed) + 1;
            self.idle_looks.store(idle, Relaxed);
            // What the program waits for is done by another process, which may be waiting for this very processor.
            if idle.is_multiple_of(YIELD_EVERY) {
                std::thread::yield_now();
            }
        }
        if self.watch.load(Relaxed) == Watch::Helper as u32
            && looks.wrapping_sub(self.looks_at_sleep.load(Relaxed)) > POLLING_AFTER
        {
            self.watch.store(Watch::Program as u32, SeqCst);
            self.set_rouse(AWAKE);
            // The helper must now look in regularly instead of sleeping until woken.
            self.bell.ring();
        }
    }

    /// Who looks after the rings.
    pub fn watch(&self) -> Watch {
        if self.watch.load(SeqCst) == Watch::Program as u32 { Watch::Program } else { Watch::Helper }
    }

    /// The program's thread is about to sleep: leaves everything to the helper, which may have to change its plans.
    pub fn program_sleeps(&self, process: &'static Process) {
        let was = self.watch();
        self.leave_to_helper();
        self.progress(process);
        if was == Watch::Program && process.next_due() < self.helper_wakes_at.load(SeqCst) {
            self.bell.ring();
        }
    }

    /// Leaves the rings to the helper: peers must wake it from now on. The caller looks once more afterwards.
    pub fn leave_to_helper(&self) {
        self.looks_at_sleep.store(self.looks.load(Relaxed), Relaxed);
        self.watch.store(Watch::Helper as u32, SeqCst);
        self.set_rouse(HELPER);
    }

    /// Something is due at `at`: wakes the helper if it means to sleep longer and nobody else is looking.
    pub fn due_earlier(&self, at: u64) {
        if at < self.helper_wakes_at.load(SeqCst) && self.watch() == Watch::Helper {
            self.bell.ring();
        }
    }

    fn set_rouse(&self, how: u64) {
        for link in self.outs() {
            link.set_rouse(how);
        }
        for link in self.ins() {
            link.set_rouse(how);
        }
    }
}
