//! Tables: which there are, their rows and columns, and how each is sorted, filtered and scrolled.

mod columns;
mod row;
mod state;

pub use columns::{Column, columns, fields, seen};
pub use row::{Row, RowKey, keys, row};
pub use state::{Group, TableState};

use super::page::Page;

/// A table of the dashboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TableId {
    /// Processes, by all they do.
    Processes,
    /// Processes, by what they register.
    Registrants,
    /// Ranges registered again and again.
    Ranges,
    /// Registrations by the place in the program they come from.
    Sites,
    /// Registrations by size.
    Sizes,
    /// Queue pairs.
    Qps,
    /// Queue pairs, by the work posted on them.
    Posting,
    /// Completion queues.
    Cqs,
    /// Shared receive queues.
    Srqs,
    /// What is wrong.
    Findings,
    /// Reference workloads.
    Workloads,
    /// Counters of devices and ports.
    Counters,
    /// Probes.
    Probes,
}

impl TableId {
    /// All tables.
    pub const ALL: [Self; 13] = [
        Self::Processes,
        Self::Registrants,
        Self::Ranges,
        Self::Sites,
        Self::Sizes,
        Self::Qps,
        Self::Posting,
        Self::Cqs,
        Self::Srqs,
        Self::Findings,
        Self::Workloads,
        Self::Counters,
        Self::Probes,
    ];

    /// Name for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::Processes => "Processes",
            Self::Registrants => "Registration by process",
            Self::Ranges => "Ranges registered most often",
            Self::Sites => "Registration by call site",
            Self::Sizes => "Registration by size",
            Self::Qps => "Queue pairs",
            Self::Posting => "Queue pairs by work posted",
            Self::Cqs => "Completion queues",
            Self::Srqs => "Shared receive queues",
            Self::Findings => "Findings",
            Self::Workloads => "Workloads",
            Self::Counters => "Counters",
            Self::Probes => "Probes",
        }
    }

    /// The tables of a page, the first one shown first.
    pub fn of(page: Page) -> &'static [Self] {
        match page {
            Page::Overview => &[Self::Processes],
            Page::Registration => &[Self::Registrants, Self::Ranges, Self::Sites, Self::Sizes],
            Page::Queues => &[Self::Qps, Self::Cqs, Self::Srqs],
            Page::DataPath => &[Self::Posting, Self::Cqs],
            Page::Findings => &[Self::Findings],
            Page::Workloads => &[Self::Workloads],
            Page::Nic => &[Self::Counters],
            Page::Probes => &[Self::Probes],
        }
    }

    /// The column a table is first sorted by, and whether largest come first.
    pub fn first_order(self) -> (&'static str, bool) {
        match self {
            Self::Processes => ("calls.rate", true),
            Self::Registrants => ("reg.count", true),
            Self::Ranges => ("range.uses", true),
            Self::Sites => ("site.total", true),
            Self::Sizes => ("size.class", false),
            Self::Qps => ("pid", false),
            Self::Posting => ("wr.count", true),
            Self::Cqs => ("cq.qps", true),
            Self::Srqs => ("srq.qps", true),
            Self::Findings => ("finding.severity", false),
            Self::Workloads => ("workload", false),
            Self::Counters => ("counter.rate", true),
            Self::Probes => ("probe.verdict", false),
        }
    }
}
