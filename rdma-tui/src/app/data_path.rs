//! Posts and polls of the whole host, for the page that shows them.

use probe_user::model::Model;
use probe_user::sample::{Counting, Observed, ObservedBy, QueueCounts};

/// Sums over all processes whose posts and polls are watched.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HostPath {
    /// Processes watched.
    pub processes: usize,
    /// All they counted.
    pub counts: QueueCounts,
    /// What the last interval added.
    pub now: QueueCounts,
    /// Length of the last interval, ns.
    pub interval_ns: u64,
    /// The least trustworthy way in which any of them is seen.
    pub observed: Observed,
    /// What cannot be seen, in sentences, and calls that were not counted.
    pub gaps: Vec<String>,
}

impl HostPath {
    /// How many a second, now.
    pub fn per_second(&self, of: impl Fn(&QueueCounts) -> u64) -> f64 {
        if self.interval_ns == 0 { 0.0 } else { of(&self.now) as f64 * 1e9 / self.interval_ns as f64 }
    }
}

/// Adds up what `model` tells; `None` where no process is watched.
pub fn of(model: &Model) -> Option<HostPath> {
    let (from, to) = model.interval;
    let mut host = HostPath { interval_ns: to.saturating_sub(from), ..HostPath::default() };
    for path in model.processes.values().map(|p| &p.data_path).filter(|path| path.is_observed()) {
        if host.processes == 0 || trust(&path.observed) < trust(&host.observed) {
            host.observed = path.observed.clone();
        }
        host.processes += 1;
        host.counts.add(&path.totals.counts());
        if let Some(interval) = path.totals.interval(to) {
            host.now.add(&interval.counts);
        }
        host.gaps.extend(path.unseen.iter().cloned());
        if path.uncounted() > 0 {
            host.gaps.push(format!("{} calls could not be counted", path.uncounted()));
        }
    }
    (host.processes > 0).then_some(host)
}

/// What watching costs the process that pays most, as a share of its CPU time, 0–1; `None` where no probe tells.
pub fn cost(model: &Model) -> Option<f64> {
    let living = model.processes.values().filter(|p| !p.info.exited);
    living.filter_map(|p| p.data_path.observed.overhead).reduce(f64::max)
}

/// CPUs that the profiler itself uses; `None` where it does not tell.
pub fn profiler(model: &Model) -> Option<f64> {
    let living = model.processes.values().filter(|p| !p.info.exited);
    living.filter_map(|p| p.data_path.observed.profiler).reduce(f64::max)
}

/// Why no process is watched, as far as the sources say.
pub fn why_none(model: &Model) -> String {
    let told =
        model.processes.values().map(|p| p.data_path.observed.why.as_str()).find(|why| !why.is_empty());
    match told {
        Some(why) => why.to_owned(),
        None => "posts and polls are not watched: `rdma-tui -- CMD` and `rdma-probe record --tap -- CMD` count them"
            .to_owned(),
    }
}

/// How far counts can be trusted, larger is better.
fn trust(observed: &Observed) -> u8 {
    match observed.counting {
        Counting::Every if observed.by != ObservedBy::Nothing => 3,
        Counting::Estimated => 2,
        Counting::Ratios => 1,
        Counting::Every | Counting::Unknown => 0,
    }
}

/// `part` of `whole`, 0–1; `None` where there is no whole.
pub fn part(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_user::sample::ProcessId;

    #[test]
    fn the_least_trustworthy_way_is_the_one_told() {
        let of = |by, counting| trust(&Observed { by, counting, ..Observed::default() });
        assert!(of(ObservedBy::Tap, Counting::Every) > of(ObservedBy::Function, Counting::Estimated));
        assert!(of(ObservedBy::Function, Counting::Estimated) > of(ObservedBy::Function, Counting::Ratios));
        assert_eq!(of(ObservedBy::Nothing, Counting::Every), 0);
    }

    #[test]
    fn nothing_watched_is_nothing_and_says_why() {
        let model = Model::new();
        assert_eq!(of(&model), None);
        assert!(why_none(&model).contains("--tap"));
        assert_eq!((part(1, 4), part(1, 0)), (Some(0.25), None));
    }

    #[test]
    fn the_cost_told_is_that_of_the_process_that_pays_most() {
        let mut model = Model::new();
        assert_eq!(cost(&model), None);
        for (pid, overhead) in [(1, Some(0.004)), (2, Some(0.009)), (3, None)] {
            let process = model.processes.entry(ProcessId { pid, start_ns: 1 }).or_default();
            process.data_path.observed.overhead = overhead;
        }
        assert_eq!((cost(&model), profiler(&model)), (Some(0.009), None));
        model.processes.values_mut().for_each(|process| process.data_path.observed.profiler = Some(0.012));
        assert_eq!(profiler(&model), Some(0.012));
    }
}
