//! The seam between work requests and time: the one place that says when a request reaches its responder and when its
//! completion becomes visible.
//!
//! Without a profile both are at once. With one, every post is handed to the timing model as it happens; the requests
//! stand behind two gates, and the model's events, as the real clock reaches them, open the one (the responder may see
//! it) and the other (the program may see its completion). The data really moves, and errors really happen, in between.
//!
//! A QP of this process faces one of this process on the model's other NIC, so that a loopback test loads two NICs, not
//! one. A QP facing another process has that process' NIC as a shadow: each process models what it sends.

mod cost;
mod gate;
mod publish;
mod registration;

pub use cost::{CallCost, call_begins, lend, polled, posted, take_time};
pub use gate::{COMPLETE, DELIVER};

use crate::abi::consts::*;
use crate::device::process::Process;
use crate::device::speed::Speed;
use crate::engine::requester;
use crate::model::time::{Ps, from_ns};
use crate::model::{
    CqId, Key, Model, MrId, NodeId, Op, Place, Posted, Profile, QpId, Region, Request, Step, Transport,
};
use crate::object::qp::Requester;
use crate::object::qp_table::index_of;
use crate::object::send_queue::Route;
use crate::stats::ProcessCounter;
use crate::sys::clock;
use crate::sys::lock::Lock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// A completion this late, in real nanoseconds, counts as late: the machine did not keep up.
const LATE_NS: u64 = 200_000;
/// How often the model's counters are published while it is busy.
const PUBLISH_NS: u64 = 5_000_000;
/// Most events handled in one go, so that nobody waits for the lock for long.
const BATCH: usize = 256;

/// The timing model of this process, tied to the real clock.
pub struct Pacer {
    state: Lock<State>,
    profile: Profile,
    speed: Speed,
    origin_ns: u64,
    /// Real time that reaping one completion takes the program's processor.
    poll_ns: u64,
    /// Real time of the next event; `u64::MAX` for none.
    next_due: AtomicU64,
}

struct State {
    model: Model,
    cqs: HashMap<(u32, u16), CqId>,
    regions: HashMap<u32, [MrId; 2]>,
    list: Vec<Request>,
    /// Real time the counters were last published.
    published_ns: u64,
}

/// A QP as the model knows it.
#[derive(Clone, Copy)]
pub struct PacedQp {
    id: QpId,
    node: u16,
}

impl Pacer {
    /// A NIC of that profile, at that speed, from now on.
    pub fn new(profile: Profile, speed: Speed) -> Self {
        let state = State {
            model: Model::new(&profile),
            cqs: HashMap::new(),
            regions: HashMap::new(),
            list: Vec::new(),
            published_ns: 0,
        };
        Self {
            state: Lock::new(state),
            poll_ns: speed.real_ns(from_ns(profile.get(Key::HostPoll))),
            profile,
            speed,
            origin_ns: clock::now_ns(),
            next_due: AtomicU64::new(u64::MAX),
        }
    }

    /// Real time of the next event; `u64::MAX` for none.
    pub fn next_due(&self) -> u64 {
        self.next_due.load(SeqCst)
    }

    fn modelled(&self, now_ns: u64) -> Ps {
        self.speed.modelled_ps(now_ns.saturating_sub(self.origin_ns))
    }

    fn real(&self, at: Ps) -> u64 {
        self.origin_ns.saturating_add(self.speed.real_ns(at))
    }

    /// Real time that a modelled span takes.
    pub fn span_ns(&self, span: Ps) -> u64 {
        self.speed.real_ns(span)
    }

    /// The profile, for what costs the program time rather than the NIC.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Hands the requests of `queue` numbered `from` and on to the model. Returns what posting them costs the CPU.
    pub fn post(&self, r: &mut Requester, from: u64) -> Posted {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let paced = *r.paced.get_or_insert_with(|| state.enter(&r.fixed, &r.queue.route));
        // It may have been reset and connected anew with another limit since the last post.
        state.model.limit_reads(paced.id, u32::from(r.attr.max_rd_atomic));
        if r.fixed.kind != IBV_QPT_UD && r.queue.retired == from {
            state.model.limit_packets(paced.id, 128 << r.attr.path_mtu.clamp(IBV_MTU_256, IBV_MTU_4096));
        }
        let mut list = std::mem::take(&mut state.list);
        list.clear();
        for counter in from..r.queue.posted {
            if let Some(request) = state.request(r, counter, paced) {
                list.push(request);
                r.queue.wqe_mut(counter).gates = DELIVER | COMPLETE;
            }
        }
        let cost = state.model.post_cost(paced.id, &list);
        state.model.post(self.modelled(clock::now_ns()), paced.id, &list);
        state.list = list;
        self.announce(state);
        cost
    }

    fn announce(&self, state: &mut State) {
        let next = state.model.next_due().map_or(u64::MAX, |at| self.real(at));
        self.next_due.store(next, SeqCst);
    }

    /// Opens the gates whose time has come at `now`. True if there were any.
    pub fn advance(&self, process: &'static Process, now: u64) -> bool {
        if self.next_due() > now {
            return false;
        }
        // Whoever holds it is doing the same.
        let Some(mut state) = self.state.try_lock() else { return false };
        let mut steps = [None; BATCH];
        let until = self.modelled(now);
        let mut n = 0;
        while n < BATCH {
            let Some(step) = state.model.step(until) else { break };
            steps[n] = Some(step);
            n += 1;
        }
        self.announce(&mut state);
        // When nothing more is due, what was counted must not stay unpublished.
        if now >= state.published_ns + PUBLISH_NS || self.next_due() == u64::MAX {
            state.published_ns = now;
            publish::publish(&state.model, process.stats);
        }
        drop(state);
        for step in steps[..n].iter().flatten() {
            self.open(process, step, now);
        }
        n > 0
    }

