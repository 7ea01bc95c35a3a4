//! Outcomes as text.

use crate::app::Failed;
use crate::compare::Point;
use crate::measure::{LatencySummary, PerfCounts};
use crate::outcome::{Outcome, Standing, VariantOutcome};
use crate::predict::Modelled;
use crate::probe::Checked;
use crate::suite::{About, Finding, Workload};
use crate::table::{Table, quantity, rate, time, wrap};
use crate::truth::Truth;

const WIDTH: usize = 110;

/// The list of workloads.
pub fn list(workloads: &[&dyn Workload]) -> String {
    let mut out = String::new();
    for about in workloads.iter().map(|workload| workload.about()) {
        out.push_str(&format!("{}\n", about.name));
        for (head, text) in [
            ("question", about.question),
            ("claim", about.claim),
            ("known", about.note),
            ("probes", about.signal),
        ] {
            out.push_str(&format!("  {head:<9} {}\n", wrap(text, WIDTH - 12, "            ")));
        }
        for variant in about.variants {
            out.push_str(&format!("  variant   {:<16} {}\n", variant.key, variant.label));
        }
        for comparison in about.comparisons {
            out.push_str(&format!(
                "  compares  {} → {}: {}; real on {}\n",
                comparison.baseline,
                comparison.optimised,
                comparison.title,
                comparison.reality.describe()
            ));
        }
        if let Some(sweep) = &about.sweep {
            let values: Vec<_> = sweep.values.iter().map(|&value| quantity(value, sweep.unit)).collect();
            out.push_str(&format!("  sweeps    {} over {}\n", sweep.parameter, values.join(", ")));
        }
        out.push('\n');
    }
    out
}

fn figures(name: String, variant: &VariantOutcome) -> Vec<String> {
    let summary = &variant.summary;
    let latency = |of: fn(&LatencySummary) -> u64| {
        summary.latency_ns.as_ref().map_or("-".into(), |latency| time(of(latency) as f64))
    };
    vec![
        name,
        rate(summary.ops_per_s),
        latency(|latency| latency.p50),
        latency(|latency| latency.p99),
        latency(|latency| latency.p999),
        time(summary.cpu_ns_per_op),
        counters(&summary.per_op),
        variant.modelled.as_ref().map_or(String::new(), modelled),
    ]
}

/// Hardware counts per operation; empty where this machine has none.
fn counters(per_op: &PerfCounts) -> String {
    match (per_op.cycles, per_op.instructions, per_op.cache_misses) {
        (Some(cycles), Some(instructions), Some(misses)) => {
            format!("{cycles:.0} / {instructions:.0} / {misses:.2}")
        }
        _ => "unavailable".into(),
    }
}

const FIGURES: [&str; 8] =
    ["variant", "rate", "p50", "p99", "p99.9", "CPU/op", "cycles/instr/misses", "in modelled time"];

/// One workload's comparison.
pub fn outcome(outcome: &Outcome) -> String {
    let mut out = format!("{} on {} ({})", outcome.name, outcome.device.name, outcome.device.kind);
    if let Some(profile) = &outcome.device.profile {
        out.push_str(&format!(", profile {profile}"));
    }
    out.push_str(&format!("\n  {}\n", outcome.question));
    out.push_str(&format!("  claim: {}\n\n", wrap(&outcome.claim, WIDTH - 9, "         ")));
    let mut table = Table::new(&FIGURES);
    for variant in outcome.variants.values() {
        table.row(figures(variant.variant.clone(), variant));
    }
    out.push_str(&indent(&table.render()));
    let mut clocks: Vec<&str> = outcome.variants.values().map(|variant| variant.clock.as_str()).collect();
    clocks.sort_unstable();
    clocks.dedup();
    match clocks[..] {
        [one] => out.push_str(&format!("  ({one})\n\n")),
        _ => {
            for variant in outcome.variants.values() {
                out.push_str(&format!("  ({}: {})\n", variant.variant, variant.clock));
            }
            out.push('\n');
        }
    }
    for effect in &outcome.effects {
        let text = format!("{} → {}: {}", effect.baseline, effect.optimised, effect.title);
        out.push_str(&format!("  {}\n", wrap(&text, WIDTH, "    ")));
        out.push_str(&format!("    {}: {}\n", effect.metric.name(), effect.verdict));
        if let Some(model) = effect.prediction.as_ref().filter(|_| effect.standing == Standing::Modelled) {
            let drivers: Vec<_> = model.drivers.iter().map(|(name, _)| name.as_str()).collect();
            let drivers =
                if drivers.is_empty() { "nothing in particular".to_owned() } else { drivers.join(", ") };
            out.push_str(&format!("    most sensitive to: {drivers}\n"));
        }
        if effect.standing == Standing::Modelled {
            out.push_str(&format!("    wall clock: {}\n", effect.measured.text()));
        }
    }
    out.push_str(&format!("\n  known: {}\n", wrap(&outcome.note, WIDTH - 9, "         ")));
    out.push_str(&findings(&outcome.findings));
    out.push_str(&setup(&outcome.setup));
    out.push_str(&format!(
        "  ground truth: {}\n",
        wrap(&truth(&outcome.ground_truth), WIDTH - 16, "                ")
    ));
    for checked in outcome.probes.iter().flatten() {
        out.push_str(&probes(checked));
    }
    out
}

