//! What a comparison came to: figures, verdict, and where they come from.

use crate::device::{DeviceKind, DeviceLabel};
use crate::measure::{Interval, Measured, Metric, Summary, figure};
use crate::predict::{Modelled, Prediction};
use crate::probe::Checked;
use crate::suite::{Finding, Reality};
use crate::truth::Truth;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a verdict rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Measured on the device, or on the host where the host makes the effect.
    Measured,
    /// Predicted by the timing model.
    Modelled,
    /// The device at hand cannot show the effect.
    NotShown,
}

/// One comparison of two variants.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Effect {
    /// What was asked.
    pub title: String,
    /// What was to improve.
    pub metric: Metric,
    /// Where the effect is real.
    pub reality: Reality,
    /// Key of the baseline variant.
    pub baseline: String,
    /// Key of the optimised variant.
    pub optimised: String,
    /// What the verdict rests on.
    pub standing: Standing,
    /// The ratio the verdict speaks of: measured, or predicted where the verdict is the model's.
    pub ratio: Interval,
    /// What was measured by the wall clock, whatever the verdict rests on.
    pub measured: Measured,
    /// What the model predicts, on the emulated device.
    pub prediction: Option<Prediction>,
    /// The verdict in words.
    pub verdict: String,
}

impl Effect {
    /// Decides what may be said: an effect the device does not really have is never "held" on it.
    pub fn judge(
        title: &str,
        (baseline, optimised): (&str, &str),
        reality: Reality,
        measured: Measured,
        kind: DeviceKind,
        prediction: Option<Prediction>,
    ) -> Effect {
        let (standing, verdict) = verdict(reality, kind, &measured, prediction.as_ref());
        let ratio = match (&standing, &prediction) {
            (Standing::Modelled, Some(model)) => {
                Interval { median: model.ratio, low: model.low, high: model.high }
            }
            _ => measured.ratio,
        };
        Effect {
            title: title.to_owned(),
            metric: measured.metric,
            reality,
            baseline: baseline.to_owned(),
            optimised: optimised.to_owned(),
            standing,
            ratio,
            measured,
            prediction,
            verdict,
        }
    }
}

fn verdict(
    reality: Reality,
    kind: DeviceKind,
    measured: &Measured,
    prediction: Option<&Prediction>,
) -> (Standing, String) {
    let real = match (reality, kind) {
        (Reality::Host, DeviceKind::Emulated) => {
            let mut text = format!("{} (host's own effect, measured for real", measured.text());
            if let Some(model) = prediction {
                text.push_str(&format!("; {}", predicted(model)));
            }
            return (Standing::Measured, text + ")");
        }
        (Reality::Host, _) => true,
        (Reality::AnyDevice, kind) => kind != DeviceKind::Emulated,
        (Reality::NicOnly, kind) => kind == DeviceKind::Nic,
    };
    if real {
        return (Standing::Measured, measured.text());
    }
    match (kind, prediction) {
        (DeviceKind::Emulated, Some(model)) => (Standing::Modelled, predicted(model)),
        (DeviceKind::Emulated, None) => (
            Standing::NotShown,
            "the emulated device has no hardware to show this, and the model does not cover it".into(),
        ),
        (kind, _) => (
            Standing::NotShown,
            format!("not shown by this device ({kind} lacks the hardware; measured: {})", measured.text()),
        ),
    }
}

fn predicted(model: &Prediction) -> String {
    format!(
        "the model predicts {}× ({}–{} over its uncertain parameters)",
        figure(model.ratio),
        figure(model.low),
        figure(model.high)
    )
}

/// One variant's figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VariantOutcome {
    /// Its key.
    pub variant: String,
    /// In words.
    pub label: String,
    /// How its wall-clock figures are to be read.
    pub clock: String,
    /// Figures.
    #[serde(flatten)]
    pub summary: Summary,
    /// The same load in modelled time, on the emulated device.
    pub modelled: Option<Modelled>,
    /// What it asked of the verbs, set-up and warm-up included.
    pub ground_truth: Truth,
}

