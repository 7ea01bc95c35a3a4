//! What a rule is: a page of the manual, and a pure function over what was seen.

use super::finding::{Confidence, Cost, Evidence, Severity};
use super::subject::{Host, Subject};

/// From where on something is said.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    /// Its name in a file of thresholds.
    pub key: &'static str,
    /// Unless a file says otherwise.
    pub value: f64,
    /// What it counts.
    pub unit: &'static str,
    /// Why this value.
    pub why: &'static str,
}

/// What a rule looks at; decides what it needs to have been observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plane {
    /// Control calls: registration, creation, state changes, connection management.
    Control,
    /// Posts and polls. Nothing is said where they were not observed; sampled counts lower the confidence.
    Data,
    /// Devices, ports and their counters.
    Device,
    /// The process's limits, environment and placement.
    Surroundings,
}

impl Plane {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Control => "control calls",
            Self::Data => "posts and polls",
            Self::Device => "devices and their counters",
            Self::Surroundings => "limits, environment and placement",
        }
    }
}

/// How the rule is known to fire where it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// By a program of the gallery, `rdma-workload sick NAME`.
    By(&'static str),
    /// On made-up observations alone.
    Synthetic {
        /// Why no program shows it.
        why: &'static str,
    },
}

/// What a rule does.
#[derive(Clone, Copy)]
pub enum Check {
    /// Looks at one process.
    Process(fn(&Subject<'_>) -> Verdict),
    /// Looks at the whole host, once.
    Host(fn(&Host<'_>) -> Verdict),
}

/// A rule.
pub struct Rule {
    /// Stable name.
    pub id: &'static str,
    /// What is wrong when it fires, in one line.
    pub title: &'static str,
    /// The figures and objects it judges.
    pub looks_at: &'static str,
    /// Where these come from.
    pub plane: Plane,
    /// From where on something is said.
    pub thresholds: &'static [&'static Threshold],
    /// Why that is bad, in plain words.
    pub cause: &'static str,
    /// What to do: call, flag, setting, value.
    pub remedy: &'static str,
    /// When not to; empty where it always helps.
    pub unless: &'static str,
    /// The reference workload that demonstrates it.
    pub workload: Option<&'static str>,
    /// How it is known to fire.
    pub shown: Shown,
    /// Documentation.
    pub links: &'static [&'static str],
    /// Where people met it: issues of public projects, `owner/name#number`.
    pub met: &'static [&'static str],
    /// The judgement.
    pub check: Check,
}

/// The judgement of a rule.
pub enum Verdict {
    /// Looked at, and nothing is wrong.
    Clear,
    /// Too little was seen.
    NotEnoughData(&'static str),
    /// What it looks at cannot be seen here.
    NotObservable(&'static str),
    /// It is so.
    Found(Box<Case>),
}

/// A rule's finding in the making: what the rule's own page does not say already.
pub struct Case {
    pub(super) severity: Severity,
    pub(super) confidence: Confidence,
    pub(super) title: String,
    pub(super) evidence: Vec<Evidence>,
    pub(super) cost: Cost,
    pub(super) cause: Option<String>,
    pub(super) remedy: Option<String>,
}

impl Case {
    /// Begins with the three that every finding has.
    pub fn new(severity: Severity, confidence: Confidence, title: impl Into<String>) -> Self {
        Self {
            severity,
            confidence,
            title: title.into(),
            evidence: Vec::new(),
            cost: Cost::default(),
            cause: None,
            remedy: None,
        }
    }

    /// Adds a line of evidence.
    pub fn because(mut self, text: impl Into<String>) -> Self {
        self.evidence.push(Evidence { text: text.into(), qpns: Vec::new() });
        self
    }

    /// Adds a line of evidence where there is one.
    pub fn because_of(mut self, evidence: Option<Evidence>) -> Self {
        self.evidence.extend(evidence);
        self
    }

    /// Says what it costs.
    pub fn costs(mut self, cost: Cost) -> Self {
        self.cost = cost;
        self
    }

    /// Says how sure it is, where that turns out late.
    pub fn sure(mut self, confidence: Confidence) -> Self {
        self.confidence = confidence;
        self
    }

    /// Names the cause that holds here, among those of the rule.
    pub fn cause(mut self, cause: impl Into<String>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Makes the remedy concrete.
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The verdict.
    pub fn found(self) -> Verdict {
        Verdict::Found(Box::new(self))
    }
}
