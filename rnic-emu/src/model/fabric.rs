//! The model: NICs on a switch, their queue pairs, and the events between them.
//!
//! A work request meets five events: its doorbell reaches the NIC, a processing unit lets go of its QP, it arrives at the
//! responder, its answer arrives back (READs and atomics), its CQE is visible. Everything between two events (pipelines, links, caches) is
//! worked out when the first is handled, by taking time from [`Lane`](super::lane::Lane)s. That keeps the event queue short
//! and the model fast, and loses only order within 65 ns.

use super::breakdown::{Breakdown, Stage};
use super::divisor::Divisor;
use super::hw::Hw;
use super::nic::{Nic, NicCounts, Table};
use super::profile::{Key, Profile};
use super::time::{Ps, from_ns};
use super::wheel::{Event, Wheel};
use super::work::{
    Completion, CqId, MrId, NodeId, Op, Place, Posted, QpId, Region, Request, Step, Transport,
};

pub(super) const NONE: u32 = u32::MAX;

/// Kinds of events; `a` and `b` are named in brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// WQEs were announced (QP, [`Announced`]).
    Doorbell,
    /// WQEs were fetched (QP, count).
    Fetched,
    /// A processing unit is free and something waits for it (node).
    UnitFree,
    /// A unit is done with an answer's packet and there are more (WR).
    NextPacket,
    /// A request's last packet is in (WR).
    Arrive,
    /// The last packet of the answer to a READ or atomic is in (WR).
    Reply,
    /// The payload is visible to the responder (WR).
    Deliver,
    /// The request is done (WR).
    Done,
    /// A QP may go on: its unit is done with its last packet, or its next READ may be sent (QP).
    Ready,
    /// A caller's timer (its number).
    Wake,
}

/// What a doorbell says, packed into 32 bits: how many WQEs, of which epoch of the QP, and whether the WQE came along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Announced {
    pub count: u32,
    pub epoch: u32,
    pub along: bool,
}

impl Announced {
    /// Longest list of one doorbell; what is more gets another.
    pub const MOST: usize = 1 << 20;
    const EPOCHS: u32 = 1 << 11;

    fn pack(self) -> u32 {
        (self.count - 1) | ((self.epoch % Self::EPOCHS) << 20) | (u32::from(self.along) << 31)
    }

    pub fn unpack(packed: u32) -> Self {
        let count = (packed & (Self::MOST as u32 - 1)) + 1;
        Self { count, epoch: (packed >> 20) & (Self::EPOCHS - 1), along: packed >> 31 != 0 }
    }

    /// True when what it announces has not been flushed since.
    pub fn still_true(self, epoch: u32) -> bool {
        self.epoch == epoch % Self::EPOCHS
    }
}

#[derive(Clone, Debug)]
pub(super) struct Qp {
    pub node: u16,
    pub peer: u16,
    pub transport: Transport,
    pub cq: u32,
    /// Requests handed over and not yet sent, oldest first.
    pub head: u32,
    /// The oldest not yet done: requests complete in order, so later ones wait for it. Its list goes on to `head` and beyond.
    pub oldest: u32,
    pub tail: u32,
    /// The first of them whose WQE the NIC does not have.
    pub newcomer: u32,
    /// Of those, the ones whose WQE the NIC has, and the ones announced without.
    pub fetched: u32,
    pub unfetched: u32,
    pub fetching: bool,
    pub in_ring: bool,
    pub alive: bool,
    /// Requests of an earlier epoch were flushed.
    pub epoch: u32,
    /// Requests in the list from `head` on.
    pub unsent: u32,
    /// A unit works on its last packet until then.
    pub busy_until: Ps,
    /// No READ is sent before.
    pub not_before: Ps,
    /// A [`Kind::Ready`] is on its way.
    pub waking: bool,
    /// When the newest WQEs were fetched.
    pub fetched_at: Ps,
    /// WQEs the NIC keeps for it.
    pub at_nic: u32,
    /// READs and atomics under way.
    pub reads: u32,
    /// READs and atomics it may have under way by its own attributes (`max_rd_atomic`).
    pub reads_allowed: u32,
    /// Bytes of a packet by its own attributes (`path_mtu`).
    pub mtu: u64,
    /// Requests handed over and not yet done.
    pub outstanding: u32,
    /// Requests of this QP that still own a record, flushed ones included.
    pub records: u32,
    /// When the last request was done.
    pub last_done: Ps,
    /// A QP's atomics are served in order.
    pub atomic_free: Ps,
}

