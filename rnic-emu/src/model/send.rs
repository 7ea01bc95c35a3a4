//! The requester's way out: doorbell, WQE fetch, processing units, send pipeline, payload, port.

use super::breakdown::Stage;
use super::fabric::{Announced, Kind, Model, NONE};
use super::nic::{Job, Table};
use super::time::Ps;
use super::wheel::Event;
use super::work::Step;

impl Model {
    pub(super) fn on_doorbell(&mut self, qp: u32, announced: u32) -> Option<Step> {
        let Announced { count, along, .. } = Announced::unpack(announced);
        let entry = &mut self.qps[qp as usize];
        if !Announced::unpack(announced).still_true(entry.epoch) {
            return None;
        }
        // A WQE that came along is of use only to a QP that has nothing older to fetch.
        if along && entry.unfetched == 0 && !entry.fetching {
            self.take_in(qp, count);
            self.make_runnable(qp);
        } else {
            entry.unfetched += count;
            if entry.fetched == 0 {
                self.start_fetch(qp);
            }
        }
        None
    }

    pub(super) fn on_fetched(&mut self, qp: u32, count: u32) -> Option<Step> {
        let entry = &mut self.qps[qp as usize];
        entry.fetching = false;
        if !entry.alive {
            self.recycle_qp(qp);
            return None;
        }
        let count = count.min(entry.unfetched);
        entry.unfetched -= count;
        entry.fetched_at = self.now;
        self.take_in(qp, count);
        self.make_runnable(qp);
        if self.qps[qp as usize].fetched == 0 {
            self.start_fetch(qp);
        }
        None
    }

    /// The NIC has the next `count` WQEs of a QP and keeps them while it can.
    fn take_in(&mut self, qp: u32, count: u32) {
        let entry = &mut self.qps[qp as usize];
        entry.fetched += count;
        entry.at_nic += count;
        let first = self.nics[entry.node as usize].wqe.arrive(u64::from(count));
        let mut wr = entry.newcomer;
        for number in first..first + u64::from(count) {
            let Some(record) = self.wrs.get_mut(wr as usize) else { break };
            record.wqe = number;
            wr = record.next;
        }
        entry.newcomer = wr;
    }

    /// Reads the next few WQEs of a QP from host memory.
    fn start_fetch(&mut self, qp: u32) {
        let entry = &mut self.qps[qp as usize];
        if entry.fetching || entry.unfetched == 0 {
            return;
        }
        entry.fetching = true;
        let count = entry.unfetched.min(self.hw.prefetch);
        let nic = &mut self.nics[entry.node as usize];
        let asked = nic.send_own(self.now, self.now, self.hw.tx_dma_read, 0);
        let mut lines = 0;
        let mut wr = entry.head;
        for _ in 0..count {
            let Some(record) = self.wrs.get(wr as usize) else { break };
            lines += self.hw.wqe_lines(
                entry.transport,
                record.inline,
                u64::from(record.bytes),
                u64::from(record.sges),
            );
            wr = record.next;
        }
        let there = nic.dma_read(&self.hw, self.now, asked, lines.max(1) * 64);
        self.wheel.push(there, Event { kind: Kind::Fetched, a: qp, b: count });
    }

    /// Lets a QP go on if it has something to do.
    #[inline]
    pub(super) fn make_runnable(&mut self, qp: u32) {
        let entry = &self.qps[qp as usize];
        let node = entry.node as usize;
        if entry.has_work() {
            self.enlist(qp);
        }
        if !self.nics[node].ring.is_empty() {
            self.dispatch(node);
        }
    }

    /// Puts a QP that has something to do in line for a processing unit if it may.
    fn enlist(&mut self, qp: u32) {
        let entry = &mut self.qps[qp as usize];
        let mut from = entry.busy_until;
        let wr = &self.wrs[entry.head as usize];
        if wr.sent == 0 {
            // READs wait for a free slot, a fenced request for all of them.
            let slots = if wr.fence { 1 } else { self.hw.reads.min(entry.reads_allowed) };
            if (wr.op.reads() || wr.fence) && entry.reads >= slots {
                self.wrs[entry.head as usize].held = true;
                return;
            }
            if wr.op.reads() {
                from = from.max(entry.not_before);
            }
        }
        if from > self.now {
            if !entry.waking {
                entry.waking = true;
                self.wheel.push(from, Event { kind: Kind::Ready, a: qp, b: 0 });
            }
            return;
        }
        entry.in_ring = true;
        let node = entry.node as usize;
        self.nics[node].ring.push_back(Job::Send { qp });
    }

    pub(super) fn on_ready(&mut self, qp: u32) -> Option<Step> {
        let entry = &mut self.qps[qp as usize];
        entry.waking = false;
        if entry.alive {
            self.make_runnable(qp);
        } else {
            self.recycle_qp(qp);
        }
        None
    }

    /// Gives free processing units to those waiting. Units are looked at only when something wants one.
    pub(super) fn dispatch(&mut self, node: usize) {
        while !self.nics[node].ring.is_empty() {
            let nic = &mut self.nics[node];
            let free_at = nic.unit_free_at();
            if free_at > self.now {
                if nic.look_at <= self.now {
                    nic.look_at = free_at;
                    self.wheel.push(free_at, Event { kind: Kind::UnitFree, a: node as u32, b: 0 });
                }
                return;
            }
            let Some(job) = nic.ring.pop_front() else { return };
            let taken_until = match job {
                Job::Send { qp } => self.send_packet(qp),
                Job::Response { wr } => self.respond_packet(wr),
            };
            self.nics[node].take_unit(self.now, taken_until);
            if let Job::Send { qp } = job
                && self.qps[qp as usize].has_work()
            {
                self.enlist(qp);
            }
        }
    }

