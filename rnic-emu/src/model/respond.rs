//! The responder: receive pipeline, memory access, atomics, answers.

use super::breakdown::Stage;
use super::fabric::{Kind, Model};
use super::nic::{Job, Table};
use super::rng::mix;
use super::time::Ps;
use super::wheel::Event;
use super::work::{Step, Transport};

impl Model {
    /// A request's last packet is in.
    pub(super) fn on_arrive(&mut self, id: u32) -> Option<Step> {
        let wr = &self.wrs[id as usize];
        if self.flushed(wr) {
            self.release(id);
            return None;
        }
        let entry = &self.qps[wr.qp as usize];
        let (now, node, transport, cq) = (self.now, entry.peer as usize, entry.transport, entry.cq);
        let (op, qp, remote, notify) = (wr.op, wr.qp, wr.remote, wr.notify);
        // All packets but the last were taken in as they came.
        let payload = match u64::from(wr.bytes) {
            0 => 0,
            bytes if op.reads() => bytes,
            bytes => (bytes - 1) % self.mtu(qp) + 1,
        };
        let before = wr.bytes - payload as u32;

        let nic = &mut self.nics[node];
        let mut context = 0;
        if transport != Transport::Ud && !nic.rxc.touch(u64::from(qp)) {
            context = nic.miss(&self.hw, self.hw.rxc_miss, Table::Rxc, u64::from(qp) * 4);
        }
        let (mut work, mut translation) = (self.hw.rx_message, 0);
        if !op.reads() {
            translation = self.translate(node, remote, before, payload);
        }
        let receive = op.consumes_receive();
        if receive {
            // The receive WQE is fetched and a CQE written.
            work += self.hw.tx_dma_read + self.hw.cqe;
        }
        let hw = &self.hw;
        let nic = &mut self.nics[node];
        let piped = nic.receive(now, work, hw.stall(context + translation));
        let known = piped + hw.rx_latency + context + translation;
        let wr = &mut self.wrs[id as usize];
        if op.answered(transport) {
            wr.lap(Stage::Respond, piped + hw.rx_latency);
            wr.lap(Stage::ContextMiss, piped + hw.rx_latency + context);
            wr.lap(Stage::TranslationMiss, known);
        }

        if op.atomic() {
            self.answer_atomic(id, node, known);
            return None;
        }
        if op.reads() {
            self.answer_read(id, node, known);
            return None;
        }
        let mut delivered = known;
        if receive {
            let fetched = nic.dma_read(hw, now, known, 64);
            let data = nic.dma_write(hw, now, fetched, payload);
            delivered = nic.dma_write(hw, now, fetched, 64).max(data);
            nic.cqes += 1;
        } else if payload > 0 {
            delivered = nic.dma_write(hw, now, known, payload);
        }
        wr.delivered = delivered;
        if notify {
            wr.refs += 1;
            self.wheel.push(delivered, Event { kind: Kind::Deliver, a: id, b: 0 });
        }
        if op.answered(transport) {
            // Acknowledged once accepted, before the data is in memory. When the port is busy the acknowledgement waits for the
            // next one and goes with it, at no cost of its own.
            let ack = hw.ack_packet(false);
            let out = if nic.port.idle_at(known) { nic.port.reserve(now, known, ack) } else { known + ack };
            // Nothing waits for an acknowledgement but the request itself, so it needs no event of its own.
            let back = out + self.hw.delay;
            self.wrs[id as usize].lap(Stage::Return, back);
            self.retire(id, cq, back, true);
        } else {
            self.release(id);
        }
        None
    }

    /// Reads the memory asked for and sends it back.
    fn answer_read(&mut self, id: u32, node: usize, at: Ps) {
        let (now, bytes) = (self.now, u64::from(self.wrs[id as usize].bytes));
        if bytes > self.mtu(self.wrs[id as usize].qp) {
            // A long answer takes turns with everything else the NIC sends, a packet at a time.
            self.wrs[id as usize].sent = 0;
            self.nics[node].ring.push_back(Job::Response { wr: id });
            self.dispatch(node);
            return;
        }
        let (context, translation) = self.response_lookups(id, node, 0, bytes);
        let hw = &self.hw;
        let nic = &mut self.nics[node];
        let stall = hw.stall(context + translation);
        let piped = nic.send_answer(now, at, hw.tx_message + hw.tx_dma_read, stall);
        let known = piped + context + translation;
        let ready = if bytes > 0 { nic.dma_read(hw, now, known, bytes) } else { known };
        let out = nic.port.reserve(now, ready, hw.response_packet(bytes));
        nic.packets += 1;
        nic.bytes += bytes;
        let wr = &mut self.wrs[id as usize];
        wr.delivered = ready;
        wr.lap(Stage::Respond, piped);
        wr.lap(Stage::ContextMiss, piped + context);
        wr.lap(Stage::TranslationMiss, known);
        wr.lap(Stage::Respond, ready);
        wr.lap(Stage::Return, out + hw.delay);
        self.wheel.push(out + self.hw.delay, Event { kind: Kind::Reply, a: id, b: 0 });
    }

