//! The report as text: what was missed first, then one screen per process, the figures that matter most on top.

mod data_path;

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};

use crate::sample::Verdict;

use super::document::*;
use super::table::{self, Align, Column};
use super::units::{bytes, count, duration, percent};

const LABEL: usize = 18;
const TITLE: Style = Style::new().bold();
const ALARM: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default();
const QUIET: Style = Style::new().dimmed();

/// How much to print.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Columns of the terminal.
    pub width: usize,
    /// Rows of each table at most; the rest is counted.
    pub rows: usize,
}

/// Writes `report` to `out`, which takes the colours out where they are not wanted.
///
/// # Errors
/// Those of `out`.
pub fn write(report: &Report, layout: Layout, out: &mut dyn Write) -> io::Result<()> {
    let mut text = Text { layout, out };
    text.head(report)?;
    for process in &report.processes {
        text.process(process)?;
    }
    if report.processes.is_empty() {
        writeln!(text.out, "\nNo process made an RDMA call that was seen.")?;
    }
    if report.processes_not_shown > 0 {
        let n = count(report.processes_not_shown);
        let processes = if report.processes_not_shown == 1 { "process" } else { "processes" };
        writeln!(text.out, "\n{QUIET}{n} more {processes} without RDMA calls or filtered out{QUIET:#}")?;
    }
    Ok(())
}

struct Text<'a> {
    layout: Layout,
    out: &'a mut dyn Write,
}

