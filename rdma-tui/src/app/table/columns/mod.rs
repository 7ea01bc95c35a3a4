//! The columns of every table: name in the filter language, heading, unit, and how the figure is read from the model.
//!
//! Figures come from the accessors of `probe_user::model` that the report uses too, so both say the same.

mod around;
mod memory;
mod posting;
mod process;
mod queue;
mod sites;

use std::sync::LazyLock;

use probe_user::model::ProcessModel;
use probe_user::report::{Latency, latency, unavailable};
use probe_user::sample::{Call, Verdict};

use super::super::filter::Field;
use super::super::format::Unit;
use super::super::totals::REGISTRATIONS;
use super::super::value::Value;
use super::super::world::World;
use super::{Row, TableId};
use around::{COUNTERS, FINDINGS, PROBES, WORKLOADS};
use memory::{RANGES, REGISTRANTS, SIZES};
use posting::POSTING;
pub use posting::seen;
use process::PROCESSES;
use queue::{CQS, QPS, SRQS};
use sites::SITES;

/// A column.
pub struct Column {
    /// Name in the filter language and in exports.
    pub key: &'static str,
    /// Heading.
    pub title: &'static str,
    /// Unit of its figures; `None` for words.
    pub unit: Option<Unit>,
    /// Width in columns of the screen; the first column of words may get more.
    pub width: u16,
    /// The higher, the sooner it gives way on a narrow screen; 0 always stays.
    pub sheds: u8,
    /// Its figures name things: sorted from the smallest first.
    pub names: bool,
    /// One line for people.
    pub explain: &'static str,
    /// Reads the cell.
    pub get: for<'w> fn(&'w World, &Row<'w>) -> Value<'w>,
}

impl std::fmt::Debug for Column {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Column").field("key", &self.key).finish_non_exhaustive()
    }
}

type Get = for<'w> fn(&'w World, &Row<'w>) -> Value<'w>;

const fn words(
    key: &'static str,
    title: &'static str,
    width: u16,
    sheds: u8,
    explain: &'static str,
    get: Get,
) -> Column {
    Column { key, title, unit: None, width, sheds, names: true, explain, get }
}

const fn figure(
    key: &'static str,
    title: &'static str,
    unit: Unit,
    width: u16,
    sheds: u8,
    explain: &'static str,
    get: Get,
) -> Column {
    let names = matches!(unit, Unit::Id | Unit::Address);
    Column { key, title, unit: Some(unit), width, sheds, names, explain, get }
}

/// The columns of `table`.
pub fn columns(table: TableId) -> &'static [Column] {
    match table {
        TableId::Processes => PROCESSES,
        TableId::Registrants => REGISTRANTS,
        TableId::Ranges => RANGES,
        TableId::Sites => SITES,
        TableId::Sizes => SIZES,
        TableId::Qps => QPS,
        TableId::Posting => POSTING,
        TableId::Cqs => CQS,
        TableId::Srqs => SRQS,
        TableId::Findings => FINDINGS,
        TableId::Workloads => WORKLOADS,
        TableId::Counters => COUNTERS,
        TableId::Probes => PROBES,
    }
}

/// The same columns as the filter language sees them.
pub fn fields(table: TableId) -> &'static [Field] {
    static ALL: LazyLock<Vec<Vec<Field>>> = LazyLock::new(|| {
        let field = |c: &Column| Field { name: c.key, unit: c.unit };
        TableId::ALL.iter().map(|table| columns(*table).iter().map(field).collect()).collect()
    });
    &ALL[table as usize]
}

fn process<'w>(row: &Row<'w>) -> Option<&'w ProcessModel> {
    match *row {
        Row::Process(p)
        | Row::Qp(p, _)
        | Row::Cq(p, _, _)
        | Row::Srq(p, _, _)
        | Row::Site(p, _)
        | Row::Range { process: p, .. } => Some(p),
        _ => None,
    }
}

fn of_process<'w>(row: &Row<'w>, f: impl FnOnce(&'w ProcessModel) -> Value<'w>) -> Value<'w> {
    process(row).map_or(Value::Missing, f)
}

/// A figure of a process that rests on calls of some kinds: missing where no probe could see them, as in the report.
fn observed<'w>(
    world: &'w World,
    row: &Row<'w>,
    calls: &[Call],
    f: impl FnOnce(&'w ProcessModel) -> u64,
) -> Value<'w> {
    match process(row) {
        Some(p) if unavailable(&world.model, p, calls).is_none() => Value::count(f(p)),
        _ => Value::Missing,
    }
}

/// Calls per second of some kinds over the last interval.
fn rate(world: &World, process: &ProcessModel, wanted: impl Fn(Call) -> bool) -> f64 {
    process
        .calls
        .iter()
        .filter(|(call, _)| wanted(**call))
        .filter_map(|(_, stats)| world.model.interval_of(stats))
        .map(|interval| interval.calls_per_second())
        .sum()
}

fn quantile(row: &Row<'_>, of: impl FnOnce(&Latency) -> Option<u64>) -> Value<'static> {
    let latency = process(row).map(|p| latency(&p.latency(&REGISTRATIONS), p.longest_ns(&REGISTRATIONS)));
    Value::of_count(latency.as_ref().and_then(of))
}

const PID: Column = figure("pid", "PID", Unit::Id, 7, 0, "process id", |_, r| {
    of_process(r, |p| Value::count(p.info.id.pid.into()))
});
const COMM: Column = words("comm", "PROCESS", 16, 0, "command name, as the kernel keeps it", |_, r| {
    of_process(r, |p| Value::text(&p.info.comm))
});

/// A verdict in one or two words.
pub fn verdict_word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Live => "live",
        Verdict::Sampled { .. } => "sampled",
        Verdict::NotHere { .. } => "not here",
        Verdict::Denied { .. } => "denied",
        Verdict::Broken { .. } => "broken",
        Verdict::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_starts_in_an_order_it_has_and_names_no_field_twice() {
        for table in TableId::ALL {
            let columns = columns(table);
            for (i, column) in columns.iter().enumerate() {
                assert!(columns[..i].iter().all(|c| c.key != column.key), "{} twice", column.key);
                assert!(!column.explain.is_empty());
            }
            let (first, _) = table.first_order();
            assert!(columns.is_empty() || columns.iter().any(|c| c.key == first), "{table:?}: {first}");
            assert_eq!(fields(table).len(), columns.len());
        }
    }
}
