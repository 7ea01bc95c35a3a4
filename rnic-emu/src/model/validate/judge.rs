//! Runs series through the model and measures how far off it is.

use serde::Serialize;

use super::series::{Class, Control, Metric, Series};
use crate::model::drive::drive;
use crate::model::profile::Profile;
use crate::model::registration::registration_cost;
use crate::model::time::to_ns;
use crate::model::work::Region;

/// One point: published and modelled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PointResult {
    /// Place on the x axis.
    pub x: f64,
    /// Published value.
    pub published: Option<f64>,
    /// Modelled value.
    pub modelled: f64,
    /// Modelled over published, less one.
    pub error: Option<f64>,
}

/// A control's judgement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ControlResult {
    /// The effect did not appear.
    pub holds: bool,
    /// The value farthest from the first, as a share of it less one.
    pub farthest: f64,
}

/// One series, judged.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The series.
    pub series: Series,
    /// Its points.
    pub points: Vec<PointResult>,
    /// Median of the absolute errors.
    pub median: Option<f64>,
    /// Nine absolute errors in ten are no greater.
    pub p90: Option<f64>,
    /// Published and modelled place of the knee.
    pub knee: Option<(f64, f64)>,
    /// Judgement of a control.
    pub control: Option<ControlResult>,
}

/// Errors of all series of a class, or of one profile's in that class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The class.
    pub class: Class,
    /// The profile; none for all together.
    pub profile: Option<String>,
    /// Series in it.
    pub series: usize,
    /// Points with a published value.
    pub points: usize,
    /// Median of the absolute errors.
    pub median: f64,
    /// Nine absolute errors in ten are no greater.
    pub p90: f64,
    /// Worst.
    pub worst: f64,
    /// Share of points within 10 %, and within 20 %.
    pub within: (f64, f64),
    /// Knees within a factor of 1.5, and knees looked for.
    pub knees: (usize, usize),
}

/// Runs one series through the model.
pub fn judge(series: &Series, profile: &Profile) -> Judged {
    let mut first = None;
    let points: Vec<PointResult> = series
        .points
        .iter()
        .map(|point| {
            let region = Region { bytes: u64::from(point.load.bytes), page: point.load.memory.page };
            let mut modelled = match series.metric {
                // A load that parsed was checked, so it can be run.
                Metric::Mops | Metric::Relative => {
                    drive(profile, &point.load).map_or(f64::NAN, |o| o.ops_per_s / 1e6)
                }
                Metric::LatencyUs => {
                    drive(profile, &point.load).map_or(f64::NAN, |o| o.latency_ns.mean / 1e3)
                }
                Metric::RegisterUs => to_ns(registration_cost(profile, region).register) / 1e3,
                Metric::DeregisterUs => to_ns(registration_cost(profile, region).deregister) / 1e3,
            };
            if series.metric == Metric::Relative {
                modelled /= *first.get_or_insert(modelled);
            }
            let error = point.published.map(|p| modelled / p - 1.0);
            PointResult { x: point.x, published: point.published, modelled, error }
        })
        .collect();
    let errors: Vec<f64> = points.iter().filter_map(|p| p.error).map(f64::abs).collect();
    let knee = series.knee.and_then(|share| {
        let curve =
            |value: &dyn Fn(&PointResult) -> f64| points.iter().map(|p| (p.x, value(p))).collect::<Vec<_>>();
        let published = knee(&curve(&|p| p.published.unwrap_or(f64::NAN)), share)?;
        let modelled = knee(&curve(&|p| p.modelled), share)?;
        Some((published, modelled))
    });
    Judged {
        median: quantile(&errors, 0.5),
        p90: quantile(&errors, 0.9),
        knee,
        control: series.control.map(|c| check_control(c, &points)),
        points,
        series: series.clone(),
    }
}

fn check_control(control: Control, points: &[PointResult]) -> ControlResult {
    let first = points.first().map_or(f64::NAN, |p| p.modelled);
    let off = points.iter().map(|p| p.modelled / first - 1.0);
    let pick = |f: fn(f64, f64) -> f64| off.clone().fold(0.0, f);
    let (farthest, limit) = match control {
        Control::Flat(limit) => (pick(|a, b| if b.abs() > a.abs() { b } else { a }), limit),
        Control::NotAbove(limit) => (pick(f64::max), limit),
        Control::NotBelow(limit) => (pick(f64::min), limit),
    };
    ControlResult { holds: farthest.abs() <= limit, farthest }
}