impl Text<'_> {
    fn head(&mut self, report: &Report) -> io::Result<()> {
        let t = &report.trace;
        let when = i64::try_from(t.started_wall_ns)
            .ok()
            .and_then(|ns| jiff::Timestamp::from_nanosecond(ns.into()).ok())
            .map(|t| t.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
            .unwrap_or_default();
        let host = if t.host.is_empty() { "unknown host" } else { &t.host };
        let host = if t.kernel.is_empty() { host.to_owned() } else { format!("{host}, Linux {}", t.kernel) };
        writeln!(self.out, "{TITLE}{host}{TITLE:#}  {when}  for {}", duration(t.duration_ns))?;
        if !t.command.is_empty() {
            self.row("command", &clean(&t.command.join(" ")))?;
        }
        if let Some(w) = &report.window {
            self.row(
                "window",
                &format!("{} to {} of the recording", duration(w.from_ns), duration(w.to_ns)),
            )?;
        }
        let status = t.exit_status.map(|s| format!(", exit status {s}")).unwrap_or_default();
        match (&t.ended, t.cut_off_line) {
            (Some(reason), _) => self.row("ended", &format!("{}{status}", clean(reason)))?,
            (None, Some(line)) => {
                let text = format!("cut off in line {line}: the recorder was killed or still writes");
                self.alarm("ended", &text)?;
            }
            (None, None) => {
                self.alarm("ended", "without a footer: the recorder was killed or still runs")?;
            }
        }
        if t.unknown_lines > 0 {
            let text = format!("{} lines of kinds that only a newer version knows", count(t.unknown_lines));
            self.warn("skipped", &text)?;
        }
        self.missed(report)?;
        self.probes(&report.probes)?;
        for device in &report.devices {
            let ports: Vec<_> = device
                .ports
                .iter()
                .map(|p| format!("port {} {} {}", p.number, clean(&p.state), clean(&p.link_layer)))
                .collect();
            let emulated = if device.emulated { "  EMULATED: its timings are modelled" } else { "" };
            let text = format!(
                "{} ({})  {}{emulated}",
                clean(&device.name),
                clean(&device.driver),
                ports.join(", ")
            );
            self.row("device", &text)?;
        }
        Ok(())
    }

    fn missed(&mut self, report: &Report) -> io::Result<()> {
        let lost = &report.lost;
        if lost.total == 0 {
            // Traces made by hand, and those of an older version, tell of no probe at all.
            let live =
                |p: &Probe| p.call.is_some() && matches!(p.verdict, Verdict::Live | Verdict::Sampled { .. });
            if report.probes.is_empty() || report.probes.iter().any(live) {
                return match &report.late {
                    None => self.row("missed", "nothing: counts are exact"),
                    Some(late) => self.warn(
                        "missed",
                        &format!(
                            "perhaps calls within {} after {} was loaded: the probes were in place only then; nothing since",
                            duration(late.late_ns),
                            clean(&late.file)
                        ),
                    ),
                };
            }
            let seen = report.processes.iter().any(|p| p.data_path.observed.is_some());
            let but = if seen { "; posts and polls were counted" } else { "" };
            return self.warn("missed", &format!("all control calls: no probe was live{but}"));
        }
        for (n, what) in [
            (
                lost.ring_events,
                "events found the ring buffer full: live, peak, sizes and lists are incomplete",
            ),
            (lost.kernel_returns, "kernel returns: latencies of kernel calls lack these"),
            (lost.unpaired, "returns whose entry could not be remembered: latencies lack these"),
            (lost.uncounted, "hits that found a counter table full: counts are too low by these"),
        ] {
            if n > 0 {
                self.alarm("missed", &format!("{} {what}", count(n)))?;
            }
        }
        Ok(())
    }

    fn probes(&mut self, probes: &[Probe]) -> io::Result<()> {
        let live = probes.iter().filter(|p| matches!(p.verdict, Verdict::Live)).count();
        if !probes.is_empty() {
            self.row("probes", &format!("{live} of {} live", probes.len()))?;
        }
        let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
        for probe in probes {
            let why = match &probe.verdict {
                Verdict::Live | Verdict::Unknown => continue,
                Verdict::Sampled { share } => format!("sampled {}", percent(*share)),
                verdict => {
                    let (word, reason) = verdict.words();
                    format!("{word}: {reason}")
                }
            };
            match reasons.iter_mut().find(|(w, _)| *w == why) {
                Some((_, names)) => names.push(&probe.name),
                None => reasons.push((why, vec![&probe.name])),
            }
        }
        for (why, names) in reasons {
            let more = names.len().saturating_sub(4);
            let shown = names.iter().take(4).copied().collect::<Vec<_>>().join(", ");
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            self.warn("", &format!("{}{more}: {}", clean(&shown), clean(&why)))?;
        }
        Ok(())
    }

    fn process(&mut self, p: &Process) -> io::Result<()> {
        let name = if p.comm.is_empty() { "?" } else { &p.comm };
        let exit = if p.exited { "  exited" } else { "" };
        writeln!(
            self.out,
            "\n{TITLE}{}  pid {}{TITLE:#}  uid {}  {}{exit}",
            clean(name),
            p.pid,
            p.uid,
            clean(&p.exe)
        )?;
        if p.calls_without_event > 0 {
            let n = count(p.calls_without_event);
            self.alarm("incomplete", &format!("{n} calls left no event: live, peak and lists may be off"))?;
        }
        self.registration(&p.registration)?;
        self.calls("changed", &p.reregistration, "")?;
        let d = &p.deregistration;
        let unknown = d.of_unknown.filter(|n| *n > 0).map(|n| format!("  {} of unknown regions", count(n)));
        self.calls("deregistrations", &d.calls, &unknown.unwrap_or_default())?;
        self.kernel_pin(&p.kernel_pin)?;
        self.queues(&p.queues)?;
        self.data_path(&p.data_path)?;
        p.messages.iter().try_for_each(|messages| self.messages(messages))?;
        self.modify_qp(&p.modify_qp)?;
        self.waits(&p.waits)?;
        self.connections(&p.connections)?;
        self.queue_pairs(&p.queues)?;
        self.completion_queues(&p.queues)
    }

    fn registration(&mut self, r: &Registration) -> io::Result<()> {
        if r.calls.count == Some(0) {
            return Ok(());
        }
        let mut more = String::new();
        if let (Some(bytes_registered), Some(live), Some(peak)) = (r.bytes, r.live, r.peak) {
            more = format!(
                "  {} in all  live {} ({})  peak {} ({})",
                bytes(bytes_registered),
                count(live),
                bytes(r.live_bytes.unwrap_or(0)),
                count(peak),
                bytes(r.peak_bytes.unwrap_or(0)),
            );
        }
        self.calls("registrations", &r.calls, &more)?;
        let s = &r.split;
        let parts = |parts: &[(&str, Option<f64>)]| -> Vec<String> {
            parts.iter().filter_map(|(name, share)| Some(format!("{name} {}", percent((*share)?)))).collect()
        };
        let whole = parts(&[("library", s.library_share), ("kernel", s.kernel_share)]);
        if !whole.is_empty() {
            let inside = parts(&[
                ("pinning", s.pin_share),
                ("of it DMA mapping", s.dma_map_share),
                ("driver", s.driver_share),
                ("elsewhere", s.kernel_other_share),
            ]);
            let inside = if inside.is_empty() { String::new() } else { format!(" ({})", inside.join(", ")) };
            let faults = s.page_faults.filter(|n| *n > 0).map(|n| format!("  {} page faults", count(n)));
            let text = format!("{}{inside}{}", whole.join("  "), faults.unwrap_or_default());
            self.row("  time in", &text)?;
        }
        if let (Some(pages), Some(mean)) = (r.pages.count.filter(|n| *n > 0), r.pages.mean_ns_per_page) {
            let text = format!("{} × 4 KiB  {} a page on average", count(pages), duration(mean as u64));
            self.row("  pages", &text)?;
        }
        for (label, fit) in [
            ("  cost", r.pages.fit),
            ("  cost, no faults", r.pages.fit_resident.filter(|_| s.page_faults > Some(0))),
        ] {
            let Some(fit) = fit else { continue };
            let text = format!(
                "{} + {} × pages  (fitted to {} from {:.0} to {:.0} pages, within {})",
                duration(fit.base_ns as u64),
                duration(fit.ns_per_page as u64),
                count(fit.registrations),
                fit.from_pages,
                fit.to_pages,
                percent(fit.worst_deviation)
            );
            self.row(label, &text)?;
        }
        if r.sizes.len() > 1 {
            let rows: Vec<_> = r
                .sizes
                .iter()
                .map(|s| {
                    vec![
                        format!("≤ {}", bytes(s.up_to_bytes)),
                        count(s.count),
                        bytes(s.bytes),
                        duration(s.mean_ns),
                        duration(s.max_ns),
                    ]
                })
                .collect();
            let columns = [
                Column("size", Align::Right, 0),
                Column("count", Align::Right, 0),
                Column("bytes", Align::Right, 1),
                Column("mean", Align::Right, 0),
                Column("max", Align::Right, 0),
            ];
            self.table(&columns, &rows)?;
        }
        if let Some(n) = r.repeated.count.filter(|n| *n > 0) {
            let least = if r.repeated.at_least { "at least " } else { "" };
            let ranges: Vec<_> = r
                .repeated
                .ranges
                .iter()
                .take(2)
                .map(|r| format!("{:#x}+{} {}×", r.addr, bytes(r.length_bytes), count(r.count)))
                .collect();
            let text = format!("{least}{} of a range registered before: {}", count(n), ranges.join(", "));
            self.warn("  again", &text)?;
        }
        if let Some(n) = r.on_demand.filter(|n| *n > 0) {
            self.row("  on demand", &format!("{} with on-demand paging", count(n)))?;
        }
        Ok(())
    }

    fn kernel_pin(&mut self, k: &KernelPin) -> io::Result<()> {
        let mut more = String::new();
        if let Some(n) = k.bytes {
            more = format!("  {}", bytes(n));
        }
        if let (Some(inside), Some(all)) = (k.in_registration, k.calls.count)
            && inside < all
        {
            more += &format!("  {} inside registrations", count(inside));
        }
        self.calls("kernel pins", &k.calls, &more)
    }

    fn queues(&mut self, q: &Queues) -> io::Result<()> {
        let population = |created: Option<u64>, live: Option<u64>, peak: Option<u64>| {
            let (Some(_), Some(live), Some(peak)) = (created, live, peak) else { return String::new() };
            format!("  live {}  peak {}", count(live), count(peak))
        };
        self.calls("queue pairs", &q.qp_create, &population(q.qp_created, q.qp_live, q.qp_peak))?;
        let mut more = population(q.cq_created, q.cq_live, q.cq_peak);
        if let Some(n) = q.qps_per_cq_max.filter(|n| *n > 0) {
            more += &format!("  up to {} QPs per CQ", count(n));
        }
        self.calls("completion queues", &q.cq_create, &more)?;
        if let (Some(created), Some(live)) = (q.srq_created.filter(|n| *n > 0), q.srq_live) {
            self.row("shared RQs", &format!("{}  live {}", count(created), count(live)))?;
        }
        Ok(())
    }

    fn modify_qp(&mut self, m: &ModifyQp) -> io::Result<()> {
        let reached: Vec<_> = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"]
            .iter()
            .filter_map(|state| Some(format!("{state} {}", count(*m.reached.get(*state)?))))
            .collect();
        self.calls("QP changes", &m.calls, &format!("  {}", reached.join(" ")))
    }

    fn waits(&mut self, w: &Waits) -> io::Result<()> {
        let acknowledged = w
            .acknowledged
            .filter(|n| *n > 0)
            .map(|n| format!("  {} acknowledged", count(n)))
            .unwrap_or_default();
        self.calls("CQ event waits", &w.cq_event, &acknowledged)?;
        if !w.async_events.is_empty() {
            let events: Vec<_> = w.async_events.iter().map(|(e, n)| format!("{e} {}", count(*n))).collect();
            self.warn("async events", &events.join("  "))?;
        }
        Ok(())
    }

    fn connections(&mut self, c: &Connections) -> io::Result<()> {
        let (Some(requested), Some(established), Some(ended)) = (c.requested, c.established, c.disconnected)
        else {
            return Ok(());
        };
        if requested + established + ended == 0 && c.failures.is_empty() {
            return Ok(());
        }
        let text = format!(
            "{} established  {} asked for by peers  {} ended",
            count(established),
            count(requested),
            count(ended)
        );
        self.row("connections", &text)?;
        for (name, latency) in [
            ("  resolve address", &c.resolve_addr_ns),
            ("  resolve route", &c.resolve_route_ns),
            ("  connect", &c.connect_ns),
            ("  accept", &c.accept_ns),
            ("  disconnect", &c.disconnect_ns),
        ] {
            if let Some(text) = quantiles(latency) {
                self.row(name, &text)?;
            }
        }
        for failure in &c.failures {
            let text =
                format!("{} failed with status {}: {}", failure.step, failure.status, count(failure.count));
            self.alarm("  failed", &text)?;
        }
        Ok(())
    }

    fn queue_pairs(&mut self, q: &Queues) -> io::Result<()> {
        let rows: Vec<Vec<String>> = q
            .qps
            .iter()
            .take(self.layout.rows)
            .map(|qp| {
                let peer = match (qp.dest_qpn, &qp.dgid, qp.dlid) {
                    (Some(qpn), Some(gid), _) => format!("{qpn} @ {}", clean(gid)),
                    (Some(qpn), None, Some(lid)) => format!("{qpn} @ LID {lid}"),
                    (Some(qpn), None, None) => qpn.to_string(),
                    _ => String::new(),
                };
                // Capacities are known where the creation, or something since, was seen.
                let made = qp.qp_type.is_some();
                let figure = |of: fn(&Posts) -> Option<String>| {
                    qp.data_path.as_ref().and_then(|path| of(&path.posts)).unwrap_or_default()
                };
                let number = |n: Option<u32>| n.map(|n| n.to_string()).unwrap_or_default();
                let small = |n: Option<u8>| number(n.map(u32::from));
                let cqs = if qp.send_cq == qp.recv_cq {
                    format!("{:#x}", qp.send_cq)
                } else {
                    format!("{:#x} {:#x}", qp.send_cq, qp.recv_cq)
                };
                vec![
                    qp.qpn.to_string(),
                    qp.qp_type.clone().unwrap_or_default(),
                    if qp.gone { "destroyed".to_owned() } else { qp.state.clone().unwrap_or_default() },
                    if made { format!("{}/{}", qp.max_send_wr, qp.max_recv_wr) } else { String::new() },
                    figure(|p| p.wrs.map(count)),
                    figure(|p| p.wrs_per_post.map(|n| format!("{n:.1}"))),
                    figure(|p| p.signaled_share.map(percent)),
                    figure(|p| p.inline_share.map(percent)),
                    figure(|p| p.bytes.map(bytes)),
                    figure(|p| p.recv_posted.map(count)),
                    figure(|p| p.post_failed.filter(|n| *n > 0).map(count)),
                    if made { qp.max_inline_bytes.to_string() } else { String::new() },
                    number(qp.path_mtu_bytes),
                    small(qp.timeout),
                    small(qp.retry_cnt),
                    small(qp.rnr_retry),
                    small(qp.min_rnr_timer),
                    small(qp.max_rd_atomic),
                    small(qp.sgid_index),
                    peer,
                    if qp.send_cq == 0 && qp.recv_cq == 0 { String::new() } else { cqs },
                ]
            })
            .collect();
        let columns = [
            Column("QPN", Align::Right, 0),
            Column("type", Align::Left, 0),
            Column("state", Align::Left, 0),
            Column("depth", Align::Right, 1),
            Column("WRs", Align::Right, 0),
            Column("a post", Align::Right, 2),
            Column("signalled", Align::Right, 1),
            Column("inline", Align::Right, 2),
            Column("bytes", Align::Right, 3),
            Column("receives", Align::Right, 3),
            Column("refused", Align::Right, 1),
            Column("inline max", Align::Right, 6),
            Column("MTU", Align::Right, 3),
            Column("timeout", Align::Right, 4),
            Column("retry", Align::Right, 4),
            Column("rnr", Align::Right, 5),
            Column("rnr timer", Align::Right, 5),
            Column("rd atomic", Align::Right, 5),
            Column("GID#", Align::Right, 6),
            Column("peer", Align::Left, 2),
            Column("CQ", Align::Left, 7),
        ];
        self.table(&columns, &rows)?;
        self.rest(q.qps.len() as u64 + q.qps_not_listed, "QPs")
    }

    fn completion_queues(&mut self, q: &Queues) -> io::Result<()> {
        let rows: Vec<Vec<String>> = q
            .cqs
            .iter()
            .take(self.layout.rows)
            .map(|cq| {
                let mut qpns: Vec<_> = cq.qpns.iter().take(8).map(u32::to_string).collect();
                if cq.qpns.len() > 8 {
                    qpns.push(format!("and {} more", cq.qpns.len() - 8));
                }
                let figure = |of: fn(&Polls) -> Option<String>| {
                    cq.data_path.as_ref().and_then(|path| of(&path.polls)).unwrap_or_default()
                };
                let made = cq.cqe.is_some();
                vec![
                    format!("{:#x}{}", cq.cq, if cq.gone { " destroyed" } else { "" }),
                    cq.cqe.map(|n| count(n.into())).unwrap_or_default(),
                    match (made, cq.channel) {
                        (false, _) => "",
                        (_, true) => "events",
                        (_, false) => "polled",
                    }
                    .to_owned(),
                    figure(|p| p.polls.map(count)),
                    figure(|p| p.empty_share.map(percent)),
                    figure(|p| p.cqes.map(count)),
                    figure(|p| p.cqes_per_poll.map(|n| format!("{n:.1}"))),
                    figure(|p| p.cqe_errors.filter(|n| *n > 0).map(count)),
                    if made || cq.qps_peak > 0 { cq.qps_peak.to_string() } else { String::new() },
                    qpns.join(" "),
                ]
            })
            .collect();
        let columns = [
            Column("CQ", Align::Left, 0),
            Column("entries", Align::Right, 1),
            Column("mode", Align::Left, 2),
            Column("polls", Align::Right, 1),
            Column("empty", Align::Right, 1),
            Column("completions", Align::Right, 0),
            Column("a poll", Align::Right, 2),
            Column("errors", Align::Right, 1),
            Column("QPs at most", Align::Right, 1),
            Column("QPs now", Align::Left, 3),
        ];
        self.table(&columns, &rows)?;
        self.rest(q.cqs.len() as u64, "CQs")
    }

    /// One kind of call: how many, how many failed and why, what else there is to say, and how long they took.
    fn calls(&mut self, label: &str, c: &Calls, more: &str) -> io::Result<()> {
        if let Some(why) = &c.unavailable {
            return self.warn(label, &format!("unavailable: {}", clean(why)));
        }
        let (Some(n), Some(failed)) = (c.count.filter(|n| *n > 0), c.failed) else { return Ok(()) };
        self.row(label, &format!("{}{more}", count(n)))?;
        let once = c.latency_ns.total.filter(|_| n == 1).map(duration);
        if let Some(text) = once.or_else(|| quantiles(&c.latency_ns)) {
            self.row("  latency", &text)?;
        }
        if failed > 0 {
            let by: Vec<_> = c.failures.iter().map(|f| format!("{} {}", f.errno, count(f.count))).collect();
            self.alarm("  failed", &format!("{}  {}", count(failed), by.join("  ")))?;
        }
        if let Some(n) = c.not_returned.filter(|n| *n > 0) {
            self.warn("  not returned", &format!("{}: still inside, cancelled, or missed", count(n)))?;
        }
        Ok(())
    }

    fn table(&mut self, columns: &[Column], rows: &[Vec<String>]) -> io::Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        for (i, line) in table::render(columns, rows, self.layout.width.saturating_sub(4)).iter().enumerate()
        {
            match i {
                0 => writeln!(self.out, "    {QUIET}{line}{QUIET:#}")?,
                _ => writeln!(self.out, "    {line}")?,
            }
        }
        Ok(())
    }

    fn rest(&mut self, all: u64, what: &str) -> io::Result<()> {
        let more = all.saturating_sub(self.layout.rows as u64);
        if more > 0 {
            writeln!(self.out, "    {QUIET}and {} more {what} (--all lists them){QUIET:#}", count(more))?;
        }
        Ok(())
    }

    fn row(&mut self, label: &str, text: &str) -> io::Result<()> {
        self.styled(label, text, Style::new())
    }

    fn warn(&mut self, label: &str, text: &str) -> io::Result<()> {
        self.styled(label, text, WARNING)
    }

    fn alarm(&mut self, label: &str, text: &str) -> io::Result<()> {
        self.styled(label, text, ALARM)
    }

    /// A label and its text, broken between words where the terminal ends.
    fn styled(&mut self, label: &str, text: &str, style: Style) -> io::Result<()> {
        let room = self.layout.width.saturating_sub(LABEL + 3).max(20);
        for (i, line) in wrapped(text, room).into_iter().enumerate() {
            let label = if i == 0 { label } else { "" };
            writeln!(self.out, "  {label:<LABEL$} {style}{line}{style:#}")?;
        }
        Ok(())
    }
}

