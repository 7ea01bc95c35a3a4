//! Every operation moves the right bytes and completes as it should.

mod kit;

use kit::{End, Link, Options, atomic, pair, remote, request};
use rnic_emu::abi::{consts::*, *};
use rnic_emu::control as c;

fn fill(end: &mut End, from: usize, n: usize) {
    for i in 0..n {
        end.memory[from + i] = (i * 7 + 3) as u8;
    }
}

#[test]
fn a_write_lands_where_it_was_aimed_and_nowhere_else() {
    let (mut a, b) = pair(Options::default(), Link::default());
    fill(&mut a, 0, 1000);
    let wr = remote(IBV_WR_RDMA_WRITE, 1, b.addr(500), b.lkey());
    assert_eq!(a.post(wr, &mut [a.sge(0, 400), a.sge(400, 600)]), 0);
    let wc = a.sent();
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE));
    assert_eq!(b.memory[500..1500], a.memory[..1000]);
    assert!(b.memory[..500].iter().chain(&b.memory[1500..]).all(|x| *x == 0));
    assert!(kit::poll(b.recv_cq).is_none());
}

#[test]
fn an_unsignalled_request_completes_silently_and_frees_its_slot_only_with_a_later_signalled_one() {
    let (a, b) = pair(Options::default(), Link::default());
    let mut wr = remote(IBV_WR_RDMA_WRITE, 1, b.addr(0), b.lkey());
    wr.send_flags = 0;
    for _ in 0..15 {
        assert_eq!(a.post(wr, &mut [a.sge(0, 8)]), 0);
    }
    assert!(kit::poll(a.send_cq).is_none());
    wr.send_flags = IBV_SEND_SIGNALED;
    assert_eq!(a.post(wr, &mut [a.sge(0, 8)]), 0);
    assert_eq!(a.post(wr, &mut [a.sge(0, 8)]), libc::ENOMEM, "sixteen are in the queue");
    assert_eq!(a.sent().status, IBV_WC_SUCCESS);
    assert_eq!(a.post(wr, &mut [a.sge(0, 8)]), 0, "polling freed them all");
    assert_eq!(a.sent().status, IBV_WC_SUCCESS);
}

#[test]
fn sends_arrive_in_order_in_whatever_pieces_the_receiver_offers() {
    let (mut a, b) = pair(Options::default(), Link::default());
    fill(&mut a, 0, 300);
    assert_eq!(b.receive(10, &mut [b.sge(0, 100), b.sge(1000, 50), b.sge(2000, 200)]), 0);
    assert_eq!(b.receive(11, &mut [b.sge(3000, 300)]), 0);
    let mut wr = request(IBV_WR_SEND, 1);
    assert_eq!(a.post(wr, &mut [a.sge(0, 300)]), 0);
    (wr.opcode, wr.imm_data) = (IBV_WR_SEND_WITH_IMM, 0x0102_0304);
    assert_eq!(a.post(wr, &mut []), 0);
    let wc = b.received();
    assert_eq!((wc.wr_id, wc.byte_len, wc.opcode, wc.wc_flags), (10, 300, IBV_WC_RECV, 0));
    assert_eq!(b.memory[..100], a.memory[..100]);
    assert_eq!(b.memory[1000..1050], a.memory[100..150]);
    assert_eq!(b.memory[2000..2150], a.memory[150..300]);
    let wc = b.received();
    assert_eq!((wc.wr_id, wc.byte_len, wc.wc_flags), (11, 0, IBV_WC_WITH_IMM));
    assert_eq!(wc.imm_data, 0x0102_0304);
}

#[test]
fn inline_data_may_be_overwritten_as_soon_as_the_post_returns_and_needs_no_key() {
    let (mut a, b) = pair(Options::default(), Link { rnr_retry: 7, ..Link::default() });
    fill(&mut a, 0, 64);
    let expected = a.memory[..64].to_vec();
    // Not yet connected to a receive: the request waits in the queue while its source is overwritten.
    let mut wr = request(IBV_WR_SEND, 1);
    wr.send_flags |= IBV_SEND_INLINE;
    let mut sge = a.sge(0, 64);
    sge.lkey = 0xdead_beef;
    assert_eq!(a.post(wr, &mut [sge]), 0);
    a.memory[..64].fill(0xff);
    assert_eq!(b.receive(1, &mut [b.sge(0, 64)]), 0);
    assert_eq!(a.sent().status, IBV_WC_SUCCESS);
    assert_eq!(b.received().byte_len, 64);
    assert_eq!(b.memory[..64], expected);
}

