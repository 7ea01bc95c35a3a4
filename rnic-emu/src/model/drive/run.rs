//! Runs a load: modelled threads against modelled NICs, one queue of events for both.

use super::histogram::Histogram;
use super::lock::Held;
use super::outcome::{NicOutcome, Outcome, per_request, rate};
use super::setup::{Role, Setup};
use super::spec::{LoadSpec, Pattern, Pick, SpecError, Waiting, Window};
use crate::model::breakdown::Breakdown;
use crate::model::nic::NicCounts;
use crate::model::profile::{Key, Profile};
use crate::model::rng::Rng;
use crate::model::time::{Ps, SEC, US, from_ns, to_s};
use crate::model::work::{Completion, Op, Place, Request, Step};

/// Set in a token when the request is a server's answer.
const ANSWER: u64 = 1 << 40;
/// Set in a timer's number when it stands for arrivals of an open loop.
const ARRIVAL: u32 = 1 << 31;

/// A request under way.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    start: Ps,
    thread: u32,
    qp: u32,
}

/// Times and counts at the start of measuring.
struct Start {
    at: Ps,
    done: u64,
    cpu: Ps,
    completed: u64,
    spans: Breakdown,
    initiator: NicCounts,
    responder: NicCounts,
}

struct Run<'a> {
    s: Setup,
    spec: &'a LoadSpec,
    rng: Rng,
    slots: Vec<Slot>,
    free: Vec<u32>,
    list: Vec<Request>,
    cursor: u64,
    /// Distance of neighbouring places, and how many there are in a region.
    step: u64,
    room: u64,
    /// The program's own CPU time per request.
    work: Ps,
    /// A CPU time, and the same stretched by the crowd of threads: nearly every post costs what the last one did.
    stretched: (Ps, Ps),
    poll: Ps,
    pickup: Ps,
    wakeup: Ps,
    done: u64,
    cpu: Ps,
    latencies: Histogram,
    started: Option<Start>,
}

/// Runs a load on NICs of that profile, in modelled time. The same arguments give the same outcome.
pub fn drive(profile: &Profile, spec: &LoadSpec) -> Result<Outcome, SpecError> {
    spec.check()?;
    let setup = Setup::new(profile, spec);
    let crowd = setup.crowd;
    let step = u64::from(spec.bytes).next_multiple_of(8).max(8);
    let ns = |key| from_ns(profile.get(key) * crowd);
    let nodes = f64::from(setup.sources);
    let units = profile.get(Key::PuCount);
    let mut run = Run {
        rng: Rng::new(spec.seed),
        slots: Vec::new(),
        free: Vec::new(),
        list: Vec::with_capacity(spec.list as usize),
        cursor: 0,
        step,
        room: (setup.region_bytes / step).max(1),
        work: from_ns(spec.work_ns * crowd),
        stretched: (0, 0),
        poll: ns(Key::HostPoll),
        pickup: ns(Key::HostEmptyPoll) / 2,
        wakeup: from_ns(profile.get(Key::EventInterrupt) + profile.get(Key::EventWakeup)),
        done: 0,
        cpu: 0,
        latencies: Histogram::default(),
        started: None,
        s: setup,
        spec,
    };
    let (initiator, responder) = (run.s.initiator, run.s.responder);
    let end = run.go(warmup(profile, spec));
    let Some(start) = run.started else { return Ok(nothing()) };
    let elapsed = end - start.at;
    let measured = run.done - start.done;
    let model = &run.s.model;
    let completed = model.totals().completed - start.completed;
    Ok(Outcome {
        ops_per_s: rate(measured as f64 / nodes, elapsed),
        bytes_per_s: rate(measured as f64 * f64::from(spec.bytes) / nodes, elapsed),
        latency_ns: (&run.latencies).into(),
        breakdown_ns: per_request(&model.breakdown().since(&start.spans), completed),
        cpu_ns_per_op: (run.cpu - start.cpu) as f64 / 1e3 / measured.max(1) as f64,
        initiator: NicOutcome::new(model.counts(initiator).since(&start.initiator), elapsed, units),
        responder: NicOutcome::new(model.counts(responder).since(&start.responder), elapsed, units),
        measured,
        seconds: to_s(elapsed),
    })
}

/// Requests before measuring: the window several times over, and every cache the load can fill.
fn warmup(profile: &Profile, spec: &LoadSpec) -> u64 {
    if spec.warmup > 0 {
        return spec.warmup;
    }
    let pages = spec.memory.bytes.div_ceil(spec.memory.page);
    let fill = |keys: u64, entries: f64| 3 * keys.min(entries as u64);
    let host = profile.get(Key::TableCache) * 1024.0 / 8.0;
    let tables = if pages as f64 > host { host / 4.0 } else { 0.0 };
    let caches = fill(u64::from(spec.qps_per_node()), profile.get(Key::QpcEntries))
        .max(fill(pages, profile.get(Key::MttEntries)))
        .max(fill(u64::from(spec.memory.regions), profile.get(Key::MptEntries)))
        .max(tables as u64);
    (4 * u64::from(spec.outstanding)).max(caches).max(10_000)
}

