//! What is wrong, as far as the control path tells: each finding with its evidence, cause and remedy.

mod memory;
mod queues;

use probe_user::model::{Model, ProcessModel};
use probe_user::sample::ProcessId;

use super::format::{duration, share};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing.
    Note,
    /// Costs something, or will.
    Warning,
    /// Costs much now, or fails.
    Problem,
}

impl Severity {
    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }

    /// As a mark, so that colour is not the only carrier.
    pub fn mark(self) -> &'static str {
        match self {
            Self::Note => "○",
            Self::Warning => "▲",
            Self::Problem => "■",
        }
    }
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Stable name of the rule.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// In one line.
    pub title: String,
    /// Whose fault it is.
    pub process: ProcessId,
    /// Its command name.
    pub comm: String,
    /// The figures it rests on.
    pub evidence: Vec<String>,
    /// What it costs now, in words; empty where that cannot be told.
    pub cost: String,
    /// Share of one core it takes, 0–1, for ranking.
    pub weight: f64,
    /// Why that is so.
    pub cause: &'static str,
    /// What to do.
    pub remedy: &'static str,
    /// When not to.
    pub unless: &'static str,
    /// The reference workload that shows the effect.
    pub workload: Option<&'static str>,
}

impl Finding {
    /// Everything, as text to be copied.
    pub fn text(&self) -> String {
        let mut text =
            format!("{}: {} ({}, pid {})\n", self.severity.word(), self.title, self.comm, self.process.pid);
        for line in &self.evidence {
            text.push_str(&format!("  evidence  {line}\n"));
        }
        for (name, line) in [
            ("cost", self.cost.as_str()),
            ("cause", self.cause),
            ("remedy", self.remedy),
            ("unless", self.unless),
        ] {
            if !line.is_empty() {
                text.push_str(&format!("  {name:<9} {line}\n"));
            }
        }
        if let Some(workload) = self.workload {
            text.push_str(&format!("  proof     cargo xtask workload compare {workload}\n"));
        }
        text
    }
}

/// A rule looks at one process.
type Rule = fn(&Model, &ProcessModel) -> Option<Finding>;

const RULES: &[Rule] = &[
    memory::registered_again,
    memory::registered_all_the_time,
    memory::registration_failed,
    memory::first_touch,
    queues::cq_per_qp,
    queues::every_send_signalled,
    queues::broken,
    queues::change_failed,
    queues::rnr_timer_zero,
    queues::rnr_retry_zero,
    queues::small_path_mtu,
    queues::more_than_a_nic_caches,
];

/// All findings, the worst first, among equals the dearest.
pub fn find(model: &Model) -> Vec<Finding> {
    let mut findings: Vec<Finding> = model
        .processes
        .values()
        .flat_map(|process| RULES.iter().filter_map(|rule| rule(model, process)))
        .collect();
    findings.sort_by(|a, b| {
        b.severity
            .cmp(&a.severity)
            .then(b.weight.total_cmp(&a.weight))
            .then(a.process.cmp(&b.process))
            .then(a.id.cmp(b.id))
    });
    findings
}

/// The parts of a finding that every rule fills in the same way.
fn finding(
    id: &'static str,
    severity: Severity,
    process: &ProcessModel,
    title: impl Into<String>,
) -> Finding {
    Finding {
        id,
        severity,
        title: title.into(),
        process: process.info.id,
        comm: super::format::harmless(&process.info.comm).into_owned(),
        evidence: Vec::new(),
        cost: String::new(),
        weight: 0.0,
        cause: "",
        remedy: "",
        unless: "",
        workload: None,
    }
}

/// Time spent, as a share of one core over the recording, and in words.
fn cost(model: &Model, total_ns: u64) -> (f64, String) {
    let over = model.duration_ns().max(1);
    let weight = total_ns as f64 / over as f64;
    (
        weight,
        format!("{} in {}: {} of a core", duration(total_ns as f64), duration(over as f64), share(weight)),
    )
}
