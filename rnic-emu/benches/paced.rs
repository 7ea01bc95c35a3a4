//! Whether paced mode runs at the rate of virtual time: `cargo xtask bench paced [--json] [--speed S] [--requests N]`.
//!
//! The same loads, which are the traffic of the demo workloads, are run twice: by the model alone in virtual time, and by
//! this program through verbs on the emulated device at a speed. The rates should agree to within 5 %.

#[path = "../tests/kit/mod.rs"]
mod kit;

use kit::{End, Link, Options, pair};
use rnic_emu::abi::{consts::*, *};
use rnic_emu::device::speed::Speed;
use rnic_emu::model::{LoadSpec, Op, Profile, drive};
use rnic_emu::stats::{self, ProcessCounter};
use serde_json::{Value, json};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Where the two may differ at most.
const WITHIN: f64 = 0.05;
/// Share of a processor below which the machine was too busy to say anything: this program polls without pause.
const QUIET: f64 = 0.95;
/// A load that has not ended by then is given up.
const PATIENCE: Duration = Duration::from_secs(120);

struct Args {
    json: bool,
    speed: String,
    profile: String,
    requests: u64,
}

fn main() {
    let args = arguments();
    // SAFETY: before any other thread or device of this process.
    unsafe {
        std::env::set_var("RNIC_EMU_PROFILE", &args.profile);
        std::env::set_var("RNIC_EMU_SPEED", &args.speed);
    }
    let speed = Speed::parse("--speed", &args.speed).unwrap_or_else(|e| refuse(&e.to_string()));
    let profile = Profile::builtin(&args.profile).unwrap_or_else(|e| refuse(&e.to_string()));
    let mut rows = Vec::new();
    if !args.json {
        println!(
            "{:<34} {:>13} {:>13} {:>11} {:>8} {:>8}",
            "load", "virtual", "paced", "difference", "late", "cpu"
        );
    }
    for (name, spec) in loads() {
        let spec = LoadSpec { measure: args.requests, warmup: args.requests / 4, ..spec };
        let modelled = drive(&profile, &spec).expect("a valid load").ops_per_s;
        let before = late();
        let Measured { rate, cpu } = run(&spec);
        let measured = rate / speed.ratio();
        let late = (late() - before) as f64 / (spec.measure + spec.warmup) as f64;
        let difference = measured / modelled - 1.0;
        if !args.json {
            let percent = 100.0 * difference;
            let (m, p) = (modelled / 1e6, measured / 1e6);
            let mark = match difference.abs() > WITHIN {
                _ if cpu < QUIET => "  machine busy",
                true => "  beyond 5 %",
                false => "",
            };
            println!(
                "{name:<34} {m:>9.3} M/s {p:>9.3} M/s {percent:>+9.1} % {:>6.1} % {:>6.0} %{mark}",
                100.0 * late,
                100.0 * cpu
            );
        }
        rows.push(json!({ "load": name, "virtual_per_s": modelled, "paced_per_s": measured,
            "difference": difference, "late_share": late, "cpu_share": cpu }));
    }
    let above = |row: &Value, key: &str, limit: f64| row[key].as_f64().is_none_or(|v| v.abs() > limit);
    let quiet: Vec<&Value> = rows.iter().filter(|r| above(r, "cpu_share", QUIET)).collect();
    let beyond = quiet.iter().filter(|r| above(r, "difference", WITHIN)).count();
    if args.json {
        println!("{:#}", Value::from(rows));
    } else {
        let (counted, busy) = (quiet.len(), rows.len() - quiet.len());
        println!("{beyond} of {counted} beyond 5 %, at speed {} on {}", args.speed, args.profile);
        if busy > 0 {
            println!(
                "{busy} say nothing: the machine gave this program less than {:.0} % of a processor",
                100.0 * QUIET
            );
        }
    }
}

