//! How sure a prediction is: the same comparison over the plausible ranges of the parameters.

use serde::Serialize;

use super::drive::{LoadSpec, SpecError, drive};
use super::profile::{Key, Profile};
use super::rng::Rng;

/// A predicted ratio and how far it could be off.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// With the profile's own values: rate of the second load over that of the first, or whatever figure was asked for.
    pub ratio: f64,
    /// Median over the samples.
    pub median: f64,
    /// 5 in 100 samples are below.
    pub low: f64,
    /// 5 in 100 samples are above.
    pub high: f64,
    /// Parameters that were varied.
    pub varied: usize,
    /// Those that matter most, at most three: name, and the figure at the top of the parameter's range over that at the bottom,
    /// all others at the profile's own values.
    pub drivers: Vec<(&'static str, f64)>,
}

/// Rate of load `b` over rate of load `a` for the profile, and its spread when every uncertain parameter is drawn from its
/// plausible range: `samples` draws, spread evenly over each range (Latin hypercube). Deterministic by `seed`.
pub fn predict_range(
    profile: &Profile,
    a: &LoadSpec,
    b: &LoadSpec,
    samples: u32,
    seed: u64,
) -> Result<Prediction, SpecError> {
    spread(profile, samples, seed, |p| {
        Ok(drive(p, b)?.ops_per_s / drive(p, a)?.ops_per_s.max(f64::MIN_POSITIVE))
    })
}

/// Any figure of a profile, and its spread as in [`predict_range`].
pub fn spread<E>(
    profile: &Profile,
    samples: u32,
    seed: u64,
    figure: impl Fn(&Profile) -> Result<f64, E>,
) -> Result<Prediction, E> {
    let own = figure(profile)?;
    let samples = samples.max(1) as usize;
    let draws = latin_hypercube(profile, samples, &mut Rng::new(seed));
    let mut ratios = Vec::with_capacity(samples);
    for i in 0..samples {
        let mut sample = profile.clone();
        for (key, values) in &draws {
            // A value inside the profile's own range was accepted when the profile was read.
            let _ = sample.set(*key, values[i]);
        }
        ratios.push(figure(&sample)?);
    }
    let mut suspects: Vec<_> =
        draws.iter().map(|(key, values)| (*key, correlation(values, &ratios).abs())).collect();
    suspects.sort_by(|x, y| y.1.total_cmp(&x.1));
    suspects.truncate(SUSPECTS);
    let drivers = drivers(profile, suspects.into_iter().map(|(key, _)| key), &figure)?;
    ratios.sort_by(f64::total_cmp);
    let at = |share: f64| ratios[((samples - 1) as f64 * share).round() as usize];
    Ok(Prediction {
        ratio: own,
        median: at(0.5),
        low: at(0.05),
        high: at(0.95),
        varied: draws.len(),
        drivers,
    })
}

/// Parameters looked at one by one: with few draws, some that do nothing correlate by chance.
const SUSPECTS: usize = 8;
/// A parameter that changes the figure by less than this over its whole range does not drive it.
const NEGLIGIBLE: f64 = 0.01;

/// Of these parameters those that change the figure by themselves, the strongest first.
fn drivers<E>(
    profile: &Profile,
    suspects: impl Iterator<Item = Key>,
    figure: &impl Fn(&Profile) -> Result<f64, E>,
) -> Result<Vec<(&'static str, f64)>, E> {
    let mut found = Vec::new();
    for key in suspects {
        let (low, high) = profile.param(key).range;
        let at = |value| {
            let mut one = profile.clone();
            let _ = one.set(key, value);
            figure(&one)
        };
        let effect = at(high)? / at(low)?.max(f64::MIN_POSITIVE);
        if effect.is_finite() && effect > 0.0 && (effect - 1.0).abs() > NEGLIGIBLE {
            found.push((key.def().name, effect));
        }
    }
    found.sort_by(|x, y| y.1.ln().abs().total_cmp(&x.1.ln().abs()));
    found.truncate(3);
    Ok(found)
}

/// For each uncertain parameter, one value from each of `samples` equal parts of its range, in random order.
fn latin_hypercube(profile: &Profile, samples: usize, rng: &mut Rng) -> Vec<(Key, Vec<f64>)> {
    let mut draws = Vec::new();
    for (key, param) in profile.uncertain() {
        let (low, high) = param.range;
        let mut values: Vec<f64> = (0..samples)
            .map(|i| {
                let share = (i as f64 + rng.unit()) / samples as f64;
                let value = low + (high - low) * share;
                if key.def().whole { value.round() } else { value }
            })
            .collect();
        for i in (1..samples).rev() {
            values.swap(i, rng.below(i as u64 + 1) as usize);
        }
        draws.push((key, values));
    }
    draws
}

/// Correlation coefficient; 0 where either does not vary.
fn correlation(x: &[f64], y: &[f64]) -> f64 {
    let n = x.len() as f64;
    let mean = |v: &[f64]| v.iter().sum::<f64>() / n;
    let (mx, my) = (mean(x), mean(y));
    let (mut sxy, mut sxx, mut syy) = (0.0, 0.0, 0.0);
    for (a, b) in x.iter().zip(y) {
        sxy += (a - mx) * (b - my);
        sxx += (a - mx).powi(2);
        syy += (b - my).powi(2);
    }
    if sxx == 0.0 || syy == 0.0 { 0.0 } else { sxy / (sxx * syy).sqrt() }
}
