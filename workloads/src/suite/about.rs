//! What a workload declares about itself.

use crate::bench::Bench;
use crate::measure::{Metric, Sample};
use crate::predict::Case;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// On which kinds of device an effect is real.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reality {
    /// Made by this host's CPU or kernel: measured for real whatever the device.
    Host,
    /// Made by any real device, in hardware or in the kernel; the emulated one can only predict it.
    AnyDevice,
    /// Made by hardware that software devices lack; the emulated one can only predict it.
    NicOnly,
}

impl Reality {
    /// In words, for lists.
    pub fn describe(self) -> &'static str {
        match self {
            Reality::Host => "any machine (made by the host)",
            Reality::AnyDevice => "any real device; modelled on the emulated one",
            Reality::NicOnly => "NICs only; modelled on the emulated one",
        }
    }
}

/// One way of doing the work.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Variant {
    /// Name on the command line and in output.
    pub key: &'static str,
    /// In words.
    pub label: &'static str,
}

/// How the emulated device takes its time while a comparison is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Timing {
    /// None at all: nothing modelled mixes with what the host does.
    Untimed,
    /// A NIC's, slowed down so that two cores keep up and ratios hold.
    Scaled,
    /// A NIC's, for effects that need completions to be awaited as long as a NIC makes one wait.
    Real,
}

impl Timing {
    /// Speed of modelled time against the real clock; `None` for untimed.
    pub fn speed(self) -> Option<&'static str> {
        match self {
            Timing::Untimed => None,
            Timing::Scaled => Some("1/64"),
            Timing::Real => Some("1"),
        }
    }
}

/// Two variants held against each other.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Comparison {
    /// What is asked.
    pub title: &'static str,
    /// The slow way.
    pub baseline: &'static str,
    /// The fast way.
    pub optimised: &'static str,
    /// What is to improve.
    pub metric: Metric,
    /// Where the effect is real.
    pub reality: Reality,
    /// How the emulated device takes its time meanwhile.
    pub timing: Timing,
}

/// A parameter that `run` varies.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sweep {
    /// Its name.
    pub parameter: &'static str,
    /// Its unit; empty for a count.
    pub unit: &'static str,
    /// Values, ascending.
    pub values: &'static [u64],
    /// The value `compare` uses.
    pub usual: u64,
    /// Variants it applies to.
    pub variants: &'static [&'static str],
}

/// A workload's description of itself.
#[derive(Debug, Serialize)]
pub struct About {
    /// Its name.
    pub name: &'static str,
    /// What it answers.
    pub question: &'static str,
    /// The claim it puts to the test.
    pub claim: &'static str,
    /// What is right and wrong in the claim, as far as it is known without measuring.
    pub note: &'static str,
    /// What a profiler should see change from baseline to optimised.
    pub signal: &'static str,
    /// Ways of doing the work.
    pub variants: &'static [Variant],
    /// What `compare` compares; the first is the headline.
    pub comparisons: &'static [Comparison],
    /// What `run` sweeps.
    pub sweep: Option<Sweep>,
}

impl About {
    /// The variant of that key.
    pub fn variant(&self, key: &str) -> Option<&Variant> {
        self.variants.iter().find(|variant| variant.key == key)
    }
}

/// A variant set up and ready to run.
pub trait Trial {
    /// Runs for about `budget`.
    fn run(&mut self, budget: Duration) -> Result<Sample>;

    /// What is worth knowing about the set-up, such as the memory really obtained.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Something a workload demonstrates rather than measures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// What is said to be true.
    pub statement: String,
    /// What was seen on this device.
    pub observed: String,
    /// Whether what was seen bears the statement out; `None` where this device cannot tell.
    pub holds: Option<bool>,
}

/// A reference workload.
pub trait Workload: Sync {
    /// Its description.
    fn about(&self) -> &'static About;

    /// Sets up a variant, at a value of the swept parameter or at its usual one.
    fn trial(&self, bench: &Bench, variant: &str, value: Option<u64>) -> Result<Box<dyn Trial>>;

    /// The same variant as the timing model takes it; `None` when the model has nothing to say about it.
    fn case(&self, _bench: &Bench, _variant: &str, _value: Option<u64>) -> Result<Option<Case>> {
        Ok(None)
    }

    /// Shows the facts that a ratio cannot.
    fn demonstrate(&self, _bench: &Bench) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}
