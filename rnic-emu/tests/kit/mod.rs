//! A small verbs program in Rust for the tests: opens the emulated device and connects queue pairs, in this process.

#![allow(dead_code, reason = "each test file uses its part of the kit")]

pub mod other;

use rnic_emu::abi::{consts::*, *};
use rnic_emu::control as c;
use rnic_emu::device::{context::DeviceContext, gid};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Room of an endpoint's buffer.
pub const BUFFER: usize = 1 << 16;

/// A QP with everything it needs.
pub struct End {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub channel: *mut ibv_comp_channel,
    pub qp: *mut ibv_qp,
    pub mr: *mut ibv_mr,
    pub memory: Vec<u8>,
}

/// What an endpoint is made with.
#[derive(Clone, Copy)]
pub struct Options {
    pub kind: u32,
    pub cap: ibv_qp_cap,
    pub sig_all: bool,
    pub access: u32,
    pub cqe: i32,
    pub extended: bool,
    pub srq: *mut ibv_srq,
    pub memory: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kind: IBV_QPT_RC,
            cap: ibv_qp_cap {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 64,
            },
            sig_all: false,
            access: IBV_ACCESS_LOCAL_WRITE
                | IBV_ACCESS_REMOTE_WRITE
                | IBV_ACCESS_REMOTE_READ
                | IBV_ACCESS_REMOTE_ATOMIC
                | IBV_ACCESS_MW_BIND,
            cqe: 64,
            extended: false,
            srq: null_mut(),
            memory: BUFFER,
        }
    }
}

/// Attributes of a connection.
#[derive(Clone, Copy)]
pub struct Link {
    /// `IBV_MTU_1024` is 3, `IBV_MTU_4096` 5.
    pub path_mtu: u32,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            path_mtu: 3,
            timeout: 8,
            retry_cnt: 2,
            rnr_retry: 2,
            min_rnr_timer: 1,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
        }
    }
}

pub const QKEY: u32 = 0x1111_1111;

impl End {
    pub fn new(options: Options) -> Self {
        let context = DeviceContext::open(0).expect("an emulated device");
        // SAFETY: objects just made, used by this test alone.
        unsafe {
            let pd = c::pd::alloc_pd(context);
            let channel = c::events::create_channel(context);
            let send_cq = c::cq::create_cq(context, options.cqe, null_mut(), channel, 0);
            let recv_cq = c::cq::create_cq(context, options.cqe, null_mut(), channel, 0);
            let qp = create_qp(pd, send_cq, recv_cq, options);
            let mut memory = vec![0u8; options.memory];
            let mr = register(pd, &mut memory, options.access);
            Self { context, pd, send_cq, recv_cq, channel, qp, mr, memory }
        }
    }

    pub fn qpn(&self) -> u32 {
        // SAFETY: a live QP.
        unsafe { (*self.qp).qp_num }
    }

    pub fn lkey(&self) -> u32 {
        // SAFETY: a live MR.
        unsafe { (*self.mr).lkey }
    }

    pub fn addr(&self, offset: usize) -> u64 {
        self.memory.as_ptr() as u64 + offset as u64
    }

    pub fn sge(&self, offset: usize, length: u32) -> ibv_sge {
        ibv_sge { addr: self.addr(offset), length, lkey: self.lkey() }
    }

    pub fn modify(&self, attr: &mut ibv_qp_attr, mask: i32) -> i32 {
        // SAFETY: a live QP.
        unsafe { c::qp::modify_qp(self.qp, attr, mask) }
    }