#[test]
fn a_write_with_immediate_uses_up_a_receive_but_not_its_buffer() {
    let (mut a, b) = pair(Options::default(), Link::default());
    fill(&mut a, 0, 32);
    assert_eq!(b.receive(5, &mut [b.sge(0, 32)]), 0);
    let mut wr = remote(IBV_WR_RDMA_WRITE_WITH_IMM, 1, b.addr(4096), b.lkey());
    wr.imm_data = 99;
    assert_eq!(a.post(wr, &mut [a.sge(0, 32)]), 0);
    let wc = b.received();
    assert_eq!((wc.wr_id, wc.opcode, wc.byte_len), (5, IBV_WC_RECV_RDMA_WITH_IMM, 32));
    assert_eq!((wc.imm_data, wc.wc_flags), (99, IBV_WC_WITH_IMM));
    assert_eq!(b.memory[4096..4128], a.memory[..32]);
    assert!(b.memory[..32].iter().all(|x| *x == 0));
}

#[test]
fn reads_scatter_and_atomics_return_the_old_value() {
    let (a, mut b) = pair(Options::default(), Link::default());
    fill(&mut b, 0, 100);
    let wr = remote(IBV_WR_RDMA_READ, 1, b.addr(0), b.lkey());
    assert_eq!(a.post(wr, &mut [a.sge(0, 60), a.sge(200, 40)]), 0);
    let wc = a.sent();
    assert_eq!((wc.opcode, wc.byte_len), (IBV_WC_RDMA_READ, 100));
    assert_eq!((&a.memory[..60], &a.memory[200..240]), (&b.memory[..60], &b.memory[60..100]));

    let aligned = (8 - b.addr(0) as usize % 8) % 8 + 4096;
    b.memory[aligned..aligned + 8].copy_from_slice(&40u64.to_ne_bytes());
    let wr = atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, 2, b.addr(aligned), b.lkey(), 2, 0);
    assert_eq!(a.post(wr, &mut [a.sge(1000, 8)]), 0);
    assert_eq!(a.sent().opcode, IBV_WC_FETCH_ADD);
    assert_eq!(a.memory[1000..1008], 40u64.to_ne_bytes());
    for (compare, expected) in [(41, 42), (42, 42), (42, 7)] {
        let wr = atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 3, b.addr(aligned), b.lkey(), compare, 7);
        assert_eq!(a.post(wr, &mut [a.sge(1000, 8)]), 0);
        assert_eq!(a.sent().opcode, IBV_WC_COMP_SWAP);
        assert_eq!(a.memory[1000..1008], u64::to_ne_bytes(expected), "compare with {compare}");
    }
    assert_eq!(b.memory[aligned..aligned + 8], 7u64.to_ne_bytes());
}

#[test]
fn datagrams_carry_a_route_header_and_find_their_way_back() {
    let options = Options { kind: IBV_QPT_UD, ..Options::default() };
    let (mut a, b) = pair(options, Link::default());
    fill(&mut a, 0, 100);
    assert_eq!(b.receive(1, &mut [b.sge(0, 140)]), 0);
    // SAFETY: live objects of the kit.
    unsafe {
        let ah = c::ah::create_ah(a.pd, &mut kit::address());
        let mut wr = request(IBV_WR_SEND, 1);
        wr.wr.ud = ibv_send_wr_ud { ah, remote_qpn: b.qpn(), remote_qkey: kit::QKEY + 1 };
        assert_eq!(a.post(wr, &mut [a.sge(0, 100)]), 0);
        assert_eq!(a.sent().status, IBV_WC_SUCCESS, "nobody tells a datagram's sender");
        assert!(kit::poll(b.recv_cq).is_none(), "a wrong Q_Key is dropped");
        wr.wr.ud = ibv_send_wr_ud { ah, remote_qpn: b.qpn(), remote_qkey: kit::QKEY };
        assert_eq!(a.post(wr, &mut [a.sge(0, 100)]), 0);
        let wc = b.received();
        assert_eq!((wc.byte_len, wc.wc_flags, wc.src_qp), (140, IBV_WC_GRH, a.qpn()));
        assert_eq!(b.memory[40..140], a.memory[..100]);
        let mut back = ibv_ah_attr::default();
        assert_eq!(c::ah::init_ah_from_wc(b.context, 1, &wc, b.memory.as_ptr().cast(), &mut back), 0);
        assert_eq!(back.grh.dgid, rnic_emu::device::gid::of_device(0));
        assert_eq!(c::ah::destroy_ah(ah), 0);
    }
}

