//! The fault that ends a life while requests are under way in both directions, and what may and must be left.

use crate::judge::{Receives, Sends, check_half};
use crate::kit;
use crate::life::{End, World, invalidate};
use crate::operation::{Among, Drawn};
use crate::peer::HALF;
use crate::side::{Incoming, Posted};
use rnic_emu::abi::{consts::*, ibv_wc};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    PeerKilled,
    RegionDeregistered,
    WindowClosed,
    WindowShrunk,
    PeerInError,
}

pub const ALL: [Fault; 5] = [
    Fault::PeerKilled,
    Fault::RegionDeregistered,
    Fault::WindowClosed,
    Fault::WindowShrunk,
    Fault::PeerInError,
];

/// Requests of the victim beside its burst: two to change its window, one that must be flushed.
const SPARE: u64 = 3;

/// What both processes posted before the fault.
struct Scene {
    fault: Fault,
    victim: usize,
    /// Where the victim's window lies, and its key.
    window: ((usize, usize), u32),
    base: [[Vec<u8>; 2]; 2],
    first: [u64; 2],
    posted: [Vec<Posted>; 2],
    /// Our receives.
    receives: Vec<u64>,
}

/// Ends the life of the pair.
pub fn end(w: &mut World) -> End {
    let fault = w.rng.pick(&ALL);
    let mut victim = w.rng.below(2);
    let by_window = matches!(fault, Fault::WindowClosed | Fault::WindowShrunk);
    if fault == Fault::PeerKilled {
        victim = 1;
    }
    while by_window && w.sides[victim].open.is_none_or(|(_, len)| len < HALF / 2) {
        w.turn_window(victim);
    }
    for _ in 0..w.rng.below(20) {
        (0..2).for_each(|side| w.receive(side));
    }
    let me = w.peer.me;
    let halves = |w: &World, side: usize| [w.sides[side].active.clone(), w.sides[side].passive.clone()];
    let mut scene = Scene {
        fault,
        victim,
        window: (w.sides[victim].open.unwrap_or_default(), w.sides[victim].window_key),
        base: [halves(w, 0), halves(w, 1)],
        first: [w.sides[0].posted, w.sides[1].posted],
        posted: [Vec::new(), Vec::new()],
        receives: w.sides[me].recvs.iter().map(|r| r.0).collect(),
    };
    let mut ours = Vec::new();
    for side in 0..2 {
        let among = if by_window && side != victim { Among::WindowOnly } else { Among::Everything };
        let most = w.sides[side].depth - SPARE;
        let drawn = w.draw(side, most as usize, among);
        scene.posted[side] = drawn.iter().map(|d| d.posted.clone()).collect();
        if side == me {
            ours = drawn;
        }
    }
    let wanted: Vec<Incoming> = w.sides[me].want_received.iter().cloned().collect();
    // Half of them soon, when requests are surely under way.
    let most = w.rng.pick(&[200, 3000]);
    let delay = Duration::from_micros(w.rng.below(most) as u64);
    let polls = w.rng.one_in(2);
    w.peer.meet("ready");
    w.party.post(ours);
    if me == victim { suffer(w, scene, &wanted, delay) } else { survive(w, scene, &wanted, delay, polls) }
}

