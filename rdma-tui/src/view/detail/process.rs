//! A process in full.

use probe_user::model::{ProcessModel, Step};
use probe_user::report::{errno, latency};
use probe_user::sample::Call;

use crate::app::format::{Unit, clip, count, duration, harmless, number, share};

use super::super::Context;
use super::{Lines, event_line, name_of};

/// Latest calls shown.
const EVENTS: usize = 40;

pub fn lines(process: &ProcessModel, context: Context<'_>) -> Lines {
    let Context { world, theme, .. } = context;
    let mut lines = Lines::default();
    let info = &process.info;
    let state = if info.exited { "ended" } else { "running" };
    lines.title("Process", theme);
    lines.fact("command", format!("{} (pid {}, {state})", harmless(&info.comm), info.id.pid), theme);
    if !info.exe.is_empty() {
        lines.fact("executable", harmless(&info.exe), theme);
    }
    lines.fact("user", format!("uid {}", info.uid), theme);
    if !info.cgroup.is_empty() {
        lines.fact("control group", harmless(&info.cgroup), theme);
    }
    if process.execs > 0 {
        lines.fact("replaced itself", format!("{} times (exec)", process.execs), theme);
    }

    lines.title("Alive", theme);
    let regions = &process.registrations;
    let alive = |live: u64, peak: u64| format!("{} now, {} at most", count(live as f64), count(peak as f64));
    lines.fact("memory regions", alive(regions.population.live, regions.population.peak), theme);
    let bytes = |n: u64| number(n as f64, Unit::Bytes);
    lines.fact(
        "registered",
        format!("{} now, {} at most", bytes(regions.bytes.live), bytes(regions.bytes.peak)),
        theme,
    );
    let queues = &process.queues;
    lines.fact("queue pairs", alive(queues.qp_population.live, queues.qp_population.peak), theme);
    lines.fact("completion queues", alive(queues.cq_population.live, queues.cq_population.peak), theme);
    lines.fact("shared receive qs", alive(queues.srq_population.live, queues.srq_population.peak), theme);
    lines.fact("protection domains", alive(process.pds.population.live, process.pds.population.peak), theme);
    let unseen = process.object_calls_without_event();
    if unseen > 0 {
        let text = format!("▲ {} calls left no event: these may be off by as many", count(unseen as f64));
        lines.styled("", text, theme.bad(), theme);
    }

    calls(&mut lines, process, context);
    registration(&mut lines, process, context);
    connections(&mut lines, process, context);

    lines.title("Latest calls", theme);
    let latest: Vec<_> = world.events.iter().rev().filter(|e| e.id == info.id).take(EVENTS).collect();
    if latest.is_empty() {
        lines.text("no data: none among the latest events of the host", theme.dim());
    }
    for event in latest {
        lines.spans(event_line(event, world, theme));
    }
    lines
}

fn calls(lines: &mut Lines, process: &ProcessModel, context: Context<'_>) {
    let theme = context.theme;
    lines.title("Calls", theme);
    if process.calls.is_empty() {
        lines.text("no data: no call was counted", theme.dim());
        return;
    }
    let head = format!(
        "  {:<22}{:>9}{:>9}{:>11}{:>11}{:>11}{:>12}",
        "", "COUNT", "FAILED", "p50", "p99", "MAX", "TIME"
    );
    lines.spans(vec![(head, theme.dim())]);
    for (call, stats) in &process.calls {
        let n = stats.count();
        let latency = latency(&stats.latency(), stats.longest_ns());
        let ns = |ns: Option<u64>| ns.map_or("-".to_owned(), |ns| duration(ns as f64));
        lines.spans(vec![
            (format!("  {:<22}", clip(&name_of(*call), 21, "…")), theme.series(0)),
            (format!("{:>9}", count(n.entered as f64)), theme.text()),
            (format!("{:>9}", count(n.failed as f64)), if n.failed > 0 { theme.bad() } else { theme.dim() }),
            (
                format!(
                    "{:>11}{:>11}{:>11}{:>12}",
                    ns(latency.p50),
                    ns(latency.p99),
                    ns(latency.max),
                    duration(n.total_ns as f64)
                ),
                theme.text(),
            ),
        ]);
        for (code, times) in &stats.errnos {
            let text = format!("▲ {} × {}", errno(*code), count(*times as f64));
            lines.styled("", text, theme.bad(), theme);
        }
    }
}

