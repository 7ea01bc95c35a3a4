//! Errors as on hardware: which status, in which order, and what it does to the queue pair.

mod kit;

use kit::{End, Link, Options, atomic, pair, remote, request};
use rnic_emu::abi::{consts::*, *};
use rnic_emu::control as c;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Posts `wr`, expects it to fail with `status`, and everything behind it, and both queues, to be flushed.
fn fails(a: &End, wr: ibv_send_wr, sges: &mut [ibv_sge], status: u32) {
    assert_eq!(a.receive(70, &mut []), 0);
    assert_eq!(a.receive(71, &mut []), 0);
    assert_eq!(a.post(wr, sges), 0);
    let wc = a.sent();
    assert_eq!((wc.wr_id, wc.status, wc.qp_num), (wr.wr_id, status, a.qpn()));
    assert_ne!(wc.vendor_err, 0);
    assert_eq!(a.query().qp_state, IBV_QPS_ERR);
    for id in [70, 71] {
        let wc = a.received();
        assert_eq!((wc.wr_id, wc.status), (id, IBV_WC_WR_FLUSH_ERR));
    }
    // Posts to a QP in error are taken and flushed.
    let mut late = request(IBV_WR_SEND, 99);
    late.send_flags = 0;
    assert_eq!(a.post(late, &mut []), 0);
    assert_eq!((a.sent().wr_id, kit::poll(a.send_cq).is_none()), (99, true));
    assert_eq!(a.receive(72, &mut []), 0);
    assert_eq!(a.received().status, IBV_WC_WR_FLUSH_ERR);
}

#[test]
fn a_wrong_local_key_is_a_local_protection_error_even_unsignalled() {
    let (a, b) = pair(Options::default(), Link::default());
    let mut sge = a.sge(0, 8);
    sge.lkey ^= 0x55;
    let mut wr = remote(IBV_WR_RDMA_WRITE, 1, b.addr(0), b.lkey());
    wr.send_flags = 0;
    fails(&a, wr, &mut [sge], IBV_WC_LOC_PROT_ERR);
    assert_eq!(b.query().qp_state, IBV_QPS_RTS, "the responder saw nothing");
}

#[test]
fn local_memory_beyond_the_region_or_not_writable_is_a_local_protection_error() {
    let (a, b) = pair(Options::default(), Link::default());
    fails(
        &a,
        remote(IBV_WR_RDMA_WRITE, 1, b.addr(0), b.lkey()),
        &mut [a.sge(kit::BUFFER - 4, 8)],
        IBV_WC_LOC_PROT_ERR,
    );
    let (a, b) = pair(Options { access: IBV_ACCESS_REMOTE_READ, ..Options::default() }, Link::default());
    fails(&a, remote(IBV_WR_RDMA_READ, 1, b.addr(0), b.lkey()), &mut [a.sge(0, 8)], IBV_WC_LOC_PROT_ERR);
}

#[test]
fn remote_key_bounds_pd_and_access_errors_are_remote_access_errors_at_both_ends() {
    type Case = fn(&End) -> ibv_send_wr;
    let cases: [(Case, u32); 5] = [
        (|b| remote(IBV_WR_RDMA_WRITE, 1, b.addr(0), b.lkey() ^ 1), 8),
        (|b| remote(IBV_WR_RDMA_WRITE, 1, b.addr(kit::BUFFER - 7), b.lkey()), 8),
        (|b| remote(IBV_WR_RDMA_WRITE, 1, u64::MAX - 3, b.lkey()), 8),
        (|b| remote(IBV_WR_RDMA_READ, 1, b.addr(0) - 1, b.lkey()), 8),
        (|b| atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, b.addr(kit::BUFFER) / 8 * 8 + 8, b.lkey(), 1, 0), 8),
    ];
    for (case, len) in cases {
        let (a, b) = pair(Options::default(), Link::default());
        fails(&a, case(&b), &mut [a.sge(0, len)], IBV_WC_REM_ACCESS_ERR);
        assert_eq!(b.event(), IBV_EVENT_QP_ACCESS_ERR);
        assert_eq!(b.query().qp_state, IBV_QPS_ERR);
    }
    // A region that only local code may write.
    let options = Options { access: IBV_ACCESS_LOCAL_WRITE, ..Options::default() };
    let (a, b) = pair(options, Link::default());
    fails(&a, remote(IBV_WR_RDMA_WRITE, 1, b.addr(0), b.lkey()), &mut [a.sge(0, 8)], IBV_WC_REM_ACCESS_ERR);
    // A region of another protection domain.
    let (a, b) = pair(Options::default(), Link::default());
    fails(&a, remote(IBV_WR_RDMA_WRITE, 1, a.addr(0), a.lkey()), &mut [a.sge(0, 8)], IBV_WC_REM_ACCESS_ERR);
    drop(b);
}