    fn open(&self, process: &'static Process, step: &Step, now: u64) {
        let (token, opens) = match step {
            Step::Delivered { token, .. } => (*token, DELIVER),
            Step::Completed(c) => {
                let due = self.real(c.at);
                let lag = now.saturating_sub(due);
                process.stats.add(ProcessCounter::PacedCompletions, 1);
                process.stats.max(ProcessCounter::PacedLagMaxNs, lag);
                if lag > LATE_NS {
                    process.stats.add(ProcessCounter::PacedLate, 1);
                }
                (c.token, DELIVER | COMPLETE)
            }
            Step::Woken { .. } => return,
        };
        let (index, generation, counter) = gate::untoken(token);
        let Some(qp) = process.qps.at(index) else { return };
        let mut guard = qp.send.lock();
        let Some(r) = guard.as_mut().filter(|r| r.queue.generation == generation) else { return };
        if let Some(counter) = gate::nearest(counter, r.queue.retired, r.queue.posted) {
            r.queue.wqe_mut(counter).gates &= !opens;
            requester::pump(qp, r);
        }
    }

    /// Forgets what a QP has under way: it was flushed or reset.
    pub fn flush(&self, r: &mut Requester) {
        r.queue.generation = r.queue.generation.wrapping_add(1);
        if let Some(paced) = r.paced {
            let mut state = self.state.lock();
            state.model.flush(paced.id);
            self.announce(&mut state);
        }
    }

    /// Forgets a QP that is reset or destroyed.
    pub fn leave(&self, r: &mut Requester) {
        r.queue.generation = r.queue.generation.wrapping_add(1);
        if let Some(paced) = r.paced.take() {
            let mut state = self.state.lock();
            state.model.destroy_qp(paced.id);
            self.announce(&mut state);
        }
    }

    /// Makes a region known; returns what registering it costs, in real nanoseconds.
    pub fn register(&self, key: u32, addr: u64, len: u64) -> u64 {
        let region = Region { bytes: len, page: registration::page_size(addr, len) };
        let mut state = self.state.lock();
        let both = [NodeId(0), NodeId(1)].map(|node| state.model.register(node, region));
        state.regions.insert(key >> 8, both);
        self.span_ns(crate::model::registration_cost(&self.profile, region).register)
    }

    /// Forgets a region; returns what deregistering it costs, in real nanoseconds.
    pub fn deregister(&self, key: u32, addr: u64, len: u64) -> u64 {
        let region = Region { bytes: len, page: registration::page_size(addr, len) };
        let mut state = self.state.lock();
        if let Some(both) = state.regions.remove(&(key >> 8)) {
            both.into_iter().for_each(|mr| state.model.deregister(mr));
        }
        self.span_ns(crate::model::registration_cost(&self.profile, region).deregister)
    }
}

impl State {
    /// Makes a QP known to the model, opposite its peer where that is in this process, too.
    fn enter(&mut self, fixed: &crate::object::qp::Fixed, route: &Route) -> PacedQp {
        let node = match route {
            // The one with the lower number is on the first NIC, its peer on the second.
            Route::Local(peer) if peer.number() < fixed.qpn => 1,
            _ => 0,
        };
        let transport = match fixed.kind {
            IBV_QPT_RC => Transport::Rc,
            IBV_QPT_UC => Transport::Uc,
            _ => Transport::Ud,
        };
        let model = &mut self.model;
        let cq =
            *self.cqs.entry((fixed.send_cq.index, node)).or_insert_with(|| model.create_cq(NodeId(node)));
        PacedQp { id: model.create_qp(NodeId(node), NodeId(1 - node), transport, cq), node }
    }

    /// A posted request as the model sees it; `None` for one that never leaves the device.
    fn request(&self, r: &Requester, counter: u64, paced: PacedQp) -> Option<Request> {
        let wqe = r.queue.wqe(counter);
        let op = match u32::from(wqe.opcode) {
            IBV_WR_RDMA_WRITE => Op::Write,
            IBV_WR_RDMA_WRITE_WITH_IMM => Op::WriteImm,
            IBV_WR_SEND | IBV_WR_SEND_WITH_INV => Op::Send,
            IBV_WR_SEND_WITH_IMM => Op::SendImm,
            IBV_WR_RDMA_READ => Op::Read,
            IBV_WR_ATOMIC_CMP_AND_SWP => Op::CompareSwap,
            IBV_WR_ATOMIC_FETCH_AND_ADD => Op::FetchAdd,
            _ => return None,
        };
        let keys = &r.fixed.process.keys;
        let place = |key: u32, addr: u64, node: u16| {
            let mr = self.regions.get(&(key >> 8))?[usize::from(node)];
            let start = keys.pin(key)?.grant().iova;
            Some(Place { mr, offset: addr.saturating_sub(start) })
        };
        let first = if wqe.inline { None } else { r.queue.sges(counter).first() };
        let local = first.and_then(|s| place(s.lkey, s.addr, paced.node));
        // The keys of another process say nothing here: its translations are not modelled.
        let remote = match r.queue.route {
            Route::Local(_) if !op.consumes_receive() || op == Op::WriteImm => {
                place(wqe.rkey, wqe.remote_addr, 1 - paced.node)
            }
            _ => None,
        };
        Some(Request {
            op,
            bytes: wqe.len,
            inline: wqe.inline,
            signalled: r.queue.sig_all || u32::from(wqe.flags) & IBV_SEND_SIGNALED != 0,
            fence: u32::from(wqe.flags) & IBV_SEND_FENCE != 0,
            sges: wqe.n_sge.min(255) as u8,
            local,
            remote,
            token: gate::token(index_of(r.fixed.qpn), r.queue.generation, counter),
            notify: true,
        })
    }
}
