//! Carries out a [`Load`] on an endpoint: posts, polls, keeps account of the send queues, measures.

use crate::endpoint::Endpoint;
use crate::interrupt;
use crate::load::{Load, Op, Pace, Pick, Random, Wait, Walker};
use crate::measure::{CpuClock, Latency, Sample};
use crate::verbs::{Atomic, SendList, WC_BATCH, ffi};
use anyhow::{Result, bail};
use std::ffi::CStr;
use std::time::{Duration, Instant};

/// Without any completion for this long a run is given up; the longest retry sequence of the default patience is shorter.
const DEADLINE: Duration = Duration::from_secs(20);
/// Longest sleep on a completion channel before looking for signals.
const NAP: Duration = Duration::from_millis(100);
/// Bits of a work request id that count requests; the rest name the queue pair.
const SEQUENCE_BITS: u32 = 40;

/// Send-queue account of one queue pair. Requests are numbered from 0 in posting order; a completion for number k tells that
/// all up to k are complete, unsignalled ones included.
struct Account {
    posted: u64,
    complete: u64,
    since_signal: u32,
    /// Post time of each request in the window, nanoseconds since the start, indexed by number modulo its length.
    posted_at: Vec<u64>,
    walker: Walker,
}

impl Account {
    fn outstanding(&self) -> u64 {
        self.posted - self.complete
    }
}

/// A load bound to an endpoint; runs as often as it is asked to.
pub struct Driver {
    load: Load,
    accounts: Vec<Account>,
    list: SendList,
    local_slots: u64,
    random: Random,
}

impl Driver {
    /// Checks that the load fits the endpoint.
    pub fn new(endpoint: &Endpoint, load: Load) -> Result<Driver> {
        load.check()?;
        if endpoint.qps.len() != load.qps as usize || endpoint.remote.length < load.region {
            bail!("load and endpoint differ in queue pairs or region");
        }
        let slot = load.slot();
        let local_slots = endpoint.local.len() as u64 / slot;
        if local_slots == 0 {
            bail!("local memory has no room for an operation of {} bytes", load.size);
        }
        let accounts = (0..u64::from(load.qps))
            .map(|seed| Account {
                posted: 0,
                complete: 0,
                since_signal: 0,
                posted_at: vec![0; load.window as usize],
                walker: Walker::new(&load, seed),
            })
            .collect();
        let list = SendList::with_capacity(load.batch as usize);
        Ok(Driver { load, accounts, list, local_slots, random: Random::new(0) })
    }

    /// The load it carries out.
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// Runs for about `budget`, then waits until everything posted has completed.
    pub fn run(&mut self, endpoint: &Endpoint, budget: Duration) -> Result<Sample> {
        let clock = CpuClock::start();
        let mut run = Run {
            start: Instant::now(),
            latency: Latency::default(),
            ops: 0,
            outstanding: 0,
            last_progress: Duration::ZERO,
            armed: false,
            completions: [ffi::ibv_wc::default(); WC_BATCH],
        };
        let mut due = Due::new(self.load.pace);
        loop {
            let now = run.start.elapsed();
            let stopping = now >= budget;
            let mut posted = false;
            if !stopping {
                for turn in 0..self.accounts.len() {
                    let qp = match self.load.pick {
                        Pick::InTurn => turn,
                        Pick::Random => self.random.below(self.accounts.len() as u64) as usize,
                    };
                    posted |= self.fill(endpoint, &mut run, qp, &mut due)?;
                }
            } else {
                // Requests left unsignalled at the end would never be known to be complete.
                for qp in 0..self.accounts.len() {
                    posted |= self.flush(endpoint, &mut run, qp)?;
                }
            }
            let reaped = self.reap(endpoint, &mut run)?;
            if stopping && run.outstanding == 0 {
                break;
            }
            if posted || reaped {
                run.armed = false;
                run.last_progress = run.start.elapsed();
            } else {
                self.idle(endpoint, &mut run, &due)?;
            }
        }
        let elapsed = run.start.elapsed();
        let (cpu, process_cpu, counters) = clock.stop();
        Ok(Sample { ops: run.ops, elapsed, latency: run.latency, cpu, process_cpu, counters })
    }

    /// Posts one list on a queue pair if its window, the total window and the pace allow.
    #[inline]
    fn fill(&mut self, endpoint: &Endpoint, run: &mut Run, qp: usize, due: &mut Due) -> Result<bool> {
        let batch = u64::from(self.load.batch);
        let account = &self.accounts[qp];
        let total = u64::from(self.load.total_window);
        if account.outstanding() + batch > u64::from(self.load.window)
            || (total > 0 && run.outstanding + batch > total.max(batch))
        {
            return Ok(false);
        }
        let now = run.start.elapsed().as_nanos() as u64;
        let Some((first, step)) = due.take(now, batch) else { return Ok(false) };
        let mut stamp = first as f64;
        for _ in 0..batch {
            self.add(endpoint, qp, stamp as u64, false);
            stamp += step;
        }
        self.post(endpoint, run, qp)?;
        Ok(true)
    }

