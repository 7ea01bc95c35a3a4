//! What cannot be seen, said aloud.

use super::super::finding::{Confidence, Severity};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Verdict};
use super::super::subject::{Mover, Subject};
use crate::sample::{NO_POST_SEEN, ObservedBy};

/// A data path that goes past every call.
pub static UNSEEN: Rule = Rule {
    id: "data-path-unseen",
    title: "posts and polls of this process cannot be seen",
    looks_at: "how the data path of the process is observed, and what its source says it cannot see",
    plane: Plane::Control,
    thresholds: &[],
    cause: "The program writes work requests without calling the verbs library (UCX's accelerated mlx5 transports, DEVX queue pairs, GPU-initiated communication), or through a library that cannot be probed. No rule on posts and polls covers it.",
    remedy: "Judge this process by its control calls and the ports' counters alone. Where a run may be slower: UCX shows its posts with UCX_TLS=rc_v (plain verbs), NCCL with NCCL_GIN_ENABLE=0 (no GPU-initiated transport).",
    unless: "",
    workload: None,
    shown: Shown::Synthetic { why: "such programs need a device that has these ways" },
    links: &["https://docs.kernel.org/infiniband/user_verbs.html"],
    met: &["NVIDIA/nccl#2181"],
    check: Check::Process(unseen),
};

fn unseen(subject: &Subject<'_>) -> Verdict {
    let path = &subject.process.data_path;
    let tried = path.observed.by == ObservedBy::Nothing && !path.observed.why.is_empty();
    if !tried && path.unseen.is_empty() {
        return Verdict::Clear;
    }
    let Some((_, ready)) = subject.those(|qp| qp.state.as_deref() == Some("RTS")) else {
        return Verdict::Clear;
    };
    if path.observed.why == NO_POST_SEEN {
        return no_post(subject);
    }
    let mut case = Case::new(
        Severity::Note,
        Confidence::High,
        if tried { UNSEEN.title } else { "part of the posts and polls of this process cannot be seen" },
    );
    if tried {
        case = case.because(path.observed.why.clone());
    }
    for line in path.unseen.iter().take(4) {
        case = case.because(line.clone());
    }
    case.because_of(Some(ready)).found()
}

/// No post passed a probe: it made none, or it goes past them.
fn no_post(subject: &Subject<'_>) -> Verdict {
    // Every post on the emulated device passes its sites: a process that others read and write makes none.
    if matches!(subject.mover(), Mover::Untimed | Mover::Modelled) {
        return Verdict::Clear;
    }
    let Some((_, ready)) = subject.those(|qp| qp.state.as_deref() == Some("RTS")) else {
        return Verdict::Clear;
    };
    Case::new(Severity::Note, Confidence::Low, "no post and no poll of this process was seen")
        .because(NO_POST_SEEN)
        .because_of(Some(ready))
        .cause("Either it makes none, as a server whose peers READ and WRITE its memory; or it writes work requests without calling the verbs library (UCX's accelerated mlx5 transports, DEVX queue pairs, GPU-initiated communication). No rule on posts and polls covers it then.")
        .found()
}