/// Traffic of the workloads that the demo shows, slow way and fast way.
fn loads() -> Vec<(&'static str, LoadSpec)> {
    let base = LoadSpec { outstanding: 16, ..LoadSpec::default() };
    vec![
        ("WRITE 64 B, one at a time", LoadSpec { bytes: 64, outstanding: 1, ..base }),
        ("WRITE 64 B, 16 outstanding", LoadSpec { bytes: 64, ..base }),
        (
            "WRITE 64 B, one in 16 signalled",
            LoadSpec { bytes: 64, outstanding: 64, signal_every: 16, ..base },
        ),
        ("WRITE 64 B, lists of 16", LoadSpec { bytes: 64, outstanding: 64, list: 16, ..base }),
        ("WRITE 32 B inline", LoadSpec { bytes: 32, inline: true, ..base }),
        ("WRITE 64 B over 8 QPs", LoadSpec { bytes: 64, qps: 8, outstanding: 64, ..base }),
        ("WRITE 4 KiB, 16 outstanding", LoadSpec { bytes: 4096, ..base }),
        ("READ 64 B, 16 outstanding", LoadSpec { op: Op::Read, bytes: 64, ..base }),
        ("SEND 64 B, 16 outstanding", LoadSpec { op: Op::Send, bytes: 64, ..base }),
        ("fetch-and-add, 16 outstanding", LoadSpec { op: Op::FetchAdd, bytes: 8, ..base }),
    ]
}

/// What a run through verbs came to.
struct Measured {
    /// Requests per real second.
    rate: f64,
    /// Share of a processor this thread had meanwhile.
    cpu: f64,
}

/// Runs a load through verbs.
fn run(spec: &LoadSpec) -> Measured {
    let mut options = Options { cqe: 1024, ..Options::default() };
    (options.cap.max_send_wr, options.cap.max_recv_wr) = (128, 128);
    // Packets as long as those of virtual time.
    let link = Link {
        path_mtu: IBV_MTU_4096,
        rnr_retry: 7,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        ..Link::default()
    };
    let mut pairs = vec![pair(options, link)];
    for _ in 1..spec.qps {
        let beside = sharing_queues(&pairs[0], options, link);
        pairs.push(beside);
    }
    if spec.op == Op::Send {
        pairs.iter().for_each(|(_, b)| (0..128).for_each(|_| receive(b, spec.bytes)));
    }
    let total = spec.warmup + spec.measure;
    let (mut credits, mut posted, mut done) = (spec.outstanding, 0, 0);
    let mut lists: Vec<Listed> = pairs.iter().map(|pair| Listed::new(pair, spec)).collect();
    let (mut start, mut cpu) = (Instant::now(), cpu_seconds());
    let begun = start;
    let mut measuring = false;
    for turn in 0.. {
        if credits >= spec.list && posted < total + u64::from(spec.outstanding) {
            credits -= spec.list;
            posted += u64::from(spec.list);
            lists[turn % pairs.len()].post();
        }
        if credits < spec.list {
            while let Some(wc) = kit::poll(pairs[0].0.send_cq) {
                assert_eq!(wc.status, IBV_WC_SUCCESS);
                credits += spec.signal_every;
                done += u64::from(spec.signal_every);
            }
            while spec.op == Op::Send && kit::poll(pairs[0].1.recv_cq).is_some() {
                receive(&pairs[0].1, spec.bytes);
            }
        }
        if !measuring && done >= spec.warmup {
            (measuring, start, cpu) = (true, Instant::now(), cpu_seconds());
        }
        if done >= total {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{done} of {total} requests done after {PATIENCE:?}");
    }
    let took = start.elapsed().as_secs_f64();
    let measured = Measured { rate: (done - spec.warmup) as f64 / took, cpu: (cpu_seconds() - cpu) / took };
    // Dropped in turn: those beside the first have their completions in its queues.
    pairs.reverse();
    pairs.into_iter().for_each(drop);
    measured
}

/// A pair whose completions come to the queues of `first`, as one thread of a program has one CQ for all its QPs.
fn sharing_queues(first: &(End, End), options: Options, link: Link) -> (End, End) {
    let with_queues_of = |other: &End| {
        let mut end = End::new(options);
        // SAFETY: a live QP, replaced at once.
        unsafe {
            assert_eq!(rnic_emu::control::qp::destroy_qp(end.qp), 0);
            end.qp = kit::create_qp(end.pd, other.send_cq, other.recv_cq, options);
        }
        end.to_init();
        end
    };
    let (a, b) = (with_queues_of(&first.0), with_queues_of(&first.1));
    a.to_rtr(b.qpn(), 7, link);
    b.to_rtr(a.qpn(), 7, link);
    a.to_rts(7, link);
    b.to_rts(7, link);
    (a, b)
}

/// Processor time of this thread so far, in seconds.
fn cpu_seconds() -> f64 {
    // SAFETY: plain data, filled in by the call.
    unsafe {
        let mut t: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t);
        t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
    }
}