impl Qp {
    /// It has WQEs that are not yet sent, and is not in line for that.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.in_ring && self.fetched > 0 && self.head != NONE
    }
}

#[derive(Clone, Debug)]
pub(super) struct Wr {
    pub qp: u32,
    pub next: u32,
    /// Number of its WQE at the NIC.
    pub wqe: u64,
    pub bytes: u32,
    pub sent: u32,
    pub token: u64,
    pub op: Op,
    pub sges: u8,
    pub inline: bool,
    pub signalled: bool,
    pub fence: bool,
    pub notify: bool,
    /// Held back after its WQE was read: it has to be read again.
    pub held: bool,
    pub epoch: u32,
    /// Events that still name this record.
    pub refs: u8,
    pub local: Option<Place>,
    pub remote: Option<Place>,
    pub posted: Ps,
    pub delivered: Ps,
    /// When it is done, earlier requests permitting; 0 before that is known.
    pub done_at: Ps,
    /// Up to where the time is accounted for.
    pub mark: Ps,
    pub spans: Breakdown,
}

impl Wr {
    /// Accounts the time since the last mark to a stage.
    pub fn lap(&mut self, stage: Stage, to: Ps) {
        if to > self.mark {
            self.spans.add(stage, to - self.mark);
            self.mark = to;
        }
    }
}

#[derive(Clone, Debug)]
struct Mr {
    node: u16,
    pages: u64,
    /// Lines of the translation table that are its own: their numbers, and the bytes of the region that one translates.
    first_line: u64,
    last_line: u64,
    line_bytes: Divisor,
    alive: bool,
}

/// Where every request went: the books balance, always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Totals {
    /// Requests posted.
    pub posted: u64,
    /// Requests completed.
    pub completed: u64,
    /// Requests thrown out by [`Model::flush`] or with their QP.
    pub flushed: u64,
    /// Requests under way.
    pub outstanding: u64,
}

/// Context memory in use on one NIC, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ContextMemory {
    /// Of queue pairs.
    pub qps: u64,
    /// Of completion queues (their rings lie in host memory and are not counted).
    pub cqs: u64,
    /// Of memory keys.
    pub mpt: u64,
    /// Of page translations.
    pub mtt: u64,
}

/// NICs connected by a switch, in modelled time. Pure: no clock, no threads, no I/O; the same calls give the same answers.
#[derive(Clone, Debug)]
pub struct Model {
    pub(super) hw: Hw,
    profile: Profile,
    pub(super) now: Ps,
    pub(super) wheel: Wheel<Kind>,
    pub(super) nics: Vec<Nic>,
    pub(super) qps: Vec<Qp>,
    free_qps: Vec<u32>,
    pub(super) wrs: Vec<Wr>,
    free_wrs: Vec<u32>,
    cqs: Vec<(u16, bool)>,
    mrs: Vec<Mr>,
    free_mrs: Vec<u32>,
    next_page: u64,
    pub(super) totals: Totals,
    spans: Breakdown,
    post: Ps,
    doorbell: Ps,
}

impl Model {
    /// Two NICs of that profile facing each other: node 0 and node 1.
    pub fn new(profile: &Profile) -> Self {
        Self::with_nodes(profile, 2)
    }

    /// `nodes` NICs of that profile on one switch.
    pub fn with_nodes(profile: &Profile, nodes: u16) -> Self {
        Self {
            hw: Hw::new(profile),
            profile: profile.clone(),
            now: 0,
            wheel: Wheel::default(),
            nics: (0..nodes.max(1)).map(|_| Nic::new(profile)).collect(),
            qps: Vec::new(),
            free_qps: Vec::new(),
            wrs: Vec::new(),
            free_wrs: Vec::new(),
            cqs: Vec::new(),
            mrs: Vec::new(),
            free_mrs: Vec::new(),
            next_page: 0,
            totals: Totals::default(),
            spans: Breakdown::default(),
            post: from_ns(profile.get(Key::HostPost)),
            doorbell: from_ns(profile.get(Key::HostDoorbell)),
        }
    }

