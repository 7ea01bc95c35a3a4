//! Tables of posts and polls: counts per queue and sample, and what is counted by a key.

use std::io;

use crate::model::bounds;
use crate::sample::{
    DataPath, FailedRequest, Histogram, Observed, ObservedBy, PostedTo, ProcessId, QueueCounts, QueueKind,
};

use super::{Table, hex, some};

type Count = (&'static str, fn(&QueueCounts) -> u64);

const COUNTS: [Count; 23] = [
    ("post_calls", |c| c.post_calls),
    ("post_failed", |c| c.post_failed),
    ("wrs", |c| c.wrs),
    ("signalled", |c| c.signalled),
    ("inline", |c| c.inline),
    ("bytes", |c| c.bytes),
    ("sges", |c| c.sges),
    ("longest_unsignalled", |c| c.longest_unsignalled),
    ("recv_calls", |c| c.recv_calls),
    ("recv_failed", |c| c.recv_failed),
    ("recv_wrs", |c| c.recv_wrs),
    ("recv_bytes", |c| c.recv_bytes),
    ("recv_sges", |c| c.recv_sges),
    ("cut", |c| c.cut),
    ("aborted", |c| c.aborted),
    ("polls", |c| c.polls),
    ("empty_polls", |c| c.empty_polls),
    ("failed_polls", |c| c.failed_polls),
    ("cqes", |c| c.cqes),
    ("cqe_errors", |c| c.cqe_errors),
    ("cut_polls", |c| c.cut_polls),
    ("notifies", |c| c.notifies),
    ("threads", |c| c.threads.unwrap_or(0).into()),
];

/// The tables.
pub(super) struct Queues {
    counts: Table,
    keyed: Table,
    latencies: Table,
}

impl Queues {
    /// Makes them with `table`, which takes a file name and columns.
    pub(super) fn create(table: impl Fn(&str, &[&str]) -> io::Result<Table>) -> io::Result<Self> {
        let names: Vec<_> = COUNTS.iter().map(|(name, _)| *name).collect();
        let id = ["t_ns", "pid", "start_ns", "queue", "object"];
        let seen = ["pointer", "number", "gone", "by", "counting", "share", "error"];
        let columns = [id.as_slice(), seen.as_slice(), names.as_slice()].concat();
        Ok(Self {
            counts: table("queues.csv", &columns)?,
            keyed: table("queue_figures.csv", &[id.as_slice(), &["figure", "key", "value"]].concat())?,
            latencies: table(
                "queue_latencies.csv",
                &[id.as_slice(), &["figure", "opcode", "size_class", "from_ns", "to_ns", "count"]].concat(),
            )?,
        })
    }

    /// A row for the process (its `queue` is `all`), and one for each queue that changed.
    pub(super) fn sample(&mut self, t: &str, id: ProcessId, path: &DataPath) -> io::Result<()> {
        let head = |queue: &str, object: String| {
            [t.to_owned(), id.pid.to_string(), id.start_ns.to_string(), queue.to_owned(), object]
        };
        let all = [String::new(), String::new(), "false".to_owned()];
        self.rows(head("all", String::new()), all, &path.observed, &path.totals)?;
        for queue in &path.queues {
            let kind = match queue.queue {
                QueueKind::Qp => "qp",
                QueueKind::Cq => "cq",
                QueueKind::Srq => "srq",
                QueueKind::Unknown => continue,
            };
            let named = [hex(queue.pointer), queue.number.to_string(), queue.gone.to_string()];
            let observed = queue.observed.as_ref().unwrap_or(&path.observed);
            self.rows(head(kind, queue.object.to_string()), named, observed, &queue.counts)?;
        }
        Ok(())
    }

    fn rows(
        &mut self,
        head: [String; 5],
        named: [String; 3],
        observed: &Observed,
        c: &QueueCounts,
    ) -> io::Result<()> {
        if observed.by == ObservedBy::Nothing {
            return Ok(());
        }
        let word = |value: serde_json::Result<serde_json::Value>| {
            value.ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_else(|| "unknown".to_owned())
        };
        let seen = [
            word(serde_json::to_value(observed.by)),
            word(serde_json::to_value(observed.counting)),
            observed.share.to_string(),
            some(observed.error),
        ];
        let numbers = COUNTS.iter().map(|(_, of)| of(c).to_string());
        self.counts.write_record(head.iter().cloned().chain(named).chain(seen).chain(numbers))?;
        let mut row = |figure: &str, key: String, value: u64| -> io::Result<()> {
            let tail = [figure.to_owned(), key, value.to_string()];
            self.keyed.write_record(head.iter().cloned().chain(tail)).map_err(io::Error::from)
        };
        for (opcode, n) in &c.opcodes {
            row("opcodes", opcode.name().to_owned(), *n)?;
        }
        for (errno, n) in &c.post_errnos {
            row("post_errnos", errno.to_string(), *n)?;
        }
        for (status, n) in &c.statuses {
            row("statuses", status.to_string(), *n)?;
        }
        let Some(detail) = &c.detail else { return Ok(()) };
        for (class, n) in &detail.sizes {
            row("sizes", class.to_string(), *n)?;
        }
        for (figure, value) in [
            ("examined_wrs", detail.examined_wrs),
            ("unaligned_64", detail.unaligned_64),
            ("unaligned_4096", detail.unaligned_4096),
            ("odd_lengths", detail.odd_lengths),
            ("could_inline", detail.could_inline),
            ("mergeable", detail.mergeable),
            ("most_outstanding", detail.most_outstanding),
            ("most_cqes_per_poll", detail.most_cqes_per_poll),
            ("blind_events", detail.blind_events),
            ("guessed_cqes", detail.guessed_cqes),
        ] {
            value.map_or(Ok(()), |value| row(figure, String::new(), value))?;
        }
        for (figure, strides) in
            [("remote_strides", detail.remote_strides), ("local_strides", detail.local_strides)]
        {
            let Some(strides) = strides else { continue };
            row(figure, "sequential".to_owned(), strides.sequential)?;
            row(figure, "same".to_owned(), strides.same)?;
            row(figure, "random".to_owned(), strides.random)?;
        }
        for one in &detail.failed_by_qp {
            let key = format!("{}:{}", one.status, one.qpn);
            row("failed_by_qp", key.clone(), one.count)?;
            first("failed_first", &key, one.first.as_deref(), &mut row)?;
        }
        for one in &detail.refused {
            let key = format!("{}:{}", one.errno, one.number);
            let (count, of_first) = match one.queue {
                PostedTo::Send => ("refused_sends", "refused_sends_first"),
                PostedTo::Receive => ("refused_receives", "refused_receives_first"),
                PostedTo::SharedReceive => ("refused_shared_receives", "refused_shared_receives_first"),
            };
            row(count, key.clone(), one.count)?;
            first(of_first, &key, one.first.as_deref(), &mut row)?;
        }
        for one in &detail.post_to_reap_ns {
            let class = one.size_class.to_string();
            self.histogram(&head, "post_to_reap_ns", one.opcode.name(), &class, &one.latency_ns)?;
        }
        detail.cqe_to_post_ns.as_ref().map_or(Ok(()), |h| self.histogram(&head, "cqe_to_post_ns", "", "", h))
    }

    fn histogram(
        &mut self,
        head: &[String; 5],
        figure: &str,
        opcode: &str,
        class: &str,
        histogram: &Histogram,
    ) -> io::Result<()> {
        for (bucket, n) in &histogram.0 {
            let (low, high) = bounds(*bucket);
            let tail = [figure.to_owned(), opcode.to_owned(), class.to_owned()];
            let numbers = [low, high, *n].map(|n| n.to_string());
            self.latencies.write_record(head.iter().cloned().chain(tail).chain(numbers))?;
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        [&mut self.counts, &mut self.keyed, &mut self.latencies].into_iter().try_for_each(Table::flush)
    }
}

/// What is known of the first request that failed, a row for each figure: the key is followed by its name.
fn first(
    figure: &str,
    key: &str,
    first: Option<&FailedRequest>,
    row: &mut impl FnMut(&str, String, u64) -> io::Result<()>,
) -> io::Result<()> {
    let Some(first) = first else { return Ok(()) };
    let request = first.request.as_ref();
    let figures = [
        ("t_ns", Some(first.t_ns)),
        ("wr_id", first.wr_id),
        ("before", first.before),
        ("outstanding", first.outstanding),
        ("vendor_err", first.vendor_err.map(u64::from)),
        ("posted_ns", request.and_then(|r| r.posted_ns)),
        ("bytes", request.and_then(|r| r.bytes)),
        ("addr", request.and_then(|r| r.addr)),
        ("lkey", request.and_then(|r| r.lkey).map(u64::from)),
        ("remote_addr", request.and_then(|r| r.remote_addr)),
        ("rkey", request.and_then(|r| r.rkey).map(u64::from)),
    ];
    let mut known = figures.into_iter().filter_map(|(name, value)| Some((name, value?)));
    known.try_for_each(|(name, value)| row(figure, format!("{key}:{name}"), value))
}
