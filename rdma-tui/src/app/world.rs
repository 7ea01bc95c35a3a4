//! Everything the dashboard knows at one moment: the model, its history, and where the records come from.

use std::collections::VecDeque;

use probe_user::doctor::{self, Finding};
use probe_user::model::Model;
use probe_user::sample::{Event, Record};

use super::counters::Counters;
use super::history::History;
use super::workload::Board;

/// Latest control-path calls kept for the detail views.
const EVENTS_KEPT: usize = 4096;

/// Where the records come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    /// From probes, as things happen.
    #[default]
    Live,
    /// From a trace file.
    Replay,
}

/// How the source of records fares.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Status {
    /// Nothing has come yet.
    #[default]
    Waiting,
    /// A trace is being read.
    Loading,
    /// Records come as they happen, or a replay plays.
    Running,
    /// A replay stands still.
    Standing,
    /// Nothing more will come: why.
    Ended(String),
    /// It broke: what happened and what to do.
    Failed(String),
}

/// The state of collection.
#[derive(Debug, Clone, Default)]
pub struct Source {
    /// Live or replay.
    pub origin: Origin,
    /// How it fares.
    pub status: Status,
    /// What is watched: `whole host`, `pid 17`, a command, a file name.
    pub target: String,
    /// Samples taken in so far: the place in a replay.
    pub moment: u64,
    /// Samples of the whole trace, once its end was reached.
    pub moments: Option<u64>,
    /// Share of the file read while loading, 0–1.
    pub loaded: Option<f64>,
    /// Records that did not fit between collector and dashboard.
    pub dropped_records: u64,
    /// What the reader noticed (cut off line, missing footer, unknown kinds).
    pub notes: Vec<String>,
    /// The file being recorded to, while recording.
    pub recording: Option<String>,
}

/// What the dashboard shows.
#[derive(Debug, Clone, Default)]
pub struct World {
    /// What the records so far tell.
    pub model: Model,
    /// How figures moved.
    pub history: History,
    /// How device counters move.
    pub counters: Counters,
    /// The latest calls, oldest first.
    pub events: VecDeque<Event>,
    /// Where the records come from.
    pub source: Source,
    /// Reference workloads and their results.
    pub workloads: Board,
    /// Changes whenever anything above does.
    pub generation: u64,
    /// Records taken in.
    records: u64,
    /// What is wrong, the worst first, as it was after so many records.
    findings: Option<(u64, Vec<Finding>)>,
}

impl World {
    /// A world of nothing yet.
    pub fn new(origin: Origin, target: impl Into<String>) -> Self {
        let source = Source { origin, target: target.into(), ..Source::default() };
        Self { source, ..Self::default() }
    }

    /// Takes in the next record.
    pub fn push(&mut self, record: &Record) {
        self.touch();
        self.records += 1;
        let before = self.model.interval.1;
        self.model.push(record);
        match record {
            Record::Header(header) => self.counters.observe(&self.model, header.t_ns),
            Record::Event(event) => {
                if self.events.len() >= EVENTS_KEPT {
                    self.events.pop_front();
                }
                self.events.push_back(event.clone());
            }
            // One moment may come in several samples, when it would be too long a line; the first is a point in
            // history, and what the others bring is in the next.
            Record::Sample(_) if self.model.interval.1 > before => {
                self.source.moment += 1;
                self.history.observe(&self.model);
                self.counters.observe(&self.model, self.model.interval.1);
            }
            _ => {}
        }
    }

    /// Marks a change that no record brought.
    pub fn touch(&mut self) {
        self.generation += 1;
    }

    /// Looks for what is wrong now. It takes milliseconds on a large host: for who collects, never for who draws.
    pub fn diagnose(&mut self) {
        let findings = doctor::find(&self.model);
        self.found(self.records, findings);
    }

    /// Records taken in so far; names the moment that a diagnosis is of.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Takes over what is wrong after `records` records, unless something newer is known; says whether that is news.
    pub fn found(&mut self, records: u64, findings: Vec<Finding>) -> bool {
        match &mut self.findings {
            Some((known, _)) if *known > records => return false,
            Some((known, same)) if *same == findings => {
                *known = records;
                return false;
            }
            known => *known = Some((records, findings)),
        }
        self.touch();
        true
    }

    /// Whether anything was judged yet.
    pub fn is_judged(&self) -> bool {
        self.findings.is_some()
    }

    /// What is wrong, the worst first, as of the latest sample.
    pub fn findings(&self) -> &[Finding] {
        self.findings.as_ref().map(|(_, findings)| findings.as_slice()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_diagnosis_does_not_replace_a_newer_one() {
        let mut world = World::new(Origin::Live, "test");
        assert!(!world.is_judged());
        let findings = doctor::find(&world.model);
        assert!(world.found(7, findings.clone()) && world.is_judged());
        let shown = world.generation;
        assert!(!world.found(6, Vec::new()) && !world.found(8, findings));
        assert_eq!((world.findings.as_ref().map(|(at, _)| *at), world.generation), (Some(8), shown));
    }
}