/// A variant in modelled time, with what no NIC shows.
fn modelled(model: &Modelled) -> String {
    let mut text = format!("{} at p50 {}", rate(model.ops_per_s), time(model.latency_ns.p50));
    for (what, share) in
        [("MTT", model.mtt_hit_rate), ("QP context", model.qpc_hit_rate), ("WQE", model.wqe_hit_rate)]
    {
        if let Some(share) = share.filter(|share| *share < 0.995) {
            text.push_str(&format!(", {what} hits {:.0} %", 100.0 * share));
        }
    }
    text.push_str(&format!(", units {:.0} % busy", 100.0 * model.unit_utilisation));
    text
}

/// What the probes saw of one variant, beside its ground truth.
fn probes(checked: &Checked) -> String {
    if let Some(error) = &checked.error {
        return format!("  probes, {}: not checked: {}\n", checked.variant, wrap(error, WIDTH, "    "));
    }
    let seen = checked.checks.iter().any(|check| check.probes.is_some());
    let verdict = match (checked.equal, checked.lost) {
        (true, _) => "equal to the ground truth".to_owned(),
        (false, _) if !seen => "nothing could be observed here (see `rdma-probe probes`)".to_owned(),
        (false, Some(lost)) if lost > 0 => format!("NOT equal; {lost} events lost"),
        (false, _) => "NOT equal".to_owned(),
    };
    let mut out = format!("  probes, {}: {verdict}\n", checked.variant);
    let mut table = Table::new(&["", "ground truth", "probes", "difference"]);
    let mut unseen = Vec::new();
    for check in
        checked.checks.iter().filter(|check| check.truth > 0 || check.probes.is_some_and(|seen| seen > 0))
    {
        match (check.probes, check.difference) {
            (Some(seen), Some(difference)) => {
                table.row(vec![
                    check.name.clone(),
                    check.truth.to_string(),
                    seen.to_string(),
                    format!("{difference:+}"),
                ]);
            }
            _ => unseen.push(check.name.as_str()),
        }
    }
    out.push_str(&indent(&indent(&table.render())));
    if !unseen.is_empty() {
        out.push_str(&format!("    not observed: {}\n", unseen.join(", ")));
    }
    out
}

/// What was demonstrated.
pub fn findings(findings: &[Finding]) -> String {
    let mut out = String::new();
    for finding in findings {
        let mark = match finding.holds {
            Some(true) => "shown",
            Some(false) => "NOT seen",
            None => "not on this device",
        };
        out.push_str(&format!("  {mark}: {}\n", wrap(&finding.statement, WIDTH, "    ")));
        out.push_str(&format!("    {}\n", wrap(&finding.observed, WIDTH, "    ")));
    }
    out
}

fn setup(lines: &[String]) -> String {
    lines.iter().map(|line| format!("  {}\n", wrap(line, WIDTH, "    "))).collect()
}

fn truth(truth: &Truth) -> String {
    let counts: Vec<_> = truth
        .entries()
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    counts.join(", ")
}

