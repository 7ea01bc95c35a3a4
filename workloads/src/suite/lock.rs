//! Clients that take and release a lock in remote memory, each on a queue pair of its own, one request outstanding each.

use super::about::Trial;
use crate::bench::Bench;
use crate::drive::completion_error;
use crate::endpoint::{Endpoint, Spec};
use crate::interrupt;
use crate::measure::{CpuClock, Latency, Sample};
use crate::sync::execute;
use crate::verbs::{Atomic, SendList, WC_BATCH, ffi};
use anyhow::{Result, bail};
use std::time::{Duration, Instant};

/// How the lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Compare-and-swap on one word for all clients.
    Contended,
    /// Compare-and-swap on a word per client.
    Spread,
    /// WRITE one's mark, READ it back, and take that for ownership.
    WriteRead,
}

/// Distance between the lock words of a spread lock; not a multiple of 4096, since NICs tell words apart by the low 12 bits.
const APART: u64 = 320;
/// Local memory per client: what CAS or READ returned, the mark it writes, and a zero to release with.
const LOCAL: u64 = 64;
const RETURNED: u64 = 0;
const MARK: u64 = 8;
const ZERO: u64 = 16;
/// Where the counter of the lost-update demonstration lies.
const COUNTER: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Taking,
    Releasing,
}

struct Client {
    step: Step,
    since: Duration,
}

/// The trial. An operation is one lock taken and released, or one WRITE+READ.
pub struct Locking {
    endpoint: Endpoint,
    lock: Lock,
    list: SendList,
    failed: u64,
    taken: u64,
}

impl Locking {
    /// Sets up the clients.
    pub fn open(bench: &Bench, lock: Lock, clients: u32) -> Result<Locking> {
        if clients == 0 || clients > 1024 {
            return Err(crate::error::usage(format!("{clients} clients are out of range; give 1 to 1024")));
        }
        let local = (LOCAL * u64::from(clients)) as usize;
        let remote = APART * u64::from(clients) + 64;
        let spec = Spec { qps: clients, depth: 4, local, remote, ..Spec::default() };
        let endpoint = Endpoint::open(bench, &spec)?;
        for client in 0..clients as usize {
            endpoint.local.buffer().set_word(client * LOCAL as usize + MARK as usize, client as u64 + 1);
        }
        Ok(Locking { endpoint, lock, list: SendList::with_capacity(2), failed: 0, taken: 0 })
    }

    fn sge(&self, client: usize, field: u64) -> ffi::ibv_sge {
        let local = &self.endpoint.local;
        ffi::ibv_sge { addr: local.addr() + client as u64 * LOCAL + field, length: 8, lkey: local.lkey() }
    }

    fn returned(&self, client: usize) -> u64 {
        self.endpoint.local.buffer().word(client * LOCAL as usize + RETURNED as usize)
    }

    fn word(&self, client: usize) -> u64 {
        let offset = if self.lock == Lock::Spread { client as u64 * APART } else { 0 };
        self.endpoint.remote.addr + offset
    }

    /// Requests that try to take the lock; the last one is signalled.
    fn take(&mut self, client: usize) {
        let (word, rkey) = (self.word(client), self.endpoint.remote.rkey);
        self.list.clear();
        match self.lock {
            Lock::Contended | Lock::Spread => {
                let what = Atomic::CompareSwap { compare: 0, swap: client as u64 + 1 };
                self.list.atomic(client as u64, self.sge(client, RETURNED), word, rkey, what);
            }
            Lock::WriteRead => {
                self.list.write(client as u64, self.sge(client, MARK), word, rkey, None);
                self.list.read(client as u64, self.sge(client, RETURNED), word, rkey);
            }
        }
        self.list.flag_last(true, false);
    }

    /// Whether what came back means that the client holds the lock.
    fn holds(&self, client: usize) -> bool {
        match self.lock {
            Lock::Contended | Lock::Spread => self.returned(client) == 0,
            Lock::WriteRead => self.returned(client) == client as u64 + 1,
        }
    }

    fn release(&mut self, client: usize) {
        let (word, rkey) = (self.word(client), self.endpoint.remote.rkey);
        self.list.clear();
        self.list.write(client as u64, self.sge(client, ZERO), word, rkey, None);
        self.list.flag_last(true, false);
    }

    fn post(&mut self, client: usize) -> Result<()> {
        self.endpoint.qps[client].post(&mut self.list)?;
        Ok(())
    }

    /// A completion for `client` arrived; posts its next request unless it is to stop. True when an operation is done.
    fn advance(
        &mut self,
        clients: &mut [Client],
        client: usize,
        now: Duration,
        stop: bool,
    ) -> Result<(bool, bool)> {
        match clients[client].step {
            Step::Taking if self.lock == Lock::WriteRead => {
                self.taken += u64::from(self.holds(client));
                if !stop {
                    self.take(client);
                    self.post(client)?;
                }
                Ok((true, !stop))
            }
            Step::Taking if self.holds(client) => {
                self.taken += 1;
                clients[client].step = Step::Releasing;
                self.release(client);
                self.post(client)?;
                Ok((false, true))
            }
            Step::Taking => {
                self.failed += 1;
                if !stop {
                    self.take(client);
                    self.post(client)?;
                }
                Ok((false, !stop))
            }
            Step::Releasing => {
                clients[client] = Client { step: Step::Taking, since: now };
                if !stop {
                    self.take(client);
                    self.post(client)?;
                }
                Ok((true, !stop))
            }
        }
    }
}

