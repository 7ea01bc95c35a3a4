//! Metrics as Prometheus reads them, OpenMetrics or its older text format: the totals of a recording, or of a live model.

mod queues;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use crate::model::{Model, ProcessModel, bounds};
use crate::sample::{Call, CallCount, Histogram};

use super::perfetto::call_name;

/// Processes with labels of their own, those with most control calls; the rest is summed as `comm="[other]"`, so that a
/// host that starts processes all day does not grow Prometheus' index for ever.
const MAX_PROCESSES: usize = 200;

/// Upper bounds of the histogram, as powers of two of ns: 1 µs to 17 s in factors of four. They are bounds of the
/// recorded buckets too, so that every count is exact.
const BOUNDS: std::ops::RangeInclusive<u32> = 10..=34;

/// The two formats there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsFormat {
    /// OpenMetrics 1.0, for those who say that they understand it.
    OpenMetrics,
    /// Prometheus' text format 0.0.4, which everybody understands.
    Prometheus,
}

impl MetricsFormat {
    /// What HTTP calls it.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Writes the metrics of `model`.
///
/// # Errors
/// Those of `out`.
pub fn write(model: &Model, format: MetricsFormat, out: &mut dyn Write) -> io::Result<()> {
    let series = series(model);
    let mut text = Text { format, text: String::new() };
    counter(&mut text, &series, "rdma_calls", "Control-path calls entered.", |s| s.count.entered);
    counter(&mut text, &series, "rdma_calls_failed", "Control-path calls that failed.", |s| s.count.failed);
    let of_bytes: BTreeMap<_, _> = series.iter().filter(|(_, s)| s.count.bytes > 0).collect();
    family(&mut text, "rdma_call_bytes", "counter", Some("bytes"), "Bytes registered or pinned.");
    for (labels, s) in of_bytes {
        line(&mut text, "rdma_call_bytes_total", labels, "", &s.count.bytes.to_string());
    }
    durations(&mut text, &series);
    gauges(&mut text, model);
    let named = ranked(model).into_iter().enumerate().map(|(rank, process)| {
        let (pid, comm) = name(process, rank);
        (pid, comm, process)
    });
    queues::write(&mut text, named);
    let lost = model.lost();
    family(&mut text, "rdma_probe_lost", "counter", None, "What the profiler missed.");
    for (what, n) in [
        ("ring_events", lost.ring_events),
        ("unpaired", lost.unpaired),
        ("kernel_returns", lost.kernel_returns),
        ("uncounted", lost.uncounted),
    ] {
        let _ = writeln!(text, "rdma_probe_lost_total{{what=\"{what}\"}} {n}");
    }
    let help = "Counters of devices and their ports, by the kernel's names.";
    family(&mut text, "rdma_device_port_value", "gauge", None, help);
    for device in model.devices.values() {
        for port in &device.ports {
            for (name, value) in &port.counters {
                let _ = writeln!(
                    text,
                    "rdma_device_port_value{{device=\"{}\",port=\"{}\",counter=\"{}\"}} {value}",
                    escaped(&device.name),
                    port.number,
                    escaped(name)
                );
            }
        }
    }
    if format == MetricsFormat::OpenMetrics {
        text.text.push_str("# EOF\n");
    }
    out.write_all(text.text.as_bytes())
}

/// Labels of one process (or of the rest) and one call.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Labels {
    pid: String,
    comm: String,
    call: String,
}

#[derive(Debug, Default)]
struct Series {
    count: CallCount,
    latency: Histogram,
}

/// Processes, those that did most first.
fn ranked(model: &Model) -> Vec<&ProcessModel> {
    let busy = |p: &ProcessModel| {
        let calls = p.calls.values().map(|c| c.count().entered).fold(0, u64::saturating_add);
        calls.saturating_add(p.data_path.totals.counts().all_wrs())
    };
    let mut ranked: Vec<&ProcessModel> = model.processes.values().collect();
    ranked.sort_by_cached_key(|p| (std::cmp::Reverse(busy(p)), p.info.id));
    ranked
}

fn series(model: &Model) -> BTreeMap<Labels, Series> {
    let mut all: BTreeMap<Labels, Series> = BTreeMap::new();
    for (rank, process) in ranked(model).into_iter().enumerate() {
        let (pid, comm) = name(process, rank);
        for (call, stats) in process.calls.iter().filter(|(call, _)| **call != Call::Unknown) {
            let labels = Labels { pid: pid.clone(), comm: comm.clone(), call: call_name(*call) };
            let series = all.entry(labels).or_default();
            let count = stats.count();
            series.count.entered = series.count.entered.saturating_add(count.entered);
            series.count.returned = series.count.returned.saturating_add(count.returned);
            series.count.failed = series.count.failed.saturating_add(count.failed);
            series.count.bytes = series.count.bytes.saturating_add(count.bytes);
            series.count.total_ns = series.count.total_ns.saturating_add(count.total_ns);
            series.latency.merge(&stats.latency());
        }
    }
    all
}

