//! The queue pairs, completion queues and shared receive queues of one process, and each queue pair's life.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::sample::{Detail, Event, QpAttributes};

use super::room::{Population, Room, clipped};

/// Destroyed QPs whose story is kept, per process; the totals count all.
const ENDED_KEPT: usize = 4096;

/// State changes kept of one QP: a QP in a normal life has three or four.
const TRANSITIONS_KEPT: usize = 32;

/// One `ibv_modify_qp` that named a new state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// When it was asked for.
    pub t_ns: u64,
    /// How long the call took.
    pub duration_ns: u64,
    /// State before, where known.
    pub from: Option<String>,
    /// State asked for.
    pub to: String,
    /// 0 where it succeeded.
    pub errno: i32,
}

/// A queue pair, from its creation (or the first time it was met) on.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Qp {
    /// The process's own pointer, which another QP may have later.
    pub qp: u64,
    /// QP number.
    pub qpn: u32,
    /// `RC`, `UD`, …; empty where its creation was not seen.
    pub qp_type: String,
    /// Protection domain.
    pub pd: u64,
    /// Completion queue of its sends.
    pub send_cq: u64,
    /// Completion queue of its receives.
    pub recv_cq: u64,
    /// Shared receive queue, 0 without.
    pub srq: u64,
    /// Depth of the send queue, WRs.
    pub max_send_wr: u32,
    /// Depth of the receive queue, WRs.
    pub max_recv_wr: u32,
    /// SGEs per send.
    pub max_send_sge: u32,
    /// SGEs per receive.
    pub max_recv_sge: u32,
    /// Longest inline send.
    pub max_inline_bytes: u32,
    /// Every send is signalled.
    pub sq_sig_all: bool,
    /// When it was created; `None` where it is older than the recording or the event was lost.
    pub created_ns: Option<u64>,
    /// How long its creation took.
    pub creation_ns: u64,
    /// Number of the place in the program that created it, see [`super::Sites::get`].
    pub site: Option<usize>,
    /// When it was destroyed.
    pub destroyed_ns: Option<u64>,
    /// State after the last successful change; `None` before any.
    pub state: Option<String>,
    /// State changes, oldest first, the first 32.
    pub transitions: Vec<Transition>,
    /// Changes beyond those kept.
    pub more_transitions: u64,
    /// `ibv_modify_qp` calls that failed.
    pub failed_changes: u64,
    /// Every attribute as last set successfully: path MTU, peer, timeouts, retries, …
    pub attributes: QpAttributes,
    /// Known by its posts alone, as yet: no call on it was seen.
    pub only_posts: bool,
}

impl Qp {
    /// The one or two CQs it completes into; XRC targets have none.
    pub fn cqs(&self) -> impl Iterator<Item = u64> + use<> {
        let second = (self.recv_cq != self.send_cq).then_some(self.recv_cq);
        std::iter::once(self.send_cq).chain(second).filter(|cq| *cq != 0)
    }
}

/// A completion queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cq {
    /// The process's own pointer, which another CQ may have later.
    pub cq: u64,
    /// Entries asked for.
    pub cqe: u32,
    /// Completion channel, 0 without (polling).
    pub channel: u64,
    /// When it was created; `None` where it is older than the recording or the event was lost.
    pub created_ns: Option<u64>,
    /// QPs that complete into it, now and at most.
    pub qps: Population,
    /// Send WRs that those QPs can have outstanding, now.
    pub sends: u64,
    /// Receive WRs that those QPs can have outstanding, now; shared receive queues not counted, nor queues of one WR,
    /// which programs ask for that never receive.
    pub receives: u64,
    /// Most entries that could have been waiting at the same time, all sends signalled.
    pub most_possible: u64,
}

impl Cq {
    fn takes(&mut self, sends: u32, receives: u32) {
        self.sends += u64::from(sends);
        self.receives += u64::from(receives);
        self.most_possible = self.most_possible.max(self.sends + self.receives);
    }

    fn loses(&mut self, sends: u32, receives: u32) {
        self.sends = self.sends.saturating_sub(sends.into());
        self.receives = self.receives.saturating_sub(receives.into());
    }
}

/// A shared receive queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Srq {
    /// Depth, WRs.
    pub max_wr: u32,
    /// QPs that receive from it, now and at most.
    pub qps: Population,
}

