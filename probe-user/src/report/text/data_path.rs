//! Posts and polls as text: what was posted and how, what was polled and how much of it in vain, and how far the figures
//! can be trusted.

use std::io;

use crate::report::errno;
use crate::sample::{Counting, Observed, ObservedBy, PostedTo, Strides};

use super::super::document::{DataPath, Messages, Polls, Posts, Shape};
use super::super::requests::{failed_request, refused_request};
use super::super::units::{bytes, count, duration, percent};
use super::{Text, clean, quantiles};

/// Requests that failed and are told of, of each kind.
const FIRSTS: usize = 4;

impl Text<'_> {
    pub(super) fn messages(&mut self, m: &Messages) -> io::Result<()> {
        let failed = if m.failed > 0 { format!("  {} failed", count(m.failed)) } else { String::new() };
        let what = format!(
            "{} sends  {} receives  {} done{failed}",
            count(m.sends),
            count(m.receives),
            count(m.done)
        );
        self.row("one by one", &what)?;
        for (name, latency) in [("  post to reap", &m.send_ns), ("  receive waited", &m.receive_ns)] {
            if let Some(text) = quantiles(latency) {
                self.row(name, &text)?;
            }
        }
        if m.missing > 0 {
            let text = "log entries were overwritten before they could be read: what was outstanding then is not paired";
            self.alarm("missed", &format!("{} {text}", count(m.missing)))?;
        }
        Ok(())
    }

    pub(super) fn data_path(&mut self, path: &DataPath) -> io::Result<()> {
        if let Some(why) = &path.unavailable {
            return self.warn("posts and polls", &format!("unavailable: {}", clean(why)));
        }
        self.posts(&path.posts)?;
        self.receives(&path.posts)?;
        self.polls(&path.polls)?;
        if let Some(shape) = &path.posts.shape {
            self.shape(shape)?;
        }
        let Some(observed) = &path.observed else { return Ok(()) };
        let text = format!("posts and polls {}", seen(observed));
        if observed.counting == Counting::Every {
            self.row("  seen", &text)?;
        } else {
            self.warn("  seen", &text)?;
        }
        if let Some(n) = path.uncounted.filter(|n| *n > 0) {
            self.alarm("  uncounted", &format!("{} calls could not be counted", count(n)))?;
        }
        path.unseen.iter().try_for_each(|text| self.warn("  not seen", &clean(text)))
    }

    fn posts(&mut self, p: &Posts) -> io::Result<()> {
        let (Some(calls), Some(wrs)) = (p.post_calls.filter(|n| *n > 0), p.wrs) else { return Ok(()) };
        let mut text = format!("{}  {} WRs", count(calls), count(wrs));
        if let Some(per_post) = p.wrs_per_post {
            text += &format!("  {per_post:.1} a post");
        }
        if let Some(n) = p.bytes.filter(|n| *n > 0) {
            text += &format!("  {}  {} a WR", bytes(n), bytes(n / wrs.max(1)));
        }
        self.row("posts", &text)?;
        if let (Some(signaled), Some(inline)) = (p.signaled_share, p.inline_share) {
            let run = p.longest_unsignaled.filter(|n| *n > 0);
            let run = run.map(|n| format!(" (longest run without: {})", count(n))).unwrap_or_default();
            let mut opcodes: Vec<_> = p.opcodes.iter().collect();
            opcodes.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
            let opcodes: Vec<_> = opcodes.iter().map(|(name, n)| format!("{name} {}", count(**n))).collect();
            let text = format!(
                "{} signalled{run}  {} inline  {}",
                percent(signaled),
                percent(inline),
                opcodes.join("  ")
            );
            self.row("  of the WRs", &text)?;
        }
        if let Some(failed) = p.post_failed.filter(|n| *n > 0) {
            let by: Vec<_> =
                p.post_failures.iter().map(|f| format!("{} {}", f.errno, count(f.count))).collect();
            let text = format!("{} calls refused  {}", count(failed), by.join("  "));
            self.alarm("  failed", text.trim_end())?;
        }
        for one in p.refused.iter().take(FIRSTS) {
            let Some(first) = one.first.as_deref() else { continue };
            let what = match one.queue {
                PostedTo::Send => "",
                PostedTo::Receive => "receive on ",
                PostedTo::SharedReceive => "on shared receive queue ",
            };
            let queue = if one.queue == PostedTo::SharedReceive { "" } else { "QP " };
            let text =
                format!("{what}{queue}{}: {}, {}", one.number, errno(one.errno), refused_request(first));
            self.alarm("  first refused", &text)?;
        }
        if let Some(n) = p.cut.filter(|n| *n > 0) {
            let text =
                format!("{} chains were too long to be walked: WRs and bytes lack their ends", count(n));
            self.warn("  cut", &text)?;
        }
        match p.aborted.filter(|n| *n > 0) {
            Some(n) => self.row("  aborted", &format!("{} batches given up (ibv_wr_abort)", count(n))),
            None => Ok(()),
        }
    }

    fn receives(&mut self, p: &Posts) -> io::Result<()> {
        let (Some(calls), Some(wrs)) = (p.recv_calls.filter(|n| *n > 0), p.recv_posted) else {
            return Ok(());
        };
        let size = p.recv_bytes.filter(|n| *n > 0).map(|n| format!("  {} of buffers", bytes(n)));
        let text = format!("{} posted in {} calls{}", count(wrs), count(calls), size.unwrap_or_default());
        self.row("receives", &text)?;
        match p.recv_failed.filter(|n| *n > 0) {
            Some(n) => self.alarm("  failed", &format!("{} calls refused", count(n))),
            None => Ok(()),
        }
    }

    fn polls(&mut self, p: &Polls) -> io::Result<()> {
        let Some(polls) = p.polls.filter(|n| *n > 0) else { return Ok(()) };
        let completions = p.cqes.map_or_else(|| "an unknown number of".to_owned(), count);
        let mut text = format!("{}  {completions} completions", count(polls));
        if let Some(each) = p.cqes_per_poll {
            text += &format!("  {each:.1} a poll that found any");
        }
        if let Some(empty) = p.empty_share {
            text += &format!("  {} of the polls empty", percent(empty));
        }
        if let Some(n) = p.notifies.filter(|n| *n > 0) {
            text += &format!("  {} notifications asked for", count(n));
        }
        if let Some(n) = p.blind_events {
            text += &format!("  {} events taken with no poll since", count(n));
        }
        if let Some(n) = p.guessed_cqes {
            text += &format!("  of {} completions it is guessed whose they are", count(n));
        }
        self.row("polls", &text)?;
        if let Some(n) = p.cut_polls.filter(|n| *n > 0) {
            let text = format!(
                "of {} polls only the first completion was looked at (ibv_next_poll would be single-stepped): \
                 `--data-path full` looks at all",
                count(n)
            );
            self.warn("  not observed", &text)?;
        }
        if let Some(n) = p.failed_polls.filter(|n| *n > 0) {
            self.alarm("  failed polls", &count(n))?;
        }
        if let Some(failed) = p.cqe_errors.filter(|n| *n > 0) {
            let by: Vec<_> = p
                .errors
                .iter()
                .take(8)
                .map(|e| {
                    let qp = e.qpn.map(|qpn| format!(" on QP {qpn}")).unwrap_or_default();
                    format!("{}{qp} {}", e.status, count(e.count))
                })
                .collect();
            self.alarm(
                "  failed WRs",
                &format!("{} completions with an error  {}", count(failed), by.join("  ")),
            )?;
            let firsts = p.errors.iter().filter(|e| !e.flushed || p.errors.iter().all(|e| e.flushed));
            for (error, first) in firsts.filter_map(|e| Some((e, e.first.as_ref()?))).take(FIRSTS) {
                let qp = error.qpn.map(|qpn| format!("QP {qpn}: ")).unwrap_or_default();
                self.alarm("  first of them", &format!("{qp}{}, {}", error.status, failed_request(first)))?;
            }
        }
        match p.cqe_to_post_ns.as_ref().and_then(quantiles) {
            Some(text) => self.row("  to next post", &text),
            None => Ok(()),
        }
    }

    fn shape(&mut self, s: &Shape) -> io::Result<()> {
        let of_all = s.examined_wrs.map(|n| format!(" ({} looked at)", count(n))).unwrap_or_default();
        if !s.sizes.is_empty() {
            let sizes: Vec<_> =
                s.sizes.iter().map(|c| format!("≤{} {}", bytes(c.up_to_bytes), count(c.count))).collect();
            self.row("  sizes", &format!("{}{of_all}", sizes.join("  ")))?;
        }
        let figures = [
            (s.unaligned_64, "not 64-byte aligned"),
            (s.unaligned_4096, "not page aligned"),
            (s.odd_lengths, "of odd length"),
            (s.could_inline, "could have been inline"),
            (s.mergeable, "could have been one with the WR before"),
            (s.most_outstanding, "outstanding at most"),
        ];
        let text: Vec<_> =
            figures.iter().filter_map(|(n, what)| Some(format!("{} {what}", count((*n)?)))).collect();
        if !text.is_empty() {
            self.row("  shape", &text.join("  "))?;
        }
        for (label, strides) in [("  remote moves", s.remote_strides), ("  local moves", s.local_strides)] {
            if let Some(strides) = strides.filter(|s| s.total() > 0) {
                self.row(label, &moves(&strides))?;
            }
        }
        for reap in &s.post_to_reap_ns {
            let Some(text) = quantiles(&reap.latency_ns) else { continue };
            let what = format!("{} ≤{}", reap.opcode, bytes(reap.up_to_bytes));
            self.row("  post to reap", &format!("{what}  {text}  (polling delay included)"))?;
        }
        Ok(())
    }
}