/// Where a curve that falls has come down to `share` of its greatest value, between points on a logarithmic x axis.
fn knee(curve: &[(f64, f64)], share: f64) -> Option<f64> {
    let top = curve.iter().map(|p| p.1).fold(f64::NAN, f64::max);
    let peak = curve.iter().position(|p| p.1 == top)?;
    let limit = top * share;
    curve[peak..].windows(2).find(|w| w[0].1 >= limit && w[1].1 < limit).map(|w| {
        let part = (w[0].1 - limit) / (w[0].1 - w[1].1);
        w[0].0 * (w[1].0 / w[0].0).powf(part)
    })
}

/// The value that `share` of the values do not exceed.
fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    if share == 0.5 && sorted.len().is_multiple_of(2) {
        return Some((sorted[last / 2] + sorted[last / 2 + 1]) / 2.0);
    }
    Some(sorted[((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len()) - 1])
}

/// Sums up the series of each class that has published values, and the held-out ones profile by profile.
pub fn summarise(all: &[Judged]) -> Vec<Summary> {
    let mut summaries = Vec::new();
    for class in [Class::HeldOut, Class::Fitted, Class::Contradicted, Class::Control] {
        let of_class: Vec<&Judged> = all.iter().filter(|j| j.series.class == class).collect();
        summaries.extend(summary(class, None, &of_class));
        if class == Class::HeldOut {
            let mut profiles: Vec<&str> = of_class.iter().map(|j| j.series.profile.as_str()).collect();
            profiles.sort_unstable();
            profiles.dedup();
            for profile in profiles {
                let mine: Vec<&Judged> =
                    of_class.iter().copied().filter(|j| j.series.profile == profile).collect();
                summaries.extend(summary(class, Some(profile.to_owned()), &mine));
            }
        }
    }
    summaries
}

/// Sums up some series; none when no point of theirs has a published value.
fn summary(class: Class, profile: Option<String>, some: &[&Judged]) -> Option<Summary> {
    let errors: Vec<f64> =
        some.iter().flat_map(|j| &j.points).filter_map(|p| p.error).map(f64::abs).collect();
    let within = |limit: f64| errors.iter().filter(|e| **e <= limit).count() as f64 / errors.len() as f64;
    let near = |&(a, b): &(f64, f64)| (b / a).max(a / b) <= 1.5;
    Some(Summary {
        class,
        profile,
        series: some.len(),
        points: errors.len(),
        median: quantile(&errors, 0.5)?,
        p90: quantile(&errors, 0.9)?,
        worst: quantile(&errors, 1.0)?,
        within: (within(0.1), within(0.2)),
        knees: (
            some.iter().filter_map(|j| j.knee.as_ref()).filter(|k| near(k)).count(),
            some.iter().filter(|j| j.series.knee.is_some()).count(),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_that_looks_for_a_knee_has_one_in_its_published_figures() {
        for series in crate::model::validate::series::builtin().unwrap_or_else(|e| panic!("{e}")) {
            let Some(share) = series.knee else { continue };
            let published: Vec<_> =
                series.points.iter().map(|p| (p.x, p.published.unwrap_or(f64::NAN))).collect();
            assert!(knee(&published, share).is_some(), "{}", series.id);
        }
    }

    #[test]
    fn a_knee_lies_between_the_points_around_it() {
        let curve = [(1.0, 10.0), (2.0, 10.0), (8.0, 5.0), (16.0, 2.0)];
        let at = knee(&curve, 0.75).expect("it falls");
        assert!((at - 4.0).abs() < 1e-9, "{at}");
        assert_eq!(knee(&[(1.0, 3.0), (2.0, 3.0)], 0.75), None);
        assert_eq!(knee(&[(1.0, 1.0), (2.0, 3.0)], 0.75), None);
    }

    #[test]
    fn quantiles_of_few_values() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[3.0, 1.0], 0.5), Some(2.0));
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 0.5), Some(2.0));
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0], 0.9), Some(9.0));
    }

    #[test]
    fn controls_catch_what_they_are_for() {
        let points = |values: &[f64]| -> Vec<PointResult> {
            values
                .iter()
                .map(|&modelled| PointResult { x: 0.0, published: None, modelled, error: None })
                .collect()
        };
        assert!(check_control(Control::Flat(0.05), &points(&[10.0, 10.4, 9.6])).holds);
        assert!(!check_control(Control::Flat(0.05), &points(&[10.0, 9.0])).holds);
        assert!(check_control(Control::NotAbove(0.05), &points(&[10.0, 3.0])).holds);
        assert!(!check_control(Control::NotBelow(0.05), &points(&[10.0, 3.0])).holds);
    }
}
