//! What the timing model says of a load, on the emulated device.

mod scripts;
mod stage;

use crate::bench::Bench;
use crate::device::DeviceKind;
use crate::emulated;
use crate::endpoint::CqLayout;
use crate::error::usage;
use crate::load::{Load, Mix, Op, Pace, Pick, Wait, Walk};
use crate::measure::Metric;
use crate::suite::{Comparison, Lock, Workload};
use anyhow::{Context as _, Result};
use rnic_emu::model::drive::{Memory, Pattern, Waiting};
use rnic_emu::model::{self, LoadSpec, Profile, drive};
use scripts::{ClosedLoop, Locks};
use serde::{Deserialize, Serialize};
use stage::{Set, play};

/// Requests modelled per draw: enough for cache contents to settle and rates to hold within a per cent or so.
const MEASURED: u64 = 20_000;
/// Seed of the draws, so that the same question has the same answer.
const SEED: u64 = 1;

/// How a variant is put to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Play {
    /// By the model's own load generator.
    Load,
    /// By our own program in modelled time, for loads the generator has no terms for. Both sides of a comparison must be put
    /// the same way.
    Staged,
    /// A lock taken and released by as many clients as there are queue pairs.
    Lock(Lock),
}

/// A variant as the timing model takes it.
#[derive(Clone, Debug)]
pub struct Case {
    /// The traffic.
    pub load: Load,
    /// How it is put to the model.
    pub play: Play,
    /// Page size behind the remote region, in bytes.
    pub page: u64,
    /// How completion queues are laid out.
    pub cqs: CqLayout,
    /// Threads that post. The workloads themselves use one; where a NIC's limit is the question, a single thread's speed must
    /// not be the answer.
    pub threads: u32,
}

impl Case {
    /// A load over ordinary pages from one thread, as the workloads make it.
    pub fn of(load: Load) -> Case {
        Case { load, play: Play::Load, page: 4096, cqs: CqLayout::Shared, threads: 1 }
    }

    /// The case by itself, with a profile; `None` for what the model has no terms for.
    fn run(&self, profile: &Profile) -> Result<Option<Modelled>> {
        // The model knows no misaligned DMA.
        if self.load.local_offset != 0 || self.load.remote_offset != 0 {
            return Ok(None);
        }
        let set = Set {
            qps: self.load.qps,
            threads: self.threads,
            cq_per_qp: self.cqs == CqLayout::PerQp,
            region: self.load.region,
            page: self.page,
        };
        let measured = MEASURED as usize;
        Ok(match self.play {
            Play::Load => match self.spec() {
                Some(spec) => Some(modelled(profile, &spec)?),
                None => None,
            },
            Play::Staged if self.load.batch == 1 && self.load.signal_every == 1 => {
                play(profile, &set, measured / 4, measured, |regions| {
                    Box::new(ClosedLoop::new(&self.load, regions))
                })
            }
            Play::Staged => None,
            Play::Lock(lock) => {
                let clients = self.load.qps as usize;
                play(profile, &set, measured / 40, measured / 10, |regions| {
                    Box::new(Locks::new(lock, clients, regions))
                })
            }
        })
    }

    /// The load in the model's terms; `None` for what it has no terms for.
    fn spec(&self) -> Option<LoadSpec> {
        let load = &self.load;
        // The generator mixes READs only on the same queue pairs, and gives each thread a completion queue.
        if self.cqs == CqLayout::PerQp {
            return None;
        }
        let (op, read_percent) = match load.mix {
            Mix::Only(op) => (op, 0),
            Mix::ReadWriteMixed => (Op::Write, 50),
            Mix::ReadWriteApart => return None,
        };
        let window = load.qps.checked_mul(load.window)?;
        Some(LoadSpec {
            threads: self.threads.max(1),
            qps: load.qps,
            outstanding: if load.total_window > 0 { load.total_window } else { window },
            pick: match load.pick {
                Pick::InTurn => drive::Pick::RoundRobin,
                Pick::Random => drive::Pick::Random,
            },
            list: load.batch,
            signal_every: load.signal_every,
            op: scripts::op(op),
            bytes: load.size,
            inline: load.inline,
            memory: Memory {
                bytes: load.region,
                page: self.page,
                regions: 1,
                pattern: match load.walk {
                    Walk::Fixed => Pattern::Fixed,
                    Walk::Sequential => Pattern::Sequential,
                    Walk::Strided(bytes) => Pattern::Stride(bytes),
                    Walk::Random => Pattern::Random,
                },
            },
            read_percent,
            waiting: match load.wait {
                Wait::Busy => Waiting::Poll,
                Wait::Events => Waiting::Event,
            },
            shared_cq: self.cqs == CqLayout::Shared,
            rate: match load.pace {
                Pace::Closed => 0.0,
                Pace::Open(rate) => rate,
            },
            measure: MEASURED,
            ..LoadSpec::default()
        })
    }
}

