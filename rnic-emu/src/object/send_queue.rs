//! The send queue: posted work requests from post to completion.
//!
//! Three counters cut it: requests below `retired` have their completion, those below `sent` have gone to the
//! responder, those below `posted` wait. Slots are reused only when their completion has been polled.

use crate::abi::{ibv_qp_cap, ibv_sge};
use crate::post::shown::Shown;
use crate::stats::QpStats;
use crate::wire::out_link::OutLink;

/// A posted work request.
#[derive(Clone, Copy, Default)]
pub struct SendWqe {
    /// The program's identifier.
    pub wr_id: u64,
    /// Remote address; of a binding, the window's address.
    pub remote_addr: u64,
    /// Compare or add operand; of a binding, the window's length; of inline data of the extended API, where its first
    /// buffer was.
    pub compare_add: u64,
    /// Swap operand; of a binding, the region's key.
    pub swap: u64,
    /// Remote key; of a binding, the window's new key; of an invalidation, the key.
    pub rkey: u32,
    /// Immediate data as given, or the key to invalidate at the remote end; of a binding, the access flags.
    pub imm: u32,
    /// Payload bytes.
    pub len: u32,
    /// Packet sequence number of the first packet.
    pub psn: u32,
    /// Packets it takes.
    pub packets: u32,
    /// Destination of a datagram.
    pub remote_qpn: u32,
    /// Q_Key of a datagram.
    pub remote_qkey: u32,
    /// Device of a datagram's destination; [`NOWHERE`] if its GID is not one of ours.
    pub remote_device: u8,
    /// `ibv_wr_opcode`.
    pub opcode: u8,
    /// `ibv_send_flags`.
    pub flags: u8,
    /// Payload lies in the queue itself.
    pub inline: bool,
    /// Scatter/gather entries.
    pub n_sge: u16,
    /// It completed, with this `ibv_wc_status`; [`PENDING`] before.
    pub status: u8,
    /// Nobody took it: only the ACK timer will do something about it.
    pub lost: bool,
    /// Gates that are still closed: see `engine::pacing`.
    pub gates: u8,
}

/// A datagram's destination that is none of our devices.
pub const NOWHERE: u8 = u8::MAX;
/// Status of a request that has not completed.
pub const PENDING: u8 = u8::MAX;

