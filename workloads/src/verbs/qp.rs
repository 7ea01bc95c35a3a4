//! Queue pairs: creation, the way to RTS, posting.

use super::ffi::{self, ibv_qp_attr_mask as mask};
use super::{Context, Cq, Pd, Port, SendList, VerbsError, check};
use crate::truth::{self, Entry};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

/// Transport of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Reliable connection: acknowledged, ordered, errors reported.
    Rc,
    /// Unreliable connection: WRITE and SEND only, losses and remote errors unseen.
    Uc,
}

/// Sizes asked for at creation.
#[derive(Clone, Copy, Debug)]
pub struct Caps {
    /// Send queue depth in work requests.
    pub send: u32,
    /// Receive queue depth in work requests.
    pub recv: u32,
    /// Bytes that must fit inline.
    pub inline: u32,
}

/// How patient a QP is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// ACK timeout exponent: 4.096 µs × 2^n.
    pub timeout: u8,
    /// Retransmissions before giving up (0–7).
    pub count: u8,
    /// Retries after receiver-not-ready (7 means for ever).
    pub rnr: u8,
}

impl Default for Retry {
    fn default() -> Retry {
        // 14 is 67 ms, the value most applications use.
        Retry { timeout: 14, count: 7, rnr: 7 }
    }
}

/// Everything about a connection that [`Qp::connect`] chooses well and a program can choose badly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wiring {
    /// Patience.
    pub retry: Retry,
    /// RNR timer asked of the peer's senders: 12 is 0.64 ms, 0 is 655 ms.
    pub min_rnr_timer: u8,
    /// READs and atomics it may have outstanding.
    pub reads: u8,
    /// READs and atomics it serves at the same time.
    pub serves: u8,
    /// Whether peers may write, read and do atomics.
    pub remote_access: bool,
    /// Path MTU as the verbs enumeration; the port's when not given.
    pub mtu: Option<u32>,
}

impl Wiring {
    /// What works well: `reads` READs and atomics outstanding each way.
    pub fn usual(retry: Retry, reads: u8) -> Wiring {
        Wiring { retry, min_rnr_timer: 12, reads, serves: reads, remote_access: true, mtu: None }
    }
}

/// QP states that workloads look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Ready to send.
    Rts,
    /// Broken by an error.
    Err,
    /// Any other.
    Other(u32),
}

/// Where a QP can be reached; what two sides exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// QP number.
    pub qpn: u32,
    /// First packet sequence number it sends.
    pub psn: u32,
    /// LID of its port; 0 on RoCE.
    pub lid: u16,
    /// GID of its port.
    pub gid: [u8; 16],
}

/// A queue pair.
pub struct Qp {
    raw: NonNull<ffi::ibv_qp>,
    post_send:
        unsafe extern "C" fn(*mut ffi::ibv_qp, *mut ffi::ibv_send_wr, *mut *mut ffi::ibv_send_wr) -> i32,
    post_recv:
        unsafe extern "C" fn(*mut ffi::ibv_qp, *mut ffi::ibv_recv_wr, *mut *mut ffi::ibv_recv_wr) -> i32,
    tally: Entry,
    granted: Caps,
    transport: Transport,
    psn: u32,
    send_cq: Rc<Cq>,
    _recv_cq: Rc<Cq>,
    _single: Cell<()>,
    _pd: Pd,
}

impl Qp {
    /// Creates a QP in RESET.
    pub fn new(
        pd: &Pd,
        send: &Rc<Cq>,
        recv: &Rc<Cq>,
        transport: Transport,
        caps: Caps,
    ) -> Result<Qp, VerbsError> {
        Qp::signalling(pd, send, recv, transport, caps, false)
    }