/// What the model predicts for a pair of variants.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Profile the model ran with.
    pub profile: String,
    /// Predicted improvement with the profile's own parameters.
    pub ratio: f64,
    /// 5 in 100 draws of the uncertain parameters are below.
    pub low: f64,
    /// 5 in 100 draws are above.
    pub high: f64,
    /// Parameters that were varied.
    pub varied: usize,
    /// Those that matter most, with the ratio at the top of their range over that at the bottom.
    pub drivers: Vec<(String, f64)>,
}

/// One load in modelled time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Modelled {
    /// Operations per second.
    pub ops_per_s: f64,
    /// Latency percentiles in nanoseconds.
    pub latency_ns: ModelledLatency,
    /// Share of page translations found in the NIC's cache; absent where none were looked up.
    pub mtt_hit_rate: Option<f64>,
    /// Share of queue pair contexts found in the NIC's cache.
    pub qpc_hit_rate: Option<f64>,
    /// Share of outstanding requests' WQEs found in the NIC's cache when they were needed again.
    pub wqe_hit_rate: Option<f64>,
    /// Utilisation of the processing units, 0 to 1.
    pub unit_utilisation: f64,
}

/// Percentiles in modelled time, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelledLatency {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99 in a hundred are faster.
    pub p99: f64,
}

/// The profile by name or file; an unknown one is a usage error that lists those there are.
pub fn profile(name: &str) -> Result<Profile> {
    Profile::resolve(name).map_err(|error| usage(format!("--profile {name:?}: {error}")))
}

/// The model's prediction for a comparison; `None` off the emulated device, and where the model has nothing to say.
pub fn compare(
    bench: &Bench,
    workload: &dyn Workload,
    comparison: &Comparison,
) -> Result<Option<Prediction>> {
    if bench.device().kind != DeviceKind::Emulated {
        return Ok(None);
    }
    let cases =
        (workload.case(bench, comparison.baseline, None)?, workload.case(bench, comparison.optimised, None)?);
    let (Some(baseline), Some(optimised)) = cases else { return Ok(None) };
    if !comparable(comparison.metric, &baseline.load, &optimised.load) {
        return Ok(None);
    }
    let profile = profile(&emulated::profile())?;
    if baseline.run(&profile)?.is_none() || optimised.run(&profile)?.is_none() {
        return Ok(None);
    }
    let rate = |case: &Case, profile: &Profile| -> Result<f64> {
        Ok(case.run(profile)?.context("the load came to a standstill in the model")?.ops_per_s)
    };
    let range = model::spread(&profile, bench.options.draws, SEED, |sample| -> Result<f64> {
        Ok(rate(&optimised, sample)? / rate(&baseline, sample)?.max(f64::MIN_POSITIVE))
    })
    .context("asking the timing model")?;
    Ok(Some(Prediction {
        profile: profile.name().to_owned(),
        ratio: range.ratio,
        low: range.low.min(range.ratio),
        high: range.high.max(range.ratio),
        varied: range.varied,
        drivers: range.drivers.into_iter().map(|(name, weight)| (name.to_owned(), weight)).collect(),
    }))
}

/// The model compares rates. With one request outstanding in both loads, the ratio of rates is that of latencies too.
fn comparable(metric: Metric, baseline: &Load, optimised: &Load) -> bool {
    let closed = baseline.pace == Pace::Closed && optimised.pace == Pace::Closed;
    let single = baseline.window * baseline.qps == 1 && optimised.window * optimised.qps == 1;
    match metric {
        Metric::Rate => closed,
        Metric::Latency => closed && single,
        Metric::Cpu => false,
    }
}

fn modelled(profile: &Profile, spec: &LoadSpec) -> Result<Modelled> {
    let outcome = drive(profile, spec).context("asking the timing model")?;
    Ok(Modelled {
        ops_per_s: outcome.ops_per_s,
        latency_ns: ModelledLatency {
            mean: outcome.latency_ns.mean,
            p50: outcome.latency_ns.p50,
            p99: outcome.latency_ns.p99,
        },
        mtt_hit_rate: outcome.responder.hits.mtt,
        qpc_hit_rate: outcome.initiator.hits.qpc,
        wqe_hit_rate: outcome.initiator.hits.wqe,
        unit_utilisation: outcome.initiator.busy.units,
    })
}

/// A variant in modelled time; `None` off the emulated device, and where the model has nothing to say.
pub fn variant(
    bench: &Bench,
    workload: &dyn Workload,
    key: &str,
    value: Option<u64>,
) -> Result<Option<Modelled>> {
    if bench.device().kind != DeviceKind::Emulated {
        return Ok(None);
    }
    match workload.case(bench, key, value)? {
        Some(case) => alone(&emulated::profile(), &case),
        None => Ok(None),
    }
}

/// Runs one load through the model with the named profile; `None` for what the model has no terms for.
pub fn alone(name: &str, case: &Case) -> Result<Option<Modelled>> {
    case.run(&profile(name)?)
}