#[test]
fn a_deregistered_region_is_closed_at_once() {
    let (a, mut b) = pair(Options::default(), Link::default());
    let (addr, key) = (b.addr(0), b.lkey());
    // SAFETY: a live MR.
    assert_eq!(unsafe { c::mr::dereg_mr(b.mr) }, 0);
    b.mr = null_mut();
    fails(&a, remote(IBV_WR_RDMA_WRITE, 1, addr, key), &mut [a.sge(0, 8)], IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn a_message_longer_than_the_receive_fails_both_ends_with_their_own_status() {
    let (a, b) = pair(Options::default(), Link::default());
    assert_eq!(b.receive(5, &mut [b.sge(0, 7)]), 0);
    assert_eq!(b.receive(6, &mut [b.sge(0, 7)]), 0);
    fails(&a, request(IBV_WR_SEND, 1), &mut [a.sge(0, 8)], IBV_WC_REM_INV_REQ_ERR);
    let wc = b.received();
    assert_eq!((wc.wr_id, wc.status), (5, IBV_WC_LOC_LEN_ERR));
    assert_eq!(b.received().status, IBV_WC_WR_FLUSH_ERR);
    assert_eq!(b.event(), IBV_EVENT_QP_REQ_ERR);
}

#[test]
fn a_receive_with_a_wrong_key_is_the_receivers_protection_error() {
    let (a, b) = pair(Options::default(), Link::default());
    let mut sge = b.sge(0, 8);
    sge.lkey ^= 2;
    assert_eq!(b.receive(5, &mut [sge]), 0);
    fails(&a, request(IBV_WR_SEND, 1), &mut [a.sge(0, 8)], IBV_WC_REM_OP_ERR);
    assert_eq!(b.received().status, IBV_WC_LOC_PROT_ERR);
}

#[test]
fn a_misaligned_atomic_is_an_invalid_request() {
    let (a, b) = pair(Options::default(), Link::default());
    let odd = b.addr(0) / 8 * 8 + 9;
    let wr = atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 1, odd, b.lkey(), 0, 0);
    fails(&a, wr, &mut [a.sge(0, 8)], IBV_WC_REM_INV_REQ_ERR);
}

#[test]
fn without_a_receive_the_sender_waits_and_retries_until_it_gives_up() {
    // Timer code 14 is 1.28 ms; two retries after the first attempt.
    let link = Link { min_rnr_timer: 14, rnr_retry: 2, ..Link::default() };
    let (a, _b) = pair(Options::default(), link);
    let start = Instant::now();
    fails(&a, request(IBV_WR_SEND, 1), &mut [a.sge(0, 8)], IBV_WC_RNR_RETRY_EXC_ERR);
    assert!(start.elapsed() >= Duration::from_micros(2 * 1280), "{:?}", start.elapsed());
}

#[test]
fn a_receive_posted_in_time_cures_the_wait_and_retries_of_seven_never_give_up() {
    let link = Link { min_rnr_timer: 10, rnr_retry: 7, ..Link::default() };
    let (a, b) = pair(Options::default(), link);
    assert_eq!(a.post(request(IBV_WR_SEND, 1), &mut [a.sge(0, 8)]), 0);
    assert_eq!(a.post(remote(IBV_WR_RDMA_WRITE, 2, b.addr(0), b.lkey()), &mut [a.sge(0, 8)]), 0);
    let patience = Instant::now() + Duration::from_millis(10);
    while Instant::now() < patience {
        assert!(kit::poll(a.send_cq).is_none(), "nothing overtakes the waiting SEND");
    }
    assert_eq!(b.receive(9, &mut [b.sge(0, 8)]), 0);
    assert_eq!((a.sent().wr_id, a.sent().wr_id), (1, 2));
    assert_eq!(b.received().wr_id, 9);
}

#[test]
fn nobody_at_the_other_end_is_found_out_after_the_timeout_and_all_retries() {
    // Timeout code 10 is 4.2 ms.
    let link = Link { timeout: 10, retry_cnt: 2, ..Link::default() };
    let (a, b) = pair(Options::default(), link);
    drop(b);
    let start = Instant::now();
    fails(&a, remote(IBV_WR_RDMA_WRITE, 1, a.addr(0), a.lkey()), &mut [a.sge(0, 8)], IBV_WC_RETRY_EXC_ERR);
    assert!(start.elapsed() >= Duration::from_micros(3 * 4194), "{:?}", start.elapsed());
}

#[test]
fn a_peer_that_gets_ready_late_receives_what_was_sent_early() {
    let link = Link { timeout: 9, retry_cnt: 7, ..Link::default() };
    let (a, b) = (End::new(Options::default()), End::new(Options::default()));
    a.to_init();
    b.to_init();
    a.to_rtr(b.qpn(), 7, link);
    a.to_rts(100, link);
    for id in 1..=3 {
        assert_eq!(a.post(remote(IBV_WR_RDMA_WRITE, id, b.addr(0), b.lkey()), &mut [a.sge(0, 8)]), 0);
    }
    std::thread::sleep(Duration::from_millis(3));
    b.to_rtr(a.qpn(), 100, link);
    for id in 1..=3 {
        let wc = a.sent();
        assert_eq!((wc.wr_id, wc.status), (id, IBV_WC_SUCCESS));
    }
    assert_eq!(b.event(), IBV_EVENT_COMM_EST);
}

#[test]
fn different_ideas_of_the_sequence_number_never_talk() {
    let link = Link { timeout: 8, retry_cnt: 1, ..Link::default() };
    let (a, b) = (End::new(Options::default()), End::new(Options::default()));
    a.to_init();
    b.to_init();
    a.to_rtr(b.qpn(), 7, link);
    b.to_rtr(a.qpn(), 50, link);
    a.to_rts(60, link);
    fails(&a, remote(IBV_WR_RDMA_WRITE, 1, b.addr(0), b.lkey()), &mut [a.sge(0, 8)], IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn going_to_error_flushes_both_queues_in_order() {
    let link = Link { rnr_retry: 7, min_rnr_timer: 31, ..Link::default() };
    let (a, _b) = pair(Options::default(), link);
    for id in 1..=4 {
        assert_eq!(a.post(request(IBV_WR_SEND, id), &mut [a.sge(0, 8)]), 0);
        assert_eq!(a.receive(id + 10, &mut []), 0);
    }
    a.to_error();
    for id in 1..=4 {
        let wc = a.sent();
        assert_eq!((wc.wr_id, wc.status), (id, IBV_WC_WR_FLUSH_ERR));
        let wc = a.received();
        assert_eq!((wc.wr_id, wc.status), (id + 10, IBV_WC_WR_FLUSH_ERR));
    }
}

#[test]
fn a_read_waits_for_a_place_and_a_fence_waits_for_reads() {
    let link = Link { max_rd_atomic: 1, ..Link::default() };
    let (a, b) = pair(Options::default(), link);
    for id in 1..=8 {
        let mut wr = remote(IBV_WR_RDMA_READ, id, b.addr(0), b.lkey());
        wr.send_flags |= IBV_SEND_FENCE;
        assert_eq!(a.post(wr, &mut [a.sge(0, 64)]), 0);
    }
    for id in 1..=8 {
        assert_eq!(a.sent().wr_id, id);
    }
    let link = Link { max_rd_atomic: 0, ..Link::default() };
    let (a, b) = pair(Options::default(), link);
    fails(&a, remote(IBV_WR_RDMA_READ, 1, b.addr(0), b.lkey()), &mut [a.sge(0, 8)], IBV_WC_LOC_QP_OP_ERR);
    let link = Link { max_dest_rd_atomic: 0, ..Link::default() };
    let (a, b) = pair(Options::default(), link);
    fails(&a, remote(IBV_WR_RDMA_READ, 1, b.addr(0), b.lkey()), &mut [a.sge(0, 8)], IBV_WC_REM_INV_REQ_ERR);
}

#[test]
fn a_full_completion_queue_is_an_error_of_the_queue_and_the_queue_pair() {
    let (a, b) = pair(Options { cqe: 2, ..Options::default() }, Link::default());
    let wr = remote(IBV_WR_RDMA_WRITE, 1, b.addr(0), b.lkey());
    for _ in 0..3 {
        assert_eq!(a.post(wr, &mut [a.sge(0, 8)]), 0);
    }
    assert_eq!((a.event(), a.event()), (IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL));
    assert_eq!(a.query().qp_state, IBV_QPS_ERR);
    assert!(kit::poll(a.send_cq).is_some() && kit::poll(a.send_cq).is_some());
    assert!(kit::poll(a.send_cq).is_none(), "the third was lost");
}

#[test]
fn requests_that_cannot_be_are_refused_at_the_post() {
    let (a, b) = pair(Options::default(), Link::default());
    let wr = remote(IBV_WR_RDMA_WRITE, 1, b.addr(0), b.lkey());
    assert_eq!(a.post(wr, &mut [a.sge(0, 1); 5]), libc::ENOMEM, "five entries where four were agreed");
    let mut inline = wr;
    inline.send_flags |= IBV_SEND_INLINE;
    assert_eq!(a.post(inline, &mut [a.sge(0, 65)]), libc::ENOMEM, "65 bytes where 64 were agreed");
    let mut unknown = wr;
    unknown.opcode = 200;
    assert_eq!(a.post(unknown, &mut []), libc::EINVAL);
    assert_eq!(a.receive(1, &mut [b.sge(0, 1); 5]), libc::EINVAL);
    for id in 0..16 {
        assert_eq!(a.receive(id, &mut []), 0);
    }
    assert_eq!(a.receive(16, &mut []), libc::ENOMEM);
    let fresh = End::new(Options::default());
    assert_eq!(fresh.post(wr, &mut []), libc::EINVAL, "not in RESET");
    assert_eq!(fresh.receive(1, &mut []), libc::EINVAL, "not in RESET");
    fresh.to_init();
    assert_eq!(fresh.post(wr, &mut []), libc::EINVAL, "not in INIT");
    assert_eq!(fresh.receive(1, &mut []), 0);
}

#[test]
fn busy_objects_are_not_destroyed() {
    let a = End::new(Options::default());
    // SAFETY: live objects.
    unsafe {
        assert_eq!(c::pd::dealloc_pd(a.pd), libc::EBUSY);
        assert_eq!(c::cq::destroy_cq(a.send_cq), libc::EBUSY);
        assert_eq!(c::events::destroy_channel(a.channel), libc::EBUSY);
    }
}

#[test]
fn a_datagram_queue_pair_recovers_from_a_send_error() {
    let (a, b) = pair(Options { kind: IBV_QPT_UD, ..Options::default() }, Link::default());
    // SAFETY: live objects of the kit.
    unsafe {
        let ah = c::ah::create_ah(a.pd, &mut kit::address());
        let mut wr = request(IBV_WR_SEND, 1);
        wr.wr.ud = ibv_send_wr_ud { ah, remote_qpn: b.qpn(), remote_qkey: kit::QKEY };
        assert_eq!(a.post(wr, &mut [a.sge(0, 4097)]), 0);
        assert_eq!(a.sent().status, IBV_WC_LOC_LEN_ERR);
        assert_eq!(a.query().qp_state, IBV_QPS_SQE);
        let mut back = ibv_qp_attr { qp_state: IBV_QPS_RTS, ..Default::default() };
        assert_eq!(a.modify(&mut back, IBV_QP_STATE), 0);
        assert_eq!(b.receive(1, &mut [b.sge(0, 48)]), 0);
        assert_eq!(a.post(wr, &mut [a.sge(0, 8)]), 0);
        assert_eq!((a.sent().status, b.received().byte_len), (IBV_WC_SUCCESS, 48));
        assert_eq!(c::ah::destroy_ah(ah), 0);
    }
}

#[test]
fn a_reset_forgets_everything_and_the_pair_can_be_connected_again() {
    let link = Link { rnr_retry: 7, min_rnr_timer: 31, ..Link::default() };
    let (a, b) = pair(Options::default(), link);
    assert_eq!(a.post(request(IBV_WR_SEND, 1), &mut [a.sge(0, 8)]), 0);
    for end in [&a, &b] {
        let mut reset = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..Default::default() };
        assert_eq!(end.modify(&mut reset, IBV_QP_STATE), 0);
        assert!(kit::poll(end.send_cq).is_none() && kit::poll(end.recv_cq).is_none());
        end.to_init();
    }
    a.to_rtr(b.qpn(), 1, link);
    b.to_rtr(a.qpn(), 2, link);
    a.to_rts(2, link);
    assert_eq!(a.post(remote(IBV_WR_RDMA_WRITE, 5, b.addr(0), b.lkey()), &mut [a.sge(0, 8)]), 0);
    assert_eq!(a.sent().wr_id, 5);
}

/// A window of type 2 on the PD of `a`, and a request that binds it to the first 64 bytes under its next key.
fn binding(a: &End) -> (*mut ibv_mw, ibv_send_wr) {
    // SAFETY: a live PD, a live window.
    let (mw, rkey) = unsafe {
        let mw = c::mw::alloc_mw(a.pd, IBV_MW_TYPE_2);
        (mw, (*mw).rkey)
    };
    let mut bind = request(IBV_WR_BIND_MW, 1);
    let info = ibv_mw_bind_info {
        mr: a.mr,
        addr: a.addr(0),
        length: 64,
        mw_access_flags: IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
    };
    bind.bind_mw = ibv_send_wr_bind { mw, rkey: rkey & !0xff | 1, bind_info: info };
    (mw, bind)
}

#[test]
fn a_window_that_may_not_be_bound_so_is_a_bind_error() {
    let no_binding = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    let read_only = IBV_ACCESS_MW_BIND | IBV_ACCESS_REMOTE_READ;
    type Case = (&'static str, Option<u32>, fn(&End, &mut ibv_send_wr_bind));
    let cases: [Case; 6] = [
        ("the region does not allow it", Some(no_binding), |_, _| ()),
        ("writes into a region that is not writable", Some(read_only), |_, _| ()),
        ("beyond the region", None, |_, b| b.bind_info.length = kit::BUFFER as u64 + 1),
        ("before the region", None, |a, b| b.bind_info.addr = a.addr(0) - 1),
        ("so long that it wraps", None, |_, b| b.bind_info.length = u64::MAX),
        ("the key of another window", None, |_, b| b.rkey += 1 << 8),
    ];
    for (what, access, spoil) in cases {
        let options = Options { access: access.unwrap_or(Options::default().access), ..Options::default() };
        let (a, _b) = pair(options, Link::default());
        let (mw, mut bind) = binding(&a);
        spoil(&a, &mut bind.bind_mw);
        println!("{what}");
        fails(&a, bind, &mut [], IBV_WC_MW_BIND_ERR);
        // SAFETY: a live window, used no more.
        assert_eq!(unsafe { c::mw::dealloc_mw(mw) }, 0, "{what}");
    }
}

#[test]
fn a_window_of_type_2_is_bound_once_and_invalidated_once() {
    for again in [false, true] {
        let (a, _b) = pair(Options::default(), Link::default());
        let (mw, bind) = binding(&a);
        assert_eq!(a.post(bind, &mut []), 0);
        assert_eq!(a.sent().status, IBV_WC_SUCCESS);
        let key = bind.bind_mw.rkey;
        let mut invalidate = request(IBV_WR_LOCAL_INV, 2);
        invalidate.imm_data = key;
        if again {
            assert_eq!(a.post(invalidate, &mut []), 0);
            assert_eq!(a.sent().status, IBV_WC_SUCCESS);
            fails(&a, invalidate, &mut [], IBV_WC_MW_BIND_ERR);
        } else {
            let mut other = bind;
            other.bind_mw.rkey = key + 1;
            fails(&a, other, &mut [], IBV_WC_MW_BIND_ERR);
        }
        // SAFETY: a live window, used no more.
        assert_eq!(unsafe { c::mw::dealloc_mw(mw) }, 0);
    }
}
