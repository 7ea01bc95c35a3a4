//! A machine that stands still for a second in the middle of paced traffic: nothing is lost, doubled or out of order.

mod kit;

use kit::{End, Link, Options, atomic, pair, remote, request};
use rnic_emu::abi::consts::*;
use rnic_emu::stats::{self, ModelCounter, ProcessCounter};
use std::io::{BufRead, BufReader, Write, stdout};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ENV: &str = "RNIC_EMU_TEST_STALLED";
/// Requests of the run: about two seconds' worth, and more where the machine is slow.
const REQUESTS: u64 = 6_000;
const WINDOW: u64 = 12;

/// The program that is stopped: a window of requests of every kind, kept full.
#[test]
#[ignore = "main of the other process in this test"]
fn stopped_process() {
    if std::env::var_os(ENV).is_none() {
        return;
    }
    let (mut a, b) = pair(Options::default(), Link { rnr_retry: 7, ..Link::default() });
    let counter = b.addr(0).next_multiple_of(8);
    let counted = (counter - b.addr(0)) as usize;
    let (mut posted, mut sent, mut received, mut adds) = (0u64, 0, 0, 0u64);
    let start = Instant::now();
    while sent < REQUESTS || received < sends(REQUESTS) {
        while posted < REQUESTS && posted - sent < WINDOW {
            post(&mut a, &b, posted, counter);
            posted += 1;
        }
        if let Some(wc) = kit::poll(a.send_cq) {
            assert_eq!((wc.wr_id, wc.status), (sent, IBV_WC_SUCCESS), "sends complete in order, once");
            if sent % 4 == 3 {
                // The old value of the counter: every addition happened once, in order.
                let at = result(sent);
                assert_eq!(a.memory[at..at + 8], adds.to_ne_bytes(), "request {sent}");
                adds += 1;
            }
            if sent == 100 {
                say("under way");
            }
            sent += 1;
        } else if let Some(wc) = kit::poll(b.recv_cq) {
            assert_eq!((wc.wr_id, wc.status), (received, IBV_WC_SUCCESS), "receives complete in order, once");
            received += 1;
        } else {
            std::thread::sleep(Duration::from_micros(20));
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{sent} of {REQUESTS} after a minute");
    }
    assert_eq!(b.memory[counted..counted + 8], adds.to_ne_bytes());
    assert!(kit::poll(a.send_cq).is_none() && kit::poll(b.recv_cq).is_none(), "nothing more comes");
    std::thread::sleep(Duration::from_millis(20));
    let counts = stats::read(std::process::id()).expect("own counters");
    assert_eq!(counts.model(ModelCounter::Posted), REQUESTS);
    assert_eq!(counts.model(ModelCounter::Completed), REQUESTS);
    assert_eq!(counts.process(ProcessCounter::PacedCompletions), REQUESTS);
    say(&format!(
        "{} {}",
        counts.process(ProcessCounter::PacedLate),
        counts.process(ProcessCounter::PacedLagMaxNs)
    ));
}

/// Request `id`: a WRITE, a READ, a SEND, a fetch-and-add, in turn.
fn post(a: &mut End, b: &End, id: u64, counter: u64) {
    let wr = match id % 4 {
        0 => remote(IBV_WR_RDMA_WRITE, id, b.addr(4096), b.lkey()),
        1 => remote(IBV_WR_RDMA_READ, id, b.addr(4096), b.lkey()),
        2 => {
            assert_eq!(b.receive(id / 4, &mut [b.sge(8192, 64)]), 0);
            request(IBV_WR_SEND, id)
        }
        _ => atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, id, counter, b.lkey(), 1, 0),
    };
    let sge = if id % 4 == 3 { a.sge(result(id), 8) } else { a.sge(1024, 64) };
    assert_eq!(a.post(wr, &mut [sge]), 0);
}

/// Where the result of request `id` goes: a place no other of the window has.
fn result(id: u64) -> usize {
    512 + (id % 16) as usize * 8
}

/// SENDs among the first `n` requests.
fn sends(n: u64) -> u64 {
    n / 4 + u64::from(n % 4 > 2)
}

fn say(what: &str) {
    println!("> {what}");
    stdout().flush().expect("the test listens");
}

#[test]
fn a_second_of_standstill_neither_loses_nor_reorders_and_is_shown() {
    let mut child = Command::new(std::env::current_exe().expect("own path"))
        .args(["stopped_process", "--exact", "--ignored", "--nocapture"])
        .env(ENV, "1")
        .env("RNIC_EMU_PROFILE", "cx5-like")
        .env("RNIC_EMU_SPEED", "1/1000")
        .stdout(Stdio::piped())
        .spawn()
        .expect("start it");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let mut hear = || lines.find_map(|l| l.split_once("> ").map(|(_, said)| said.to_owned()));
    assert_eq!(hear().as_deref(), Some("under way"));
    let pid = child.id() as i32;
    // SAFETY: signals to our own child.
    unsafe {
        assert_eq!(libc::kill(pid, libc::SIGSTOP), 0);
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(libc::kill(pid, libc::SIGCONT), 0);
    }
    let counts = hear().expect("it ended well");
    let status = child.wait().expect("our child");
    assert!(status.success(), "{status}");
    let (late, lag) = counts.split_once(' ').expect("two numbers");
    let (late, lag): (u64, u64) = (late.parse().expect("a number"), lag.parse().expect("a number"));
    assert!(late > 0, "what came late is counted");
    assert!(lag > 500_000_000, "the standstill shows: {lag} ns");
}
