//! Nodes, threads, queue pairs and regions of a load.

use std::collections::VecDeque;

use super::lock::{Lock, LockCost};
use super::spec::{Doorbells, LoadSpec, Shape};
use crate::model::fabric::Model;
use crate::model::profile::{Key, Profile};
use crate::model::time::{Ps, from_ns};
use crate::model::work::{MrId, NodeId, QpId, Region};

/// What a thread is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Posts requests.
    Client,
    /// Answers them.
    Server,
}

/// A posting thread.
#[derive(Clone, Debug)]
pub(super) struct Thread {
    pub role: Role,
    /// Its QPs, as indices into [`Setup::qps`].
    pub qps: std::ops::Range<u32>,
    pub next: u32,
    /// Requests it may have outstanding, and how many of those are free.
    pub depth: u32,
    pub credits: u32,
    /// In the middle of posting a window.
    pub posting: bool,
    /// A wake-up is on its way.
    pub scheduled: bool,
    /// Its CPU is busy until then.
    pub free_at: Ps,
    /// CQEs to reap, and the requests they are for.
    pub cqes: u32,
    pub finished: Vec<u32>,
    /// Requests to answer (servers); arrived requests not yet posted (open loop).
    pub inbox: VecDeque<u32>,
    pub arrivals: VecDeque<Ps>,
    pub next_arrival: Ps,
    pub posts: u32,
}

/// A QP and what guards it.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub id: QpId,
    /// Node at its far end.
    pub peer: u16,
    pub local: MrId,
    /// Lock around posting: more than one thread posts to it.
    pub lock: Option<u32>,
    /// Lock of its doorbell register: other QPs ring it too.
    pub register: Option<u32>,
    /// Requests finished without a CQE since the last one that had one.
    pub silent: Vec<u32>,
    /// The QP that carries the answers.
    pub answers: Option<u32>,
    pub posted: u32,
}

/// Everything a run works on.
pub(super) struct Setup {
    pub model: Model,
    pub threads: Vec<Thread>,
    pub qps: Vec<Queue>,
    pub locks: Vec<Lock>,
    pub lock_cost: LockCost,
    /// Regions per node, empty where none are a target.
    pub regions: Vec<Vec<MrId>>,
    pub region_bytes: u64,
    /// What handing over a shared QP costs beyond its lock.
    pub migrate: Ps,
    /// What giving back a doorbell register's lock waits for.
    pub flush: Ps,
    /// How much longer CPU work takes with so many threads at it.
    pub crowd: f64,
    pub initiator: NodeId,
    pub responder: NodeId,
    /// Nodes whose requests are counted, for a rate per node.
    pub sources: u32,
}

impl Setup {
    pub fn new(profile: &Profile, spec: &LoadSpec) -> Self {
        let (nodes, sources): (u16, Vec<u16>) = match spec.shape {
            Shape::OneToOne => (2, vec![0]),
            Shape::Symmetric => (2, vec![0, 1]),
            Shape::FanIn(n) => (n + 1, (1..=n).collect()),
            Shape::FanOut(n) => (n + 1, vec![0]),
        };
        let target = |source: u16, qp: u32| match spec.shape {
            Shape::OneToOne | Shape::Symmetric => 1 - source,
            Shape::FanIn(_) => 0,
            Shape::FanOut(n) => 1 + (qp % u32::from(n)) as u16,
        };
        let ns = |key| from_ns(profile.get(key));
        let lock_cost = LockCost {
            take: ns(Key::HostLock),
            handoff: ns(Key::HostHandoff),
            waiter: ns(Key::HostWaiter),
            waiters: profile.get(Key::HostWaiters),
        };
        let mut setup = Self {
            model: Model::with_nodes(profile, nodes),
            threads: Vec::new(),
            qps: Vec::new(),
            locks: Vec::new(),
            lock_cost,
            regions: vec![Vec::new(); usize::from(nodes)],
            region_bytes: (spec.memory.bytes / u64::from(spec.memory.regions)).max(1),
            crowd: 1.0 + (f64::from(spec.threads - 1) / profile.get(Key::HostDouble)).powi(2),
            migrate: ns(Key::HostMigrate),
            flush: ns(Key::HostFlush),
            initiator: NodeId(if matches!(spec.shape, Shape::FanIn(_)) { 1 } else { 0 }),
            responder: NodeId(if matches!(spec.shape, Shape::FanIn(_)) { 0 } else { 1 }),
            sources: if spec.shape == Shape::Symmetric { 2 } else { 1 },
        };
        for &source in &sources {
            setup.add_source(profile, spec, source, &target);
        }
        for qp in 0..setup.qps.len() {
            let peer = usize::from(setup.qps[qp].peer);
            if setup.regions[peer].is_empty() {
                let region = Region { bytes: setup.region_bytes, page: spec.memory.page };
                let node = NodeId(peer as u16);
                setup.regions[peer] =
                    (0..spec.memory.regions).map(|_| setup.model.register(node, region)).collect();
            }
        }
        if let Some(reply) = &spec.reply {
            setup.add_servers(spec, reply.threads, reply.transport);
        }
        setup
    }