fn registration(lines: &mut Lines, process: &ProcessModel, context: Context<'_>) {
    let theme = context.theme;
    let regions = &process.registrations;
    let succeeded = process.succeeded_calls(Call::RegMr) + process.succeeded_calls(Call::RegDmabufMr);
    if succeeded == 0 {
        return;
    }
    lines.title("Registration", theme);
    let cost = regions
        .page_cost_resident
        .fit()
        .map(|f| (f, "memory touched before"))
        .or_else(|| regions.page_cost.fit().map(|f| (f, "first touches included")));
    match cost {
        Some((fit, which)) => lines.fact(
            "cost",
            format!("{} + {} per page of 4 KiB ({which})", duration(fit.base_ns), duration(fit.ns_per_page)),
            theme,
        ),
        None => lines.fact(
            "cost",
            "no data: sizes differ too little to tell a fixed part from one per page",
            theme,
        ),
    }
    let again = regions.repeated as f64 / succeeded as f64;
    let style = if again >= 0.5 { theme.warn() } else { theme.text() };
    let mark = if again >= 0.5 { "▲ " } else { "" };
    let text = format!("{mark}{} of registrations ({})", share(again), count(regions.repeated as f64));
    lines.styled("ranges seen before", text, style, theme);
    for (name, part) in [
        ("in the kernel", &regions.split.kernel),
        ("pinning pages", &regions.split.pin),
        ("mapping for DMA", &regions.split.dma_map),
        ("in the driver", &regions.split.driver),
    ] {
        match part.share() {
            Some(s) => lines.fact(name, format!("{} of the time", share(s)), theme),
            None => lines.styled(name, "no data: this kernel shows no such part", theme.dim(), theme),
        }
    }
    if regions.split.page_faults_known > 0 {
        lines.fact(
            "page faults",
            format!("{} while pinning", count(regions.split.page_faults as f64)),
            theme,
        );
    }
    for (addr, length, uses) in regions.ranges.most_used(5).into_iter().filter(|(_, _, uses)| *uses > 1) {
        let text =
            format!("0x{addr:x} + {}: {} times", number(length as f64, Unit::Bytes), count(uses as f64));
        lines.fact("range", text, theme);
    }
}

fn connections(lines: &mut Lines, process: &ProcessModel, context: Context<'_>) {
    let theme = context.theme;
    let cm = &process.cm;
    if cm.steps_ns.is_empty() && cm.failures.is_empty() && cm.requests + cm.established == 0 {
        return;
    }
    lines.title("Connections (librdmacm)", theme);
    lines.fact(
        "established",
        format!("{}, {} asked for by peers, {} ended", cm.established, cm.requests, cm.disconnected),
        theme,
    );
    for (step, latency) in &cm.steps_ns {
        let q = |q| latency.quantile(q).map_or("-".to_owned(), |ns| duration(ns as f64));
        lines.fact(
            step_name(*step),
            format!("{} times, p50 {}, p99 {}", latency.total(), q(0.5), q(0.99)),
            theme,
        );
    }
    for ((step, status), n) in &cm.failures {
        lines.styled(step_name(*step), format!("▲ refused {n} times, status {status}"), theme.bad(), theme);
    }
}

fn step_name(step: Step) -> &'static str {
    match step {
        Step::ResolveAddr => "resolve address",
        Step::ResolveRoute => "resolve route",
        Step::Connect => "connect",
        Step::Accept => "accept",
        Step::Disconnect => "disconnect",
    }
}
