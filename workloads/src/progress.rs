//! One line on the terminal that says how far a long run has come.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// Nothing is shown for work that is over sooner.
const QUIET: Duration = Duration::from_secs(2);
/// Time between two updates.
const PACE: Duration = Duration::from_millis(200);

/// A progress line on standard error; silent when that is not a terminal.
pub struct Progress {
    started: Instant,
    shown: Option<Instant>,
    terminal: bool,
}

impl Progress {
    /// Starts the clock.
    pub fn new() -> Progress {
        Progress { started: Instant::now(), shown: None, terminal: std::io::stderr().is_terminal() }
    }

    /// Shows `text`, if the work has taken long enough for anyone to wonder.
    pub fn say(&mut self, text: &str) {
        let due = self.shown.map_or(self.started.elapsed() >= QUIET, |shown| shown.elapsed() >= PACE);
        if self.terminal && due {
            self.shown = Some(Instant::now());
            // A terminal that went away is no reason to stop.
            let _ = write!(std::io::stderr(), "\r\x1b[2K{text} ({} s)", self.started.elapsed().as_secs());
        }
    }
}

impl Default for Progress {
    fn default() -> Progress {
        Progress::new()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}
