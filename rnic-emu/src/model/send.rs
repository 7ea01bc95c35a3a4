//! The requester's way out: doorbell, WQE fetch, processing units, send pipeline, payload, port.

use super::breakdown::Stage;
use super::fabric::{CAME_ALONG, Kind, Model, NONE};
use super::nic::{Job, Table};
use super::wheel::Event;
use super::work::{Step, Transport};

impl Model {
    pub(super) fn on_doorbell(&mut self, qp: u32, count: u32) -> Option<Step> {
        let entry = &mut self.qps[qp as usize];
        let along = count & CAME_ALONG != 0;
        let count = count & !CAME_ALONG;
        // WQEs handed over before a flush are gone, and so is what the doorbell says of them.
        let waiting = entry.unsent.saturating_sub(entry.fetched + entry.unfetched);
        let count = count.min(waiting);
        if count == 0 {
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
        let first = entry.seq.wrapping_sub(entry.unsent).wrapping_add(entry.fetched);
        entry.fetched += count;
        let cache = &mut self.nics[entry.node as usize].wqe;
        for i in 0..count {
            cache.load(u64::from(qp) << 32 | u64::from(first.wrapping_add(i)));
        }
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

    /// Puts a QP in line for a processing unit if it has something to do.
    pub(super) fn make_runnable(&mut self, qp: u32) {
        let entry = &mut self.qps[qp as usize];
        if entry.in_ring || entry.in_service || entry.fetched == 0 || entry.head == NONE {
            return;
        }
        let wr = &self.wrs[entry.head as usize];
        if wr.sent == 0 {
            // READs wait for a free slot, a fenced request for all of them.
            let slots = if wr.fence { 1 } else { self.hw.reads };
            if (wr.op.reads() || wr.fence) && entry.reads >= slots {
                self.wrs[entry.head as usize].held = true;
                return;
            }
            if wr.op.reads() && entry.not_before > self.now {
                if !entry.waking {
                    entry.waking = true;
                    self.wheel.push(entry.not_before, Event { kind: Kind::Ready, a: qp, b: 0 });
                }
                return;
            }
        }
        entry.in_ring = true;
        let node = entry.node as usize;
        self.nics[node].ring.push_back(Job::Send { qp });
        self.dispatch(node);
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

    /// Gives free processing units to those waiting.
    pub(super) fn dispatch(&mut self, node: usize) {
        while self.nics[node].pu_taken < self.hw.pu_count {
            match self.nics[node].ring.pop_front() {
                Some(Job::Send { qp }) => self.send_packet(qp),
                Some(Job::Response { wr }) => self.respond_packet(wr),
                None => return,
            }
        }
    }

    pub(super) fn on_send_done(&mut self, qp: u32) -> Option<Step> {
        let entry = &mut self.qps[qp as usize];
        let node = entry.node as usize;
        entry.in_service = false;
        self.nics[node].pu_taken -= 1;
        if entry.alive {
            self.make_runnable(qp);
        } else {
            self.recycle_qp(qp);
        }
        self.dispatch(node);
        None
    }

    /// Sends the next packet of a QP's first request: the unit is taken until the port has begun with it.
    fn send_packet(&mut self, qp: u32) {
        let entry = &mut self.qps[qp as usize];
        entry.in_ring = false;
        let (id, node, peer) = (entry.head, entry.node as usize, entry.peer as usize);
        if id == NONE || entry.fetched == 0 {
            // Flushed while it waited.
            self.recycle_qp(qp);
            return;
        }
        entry.in_service = true;
        let (now, transport, cq, fetched_at) = (self.now, entry.transport, entry.cq, entry.fetched_at);
        let wr = &self.wrs[id as usize];
        let (op, first, sent, local, held) = (wr.op, wr.sent == 0, wr.sent, wr.local, wr.held);
        let payload = if op.reads() { 0 } else { u64::from(wr.bytes - wr.sent).min(self.hw.mtu) };
        let last = op.reads() || u64::from(wr.sent) + payload >= u64::from(wr.bytes);
        let (fetch, sges, seq) = (payload > 0 && !wr.inline, u64::from(wr.sges.max(1)), wr.seq);

        let mut context = 0;
        if first {
            let nic = &mut self.nics[node];
            if held && !nic.wqe.touch(u64::from(qp) << 32 | u64::from(seq)) {
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
        let paused = self.nics[peer].rx.full_until().saturating_sub(hw.rx_buffer);
        let nic = &mut self.nics[node];
        let arrived = (out + hw.delay).max(paused);
        // The unit keeps the packet until it is on its way: how long the packet waits, the unit waits.
        let waited = (arrived - hw.delay).saturating_sub(ready + hw.tx_latency + packet);
        let taken = match (first, op.reads()) {
            (true, true) => hw.pu_read,
            (true, false) => hw.pu_write,
            (false, _) => hw.pu_packet,
        };
        let free = (now + taken).max(piped + waited);
        nic.pu_taken += 1;
        nic.pu_busy += free - now;
        nic.packets += 1;
        nic.bytes += payload;
        self.wheel.push(free, Event { kind: Kind::SendDone, a: qp, b: 0 });

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
        wr.lap(Stage::Wire, if transport == Transport::Rc { arrived } else { out });
        wr.sent += payload as u32;
        if !last {
            // The responder takes it in as it comes; only the last packet is worth an event.
            let far = &mut self.nics[peer];
            let taken_in = far.rx.reserve(now, arrived, self.hw.rx_message);
            far.up.reserve(now, taken_in, self.hw.dma_write(payload));
            return;
        }
        let entry = &mut self.qps[qp as usize];
        entry.head = wr.next;
        if entry.head == NONE {
            entry.tail = NONE;
        }
        entry.fetched -= 1;
        entry.unsent -= 1;
        let fetch_more = entry.fetched == 0 && entry.unfetched > 0;
        if op.reads() {
            entry.reads += 1;
            entry.not_before = now + self.hw.read_gap;
        }
        self.wheel.push(arrived, Event { kind: Kind::Arrive, a: id, b: 0 });
        if transport != Transport::Rc {
            // Nobody will answer: done once it has left.
            self.wrs[id as usize].refs += 1;
            self.retire(id, cq, out, false);
        }
        if fetch_more {
            self.start_fetch(qp);
        }
    }
}