/// All queues of one process.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Queues {
    qps: HashMap<u64, Qp>,
    cqs: HashMap<u64, Cq>,
    srqs: HashMap<u64, Srq>,
    ended: VecDeque<Qp>,
    ended_cqs: VecDeque<Cq>,
    /// QPs created while recorded, now and at most.
    pub qp_population: Population,
    /// CQs created while recorded, now and at most.
    pub cq_population: Population,
    /// SRQs created while recorded, now and at most.
    pub srq_population: Population,
    /// Destroyed objects that no event had announced: older than the recording, or their event was lost.
    pub unknown_destroyed: u64,
    /// Most QPs that ever shared one CQ at the same time.
    pub most_qps_on_a_cq: u64,
    /// Destroyed QPs whose story was dropped.
    pub ended_dropped: u64,
    /// State changes that succeeded, by the state asked for.
    pub reached: BTreeMap<String, u64>,
}

impl Queues {
    /// Takes in a control call that succeeded, or an `ibv_modify_qp` whatever its outcome.
    pub(super) fn event(&mut self, event: &Event, room: &mut Room) {
        match &event.detail {
            Detail::Qp { .. } => self.qp_created(event, room),
            Detail::ModifyQp(attributes) => self.qp_changed(event, attributes, room),
            Detail::Cq { cq, cqe, channel } => {
                let old = self.cqs.get(cq);
                // A pointer in use again by a known CQ means that its destruction was not seen.
                if old.is_none_or(|old| old.created_ns.is_none()) {
                    self.cq_population.born();
                }
                let known = old.is_some();
                let met = old.cloned().unwrap_or_default();
                if known || room.take() {
                    let created_ns = Some(event.t_ns);
                    self.cqs.insert(*cq, Cq { cq: *cq, cqe: *cqe, channel: *channel, created_ns, ..met });
                }
            }
            Detail::Srq { srq, max_wr } => {
                let new = Srq { max_wr: *max_wr, ..Srq::default() };
                if self.srqs.contains_key(srq) {
                    self.srqs.insert(*srq, new);
                } else {
                    self.srq_population.born();
                    if room.take() {
                        self.srqs.insert(*srq, new);
                    }
                }
            }
            _ => {}
        }
    }

    /// A CQ's depth was changed.
    pub(super) fn cq_resized(&mut self, cq: u64, cqe: u32) {
        if let Some(cq) = self.cqs.get_mut(&cq) {
            cq.cqe = cqe;
        }
    }

    fn qp_created(&mut self, event: &Event, room: &mut Room) {
        let Detail::Qp {
            qp,
            pd,
            qpn,
            ref qp_type,
            send_cq,
            recv_cq,
            srq,
            max_send_wr,
            max_recv_wr,
            max_send_sge,
            max_recv_sge,
            max_inline_bytes,
            sq_sig_all,
        } = event.detail
        else {
            return;
        };
        let new = Qp {
            qp,
            qpn,
            qp_type: clipped(qp_type),
            pd,
            send_cq,
            recv_cq,
            srq,
            max_send_wr,
            max_recv_wr,
            max_send_sge,
            max_recv_sge,
            max_inline_bytes,
            sq_sig_all,
            created_ns: Some(event.t_ns),
            creation_ns: event.duration_ns,
            ..Qp::default()
        };
        if let Some(old) = self.qps.remove(&qp) {
            room.give(1);
            // A sample of its posts may come before the event of its creation.
            if old.only_posts && old.qpn == qpn {
                self.qp_population.born();
                self.join(&new, room);
                if room.take() {
                    self.qps.insert(qp, new);
                }
                return;
            }
            // Its pointer is in use again, so it was destroyed unseen.
            self.leave(&old);
            if old.created_ns.is_some() {
                self.qp_population.died();
            }
            self.keep_ended(old);
        }
        self.qp_population.born();
        self.join(&new, room);
        if room.take() {
            self.qps.insert(qp, new);
        }
    }

    pub(super) fn qp_destroyed(&mut self, qp: u64, t_ns: u64, room: &mut Room) {
        let Some(mut old) = self.qps.remove(&qp) else {
            self.unknown_destroyed += 1;
            return;
        };
        room.give(1);
        self.leave(&old);
        if old.created_ns.is_some() {
            self.qp_population.died();
        } else {
            self.unknown_destroyed += 1;
        }
        old.destroyed_ns = Some(t_ns);
        self.keep_ended(old);
    }

    pub(super) fn cq_destroyed(&mut self, cq: u64, room: &mut Room) {
        match self.cqs.remove(&cq) {
            Some(old) => {
                room.give(1);
                if old.created_ns.is_some() {
                    self.cq_population.died();
                } else {
                    self.unknown_destroyed += 1;
                }
                if self.ended_cqs.len() >= ENDED_KEPT {
                    self.ended_cqs.pop_front();
                }
                self.ended_cqs.push_back(old);
            }
            None => self.unknown_destroyed += 1,
        }
    }