    /// Creates a QP in RESET, which completes every send (`sq_sig_all`) where that is asked for.
    pub fn signalling(
        pd: &Pd,
        send: &Rc<Cq>,
        recv: &Rc<Cq>,
        transport: Transport,
        caps: Caps,
        all: bool,
    ) -> Result<Qp, VerbsError> {
        let mut init = ffi::ibv_qp_init_attr {
            send_cq: send.raw(),
            recv_cq: recv.raw(),
            cap: ffi::ibv_qp_cap {
                max_send_wr: caps.send,
                max_recv_wr: caps.recv,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: caps.inline,
            },
            qp_type: match transport {
                Transport::Rc => ffi::ibv_qp_type::IBV_QPT_RC,
                Transport::Uc => ffi::ibv_qp_type::IBV_QPT_UC,
            },
            sq_sig_all: i32::from(all),
            ..Default::default()
        };
        // SAFETY: PD and CQs are alive and kept so by the new object; `init` is read and written during the call only.
        let raw = NonNull::new(unsafe { ffi::ibv_create_qp(pd.raw(), &mut init) }).ok_or_else(|| {
            VerbsError::last("ibv_create_qp").hint(format!(
                "asked for {} send and {} receive requests, {} inline bytes",
                caps.send, caps.recv, caps.inline
            ))
        })?;
        truth::record(|truth| truth.qps_created += 1);
        let missing = |call| VerbsError {
            call,
            cause: std::io::Error::from_raw_os_error(libc::EOPNOTSUPP),
            hint: String::new(),
        };
        let ops = pd.context().ops();
        // SAFETY: just created.
        let number = unsafe { raw.as_ref() }.qp_num;
        Ok(Qp {
            raw,
            post_send: ops.post_send.ok_or_else(|| missing("ibv_post_send"))?,
            post_recv: ops.post_recv.ok_or_else(|| missing("ibv_post_recv"))?,
            tally: Entry::open(),
            granted: Caps {
                send: init.cap.max_send_wr,
                recv: init.cap.max_recv_wr,
                inline: init.cap.max_inline_data,
            },
            transport,
            // Any start will do; distinct ones make captures readable.
            psn: (number.wrapping_mul(2_654_435_761)) & 0xff_ffff,
            send_cq: Rc::clone(send),
            _recv_cq: Rc::clone(recv),
            _single: Cell::new(()),
            _pd: pd.clone(),
        })
    }

    /// QP number.
    pub fn number(&self) -> u32 {
        // SAFETY: the QP is alive.
        unsafe { self.raw.as_ref() }.qp_num
    }

    /// What the device granted; at least what was asked for.
    pub fn granted(&self) -> Caps {
        self.granted
    }

    /// Queue its send completions go to.
    pub fn send_cq(&self) -> &Rc<Cq> {
        &self.send_cq
    }

    /// Where a peer can reach it through `port`.
    pub fn address(&self, port: &Port) -> Address {
        Address { qpn: self.number(), psn: self.psn, lid: port.lid, gid: port.gid }
    }

    /// Takes the QP from RESET through INIT and RTR to RTS, connected to `peer`.
    /// `reads` is the number of READs and atomics each side may have outstanding at the other.
    pub fn connect(&self, port: &Port, peer: &Address, retry: Retry, reads: u8) -> Result<(), VerbsError> {
        self.wire(port, peer, &Wiring::usual(retry, reads))
    }

    /// The same with every choice open.
    pub fn wire(&self, port: &Port, peer: &Address, wiring: &Wiring) -> Result<(), VerbsError> {
        let Wiring { retry, min_rnr_timer, reads, serves, remote_access, mtu } = *wiring;
        let rc = self.transport == Transport::Rc;
        let mut attr = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_INIT,
            port_num: port.number,
            qp_access_flags: {
                use ffi::ibv_access_flags as access;
                let write = access::IBV_ACCESS_REMOTE_WRITE.0;
                if !remote_access {
                    0
                } else if rc {
                    write | access::IBV_ACCESS_REMOTE_READ.0 | access::IBV_ACCESS_REMOTE_ATOMIC.0
                } else {
                    write
                }
            },
            ..Default::default()
        };
        self.modify(
            &mut attr,
            mask::IBV_QP_STATE.0
                | mask::IBV_QP_PKEY_INDEX.0
                | mask::IBV_QP_PORT.0
                | mask::IBV_QP_ACCESS_FLAGS.0,
        )?;

