//! When a recording that is kept in memory is worth keeping: `reg_latency_p99>1ms`, `cqe_error`, `SIGUSR1`.
//!
//! ```text
//! trigger    = any { "or" any }
//! any        = condition { "and" condition }
//! condition  = signal | figure | figure operator value
//! ```
//! A figure is looked at in each process, over the interval between two samples; alone it means "more than none".

mod figure;
mod parse;

use std::collections::HashMap;

use crate::model::{Model, ProcessModel};
use crate::sample::{ProcessId, Sample};

pub use figure::{Figure, Unit};
pub use parse::ParseError;

/// Processes whose failed completions are remembered.
const MAX_PROCESSES: usize = 1 << 16;

/// A condition on one figure, or a signal.
#[derive(Debug, Clone, PartialEq)]
pub enum Condition {
    /// The profiler itself received this signal.
    Signal(i32),
    /// A figure of some process compares so with the value.
    Figure(Figure, Operator, f64),
}

/// How a figure is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the operators of arithmetic")]
pub enum Operator {
    Above,
    AtLeast,
    Below,
    AtMost,
}

impl Operator {
    fn holds(self, left: f64, right: f64) -> bool {
        match self {
            Self::Above => left > right,
            Self::AtLeast => left >= right,
            Self::Below => left < right,
            Self::AtMost => left <= right,
        }
    }

    const fn sign(self) -> &'static str {
        match self {
            Self::Above => ">",
            Self::AtLeast => ">=",
            Self::Below => "<",
            Self::AtMost => "<=",
        }
    }
}

/// One trigger as it was written: alternatives of conditions that hold together.
#[derive(Debug, Clone, PartialEq)]
pub struct Trigger {
    text: String,
    any: Vec<Vec<Condition>>,
}

impl std::str::FromStr for Trigger {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Ok(Self { text: text.trim().to_owned(), any: parse::parse(text)? })
    }
}

impl Trigger {
    /// Signals it waits for.
    pub fn signals(&self) -> impl Iterator<Item = i32> + '_ {
        self.any.iter().flatten().filter_map(|condition| match condition {
            Condition::Signal(signal) => Some(*signal),
            Condition::Figure(..) => None,
        })
    }
}

/// Looks at triggers from sample to sample.
#[derive(Debug, Default)]
pub struct Watch {
    triggers: Vec<Trigger>,
    model: Model,
    failed_completions: HashMap<ProcessId, (u64, u64)>,
    lost: (u64, u64),
    /// Signals received since the last look.
    signals: Vec<i32>,
}

impl Watch {
    /// Watches for any of `triggers`.
    pub fn new(triggers: Vec<Trigger>) -> Self {
        Self { triggers, ..Self::default() }
    }

    /// Takes in a record; after a sample, or a signal, [`Watch::fired`] tells anew.
    pub fn take(&mut self, record: &crate::sample::Record) {
        self.model.push(record);
        if let crate::sample::Record::Sample(sample) = record {
            self.sampled(sample);
        }
    }

    /// The profiler received a signal.
    pub fn signalled(&mut self, signal: i32) {
        self.signals.push(signal);
    }

    fn sampled(&mut self, sample: &Sample) {
        for process in &sample.processes {
            let Some(data_path) = &process.data_path else { continue };
            if self.failed_completions.len() >= MAX_PROCESSES {
                self.failed_completions.clear();
            }
            let entry = self.failed_completions.entry(process.id).or_default();
            *entry = (entry.1, data_path.totals.cqe_errors);
        }
        let lost = &self.model.lost;
        let all = lost.ring_events.saturating_add(lost.kernel_returns).saturating_add(lost.unpaired);
        self.lost = (self.lost.1, all);
        self.model.forget_ended(1000);
    }

    /// Why the recording should be kept now, in the words of the trigger; forgets the signals.
    pub fn fired(&mut self) -> Option<String> {
        let signals = std::mem::take(&mut self.signals);
        let why = self.triggers.iter().find_map(|trigger| {
            let seen = trigger.any.iter().find_map(|all| self.together(all, &signals))?;
            Some(format!("trigger {}{seen}", trigger.text))
        });
        // What was counted up to here is told once.
        for entry in self.failed_completions.values_mut() {
            entry.0 = entry.1;
        }
        self.lost.0 = self.lost.1;
        why
    }