/// The outcome of a load that came to a standstill before it was measured.
fn nothing() -> Outcome {
    Outcome {
        ops_per_s: 0.0,
        bytes_per_s: 0.0,
        latency_ns: Default::default(),
        breakdown_ns: Default::default(),
        cpu_ns_per_op: 0.0,
        initiator: NicOutcome::default(),
        responder: NicOutcome::default(),
        measured: 0,
        seconds: 0.0,
    }
}

impl Run<'_> {
    /// Runs to the end and returns when that was.
    fn go(&mut self, warmup: u64) -> Ps {
        for thread in 0..self.s.threads.len() as u32 {
            if self.s.threads[thread as usize].role == Role::Client {
                // Threads of a program do not start in step.
                let at = self.rng.below(2 * US);
                if self.spec.rate > 0.0 {
                    self.s.threads[thread as usize].next_arrival = at;
                    self.s.model.wake_at(at, thread | ARRIVAL);
                } else {
                    self.schedule(thread, at);
                }
            }
        }
        let last = warmup + self.spec.measure;
        while self.done < last {
            let Some(step) = self.s.model.step(Ps::MAX) else { break };
            match step {
                Step::Completed(completion) => self.completed(&completion),
                Step::Delivered { token, at, .. } => self.delivered(token, at),
                Step::Woken { what, at } if what & ARRIVAL != 0 => self.arrival(what & !ARRIVAL, at),
                Step::Woken { what, at } => self.turn(what, at),
            }
            if self.started.is_none() && self.done >= warmup {
                self.start();
            }
        }
        self.s.model.now()
    }

    fn start(&mut self) {
        let model = &self.s.model;
        self.latencies = Histogram::default();
        self.started = Some(Start {
            at: model.now(),
            done: self.done,
            cpu: self.cpu,
            completed: model.totals().completed,
            spans: model.breakdown(),
            initiator: model.counts(self.s.initiator),
            responder: model.counts(self.s.responder),
        });
    }

    fn schedule(&mut self, thread: u32, at: Ps) {
        let t = &mut self.s.threads[thread as usize];
        if !t.scheduled {
            t.scheduled = true;
            self.s.model.wake_at(at.max(t.free_at), thread);
        }
    }

    /// A CQE (or a silent end) at the requester.
    fn completed(&mut self, completion: &Completion) {
        let token = completion.token;
        if token & ANSWER != 0 {
            // A server reaps the CQEs of its answers along with its other work.
            if completion.signalled {
                let slot = (token & !ANSWER) as u32;
                let answers = self.s.qps[self.slots[slot as usize].qp as usize].answers;
                let thread = answers.and_then(|q| self.s.qps[q as usize].answers);
                if let Some(thread) = thread {
                    self.s.threads[thread as usize].cqes += 1;
                }
            }
            return;
        }
        if self.spec.reply.is_some() {
            return;
        }
        let slot = token as u32;
        let Slot { qp, thread, .. } = self.slots[slot as usize];
        if !completion.signalled {
            self.s.qps[qp as usize].silent.push(slot);
            return;
        }
        let silent = std::mem::take(&mut self.s.qps[qp as usize].silent);
        for &earlier in &silent {
            let owner = self.slots[earlier as usize].thread;
            self.s.threads[owner as usize].finished.push(earlier);
            if owner != thread {
                self.notice(owner, completion.at);
            }
        }
        self.s.qps[qp as usize].silent = cleared(silent);
        let t = &mut self.s.threads[thread as usize];
        t.finished.push(slot);
        t.cqes += 1;
        self.notice(thread, completion.at);
    }

    /// A waiting thread learns that there is something for it.
    fn notice(&mut self, thread: u32, at: Ps) {
        let t = &self.s.threads[thread as usize];
        let waiting = !t.scheduled && t.free_at <= at;
        match self.spec.waiting {
            Waiting::Event if waiting => self.schedule(thread, at + self.wakeup),
            // A thread that polls sees it half a poll later: no event is worth that.
            Waiting::Poll if waiting => self.turn(thread, at + self.pickup),
            _ => self.schedule(thread, at + self.pickup),
        }
    }

    /// A payload is visible at the other side: a request for a server, or its answer.
    fn delivered(&mut self, token: u64, at: Ps) {
        let slot = (token & !ANSWER) as u32;
        let Slot { qp, thread, .. } = self.slots[slot as usize];
        if token & ANSWER != 0 {
            let t = &mut self.s.threads[thread as usize];
            t.finished.push(slot);
            t.cqes += 1;
            self.notice(thread, at);
        } else if let Some(answers) = self.s.qps[qp as usize].answers
            && let Some(server) = self.s.qps[answers as usize].answers
        {
            self.s.threads[server as usize].inbox.push_back(slot);
            self.notice(server, at);
        }
    }

    /// Requests arrive at random, whether the NIC keeps up or not.
    fn arrival(&mut self, thread: u32, at: Ps) {
        let mean = SEC as f64 * f64::from(self.spec.threads) / self.spec.rate;
        let gap = (-(1.0 - self.rng.unit()).ln() * mean) as Ps;
        let t = &mut self.s.threads[thread as usize];
        t.arrivals.push_back(at);
        t.next_arrival = at + gap.max(1);
        let next = t.next_arrival;
        self.s.model.wake_at(next, thread | ARRIVAL);
        self.schedule(thread, at);
    }

    /// A thread's turn: reap what is there, post what may be posted.
    fn turn(&mut self, thread: u32, now: Ps) {
        self.s.threads[thread as usize].scheduled = false;
        let (mut at, contended) = self.reap(thread, now);
        match self.s.threads[thread as usize].role {
            Role::Server => at = self.answer(thread, at),
            // Whoever waited for a lock lets the others have their turn before the next.
            Role::Client if contended => {}
            Role::Client => {
                while let Some(count) = self.may_post(thread) {
                    let (end, contended) = self.post(thread, at, count);
                    at = end;
                    if contended {
                        break;
                    }
                }
            }
        }
        let t = &mut self.s.threads[thread as usize];
        t.free_at = at;
        self.cpu += at - now;
        if self.may_post(thread).is_some() || !self.s.threads[thread as usize].finished.is_empty() {
            self.schedule(thread, at);
        }
    }

    /// Reaps what is there. Returns when that is done, and whether it took a lock.
    fn reap(&mut self, thread: u32, now: Ps) -> (Ps, bool) {
        let t = &mut self.s.threads[thread as usize];
        let cqes = std::mem::take(&mut t.cqes);
        let finished = std::mem::take(&mut t.finished);
        let mut at = now + self.poll * Ps::from(cqes);
        let mut contended = false;
        if cqes > 0 && t.role == Role::Client {
            // Threads that share a QP share its CQ, and its lock.
            let qp = t.qps.start as usize;
            if let Some(lock) = self.s.qps[qp].lock {
                let cost = self.s.lock_cost;
                let held = Held { thread, work: self.poll * Ps::from(cqes), moves: self.s.migrate };
                at = self.s.locks[lock as usize].hold(now, held, &cost);
                contended = true;
            }
        }
        let t = &mut self.s.threads[thread as usize];
        t.credits += finished.len() as u32;
        for &slot in &finished {
            self.latencies.add(at - self.slots[slot as usize].start);
            self.free.push(slot);
        }
        self.done += finished.len() as u64;
        if t.credits == t.depth {
            t.posting = true;
        }
        t.finished = cleared(finished);
        (at, contended)
    }

    /// How many requests the thread may post now, if any.
    fn may_post(&self, thread: u32) -> Option<u32> {
        let t = &self.s.threads[thread as usize];
        if t.role == Role::Server || t.credits == 0 {
            return None;
        }
        let list = self.spec.list.min(t.depth);
        let count = match self.spec.window {
            _ if self.spec.rate > 0.0 => list.min(t.credits).min(t.arrivals.len() as u32),
            Window::Refill if t.credits < list => 0,
            Window::Refill => list,
            Window::Batch if t.posting => list.min(t.credits),
            Window::Batch => 0,
        };
        (count > 0).then_some(count)
    }

    /// Posts a list. Returns when the call returns, and whether other threads wanted the same lock.
    fn post(&mut self, thread: u32, at: Ps, count: u32) -> (Ps, bool) {
        let qp = self.pick(thread);
        let mut list = std::mem::take(&mut self.list);
        list.clear();
        for _ in 0..count {
            let t = &mut self.s.threads[thread as usize];
            let start = if self.spec.rate > 0.0 { t.arrivals.pop_front().unwrap_or(at) } else { at };
            t.credits -= 1;
            let slot = self.slot(Slot { start, thread, qp });
            list.push(self.request(thread, qp, slot));
        }
        let t = &mut self.s.threads[thread as usize];
        if t.credits == 0 {
            t.posting = false;
        }
        let queue = &self.s.qps[qp as usize];
        let (id, queue_lock, register) = (queue.id, queue.lock, queue.register);
        let cost = self.s.model.post_cost(id, &list);
        let work = self.crowded(cost.cpu);
        let own = self.work * Ps::from(count);
        let lock_cost = self.s.lock_cost;
        let ready = at + own;
        let mut end = ready + work;
        if let Some(lock) = queue_lock {
            let held = Held { thread, work, moves: self.s.migrate };
            end = self.s.locks[lock as usize].hold(ready, held, &lock_cost);
        }
        if let Some(lock) = register {
            let held = Held { thread, work: work + self.s.flush, moves: 0 };
            end = end.max(self.s.locks[lock as usize].hold(ready, held, &lock_cost));
        }
        self.s.model.post(end, id, &list);
        self.list = list;
        (end, queue_lock.is_some() || register.is_some())
    }

    /// CPU time as it is with that many threads on the host.
    fn crowded(&mut self, cpu: Ps) -> Ps {
        if self.stretched.0 != cpu {
            self.stretched = (cpu, (cpu as f64 * self.s.crowd) as Ps);
        }
        self.stretched.1
    }

    fn pick(&mut self, thread: u32) -> u32 {
        let random = self.spec.pick == Pick::Random;
        let t = &mut self.s.threads[thread as usize];
        let count = t.qps.end - t.qps.start;
        if random {
            return t.qps.start + self.rng.below(u64::from(count)) as u32;
        }
        let qp = t.next;
        t.next = if qp + 1 >= t.qps.end { t.qps.start } else { qp + 1 };
        qp
    }

    fn request(&mut self, thread: u32, qp: u32, slot: u32) -> Request {
        let spec = self.spec;
        let t = &mut self.s.threads[thread as usize];
        t.posts += 1;
        let mut op = spec.op;
        if spec.read_percent > 0 {
            op = if self.rng.below(100) < u64::from(spec.read_percent) { Op::Read } else { spec.op };
        }
        let queue = &mut self.s.qps[qp as usize];
        queue.posted += 1;
        // The last request of a filled window is signalled too: nothing else would free it.
        let signalled = queue.posted.is_multiple_of(spec.signal_every)
            || (self.s.threads[thread as usize].credits == 0 && spec.window == Window::Batch);
        let (local, peer) = (queue.local, usize::from(queue.peer));
        Request {
            op,
            bytes: spec.bytes,
            inline: spec.inline && !op.reads(),
            signalled,
            fence: false,
            sges: spec.sges,
            local: Some(Place { mr: local, offset: u64::from(slot % 512) * 64 }),
            remote: Some(self.place(peer)),
            token: u64::from(slot),
            notify: spec.reply.is_some(),
        }
    }

    fn place(&mut self, peer: usize) -> Place {
        let memory = &self.spec.memory;
        let regions = &self.s.regions[peer];
        let mr = if regions.len() > 1 {
            regions[self.rng.below(regions.len() as u64) as usize]
        } else {
            regions[0]
        };
        let (step, room) = (self.step, self.room);
        let offset = match memory.pattern {
            Pattern::Fixed => 0,
            Pattern::Random => self.rng.below(room) * step,
            Pattern::Sequential => {
                self.cursor += 1;
                self.cursor % room * step
            }
            Pattern::Stride(stride) => {
                self.cursor = self.cursor.wrapping_add(stride);
                self.cursor % self.s.region_bytes
            }
        };
        Place { mr, offset }
    }

    fn slot(&mut self, slot: Slot) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = slot;
                index
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        }
    }

    /// A server answers what has come in.
    fn answer(&mut self, thread: u32, mut at: Ps) -> Ps {
        let Some(reply) = self.spec.reply else { return at };
        while let Some(slot) = self.s.threads[thread as usize].inbox.pop_front() {
            let qp = self.slots[slot as usize].qp;
            let Some(answers) = self.s.qps[qp as usize].answers else { continue };
            let queue = &mut self.s.qps[answers as usize];
            queue.posted += 1;
            let request = Request {
                op: reply.op,
                bytes: reply.bytes,
                inline: reply.inline,
                signalled: reply.signal_every > 0 && queue.posted.is_multiple_of(reply.signal_every),
                local: Some(Place { mr: queue.local, offset: u64::from(slot % 512) * 64 }),
                token: u64::from(slot) | ANSWER,
                notify: true,
                ..Request::default()
            };
            let id = queue.id;
            let cost = self.s.model.post_cost(id, &[request]);
            at += self.poll + self.crowded(cost.cpu);
            self.s.model.post(at, id, &[request]);
        }
        at
    }
}

/// The same vector, empty: its memory is used again.
fn cleared(mut v: Vec<u32>) -> Vec<u32> {
    v.clear();
    v
}