/// What the model says of registering memory, in nanoseconds: registering and deregistering `bytes` of pages of `page` bytes.
pub fn registration(name: &str, bytes: u64, page: u64) -> Result<(f64, f64)> {
    let cost = model::registration_cost(&profile(name)?, model::Region { bytes, page });
    Ok((model::time::to_ns(cost.register), model::time::to_ns(cost.deregister)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rates_and_single_requests_are_comparable() {
        let one = Load { window: 1, ..Load::default() };
        let many = Load::default();
        let paced = Load { pace: Pace::Open(1e3), ..Load::default() };
        assert!(comparable(Metric::Rate, &one, &many));
        assert!(comparable(Metric::Latency, &one, &one));
        assert!(!comparable(Metric::Latency, &one, &many));
        assert!(!comparable(Metric::Rate, &one, &paced));
        assert!(!comparable(Metric::Cpu, &one, &one));
    }

    #[test]
    fn what_the_model_has_no_terms_for_is_left_out_not_approximated() {
        let crossing = Case::of(Load { remote_offset: 32, ..Load::default() });
        assert!(crossing.run(&profile("cx5-like").unwrap()).unwrap().is_none());
        assert!(Case::of(Load { mix: Mix::ReadWriteApart, ..Load::default() }).spec().is_none());
        assert!(Case::of(Load { qps: u32::MAX, ..Load::default() }).spec().is_none());
        assert!(Case::of(Load::default()).spec().is_some());
    }

    #[test]
    fn the_stage_agrees_with_the_models_own_loads() {
        let loads = [
            (1, Load { window: 1, ..Load::default() }),
            (1, Load { mix: Mix::Only(Op::Read), window: 16, ..Load::default() }),
            (8, Load { mix: Mix::Only(Op::Read), window: 16, qps: 8, ..Load::default() }),
            (
                1,
                Load {
                    mix: Mix::Only(Op::CompareSwap),
                    size: 8,
                    qps: 8,
                    window: 4,
                    walk: Walk::Fixed,
                    ..Load::default()
                },
            ),
        ];
        for (threads, load) in loads {
            let case = Case { threads, ..Case::of(load) };
            let own = alone("cx5-like", &case).unwrap().unwrap();
            let staged = alone("cx5-like", &Case { play: Play::Staged, ..case }).unwrap().unwrap();
            let ratio = staged.ops_per_s / own.ops_per_s;
            assert!((ratio - 1.0).abs() < 0.1, "{ratio}: {own:?} {staged:?}");
            let ratio = staged.latency_ns.p50 / own.latency_ns.p50;
            assert!((ratio - 1.0).abs() < 0.15, "{ratio}: {own:?} {staged:?}");
        }
    }

    #[test]
    fn a_contended_lock_is_slower_than_spread_ones_and_a_single_client_is_not() {
        let rate = |lock, clients| {
            let load = Load { qps: clients, size: 8, ..Load::default() };
            let case = Case { play: Play::Lock(lock), threads: clients, ..Case::of(load) };
            alone("cx5-like", &case).unwrap().unwrap().ops_per_s
        };
        assert!(rate(Lock::Spread, 8) > 2.0 * rate(Lock::Contended, 8));
        assert!((rate(Lock::Spread, 1) / rate(Lock::Contended, 1) - 1.0).abs() < 0.01);
        assert!(rate(Lock::WriteRead, 8) > rate(Lock::Contended, 8));
    }

    #[test]
    fn polling_many_queues_costs_a_thread_more_than_polling_one() {
        let load = Load { qps: 64, window: 1, ..Load::default() };
        let rate = |cqs| {
            let case = Case { play: Play::Staged, cqs, ..Case::of(load.clone()) };
            alone("cx5-like", &case).unwrap().unwrap().ops_per_s
        };
        assert!(rate(CqLayout::Shared) >= rate(CqLayout::PerQp));
    }

    #[test]
    fn an_unknown_profile_is_a_usage_error_that_lists_the_known_ones() {
        let error = profile("cx9-like").unwrap_err();
        assert_eq!(crate::error::exit_status(&error), 2);
        assert!(error.to_string().contains("cx5-like"), "{error}");
    }

    #[test]
    fn huge_pages_help_random_reads_over_a_large_region_and_not_a_small_one() {
        let load = |region| Load {
            mix: Mix::Only(Op::Read),
            walk: Walk::Random,
            window: 32,
            region,
            ..Load::default()
        };
        let gain = |region| {
            let small = alone("cx3-like", &Case::of(load(region))).unwrap().unwrap();
            let huge = alone("cx3-like", &Case { page: 2 << 20, ..Case::of(load(region)) }).unwrap().unwrap();
            huge.ops_per_s / small.ops_per_s
        };
        assert!(gain(1 << 30) > 1.05, "{}", gain(1 << 30));
        assert!((gain(1 << 20) - 1.0).abs() < 0.05, "{}", gain(1 << 20));
    }
}
