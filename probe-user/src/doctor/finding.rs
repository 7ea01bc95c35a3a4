//! What a diagnosis says: findings, and what could not be decided.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;

use crate::report::units;
use crate::sample::ProcessId;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
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

/// How sure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// It fits what is known, but depends on the device or on what the program means to do.
    Low,
    /// Likely: the pattern is plain, its effect here was not measured.
    Medium,
    /// Seen directly.
    High,
}

impl Confidence {
    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }

    /// One step less sure.
    pub fn lower(self) -> Self {
        match self {
            Self::High => Self::Medium,
            Self::Medium | Self::Low => Self::Low,
        }
    }
}

/// One line a finding rests on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Evidence {
    /// The figures, in words.
    pub text: String,
    /// Numbers of the queue pairs it is about, the first few.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub qpns: Vec<u32>,
}

/// What it costs now, as far as that can be told. An estimate, never a measurement of what a change would bring.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct Cost {
    /// Time per message.
    pub us_per_message: Option<f64>,
    /// Share of one processor core; above 1 when several are kept busy.
    pub cpu_share: Option<f64>,
    /// Memory of the host or the device that could be saved.
    pub memory_bytes: Option<u64>,
    /// In words; empty where nothing can be told.
    pub text: String,
}

/// A gibibyte held for nothing is ranked like so large a share of a core.
const WEIGHT_OF_A_GIB: f64 = 0.05;

impl Cost {
    /// For ranking: a share of one core, or what weighs as much.
    pub fn weight(&self) -> f64 {
        let memory = self.memory_bytes.unwrap_or(0) as f64 / (1_u64 << 30) as f64 * WEIGHT_OF_A_GIB;
        self.cpu_share.unwrap_or(0.0).max(0.0) + memory
    }
}

/// Whose fault it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Owner {
    /// Which process.
    #[serde(flatten)]
    pub id: ProcessId,
    /// Its command name.
    pub comm: String,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Finding {
    /// Stable name of the rule; `rdma-probe doctor --explain ID` prints its page.
    pub id: &'static str,
    /// In one line.
    pub title: String,
    /// How bad it is.
    pub severity: Severity,
    /// How sure that is.
    pub confidence: Confidence,
    /// The process it is about; `null` when it is about the host or a device.
    pub process: Option<Owner>,
    /// What it rests on.
    pub evidence: Vec<Evidence>,
    /// What it costs now.
    pub cost: Cost,
    /// Why that is so.
    pub cause: String,
    /// What to do.
    pub remedy: String,
    /// When not to; empty where it always helps.
    pub unless: &'static str,
    /// The reference workload that shows the effect.
    pub workload: Option<&'static str>,
}

impl Finding {
    /// The process id, where it is about a process.
    pub fn process_id(&self) -> Option<ProcessId> {
        self.process.as_ref().map(|owner| owner.id)
    }

    /// Command name, or `host`.
    pub fn comm(&self) -> &str {
        self.process.as_ref().map_or("host", |owner| owner.comm.as_str())
    }

    /// `ib_write_bw, pid 4711`, or `host`.
    pub fn who(&self) -> String {
        self.process
            .as_ref()
            .map_or_else(|| "host".to_owned(), |owner| format!("{}, pid {}", owner.comm, owner.id.pid))
    }

    /// The parts below the title, each with its name, in the order in which a person reads them.
    pub fn parts(&self) -> Vec<(&'static str, String)> {
        let mut parts: Vec<(&'static str, String)> = Vec::new();
        for (i, line) in self.evidence.iter().enumerate() {
            parts.push((if i == 0 { "evidence" } else { "" }, line.text.clone()));
        }
        for (name, text) in [
            ("cost", self.cost.text.as_str()),
            ("cause", self.cause.as_str()),
            ("remedy", self.remedy.as_str()),
            ("unless", self.unless),
        ] {
            if !text.is_empty() {
                parts.push((name, text.to_owned()));
            }
        }
        parts.push(("sure", format!("{} confidence", self.confidence.word())));
        parts
    }

    /// Everything, as text to be copied.
    pub fn text(&self) -> String {
        let mut text = format!("{}: {} ({})\n", self.severity.word(), self.title, self.who());
        for (name, line) in self.parts() {
            let _ = writeln!(text, "  {name:<9} {line}");
        }
        if let Some(workload) = self.workload {
            let _ = writeln!(text, "  {:<9} rdma-workload compare {workload}", "proof");
        }
        text
    }
}

/// Why a rule gave no verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Undecided {
    /// It looks at the right thing, but too little of it was seen.
    NotEnoughData,
    /// What it looks at cannot be seen here.
    NotObservable,
}

/// A rule that could not decide, and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct Open {
    /// The reason in kind.
    pub verdict: Undecided,
    /// The reason in words.
    pub why: String,
    /// The rules it holds for.
    pub rules: Vec<&'static str>,
    /// Processes it holds for.
    pub processes: Vec<u32>,
}

/// How often: `once`, `2,000 times`.
pub fn times(n: u64) -> String {
    if n == 1 { "once".to_owned() } else { format!("{} times", units::count(n)) }
}

/// A rate: `0.4`, `2,000`.
pub fn per_second(rate: f64) -> String {
    if rate >= 10.0 { units::count(rate as u64) } else { format!("{rate:.1}") }
}

/// A count and its noun: `1 queue pair`, `2,000 queue pairs`.
pub fn many(n: u64, thing: &str) -> String {
    format!("{} {thing}{}", units::count(n), if n == 1 { "" } else { "s" })
}