    pub(super) fn on_unit_free(&mut self, node: u32) -> Option<Step> {
        self.dispatch(node as usize);
        None
    }

    /// Sends the next packet of a QP's first request. Returns up to when that takes the unit: until the port has begun with it.
    fn send_packet(&mut self, qp: u32) -> Ps {
        let entry = &mut self.qps[qp as usize];
        entry.in_ring = false;
        let (id, node, peer) = (entry.head, entry.node as usize, entry.peer as usize);
        if id == NONE || entry.fetched == 0 {
            // Flushed while it waited.
            self.recycle_qp(qp);
            return self.now;
        }
        let (now, transport, cq, fetched_at) = (self.now, entry.transport, entry.cq, entry.fetched_at);
        let wr = &self.wrs[id as usize];
        let (op, first, sent, local, held) = (wr.op, wr.sent == 0, wr.sent, wr.local, wr.held);
        let wqe = wr.wqe;
        let payload = if op.reads() { 0 } else { u64::from(wr.bytes - wr.sent).min(self.mtu(qp)) };
        let last = op.reads() || u64::from(wr.sent) + payload >= u64::from(wr.bytes);
        let (fetch, sges) = (payload > 0 && !wr.inline, u64::from(wr.sges.max(1)));

        let mut context = 0;
        if first {
            let nic = &mut self.nics[node];
            if held && !nic.wqe.find(wqe) {
                context = self.hw.wqe_miss;
            }
            if !nic.qpc.touch(u64::from(qp)) {
                // A context takes four lines of 64 bytes.
                context += nic.miss(&self.hw, self.hw.qpc_miss, Table::Qpc, u64::from(qp) * 4);
            }
        }
        let translation = if fetch { self.translate(node, local, sent, payload) } else { 0 };

        let hw = &self.hw;
        let nic = &mut self.nics[node];
        let reads = if fetch { if first { sges } else { 1 } } else { 0 };
        let work = hw.tx_message + hw.tx_dma_read * reads;
        let piped = nic.send_own(now, now, work, hw.stall(context + translation));
        let known = piped + context + translation;
        let ready = if fetch { nic.dma_read(hw, now, known, payload) } else { known };
        let packet = hw.request_packet(op, transport, payload, first);
        let out = nic.port.reserve(now, ready + hw.tx_latency, packet);
        // A receiver that cannot keep up pauses the link.
        let paused = self.nics[peer].behind_until().saturating_sub(hw.rx_buffer);
        let nic = &mut self.nics[node];
        // Packets of a message leave and arrive in order.
        let before = if first { 0 } else { self.wrs[id as usize].mark };
        let out = out.max(if op.answered(transport) { 0 } else { before });
        let arrived = (out + hw.delay).max(paused).max(before);
        // The unit keeps the packet until it is on its way: how long the packet waits, the unit waits.
        let waited = (arrived - hw.delay).saturating_sub(ready + hw.tx_latency + packet);
        let taken = match (first, op.reads()) {
            (true, true) => hw.pu_read,
            (true, false) => hw.pu_write,
            (false, _) => hw.pu_packet,
        };
        let free = (now + taken).max(piped + waited);
        nic.packets += 1;
        nic.bytes += payload;
        self.qps[qp as usize].busy_until = free;

        let wr = &mut self.wrs[id as usize];
        if first {
            wr.lap(Stage::Doorbell, now.min(wr.posted + self.hw.mmio));
            wr.lap(Stage::WqeFetch, now.min(fetched_at));
        }
        wr.lap(Stage::Queue, now);
        wr.lap(Stage::Send, piped);
        wr.lap(Stage::ContextMiss, piped + context);
        wr.lap(Stage::TranslationMiss, known);
        wr.lap(Stage::Payload, ready);
        wr.lap(Stage::Send, ready + self.hw.tx_latency);
        // Without an answer the request is done when it has left.
        wr.lap(Stage::Wire, if op.answered(transport) { arrived } else { out });
        wr.sent += payload as u32;
        if !last {
            // The responder takes it in as it comes; only the last packet is worth an event.
            let far = &mut self.nics[peer];
            let taken_in = far.rx.reserve(now, arrived, self.hw.rx_message);
            far.up.reserve(now, taken_in, self.hw.dma_write(payload));
            return free;
        }
        let entry = &mut self.qps[qp as usize];
        entry.head = wr.next;
        entry.fetched -= 1;
        entry.unsent -= 1;
        let fetch_more = entry.fetched == 0 && entry.unfetched > 0;
        if op.reads() {
            entry.reads += 1;
            entry.not_before = now + self.hw.read_gap;
        }
        self.wheel.push(arrived, Event { kind: Kind::Arrive, a: id, b: 0 });
        if !op.answered(transport) {
            // Nobody will answer: done once it has left.
            self.wrs[id as usize].refs += 1;
            self.retire(id, cq, out, false);
        }
        if fetch_more {
            self.start_fetch(qp);
        }
        free
    }
}