    /// Whether conditions hold at the same time, those on processes in the same one; then what was seen.
    fn together(&self, all: &[Condition], signals: &[i32]) -> Option<String> {
        let by_signal = all.iter().all(|condition| match condition {
            Condition::Signal(signal) => signals.contains(signal),
            Condition::Figure(..) => true,
        });
        if !by_signal {
            return None;
        }
        let figures: Vec<_> = all
            .iter()
            .filter_map(|condition| match condition {
                Condition::Figure(figure, operator, value) => Some((figure, *operator, *value)),
                Condition::Signal(_) => None,
            })
            .collect();
        if figures.is_empty() {
            return Some(String::new());
        }
        self.model.processes.values().filter(|p| !p.info.exited || self.is_fresh(p)).find_map(|process| {
            let seen: Option<Vec<String>> = figures
                .iter()
                .map(|(figure, operator, value)| {
                    let now = self.value(figure, process)?;
                    operator
                        .holds(now, *value)
                        .then(|| format!("{} {}", figure.name(), figure.unit().show(now)))
                })
                .collect();
            let words = seen?.join(", ");
            Some(format!(" ({words} in {} {})", process.info.comm, process.info.id.pid))
        })
    }

    /// A process that ended within the last interval still counts.
    fn is_fresh(&self, process: &ProcessModel) -> bool {
        process.info.t_ns >= self.model.interval.0
    }

    /// A figure of one process over the last interval; `None` where nothing of it happened.
    fn value(&self, figure: &Figure, process: &ProcessModel) -> Option<f64> {
        match figure {
            Figure::CqeError => {
                let (before, now) = self.failed_completions.get(&process.info.id)?;
                Some(now.saturating_sub(*before) as f64)
            }
            Figure::Lost => Some(self.lost.1.saturating_sub(self.lost.0) as f64),
            other => other.of(&self.model, process),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{
        Call, CallCount, DataPath, Header, Histogram, Process, ProcessSample, QueueCounts, Record,
    };

    const ID: ProcessId = ProcessId { pid: 7, start_ns: 1 };

    fn watch(text: &str) -> Watch {
        let mut watch = Watch::new(vec![text.parse().unwrap()]);
        watch.take(&Record::Header(Header { t_ns: 1, ..Header::default() }));
        watch.take(&Record::Process(Process { id: ID, comm: "app".into(), ..Process::default() }));
        watch
    }

    fn sample(t_s: u64, calls: u64, slow: u64, cqe_errors: u64) -> Record {
        let mut latency = Histogram::default();
        (0..calls - slow).for_each(|_| latency.record(10_000));
        (0..slow).for_each(|_| latency.record(5_000_000));
        let count = CallCount { entered: calls, returned: calls, ..CallCount::default() };
        let totals = QueueCounts { cqe_errors, ..QueueCounts::default() };
        Record::Sample(Sample {
            t_ns: t_s * 1_000_000_000,
            processes: vec![ProcessSample {
                id: ID,
                calls: [(Call::RegMr, count)].into(),
                latency_ns: [(Call::RegMr, latency)].into(),
                data_path: Some(DataPath { totals, ..DataPath::default() }),
            }],
            ..Sample::default()
        })
    }

    #[test]
    fn a_latency_fires_on_the_interval_it_was_exceeded_in_and_on_no_other() {
        let mut watch = watch("reg_latency_p99>1ms");
        watch.take(&sample(1, 1000, 0, 0));
        assert_eq!(watch.fired(), None);
        watch.take(&sample(2, 2000, 100, 0));
        let why = watch.fired().expect("one in ten was slow");
        assert!(
            why.starts_with("trigger reg_latency_p99>1ms (reg_latency_p99 ") && why.contains("app 7"),
            "{why}"
        );
        watch.take(&sample(3, 3000, 100, 0));
        assert_eq!(watch.fired(), None);
    }

    #[test]
    fn failed_completions_fire_once_for_each_interval_that_has_some() {
        let mut watch = watch("cqe_error");
        watch.take(&sample(1, 1, 0, 0));
        assert_eq!(watch.fired(), None);
        watch.take(&sample(2, 1, 0, 3));
        assert!(watch.fired().unwrap().contains("cqe_error 3"));
        assert_eq!(watch.fired(), None);
        watch.take(&sample(3, 1, 0, 3));
        assert_eq!(watch.fired(), None);
    }

    #[test]
    fn conditions_joined_by_and_must_hold_in_one_process_at_one_time() {
        let mut watch = watch("cqe_error and reg_rate>500/s");
        watch.take(&sample(1, 100, 0, 1));
        assert_eq!(watch.fired(), None, "too slow a rate");
        watch.take(&sample(2, 1100, 0, 1));
        assert_eq!(watch.fired(), None, "no new failures");
        watch.take(&sample(3, 2100, 0, 2));
        assert!(watch.fired().is_some());
    }

    #[test]
    fn a_signal_fires_when_it_came_and_only_then() {
        let mut watch = watch("SIGUSR1 or cqe_error");
        assert_eq!(watch.fired(), None);
        watch.signalled(libc::SIGUSR1);
        assert_eq!(watch.fired().as_deref(), Some("trigger SIGUSR1 or cqe_error"));
        assert_eq!(watch.fired(), None);
    }
}