        attr = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_RTR,
            path_mtu: mtu.unwrap_or(port.mtu),
            dest_qp_num: peer.qpn,
            rq_psn: peer.psn,
            max_dest_rd_atomic: serves,
            min_rnr_timer,
            ah_attr: address_vector(port, peer),
            ..Default::default()
        };
        let mut bits = mask::IBV_QP_STATE.0
            | mask::IBV_QP_AV.0
            | mask::IBV_QP_PATH_MTU.0
            | mask::IBV_QP_DEST_QPN.0
            | mask::IBV_QP_RQ_PSN.0;
        if rc {
            bits |= mask::IBV_QP_MAX_DEST_RD_ATOMIC.0 | mask::IBV_QP_MIN_RNR_TIMER.0;
        }
        self.modify(&mut attr, bits)?;

        attr = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_RTS,
            sq_psn: self.psn,
            timeout: retry.timeout,
            retry_cnt: retry.count,
            rnr_retry: retry.rnr,
            max_rd_atomic: reads,
            ..Default::default()
        };
        let mut bits = mask::IBV_QP_STATE.0 | mask::IBV_QP_SQ_PSN.0;
        if rc {
            bits |= mask::IBV_QP_TIMEOUT.0
                | mask::IBV_QP_RETRY_CNT.0
                | mask::IBV_QP_RNR_RETRY.0
                | mask::IBV_QP_MAX_QP_RD_ATOMIC.0;
        }
        self.modify(&mut attr, bits)
    }

    fn modify(&self, attr: &mut ffi::ibv_qp_attr, bits: u32) -> Result<(), VerbsError> {
        // SAFETY: the QP is alive and `attr` is a whole, initialised struct.
        let status = unsafe { ffi::ibv_modify_qp(self.raw.as_ptr(), attr, bits as i32) };
        check("ibv_modify_qp", status).map_err(|error| match error.errno() {
            Some(libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH) => {
                error.hint("the peer's address cannot be resolved; is its GID routable from this port?")
            }
            _ => error,
        })
    }

    /// Takes the QP back to RESET: it serves nothing any more, and may be wired anew.
    pub fn reset(&self) -> Result<(), VerbsError> {
        let mut attr = ffi::ibv_qp_attr { qp_state: ffi::ibv_qp_state::IBV_QPS_RESET, ..Default::default() };
        self.modify(&mut attr, mask::IBV_QP_STATE.0)
    }

    /// Moves the QP to the error state: everything outstanding is flushed.
    pub fn fail(&self) -> Result<(), VerbsError> {
        let mut attr = ffi::ibv_qp_attr { qp_state: ffi::ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
        self.modify(&mut attr, mask::IBV_QP_STATE.0)
    }

    /// Asks for another ACK timeout, naming the state it is in: allowed on the way to RTS only, so refused later.
    pub fn change_timeout(&self, timeout: u8) -> Result<(), VerbsError> {
        let mut attr =
            ffi::ibv_qp_attr { qp_state: ffi::ibv_qp_state::IBV_QPS_RTS, timeout, ..Default::default() };
        self.modify(&mut attr, mask::IBV_QP_STATE.0 | mask::IBV_QP_TIMEOUT.0)
    }

    /// The QP for several threads to post to.
    pub fn shared(&self) -> SharedQp<'_> {
        SharedQp { qp: self.raw.as_ptr() as usize, post_send: self.post_send, _owner: PhantomData }
    }

    /// Current state, asked of the device.
    pub fn state(&self) -> Result<State, VerbsError> {
        let (mut attr, mut init) = (ffi::ibv_qp_attr::default(), ffi::ibv_qp_init_attr::default());
        // SAFETY: the QP is alive and both structs are writable.
        let status = unsafe {
            ffi::ibv_query_qp(self.raw.as_ptr(), &mut attr, mask::IBV_QP_STATE.0 as i32, &mut init)
        };
        check("ibv_query_qp", status)?;
        Ok(match attr.qp_state {
            ffi::ibv_qp_state::IBV_QPS_RTS => State::Rts,
            ffi::ibv_qp_state::IBV_QPS_ERR => State::Err,
            other => State::Other(other),
        })
    }

    /// Posts a list. On failure the error says how many were accepted before the refused one.
    #[inline]
    pub fn post(&self, list: &mut SendList) -> Result<(), PostError> {
        let head = list.chain();
        let mut bad = null_mut();
        // SAFETY: the chain and its SGEs live in `list` for the duration of the call; the memory SGEs name is kept alive
        // by regions that the endpoint drops after its QPs.
        let status = unsafe { (self.post_send)(self.raw.as_ptr(), head, &mut bad) };
        self.tally.post_calls.add(1);
        let accepted = match status {
            0 => list.len(),
            _ => list.wrs().iter().position(|wr| std::ptr::eq(wr, bad)).unwrap_or(0),
        };
        self.count(list, accepted);
        if status == 0 {
            return Ok(());
        }
        self.tally.post_failed.add(1);
        Err(PostError { accepted, error: VerbsError::returned("ibv_post_send", status) })
    }

    #[inline]
    fn count(&self, list: &SendList, accepted: usize) {
        use ffi::ibv_send_flags as flags;
        let (mut signaled, mut inline, mut bytes) = (0, 0, 0);
        for (wr, sge) in list.wrs().iter().zip(list.sges()).take(accepted) {
            signaled += u64::from(wr.send_flags & flags::IBV_SEND_SIGNALED.0 != 0);
            inline += u64::from(wr.send_flags & flags::IBV_SEND_INLINE.0 != 0);
            bytes += u64::from(sge.length);
        }
        self.tally.wrs.add(accepted as u64);
        self.tally.signaled.add(signaled);
        self.tally.inline.add(inline);
        self.tally.bytes.add(bytes);
    }

    /// Posts one receive of a single SGE; a zero-length one for messages that carry only an immediate.
    pub fn post_recv(&self, id: u64, sge: ffi::ibv_sge) -> Result<(), VerbsError> {
        let mut sge = sge;
        let mut wr = ffi::ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: request and SGE live for the call; its memory as in `post`.
        let status = unsafe { (self.post_recv)(self.raw.as_ptr(), &mut wr, &mut bad) };
        check("ibv_post_recv", status)?;
        self.tally.recv_posted.add(1);
        Ok(())
    }

    /// The device the QP lives on.
    pub fn context(&self) -> &Context {
        self._pd.context()
    }
}