fn moves(strides: &Strides) -> String {
    let share = |n: u64| percent(n as f64 / strides.total() as f64);
    format!(
        "{} sequential  {} to the same address  {} elsewhere",
        share(strides.sequential),
        share(strides.same),
        share(strides.random)
    )
}

/// How posts and polls were seen, and how far the figures can be trusted.
pub(in super::super) fn seen(observed: &Observed) -> String {
    let by = match observed.by {
        ObservedBy::Tap => "by the tap",
        ObservedBy::Site => "at probe sites of the tap or the emulated device",
        ObservedBy::Function => "in the provider's functions",
        ObservedBy::Nothing => "not seen",
        ObservedBy::Unknown => "in a way only a newer version knows",
    };
    let share = percent(observed.share);
    let error = observed.error.map_or(" of unknown error".to_owned(), |e| format!(", ±{}", percent(e)));
    let how = match observed.counting {
        _ if observed.by == ObservedBy::Nothing => String::new(),
        Counting::Every => ", every call".to_owned(),
        Counting::Estimated => format!(", {share} of the calls: counts are ESTIMATES{error}"),
        Counting::Ratios => format!(", {share} of the calls: only RATIOS mean something, counts do not"),
        Counting::Unknown => ", counted in a way only a newer version knows".to_owned(),
    };
    let hit = observed.hit_ns.map(|ns| format!(", {} a hit", duration(ns))).unwrap_or_default();
    let cost = hit
        + &observed
            .overhead
            .map(|o| format!(", {:.2} % of its CPU time in all", o * 100.0))
            .unwrap_or_default()
        + &observed
            .profiler
            .map(|cpus| format!(", the profiler {:.1} % of a CPU", cpus * 100.0))
            .unwrap_or_default();
    let slower =
        observed.slice_slowdown.map(|s| format!(", {s:.2} times as slow in slices")).unwrap_or_default();
    let why = if observed.why.is_empty() { String::new() } else { format!(" ({})", clean(&observed.why)) };
    format!("{by}{how}{cost}{slower}{why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_and_ratios_are_named_as_such() {
        let every = Observed { by: ObservedBy::Tap, ..Observed::default() };
        assert_eq!(seen(&every), "by the tap, every call");
        let estimated = Observed {
            by: ObservedBy::Function,
            counting: Counting::Estimated,
            share: 0.25,
            error: Some(0.02),
            ..every.clone()
        };
        assert_eq!(
            seen(&estimated),
            "in the provider's functions, 25 % of the calls: counts are ESTIMATES, ±2 %"
        );
        let unbounded = Observed { error: None, ..estimated.clone() };
        assert!(seen(&unbounded).ends_with("counts are ESTIMATES of unknown error"), "{}", seen(&unbounded));
        let paid = Observed {
            hit_ns: Some(360),
            overhead: Some(0.0082),
            profiler: Some(0.012),
            slice_slowdown: Some(1.9),
            ..every
        };
        assert_eq!(
            seen(&paid),
            "by the tap, every call, 360 ns a hit, 0.82 % of its CPU time in all, the profiler 1.2 % of a CPU, 1.90 times as slow in slices"
        );
        assert!(seen(&Observed { counting: Counting::Ratios, ..estimated }).contains("only RATIOS"));
        assert_eq!(seen(&Observed { why: "a\x1b".into(), ..Observed::default() }), "not seen (a\u{fffd})");
    }
}