/// The side the fault happens to.
fn suffer(w: &mut World, mut scene: Scene, wanted: &[Incoming], delay: Duration) -> End {
    let (seed, me) = (w.seed, w.peer.me);
    if scene.fault == Fault::PeerKilled {
        w.peer.meet("to be killed");
    }
    std::thread::sleep(delay);
    let mut early = Vec::new();
    match scene.fault {
        Fault::PeerKilled => unreachable!("dead"),
        Fault::PeerInError => w.party.end.to_error(),
        Fault::RegionDeregistered => w.party.deregister_passive(),
        Fault::WindowClosed | Fault::WindowShrunk => change_window(w, &mut scene, &mut early),
    }
    let then = w.memory.copy(me);
    w.peer.meet("done");
    // The other side has seen its failure, which is ours, too.
    let theirs = carried_out(&w.peer.meet("over"));
    assert_eq!(w.party.end.query().qp_state, IBV_QPS_ERR, "seed {seed}: {:?}", scene.fault);
    let last = last_request(u64::MAX);
    assert_eq!(w.party.end.post(last.wr, &mut []), 0, "seed {seed}");
    scene.posted[me].push(last.posted);
    let flushed: &dyn Fn(&Posted) -> &'static [u32] = &|_| &[IBV_WC_WR_FLUSH_ERR];
    let mut sends = Sends::new(&scene.posted[me], seed, flushed);
    early.iter().for_each(|wc| sends.take(wc));
    let refused: &[u32] = match scene.fault {
        Fault::RegionDeregistered => &[IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_ACCESS_ERR],
        _ => &[],
    };
    let mut receives = Receives::new(&scene.receives, wanted, seed, refused);
    collect(w, &mut sends, &mut receives);
    let sent = sends.carried_out();
    w.peer.meet(&format!("{} {}", sent.start(), sent.end()));
    let now = w.memory.copy(me);
    assert!(now[HALF..] == then[HALF..], "seed {seed}: {:?}, and still it was written to", scene.fault);
    let received = receives.at_least(scene.first[1 - me]).max(*theirs.start())..=*theirs.end();
    check(w, &scene, me, &now, [sent, received]);
    outcome(w, &scene, 0..=0)
}

/// Takes the window away or makes it smaller, in the queue where requests are under way.
fn change_window(w: &mut World, scene: &mut Scene, early: &mut Vec<ibv_wc>) {
    let ((at, len), key) = scene.window;
    let mut requests = vec![invalidate(1, key)];
    if scene.fault == Fault::WindowShrunk {
        requests.push(w.party.bind(2, next_key(key), (at, len / 2)));
    }
    let last = requests.last().map_or(0, |r| r.wr_id);
    for wr in requests {
        let wc_opcode = if wr.wr_id == 1 { IBV_WC_LOCAL_INV } else { IBV_WC_BIND_MW };
        let posted = Posted { wr_id: wr.wr_id, opcode: wr.opcode, wc_opcode, ..last_request(0).posted };
        scene.posted[w.peer.me].push(posted);
        assert_eq!(w.party.end.post(wr, &mut []), 0, "seed {}", w.seed);
    }
    while early.last().is_none_or(|wc: &ibv_wc| wc.wr_id != last) {
        early.push(w.party.end.sent());
    }
}

/// The side that goes on.
fn survive(w: &mut World, mut scene: Scene, wanted: &[Incoming], delay: Duration, polls: bool) -> End {
    let (seed, me, fault) = (w.seed, w.peer.me, scene.fault);
    let mut early = Vec::new();
    let start = Instant::now();
    while polls && start.elapsed() < delay {
        early.extend(kit::poll(w.party.end.send_cq));
    }
    if fault == Fault::PeerKilled {
        std::thread::sleep(delay.saturating_sub(start.elapsed()));
        w.peer.kill();
    } else {
        w.peer.meet("waiting");
    }
    // What is known to fail, in case everything else was done before the fault.
    let mut last = last_request(u64::MAX);
    let ((at, len), key) = scene.window;
    (last.local, last.remote_at) = (vec![(0, 8)], 0);
    match fault {
        Fault::WindowClosed => (last.wr.wr.rdma.rkey, last.remote_at) = (key, at),
        Fault::WindowShrunk => (last.wr.wr.rdma.rkey, last.remote_at) = (next_key(key), at + len - 8),
        _ => {}
    }
    scene.posted[me].push(last.posted.clone());
    w.party.post(vec![last]);
    let mut sends = Sends::new(
        &scene.posted[me],
        seed,
        match fault {
            Fault::PeerKilled | Fault::PeerInError => &|_| &[IBV_WC_RETRY_EXC_ERR],
            Fault::RegionDeregistered => &|p| match p.opcode {
                // Its receive lay in the region, or the window it was to close went with it.
                IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => &[IBV_WC_REM_OP_ERR],
                IBV_WR_SEND_WITH_INV => &[IBV_WC_REM_OP_ERR, IBV_WC_REM_ACCESS_ERR],
                _ => &[IBV_WC_REM_ACCESS_ERR],
            },
            Fault::WindowClosed | Fault::WindowShrunk => &|_| &[IBV_WC_REM_ACCESS_ERR],
        },
    );
    early.iter().for_each(|wc| sends.take(wc));
    let mut receives = Receives::new(&scene.receives, wanted, seed, &[]);
    collect(w, &mut sends, &mut receives);
    let sent = sends.carried_out();
    let mut received = receives.at_least(scene.first[1 - me])..=scene.posted[1 - me].len();
    if fault != Fault::PeerKilled {
        w.peer.meet(&format!("{} {}", sent.start(), sent.end()));
        let theirs = carried_out(&w.peer.meet("what did you"));
        // It counts requests that came with the fault, too; those change nothing here.
        received = (*received.start()).max(*theirs.start()).min(*received.end())..=*received.end();
    }
    check(w, &scene, me, &w.memory.copy(me), [sent.clone(), received.clone()]);
    if fault == Fault::PeerKilled {
        // What it had received is there still; how much of its own READs had arrived nobody knows.
        let theirs = [0..=*received.end(), sent.clone()];
        check(w, &scene, 1 - me, &w.memory.copy(1 - me), theirs);
    }
    outcome(w, &scene, sent)
}

