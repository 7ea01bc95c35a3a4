//! A hostile process against this one, in both roles: it sends requests, and it answers ours.
//!
//! `RNIC_EMU_FUZZ_SECONDS=600` goes on for that long instead of a second; `RNIC_EMU_FUZZ_SEED=N` starts elsewhere.

use super::target::{PEER, Target};
use super::{Knowledge, Nonsense, attack};
use crate::abi::consts::*;
use crate::device::process::Process;
use crate::wire::rendezvous;
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const ENV: &str = "RNIC_EMU_TEST_HOSTILE";

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|v| v.parse().unwrap_or_else(|_| panic!("{name}: \"{v}\" is not a number")))
}

/// Main of the hostile process; returns at once in an ordinary run of the tests.
#[test]
#[ignore = "main of the hostile process in these tests"]
fn hostile_process() {
    if std::env::var_os(ENV).is_none() {
        return;
    }
    let (slot, listener) = rendezvous::claim().expect("a slot");
    say(&slot.to_string());
    for order in stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<u64> = order.split(' ').map(|w| w.parse().expect("a number")).collect();
        let [role, seed, slot, qpn, peer_qpn, key, base, foreign_key, foreign_base] = words[..] else {
            panic!("what is {order}?")
        };
        let know = Knowledge {
            qpn: qpn as u32,
            peer_qpn: peer_qpn as u32,
            key: key as u32,
            base,
            foreign_key: foreign_key as u32,
            foreign_base,
        };
        let nonsense = &mut Nonsense(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        match role {
            0 => attack::with_requests(nonsense, &know, slot as u8),
            1 => attack::with_answers(nonsense, &know, listener.as_fd()),
            2 => attack::with_files(nonsense, slot as u8),
            _ => {
                say(if attack::with_nothing(&know, slot as u8) { "served" } else { "not served" });
                continue;
            }
        }
        say("done");
    }
}

fn say(answer: &str) {
    println!("> {answer}");
    stdout().flush().expect("the test listens");
}

struct Hostile {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Hostile {
    fn start() -> (Self, u32) {
        let mut child = Command::new(std::env::current_exe().expect("own path"))
            .args(["wire::hostile::process::hostile_process", "--exact", "--ignored", "--nocapture"])
            .env(ENV, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the hostile process");
        let (to, from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let mut hostile = Self { child, to, from: BufReader::new(from) };
        let slot = hostile.answer().parse().expect("a slot");
        (hostile, slot)
    }

    fn tell(&mut self, role: u64, seed: u64, know: &Knowledge, slot: u8) {
        let k = know;
        let order = [
            role,
            seed,
            slot.into(),
            k.qpn.into(),
            k.peer_qpn.into(),
            k.key.into(),
            k.base,
            k.foreign_key.into(),
            k.foreign_base,
        ];
        writeln!(self.to, "{}", order.map(|n| n.to_string()).join(" ")).expect("it listens");
    }

    fn is_busy(&self) -> bool {
        let mut p = libc::pollfd { fd: self.from.get_ref().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&mut p, 1, 0) == 0 }
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.from.read_line(&mut line).expect("readable"), 0, "the hostile process ended");
            if let Some((_, answer)) = line.trim_end().split_once("> ") {
                return answer.into();
            }
        }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_hostile_process_cannot_crash_us_nor_touch_what_its_keys_do_not_open() {
    let target = Target::new();
    let process = Process::current_or_new().expect("a process");
    process.wire.ensure_helper(process).expect("the helper");
    let (mut hostile, their_slot) = Hostile::start();
    let know = target.knowledge(their_slot << 16 | PEER);
    let slot = process.wire.slot();
    let time = Duration::from_secs(setting("RNIC_EMU_FUZZ_SECONDS").unwrap_or(1));
    let first = setting("RNIC_EMU_FUZZ_SEED").unwrap_or(1);
    let start = Instant::now();
    let (mut rounds, mut written, mut completed) = ([0; 3], [0; 3], 0);
    for seed in first.. {
        let role = (seed % 7).min(2) as usize;
        target.ready(know.peer_qpn);
        hostile.tell(role as u64, seed, &know, slot);
        completed += attend(&target, &mut hostile, role, seed);
        target.assert_untouched(&format!("seed {seed}, role {role}"));
        rounds[role] += 1;
        written[role] += u32::from(target.was_written());
        // Nonsense that gets nowhere proves nothing: go on until some of it was served.
        let enough = written[0] > 0 && written[1] > 0 && rounds.iter().all(|n| *n > 2);
        if start.elapsed() > time && (enough || start.elapsed() > 20 * time) {
            break;
        }
    }
    // What the last attack left in its ring may still be looked at, and fail the QP once more.
    let served = (0..5).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        target.ready(know.peer_qpn);
        hostile.tell(3, 0, &know, slot);
        hostile.answer() == "served"
    });
    assert!(served, "a peer that behaves is served after all that");
    println!("rounds {rounds:?}, of which some changed the open region {written:?}; {completed} completions");
    assert!(written[0] > 0, "some requests were served");
    assert!(written[1] > 0 && completed > 0, "some answers were taken");
}

/// What the program does meanwhile: it polls, and (where the peer answers) posts. Returns the completions of its own
/// requests, each of which comes at most once.
fn attend(target: &Target, hostile: &mut Hostile, role: usize, seed: u64) -> u32 {
    const FIRST: u64 = 1000;
    let mut outstanding = std::collections::BTreeSet::new();
    let mut completed = 0;
    if role == 1 {
        let nonsense = &mut Nonsense(seed);
        for id in FIRST..FIRST + 16 {
            let opcode = nonsense.among(&[
                IBV_WR_RDMA_READ,
                IBV_WR_RDMA_READ,
                IBV_WR_RDMA_WRITE,
                IBV_WR_SEND,
                IBV_WR_ATOMIC_FETCH_AND_ADD,
            ]);
            let length =
                if opcode == IBV_WR_ATOMIC_FETCH_AND_ADD { 8 } else { nonsense.among(&[0, 8, 1000, 40_000]) };
            target.post(id, opcode, length);
            outstanding.insert(id);
        }
    }
    while hostile.is_busy() {
        while let Some(wc) = target.poll() {
            if wc.wr_id >= FIRST {
                assert!(outstanding.remove(&wc.wr_id), "seed {seed}: {wc:?} was not outstanding");
                completed += 1;
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    assert_eq!(hostile.answer(), "done");
    completed
}