    /// What an answer with data needs to know: the QP's context for sending, the key, the pages.
    fn response_lookups(&mut self, id: u32, node: usize, sent: u32, bytes: u64) -> (Ps, Ps) {
        let wr = &self.wrs[id as usize];
        let (qp, remote) = (u64::from(wr.qp), wr.remote);
        let mut context = 0;
        if sent == 0 {
            let nic = &mut self.nics[node];
            if !nic.qpc.touch(qp) {
                context = nic.miss(&self.hw, self.hw.qpc_miss, Table::Qpc, qp * 4);
            }
        }
        (context, self.translate(node, remote, sent, bytes))
    }

    /// Sends one packet of a long answer to a READ. Returns up to when that takes the unit.
    pub(super) fn respond_packet(&mut self, id: u32) -> Ps {
        let wr = &self.wrs[id as usize];
        let node = self.qps[wr.qp as usize].peer as usize;
        if self.flushed(wr) {
            self.release(id);
            return self.now;
        }
        let (now, sent, qp) = (self.now, wr.sent, wr.qp);
        let home = self.qps[qp as usize].node as usize;
        let payload = u64::from(wr.bytes - sent).min(self.mtu(qp));
        let last = u64::from(sent) + payload >= u64::from(wr.bytes);
        let (context, translation) = self.response_lookups(id, node, sent, payload);
        let hw = &self.hw;
        let nic = &mut self.nics[node];
        let stall = hw.stall(context + translation);
        let piped = nic.send_answer(now, now, hw.tx_message + hw.tx_dma_read, stall);
        let known = piped + context + translation;
        let ready = nic.dma_read(hw, now, known, payload);
        let packet = hw.response_packet(payload);
        let out = nic.port.reserve(now, ready, packet);
        let waited = out.saturating_sub(ready + packet);
        let free = (now + hw.pu_packet).max(piped + waited);
        nic.packets += 1;
        nic.bytes += payload;
        let wr = &mut self.wrs[id as usize];
        // Packets of an answer arrive in order.
        let arrived = (out + hw.delay).max(if sent > 0 { wr.mark } else { 0 });
        wr.sent += payload as u32;
        wr.lap(Stage::Respond, piped);
        wr.lap(Stage::ContextMiss, piped + context);
        wr.lap(Stage::TranslationMiss, known);
        wr.lap(Stage::Respond, ready);
        wr.lap(Stage::Return, arrived);
        if last {
            wr.delivered = ready;
            self.wheel.push(arrived, Event { kind: Kind::Reply, a: id, b: 0 });
        } else {
            let near = &mut self.nics[home];
            let taken_in = near.rx.reserve(now, arrived, self.hw.rx_message);
            near.up.reserve(now, taken_in, self.hw.dma_write(payload));
            self.wheel.push(free, Event { kind: Kind::NextPacket, a: id, b: 0 });
        }
        free
    }

    /// An answer with more to send gets in line once more.
    pub(super) fn on_next_packet(&mut self, id: u32) -> Option<Step> {
        let node = self.qps[self.wrs[id as usize].qp as usize].peer as usize;
        self.nics[node].ring.push_back(Job::Response { wr: id });
        self.dispatch(node);
        None
    }

    /// Takes the lock of the address, changes the memory, sends the old value back.
    fn answer_atomic(&mut self, id: u32, node: usize, at: Ps) {
        let now = self.now;
        let (context, translation) = self.response_lookups(id, node, 0, 8);
        let wr = &self.wrs[id as usize];
        let entry = &mut self.qps[wr.qp as usize];
        // The lock is chosen by the low twelve bits of the address: one per 8-byte word of a page, hashed where there are fewer
        // or more (Kalia et al., ATC 2016, section 3.3).
        let word = wr.remote.map_or(0, |place| place.offset % 4096);
        let slots = self.hw.atomic_slots;
        let slot = if slots == 4096 { word } else { mix(word) % slots } as usize;
        let hw = &self.hw;
        let nic = &mut self.nics[node];
        if nic.slots.is_empty() {
            nic.slots = vec![0; slots as usize];
        }
        let piped = nic.send_answer(now, at, hw.tx_message, hw.stall(context + translation));
        let known = piped + context + translation;
        let admitted = nic.atomics.reserve(now, known, hw.atomic_message);
        let start = admitted.max(nic.slots[slot]).max(entry.atomic_free);
        let done = start + hw.atomic_hold;
        nic.slots[slot] = done;
        entry.atomic_free = done;
        // The memory is read and written back under the lock; the round trip to it counts in the holding time.
        nic.up.reserve(now, start, hw.dma_write(8) + hw.dma_read_request(8));
        nic.down.reserve(now, start, hw.dma_read_data(8));
        let out = nic.port.reserve(now, done, hw.ack_packet(true));
        nic.packets += 1;
        nic.bytes += 8;
        let wr = &mut self.wrs[id as usize];
        wr.delivered = done;
        wr.lap(Stage::Respond, piped);
        wr.lap(Stage::ContextMiss, piped + context);
        wr.lap(Stage::TranslationMiss, known);
        wr.lap(Stage::Respond, done);
        wr.lap(Stage::Return, out + hw.delay);
        self.wheel.push(out + self.hw.delay, Event { kind: Kind::Reply, a: id, b: 0 });
    }
}