    /// Posts one more, signalled, request when the last ones of a queue pair were not.
    fn flush(&mut self, endpoint: &Endpoint, run: &mut Run, qp: usize) -> Result<bool> {
        let account = &self.accounts[qp];
        if account.since_signal == 0 || account.outstanding() >= u64::from(self.load.window) {
            return Ok(false);
        }
        let now = run.start.elapsed().as_nanos() as u64;
        self.add(endpoint, qp, now, true);
        self.post(endpoint, run, qp)?;
        Ok(true)
    }

    #[inline]
    fn add(&mut self, endpoint: &Endpoint, qp: usize, stamp: u64, last: bool) {
        let load = &self.load;
        let account = &mut self.accounts[qp];
        let number = account.posted;
        let at = (number % u64::from(load.window)) as usize;
        account.posted_at[at] = stamp;
        account.posted += 1;
        account.since_signal += 1;
        // The window must never fill up with unsignalled requests, whatever the interval.
        let signaled = last || account.since_signal >= load.signal_every;
        if signaled {
            account.since_signal = 0;
        }
        let id = ((qp as u64) << SEQUENCE_BITS) | (number & ((1 << SEQUENCE_BITS) - 1));
        let local =
            endpoint.local.addr() + (number % self.local_slots) * load.slot() + u64::from(load.local_offset);
        let sge = ffi::ibv_sge { addr: local, length: load.size, lkey: endpoint.local.lkey() };
        let remote = endpoint.remote.addr + account.walker.next_offset() + u64::from(load.remote_offset);
        let rkey = endpoint.remote.rkey;
        match load.mix.op(qp, number) {
            Op::Write => self.list.write(id, sge, remote, rkey, None),
            Op::Read => self.list.read(id, sge, remote, rkey),
            // Expecting 0 and writing 0 keeps the word at 0, so that every attempt takes the device's full path.
            Op::CompareSwap => {
                self.list.atomic(id, sge, remote, rkey, Atomic::CompareSwap { compare: 0, swap: 0 });
            }
            Op::FetchAdd => self.list.atomic(id, sge, remote, rkey, Atomic::FetchAdd { add: 1 }),
        }
        // Only payload that leaves this host can travel inside the request.
        let inline = load.inline && load.mix.op(qp, number) == Op::Write;
        self.list.flag_last(signaled, inline);
    }

    #[inline]
    fn post(&mut self, endpoint: &Endpoint, run: &mut Run, qp: usize) -> Result<()> {
        let result = endpoint.qps[qp].post(&mut self.list);
        run.outstanding += self.list.len() as u64;
        self.list.clear();
        result.map_err(Into::into)
    }

    #[inline]
    fn reap(&mut self, endpoint: &Endpoint, run: &mut Run) -> Result<bool> {
        let mut any = false;
        for cq in &endpoint.cqs {
            let found = cq.poll(&mut run.completions)?;
            if found == 0 {
                continue;
            }
            any = true;
            let now = run.start.elapsed().as_nanos() as u64;
            for at in 0..found {
                let wc = run.completions[at];
                if let Some((status, vendor)) = wc.error() {
                    bail!("{}", completion_error(&wc, status, vendor));
                }
                self.settle(run, wc.wr_id(), now);
            }
        }
        Ok(any)
    }

    /// Marks every request up to the completed one as complete.
    #[inline]
    fn settle(&mut self, run: &mut Run, id: u64, now: u64) {
        let Some(account) = self.accounts.get_mut((id >> SEQUENCE_BITS) as usize) else { return };
        let mask = (1u64 << SEQUENCE_BITS) - 1;
        // Ids carry the low bits of the number; within a window they are unambiguous.
        let covered = (id.wrapping_sub(account.complete) & mask) + 1;
        let covered = covered.min(account.outstanding());
        let window = account.posted_at.len() as u64;
        for number in account.complete..account.complete + covered {
            let posted_at = account.posted_at[(number % window) as usize];
            run.latency.record(now.saturating_sub(posted_at));
        }
        account.complete += covered;
        run.ops += covered;
        run.outstanding -= covered;
    }