    fn add_source(
        &mut self,
        profile: &Profile,
        spec: &LoadSpec,
        source: u16,
        target: &dyn Fn(u16, u32) -> u16,
    ) {
        let node = NodeId(source);
        let local = self.model.register(node, Region { bytes: 1 << 16, page: spec.memory.page.max(1 << 16) });
        let (threads, count) = (spec.threads, spec.qps_per_node());
        let first = self.qps.len() as u32;
        let shared = self.model.create_cq(node);
        let mut own = Vec::new();
        if !spec.shared_cq {
            own.extend((0..threads.min(count)).map(|_| self.model.create_cq(node)));
        }
        for i in 0..count {
            // QPs are dealt out in blocks when there are enough for every thread, and shared in turn when there are not.
            let thread = (u64::from(i) * u64::from(threads) / u64::from(count)).min(u64::from(threads) - 1);
            let cq = own
                .get(if count >= threads { thread as usize } else { i as usize })
                .copied()
                .unwrap_or(shared);
            let peer = target(source, i);
            let id = self.model.create_qp(node, NodeId(peer), spec.transport, cq);
            self.qps.push(Queue {
                id,
                peer,
                local,
                lock: None,
                register: None,
                silent: Vec::new(),
                answers: None,
                posted: 0,
            });
        }
        if count < threads {
            for i in first..first + count {
                self.qps[i as usize].lock = Some(self.new_lock());
            }
        }
        if spec.doorbells == Doorbells::Driver && threads > 1 {
            self.deal_registers(profile, first, count);
        }
        for t in 0..threads {
            let depth = spec.outstanding / threads + u32::from(t < spec.outstanding % threads);
            let block = |t: u32| (u64::from(t) * u64::from(count)).div_ceil(u64::from(threads)) as u32;
            let qps = if count >= threads {
                first + block(t)..first + block(t + 1)
            } else {
                first + t % count..first + t % count + 1
            };
            self.threads.push(Thread { depth, credits: depth, ..Thread::new(Role::Client, qps) });
        }
    }

    /// As the mlx5 driver does: the first QPs get a register each, the others share the rest in turn, each with a lock.
    fn deal_registers(&mut self, profile: &Profile, first: u32, count: u32) {
        let free = profile.get(Key::DoorbellLockFree) as u32;
        let shared = (profile.get(Key::DoorbellRegisters) as u32).saturating_sub(free).max(1);
        let locks: Vec<u32> = (0..shared).map(|_| self.new_lock()).collect();
        for i in free..count {
            self.qps[(first + i) as usize].register = Some(locks[((i - free) % shared) as usize]);
        }
    }

    fn add_servers(&mut self, spec: &LoadSpec, threads: u32, transport: crate::model::work::Transport) {
        let clients = self.qps.len() as u32;
        let first = self.threads.len() as u32;
        let server = self.responder;
        let local =
            self.model.register(server, Region { bytes: 1 << 16, page: spec.memory.page.max(1 << 16) });
        let cqs: Vec<_> = (0..threads).map(|_| self.model.create_cq(server)).collect();
        for i in 0..clients {
            let peer = match spec.shape {
                Shape::FanIn(_) => 1 + (i / spec.qps_per_node()) as u16,
                _ => self.initiator.0,
            };
            let id = self.model.create_qp(server, NodeId(peer), transport, cqs[(i % threads) as usize]);
            self.qps[i as usize].answers = Some(self.qps.len() as u32);
            self.qps.push(Queue {
                id,
                peer,
                local,
                lock: None,
                register: None,
                silent: Vec::new(),
                // For an answering QP: the thread that serves it.
                answers: Some(first + i % threads),
                posted: 0,
            });
        }
        for _ in 0..threads {
            self.threads.push(Thread::new(Role::Server, 0..0));
        }
    }

    fn new_lock(&mut self) -> u32 {
        self.locks.push(Lock::default());
        (self.locks.len() - 1) as u32
    }
}

impl Thread {
    fn new(role: Role, qps: std::ops::Range<u32>) -> Self {
        Self {
            role,
            next: qps.start,
            qps,
            depth: 0,
            credits: 0,
            posting: true,
            scheduled: false,
            free_at: 0,
            cqes: 0,
            finished: Vec::new(),
            inbox: VecDeque::new(),
            arrivals: VecDeque::new(),
            next_arrival: 0,
            posts: 0,
        }
    }
}