    pub fn to_init(&self) {
        let ud = self.kind() == IBV_QPT_UD;
        let mut a = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: 1,
            qkey: QKEY,
            qp_access_flags: IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
            ..Default::default()
        };
        let extra = if ud { IBV_QP_QKEY } else { IBV_QP_ACCESS_FLAGS };
        assert_eq!(self.modify(&mut a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | extra), 0);
    }

    pub fn kind(&self) -> u32 {
        // SAFETY: a live QP.
        unsafe { (*self.qp).qp_type }
    }

    pub fn to_rtr(&self, peer_qpn: u32, psn: u32, link: Link) {
        let mut a = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: link.path_mtu,
            dest_qp_num: peer_qpn,
            rq_psn: psn,
            max_dest_rd_atomic: link.max_dest_rd_atomic,
            min_rnr_timer: link.min_rnr_timer,
            ah_attr: address(),
            ..Default::default()
        };
        let uc = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        let mask = match self.kind() {
            IBV_QPT_RC => uc | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
            IBV_QPT_UC => uc,
            _ => 0,
        };
        assert_eq!(self.modify(&mut a, IBV_QP_STATE | mask), 0);
    }

    pub fn to_rts(&self, psn: u32, link: Link) {
        let mut a = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: link.timeout,
            retry_cnt: link.retry_cnt,
            rnr_retry: link.rnr_retry,
            sq_psn: psn,
            max_rd_atomic: link.max_rd_atomic,
            ..Default::default()
        };
        let rc = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        let mask = if self.kind() == IBV_QPT_RC { rc } else { 0 };
        assert_eq!(self.modify(&mut a, IBV_QP_STATE | IBV_QP_SQ_PSN | mask), 0);
    }

    pub fn to_error(&self) {
        let mut a = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
        assert_eq!(self.modify(&mut a, IBV_QP_STATE), 0);
    }

    pub fn query(&self) -> ibv_qp_attr {
        let mut a = ibv_qp_attr::default();
        // SAFETY: plain data; a live QP.
        unsafe {
            let mut i: ibv_qp_init_attr = std::mem::zeroed();
            assert_eq!(c::qp::query_qp(self.qp, &mut a, 0, &mut i), 0);
        }
        a
    }

    /// Posts one request; returns what the call returned.
    pub fn post(&self, mut wr: ibv_send_wr, sges: &mut [ibv_sge]) -> i32 {
        wr.sg_list = sges.as_mut_ptr();
        wr.num_sge = sges.len() as i32;
        let mut bad = null_mut();
        // SAFETY: a live QP and a valid request.
        let r = unsafe { ((*self.context).ops.post_send.expect("filled"))(self.qp, &mut wr, &mut bad) };
        assert_eq!(bad.is_null(), r == 0, "bad_wr is set exactly on failure");
        r
    }

    pub fn receive(&self, wr_id: u64, sges: &mut [ibv_sge]) -> i32 {
        let mut wr =
            ibv_recv_wr { wr_id, next: null_mut(), sg_list: sges.as_mut_ptr(), num_sge: sges.len() as i32 };
        let mut bad = null_mut();
        // SAFETY: a live QP and a valid request.
        unsafe { ((*self.context).ops.post_recv.expect("filled"))(self.qp, &mut wr, &mut bad) }
    }

    /// Waits for a completion of the send queue.
    pub fn sent(&self) -> ibv_wc {
        wait(self.send_cq)
    }

    /// Waits for a completion of the receive queue.
    pub fn received(&self) -> ibv_wc {
        wait(self.recv_cq)
    }

    /// The next asynchronous event, which must have been raised already or be raised soon.
    pub fn event(&self) -> i32 {
        // SAFETY: a live context, plain data.
        unsafe {
            let mut p = libc::pollfd { fd: (*self.context).async_fd, events: libc::POLLIN, revents: 0 };
            assert_eq!(libc::poll(&mut p, 1, 2000), 1, "no asynchronous event came");
            let mut e: ibv_async_event = std::mem::zeroed();
            assert_eq!(c::events::get_async_event(self.context, &mut e), 0);
            c::events::ack_async_event(&e);
            e.event_type
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // A failed test leaves more behind than can be destroyed; asserting that would hide why it failed.
        if std::thread::panicking() {
            return;
        }
        // SAFETY: everything was made by `new`; destroying checks that nothing is left over.
        unsafe {
            assert_eq!(c::qp::destroy_qp(self.qp), 0);
            assert_eq!(c::cq::destroy_cq(self.send_cq), 0);
            assert_eq!(c::cq::destroy_cq(self.recv_cq), 0);
            assert_eq!(c::events::destroy_channel(self.channel), 0);
            if !self.mr.is_null() {
                assert_eq!(c::mr::dereg_mr(self.mr), 0);
            }
            assert_eq!(c::pd::dealloc_pd(self.pd), 0);
            assert_eq!(DeviceContext::close(self.context), 0);
        }
    }
}