    pub(super) fn srq_destroyed(&mut self, srq: u64, room: &mut Room) {
        if self.srqs.remove(&srq).is_some() {
            room.give(1);
            self.srq_population.died();
        } else {
            self.unknown_destroyed += 1;
        }
    }

    fn qp_changed(&mut self, event: &Event, new: &QpAttributes, room: &mut Room) {
        if let Entry::Vacant(unknown) = self.qps.entry(new.qp) {
            // Older than the recording: known from here on.
            if !room.take() {
                return;
            }
            unknown.insert(Qp { qp: new.qp, qpn: new.qpn, ..Qp::default() });
        }
        let Some(qp) = self.qps.get_mut(&new.qp) else { return };
        qp.only_posts = false;
        if let Some(to) = &new.to {
            let transition = Transition {
                t_ns: event.t_ns,
                duration_ns: event.duration_ns,
                from: new.from.as_deref().map(clipped),
                to: clipped(to),
                errno: event.errno,
            };
            if qp.transitions.len() < TRANSITIONS_KEPT {
                qp.transitions.push(transition);
            } else {
                qp.more_transitions += 1;
            }
        }
        if event.errno != 0 {
            qp.failed_changes += 1;
            return;
        }
        if let Some(to) = &new.to {
            qp.state = Some(clipped(to));
            if self.reached.len() < 32 || self.reached.contains_key(to) {
                *self.reached.entry(clipped(to)).or_default() += 1;
            }
        }
        merge(&mut qp.attributes, new);
    }

    /// The place in the program that created a queue pair.
    pub(super) fn qp_made_at(&mut self, qp: u64, site: Option<usize>) {
        if let Some(qp) = self.qps.get_mut(&qp) {
            qp.site = site;
        }
    }

    /// Posts were seen on a queue pair; one that no call was seen on is known from here on.
    pub(super) fn qp_posted(&mut self, qp: u64, qpn: u32, room: &mut Room) {
        if let Entry::Vacant(unknown) = self.qps.entry(qp)
            && room.take()
        {
            unknown.insert(Qp { qp, qpn, only_posts: true, ..Qp::default() });
        }
    }

    /// Polls were seen of a completion queue.
    pub(super) fn cq_polled(&mut self, cq: u64, room: &mut Room) {
        if let Entry::Vacant(unknown) = self.cqs.entry(cq)
            && room.take()
        {
            unknown.insert(Cq { cq, ..Cq::default() });
        }
    }

    /// A queue pair of which nothing but posts was seen is gone.
    pub(super) fn qp_posts_end(&mut self, qp: u64, room: &mut Room) {
        if self.qps.get(&qp).is_some_and(|qp| qp.only_posts) {
            self.qps.remove(&qp);
            room.give(1);
        }
    }

    /// A completion queue of which nothing but polls was seen is gone.
    pub(super) fn cq_polls_end(&mut self, cq: u64, room: &mut Room) {
        if self.cqs.get(&cq).is_some_and(|cq| cq.created_ns.is_none() && cq.qps.peak == 0) {
            self.cqs.remove(&cq);
            room.give(1);
        }
    }

    /// The process's address space is gone (exec): so are its queues.
    pub(super) fn all_gone(&mut self, t_ns: u64, room: &mut Room) {
        room.give(self.qps.len() + self.cqs.len() + self.srqs.len());
        for (_, mut qp) in std::mem::take(&mut self.qps) {
            qp.destroyed_ns = Some(t_ns);
            self.keep_ended(qp);
        }
        self.cqs.clear();
        self.srqs.clear();
        for population in [&mut self.qp_population, &mut self.cq_population, &mut self.srq_population] {
            population.live = 0;
        }
    }

    /// Begins the window of interest: queues stay, totals begin at nothing.
    pub(super) fn start_window(&mut self) {
        self.qp_population.start_window();
        self.cq_population.start_window();
        self.srq_population.start_window();
        self.cqs.values_mut().for_each(|cq| cq.qps.start_window());
        self.srqs.values_mut().for_each(|srq| srq.qps.start_window());
        self.most_qps_on_a_cq = self.cqs.values().map(|cq| cq.qps.live).max().unwrap_or(0);
        self.ended.clear();
        self.ended_cqs.clear();
        self.ended_dropped = 0;
        self.unknown_destroyed = 0;
        self.reached.clear();
    }

    /// Live QPs, in order of creation.
    pub fn qps(&self) -> Vec<&Qp> {
        let mut qps: Vec<_> = self.qps.values().collect();
        qps.sort_unstable_by_key(|qp| (qp.created_ns, qp.qpn, qp.qp));
        qps
    }

    /// Live QPs, in no order.
    pub fn live(&self) -> impl Iterator<Item = &Qp> {
        self.qps.values()
    }