    /// Nothing could be posted and nothing had completed: wait in the load's manner.
    #[inline]
    fn idle(&self, endpoint: &Endpoint, run: &mut Run, due: &Due) -> Result<()> {
        interrupt::check()?;
        let now = run.start.elapsed();
        if run.outstanding == 0 {
            // Only the pace holds us up. A busy poller goes on polling, as a server would.
            run.last_progress = now;
            if self.load.wait == Wait::Events {
                std::thread::sleep(due.pause(now).unwrap_or(Duration::ZERO).min(NAP));
            }
            return Ok(());
        }
        if now.saturating_sub(run.last_progress) > DEADLINE {
            bail!(
                "no completion for {} s with {} requests outstanding; is the peer still there?",
                DEADLINE.as_secs(),
                run.outstanding
            );
        }
        let (Wait::Events, Some(channel)) = (self.load.wait, &endpoint.channel) else { return Ok(()) };
        if !run.armed {
            // A completion between the last poll and arming raises no event, so the caller polls once more before
            // the next turn sleeps.
            for cq in &endpoint.cqs {
                cq.arm()?;
            }
            run.armed = true;
        } else {
            if channel.wait(due.pause(now).unwrap_or(NAP).min(NAP)) {
                channel.take()?;
            }
            run.armed = false;
        }
        Ok(())
    }
}

/// State of one run.
struct Run {
    start: Instant,
    latency: Latency,
    ops: u64,
    outstanding: u64,
    last_progress: Duration,
    armed: bool,
    completions: [ffi::ibv_wc; WC_BATCH],
}

/// When the next requests are due.
struct Due {
    /// Nanoseconds between requests; 0 in a closed loop.
    interval: f64,
    /// Requests handed out so far.
    taken: u64,
}

impl Due {
    fn new(pace: Pace) -> Due {
        let interval = match pace {
            Pace::Closed => 0.0,
            Pace::Open(rate) => 1e9 / rate,
        };
        Due { interval, taken: 0 }
    }

    fn at(&self, request: u64) -> u64 {
        (self.interval * request as f64) as u64
    }

    /// Takes `batch` requests if all are due: the time from which the first one's latency counts, and the distance to the
    /// next. In an open loop that is when each was due, not when it was posted: a late post is latency to its user.
    #[inline]
    fn take(&mut self, now: u64, batch: u64) -> Option<(u64, f64)> {
        if self.interval == 0.0 {
            return Some((now, 0.0));
        }
        if self.at(self.taken + batch - 1) > now {
            return None;
        }
        let first = self.at(self.taken);
        self.taken += batch;
        Some((first, self.interval))
    }

    /// Time until the next request is due; `None` in a closed loop.
    fn pause(&self, now: Duration) -> Option<Duration> {
        (self.interval > 0.0).then(|| Duration::from_nanos(self.at(self.taken)).saturating_sub(now))
    }
}

/// Names a failed completion and what usually causes it.
pub fn completion_error(wc: &ffi::ibv_wc, status: u32, vendor: u32) -> String {
    use ffi::ibv_wc_status as status_of;
    let hint = match status {
        status_of::IBV_WC_RETRY_EXC_ERR => {
            "; the peer does not answer: is its process alive and the path up?"
        }
        status_of::IBV_WC_RNR_RETRY_EXC_ERR => "; the peer had no receive posted",
        status_of::IBV_WC_REM_ACCESS_ERR => "; the peer's region does not allow this access",
        status_of::IBV_WC_LOC_PROT_ERR => "; the local region does not cover this access",
        _ => "",
    };
    format!("request on QP {} failed: {} (vendor code {vendor}){hint}", wc.qp_num, status_name(status))
}

/// The library's name for a completion status.
pub fn status_name(status: u32) -> String {
    // SAFETY: the library returns a static string for any value.
    let text = unsafe { ffi::ibv_wc_status_str(status) };
    if text.is_null() {
        return format!("status {status}");
    }
    // SAFETY: not null, NUL-terminated and static.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_loop_is_always_due() {
        let mut due = Due::new(Pace::Closed);
        assert_eq!(due.take(5, 100), Some((5, 0.0)));
        assert_eq!(due.pause(Duration::ZERO), None);
    }

    #[test]
    fn an_open_loop_counts_latency_from_when_requests_were_due() {
        let mut due = Due::new(Pace::Open(1e6));
        // Four requests are due at 0, 1, 2 and 3 µs: a list of four can go at 3 µs.
        assert_eq!(due.take(2_999, 4), None);
        assert_eq!(due.take(9_000, 4), Some((0, 1000.0)));
        assert_eq!(due.pause(Duration::from_nanos(3_500)), Some(Duration::from_nanos(500)));
    }

    #[test]
    fn an_unknown_status_still_has_a_name() {
        assert!(!status_name(9999).is_empty());
        assert!(!status_name(0).is_empty());
    }
}
