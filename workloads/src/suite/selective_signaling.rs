//! Asking for a completion of every request, or of one in N.

use super::about::{About, Comparison, Finding, Reality, Sweep, Timing, Trial, Variant, Workload};
use super::traffic::Traffic;
use crate::bench::Bench;
use crate::drive::status_name;
use crate::endpoint::{Endpoint, Spec};
use crate::load::Load;
use crate::measure::Metric;
use crate::predict::Case;
use crate::sync::next_completion;
use crate::verbs::{PostError, Qp, Retry, SendList, State, Transport, ffi};
use anyhow::{Context as _, Result, bail};
use std::time::{Duration, Instant};

/// The workload.
pub struct SelectiveSignaling;

static ABOUT: About = About {
    name: "selective-signaling",
    question: "What does a completion for every request cost?",
    claim: "signalling only the last request of a batch tripled a log-replication workload",
    note: "a failed unsignalled request IS reported on RC, unlike the article says; with no signalled request in time the \
           send queue fills up",
    signal: "signalled share of WRs, CQEs per WR, longest unsignalled run against the send queue's depth",
    variants: &[
        Variant { key: "all", label: "requests posted one by one, every one signalled" },
        Variant { key: "one-in-n", label: "requests posted one by one, one in N signalled" },
        Variant { key: "list-all", label: "lists of N, every request signalled" },
        Variant { key: "list-last", label: "lists of N, the last request signalled" },
    ],
    comparisons: &[
        Comparison {
            title: "signal one request in 16 instead of all, posted one by one",
            baseline: "all",
            optimised: "one-in-n",
            metric: Metric::Rate,
            reality: Reality::AnyDevice,
            timing: Timing::Scaled,
        },
        Comparison {
            title: "signal the last of a list of 16 instead of all of it",
            baseline: "list-all",
            optimised: "list-last",
            metric: Metric::Rate,
            reality: Reality::AnyDevice,
            timing: Timing::Scaled,
        },
        Comparison {
            title: "both at once: from single signalled requests to a list with one signal",
            baseline: "all",
            optimised: "list-last",
            metric: Metric::Rate,
            reality: Reality::AnyDevice,
            timing: Timing::Scaled,
        },
    ],
    sweep: Some(Sweep {
        parameter: "N",
        unit: "requests",
        values: &[2, 4, 8, 16, 32, 64, 128],
        usual: 16,
        variants: &["one-in-n", "list-all", "list-last"],
    }),
};

fn load(bench: &Bench, variant: &str, value: Option<u64>) -> Result<Load> {
    let n = u32::try_from(value.unwrap_or(16)).context("N is too large")?;
    let (batch, signal_every) = match variant {
        "all" => (1, 1),
        "one-in-n" => (1, n),
        "list-all" => (n, 1),
        "list-last" => (n, n),
        other => bail!("no variant {other:?}"),
    };
    // The same window for every N, wide enough for two lists of the longest.
    let window = bench.window(256).max(n);
    Ok(Load {
        size: bench.size(64)?,
        window,
        batch,
        signal_every,
        region: bench.region(1 << 20),
        ..Load::default()
    })
}