fn next_key(key: u32) -> u32 {
    key & !0xff | key.wrapping_add(1) & 0xff
}

fn carried_out(told: &str) -> RangeInclusive<usize> {
    let (from, to) = told.split_once(' ').expect("two numbers");
    from.parse().expect("a number")..=to.parse().expect("a number")
}

/// A WRITE to the start of the peer's passive half, by its region's key, that changes nothing.
fn last_request(wr_id: u64) -> Drawn {
    let posted = Posted {
        wr_id,
        opcode: IBV_WR_RDMA_WRITE,
        signalled: true,
        wc_opcode: IBV_WC_RDMA_WRITE,
        byte_len: None,
        frees: 0,
        theirs: Vec::new(),
        own: Vec::new(),
    };
    Drawn { wr: kit::request(IBV_WR_RDMA_WRITE, wr_id), local: Vec::new(), remote_at: 0, posted }
}

/// Takes completions until everything is accounted for, and then finds no more.
fn collect(w: &World, sends: &mut Sends<'_>, receives: &mut Receives<'_>) {
    let end = &w.party.end;
    let start = Instant::now();
    while !(sends.complete() && receives.complete()) {
        let (sent, received) = (kit::poll(end.send_cq), kit::poll(end.recv_cq));
        sent.iter().for_each(|wc| sends.take(wc));
        received.iter().for_each(|wc| receives.take(wc));
        if sent.is_none() && received.is_none() {
            if start.elapsed() > Duration::from_secs(20) {
                let (state, done) = (end.query().qp_state, (sends.complete(), receives.complete()));
                let counts = rnic_emu::stats::read(std::process::id()).map(|s| s.qps);
                panic!("seed {}: completions are missing, {done:?}; QP state {state}; {counts:?}", w.seed);
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    let extra = (kit::poll(end.send_cq), kit::poll(end.recv_cq));
    assert!(extra.0.is_none() && extra.1.is_none(), "seed {}: {extra:?} was not expected", w.seed);
}

/// Checks the memory of `side`: its active half against its own requests, its passive half against the other's.
fn check(w: &World, scene: &Scene, side: usize, memory: &[u8], [sent, received]: [RangeInclusive<usize>; 2]) {
    let own: Vec<_> = scene.posted[side].iter().map(|p| p.own.as_slice()).collect();
    let theirs: Vec<_> = scene.posted[1 - side].iter().map(|p| p.theirs.as_slice()).collect();
    let what = |half| format!("seed {}: {:?}, side {side}, {half} half", w.seed, scene.fault);
    let [active, passive] = scene.base[side].clone();
    check_half(&what("active"), active, &memory[..HALF], &own, sent);
    check_half(&what("passive"), passive, &memory[HALF..], &theirs, received);
}

fn outcome(w: &World, scene: &Scene, sent: RangeInclusive<usize>) -> End {
    End {
        operations: w.operations,
        fault: scene.fault,
        done_before_fault: *sent.start() as u64,
        under_way: scene.posted[1 - scene.victim].len() as u64,
    }
}