/// A comparison of a whole workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Workload.
    pub name: String,
    /// What it answers.
    pub question: String,
    /// The claim.
    pub claim: String,
    /// What is right and wrong in it.
    pub note: String,
    /// Device used.
    pub device: DeviceLabel,
    /// Headline baseline.
    pub baseline: VariantOutcome,
    /// Headline optimised variant.
    pub optimised: VariantOutcome,
    /// Headline ratio.
    pub ratio: Interval,
    /// Headline verdict.
    pub verdict: String,
    /// What the headline verdict rests on.
    pub standing: Standing,
    /// All comparisons, the headline first.
    pub effects: Vec<Effect>,
    /// Figures of every variant that took part.
    pub variants: BTreeMap<String, VariantOutcome>,
    /// What was demonstrated.
    pub findings: Vec<Finding>,
    /// What is worth knowing about the set-up.
    pub setup: Vec<String>,
    /// What the whole comparison asked of the verbs.
    pub ground_truth: Truth,
    /// What the probes saw of each variant, with `--probe`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probes: Option<Vec<Checked>>,
}

/// How wall-clock figures of a device are to be read; `speed` is that of an emulated device's modelled time.
pub fn clock(kind: DeviceKind, speed: Option<&str>, profile: &str) -> String {
    match (kind, speed) {
        (DeviceKind::Emulated, None) => {
            "wall clock, emulated device untimed: not what a NIC would give".into()
        }
        (DeviceKind::Emulated, Some("1")) => format!("wall clock, emulated device paced as a {profile} NIC"),
        (DeviceKind::Emulated, Some(speed)) => {
            format!("wall clock, emulated device paced as a {profile} NIC at {speed} of its speed")
        }
        (kind, _) => format!("wall clock of the {kind}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Measured {
        Measured::judge(Metric::Rate, Interval { median: 2.9, low: 2.7, high: 3.1 })
    }

    fn model() -> Prediction {
        Prediction { profile: "cx5-like".into(), ratio: 4.0, low: 3.0, high: 5.0, ..Prediction::default() }
    }

    fn effect(reality: Reality, kind: DeviceKind, prediction: Option<Prediction>) -> Effect {
        Effect::judge("t", ("a", "b"), reality, measured(), kind, prediction)
    }

    #[test]
    fn on_a_nic_the_measurement_decides_even_if_a_prediction_exists() {
        let effect = effect(Reality::NicOnly, DeviceKind::Nic, Some(model()));
        assert_eq!((effect.standing, effect.ratio.median), (Standing::Measured, 2.9));
        assert_eq!(effect.verdict, "faster by 2.90× [2.70, 3.10]");
    }

    #[test]
    fn on_the_emulated_device_only_the_model_speaks() {
        for reality in [Reality::AnyDevice, Reality::NicOnly] {
            let effect = effect(reality, DeviceKind::Emulated, Some(model()));
            assert_eq!((effect.standing, effect.ratio.median), (Standing::Modelled, 4.0));
            assert_eq!(effect.verdict, "the model predicts 4.00× (3.00–5.00 over its uncertain parameters)");
        }
    }

    #[test]
    fn without_a_prediction_the_emulated_device_shows_nothing() {
        assert_eq!(effect(Reality::AnyDevice, DeviceKind::Emulated, None).standing, Standing::NotShown);
    }

    #[test]
    fn effects_of_the_host_are_real_on_the_emulated_device_and_say_so() {
        let effect = effect(Reality::Host, DeviceKind::Emulated, Some(model()));
        assert_eq!((effect.standing, effect.ratio.median), (Standing::Measured, 2.9));
        assert!(effect.verdict.contains("measured for real"));
    }

    #[test]
    fn soft_roce_shows_what_any_device_shows_and_not_what_needs_a_nic() {
        assert_eq!(effect(Reality::AnyDevice, DeviceKind::SoftRoce, None).standing, Standing::Measured);
        let hidden = effect(Reality::NicOnly, DeviceKind::SoftRoce, None);
        assert_eq!(hidden.standing, Standing::NotShown);
        assert!(hidden.verdict.contains("not shown by this device"));
    }
}