fn receive(end: &End, bytes: u32) {
    assert_eq!(end.receive(0, &mut [end.sge(0, bytes)]), 0);
}

/// The list that one QP posts over and over, made beforehand: virtual time knows of no time of the program's own.
struct Listed {
    qp: *mut ibv_qp,
    /// What the requests point to.
    _sge: Box<ibv_sge>,
    requests: Vec<ibv_send_wr>,
    signal_every: u32,
    /// Requests since the last signalled one.
    silent: u32,
}

impl Listed {
    fn new((a, b): &(End, End), spec: &LoadSpec) -> Self {
        let opcode = match spec.op {
            Op::Read => IBV_WR_RDMA_READ,
            Op::Send => IBV_WR_SEND,
            Op::FetchAdd => IBV_WR_ATOMIC_FETCH_AND_ADD,
            _ => IBV_WR_RDMA_WRITE,
        };
        let mut sge = Box::new(a.sge(0, spec.bytes));
        // Page-aligned or not, the start of the buffer may lie between two words.
        let aligned = b.addr(0).next_multiple_of(8);
        let one = || {
            let mut wr = match spec.op {
                Op::FetchAdd => kit::atomic(opcode, 0, aligned, b.lkey(), 1, 0),
                _ => kit::remote(opcode, 0, aligned, b.lkey()),
            };
            wr.send_flags = if spec.inline { IBV_SEND_INLINE } else { 0 };
            (wr.sg_list, wr.num_sge) = (&raw mut *sge, 1);
            wr
        };
        let mut requests: Vec<ibv_send_wr> = std::iter::repeat_with(one).take(spec.list as usize).collect();
        let mut next = null_mut();
        for wr in requests.iter_mut().rev() {
            wr.next = next;
            next = wr;
        }
        Self { qp: a.qp, _sge: sge, requests, signal_every: spec.signal_every, silent: 0 }
    }

    fn post(&mut self) {
        for wr in &mut self.requests {
            self.silent += 1;
            let signalled = self.silent.is_multiple_of(self.signal_every);
            wr.send_flags &= !IBV_SEND_SIGNALED;
            wr.send_flags |= if signalled { IBV_SEND_SIGNALED } else { 0 };
        }
        let mut bad = null_mut();
        // SAFETY: a live QP and a valid list.
        let r = unsafe {
            let post = (*(*self.qp).context).ops.post_send.expect("filled");
            post(self.qp, self.requests.as_mut_ptr(), &mut bad)
        };
        assert_eq!(r, 0);
    }
}

/// Completions so far that the machine was too slow for.
fn late() -> u64 {
    stats::read(std::process::id()).map_or(0, |s| s.process(ProcessCounter::PacedLate))
}

fn arguments() -> Args {
    let mut args = Args { json: false, speed: "1/64".into(), profile: "cx5-like".into(), requests: 100_000 };
    let mut given = std::env::args().skip(1);
    while let Some(arg) = given.next() {
        let mut value = || given.next().unwrap_or_else(|| refuse(&format!("\"{arg}\" needs a value")));
        match arg.as_str() {
            "--json" => args.json = true,
            "--speed" => args.speed = value(),
            "--profile" => args.profile = value(),
            "--requests" => {
                let n = value();
                args.requests =
                    n.parse().unwrap_or_else(|_| refuse(&format!("\"{n}\" is not a number of requests")));
            }
            // cargo bench adds arguments of its own.
            "--bench" => {}
            other => refuse(&format!("\"{other}\" is none of --json, --speed, --profile, --requests")),
        }
    }
    args
}

fn refuse(what: &str) -> ! {
    eprintln!("paced: {what}");
    std::process::exit(2)
}
