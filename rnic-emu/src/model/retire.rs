//! The requester's way back: taking the answer in, retiring the request, writing its CQE.

use super::breakdown::Stage;
use super::fabric::{Kind, Model};
use super::nic::Table;
use super::time::Ps;
use super::wheel::Event;
use super::work::Step;

impl Model {
    /// The last packet of the answer to a READ or atomic is in.
    pub(super) fn on_reply(&mut self, id: u32) -> Option<Step> {
        let wr = &self.wrs[id as usize];
        let qp = wr.qp;
        if self.flushed(wr) {
            self.release(id);
            return None;
        }
        let entry = &self.qps[qp as usize];
        let (now, node, cq) = (self.now, entry.node as usize, entry.cq);
        let (op, local, bytes) = (wr.op, wr.local, u64::from(wr.bytes));
        // The data of the last packet goes to the local buffer; earlier packets went as they came.
        let payload = match bytes {
            _ if op.atomic() => 8,
            0 => 0,
            bytes => (bytes - 1) % self.mtu(qp) + 1,
        };
        let before = (bytes.max(payload) - payload) as u32;
        let translation = self.translate(node, local, before, payload);
        let hw = &self.hw;
        let nic = &mut self.nics[node];
        let piped = nic.receive(now, hw.rx_message, hw.stall(translation));
        let at = piped + hw.rx_latency + translation;
        nic.up.reserve(now, at, hw.dma_write(payload));
        let wr = &mut self.wrs[id as usize];
        wr.lap(Stage::Complete, piped + hw.rx_latency);
        wr.lap(Stage::TranslationMiss, at);
        self.qps[qp as usize].reads -= 1;
        self.retire(id, cq, at, true);
        self.make_runnable(qp);
        None
    }

    /// Retires a request at `at`: its WQE is needed again, its QP's context too, and a CQE is written if one was asked for.
    pub(super) fn retire(&mut self, id: u32, cq: u32, at: Ps, answered: bool) {
        let now = self.now;
        let wr = &self.wrs[id as usize];
        let (qp, wqe, signalled, reads) = (wr.qp, wr.wqe, wr.signalled, wr.op.reads());
        let node = self.qps[qp as usize].node as usize;
        let hw = &self.hw;
        let nic = &mut self.nics[node];
        let (mut context, mut work) = (0, 0);
        if answered {
            if !nic.wqe.find(wqe) {
                context += hw.wqe_miss;
            }
            if !nic.qpc.touch(u64::from(qp)) {
                context += nic.miss(hw, hw.qpc_miss, Table::Qpc, u64::from(qp) * 4);
            }
            if !reads {
                work += hw.tx_ack;
            }
        }
        nic.wqe.leave(1);
        if signalled {
            work += hw.cqe;
            if !nic.cqc.touch(u64::from(cq)) {
                context += nic.miss(hw, hw.cqc_miss, Table::Cqc, u64::from(cq));
            }
        }
        let piped = nic.send_own(now, at, work, hw.stall(context));
        let known = piped + context;
        let mut done = known;
        if signalled {
            done = nic.dma_write(hw, now, known, 64);
            nic.cqes += 1;
        }
        let wr = &mut self.wrs[id as usize];
        wr.lap(Stage::Complete, piped);
        wr.lap(Stage::ContextMiss, known);
        wr.done_at = done;
        self.qps[qp as usize].at_nic -= 1;
        self.complete_in_order(qp);
    }

    /// Completes the requests of a QP that are done, up to the first that is not: a WRITE that was acknowledged waits for the
    /// READ before it.
    fn complete_in_order(&mut self, qp: u32) {
        let entry = &mut self.qps[qp as usize];
        while let Some(wr) = self.wrs.get_mut(entry.oldest as usize).filter(|w| w.done_at > 0) {
            let done = wr.done_at.max(entry.last_done);
            wr.lap(Stage::Complete, done);
            self.wheel.push(done, Event { kind: Kind::Done, a: entry.oldest, b: 0 });
            entry.last_done = done;
            entry.oldest = wr.next;
        }
    }
}
