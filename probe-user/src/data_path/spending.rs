//! What watching has cost each process, against the CPU time it has used.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aya::maps::{HashMap as BpfMap, MapData, MapError};
use probe_common::hot;
use probe_common::wire::{Spent, Target};

use super::{Costs, cpu_time};
use crate::collect::wire::{PlainAccount, PlainTarget, TargetTables};

/// The table of watched processes, which tells what they were hit by.
#[derive(Clone)]
pub struct Targets(Arc<Mutex<TargetTables>>);

impl std::fmt::Debug for Targets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Targets").finish_non_exhaustive()
    }
}

impl Targets {
    /// Shares the table.
    pub fn new(tables: TargetTables) -> Self {
        Self(Arc::new(Mutex::new(tables)))
    }

    /// A process is watched, from a start at that time.
    ///
    /// # Errors
    /// When the table is full.
    pub fn watch(&self, pid: u32, start_ns: u64) -> Result<(), MapError> {
        let target = PlainTarget(Target { start_ns, spent: Spent::default() });
        self.with(|table| table.insert(pid, target, 0))
    }

    /// Works on the table; nobody else does meanwhile.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut BpfMap<MapData, u32, PlainTarget>) -> T) -> T {
        f(&mut self.lock().watched)
    }

    fn lock(&self) -> MutexGuard<'_, TargetTables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The processes that were hit, and by what so far.
    pub fn hit(&self) -> Vec<(u32, Spent)> {
        let is_hit = |spent: &Spent| spent.hits.iter().any(|n| *n > 0);
        let tables = self.lock();
        let all = tables.watched.iter().filter_map(Result::ok);
        all.map(|(pid, PlainTarget(target))| (pid, tables.spent(pid, &target)))
            .filter(|(_, spent)| is_hit(spent))
            .collect()
    }

    /// Processes that are not watched and were hit at functions of providers, and by what so far.
    pub fn bystanders(&self) -> Vec<(u32, Spent)> {
        let tables = self.lock();
        let all = tables.bystanders.iter().filter_map(Result::ok);
        // One that is watched by now has an entry there.
        let unwatched = all.filter(|(pid, _)| tables.watched.get(pid, 0).is_err());
        unwatched.map(|(pid, PlainTarget(target))| (pid, target.spent)).collect()
    }

    /// A process that was not watched is no more.
    pub fn forget_bystander(&self, pid: u32) {
        let _ = self.lock().bystanders.remove(&pid);
    }

    /// What a process was hit by so far; `None` where it is not watched.
    pub fn spent(&self, pid: u32) -> Option<Spent> {
        let tables = self.lock();
        let PlainTarget(target) = tables.watched.get(&pid, 0).ok()?;
        Some(tables.spent(pid, &target))
    }
}

impl TargetTables {
    /// What a process was hit by, at its place too. Its entry was read first: at its end what was counted at the place
    /// is taken from there, and added to the entry then.
    fn spent(&self, pid: u32, target: &Target) -> Spent {
        let account = self.accounts.get(&hot::account_of(pid), 0).ok().map(|PlainAccount(account)| account);
        let of_it = |account: &hot::Account| {
            account.tgid == u64::from(pid) && account.target.start_ns == target.start_ns
        };
        let mut spent = target.spent;
        if let Some(account) = account.filter(of_it) {
            let more = account.target.spent;
            spent.hits.iter_mut().zip(more.hits).for_each(|(sum, n)| *sum = sum.saturating_add(n));
            let ns = spent.program_ns.iter_mut().zip(more.program_ns);
            ns.for_each(|(sum, n)| *sum = sum.saturating_add(n));
        }
        spent
    }
}

/// What watching costs each process, since its watching began.
#[derive(Debug)]
pub struct Spending {
    targets: Targets,
    costs: Costs,
    processes: HashMap<u32, Account>,
}

#[derive(Debug, Clone, Copy)]
struct Account {
    cpu_before: u64,
    share: Option<f64>,
}

impl Spending {
    /// Nothing is known yet.
    pub fn new(targets: Targets, costs: Costs) -> Self {
        Self { targets, costs, processes: HashMap::new() }
    }

    /// Share of its CPU time that hits have cost a process so far; `None` as long as it has used none. Of one that has
    /// ended, what was known last.
    pub fn share(&mut self, pid: u32) -> Option<f64> {
        let (spent, cpu) = (self.targets.spent(pid), cpu_time::of_process(pid));
        let account = self.processes.entry(pid).or_insert(Account {
            // At the first look hits may have gone before: so has the CPU time they were paid from.
            cpu_before: 0,
            share: None,
        });
        if let (Some(spent), Some(cpu)) = (spent, cpu) {
            let used = cpu.saturating_sub(account.cpu_before);
            if used > 0 {
                account.share = Some((self.costs.sum_ns(&spent) / used as f64).min(1.0));
            }
        }
        account.share
    }

    /// A process that is watched from now on had used CPU time before.
    pub fn begin(&mut self, pid: u32) {
        let cpu_before = cpu_time::of_process(pid).unwrap_or(0);
        self.processes.entry(pid).or_insert(Account { cpu_before, share: None });
    }

    /// Forgets processes that are no more.
    pub fn forget(&mut self, gone: &HashSet<u32>) {
        self.processes.retain(|pid, _| !gone.contains(pid));
    }
}

/// What this profiler itself takes: beside what it watches, on any processor.
#[derive(Debug)]
pub struct Own {
    since: Instant,
    cpu_before: u64,
    share: Option<f64>,
}

impl Own {
    /// Told is what was used in about the last so long.
    const WINDOW: Duration = Duration::from_secs(2);

    /// From now on.
    pub fn begin() -> Self {
        Self { since: Instant::now(), cpu_before: cpu_time::of_this_process(), share: None }
    }

    /// CPUs that were used lately: 0.01 is a hundredth of one. At first, since it began.
    pub fn share(&mut self) -> Option<f64> {
        let elapsed = self.since.elapsed();
        let lately = || {
            let used = cpu_time::of_this_process().saturating_sub(self.cpu_before) as f64;
            used / elapsed.as_nanos().max(1) as f64
        };
        if elapsed >= Self::WINDOW {
            *self = Self { share: Some(lately()), ..Self::begin() };
        } else if self.share.is_none() {
            return Some(lately());
        }
        self.share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_process_takes_is_told_as_it_goes() {
        let mut own = Own::begin();
        let before = cpu_time::of_this_process();
        let mut n = 0_u64;
        while cpu_time::of_this_process() < before + 1_000_000 {
            n = std::hint::black_box(n + 1);
        }
        assert!(own.share().is_some_and(|share| share > 0.0));
    }
}
