//! Runs a workload's comparisons, its demonstrations and its sweep.

use crate::bench::Bench;
use crate::elsewhere;
use crate::emulated;
use crate::error;
use crate::interrupt;
use crate::measure::{self, Measured, Sample, Side, Summary};
use crate::outcome::{Effect, Outcome, VariantOutcome, clock};
use crate::predict;
use crate::progress::{Progress, Run, Step};
use crate::suite::{Comparison, Trial, Workload};
use crate::truth::{self, Truth};
use anyhow::{Context as _, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// A trial with the verbs calls made on its behalf, its set-up included.
struct Counted {
    trial: Box<dyn Trial>,
    truth: Truth,
}

impl Counted {
    fn open(bench: &Bench, workload: &dyn Workload, variant: &str, value: Option<u64>) -> Result<Counted> {
        let before = truth::total();
        let trial = workload
            .trial(bench, variant, value)
            .with_context(|| format!("setting up {} / {variant}", workload.about().name))?;
        Ok(Counted { trial, truth: truth::total() - before })
    }

    fn run(&mut self, budget: Duration) -> Result<Sample> {
        let before = truth::total();
        let sample = self.trial.run(budget);
        self.truth += truth::total() - before;
        sample
    }
}

/// Compares a workload's variants, each comparison within the time the options give. `only` picks one comparison, counted
/// from 0, and leaves the demonstrations out.
pub fn compare(
    bench: &Bench,
    workload: &dyn Workload,
    only: Option<usize>,
    progress: &mut Progress,
) -> Result<Outcome> {
    let about = workload.about();
    let before = truth::total();
    let mut elsewhere = Truth::ZERO;
    let mut effects = Vec::new();
    let mut variants: BTreeMap<String, VariantOutcome> = BTreeMap::new();
    let mut setup = Notes::new();
    let chosen = about.comparisons.iter().enumerate().filter(|(at, _)| only.is_none_or(|only| only == *at));
    for (at, comparison) in chosen {
        interrupt::check()?;
        let label =
            format!("{}: {} ({} of {})", about.name, comparison.title, at + 1, about.comparisons.len());
        if only.is_none() && elsewhere::needed(bench, comparison) {
            progress.say(&label);
            let outcome = elsewhere::compare(bench, about.name, at, comparison, progress)?;
            elsewhere += outcome.ground_truth;
            effects.extend(outcome.effects);
            for (key, variant) in outcome.variants {
                variants.entry(key).or_insert(variant);
            }
            setup.extend(outcome.setup.into_iter().filter_map(|note| {
                let (keys, text) = note.split_once(": ")?;
                Some((text.to_owned(), keys.split(", ").map(str::to_owned).collect()))
            }));
            continue;
        }
        effects.push(one(bench, workload, comparison, &mut variants, &mut setup, &mut |doing, run| {
            progress.step(&Step { progress: format!("{label}, {doing}"), run });
        })?);
    }
    let findings = if only.is_none() {
        progress.say(&format!("{}: demonstrations", about.name));
        workload.demonstrate(bench).with_context(|| format!("demonstrations of {}", about.name))?
    } else {
        Vec::new()
    };
    let headline = effects.first().context("a workload without comparisons")?.clone();
    let figures = |key: &str| variants.get(key).cloned().context("a variant that did not run");
    Ok(Outcome {
        name: about.name.to_owned(),
        question: about.question.to_owned(),
        claim: about.claim.to_owned(),
        note: about.note.to_owned(),
        device: bench.device().label(),
        baseline: figures(&headline.baseline)?,
        optimised: figures(&headline.optimised)?,
        ratio: headline.ratio,
        verdict: headline.verdict.clone(),
        standing: headline.standing,
        effects,
        variants,
        findings,
        setup: setup.into_iter().map(|(note, keys)| format!("{}: {note}", keys.join(", "))).collect(),
        ground_truth: truth::total() - before + elsewhere,
        probes: None,
    })
}

/// What trials say of their set-up, and which variants say it.
type Notes = Vec<(String, Vec<String>)>;

fn one(
    bench: &Bench,
    workload: &dyn Workload,
    comparison: &'static Comparison,
    variants: &mut BTreeMap<String, VariantOutcome>,
    setup: &mut Notes,
    step: &mut dyn FnMut(&str, Option<Run>),
) -> Result<Effect> {
    step("setting up", None);
    let mut baseline = Counted::open(bench, workload, comparison.baseline, None)?;
    let mut optimised = Counted::open(bench, workload, comparison.optimised, None)?;
    let plan = bench.options.plan();
    let (runs, mut done) = (2 * (plan.pairs + 1), 0);
    let compared = measure::compare(plan, comparison.metric, |side, budget| {
        let (key, trial) = match side {
            Side::Baseline => (comparison.baseline, &mut baseline),
            Side::Optimised => (comparison.optimised, &mut optimised),
        };
        let sample = trial.run(budget)?;
        done += 1;
        step(&format!("run {done} of {runs}"), Some(Run::of(comparison.title, side, key, &sample)));
        Ok(sample)
    })?;
    for (counted, key) in [(&baseline, comparison.baseline), (&optimised, comparison.optimised)] {
        for note in counted.trial.notes() {
            match setup.iter_mut().find(|(text, _)| *text == note) {
                Some((_, keys)) if !keys.iter().any(|known| known == key) => keys.push(key.to_owned()),
                Some(_) => {}
                None => setup.push((note, vec![key.to_owned()])),
            }
        }
    }
    step("asking the model", None);
    let prediction = predict::compare(bench, workload, comparison)?;
    let half = |summary: &Summary| summary.latency_ns.as_ref().map(|latency| latency.p50);
    let measured = Measured::judge(comparison.metric, compared.ratio)
        .with_latencies(half(&compared.baseline), half(&compared.optimised));
    let sides = [
        (comparison.baseline, compared.baseline, baseline.truth),
        (comparison.optimised, compared.optimised, optimised.truth),
    ];
    for (key, summary, truth) in sides {
        // The figures of the headline stay when a variant takes part in several comparisons.
        if !variants.contains_key(key) {
            variants.insert(key.to_owned(), figures(bench, workload, key, None, summary, truth)?);
        }
    }
    Ok(Effect::judge(
        comparison.title,
        (comparison.baseline, comparison.optimised),
        comparison.reality,
        measured,
        bench.device().kind,
        prediction,
    ))
}

/// A variant's figures, with those of the model beside them on the emulated device.
fn figures(
    bench: &Bench,
    workload: &dyn Workload,
    key: &str,
    value: Option<u64>,
    summary: Summary,
    ground_truth: Truth,
) -> Result<VariantOutcome> {
    let label = workload.about().variant(key).map_or("", |variant| variant.label);
    let modelled = predict::variant(bench, workload, key, value)?;
    let clock = clock(bench.device().kind, emulated::speed().as_deref(), &emulated::profile());
    Ok(VariantOutcome {
        variant: key.to_owned(),
        label: label.to_owned(),
        clock,
        summary,
        modelled,
        ground_truth,
    })
}

/// One point of a sweep.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Value of the swept parameter; absent when nothing is swept.
    pub value: Option<u64>,
    /// Figures; absent when the point could not be run here.
    #[serde(flatten)]
    pub outcome: Option<VariantOutcome>,
    /// Key of the variant.
    pub key: String,
    /// Why the point could not be run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// What is worth knowing about the set-up.
    pub setup: Vec<String>,
}