    /// The profile it was made from.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Modelled time: that of the last event handled.
    pub fn now(&self) -> Ps {
        self.now
    }

    /// Creates a completion queue. A node that does not exist counts as the last one.
    pub fn create_cq(&mut self, node: NodeId) -> CqId {
        self.cqs.push((self.node(node), true));
        CqId((self.cqs.len() - 1) as u32)
    }

    /// Destroys a completion queue: its context memory is free again.
    pub fn destroy_cq(&mut self, cq: CqId) {
        if let Some(entry) = self.cqs.get_mut(cq.0 as usize) {
            entry.1 = false;
        }
    }

    /// Creates a queue pair on `node`, connected to one on `peer`.
    pub fn create_qp(&mut self, node: NodeId, peer: NodeId, transport: Transport, cq: CqId) -> QpId {
        let qp = Qp {
            node: self.node(node),
            peer: self.node(peer),
            transport,
            cq: cq.0,
            head: NONE,
            oldest: NONE,
            tail: NONE,
            newcomer: NONE,
            fetched: 0,
            unfetched: 0,
            fetching: false,
            in_ring: false,
            alive: true,
            epoch: 0,
            unsent: 0,
            busy_until: 0,
            not_before: 0,
            waking: false,
            fetched_at: 0,
            at_nic: 0,
            reads: 0,
            reads_allowed: u32::MAX,
            mtu: u64::MAX,
            outstanding: 0,
            records: 0,
            last_done: 0,
            atomic_free: 0,
        };
        match self.free_qps.pop() {
            Some(id) => {
                // Doorbells of the one before it may still be on their way.
                let epoch = self.qps[id as usize].epoch;
                self.qps[id as usize] = Qp { epoch, ..qp };
                QpId(id)
            }
            None => {
                self.qps.push(qp);
                QpId((self.qps.len() - 1) as u32)
            }
        }
    }

    /// Bounds the READs and atomics that a queue pair has under way (`max_rd_atomic`), below what the NIC allows any.
    /// At least one: a queue pair that may not read never gets here.
    pub fn limit_reads(&mut self, qp: QpId, most: u32) {
        if let Some(entry) = self.qps.get_mut(qp.0 as usize) {
            entry.reads_allowed = most.max(1);
        }
    }

    /// Bounds the packets of a queue pair (`path_mtu`), below what the port's own MTU is. To be said before the first
    /// request: packets under way would change their length.
    pub fn limit_packets(&mut self, qp: QpId, bytes: u64) {
        if let Some(entry) = self.qps.get_mut(qp.0 as usize) {
            entry.mtu = bytes.max(256);
        }
    }

    /// Bytes of a full packet of a queue pair.
    pub(super) fn mtu(&self, qp: u32) -> u64 {
        self.qps[qp as usize].mtu.min(self.hw.mtu)
    }

    /// Destroys a queue pair, flushing what it still has. Returns how many requests were flushed.
    pub fn destroy_qp(&mut self, qp: QpId) -> u64 {
        let flushed = self.flush(qp);
        if let Some(entry) = self.qps.get_mut(qp.0 as usize)
            && entry.alive
        {
            entry.alive = false;
            self.recycle_qp(qp.0);
        }
        flushed
    }

    /// Throws out everything a QP has under way, as when it enters the error state. None of it will complete. Returns how
    /// many requests that were.
    pub fn flush(&mut self, qp: QpId) -> u64 {
        let Some(entry) = self.qps.get_mut(qp.0 as usize).filter(|q| q.alive) else { return 0 };
        let flushed = u64::from(entry.outstanding);
        // Its WQEs at the NIC, sent or not, are of no more use.
        self.nics[usize::from(entry.node)].wqe.leave(u64::from(entry.at_nic));
        entry.at_nic = 0;
        let mut unsent = entry.head;
        entry.outstanding = 0;
        entry.reads = 0;
        entry.unsent = 0;
        // Those already sent are named by events to come, which will find them of an earlier epoch.
        entry.epoch = entry.epoch.wrapping_add(1);
        (entry.head, entry.tail, entry.newcomer, entry.oldest) = (NONE, NONE, NONE, NONE);
        (entry.fetched, entry.unfetched) = (0, 0);
        while unsent != NONE {
            let next = self.wrs[unsent as usize].next;
            self.release(unsent);
            unsent = next;
        }
        self.totals.flushed += flushed;
        self.totals.outstanding -= flushed;
        flushed
    }

