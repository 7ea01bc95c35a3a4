//! The device over the timing model: nothing becomes visible before a NIC would have been done.
//!
//! One test: the profile is a setting of the process, made when its first device is opened.

mod kit;

use kit::{Link, Options, pair, remote, request};
use rnic_emu::abi::consts::*;
use rnic_emu::device::speed::Speed;
use rnic_emu::model::{Model, NodeId, Profile, Request, Transport};
use rnic_emu::stats::{self, ModelCounter, ProcessCounter};
use std::time::{Duration, Instant};

/// Modelled time of one 8-byte inline WRITE on an idle NIC, as real time at `speed`.
fn predicted(profile: &Profile, speed: Speed) -> Duration {
    let mut model = Model::new(profile);
    let cq = model.create_cq(NodeId(0));
    let qp = model.create_qp(NodeId(0), NodeId(1), Transport::Rc, cq);
    model.post(0, qp, &[Request { bytes: 8, inline: true, ..Request::default() }]);
    let mut done = Vec::new();
    model.advance(u64::MAX / 2, &mut done);
    Duration::from_nanos(speed.real_ns(done[0].at - done[0].posted))
}

#[test]
fn completions_take_the_modelled_time_and_everything_else_stays_as_it_was() {
    const SPEED: &str = "1/1000";
    // SAFETY: before any other thread or device of this process.
    unsafe {
        std::env::set_var("RNIC_EMU_PROFILE", "cx5-like");
        std::env::set_var("RNIC_EMU_SPEED", SPEED);
    }
    let speed = Speed::parse("test", SPEED).expect("a speed");
    let least = predicted(&Profile::builtin("cx5-like").expect("built in"), speed);
    assert!(least > Duration::from_millis(1) && least < Duration::from_millis(5), "{least:?}");
    let (mut a, b) = pair(Options::default(), Link { rnr_retry: 7, ..Link::default() });

    // A WRITE: neither its bytes nor its completion are there early.
    a.memory[..8].fill(7);
    let mut wr = remote(IBV_WR_RDMA_WRITE, 1, b.addr(0), b.lkey());
    wr.send_flags |= IBV_SEND_INLINE;
    let start = Instant::now();
    assert_eq!(a.post(wr, &mut [a.sge(0, 8)]), 0);
    assert_eq!(b.memory[0], 0, "it has not arrived when the post returns");
    let wc = a.sent();
    let took = start.elapsed();
    assert_eq!((wc.status, b.memory[..8].to_vec()), (IBV_WC_SUCCESS, vec![7; 8]));
    assert!(took >= least, "{took:?} where the model says {least:?}");
    assert!(took < least + Duration::from_secs(1), "{took:?} where the model says {least:?}");

    // Without anybody polling, the helper keeps the time, and events come.
    // SAFETY: live objects of the kit.
    unsafe {
        let mut p = libc::pollfd { fd: (*a.channel).fd, events: libc::POLLIN, revents: 0 };
        assert_eq!(((*a.context).ops.req_notify_cq.expect("filled"))(a.send_cq, 0), 0);
        assert_eq!(a.post(wr, &mut [a.sge(0, 8)]), 0);
        assert_eq!(libc::poll(&mut p, 1, 0), 0, "too early");
        assert_eq!(libc::poll(&mut p, 1, 5000), 1, "the helper was to see to it");
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        assert_eq!(rnic_emu::control::events::get_cq_event(a.channel, &mut cq, &mut context), 0);
        rnic_emu::control::events::ack_cq_events(cq, 1);
    }
    assert_eq!(a.sent().status, IBV_WC_SUCCESS);

    // Order, every opcode, and errors are those of the device without a model.
    for id in 0..5 {
        assert_eq!(b.receive(id, &mut [b.sge(100, 8)]), 0);
        assert_eq!(a.post(request(IBV_WR_SEND, 10 * id), &mut [a.sge(0, 8)]), 0);
        let read = remote(IBV_WR_RDMA_READ, 10 * id + 1, b.addr(0), b.lkey());
        assert_eq!(a.post(read, &mut [a.sge(200, 64)]), 0);
    }
    for id in 0..5 {
        assert_eq!((a.sent().wr_id, a.sent().wr_id), (10 * id, 10 * id + 1));
        assert_eq!(b.received().wr_id, id);
    }
    for id in 0..3 {
        let bad = remote(IBV_WR_RDMA_WRITE, id, b.addr(0), b.lkey() ^ 1);
        assert_eq!(a.post(bad, &mut [a.sge(0, 8)]), 0);
    }
    let got: Vec<_> = (0..3).map(|_| a.sent().status).collect();
    assert_eq!(got, [IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR]);
    // The model's counters are published after the completions they count have become visible.
    let read = || stats::read(std::process::id()).expect("own counters");
    let published = |counts: &stats::Snapshot| {
        counts.model(ModelCounter::Completed) == counts.process(ProcessCounter::PacedCompletions)
    };
    let asked = Instant::now();
    while !published(&read()) && asked.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let counts = read();
    assert!(counts.process(ProcessCounter::PacedCompletions) >= 13);
    assert!(published(&counts), "{} of the model", counts.model(ModelCounter::Completed));
    assert!(counts.model(ModelCounter::MttLookups) > 0 && counts.model(ModelCounter::StageWire) > 0);
}