/// # Safety
/// Live objects.
pub unsafe fn create_qp(
    pd: *mut ibv_pd,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    o: Options,
) -> *mut ibv_qp {
    // SAFETY: the caller's promise; plain data.
    unsafe {
        let mut i: ibv_qp_init_attr_ex = std::mem::zeroed();
        (i.send_cq, i.recv_cq, i.srq) = (send_cq, recv_cq, o.srq);
        (i.cap, i.qp_type, i.sq_sig_all) = (o.cap, o.kind, i32::from(o.sig_all));
        i.pd = pd;
        i.comp_mask = IBV_QP_INIT_ATTR_PD;
        let qp = if o.extended {
            i.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            i.send_ops_flags = IBV_QP_EX_WITH_SEND;
            c::qp::create_qp_ex((*pd).context, &mut i)
        } else {
            c::qp::create_qp(pd, (&raw mut i).cast())
        };
        assert!(!qp.is_null(), "{}", std::io::Error::last_os_error());
        qp
    }
}

/// # Safety
/// A live PD, memory that outlives the region.
pub unsafe fn register(pd: *mut ibv_pd, memory: &mut [u8], access: u32) -> *mut ibv_mr {
    let at = memory.as_mut_ptr();
    // SAFETY: the caller's promise.
    let mr = unsafe { c::mr::reg_mr(pd, at.cast(), memory.len(), at as u64, access) };
    assert!(!mr.is_null(), "{}", std::io::Error::last_os_error());
    mr
}

/// The address of the emulated device itself.
pub fn address() -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route { dgid: gid::of_device(0), ..Default::default() },
        is_global: 1,
        port_num: 1,
        ..Default::default()
    }
}

/// Two connected endpoints.
pub fn pair(options: Options, link: Link) -> (End, End) {
    let (a, b) = (End::new(options), End::new(options));
    for end in [&a, &b] {
        end.to_init();
    }
    a.to_rtr(b.qpn(), 7, link);
    b.to_rtr(a.qpn(), 0xff_fffe, link);
    a.to_rts(0xff_fffe, link);
    b.to_rts(7, link);
    (a, b)
}

/// A request with nothing but an opcode and an identifier.
pub fn request(opcode: u32, wr_id: u64) -> ibv_send_wr {
    // SAFETY: plain data; all zeroes is a valid request.
    let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
    (wr.opcode, wr.wr_id, wr.send_flags) = (opcode, wr_id, IBV_SEND_SIGNALED);
    wr
}

/// A request to remote memory.
pub fn remote(opcode: u32, wr_id: u64, remote_addr: u64, rkey: u32) -> ibv_send_wr {
    let mut wr = request(opcode, wr_id);
    wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey };
    wr
}

/// An atomic.
pub fn atomic(
    opcode: u32,
    wr_id: u64,
    remote_addr: u64,
    rkey: u32,
    compare_add: u64,
    swap: u64,
) -> ibv_send_wr {
    let mut wr = request(opcode, wr_id);
    wr.wr.atomic = ibv_send_wr_atomic { remote_addr, compare_add, swap, rkey };
    wr
}

/// One completion if there is one.
pub fn poll(cq: *mut ibv_cq) -> Option<ibv_wc> {
    let mut wc = ibv_wc::default();
    // SAFETY: a live CQ.
    let n = unsafe { ((*(*cq).context).ops.poll_cq.expect("filled"))(cq, 1, &mut wc) };
    assert!(n >= 0, "poll_cq: {n}");
    (n == 1).then_some(wc)
}

/// Waits for a completion, at most ten seconds.
pub fn wait(cq: *mut ibv_cq) -> ibv_wc {
    let start = Instant::now();
    loop {
        if let Some(wc) = poll(cq) {
            return wc;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "no completion came");
        std::thread::sleep(Duration::from_micros(50));
    }
}
