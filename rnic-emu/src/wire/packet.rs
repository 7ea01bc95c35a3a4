//! Records of the rings.

/// Header of a record, one cache line; `len` payload bytes follow, padded to the next line.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Packet {
    /// What it is: one of the constants below.
    pub kind: u8,
    /// `ibv_wr_opcode` of a request.
    pub opcode: u8,
    /// `ibv_send_flags` of a request; status of an answer.
    pub flags: u8,
    /// Device the request is for.
    pub device: u8,
    /// QP it is for.
    pub dst_qpn: u32,
    /// QP it is from.
    pub src_qpn: u32,
    /// Sequence number of the message's first packet, in the lower 24 bits. Above it, the requester's round: see
    /// `SendQueue::round`; an answer carries that of the request it answers.
    pub psn: u32,
    /// Payload bytes of the whole message.
    pub total: u32,
    /// Where in the message this record's payload begins.
    pub offset: u32,
    /// Payload bytes in this record.
    pub len: u32,
    /// Immediate data, or the key to invalidate.
    pub imm: u32,
    /// Remote key; Q_Key of a datagram.
    pub rkey: u32,
    /// Packets of the path MTU the message takes.
    pub packets: u32,
    /// Remote address.
    pub raddr: u64,
    /// Compare or add operand; original value in the answer to an atomic.
    pub a: u64,
    /// Swap operand.
    pub b: u64,
}

const _: () = assert!(size_of::<Packet>() == LINE);

/// Size and alignment of a header, and granularity of the rings.
pub const LINE: usize = 64;
/// Most payload of one record. Small enough to stay in a core's cache between the two copies.
pub const CHUNK: u32 = 16 << 10;

/// Filler up to the end of the ring.
pub const PAD: u8 = 1;
/// Request of a reliable connection.
pub const RC: u8 = 2;
/// Request of an unreliable connection.
pub const UC: u8 = 3;
/// Datagram.
pub const UD: u8 = 4;
/// All requests up to this PSN are done.
pub const ACK: u8 = 5;
/// No receive was posted: try again after the time coded in `flags`.
pub const RNR: u8 = 6;
/// The request failed with the `ibv_wc_status` in `flags`.
pub const NAK: u8 = 7;
/// Requests before this one are missing; `psn` is the one expected.
pub const GAP: u8 = 8;
/// Part of the answer to a READ.
pub const DATA: u8 = 9;
/// Answer to an atomic.
pub const ATOMIC: u8 = 10;

/// The request found nobody: no such QP, or one not ready to receive. Hardware says nothing and lets the requester's
/// timer run out; saying it spares us guessing whether a silent peer is slow or gone.
pub const ABSENT: u8 = 11;

/// Request kind of a QP type.
pub fn request_kind(qp_type: u32) -> u8 {
    match qp_type {
        crate::abi::consts::IBV_QPT_RC => RC,
        crate::abi::consts::IBV_QPT_UC => UC,
        _ => UD,
    }
}

impl Packet {
    /// Whether this record completes its message.
    #[inline]
    pub fn is_last(&self) -> bool {
        u64::from(self.offset) + u64::from(self.len) >= u64::from(self.total)
    }

    /// Bytes the record takes in the ring.
    #[inline]
    pub fn size(&self) -> usize {
        LINE + (self.len as usize).next_multiple_of(LINE)
    }
}