impl Trial for Locking {
    fn run(&mut self, budget: Duration) -> Result<Sample> {
        let clock = CpuClock::start();
        let start = Instant::now();
        let count = self.endpoint.qps.len();
        let mut clients: Vec<Client> =
            (0..count).map(|_| Client { step: Step::Taking, since: Duration::ZERO }).collect();
        for client in 0..count {
            self.take(client);
            self.post(client)?;
        }
        let (mut ops, mut busy, mut latency) = (0, count, Latency::default());
        let mut completions = [ffi::ibv_wc::default(); WC_BATCH];
        let mut last = Duration::ZERO;
        while busy > 0 {
            let found = self.endpoint.cqs[0].poll(&mut completions)?;
            let now = start.elapsed();
            if found > 0 {
                last = now;
            } else {
                interrupt::check()?;
                if now.saturating_sub(last) > Duration::from_secs(20) {
                    bail!("no completion for 20 s; is the peer still there?");
                }
            }
            for completion in &completions[..found] {
                if let Some((status, vendor)) = completion.error() {
                    bail!("{}", completion_error(completion, status, vendor));
                }
                let Ok(client) = usize::try_from(completion.wr_id()) else { continue };
                let since = clients[client].since;
                let (done, going_on) = self.advance(&mut clients, client, now, now >= budget)?;
                if done {
                    ops += 1;
                    latency.record((now - since).as_nanos() as u64);
                    clients[client].since = now;
                }
                busy -= usize::from(!going_on);
            }
        }
        let elapsed = start.elapsed();
        let (cpu, process_cpu, counters) = clock.stop();
        Ok(Sample { ops, elapsed, latency, cpu, process_cpu, counters })
    }

    fn notes(&self) -> Vec<String> {
        let attempts = self.failed + self.taken;
        if attempts == 0 || self.lock == Lock::WriteRead {
            return Vec::new();
        }
        vec![format!("{:.1} % of CAS attempts failed", 100.0 * self.failed as f64 / attempts as f64)]
    }
}

/// How many of two clients, one after the other and neither releasing, believe they hold the lock.
pub fn double_claim(bench: &Bench, lock: Lock) -> Result<u32> {
    let mut locking = Locking::open(bench, lock, 2)?;
    let mut holders = 0;
    for client in 0..2 {
        locking.take(client);
        execute(&locking.endpoint.qps[client], &mut locking.list)?;
        holders += u32::from(locking.holds(client));
    }
    Ok(holders)
}

/// Value of a counter after two clients incremented it under the lock, in the order that hurts: the second one claims before
/// the first has written back. A client that is refused waits for the release, as it must.
pub fn two_increments(bench: &Bench, lock: Lock) -> Result<u64> {
    let mut locking = Locking::open(bench, lock, 2)?;
    let (mut holding, mut waiting) = (Vec::new(), Vec::new());
    for client in 0..2 {
        locking.take(client);
        execute(&locking.endpoint.qps[client], &mut locking.list)?;
        if locking.holds(client) {
            holding.push((client, counter_read(&mut locking, client)?));
        } else {
            waiting.push(client);
        }
    }
    for (client, value) in holding {
        counter_write(&mut locking, client, value + 1)?;
        locking.release(client);
        execute(&locking.endpoint.qps[client], &mut locking.list)?;
    }
    for client in waiting {
        locking.take(client);
        execute(&locking.endpoint.qps[client], &mut locking.list)?;
        if !locking.holds(client) {
            bail!("a released lock was refused");
        }
        let value = counter_read(&mut locking, client)?;
        counter_write(&mut locking, client, value + 1)?;
    }
    counter_read(&mut locking, 0)
}

fn counter_read(locking: &mut Locking, client: usize) -> Result<u64> {
    let (sge, remote) = (locking.sge(client, RETURNED), locking.endpoint.remote);
    locking.list.clear();
    locking.list.read(0, sge, remote.addr + COUNTER, remote.rkey);
    locking.list.flag_last(true, false);
    execute(&locking.endpoint.qps[client], &mut locking.list)?;
    Ok(locking.returned(client))
}

fn counter_write(locking: &mut Locking, client: usize, value: u64) -> Result<()> {
    let at = client * LOCAL as usize + RETURNED as usize;
    locking.endpoint.local.buffer().set_word(at, value);
    let (sge, remote) = (locking.sge(client, RETURNED), locking.endpoint.remote);
    locking.list.clear();
    locking.list.write(0, sge, remote.addr + COUNTER, remote.rkey, None);
    locking.list.flag_last(true, false);
    execute(&locking.endpoint.qps[client], &mut locking.list)
}
