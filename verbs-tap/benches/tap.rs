//! What the tap costs a program per call, by the same calls with and without it.
//!
//! `cargo xtask bench tap`. The provider is made of memory and does nearly nothing, so a call through it is the
//! cheapest a real one could be; figures are the median of many short rounds, with and without taken in turn.
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "work requests and completions on the stack of the benchmark"
)]

#[path = "../tests/fake/mod.rs"]
mod fake;

use std::hint::black_box;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use fake::abi::{Context, Wc, wr};
use fake::{FakeCq, FakeQp, adopt, chain, context, cq, create_ex, qp};
use probe_common::messages::{CELLS, VARIABLE};
use probe_common::site::Rates;
use probe_user::tap::Tap;

const ROUNDS: usize = 401;
const CALLS: u32 = 2_000;

fn main() {
    // `cargo test --benches` and `--list` only want to know that it starts.
    if std::env::args().any(|a| a == "--test" || a == "--list") {
        return;
    }
    let (plain, tapped) = (context(), context());
    adopt(tapped);
    let tap = Tap::of(std::process::id()).expect("own process").expect("a tap");
    if std::env::var_os(VARIABLE).is_some() {
        println!("with a log of single work requests:");
        posts(plain, tapped, 1);
        posts(plain, tapped, 16);
        polls(plain, tapped, 0);
        polls(plain, tapped, 16);
        extended(plain, tapped);
        return;
    }
    println!("ns per call, median of {ROUNDS} rounds of {CALLS} calls; the provider's own cost subtracted");
    println!("{:<44}{:>10}{:>10}{:>10}", "call", "without", "with", "the tap");
    posts(plain, tapped, 1);
    posts(plain, tapped, 16);
    posts(plain, tapped, 64);
    many_queue_pairs(plain, tapped);
    polls(plain, tapped, 0);
    polls(plain, tapped, 16);
    extended(plain, tapped);
    tap.ask(Rates::one_in([6; 4]));
    println!("with one call in 64 at a probe site, no probe attached:");
    posts(plain, tapped, 1);
    tap.ask(Rates::ALL);
    println!("with every call at a probe site, no probe attached:");
    posts(plain, tapped, 1);
    tap.ask(Rates::NONE);
    // The log is made with the counters, once a process.
    let again = std::env::current_exe()
        .and_then(|program| std::process::Command::new(program).env(VARIABLE, CELLS.to_string()).status());
    assert!(again.expect("this program runs").success());
}

/// Times both in turn, so that both see the same clock speed and the same neighbours.
fn compare(name: &str, mut without: impl FnMut(), mut with: impl FnMut()) {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        times[0].push(time(&mut without));
        times[1].push(time(&mut with));
    }
    let [without, with] = times.map(|mut t| {
        t.sort_by(f64::total_cmp);
        t[t.len() / 2]
    });
    println!("{name:<44}{without:>10.2}{with:>10.2}{:>10.2}", with - without);
}

fn time(call: &mut impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..CALLS {
        call();
    }
    start.elapsed().as_nanos() as f64 / f64::from(CALLS)
}

fn posts(plain: *mut Context, tapped: *mut Context, count: usize) {
    let (wrs, _sge) = chain(count, 64, |n| if n + 1 == count { fake::abi::SEND_SIGNALED } else { 0 });
    let post = |qp: &'static FakeQp| {
        let first = wrs.as_ptr();
        move || {
            let mut bad = ptr::null_mut();
            black_box(qp.post_send(black_box(first), &mut bad));
        }
    };
    compare(&format!("post_send, {count} WR"), post(qp(plain, 1)), post(qp(tapped, 1)));
}

fn many_queue_pairs(plain: *mut Context, tapped: *mut Context) {
    let (wrs, _sge) = chain(1, 64, |_| 0);
    let post = |context| {
        let first = wrs.as_ptr();
        let qps: Vec<&FakeQp> = (0..256).map(|n| qp(context, n)).collect();
        let next = AtomicUsize::new(0);
        move || {
            let n = next.load(Relaxed);
            next.store((n + 1) % qps.len(), Relaxed);
            let mut bad = ptr::null_mut();
            black_box(qps[n].post_send(black_box(first), &mut bad));
        }
    };
    compare("post_send, 1 WR, 256 QPs in turn", post(plain), post(tapped));
}

fn polls(plain: *mut Context, tapped: *mut Context, found: i64) {
    let poll = |cq: &'static FakeCq| {
        let mut wc: [Wc; 16] = unsafe { std::mem::zeroed() };
        move || {
            cq.ready.store(found, Relaxed);
            black_box(cq.poll(black_box(&mut wc)));
        }
    };
    let name = if found == 0 { "poll_cq, empty".to_owned() } else { format!("poll_cq, {found} completions") };
    compare(&name, poll(cq(plain, 1)), poll(cq(tapped, 1)));
}

fn extended(plain: *mut Context, tapped: *mut Context) {
    let make = |context| {
        let mut attr: fake::abi::QpInitAttrEx = unsafe { std::mem::zeroed() };
        attr.comp_mask = fake::abi::INIT_SEND_OPS_FLAGS;
        let made = create_ex(context, fake::abi::before_context::CREATE_QP_EX, (&raw mut attr).cast());
        unsafe { &*(made as *const FakeQp) }
    };
    let post = |qp: &'static FakeQp| {
        move || {
            qp.extended(wr::START);
            qp.extended3(wr::RDMA_WRITE, 1, 2, 3);
            qp.extended3(wr::SET_SGE, 1, 0x1000, 64);
            black_box(qp.extended(wr::COMPLETE));
        }
    };
    compare("wr_start, one WR, one SGE, wr_complete", post(make(plain)), post(make(tapped)));
}
