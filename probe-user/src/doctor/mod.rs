//! Diagnosis: what is wrong, why, what it costs and what to do, from a [`Model`] alone.
//!
//! A rule ([`Rule`]) is a page of the manual and a pure function. It is asked about each process, or once about the
//! host, and answers with a finding, with nothing, or with why it cannot tell. The dashboard, `rdma-probe doctor` and
//! traces carry the same [`Finding`]s.

mod coverage;
mod document;
mod finding;
mod growth;
mod manual;
mod named;
mod peer;
mod prove;
mod rule;
mod rules;
mod settings;
mod subject;
mod text;
mod traffic;
mod words;

use std::collections::BTreeMap;

use crate::model::{Model, ProcessModel};

pub use document::{Document, SCHEMA};
pub use finding::{Confidence, Cost, Evidence, Finding, Open, Owner, Severity, Undecided};
pub use manual::{all_pages, page};
pub use prove::Parameters;
pub use rule::{Plane, Rule, Shown, Threshold};
pub use rules::RULES;
pub use settings::{Settings, SettingsError};
pub use text::write_text;

use rule::{Case, Check, Verdict};
use subject::{Host, Subject};
use traffic::Traffic;

/// Findings, the worst first, and what could not be decided.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Diagnosis {
    /// What is wrong: the worst first, among equals the dearest.
    pub findings: Vec<Finding>,
    /// What could not be decided.
    pub open: Vec<Open>,
    /// Rules asked.
    pub rules: usize,
    /// Processes looked at.
    pub processes: usize,
}

/// Why nothing is said of posts and polls.
const UNSEEN: &str = "posts and polls were not observed";

/// Why nothing is said of control calls.
const CALLS_UNSEEN: &str =
    "registrations, creations, state changes and waits were not observed: their probes need root";

/// The rule of that name.
pub fn rule(id: &str) -> Option<&'static Rule> {
    RULES.iter().copied().find(|rule| rule.id == id)
}

/// All findings with the settings nobody changed, the worst first.
pub fn find(model: &Model) -> Vec<Finding> {
    examine(model, &Settings::default()).findings
}

/// Asks every rule about everything it can look at.
pub fn examine(model: &Model, settings: &Settings) -> Diagnosis {
    let host = Host::of(model, settings);
    let mut diagnosis = Diagnosis::default();
    let mut open = Undecideds::new();
    let wanted: Vec<&'static Rule> = RULES.iter().copied().filter(|rule| settings.wants(rule.id)).collect();
    diagnosis.rules = wanted.len();
    for rule in &wanted {
        if let Check::Host(check) = rule.check {
            let verdict = check(&host.for_rule(rule.id));
            settle(rule, None, verdict, &mut diagnosis.findings, &mut open);
        }
    }
    // What ended without an RDMA call (a shell, a helper) has nothing to be judged.
    for process in model.processes.values().filter(|p| !p.calls.is_empty() || p.data_path.is_observed()) {
        diagnosis.processes += 1;
        let mut qps = process.queues.qps();
        qps.extend(process.queues.ended());
        let traffic = Traffic::of(process);
        for rule in &wanted {
            let Check::Process(check) = rule.check else { continue };
            let traffic = traffic.as_ref();
            let mut verdict = match (rule.plane, traffic) {
                (Plane::Data, None) => Verdict::NotObservable(UNSEEN),
                _ => check(&Subject { model, process, qps: &qps, host: &host, traffic, rule: rule.id }),
            };
            if let (Plane::Data, Verdict::Found(case), Some(traffic)) = (rule.plane, &mut verdict, traffic)
                && let Some(caveat) = traffic.caveat()
            {
                case.confidence = case.confidence.lower();
                case.evidence.push(caveat);
            }
            if matches!(verdict, Verdict::Clear)
                && rule.plane == Plane::Control
                && !subject::sees_calls(model, process)
            {
                verdict = Verdict::NotObservable(CALLS_UNSEEN);
            }
            settle(rule, Some(process), verdict, &mut diagnosis.findings, &mut open);
        }
    }
    diagnosis.findings.sort_by(|a, b| {
        b.severity
            .cmp(&a.severity)
            .then(b.cost.weight().total_cmp(&a.cost.weight()))
            .then(b.confidence.cmp(&a.confidence))
            .then(a.process_id().cmp(&b.process_id()))
            .then(a.id.cmp(b.id))
    });
    diagnosis.open = open
        .into_iter()
        .map(|((verdict, why), (rules, processes))| Open { verdict, why: why.to_owned(), rules, processes })
        .collect();
    diagnosis
}

/// Rules and processes that were not decided, by verdict and reason.
type Undecideds = BTreeMap<(Undecided, &'static str), (Vec<&'static str>, Vec<u32>)>;

fn settle(
    rule: &'static Rule,
    process: Option<&ProcessModel>,
    verdict: Verdict,
    findings: &mut Vec<Finding>,
    open: &mut Undecideds,
) {
    let (undecided, why) = match verdict {
        Verdict::Clear => return,
        Verdict::Found(case) => {
            findings.push(finding(rule, process, *case));
            return;
        }
        Verdict::NotEnoughData(why) => (Undecided::NotEnoughData, why),
        Verdict::NotObservable(why) => (Undecided::NotObservable, why),
    };
    let (rules, processes) = open.entry((undecided, why)).or_default();
    // Names of rules are constants: the same one lies at the same place.
    if !rules.iter().any(|known| std::ptr::eq(*known, rule.id)) {
        rules.push(rule.id);
    }
    // Processes come one after the other, so that one told of already is the last.
    if let Some(process) = process
        && processes.last() != Some(&process.info.id.pid)
    {
        processes.push(process.info.id.pid);
    }
}

fn finding(rule: &'static Rule, process: Option<&ProcessModel>, case: Case) -> Finding {
    Finding {
        id: rule.id,
        title: case.title,
        severity: case.severity,
        confidence: case.confidence,
        process: process.map(|p| Owner { id: p.info.id, comm: harmless(&p.info.comm) }),
        evidence: case.evidence,
        cost: case.cost,
        cause: case.cause.unwrap_or_else(|| rule.cause.to_owned()),
        remedy: case.remedy.unwrap_or_else(|| rule.remedy.to_owned()),
        unless: rule.unless,
        workload: rule.workload,
    }
}

/// A name that somebody else chose, without what a terminal would obey.
fn harmless(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
