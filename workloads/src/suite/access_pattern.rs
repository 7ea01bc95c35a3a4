//! Sequential, strided and random access; prefetch advice; and the flag that does not exist.

use super::about::{About, Comparison, Finding, Reality, Sweep, Timing, Trial, Variant, Workload};
use super::traffic::Traffic;
use crate::bench::Bench;
use crate::drive::status_name;
use crate::endpoint::{Endpoint, Spec};
use crate::load::{Load, Mix, Op, Walk};
use crate::measure::Metric;
use crate::memory::{Buffer, MemoryKind};
use crate::predict::Case;
use crate::sync::next_completion;
use crate::verbs::{Access, Advice, Mr, Pd, Retry, SendList, ffi, prefetch};
use anyhow::{Result, bail};
use std::rc::Rc;
use std::time::Duration;

/// The workload.
pub struct AccessPattern;

static ABOUT: About = About {
    name: "access-pattern",
    question: "Does a NIC favour sequential access, and can it be told?",
    claim: "sequential access is favoured by the NIC; hinting it gave 15 %",
    note: "the flag the article names does not exist: WRITE_WITH_IMM is an opcode that consumes a receive at the responder, \
           never a hint. What exists is prefetch advice for on-demand regions (ibv_advise_mr)",
    signal: "address stride of successive WRs per QP",
    variants: &[
        Variant { key: "random", label: "64-byte READs anywhere in the region" },
        Variant { key: "strided", label: "64-byte READs one page apart" },
        Variant { key: "sequential", label: "64-byte READs one after the other" },
    ],
    comparisons: &[
        Comparison {
            title: "sequential instead of random",
            baseline: "random",
            optimised: "sequential",
            metric: Metric::Rate,
            reality: Reality::NicOnly,
            timing: Timing::Scaled,
        },
        Comparison {
            title: "sequential instead of one access per page",
            baseline: "strided",
            optimised: "sequential",
            metric: Metric::Rate,
            reality: Reality::NicOnly,
            timing: Timing::Scaled,
        },
    ],
    sweep: Some(Sweep {
        parameter: "region",
        unit: "bytes",
        values: &[1 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30],
        usual: 256 << 20,
        variants: &["random", "strided", "sequential"],
    }),
};

fn load(bench: &Bench, variant: &str, value: Option<u64>) -> Result<Load> {
    let walk = match variant {
        "random" => Walk::Random,
        "strided" => Walk::Strided(4096),
        "sequential" => Walk::Sequential,
        other => bail!("no variant {other:?}"),
    };
    Ok(Load {
        mix: Mix::Only(Op::Read),
        size: bench.size(64)?,
        window: bench.window(32),
        walk,
        region: value.unwrap_or_else(|| bench.region(256 << 20)),
        ..Load::default()
    })
}

impl Workload for AccessPattern {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn trial(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Box<dyn Trial>> {
        let spec = Spec { remote_memory: bench.memory(MemoryKind::Aligned), ..Spec::default() };
        Traffic::boxed(bench, spec, load(bench, variant, value)?)
    }

    fn case(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Option<Case>> {
        Ok(Some(Case::of(load(bench, variant, value)?)))
    }

    fn demonstrate(&self, bench: &Bench) -> Result<Vec<Finding>> {
        Ok(vec![immediate_consumes_a_receive(bench)?, immediate_without_receive(bench)?, advice(bench)?])
    }
}

fn write_with_immediate(endpoint: &Endpoint) -> Result<Option<ffi::ibv_wc>> {
    let mut list = SendList::with_capacity(1);
    let sge = ffi::ibv_sge { addr: endpoint.local.addr(), length: 8, lkey: endpoint.local.lkey() };
    list.write(1, sge, endpoint.remote.addr, endpoint.remote.rkey, Some(42));
    list.flag_last(true, false);
    endpoint.qps[0].post(&mut list)?;
    next_completion(&endpoint.qps[0], Duration::from_secs(2))
}

fn immediate_consumes_a_receive(bench: &Bench) -> Result<Finding> {
    let mut endpoint = Endpoint::open(bench, &Spec { recv_depth: 4, ..Spec::default() })?;
    endpoint.peer_receives(0, 2)?;
    let sent = write_with_immediate(&endpoint)?;
    let consumed = endpoint.peer_received()?;
    Ok(Finding {
        statement: "WRITE_WITH_IMM consumes a receive at the responder: it is a message, not a hint".into(),
        observed: format!("2 receives posted, 1 WRITE_WITH_IMM sent, {consumed} consumed"),
        holds: Some(sent.is_some_and(|wc| wc.is_valid()) && consumed == 1),
    })
}

fn immediate_without_receive(bench: &Bench) -> Result<Finding> {
    let retry = Retry { rnr: 0, ..Retry::default() };
    let endpoint = Endpoint::open(bench, &Spec { retry, ..Spec::default() })?;
    let seen = write_with_immediate(&endpoint)?;
    let failure = seen.and_then(|wc| wc.error());
    Ok(Finding {
        statement: "used as a hint, without receives posted, it breaks the connection".into(),
        observed: match (&seen, failure) {
            (_, Some((status, _))) => format!("no receive posted: {:?}", status_name(status)),
            (Some(_), None) => "it went through without a receive".into(),
            (None, _) => "no completion within 2 s".into(),
        },
        holds: Some(
            failure.is_some_and(|(status, _)| status == ffi::ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR),
        ),
    })
}

fn advice(bench: &Bench) -> Result<Finding> {
    let statement = "prefetch advice exists for on-demand regions (ibv_advise_mr)".to_owned();
    let pd = Pd::new(&bench.device().context)?;
    let buffer = Rc::new(Buffer::allocate(MemoryKind::Aligned, 1 << 20)?);
    let region = match Mr::register(&pd, &buffer, Access::OnDemand) {
        Ok(region) => region,
        Err(error) => {
            let observed = format!("this device has no on-demand regions: {}", error.cause);
            return Ok(Finding { statement, observed, holds: None });
        }
    };
    let (observed, holds) = match prefetch(&pd, &region) {
        Ok(Advice::Taken) => ("the device took the advice for 1 MiB".to_owned(), Some(true)),
        Ok(Advice::Unsupported) => ("this device does not support it".to_owned(), None),
        Err(error) => (format!("the device refused it: {error}"), None),
    };
    Ok(Finding { statement, observed, holds })
}
