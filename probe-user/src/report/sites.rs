//! Calls by the place in the program they come from: what each costs, what it left alive.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::model::Model;
use crate::sample::{Call, ProcessId};

use super::build::Filter;
use super::by::{GROUPS_SCHEMA, Groups};
use super::table::{Align, Column};
use super::text::clean;
use super::units::{bytes, count, duration};

/// One kind of call from one place in one process.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct OfSite {
    /// Process id.
    pub pid: u32,
    /// Command name.
    pub comm: String,
    /// Host, in a merged trace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Kind of call, as traces spell it.
    pub call: Call,
    /// The caller; `null` where no stack was taken.
    pub site: Option<String>,
    /// All callers that are known, innermost first.
    pub stack: Vec<String>,
    /// Calls seen one by one, failed ones included.
    pub count: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Bytes registered.
    pub bytes: u64,
    /// Time in these calls.
    pub total_ns: u64,
    /// Time per call.
    pub mean_ns: u64,
    /// Objects made here that were alive at the end.
    pub live: u64,
    /// Bytes of the regions among them.
    pub live_bytes: u64,
}

/// By the place in the program that makes the call, most time first.
pub fn by_site(model: &Model, filter: &Filter) -> Groups {
    // Different addresses may be one place: a loop that was unrolled, a function of a shared library.
    let mut sites: BTreeMap<(ProcessId, Call, Vec<String>), OfSite> = BTreeMap::new();
    for process in model.processes.values().filter(|p| filter.wants(p.info.id.pid, &p.info.comm)) {
        for site in process.sites.iter() {
            let stack: Vec<_> =
                site.stack.iter().map(|address| frame(model, process.info.id, *address)).collect();
            let key = (process.info.id, site.call, stack.clone());
            let sum = sites.entry(key).or_insert_with(|| OfSite {
                pid: process.info.id.pid,
                comm: process.info.comm.clone(),
                host: process.info.host.clone(),
                call: site.call,
                site: caller(model, process.info.id, &site.stack),
                stack,
                count: 0,
                failed: 0,
                bytes: 0,
                total_ns: 0,
                mean_ns: 0,
                live: 0,
                live_bytes: 0,
            });
            sum.count += site.count;
            sum.failed += site.failed;
            sum.bytes = sum.bytes.saturating_add(site.bytes);
            sum.total_ns = sum.total_ns.saturating_add(site.total_ns);
            sum.mean_ns = sum.total_ns.checked_div(sum.count).unwrap_or(0);
            sum.live += site.live;
            sum.live_bytes = sum.live_bytes.saturating_add(site.live_bytes);
        }
    }
    let mut sites: Vec<OfSite> = sites.into_values().collect();
    sites.sort_by(|a, b| {
        let key = |s: &OfSite| (std::cmp::Reverse(s.total_ns), s.pid, s.call);
        key(a).cmp(&key(b)).then_with(|| a.stack.cmp(&b.stack))
    });
    Groups { schema: GROUPS_SCHEMA.to_owned(), sites, ..Groups::default() }
}

/// The place in the program that a call comes from: the innermost frame that is no function of libibverbs' headers.
pub fn caller(model: &Model, id: ProcessId, stack: &[u64]) -> Option<String> {
    callers(model, id, stack).next()
}

/// The same place, the one that called it, and so on outwards.
pub fn callers<'m>(model: &'m Model, id: ProcessId, stack: &'m [u64]) -> impl Iterator<Item = String> + 'm {
    let wraps = |address: &u64| model.symbols.get(&(id, *address)).is_some_and(|symbol| symbol.is_wrapper());
    let from = stack.iter().position(|address| !wraps(address)).unwrap_or(0);
    stack.iter().skip(from).map(move |address| frame(model, id, *address))
}

/// A frame in words, as far as the trace knows the address.
pub fn frame(model: &Model, id: ProcessId, address: u64) -> String {
    model.symbols.get(&(id, address)).map_or_else(|| format!("{address:#x}"), |symbol| symbol.words())
}

pub(super) const COLUMNS: [Column; 10] = [
    Column("pid", Align::Right, 4),
    Column("process", Align::Left, 2),
    Column("call", Align::Left, 0),
    Column("call site", Align::Left, 0),
    Column("count", Align::Right, 0),
    Column("failed", Align::Right, 3),
    Column("mean", Align::Right, 1),
    Column("total", Align::Right, 0),
    Column("live", Align::Right, 0),
    Column("live bytes", Align::Right, 1),
];

/// Widest call site in a table; the stack in full is in the JSON.
const MAX_SITE_COLUMNS: usize = 60;

pub(super) fn row(site: &OfSite) -> Vec<String> {
    let call =
        serde_json::to_value(site.call).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default();
    let place = site.site.as_deref().map_or_else(|| "unknown".to_owned(), clean);
    let short: String = place.chars().take(MAX_SITE_COLUMNS).collect();
    vec![
        site.pid.to_string(),
        clean(&site.comm),
        call,
        if short.len() < place.len() { short + "…" } else { short },
        count(site.count),
        count(site.failed),
        duration(site.mean_ns),
        duration(site.total_ns),
        count(site.live),
        if site.live_bytes > 0 { bytes(site.live_bytes) } else { String::new() },
    ]
}
