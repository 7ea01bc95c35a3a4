//! A second process with an endpoint of its own, told what to do over a pipe.

use super::{End, Link, Options, wait};
use rnic_emu::abi::*;
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The test function that is the other process' main, in every test file that uses it.
pub const ROLE: &str = "other_process";
const ENV: &str = "RNIC_EMU_TEST_ROLE";

/// The other process, seen from the test.
pub struct Other {
    pub child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    pub qpn: u32,
    pub addr: u64,
    pub rkey: u32,
}

impl Other {
    /// Starts it and connects `end` with its endpoint.
    pub fn connected(end: &End, link: Link) -> Self {
        let mut other = Self::start(end.kind());
        end.to_init();
        end.to_rtr(other.qpn, 11, link);
        other.tell(&format!("connect {} 22 11", end.qpn()));
        end.to_rts(22, link);
        other
    }

    /// Starts it with an endpoint in INIT.
    pub fn start(kind: u32) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("own path"))
            .args([ROLE, "--exact", "--ignored", "--nocapture"])
            .env(ENV, kind.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the other process");
        let (to, from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let mut other = Self { child, to, from: BufReader::new(from), qpn: 0, addr: 0, rkey: 0 };
        let hello = other.answer();
        let mut words = hello.split(' ').map(|w| w.parse::<u64>().expect("a number"));
        other.qpn = words.next().expect("QPN") as u32;
        other.addr = words.next().expect("address");
        other.rkey = words.next().expect("key") as u32;
        other
    }

    /// Gives an order and waits for its answer.
    pub fn tell(&mut self, order: &str) -> String {
        self.begin(order);
        self.answer()
    }

    /// Gives an order whose answer is fetched later.
    pub fn begin(&mut self, order: &str) {
        writeln!(self.to, "{order}").expect("the other process listens");
    }

    /// The answer to the oldest order begun.
    pub fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.from.read_line(&mut line).expect("readable"), 0, "the other process ended");
            // The test harness prints lines of its own.
            if let Some((_, answer)) = line.trim_end().split_once("> ") {
                return answer.into();
            }
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Main of the other process; returns at once in an ordinary run of the tests.
pub fn main() {
    let Some(kind) = std::env::var(ENV).ok().and_then(|k| k.parse().ok()) else { return };
    let mut end = End::new(Options { kind, memory: 16 << 20, ..Options::default() });
    end.to_init();
    say(&format!("{} {} {}", end.qpn(), end.addr(0), end.lkey()));
    for order in stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = order.split(' ').collect();
        let n = |i: usize| words[i].parse::<u64>().expect("a number") as usize;
        match words[0] {
            "connect" => {
                let link = Link { rnr_retry: 7, ..Link::default() };
                end.to_rtr(n(1) as u32, n(2) as u32, link);
                end.to_rts(n(3) as u32, link);
                say("connected");
            }
            "receive" => say(&end.receive(n(1) as u64, &mut [end.sge(n(2), n(3) as u32)]).to_string()),
            "completion" => say(&wc(&wait(if words[1] == "recv" { end.recv_cq } else { end.send_cq }))),
            "state" => say(&end.query().qp_state.to_string()),
            "sum" => say(&sum(&end.memory[n(1)..n(1) + n(2)]).to_string()),
            "fill" => {
                fill(&mut end.memory[n(1)..n(1) + n(2)], n(3) as u64);
                say("filled");
            }
            "write" => {
                let wr = super::remote(consts::IBV_WR_RDMA_WRITE, n(1) as u64, n(2) as u64, n(3) as u32);
                say(&end.post(wr, &mut [end.sge(n(4), n(5) as u32)]).to_string());
            }
            // Polls without pause, so that the device leaves the rings to the program, and then hangs without calling
            // verbs any more.
            "hang" => {
                for _ in 0..10_000 {
                    assert!(super::poll(end.recv_cq).is_none());
                }
                say("hanging");
                let until = Instant::now() + Duration::from_millis(n(1) as u64);
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
                say("hung");
            }
            other => panic!("what is {other}?"),
        }
    }
}

fn say(answer: &str) {
    println!("> {answer}");
    stdout().flush().expect("the test listens");
}

fn wc(wc: &ibv_wc) -> String {
    format!("{} {} {}", wc.wr_id, wc.status, wc.byte_len)
}

/// A sum that notices bytes out of place.
pub fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(1, |s: u64, b| s.wrapping_mul(0x100_0000_01b3).wrapping_add(u64::from(*b)))
}

/// Bytes that differ at every place.
pub fn fill(bytes: &mut [u8], seed: u64) {
    let mut x = seed | 1;
    for b in bytes {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *b = (x >> 56) as u8;
    }
}
