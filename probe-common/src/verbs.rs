//! Structures of `infiniband/verbs.h`, as the BPF programs read them in a program's memory. Of the extended API, whose
//! requests are built by calls, the preloaded libraries put them together ([`crate::site`]).

/// `struct ibv_send_wr`, 128 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct SendWr {
    /// What is looked at of every one.
    pub start: WrStart,
    /// What depends on its opcode and queue pair.
    pub rest: [u64; 9],
}

/// A work request up to its remote key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct WrStart {
    /// The program's number for it.
    pub wr_id: u64,
    /// Address of the next one, 0 behind the last. Of requests that are shown, one more than are: what comes after is not.
    pub next: u64,
    /// Address of its [`Sge`]s.
    pub sg_list: u64,
    /// How many.
    pub num_sge: u32,
    /// `IBV_WR_…`.
    pub opcode: u32,
    /// `IBV_SEND_…`. Of requests that are shown, signalled where the queue pair makes it so, too.
    pub send_flags: u32,
    /// Immediate data. Not told of requests that are shown.
    pub imm_data: u32,
    /// Its remote address, where it names remote memory; of a datagram the address handle.
    pub remote_addr: u64,
    /// Its remote key, where it names remote memory and is no atomic ([`SendWr::ATOMIC_RKEY`]); of a datagram the number
    /// of the peer's queue pair.
    pub rkey: u32,
    /// Of a datagram its key; else nothing.
    pub qkey: u32,
}

impl SendWr {
    /// Where the remote key of an atomic stands: behind its operands.
    pub const ATOMIC_RKEY: u64 = 64;

    /// One that names remote memory with this key, by its opcode at one place or the other.
    pub const fn naming(mut start: WrStart, rkey: u32) -> Self {
        let mut rest = [0; 9];
        if is_atomic(start.opcode as u64) != 0 {
            rest[1] = rkey as u64;
        } else {
            start.rkey = rkey;
        }
        Self { start, rest }
    }
}

/// 1 for `IBV_WR_ATOMIC_CMP_AND_SWP` and `IBV_WR_ATOMIC_FETCH_AND_ADD`.
#[inline(always)]
pub const fn is_atomic(opcode: u64) -> u64 {
    if opcode < 64 { 0b110_0000 >> opcode & 1 } else { 0 }
}

/// `struct ibv_recv_wr`, 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct RecvWr {
    /// The program's number for it.
    pub wr_id: u64,
    /// Address of the next one, 0 behind the last.
    pub next: u64,
    /// Address of its [`Sge`]s.
    pub sg_list: u64,
    /// How many.
    pub num_sge: u32,
    /// Nothing.
    pub zero: u32,
}

/// `struct ibv_sge`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Sge {
    /// First byte of the buffer.
    pub addr: u64,
    /// Its length in bytes.
    pub length: u32,
    /// Key of its region. Not told of requests that are shown.
    pub lkey: u32,
}

/// `struct ibv_wc`, 48 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Wc {
    /// Number of the work request.
    pub wr_id: u64,
    /// `IBV_WC_…`.
    pub status: u32,
    /// `IBV_WC_…`, of no meaning where the status is an error.
    pub opcode: u32,
    /// What the device says of an error.
    pub vendor_err: u32,
    /// Bytes received.
    pub byte_len: u32,
    /// Immediate data, or what [`crate::site::FOUND_BEFORE`] says.
    pub imm_data: u32,
    /// Number of the queue pair.
    pub qp_num: u32,
    /// Not looked at.
    pub rest: [u32; 4],
}

const _: () = assert!(
    size_of::<SendWr>() == 128
        && size_of::<WrStart>() == 56
        && core::mem::offset_of!(WrStart, rkey) == 48
        && size_of::<RecvWr>() == 32
        && size_of::<Sge>() == 16
        && size_of::<Wc>() == 48
);
