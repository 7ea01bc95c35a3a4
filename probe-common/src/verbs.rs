//! Structures of `infiniband/verbs.h`, as the BPF programs read them in a program's memory. Of the extended API, whose
//! requests are built by calls, the preloaded libraries put them together ([`crate::site`]).

/// `struct ibv_send_wr`, 128 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct SendWr {
    /// What is looked at of every one.
    pub start: WrStart,
    /// What depends on its opcode and queue pair.
    pub rest: [u64; 10],
}

/// A work request up to its remote address.
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
    /// Its remote address, where it names remote memory.
    pub remote_addr: u64,
}

impl From<WrStart> for SendWr {
    fn from(start: WrStart) -> Self {
        Self { start, rest: [0; 10] }
    }
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
        && size_of::<WrStart>() == 48
        && size_of::<Sge>() == 16
        && size_of::<Wc>() == 48
);
