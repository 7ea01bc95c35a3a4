//! Families of posts and polls, per process.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::model::ProcessModel;
use crate::sample::{Counting, QueueCounts};

use super::{Text, escaped, family};

/// A family: its name, what it counts, and how it follows from the counts.
type Family = (&'static str, &'static str, fn(&QueueCounts) -> u64);

const FAMILIES: [Family; 12] = [
    ("rdma_posts", "Calls that post sends.", |c| c.post_calls),
    ("rdma_posts_failed", "Calls that post sends and failed.", |c| c.post_failed),
    ("rdma_wrs", "Send work requests posted.", |c| c.wrs),
    ("rdma_wrs_signaled", "Send work requests that ask for a completion.", |c| c.signalled),
    ("rdma_wrs_inline", "Send work requests with inline data.", |c| c.inline),
    ("rdma_wr_bytes", "Payload of the send work requests.", |c| c.bytes),
    ("rdma_recv_wrs", "Receive work requests posted.", |c| c.recv_wrs),
    ("rdma_polls", "Polls of completion queues.", |c| c.polls),
    ("rdma_polls_empty", "Polls that found nothing.", |c| c.empty_polls),
    ("rdma_cqes", "Completions taken.", |c| c.cqes),
    ("rdma_cqe_errors", "Completions with an error.", |c| c.cqe_errors),
    ("rdma_cq_notifies", "Notifications asked for.", |c| c.notifies),
];

/// Writes the families of the processes that were observed, each with its labels `pid` and `comm`. Counts of which only
/// the ratios mean something are left out, and so are completions where some were not looked at; estimates are told by `rdma_data_path_share`.
pub(super) fn write<'a>(
    text: &mut Text,
    processes: impl Iterator<Item = (String, String, &'a ProcessModel)>,
) {
    let mut sums: BTreeMap<(String, String), (QueueCounts, f64)> = BTreeMap::new();
    for (pid, comm, process) in processes {
        let path = &process.data_path;
        if !path.is_observed() || !matches!(path.observed.counting, Counting::Every | Counting::Estimated) {
            continue;
        }
        let (counts, share) = sums.entry((pid, comm)).or_insert_with(|| (QueueCounts::default(), 1.0));
        counts.add(&path.totals.counts());
        *share = share.min(path.observed.share);
    }
    if sums.is_empty() {
        return;
    }
    for (name, help, of) in FAMILIES {
        family(text, name, "counter", Some("bytes"), help);
        for ((pid, comm), (counts, _)) in &sums {
            if name.starts_with("rdma_cqe") && counts.all_cqes().is_none() {
                continue;
            }
            let _ = writeln!(text, "{name}_total{{pid=\"{pid}\",comm=\"{}\"}} {}", escaped(comm), of(counts));
        }
    }
    family(text, "rdma_wrs_by_opcode", "counter", None, "Send work requests by opcode.");
    for ((pid, comm), (counts, _)) in &sums {
        for (opcode, n) in &counts.opcodes {
            let labels = format!("pid=\"{pid}\",comm=\"{}\",opcode=\"{}\"", escaped(comm), opcode.name());
            let _ = writeln!(text, "rdma_wrs_by_opcode_total{{{labels}}} {n}");
        }
    }
    let help = "Share of the posts and polls looked at; below 1, the counts are estimates.";
    family(text, "rdma_data_path_share", "gauge", None, help);
    for ((pid, comm), (_, share)) in &sums {
        let _ = writeln!(text, "rdma_data_path_share{{pid=\"{pid}\",comm=\"{}\"}} {share:?}", escaped(comm));
    }
}