/// Measures variants over the swept parameter, or at its usual value only.
pub fn sweep(
    bench: &Bench,
    workload: &dyn Workload,
    only: &[String],
    values: Option<&[u64]>,
    progress: &mut Progress,
) -> Result<Vec<Point>> {
    let about = workload.about();
    let (mut points, mut first_error) = (Vec::new(), None);
    for variant in
        about.variants.iter().filter(|variant| only.is_empty() || only.iter().any(|key| key == variant.key))
    {
        let swept = about.sweep.as_ref().filter(|sweep| sweep.variants.contains(&variant.key));
        let values: Vec<Option<u64>> = match (swept, values) {
            (Some(sweep), None) => sweep.values.iter().copied().map(Some).collect(),
            (Some(_), Some(chosen)) => chosen.iter().copied().map(Some).collect(),
            (None, _) => vec![None],
        };
        for value in values {
            interrupt::check()?;
            let shown = value.map_or(String::new(), |value| format!(" at {value}"));
            progress.say(&format!("{}: {}{shown}", about.name, variant.key));
            match point(bench, workload, variant.key, value) {
                Ok(point) => points.push(point),
                // One point beyond the device's limits must not cost the others.
                Err(error) if error::exit_status(&error) <= 2 => {
                    let skipped = Some(error::one_line(&error));
                    points.push(Point { skipped, ..Point::empty(variant.key, value) });
                    first_error.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
    }
    match first_error {
        Some(error) if points.iter().all(|point| point.outcome.is_none()) => Err(error),
        _ => Ok(points),
    }
}

impl Point {
    /// A point without figures.
    pub fn empty(key: &str, value: Option<u64>) -> Point {
        Point { value, outcome: None, key: key.to_owned(), skipped: None, setup: Vec::new() }
    }
}

fn point(bench: &Bench, workload: &dyn Workload, key: &str, value: Option<u64>) -> Result<Point> {
    let mut counted = Counted::open(bench, workload, key, value)?;
    let plan = bench.options.plan();
    let summary = measure::measure(plan, |budget| counted.run(budget))?;
    let outcome = figures(bench, workload, key, value, summary, counted.truth)?;
    Ok(Point { outcome: Some(outcome), setup: counted.trial.notes(), ..Point::empty(key, value) })
}
