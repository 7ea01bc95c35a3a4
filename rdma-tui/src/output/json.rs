//! What the dashboard shows, for programs.

use serde_json::{Map, Value as Json, json};

use crate::app::table::{TableId, TableState, columns, row};
use crate::app::totals;
use crate::app::value::Value;
use crate::app::world::{Status, World};

/// Rows given of each table; a program that wants all reads the report.
pub const MAX_ROWS: usize = 10_000;

/// Everything: source, totals, every table in its first order.
pub fn everything(world: &World) -> Json {
    let tables: Map<String, Json> = TableId::ALL
        .iter()
        .map(|id| {
            let mut state = TableState::new(*id);
            state.refresh(world);
            (name(*id).to_owned(), table(&state, world))
        })
        .collect();
    json!({
        "schema": "rdma-tui/1",
        "host": world.model.header.host,
        "target": world.source.target,
        "source": source(world),
        "lost": world.model.lost(),
        "totals": summary(world),
        "tables": tables,
    })
}

/// The name of a table among [`everything`].
pub fn name(table: TableId) -> &'static str {
    match table {
        TableId::Processes => "processes",
        TableId::Registrants => "registration",
        TableId::Ranges => "ranges",
        TableId::Sites => "sites",
        TableId::Sizes => "sizes",
        TableId::Qps => "qps",
        TableId::Posting => "posting",
        TableId::Cqs => "cqs",
        TableId::Srqs => "srqs",
        TableId::Findings => "findings",
        TableId::Workloads => "workloads",
        TableId::Counters => "counters",
        TableId::Probes => "probes",
    }
}

/// A table's rows as objects keyed by the columns' names, in the order and under the filter of `state`.
pub fn table(state: &TableState, world: &World) -> Json {
    let rows = state.rows.iter().take(MAX_ROWS).filter_map(|key| {
        let row = row(key, world)?;
        let cells = columns(state.table).iter().map(|column| {
            let cell = match (column.get)(world, &row) {
                Value::Text(text) => Json::String(text.into_owned()),
                Value::Number(n) if n.fract() == 0.0 && n.abs() < 9e15 => json!(n as i64),
                Value::Number(n) => json!(n),
                Value::Missing => Json::Null,
            };
            (column.key.to_owned(), cell)
        });
        Some(Json::Object(cells.collect()))
    });
    rows.collect()
}

fn source(world: &World) -> Json {
    let source = &world.source;
    let (status, why) = match &source.status {
        Status::Waiting => ("waiting", None),
        Status::Loading => ("loading", None),
        Status::Running => ("running", None),
        Status::Standing => ("standing", None),
        Status::Ended(why) => ("ended", Some(why)),
        Status::Failed(why) => ("failed", Some(why)),
    };
    json!({
        "status": status,
        "why": why,
        "samples": source.moment,
        "duration_ns": world.model.duration_ns(),
        "dropped_records": source.dropped_records,
        "notes": source.notes,
    })
}

fn summary(world: &World) -> Json {
    let sums = totals::of(&world.model);
    let latency = totals::registration_quantiles(&world.model);
    json!({
        "processes": world.model.processes.len(),
        "processes_running": sums.alive,
        "calls": sums.calls,
        "qps_live": sums.qps,
        "cqs_live": sums.cqs,
        "mrs_live": sums.mrs,
        "mr_bytes_live": sums.mr_bytes,
        "registration": {
            "count": sums.registrations.entered,
            "failed": sums.registrations.failed,
            "bytes": sums.registrations.bytes,
            "latency_ns": {
                "p50": latency.p50,
                "p90": latency.p90,
                "p99": latency.p99,
                "max": latency.max,
            },
        },
        "deregistration": { "count": sums.deregistrations.entered },
    })
}
