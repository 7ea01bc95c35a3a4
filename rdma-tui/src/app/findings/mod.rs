//! What is wrong, as far as the control path tells: each finding with its evidence, cause and remedy.

mod memory;
mod queues;

use probe_user::model::{Model, ProcessModel, Qp};
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

/// What a rule looks at: one process, with what is looked up once for all rules.
struct Subject<'m> {
    model: &'m Model,
    process: &'m ProcessModel,
    qps: Vec<&'m Qp>,
    host: Host,
}

/// Figures of the whole host.
#[derive(Clone, Copy)]
struct Host {
    /// Live QPs.
    qps: u64,
    /// The process that has most of them.
    most_qps: Option<ProcessId>,
    /// Smallest active MTU of all ports that tell one, bytes.
    smallest_mtu: Option<u32>,
}

impl Host {
    fn of(model: &Model) -> Self {
        let live = |p: &ProcessModel| p.queues.qp_population.live;
        let ports = model.devices.values().flat_map(|device| &device.ports);
        Self {
            qps: model.processes.values().map(live).fold(0, u64::saturating_add),
            most_qps: model.processes.values().max_by_key(|p| live(p)).map(|p| p.info.id),
            smallest_mtu: ports.map(|port| port.active_mtu_bytes).filter(|mtu| *mtu > 0).min(),
        }
    }
}

type Rule = fn(&Subject<'_>) -> Option<Finding>;

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
    let host = Host::of(model);
    let mut findings: Vec<Finding> = Vec::new();
    for process in model.processes.values() {
        let subject = Subject { model, process, qps: process.queues.qps(), host };
        findings.extend(RULES.iter().filter_map(|rule| rule(&subject)));
    }
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