    /// Registers a region with the NIC: from now on its translations can be looked up. Costs no modelled time; see
    /// [`registration`](super::registration) for what the call costs the program.
    pub fn register(&mut self, node: NodeId, region: Region) -> MrId {
        let page = region.page.max(1);
        let pages = region.bytes.div_ceil(page).max(1);
        let line = self.hw.mtt_line;
        // Regions start on a line of translations of their own, as their tables do in memory.
        let first = self.next_page;
        self.next_page += pages.next_multiple_of(line);
        let node = self.node(node);
        // The driver writes the translations through the processor's cache.
        self.nics[usize::from(node)].host_holds(Table::Mtt, first / 8..(first + pages).div_ceil(8));
        let mr = Mr {
            node,
            pages,
            first_line: first / line,
            last_line: (first + pages - 1) / line,
            line_bytes: Divisor::new(page.saturating_mul(line)),
            alive: true,
        };
        let id = match self.free_mrs.pop() {
            Some(id) => {
                self.mrs[id as usize] = mr;
                id
            }
            None => {
                self.mrs.push(mr);
                (self.mrs.len() - 1) as u32
            }
        };
        self.nics[usize::from(node)].host_holds(Table::Mpt, u64::from(id)..u64::from(id) + 1);
        MrId::new(id)
    }

    /// Deregisters a region: its key and its translations leave the NIC's caches.
    pub fn deregister(&mut self, mr: MrId) {
        let Some(entry) = self.mrs.get_mut(mr.index() as usize).filter(|m| m.alive) else { return };
        entry.alive = false;
        self.free_mrs.push(mr.index());
        let lines = entry.first_line..entry.last_line + 1;
        // Either side of a connection may have cached it; the shadow of a peer in another process is a node as well.
        for nic in &mut self.nics {
            nic.mtt.evict_range(lines.clone());
            let key = u64::from(mr.index());
            nic.mpt.evict_range(key..key + 1);
        }
    }

    /// What posting that list would cost the CPU, locks apart.
    pub fn post_cost(&self, qp: QpId, list: &[Request]) -> Posted {
        let Some(entry) = self.qps.get(qp.0 as usize) else { return Posted { cpu: 0, blueflame: false } };
        let (blueflame, lines) = self.doorbell_lines(entry.transport, list);
        Posted { cpu: self.post * list.len() as Ps + self.doorbell * lines, blueflame }
    }

    /// Hands a list of requests to the NIC with one doorbell rung at `at`. Requests of one QP complete in order.
    /// A QP that does not exist any more takes nothing.
    pub fn post(&mut self, at: Ps, qp: QpId, list: &[Request]) {
        let Some(entry) = self.qps.get(qp.0 as usize).filter(|q| q.alive && !list.is_empty()) else { return };
        let node = entry.node as usize;
        let (along, lines) = self.doorbell_lines(entry.transport, list);
        let at = at.max(self.now);
        for request in list {
            self.enqueue(qp.0, at, request);
        }
        let nic = &mut self.nics[node];
        nic.doorbells += 1;
        let there = nic.mmio.reserve(self.now, at, lines * self.hw.mmio_line).max(at) + self.hw.mmio;
        let epoch = self.qps[qp.0 as usize].epoch;
        for part in list.chunks(Announced::MOST) {
            let announced = Announced { count: part.len() as u32, epoch, along };
            self.wheel.push(there, Event { kind: Kind::Doorbell, a: qp.0, b: announced.pack() });
        }
    }