/// Where requests of a connected QP go.
#[derive(Clone, Copy)]
pub enum Route {
    /// Not looked up yet.
    Unknown,
    /// A QP of this process.
    Local(&'static super::qp::Qp),
    /// Another process.
    Remote(&'static OutLink),
}

/// Send queue and requester state of a QP.
pub struct SendQueue {
    slots: Box<[SendWqe]>,
    sges: Box<[ibv_sge]>,
    inline: Box<[u8]>,
    /// What was granted.
    pub cap: ibv_qp_cap,
    /// Every request is signalled.
    pub sig_all: bool,
    /// Counter of the next request posted.
    pub posted: u64,
    /// Counter of the next request to go to the responder.
    pub sent: u64,
    /// Counter of the next request to complete.
    pub retired: u64,
    /// Requests built since `ibv_wr_start`, after `posted`.
    pub staged: u64,
    /// First error since `ibv_wr_start`.
    pub stage_error: i32,
    /// Bytes of request `sent` already in the ring.
    pub part: u32,
    /// Bytes of the oldest READ's answer that have come.
    pub read_at: u32,
    /// A request failed: nothing more is sent until it retires.
    pub halted: bool,
    /// READs and atomics sent and not answered.
    pub rd_outstanding: u32,
    /// Counts, in the upper byte of a PSN, how often requests were taken back to be sent again. What a responder says
    /// of a request sent in an earlier round (not ready for it, a gap before it) is out of date: taking requests back
    /// once more might be after it has served them, and it answers only once.
    pub round: u32,
    /// PSN of the next request to get one.
    pub next_psn: u32,
    /// Requests below this have a PSN.
    pub numbered: u64,
    /// Retransmissions left before giving up.
    pub retries_left: u8,
    /// RNR retries left before giving up.
    pub rnr_left: u8,
    /// Nothing is sent before this time (RNR wait); 0 for none.
    pub hold_until: u64,
    /// When the ACK timer runs out; 0 while no request is known to be lost.
    pub ack_deadline: u64,
    /// Where requests go.
    pub route: Route,
    /// Changes when everything under way is given up: the timing model's answers about it are then ignored.
    pub generation: u8,
    /// The SQ_DRAINED event is owed.
    pub draining: bool,
    /// What tracers are shown of a batch.
    pub shown: Shown,
    /// Counters.
    pub stats: QpStats,
}

impl SendQueue {
    /// An empty queue with room as granted in `cap`.
    pub fn new(cap: ibv_qp_cap, sig_all: bool, stats: QpStats) -> Self {
        let slots = cap.max_send_wr.max(1).next_power_of_two() as usize;
        Self {
            slots: vec![SendWqe::default(); slots].into_boxed_slice(),
            sges: vec![ibv_sge::default(); slots * cap.max_send_sge as usize].into_boxed_slice(),
            inline: vec![0; slots * cap.max_inline_data as usize].into_boxed_slice(),
            cap,
            sig_all,
            posted: 0,
            sent: 0,
            retired: 0,
            staged: 0,
            stage_error: 0,
            part: 0,
            read_at: 0,
            halted: false,
            rd_outstanding: 0,
            round: 0,
            next_psn: 0,
            numbered: 0,
            retries_left: 0,
            rnr_left: 0,
            hold_until: 0,
            ack_deadline: 0,
            route: Route::Unknown,
            generation: 0,
            draining: false,
            shown: Shown::default(),
            stats,
        }
    }

    fn at(&self, counter: u64) -> usize {
        counter as usize & (self.slots.len() - 1)
    }

    /// Request number `counter`.
    #[inline]
    pub fn wqe(&self, counter: u64) -> &SendWqe {
        &self.slots[self.at(counter)]
    }

    /// Request number `counter`.
    #[inline]
    pub fn wqe_mut(&mut self, counter: u64) -> &mut SendWqe {
        let at = self.at(counter);
        &mut self.slots[at]
    }

    /// Its scatter/gather entries.
    #[inline]
    pub fn sges(&self, counter: u64) -> &[ibv_sge] {
        let at = self.at(counter) * self.cap.max_send_sge as usize;
        &self.sges[at..at + self.wqe(counter).n_sge as usize]
    }

    /// Room for its scatter/gather entries.
    #[inline]
    pub fn sges_mut(&mut self, counter: u64) -> &mut [ibv_sge] {
        let max = self.cap.max_send_sge as usize;
        let at = self.at(counter) * max;
        &mut self.sges[at..at + max]
    }

    /// Its inline data.
    #[inline]
    pub fn inline(&self, counter: u64) -> &[u8] {
        let at = self.at(counter) * self.cap.max_inline_data as usize;
        &self.inline[at..at + self.wqe(counter).len as usize]
    }

    /// Room for its inline data.
    #[inline]
    pub fn inline_mut(&mut self, counter: u64) -> &mut [u8] {
        let max = self.cap.max_inline_data as usize;
        let at = self.at(counter) * max;
        &mut self.inline[at..at + max]
    }

    /// Forgets all requests and requester state, as a transition to RESET does.
    pub fn reset(&mut self) {
        self.posted = 0;
        self.sent = 0;
        self.retired = 0;
        self.staged = 0;
        self.part = 0;
        self.read_at = 0;
        self.halted = false;
        self.rd_outstanding = 0;
        self.next_psn = 0;
        self.numbered = 0;
        self.hold_until = 0;
        self.ack_deadline = 0;
        self.route = Route::Unknown;
        self.draining = false;
    }
}