fn quantiles(l: &Latency) -> Option<String> {
    let (p50, p90, p99, max) = (l.p50?, l.p90?, l.p99?, l.max?);
    let total = l.total.map(|t| format!("  total {}", duration(t))).unwrap_or_default();
    Some(format!(
        "p50 {}  p90 {}  p99 {}  max {}{total}",
        duration(p50),
        duration(p90),
        duration(p99),
        duration(max)
    ))
}

/// Names come from other people's programs: what could steer a terminal is shown, not obeyed.
pub(super) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    use unicode_width::UnicodeWidthStr;
    let mut lines = vec![String::new()];
    // Two spaces set figures apart and stay within a line; words are broken at any run of spaces.
    for word in text.split_inclusive(' ') {
        let fits = lines.last().is_none_or(|line| line.width() + word.trim_end().width() <= width);
        match lines.last_mut() {
            Some(line) if fits || line.is_empty() => line.push_str(word),
            _ => lines.push(word.to_owned()),
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_steer_the_terminal() {
        assert_eq!(clean("a\x1b[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    }

    #[test]
    fn long_texts_are_broken_between_words_and_short_ones_left_alone() {
        assert_eq!(wrapped("one  two three", 8), ["one  two", "three"]);
        assert_eq!(wrapped("incomprehensibilities a", 8), ["incomprehensibilities", "a"]);
        assert_eq!(wrapped("", 8), [""]);
    }
}
