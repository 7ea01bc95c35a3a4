//! Programs played in modelled time: threads that post and poll on the timing model as a real program does on a device.
//! For what the model's own loads cannot say: a completion queue per queue pair, reads and writes on queue pairs of their own,
//! locks.

use super::{Modelled, ModelledLatency};
use rnic_emu::model::time::{Ps, from_ns, to_ns, to_s};
use rnic_emu::model::{
    Completion, Key, Model, MrId, NodeId, Place, Profile, QpId, Region, Request, Step, Transport,
};

/// What a program does on one queue pair after another.
pub trait Script {
    /// Adds the requests to post on queue pair `qp` at the start.
    fn open(&mut self, qp: usize, at: Ps, list: &mut Vec<Request>);

    /// A request of `qp` has been reaped at `at`; adds what to post next. Gives the start of the operation this finished.
    fn reaped(&mut self, qp: usize, done: &Completion, at: Ps, list: &mut Vec<Request>) -> Option<Ps>;

    /// A request that asked for it has become visible at the responder.
    fn delivered(&mut self, _token: u64, _at: Ps) {}
}

/// The set.
#[derive(Clone, Copy, Debug)]
pub struct Set {
    /// Queue pairs.
    pub qps: u32,
    /// Threads, which share the queue pairs out among themselves.
    pub threads: u32,
    /// Whether each queue pair has a completion queue of its own, rather than each thread one.
    pub cq_per_qp: bool,
    /// Bytes of remote memory.
    pub region: u64,
    /// Page size behind it.
    pub page: u64,
}

struct Thread {
    free_at: Ps,
    scheduled: bool,
    ready: Vec<Completion>,
    cqs: u64,
    opened: bool,
}

/// A play under way.
struct Stage<'a> {
    model: Model,
    qps: Vec<QpId>,
    threads: Vec<Thread>,
    poll: Ps,
    empty_poll: Ps,
    script: &'a mut dyn Script,
    list: Vec<Request>,
    latencies: Vec<Ps>,
}

/// Bits of a token that are the script's own; the rest name the queue pair.
const OWN_BITS: u32 = 32;

/// A token by which [`Script`] and stage know a request again.
pub fn token(qp: usize, own: u32) -> u64 {
    ((qp as u64) << OWN_BITS) | u64::from(own)
}

fn qp_of(token: u64) -> usize {
    (token >> OWN_BITS) as usize
}

/// A place in the remote region, at `offset`. The region is the second one registered, after the local one.
pub struct Regions {
    /// Local memory.
    pub local: MrId,
    /// Memory at the responder.
    pub remote: MrId,
}

impl Regions {
    /// Fills in where a request reads and writes.
    pub fn place(&self, request: Request, local: u64, remote: u64) -> Request {
        Request {
            local: Some(Place { mr: self.local, offset: local }),
            remote: Some(Place { mr: self.remote, offset: remote }),
            ..request
        }
    }
}

/// Plays a script until `measured` operations have finished after `warm_up` others. `None` when it comes to a standstill.
pub fn play(
    profile: &Profile,
    set: &Set,
    warm_up: usize,
    measured: usize,
    script: impl FnOnce(Regions) -> Box<dyn Script>,
) -> Option<Modelled> {
    let mut model = Model::new(profile);
    let (here, there) = (NodeId(0), NodeId(1));
    let regions = Regions {
        local: model.register(here, Region { bytes: 1 << 20, page: 4096 }),
        remote: model.register(there, Region { bytes: set.region, page: set.page }),
    };
    let count = set.threads.clamp(1, set.qps.max(1)) as usize;
    let shared: Vec<_> = (0..count).map(|_| model.create_cq(here)).collect();
    let qps: Vec<QpId> = (0..set.qps as usize)
        .map(|qp| {
            let cq = if set.cq_per_qp { model.create_cq(here) } else { shared[qp % count] };
            model.create_qp(here, there, Transport::Rc, cq)
        })
        .collect();
    let threads = (0..count)
        .map(|thread| Thread {
            free_at: 0,
            scheduled: false,
            ready: Vec::new(),
            cqs: if set.cq_per_qp { (set.qps as usize - thread).div_ceil(count) as u64 } else { 1 },
            opened: false,
        })
        .collect();
    let mut script = script(regions);
    let mut stage = Stage {
        model,
        qps,
        threads,
        poll: from_ns(profile.get(Key::HostPoll)),
        empty_poll: from_ns(profile.get(Key::HostEmptyPoll)),
        script: script.as_mut(),
        list: Vec::new(),
        latencies: Vec::with_capacity(measured),
    };
    stage.run(warm_up, measured)
}

