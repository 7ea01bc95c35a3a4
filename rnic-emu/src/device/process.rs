//! The process as the owner of emulated devices: its place among the processes of the host, its tables, its helper.

use super::config::Config;
use crate::engine::pacing::{self, Pacer};
use crate::engine::timers::Timers;
use crate::object::key::KeyTable;
use crate::object::qp_table::QpTable;
use crate::stats::StatsFile;
use crate::sys::fork;
use crate::sys::lock::Lock;
use crate::wire::Wire;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

/// Everything of the device that is one per process.
pub struct Process {
    /// Settings.
    pub config: Config,
    /// Counters.
    pub stats: &'static StatsFile,
    /// Queue pairs by number.
    pub qps: QpTable,
    /// Memory regions and windows by key.
    pub keys: KeyTable,
    /// Queue pairs with something due later.
    pub timers: Timers,
    /// The timing model, if the devices are to take a NIC's time.
    pub pacer: Option<Pacer>,
    /// Connections to other processes, and the helper thread.
    pub wire: Wire,
    next_handle: AtomicU32,
}

/// The process' devices; null before the first open and in a forked child.
static CURRENT: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());
static OPENING: Lock<()> = Lock::new(());

extern "C" fn in_forked_child() {
    CURRENT.store(std::ptr::null_mut(), Release);
    OPENING.break_open();
    fork::close_all();
    let (first, last) = crate::sites::code_range();
    fork::refresh_code(first, last);
}

impl Process {
    /// The process' devices, set up on first use.
    ///
    /// # Errors
    /// The errno to report: EMFILE, ENOMEM, or EAGAIN when all places on this host are taken.
    pub fn current_or_new() -> Result<&'static Self, i32> {
        let _one_at_a_time = OPENING.lock();
        if let Some(p) = Self::current() {
            return Ok(p);
        }
        let errno = |e: std::io::Error| e.raw_os_error().unwrap_or(libc::ENOMEM);
        let config = super::list::config();
        let stats = Box::leak(Box::new(StatsFile::create(config.devices).map_err(errno)?));
        let wire = Wire::new().map_err(errno)?;
        let process: &'static Self = Box::leak(Box::new(Self {
            config,
            stats,
            qps: QpTable::new(wire.slot()),
            keys: KeyTable::new(),
            timers: Timers::new(),
            pacer: super::list::profile().map(|p| Pacer::new(p.clone(), config.speed)),
            wire,
            next_handle: AtomicU32::new(1),
        }));
        fork::install(in_forked_child);
        CURRENT.store(std::ptr::from_ref(process).cast_mut(), Release);
        Ok(process)
    }

    /// The process' devices if any are open.
    #[inline]
    pub fn current() -> Option<&'static Self> {
        // SAFETY: either null or a leaked box.
        unsafe { CURRENT.load(Acquire).as_ref() }
    }

    /// Whether `process` is the one running now: it is not in a forked child of its owner.
    #[inline]
    pub fn is_current(process: &Self) -> bool {
        std::ptr::eq(process, CURRENT.load(Acquire))
    }

    /// Does what is due: events of the timing model, then timers. True if there was anything.
    pub fn run_due(&'static self, now: u64) -> bool {
        let paced = self.pacer.as_ref().is_some_and(|p| p.advance(self, now));
        paced | self.timers.run_due(self, now)
    }

    /// The same on a poll, where nothing may be due and the clock need not be read. Returns the time if it was.
    #[inline]
    pub fn run_due_on_poll(&'static self) -> u64 {
        match &self.pacer {
            None => {
                self.timers.run(self);
                0
            }
            Some(_) => {
                let now = crate::sys::clock::now_ns();
                if self.run_due(now) { pacing::lend(now) } else { now }
            }
        }
    }

    /// When the next thing is due; `u64::MAX` for never.
    pub fn next_due(&self) -> u64 {
        self.timers.next_due().min(self.pacer.as_ref().map_or(u64::MAX, Pacer::next_due))
    }

    /// A number for a PD, SRQ or other object that needs one.
    pub fn handle(&self) -> u32 {
        self.next_handle.fetch_add(1, Relaxed)
    }
}
