//! A queue pair or completion queue in full.

use probe_user::model::{Cq, ProcessModel, Qp};
use probe_user::report::errno;
use probe_user::sample::{Detail, Event};

use crate::app::format::{Unit, count, duration, harmless, many, number};

use super::super::Context;
use super::{Lines, event_line};

/// Latest calls shown.
const EVENTS: usize = 40;

/// Sharers listed.
const SHARERS: usize = 512;

pub fn qp(process: &ProcessModel, qp: &Qp, context: Context<'_>) -> Lines {
    let Context { world, theme, .. } = context;
    let mut lines = Lines::default();
    lines.title("Queue pair", theme);
    lines.fact("owner", format!("{} (pid {})", harmless(&process.info.comm), process.info.id.pid), theme);
    let age = match qp.created_ns {
        Some(t) => format!(
            "created {} ago, in {}",
            duration(world.model.now_ns.saturating_sub(t) as f64),
            duration(qp.creation_ns as f64)
        ),
        None => "older than the recording: capacities and type are not known".to_owned(),
    };
    lines.fact("age", age, theme);
    let state = qp.state.as_deref().unwrap_or("unknown");
    let style = match state {
        "RTS" => theme.good(),
        "ERR" | "SQE" => theme.bad(),
        _ => theme.text(),
    };
    lines.styled("state", harmless(state), style, theme);
    if qp.created_ns.is_some() {
        lines.fact("type", harmless(&qp.qp_type), theme);
        lines.fact("send queue", format!("{} WRs of up to {} SGEs", qp.max_send_wr, qp.max_send_sge), theme);
        lines.fact(
            "receive queue",
            format!("{} WRs of up to {} SGEs", qp.max_recv_wr, qp.max_recv_sge),
            theme,
        );
        lines.fact("inline", format!("up to {}", number(qp.max_inline_bytes.into(), Unit::Bytes)), theme);
        if qp.sq_sig_all {
            lines.styled("signalling", "▲ every send makes a completion (sq_sig_all)", theme.warn(), theme);
        } else {
            lines.fact("signalling", "as each send asks (IBV_SEND_SIGNALED)", theme);
        }
    }
    for (name, cq) in [("send CQ", qp.send_cq), ("receive CQ", qp.recv_cq)] {
        if cq != 0 {
            let sharers = process.queues.cqs().get(&cq).map_or(0, |cq| cq.qps.live);
            lines.fact(name, format!("0x{cq:x}, {} on it", many(sharers, "QP")), theme);
        }
    }
    if qp.srq != 0 {
        lines.fact("SRQ", format!("0x{:x}", qp.srq), theme);
    }

    attributes(&mut lines, qp, context);

    lines.title("State changes", theme);
    if qp.transitions.is_empty() {
        lines.text("no data: none was seen", theme.dim());
    }
    for t in &qp.transitions {
        let from = t.from.as_deref().unwrap_or("?");
        let outcome = if t.errno == 0 { String::new() } else { format!("▲ {}", errno(t.errno)) };
        lines.spans(vec![
            (
                format!("  {:>13} ago  ", duration(world.model.now_ns.saturating_sub(t.t_ns) as f64)),
                theme.dim(),
            ),
            (format!("{:<6}→ {:<6}", harmless(from), harmless(&t.to)), theme.text()),
            (format!("{:>10}  ", duration(t.duration_ns as f64)), theme.text()),
            (outcome, theme.bad()),
        ]);
    }
    if qp.more_transitions > 0 {
        lines.text(format!("and {} more", count(qp.more_transitions as f64)), theme.dim());
    }

    lines.title("Latest calls on it", theme);
    let latest: Vec<_> = world
        .events
        .iter()
        .rev()
        .filter(|e| e.id == process.info.id && concerns(e, qp.qp))
        .take(EVENTS)
        .collect();
    if latest.is_empty() {
        lines.text("no data: none among the latest events of the host", theme.dim());
    }
    for event in latest {
        lines.spans(event_line(event, world, theme));
    }
    super::data_path::posts(&mut lines, process, qp, context);
    lines
}

fn concerns(event: &Event, object: u64) -> bool {
    match &event.detail {
        Detail::Qp { qp, .. } => *qp == object,
        Detail::ModifyQp(a) => a.qp == object,
        Detail::Cq { cq, .. } => *cq == object,
        Detail::Object { object: o } | Detail::Wait { object: o, .. } => *o == object,
        _ => false,
    }
}