impl Workload for SelectiveSignaling {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn trial(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Box<dyn Trial>> {
        Traffic::boxed(bench, Spec::default(), load(bench, variant, value)?)
    }

    fn case(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Option<Case>> {
        Ok(Some(Case::of(load(bench, variant, value)?)))
    }

    fn demonstrate(&self, bench: &Bench) -> Result<Vec<Finding>> {
        Ok(vec![unsignalled_failure(bench)?, uc_failure(bench)?, queue_full(bench)?])
    }
}

/// How long to look for a completion that may never come.
const LOOK: Duration = Duration::from_millis(500);

/// One unsignalled WRITE with a key the peer never gave out.
fn write_with_bad_key(endpoint: &Endpoint, signaled: bool) -> Result<()> {
    let mut list = SendList::with_capacity(1);
    let sge = ffi::ibv_sge { addr: endpoint.local.addr(), length: 8, lkey: endpoint.local.lkey() };
    list.write(7, sge, endpoint.remote.addr, endpoint.remote.rkey ^ 0x00ff_ff00, None);
    list.flag_last(signaled, false);
    endpoint.qps[0].post(&mut list)?;
    Ok(())
}

fn unsignalled_failure(bench: &Bench) -> Result<Finding> {
    let endpoint = Endpoint::open(bench, &Spec::default())?;
    write_with_bad_key(&endpoint, false)?;
    let seen = next_completion(&endpoint.qps[0], LOOK)?;
    let state = endpoint.qps[0].state()?;
    let failure = seen.and_then(|wc| wc.error());
    Ok(Finding {
        statement:
            "on RC a failed unsignalled request still makes a completion, and the QP goes to the error state"
                .into(),
        observed: match failure {
            Some((status, _)) => format!("one completion, {:?}, QP state {state:?}", status_name(status)),
            None => format!("no error completion within {} ms, QP state {state:?}", LOOK.as_millis()),
        },
        holds: Some(failure.is_some() && state == State::Err),
    })
}

fn uc_failure(bench: &Bench) -> Result<Finding> {
    let statement = "on UC a remote error is never reported: the sender sees success".to_owned();
    let spec = Spec { transport: Transport::Uc, ..Spec::default() };
    let endpoint = match Endpoint::open(bench, &spec) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            return Ok(Finding {
                statement,
                observed: format!("no UC queue pair here: {error:#}"),
                holds: None,
            });
        }
    };
    write_with_bad_key(&endpoint, true)?;
    let seen = next_completion(&endpoint.qps[0], LOOK)?;
    let state = endpoint.qps[0].state()?;
    Ok(match seen {
        Some(wc) => Finding {
            statement,
            observed: match wc.error() {
                None => format!("completed with success although the key was wrong, QP state {state:?}"),
                Some((status, _)) => format!("completed with {:?}, QP state {state:?}", status_name(status)),
            },
            holds: Some(wc.is_valid()),
        },
        None => Finding { statement, observed: "no completion at all".into(), holds: Some(false) },
    })
}

/// How long a full queue is given to drain.
const PATIENCE: Duration = Duration::from_secs(2);

/// Posts until the request is accepted; gives the last refusal when patience is at its end.
fn insist(qp: &Qp, list: &mut SendList) -> Result<Option<PostError>> {
    let start = Instant::now();
    loop {
        let Err(error) = qp.post(list) else { return Ok(None) };
        crate::interrupt::check()?;
        if start.elapsed() >= PATIENCE {
            return Ok(Some(error));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn queue_full(bench: &Bench) -> Result<Finding> {
    const DEPTH: u32 = 32;
    let spec = Spec { depth: DEPTH, retry: Retry::default(), ..Spec::default() };
    let endpoint = Endpoint::open(bench, &spec)?;
    let depth = endpoint.qps[0].granted().send;
    let mut list = SendList::with_capacity(1);
    let mut accepted = 0u32;
    // Four times round the queue, and patience where it is full: a device that frees slots by itself shows in the end.
    let refused = loop {
        crate::interrupt::check()?;
        let sge = ffi::ibv_sge { addr: endpoint.local.addr(), length: 8, lkey: endpoint.local.lkey() };
        list.clear();
        list.write(u64::from(accepted), sge, endpoint.remote.addr, endpoint.remote.rkey, None);
        if let Some(error) = insist(&endpoint.qps[0], &mut list)? {
            break Some(error);
        }
        accepted += 1;
        if accepted >= 4 * depth {
            break None;
        }
    };
    Ok(Finding {
        statement: "with nothing signalled the send queue fills and stays full, though every request has long finished".into(),
        observed: match &refused {
            Some(error) => format!("request {} of a queue of {depth} was refused and again 100 ms later: {}", accepted + 1, error.error),
            None => format!("{accepted} requests went through a queue of {depth}: this device frees slots without a completion"),
        },
        // Freeing slots by itself is the device's right; software devices whose queue the kernel drains do.
        holds: refused.is_some().then_some(true),
    })
}