/// A sweep.
pub fn sweep(about: &About, points: &[Point]) -> String {
    let unit = about.sweep.as_ref().map_or("", |sweep| sweep.unit);
    let parameter = about.sweep.as_ref().map_or("", |sweep| sweep.parameter);
    let mut head = FIGURES.to_vec();
    head.insert(1, parameter);
    let mut table = Table::new(&head);
    let mut skipped = String::new();
    for point in points {
        let value = point.value.map_or(String::new(), |value| quantity(value, unit));
        match (&point.outcome, &point.skipped) {
            (Some(variant), _) => {
                let mut row = figures(point.key.clone(), variant);
                row.insert(1, value);
                table.row(row);
            }
            (None, reason) => {
                let reason = reason.as_deref().unwrap_or("no figures");
                skipped.push_str(&format!("  {} {value}: not run, {reason}\n", point.key));
            }
        }
    }
    format!("{}{skipped}", indent(&table.render()))
}

/// What the probes saw of all variants, in a sentence.
fn summed(checked: &[Checked]) -> String {
    let names = |of: fn(&Checked) -> bool| {
        checked
            .iter()
            .filter(|checked| of(checked))
            .map(|checked| checked.variant.as_str())
            .collect::<Vec<_>>()
    };
    let (equal, failed) = (names(|checked| checked.equal), names(|checked| checked.error.is_some()));
    let observed = |checked: &Checked| checked.checks.iter().any(|check| check.probes.is_some());
    let different =
        names(|checked| !checked.equal && checked.checks.iter().any(|check| check.probes.is_some()));
    let unseen: Vec<_> = checked
        .iter()
        .filter(|checked| checked.error.is_none() && !observed(checked))
        .map(|checked| checked.variant.as_str())
        .collect();
    let seen =
        checked.iter().flat_map(|checked| &checked.checks).filter(|check| check.probes.is_some()).count();
    let mut text = format!(
        "equal to the ground truth in {} of {} variants ({seen} figures)",
        equal.len(),
        checked.len()
    );
    for (what, variants) in
        [("different in", different), ("nothing observed of", unseen), ("not checked", failed)]
    {
        if !variants.is_empty() {
            text.push_str(&format!("; {what} {}", variants.join(", ")));
        }
    }
    text
}

/// Rate and median latency by the wall clock.
fn measured(variant: &VariantOutcome) -> String {
    let latency = variant.summary.latency_ns.as_ref();
    let latency = latency.map_or(String::new(), |latency| format!(" at p50 {}", time(latency.p50 as f64)));
    format!("{}{latency}", rate(variant.summary.ops_per_s))
}

/// The claims table over several workloads.
pub fn claims(results: &[Result<Outcome, Failed>]) -> String {
    let mut out = String::from("CLAIMS\n");
    if let Some(first) = results.iter().flatten().next() {
        out.push_str(&format!("measured on {} ({})", first.device.name, first.device.kind));
        if let Some(profile) = &first.device.profile {
            out.push_str(&format!(", profile {profile}: verdicts marked \"the model predicts\" are predictions, not measurements"));
        }
        out.push('\n');
    }
    for result in results {
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(failed) => {
                out.push_str(&format!(
                    "\n{}\n  claim     {}\n  not run   {}\n",
                    failed.name, failed.claim, failed.error
                ));
                continue;
            }
        };
        out.push_str(&format!("\n{}\n", outcome.name));
        let mut line = |head: &str, text: &str| {
            out.push_str(&format!("  {head:<9} {}\n", wrap(text, WIDTH - 12, "            ")));
        };
        line("claim", &outcome.claim);
        for variant in [&outcome.baseline, &outcome.optimised] {
            // Where the verdict is the model's, its figures are the ones that belong beside it.
            match variant.modelled.as_ref().filter(|_| outcome.standing == Standing::Modelled) {
                Some(model) => line("model", &format!("{}: {}", variant.variant, modelled(model))),
                None => line("here", &format!("{}: {}", variant.variant, measured(variant))),
            }
        }
        for effect in &outcome.effects {
            line("verdict", &format!("{}: {}", effect.title, effect.verdict));
        }
        for fallback in outcome.setup.iter().filter(|line| line.contains("asked for")) {
            line("memory", fallback);
        }
        if let Some(probes) = &outcome.probes {
            line("probes", &summed(probes));
        }
        line("note", &outcome.note);
        for finding in &outcome.findings {
            let mark = match finding.holds {
                Some(true) => "shown",
                Some(false) => "NOT seen",
                None => "not here",
            };
            line(mark, &format!("{}: {}", finding.statement, finding.observed));
        }
    }
    out
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}