fn name(process: &ProcessModel, rank: usize) -> (String, String) {
    if rank < MAX_PROCESSES {
        (process.info.id.pid.to_string(), process.info.comm.clone())
    } else {
        (String::new(), "[other]".to_owned())
    }
}

fn counter(
    text: &mut Text,
    series: &BTreeMap<Labels, Series>,
    name: &str,
    help: &str,
    value: impl Fn(&Series) -> u64,
) {
    family(text, name, "counter", None, help);
    for (labels, s) in series {
        line(text, &format!("{name}_total"), labels, "", &value(s).to_string());
    }
}

fn durations(text: &mut Text, series: &BTreeMap<Labels, Series>) {
    const NAME: &str = "rdma_call_duration_seconds";
    family(text, NAME, "histogram", Some("seconds"), "Duration of the calls that returned.");
    for (labels, s) in series {
        let total = s.latency.total();
        if total == 0 {
            continue;
        }
        for power in BOUNDS.step_by(2) {
            // Values are whole ns, so "below 2^n" is "at most 2^n - 1".
            let most = (1_u64 << power) - 1;
            let below: u64 = s.latency.0.iter().filter(|(i, _)| bounds(**i).1 <= most).map(|(_, n)| *n).sum();
            let le = format!(",le=\"{:e}\"", most as f64 / 1e9);
            line(text, &format!("{NAME}_bucket"), labels, &le, &below.to_string());
        }
        line(text, &format!("{NAME}_bucket"), labels, ",le=\"+Inf\"", &total.to_string());
        line(text, &format!("{NAME}_count"), labels, "", &total.to_string());
        let sum = s.count.total_ns as f64 / 1e9;
        line(text, &format!("{NAME}_sum"), labels, "", &format!("{sum:?}"));
    }
}

fn gauges(text: &mut Text, model: &Model) {
    type Gauge = (&'static str, &'static str, fn(&ProcessModel) -> u64);
    const GAUGES: [Gauge; 4] = [
        ("rdma_live_mrs", "Memory regions registered and not deregistered.", |p| {
            p.registrations.population.live
        }),
        ("rdma_live_mr_bytes", "Bytes of the live memory regions.", |p| p.registrations.bytes.live),
        ("rdma_live_qps", "Queue pairs created while recorded and not destroyed.", |p| {
            p.queues.qp_population.live
        }),
        ("rdma_live_cqs", "Completion queues created while recorded and not destroyed.", |p| {
            p.queues.cq_population.live
        }),
    ];
    for (name, help, value) in GAUGES {
        family(text, name, "gauge", None, help);
        let mut sums: BTreeMap<(String, String), u64> = BTreeMap::new();
        let alive = model.processes.values().filter(|p| !p.info.exited && p.used_rdma());
        for (rank, process) in alive.enumerate() {
            *sums.entry(self::name(process, rank)).or_default() += value(process);
        }
        for ((pid, comm), value) in sums {
            let _ = writeln!(text, "{name}{{pid=\"{pid}\",comm=\"{}\"}} {value}", escaped(&comm));
        }
    }
}

/// What is written, and how.
struct Text {
    format: MetricsFormat,
    text: String,
}

impl std::fmt::Write for Text {
    fn write_str(&mut self, part: &str) -> std::fmt::Result {
        self.text.push_str(part);
        Ok(())
    }
}

fn family(text: &mut Text, name: &str, kind: &str, unit: Option<&str>, help: &str) {
    // OpenMetrics names a counter without the suffix its samples have, the older format with it.
    let suffix = if kind == "counter" && text.format == MetricsFormat::Prometheus { "_total" } else { "" };
    let _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
    // A unit may only be declared for a name that ends in it, and only in OpenMetrics.
    if let Some(unit) = unit.filter(|unit| name.ends_with(unit) && text.format == MetricsFormat::OpenMetrics)
    {
        let _ = writeln!(text, "# UNIT {name} {unit}");
    }
    let _ = writeln!(text, "# HELP {name}{suffix} {help}");
}

fn line(text: &mut Text, name: &str, labels: &Labels, more: &str, value: &str) {
    let _ = writeln!(
        text,
        "{name}{{pid=\"{}\",comm=\"{}\",call=\"{}\"{more}}} {value}",
        labels.pid,
        escaped(&labels.comm),
        labels.call
    );
}

/// A label value: backslash, quote and newline have meaning in the format.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