impl Stage<'_> {
    fn run(&mut self, warm_up: usize, measured: usize) -> Option<Modelled> {
        for thread in 0..self.threads.len() {
            // Threads of a program do not start in step; any odd distance will do.
            self.schedule(thread, thread as Ps * 37_003);
        }
        let mut before = (0, self.model.counts(NodeId(0)), self.model.counts(NodeId(1)));
        let mut warm = false;
        while self.latencies.len() < measured {
            match self.model.step(Ps::MAX)? {
                Step::Completed(done) if done.signalled => {
                    let thread = qp_of(done.token) % self.threads.len();
                    self.threads[thread].ready.push(done);
                    // On average a poller is half-way round its queues.
                    let notice = self.threads[thread].cqs * self.empty_poll / 2;
                    self.schedule(thread, done.at + notice);
                }
                Step::Completed(_) => {}
                Step::Delivered { token, at, .. } => self.script.delivered(token, at),
                Step::Woken { what, at } => self.turn(what as usize, at),
            }
            if !warm && self.latencies.len() >= warm_up {
                warm = true;
                self.latencies.clear();
                before = (self.model.now(), self.model.counts(NodeId(0)), self.model.counts(NodeId(1)));
            }
        }
        let elapsed = self.model.now().saturating_sub(before.0).max(1);
        let initiator = self.model.counts(NodeId(0)).since(&before.1);
        let responder = self.model.counts(NodeId(1)).since(&before.2);
        let units = self.model.profile().get(Key::PuCount).max(1.0);
        self.latencies.sort_unstable();
        let at =
            |share: f64| self.latencies.get(((self.latencies.len() - 1) as f64 * share) as usize).copied();
        let mean =
            self.latencies.iter().map(|&latency| to_ns(latency)).sum::<f64>() / self.latencies.len() as f64;
        Some(Modelled {
            ops_per_s: self.latencies.len() as f64 / to_s(elapsed),
            latency_ns: ModelledLatency { mean, p50: to_ns(at(0.5)?), p99: to_ns(at(0.99)?) },
            mtt_hit_rate: responder.mtt.hit_rate(),
            qpc_hit_rate: initiator.qpc.hit_rate(),
            wqe_hit_rate: initiator.wqe.hit_rate(),
            unit_utilisation: initiator.pu_busy as f64 / elapsed as f64 / units,
        })
    }

    fn schedule(&mut self, thread: usize, at: Ps) {
        let state = &mut self.threads[thread];
        if !state.scheduled {
            state.scheduled = true;
            self.model.wake_at(at.max(state.free_at), thread as u32);
        }
    }

    /// A thread goes once round its completion queues and posts what follows from what it finds.
    fn turn(&mut self, thread: usize, now: Ps) {
        let state = &mut self.threads[thread];
        state.scheduled = false;
        let ready = std::mem::take(&mut state.ready);
        let mut at = now;
        if !state.opened {
            state.opened = true;
            for qp in (thread..self.qps.len()).step_by(self.threads.len()) {
                self.script.open(qp, at, &mut self.list);
                at = self.post(qp, at);
            }
        }
        let mut visited: Vec<usize> = ready.iter().map(|done| qp_of(done.token)).collect();
        visited.sort_unstable();
        visited.dedup();
        let empty = self.threads[thread].cqs.saturating_sub(visited.len() as u64);
        at += empty * self.empty_poll;
        for done in &ready {
            at += self.poll;
            let qp = qp_of(done.token);
            if let Some(started) = self.script.reaped(qp, done, at, &mut self.list) {
                self.latencies.push(at.saturating_sub(started));
            }
            at = self.post(qp, at);
        }
        self.threads[thread].free_at = at;
        if !self.threads[thread].ready.is_empty() {
            self.schedule(thread, at);
        }
    }

    /// Posts what the script has listed; returns when the call is over.
    fn post(&mut self, qp: usize, at: Ps) -> Ps {
        if self.list.is_empty() {
            return at;
        }
        let end = at + self.model.post_cost(self.qps[qp], &self.list).cpu;
        self.model.post(end, self.qps[qp], &self.list);
        self.list.clear();
        end
    }
}