    /// The QP behind a pointer, while it lives.
    pub fn qp(&self, qp: u64) -> Option<&Qp> {
        self.qps.get(&qp)
    }

    /// Destroyed QPs, the last 4096, in order of destruction.
    pub fn ended(&self) -> impl Iterator<Item = &Qp> {
        self.ended.iter()
    }

    /// Live CQs by pointer, in no order. Those without `created_ns` are known only from the QPs that use them.
    pub fn cqs(&self) -> &HashMap<u64, Cq> {
        &self.cqs
    }

    /// Live SRQs by pointer, in no order.
    pub fn srqs(&self) -> &HashMap<u64, Srq> {
        &self.srqs
    }

    /// Destroyed CQs, the last 4096, in order of destruction.
    pub fn ended_cqs(&self) -> impl Iterator<Item = &Cq> {
        self.ended_cqs.iter()
    }

    /// QPs that complete into `cq`, by number.
    pub fn sharers(&self, cq: u64) -> Vec<u32> {
        let mut qpns: Vec<_> =
            self.qps.values().filter(|qp| qp.send_cq == cq || qp.recv_cq == cq).map(|qp| qp.qpn).collect();
        qpns.sort_unstable();
        qpns
    }

    fn join(&mut self, qp: &Qp, room: &mut Room) {
        for cq in qp.cqs() {
            if let Entry::Vacant(unknown) = self.cqs.entry(cq) {
                if !room.take() {
                    continue;
                }
                unknown.insert(Cq { cq, ..Cq::default() });
            }
            if let Some(cq) = self.cqs.get_mut(&cq) {
                cq.qps.born();
                self.most_qps_on_a_cq = self.most_qps_on_a_cq.max(cq.qps.live);
            }
        }
        if let Some(cq) = self.cqs.get_mut(&qp.send_cq) {
            cq.takes(qp.max_send_wr, 0);
        }
        if let Some(cq) = self.cqs.get_mut(&qp.recv_cq)
            && qp.srq == 0
            && qp.max_recv_wr > 1
        {
            cq.takes(0, qp.max_recv_wr);
        }
        if let Some(srq) = self.srqs.get_mut(&qp.srq) {
            srq.qps.born();
        }
    }

    fn leave(&mut self, qp: &Qp) {
        for cq in qp.cqs() {
            if let Some(cq) = self.cqs.get_mut(&cq) {
                cq.qps.died();
            }
        }
        if let Some(cq) = self.cqs.get_mut(&qp.send_cq) {
            cq.loses(qp.max_send_wr, 0);
        }
        if let Some(cq) = self.cqs.get_mut(&qp.recv_cq)
            && qp.srq == 0
            && qp.max_recv_wr > 1
        {
            cq.loses(0, qp.max_recv_wr);
        }
        if let Some(srq) = self.srqs.get_mut(&qp.srq) {
            srq.qps.died();
        }
    }

    fn keep_ended(&mut self, qp: Qp) {
        if self.ended.len() >= ENDED_KEPT {
            self.ended.pop_front();
            self.ended_dropped += 1;
        }
        self.ended.push_back(qp);
    }
}

/// Lays the attributes a call has set over those set before.
fn merge(mine: &mut QpAttributes, new: &QpAttributes) {
    (mine.qp, mine.qpn) = (new.qp, new.qpn);
    mine.attr_mask |= new.attr_mask;
    mine.from.clone_from(&new.from);
    mine.to = new.to.clone().or(mine.to.take());
    mine.qp_access_flags = new.qp_access_flags.or(mine.qp_access_flags);
    mine.path_mtu_bytes = new.path_mtu_bytes.or(mine.path_mtu_bytes);
    mine.dest_qpn = new.dest_qpn.or(mine.dest_qpn);
    mine.dgid = new.dgid.as_deref().map(clipped).or(mine.dgid.take());
    mine.dlid = new.dlid.or(mine.dlid);
    mine.sgid_index = new.sgid_index.or(mine.sgid_index);
    mine.traffic_class = new.traffic_class.or(mine.traffic_class);
    mine.port = new.port.or(mine.port);
    mine.timeout = new.timeout.or(mine.timeout);
    mine.retry_cnt = new.retry_cnt.or(mine.retry_cnt);
    mine.rnr_retry = new.rnr_retry.or(mine.rnr_retry);
    mine.min_rnr_timer = new.min_rnr_timer.or(mine.min_rnr_timer);
    mine.max_rd_atomic = new.max_rd_atomic.or(mine.max_rd_atomic);
    mine.max_dest_rd_atomic = new.max_dest_rd_atomic.or(mine.max_dest_rd_atomic);
}