    /// Whether the WQE goes along with the doorbell, and how many 64-byte lines are stored to the register.
    fn doorbell_lines(&self, transport: Transport, list: &[Request]) -> (bool, u64) {
        match list {
            [one] => {
                let lines =
                    self.hw.wqe_lines(transport, one.inline, u64::from(one.bytes), u64::from(one.sges));
                let along = self.hw.goes_by_blueflame(one.inline, lines);
                (along, if along { lines } else { 1 })
            }
            _ => (false, 1),
        }
    }

    /// Asks for [`Step::Woken`] at that time.
    pub fn wake_at(&mut self, at: Ps, what: u32) {
        self.wheel.push(at, Event { kind: Kind::Wake, a: what, b: 0 });
    }

    /// Time of the next event, completion or not: nothing will happen before it.
    pub fn next_due(&mut self) -> Option<Ps> {
        self.wheel.next_time()
    }

    /// Handles events due by `until` up to the first that says something to the caller.
    pub fn step(&mut self, until: Ps) -> Option<Step> {
        while let Some((time, event)) = self.wheel.pop_until(until) {
            self.now = self.now.max(time);
            let said = match event.kind {
                Kind::Doorbell => self.on_doorbell(event.a, event.b),
                Kind::Fetched => self.on_fetched(event.a, event.b),
                Kind::UnitFree => self.on_unit_free(event.a),
                Kind::NextPacket => self.on_next_packet(event.a),
                Kind::Arrive => self.on_arrive(event.a),
                Kind::Reply => self.on_reply(event.a),
                Kind::Deliver => self.on_deliver(event.a),
                Kind::Done => self.on_done(event.a),
                Kind::Ready => self.on_ready(event.a),
                Kind::Wake => Some(Step::Woken { what: event.a, at: self.now }),
            };
            if said.is_some() {
                return said;
            }
        }
        None
    }

    /// Handles everything due by `until` and appends what completed, in order of completion.
    pub fn advance(&mut self, until: Ps, completed: &mut Vec<Completion>) {
        while let Some(step) = self.step(until) {
            if let Step::Completed(completion) = step {
                completed.push(completion);
            }
        }
        self.now = self.now.max(until);
    }

    /// Requests posted, completed, flushed and under way.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Requests of a QP under way.
    pub fn outstanding(&self, qp: QpId) -> u32 {
        self.qps.get(qp.0 as usize).map_or(0, |q| q.outstanding)
    }

    /// What a NIC has done so far.
    pub fn counts(&self, node: NodeId) -> NicCounts {
        self.nics[self.node(node) as usize].counts()
    }

    /// Time per stage, summed over all completed requests.
    pub fn breakdown(&self) -> Breakdown {
        self.spans
    }

    /// Context memory in use on a NIC.
    pub fn context_memory(&self, node: NodeId) -> ContextMemory {
        let node = self.node(node);
        let qps = self.qps.iter().filter(|q| q.alive && q.node == node).count() as u64;
        let cqs = self.cqs.iter().filter(|(n, alive)| *alive && *n == node).count() as u64;
        let mrs = self.mrs.iter().filter(|m| m.alive && m.node == node);
        let (keys, pages) = mrs.fold((0, 0), |(k, p), m| (k + 1, p + m.pages));
        ContextMemory {
            qps: qps * self.profile.get(Key::QpContextBytes) as u64,
            cqs: cqs * self.profile.get(Key::CqContextBytes) as u64,
            // Sizes of a memory key and of a translation entry, from the mlx4/mlx5 programmer's references.
            mpt: keys * 64,
            mtt: pages * 8,
        }
    }

    fn node(&self, node: NodeId) -> u16 {
        node.0.min((self.nics.len() - 1) as u16)
    }