fn attributes(lines: &mut Lines, qp: &Qp, context: Context<'_>) {
    let theme = context.theme;
    let a = &qp.attributes;
    lines.title("Attributes, as last set", theme);
    let before = lines.0.len();
    if let Some(n) = a.dest_qpn {
        lines.fact("peer QPN", n.to_string(), theme);
    }
    if let Some(gid) = a.dgid.as_deref().filter(|g| !g.is_empty()) {
        lines.fact("peer GID", harmless(gid), theme);
    }
    if let Some(lid) = a.dlid.filter(|l| *l != 0) {
        lines.fact("peer LID", lid.to_string(), theme);
    }
    if let Some(n) = a.port {
        lines.fact("port", n.to_string(), theme);
    }
    if let Some(n) = a.sgid_index {
        lines.fact("own GID index", n.to_string(), theme);
    }
    if let Some(flags) = a.qp_access_flags {
        let rights = [(2, "write"), (4, "read"), (8, "atomics")];
        let allowed: Vec<&str> =
            rights.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
        let text = if allowed.is_empty() { "nothing but SEND".to_owned() } else { allowed.join(", ") };
        lines.fact("peer may", text, theme);
    }
    if let Some(n) = a.path_mtu_bytes {
        lines.fact("path MTU", format!("{n} B"), theme);
    }
    if let Some(n) = a.traffic_class {
        lines.fact("traffic class", n.to_string(), theme);
    }
    if let Some(t) = a.timeout {
        let text = match t {
            0 => "▲ for ever".to_owned(),
            t => duration(4096.0 * 2_f64.powi(t.into())),
        };
        lines.fact("ACK timeout", text, theme);
    }
    if let Some(n) = a.retry_cnt {
        lines.fact("retries", n.to_string(), theme);
    }
    if let Some(n) = a.rnr_retry {
        let text = match n {
            7 => "7: for ever".to_owned(),
            0 => "▲ 0: the first late receive breaks the connection".to_owned(),
            n => n.to_string(),
        };
        lines.fact("RNR retries", text, theme);
    }
    if let Some(n) = a.min_rnr_timer {
        let text = if n == 0 { "▲ 0, which is the longest: 655 ms".to_owned() } else { n.to_string() };
        lines.fact("RNR timer", text, theme);
    }
    if let Some(n) = a.max_rd_atomic {
        lines.fact(
            "READs in flight",
            format!("{n} out, {} in", a.max_dest_rd_atomic.map_or("?".into(), |n| n.to_string())),
            theme,
        );
    }
    if lines.0.len() == before {
        lines.text("no data: no ibv_modify_qp was seen", theme.dim());
    }
}

pub fn cq(process: &ProcessModel, address: u64, cq: &Cq, context: Context<'_>) -> Lines {
    let Context { world, theme, .. } = context;
    let mut lines = Lines::default();
    lines.title("Completion queue", theme);
    lines.fact("owner", format!("{} (pid {})", harmless(&process.info.comm), process.info.id.pid), theme);
    match cq.created_ns {
        Some(t) => {
            lines.fact(
                "age",
                format!("created {} ago", duration(world.model.now_ns.saturating_sub(t) as f64)),
                theme,
            );
            lines.fact("entries", cq.cqe.to_string(), theme);
            let text = match cq.channel {
                0 => "polling only".to_owned(),
                channel => format!("events, by completion channel 0x{channel:x}"),
            };
            lines.fact("waits by", text, theme);
        }
        None => lines.fact("age", "older than the recording: its size is not known", theme),
    }
    lines.fact("queue pairs", format!("{} now, {} at most", cq.qps.live, cq.qps.peak), theme);
    let sharers = process.queues.sharers(address);
    lines.title("Who shares it", theme);
    for chunk in sharers[..sharers.len().min(SHARERS)].chunks(8) {
        let text: String = chunk.iter().map(|qpn| format!("{qpn:>9}")).collect();
        lines.text(text, theme.text());
    }
    if sharers.len() > SHARERS {
        lines.text(format!("and {} more", sharers.len() - SHARERS), theme.dim());
    }
    lines
}