/// A QP that several threads post to at the same time, which the verbs allow. What is posted so is not in the ground
/// truth, whose counters have one writer each.
#[derive(Clone, Copy)]
pub struct SharedQp<'q> {
    qp: usize,
    post_send:
        unsafe extern "C" fn(*mut ffi::ibv_qp, *mut ffi::ibv_send_wr, *mut *mut ffi::ibv_send_wr) -> i32,
    _owner: PhantomData<fn(&'q ())>,
}

impl SharedQp<'_> {
    /// Posts a list; false when it was refused.
    pub fn post(&self, list: &mut SendList) -> bool {
        let mut bad = null_mut();
        // SAFETY: the QP is borrowed for as long as this lives and may be used from any thread; the chain lives in
        // `list` for the call.
        unsafe { (self.post_send)(self.qp as *mut ffi::ibv_qp, list.chain(), &mut bad) == 0 }
    }
}

/// A refused `ibv_post_send`.
#[derive(Debug, thiserror::Error)]
#[error("{error} after {accepted} accepted requests")]
pub struct PostError {
    /// Requests accepted before the refused one.
    pub accepted: usize,
    /// The call and its error number.
    #[source]
    pub error: VerbsError,
}

fn address_vector(port: &Port, peer: &Address) -> ffi::ibv_ah_attr {
    let mut vector = ffi::ibv_ah_attr { dlid: peer.lid, port_num: port.number, ..Default::default() };
    // RoCE and iWARP have no LIDs: every packet carries the GID.
    if port.ethernet || peer.lid == 0 {
        vector.is_global = 1;
        vector.grh = ffi::ibv_global_route {
            dgid: ffi::ibv_gid { raw: peer.gid },
            sgid_index: port.gid_index,
            hop_limit: 64,
            ..Default::default()
        };
    }
    vector
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once, before its CQs and PD.
        if unsafe { ffi::ibv_destroy_qp(self.raw.as_ptr()) } == 0 {
            truth::record(|truth| truth.qps_destroyed += 1);
        }
    }
}