    fn enqueue(&mut self, qp: u32, at: Ps, request: &Request) {
        let entry = &mut self.qps[qp as usize];
        let wr = Wr {
            qp,
            next: NONE,
            wqe: 0,
            bytes: request.bytes,
            sent: 0,
            token: request.token,
            op: request.op,
            sges: request.sges,
            inline: request.inline && !request.op.reads(),
            signalled: request.signalled,
            fence: request.fence,
            notify: request.notify,
            held: false,
            epoch: entry.epoch,
            refs: 1,
            local: request.local,
            remote: request.remote,
            posted: at,
            delivered: 0,
            done_at: 0,
            mark: at,
            spans: Breakdown::default(),
        };
        entry.outstanding += 1;
        entry.unsent += 1;
        entry.records += 1;
        self.totals.posted += 1;
        self.totals.outstanding += 1;
        let id = match self.free_wrs.pop() {
            Some(id) => {
                self.wrs[id as usize] = wr;
                id
            }
            None => {
                self.wrs.push(wr);
                (self.wrs.len() - 1) as u32
            }
        };
        if entry.newcomer == NONE {
            entry.newcomer = id;
        }
        if entry.head == NONE {
            entry.head = id;
        }
        if entry.oldest == NONE {
            entry.oldest = id;
        } else {
            self.wrs[entry.tail as usize].next = id;
        }
        entry.tail = id;
    }

    /// True when the request was thrown out while under way.
    pub(super) fn flushed(&self, wr: &Wr) -> bool {
        self.qps[wr.qp as usize].epoch != wr.epoch
    }

    /// One event less names this record.
    pub(super) fn release(&mut self, wr: u32) {
        let record = &mut self.wrs[wr as usize];
        record.refs -= 1;
        if record.refs == 0 {
            let qp = record.qp;
            self.free_wrs.push(wr);
            self.qps[qp as usize].records -= 1;
            self.recycle_qp(qp);
        }
    }

    /// A destroyed QP's number is used again only once no record or unit names it.
    pub(super) fn recycle_qp(&mut self, qp: u32) {
        let entry = &self.qps[qp as usize];
        if !entry.alive && entry.records == 0 && !entry.in_ring && !entry.fetching && !entry.waking {
            self.free_qps.push(qp);
        }
    }

    fn on_deliver(&mut self, wr: u32) -> Option<Step> {
        let record = &self.wrs[wr as usize];
        let said = (!self.flushed(record)).then_some(Step::Delivered {
            token: record.token,
            qp: QpId(record.qp),
            at: self.now,
        });
        self.release(wr);
        said
    }

    fn on_done(&mut self, wr: u32) -> Option<Step> {
        let record = &self.wrs[wr as usize];
        if self.flushed(record) {
            self.release(wr);
            return None;
        }
        let entry = &mut self.qps[record.qp as usize];
        entry.outstanding -= 1;
        self.totals.completed += 1;
        self.totals.outstanding -= 1;
        self.spans.add_all(&record.spans);
        let completion = Completion {
            token: record.token,
            qp: QpId(record.qp),
            node: NodeId(entry.node),
            signalled: record.signalled,
            posted: record.posted,
            at: self.now,
            delivered: record.delivered,
            breakdown: record.spans,
        };
        self.release(wr);
        Some(Step::Completed(completion))
    }

    /// Looks up the translations of a piece of a region on a NIC. Returns the misses' latency, one after the other.
    #[inline]
    pub(super) fn translate(&mut self, nic: usize, place: Option<Place>, sent: u32, bytes: u64) -> Ps {
        let Some(place) = place else { return 0 };
        let key = place.mr.index();
        let Some(mr) = self.mrs.get(key as usize).filter(|m| m.alive) else { return 0 };
        let key = u64::from(key);
        let mut latency = 0;
        let nic = &mut self.nics[nic];
        let hw = &self.hw;
        // The key is checked once a message, the pages at every packet.
        if sent == 0 && !nic.mpt.touch(key) {
            latency += nic.miss(hw, hw.mpt_miss, Table::Mpt, key);
        }
        let start = place.offset.saturating_add(u64::from(sent));
        let line = |offset: u64| mr.line_bytes.divide(offset).saturating_add(mr.first_line).min(mr.last_line);
        let (first, last) = (line(start), line(start.saturating_add(bytes.max(1) - 1)));
        for key in first..=last {
            if !nic.mtt.touch(key) {
                // A line of the table in host memory holds eight translations of 8 bytes.
                latency += nic.miss(hw, hw.mtt_miss, Table::Mtt, key * hw.mtt_line / 8);
            }
        }
        latency
    }
}
