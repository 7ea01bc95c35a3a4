//! Whether following a finding made perftest's figure better.

use std::fmt::Write as _;

use probe_user::doctor::Finding;
use serde_json::{Value, json};
use workloads::measure::{Interval, median_interval};

use crate::case::{Api, Case, followed};
use crate::run::figure;

/// What came of one finding, or of a case without any.
pub struct Decided {
    command: String,
    api: Api,
    finding: Option<(&'static str, &'static str)>,
    followed: Option<String>,
    gain: Option<Interval>,
    pub verdict: Verdict,
}

/// What was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Following it made the figure better.
    True,
    /// It did not.
    FalseAlarm,
    /// Nothing was found.
    Silent,
    /// perftest has no option that follows it, or a run failed.
    Undecided(String),
}

impl Verdict {
    fn words(&self) -> String {
        match self {
            Self::True => "true".into(),
            Self::FalseAlarm => "**false alarm**".into(),
            Self::Silent => "nothing found".into(),
            Self::Undecided(why) => format!("undecided: {why}"),
        }
    }
}

impl Decided {
    fn of(case: &Case, verdict: Verdict) -> Self {
        let command = case.command.to_owned();
        Self { command, api: case.api, finding: None, followed: None, gain: None, verdict }
    }

    /// A case on which nothing was found.
    pub fn silent(case: &Case) -> Self {
        Self::of(case, Verdict::Silent)
    }

    /// A case that did not run.
    pub fn failed(case: &Case, why: String) -> Self {
        Self::of(case, Verdict::Undecided(why))
    }

    /// In a line.
    pub fn words(&self) -> String {
        let gain = self.gain.map(|gain| format!("{:.2}× ({:.2}–{:.2}), ", gain.median, gain.low, gain.high));
        format!("{}{}", gain.unwrap_or_default(), self.verdict.words())
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({
            "command": self.command,
            "api": if self.api == Api::Classic { "classic" } else { "extended" },
            "finding": self.finding.map(|(id, _)| id),
            "severity": self.finding.map(|(_, severity)| severity),
            "followed": self.followed,
            "gain": self.gain,
            "verdict": match self.verdict {
                Verdict::True => "true",
                Verdict::FalseAlarm => "false_alarm",
                Verdict::Silent => "silent",
                Verdict::Undecided(_) => "undecided",
            },
        })
    }
}

/// Runs pairs without and with what the finding advises.
pub fn decide(case: &Case, finding: &Finding, pairs: usize) -> Decided {
    let mut decided = Decided::of(case, Verdict::Silent);
    decided.finding = Some((finding.id, finding.severity.word()));
    decided.followed = followed(case.command, finding.id);
    let Some(better) = decided.followed.clone() else {
        decided.verdict = Verdict::Undecided("perftest has no option for it".into());
        return decided;
    };
    // Messages of another length are compared by the bytes they move.
    let bytes = finding.id == "adjacent-wrs";
    // perftest sends inline on models of NIC it knows only.
    let api = if finding.id == "small-not-inlined" { Api::Extended } else { case.api };
    let mut gains = Vec::new();
    for _ in 0..pairs {
        let both =
            figure(case.command, api, bytes).and_then(|plain| Ok((plain, figure(&better, api, bytes)?)));
        match both.map(|(plain, better)| better.over(plain)) {
            Ok(gain) => gains.extend(gain),
            Err(why) => {
                decided.verdict = Verdict::Undecided(why);
                return decided;
            }
        }
    }
    decided.gain = median_interval(&gains);
    decided.verdict = match decided.gain {
        Some(gain) if gain.low > 1.0 => Verdict::True,
        Some(_) => Verdict::FalseAlarm,
        None => Verdict::Undecided("no figures".into()),
    };
    decided
}

/// How many findings there were.
pub fn findings(all: &[Decided]) -> usize {
    all.iter().filter(|decided| decided.finding.is_some()).count()
}

/// As Markdown.
pub fn table(all: &[Decided]) -> String {
    let mut text = String::from(
        "| perftest | finding | followed by | perftest's figure improves | decided |\n|---|---|---|---|---|\n",
    );
    for decided in all {
        let api = if decided.api == Api::Extended { ", extended API" } else { "" };
        let finding = decided.finding.map(|(id, severity)| format!("`{id}`, {severity}")).unwrap_or_default();
        let followed = decided.followed.as_ref().map(|command| format!("`{command}`")).unwrap_or_default();
        let gain = decided
            .gain
            .map(|g| format!("{:.2}× ({:.2}–{:.2})", g.median, g.low, g.high))
            .unwrap_or_default();
        let verdict = decided.verdict.words();
        let _ =
            writeln!(text, "| `{}`{api} | {finding} | {followed} | {gain} | {verdict} |", decided.command);
    }
    text
}
