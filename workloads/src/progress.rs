//! How far a long run has come: a line on the terminal, or an object per step for a program that shows it its own way.

use serde::{Deserialize, Serialize};
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use crate::measure::{Sample, Side};

/// Nothing is shown on a terminal for work that is over sooner.
const QUIET: Duration = Duration::from_secs(2);
/// Time between two updates of a terminal's line.
const PACE: Duration = Duration::from_millis(200);

/// How progress is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// A line on standard error where that is a terminal, else nothing
    #[default]
    Auto,
    /// One JSON object per step on standard error
    Json,
}

/// One step of a long run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What is done now, in words.
    pub progress: String,
    /// The run that has just ended, where one has.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
}

/// Figures of one timed run of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Title of the comparison.
    pub comparison: String,
    /// Which of its two variants.
    pub side: Side,
    /// Its key.
    pub variant: String,
    /// Operations per second.
    pub ops_per_s: f64,
    /// Median latency, ns; absent where operations have none of their own.
    pub p50_ns: Option<u64>,
}

impl Run {
    /// The figures of `sample`.
    pub fn of(comparison: &str, side: Side, variant: &str, sample: &Sample) -> Run {
        Run {
            comparison: comparison.to_owned(),
            side,
            variant: variant.to_owned(),
            ops_per_s: sample.rate(),
            p50_ns: (sample.latency.count() > 0).then(|| sample.latency.quantile(0.5)),
        }
    }
}

/// Shows steps on standard error.
pub struct Progress {
    started: Instant,
    shown: Option<Instant>,
    mode: Mode,
    terminal: bool,
}

impl Progress {
    /// Starts the clock.
    pub fn new(mode: Mode) -> Progress {
        Progress { started: Instant::now(), shown: None, mode, terminal: std::io::stderr().is_terminal() }
    }

    /// Shows `text`, if the work has taken long enough for anyone to wonder.
    pub fn say(&mut self, text: &str) {
        self.step(&Step { progress: text.to_owned(), run: None });
    }

    /// Shows a step.
    pub fn step(&mut self, step: &Step) {
        // Wherever it goes, a reader that went away is no reason to stop.
        if self.mode == Mode::Json {
            if let Ok(line) = serde_json::to_string(step) {
                let _ = writeln!(std::io::stderr(), "{line}");
            }
            return;
        }
        let due = self.shown.map_or(self.started.elapsed() >= QUIET, |shown| shown.elapsed() >= PACE);
        if self.terminal && due {
            self.shown = Some(Instant::now());
            let seconds = self.started.elapsed().as_secs();
            let _ = write!(std::io::stderr(), "\r\x1b[2K{} ({seconds} s)", step.progress);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_with_and_without_figures_reads_back() {
        let mut step = Step { progress: "inline: run 2 of 20".to_owned(), run: None };
        let text = serde_json::to_string(&step).unwrap();
        assert_eq!(text, r#"{"progress":"inline: run 2 of 20"}"#);
        assert_eq!(serde_json::from_str::<Step>(&text).unwrap(), step);
        let sample = Sample { ops: 500, elapsed: Duration::from_secs(2), ..Sample::default() };
        step.run = Some(Run::of("inline or not", Side::Optimised, "inline", &sample));
        let text = serde_json::to_string(&step).unwrap();
        assert!(text.contains(r#""side":"optimised""#) && text.contains(r#""ops_per_s":250.0"#), "{text}");
        assert_eq!(serde_json::from_str::<Step>(&text).unwrap(), step);
    }
}
