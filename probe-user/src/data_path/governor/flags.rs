//! Asking a process for which operations it calls the sites of our libraries.

use probe_common::site::Rates;
use rnic_emu::stats::Asked;

use crate::tap::Tap;

/// The libraries of ours in one process.
#[derive(Default)]
pub struct Flags {
    tap: Option<Tap>,
    emulator: Option<Asked>,
}

impl Flags {
    /// Looks for libraries that were not found yet; true where one was. The tap's sites are only of interest
    /// with `taps`: it counts by itself.
    pub fn look(&mut self, pid: u32, taps: bool) -> bool {
        let mut found = false;
        if taps && self.tap.is_none() {
            self.tap = Tap::of(pid).ok().flatten();
            found |= self.tap.is_some();
        }
        if self.emulator.is_none() {
            self.emulator = Asked::of(pid).ok();
            found |= self.emulator.is_some();
        }
        found
    }

    /// True where there is something to ask.
    pub fn any(&self) -> bool {
        self.tap.is_some() || self.emulator.is_some()
    }

    /// Asks for so many. A process that is gone need not answer.
    pub fn ask(&self, rates: Rates) {
        if let Some(tap) = &self.tap {
            tap.ask(rates);
        }
        if let Some(emulator) = &self.emulator {
            let _ = emulator.ask(rates);
        }
    }

    /// Leaves the process as it would be without us.
    pub fn restore(&self) {
        if let Some(tap) = &self.tap {
            tap.ask(Rates::NONE);
        }
        if let Some(emulator) = &self.emulator {
            let _ = emulator.ask(Rates::ALL);
        }
    }
}