#[test]
fn unreliable_connections_drop_what_nobody_receives_and_carry_on() {
    let (mut a, b) = pair(Options { kind: IBV_QPT_UC, ..Options::default() }, Link::default());
    fill(&mut a, 0, 10);
    assert_eq!(a.post(request(IBV_WR_SEND, 1), &mut [a.sge(0, 10)]), 0);
    assert_eq!(a.sent().status, IBV_WC_SUCCESS);
    let bad = remote(IBV_WR_RDMA_WRITE, 2, b.addr(0), b.lkey() ^ 1);
    assert_eq!(a.post(bad, &mut [a.sge(0, 10)]), 0);
    assert_eq!(a.sent().status, IBV_WC_SUCCESS);
    assert_eq!(b.receive(9, &mut [b.sge(0, 10)]), 0);
    assert_eq!(a.post(request(IBV_WR_SEND, 3), &mut [a.sge(0, 10)]), 0);
    assert_eq!(b.received().wr_id, 9);
    assert_eq!(a.post(remote(IBV_WR_RDMA_READ, 4, 0, 0), &mut []), libc::EINVAL);
}

#[test]
fn a_window_opens_its_range_until_it_is_invalidated() {
    let (mut a, b) = pair(Options::default(), Link::default());
    fill(&mut a, 0, 8);
    // SAFETY: live objects of the kit.
    unsafe {
        let alloc = (*b.context).ops.alloc_mw.expect("filled");
        let mw = alloc(b.pd, IBV_MW_TYPE_2);
        let mut bind = request(IBV_WR_BIND_MW, 1);
        let rkey = (*mw).rkey + 5;
        let info = ibv_mw_bind_info {
            mr: b.mr,
            addr: b.addr(100),
            length: 8,
            mw_access_flags: IBV_ACCESS_REMOTE_WRITE,
        };
        bind.bind_mw = ibv_send_wr_bind { mw, rkey, bind_info: info };
        assert_eq!(b.post(bind, &mut []), 0);
        assert_eq!((b.sent().status, (*mw).rkey), (IBV_WC_SUCCESS, rkey));
        assert_eq!(c::mr::dereg_mr(b.mr), libc::EBUSY, "a window is bound to it");
        assert_eq!(a.post(remote(IBV_WR_RDMA_WRITE, 2, b.addr(100), rkey), &mut [a.sge(0, 8)]), 0);
        assert_eq!(a.sent().status, IBV_WC_SUCCESS);
        assert_eq!(b.memory[100..108], a.memory[..8]);
        let mut send = request(IBV_WR_SEND_WITH_INV, 3);
        send.imm_data = rkey;
        assert_eq!(b.receive(4, &mut []), 0);
        assert_eq!(a.post(send, &mut []), 0);
        let wc = b.received();
        assert_eq!((wc.wc_flags, wc.imm_data), (IBV_WC_WITH_INV, rkey));
        assert_eq!(a.sent().status, IBV_WC_SUCCESS);
        assert_eq!(a.post(remote(IBV_WR_RDMA_WRITE, 5, b.addr(100), rkey), &mut [a.sge(0, 8)]), 0);
        assert_eq!(a.sent().status, IBV_WC_REM_ACCESS_ERR);
        assert_eq!(b.event(), IBV_EVENT_QP_ACCESS_ERR, "a bad key fails the responder, too");
        assert_eq!(((*b.context).ops.dealloc_mw.expect("filled"))(mw), 0);
    }
}

#[test]
fn a_qp_connected_to_itself_works() {
    let a = End::new(Options::default());
    a.to_init();
    a.to_rtr(a.qpn(), 1, Link::default());
    a.to_rts(1, Link::default());
    assert_eq!(a.receive(1, &mut [a.sge(0, 8)]), 0);
    assert_eq!(a.post(request(IBV_WR_SEND, 2), &mut [a.sge(100, 8)]), 0);
    assert_eq!((a.received().wr_id, a.sent().wr_id), (1, 2));
    assert_eq!(a.post(remote(IBV_WR_RDMA_WRITE, 3, a.addr(0), 0x1234_5678), &mut [a.sge(0, 8)]), 0);
    assert_eq!(a.sent().status, IBV_WC_REM_ACCESS_ERR);
}
