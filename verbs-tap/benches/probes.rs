//! What watching a post costs, by each of the ways it can be watched, in one run on one machine.
//!
//! `cargo xtask bench probes` (root). The program watched is this one, posting to a provider made of memory that does
//! nearly nothing; the probes are the profiler's own programs at the tap's site and at functions made for it, and
//! bpftrace's for the same question. Figures are medians of many short rounds, without what the call itself takes: a round
//! as long as a scheduler's time slice would hold the time of other programs on a busy machine. All rounds of a row take
//! some 30 ms, in which a machine shared with others may be several times slower: the table is measured several times
//! over, and the middle of each row is shown.
#![expect(clippy::undocumented_unsafe_blocks, reason = "work requests and naked functions of the benchmark")]

#[path = "../tests/fake/mod.rs"]
mod fake;

use std::arch::naked_asm;
use std::fmt::Write as _;
use std::hint::black_box;
use std::os::fd::{AsFd, AsRawFd as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{ptr, thread};

use fake::abi::{SEND_SIGNALED, SendWr, Sge, opcode};
use fake::{FakeQp, adopt, context, qp, tap_symbol};
use probe_common::counters::source;
use probe_common::site::Rates;
use probe_user::attach::{Link, Pmu, Programs, Setting, attach_many};
use probe_user::data_path::Targets;
use probe_user::tap::Tap;
use probe_user::{contexts, kernel, target};

/// So often the whole table is measured.
const PASSES: usize = 3;
const ROUNDS: usize = 301;
/// So long a round takes at least.
const ROUND: Duration = Duration::from_micros(100);
/// The tap's site hands over the chain, and its program walks it.
const WALKS: u64 = 1 << 16;
const TAP: u64 = source::TAP as u64;

fn main() {
    // `cargo test --benches` and `--list` only want to know that it starts.
    if std::env::args().any(|a| a == "--test" || a == "--list") {
        return;
    }
    if let Err(why) = bench() {
        eprintln!("probes: {why}");
        std::process::exit(1);
    }
}

fn bench() -> Result<(), String> {
    let mut at = Bench::new()?;
    let (plain, tapped) = (context(), context());
    adopt(tapped);
    let tap = Tap::of(std::process::id()).map_err(|e| e.to_string())?.ok_or("no tap in this process")?;
    // What counts at a queue pair's place is decided at its first hit: walks have one of their own.
    let (plain, tapped, walked_qp) = (qp(plain, 1), qp(tapped, 1), qp(tapped, 2));
    let mut table = Table::new();
    for _ in 0..PASSES {
        measure(&mut at, &tap, [plain, tapped, walked_qp], &mut table)?;
    }

    let bare_count = table.of("bpftrace at the site: @ = count()");
    table.print(bare_count);
    println!("aims of this table:");
    let walk = table.of("walked chain of 1, at the site");
    table.aim("tap unprobed, ns a call", table.of("the tap, unprobed"), 10.0);
    table.aim(
        "digested site by bpftrace's bare count()",
        table.of("digested site, every call") / bare_count,
        1.0,
    );
    table.aim("walk of one WR by bpftrace's bare count()", walk / bare_count, 1.5);
    table.aim(
        "walk of 64 contiguous WRs by that of one",
        table.of("walked chain of 64, at the site") / walk,
        6.0,
    );
    Ok(())
}

/// Measures every row of the table once.
fn measure(
    at: &mut Bench,
    tap: &Tap,
    [plain, tapped, walked_qp]: [&'static FakeQp; 3],
    table: &mut Table,
) -> Result<(), String> {
    let site = tap_symbol("verbs_tap_posted");
    tap.ask(Rates::NONE);
    let chains = [1, 16, 64].map(Chain::side_by_side);
    let [one, _, _] = &chains;
    let apart = Chain::apart(64);
    table.row("nothing: the call itself", post(plain, one));
    // What the tap takes is no part of what the probe at its site does.
    let at_site = |chain: &Chain| post(tapped, chain) - post(plain, chain);
    let at_walk = |chain: &Chain| post(walked_qp, chain) - post(plain, chain);
    let counted = chains.each_ref().map(at_site);
    table.row("the tap, unprobed", counted[0]);
    table.row("  its count of a chain of 16", counted[1]);
    table.row("  its count of a chain of 64", counted[2]);
    let counted_apart = at_site(&apart);
    {
        let _probe = at.probe("site_posted", site, false, TAP)?;
        tap.ask(Rates::one_in([6; 4]));
        table.row("the tap, one in 64 at its probed site", at_site(one));
        tap.ask(Rates::ALL);
        table.row("digested site, every call", at_site(one) - counted[0]);
    }
    {
        let _probe = at.probe("site_posted", site, false, TAP | WALKS)?;
        for (n, chain) in chains.iter().enumerate() {
            let walked = at_walk(chain) - counted[n];
            table.row(&format!("walked chain of {}, at the site", chain.wrs), walked);
        }
        table.row("  of 64 lying apart, at the site", at_walk(&apart) - counted_apart);
    }
    let symbol = format!("{}:verbs_tap_posted", fake::library().display());
    let bare = bpftrace(&symbol, "@ = count();", || at_site(one), counted[0])?;
    table.row("bpftrace at the site: @ = count()", bare);
    let same_question =
        "@n[arg0] = count(); @wrs[arg0] = sum(arg1); @bytes[arg0] = sum(arg2); @flags[arg0, arg3] = count();";
    let same = bpftrace(&symbol, same_question, || at_site(one), counted[0])?;
    table.row("bpftrace at the site: calls, WRs, bytes, flags by QP", same);
    tap.ask(Rates::NONE);

    let function = |f: PostSend| {
        let call = move |chain: &Chain| time(|| f(black_box(0x1000), chain.first(), 0));
        (f as usize, call)
    };
    let (push, call_push) = function(push_first);
    let (lea, call_lea) = function(lea_first);
    let (push_bare, lea_bare) = (call_push(one), call_lea(one));
    {
        let _entry = at.probe("post_send_enter", push, false, 0)?;
        for chain in &chains {
            table.row(&format!("emulated entry, chain of {}", chain.wrs), call_push(chain) - push_bare);
        }
        table.row("  of 64 lying apart, at the entry", call_push(&apart) - push_bare);
        let _leave = at.probe("post_send_leave", push, true, 0)?;
        table.row("emulated entry, chain of 1, with its return", call_push(one) - push_bare);
    }
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let at_function = |name: &str| format!("{}:{name}", own.display());
    let emulated = bpftrace(&at_function("bench_push_first"), "@ = count();", || call_push(one), push_bare)?;
    table.row("bpftrace at the emulated entry: @ = count()", emulated);
    {
        let _entry = at.probe("post_send_enter", lea, false, 0)?;
        table.row("single-stepped entry, chain of 1", call_lea(one) - lea_bare);
    }
    let stepped = bpftrace(&at_function("bench_lea_first"), "@ = count();", || call_lea(one), lea_bare)?;
    table.row("bpftrace at the single-stepped entry: @ = count()", stepped);
    Ok(())
}

/// Programs of the profiler, with this process as what is watched.
struct Bench {
    programs: Programs,
    pmu: Pmu,
    _targets: Targets,
}

impl Bench {
    fn new() -> Result<Self, String> {
        let offsets = kernel::Offsets::default().known;
        let setting = Setting { whole_host: false, data_path: true, offsets };
        let mut programs = Programs::load(&setting).map_err(|e| e.to_string())?;
        let targets = Targets::new(programs.take_targets().map_err(|e| e.to_string())?);
        let pid = std::process::id();
        let start_ns = target::start_ns_of(pid).ok_or("no start time of this process")?;
        targets.watch(pid, start_ns).map_err(|e| e.to_string())?;
        let pmu = Pmu::read("uprobe").map_err(|e| e.to_string())?;
        Ok(Self { programs, pmu, _targets: targets })
    }

    /// Attaches a program the way the profiler does on this kernel.
    fn probe(&mut self, program: &str, function: usize, returns: bool, cookie: u64) -> Result<Link, String> {
        let place = contexts::code_at(std::process::id(), function as u64).ok_or("no such code")?;
        let file = place.file.open().map_err(|e| e.to_string())?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        if let Some(loaded) = self.programs.load_uprobe_for_many(program) {
            let loaded = loaded.map_err(|e| e.to_string())?;
            let places = [(place.offset, cookie)];
            return attach_many(loaded.as_fd(), &path, &places, returns).map_err(|e| e.to_string());
        }
        let loaded = self.programs.load_uprobe(program).map_err(|e| e.to_string())?;
        self.pmu.attach_file(loaded.as_fd(), &path, place.offset, returns, cookie).map_err(|e| e.to_string())
    }
}

/// What a script of bpftrace's at a function costs a call, in ns.
fn bpftrace(at: &str, script: &str, call: impl Fn() -> f64, bare: f64) -> Result<f64, String> {
    /// It compiles its script, attaches, and says nothing of when it is done.
    const PATIENCE: Duration = Duration::from_secs(60);
    /// A hit costs more than this, and a call without one does not vary so much.
    const HIT_NS: f64 = 60.0;
    let script = format!("uprobe:{at} {{ {script} }}");
    let mut tracer = Command::new("bpftrace");
    tracer.args(["-e", &script]).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut tracer = Stopped(tracer.spawn().map_err(|e| format!("cannot run bpftrace: {e}"))?);
    let began = Instant::now();
    while call() - bare < HIT_NS {
        if began.elapsed() > PATIENCE {
            return Err(format!("bpftrace does not attach: {script}"));
        }
        if let Ok(Some(status)) = tracer.0.try_wait() {
            let said = tracer.0.stderr.take().and_then(|stderr| std::io::read_to_string(stderr).ok());
            return Err(format!("bpftrace ended ({status}): {script}: {}", said.unwrap_or_default().trim()));
        }
        thread::sleep(Duration::from_millis(50));
    }
    let ns = call() - bare;
    drop(tracer);
    // Its probe is gone once the call costs what it did.
    let began = Instant::now();
    while call() - bare > HIT_NS && began.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(50));
    }
    Ok(ns)
}

struct Stopped(Child);

impl Drop for Stopped {
    fn drop(&mut self) {
        unsafe { libc::kill(self.0.id().cast_signed(), libc::SIGINT) };
        let _ = self.0.wait();
    }
}

/// `struct ibv_send_wr`, whole.
#[repr(C)]
struct WholeWr {
    start: SendWr,
    remote_addr: u64,
    rest: [u64; 10],
}

const _: () = assert!(size_of::<WholeWr>() == 128);

/// A chain of work requests as programs keep them, each with a buffer of its own; the last one is signalled.
struct Chain {
    wrs: usize,
    /// A work request at each of these.
    places: Vec<WholeWr>,
    _buffers: Vec<Sge>,
}

impl Chain {
    /// In one array.
    fn side_by_side(wrs: usize) -> Self {
        Self::new(wrs, 1)
    }

    /// Each with something else behind it.
    fn apart(wrs: usize) -> Self {
        Self::new(wrs, 2)
    }

    fn new(wrs: usize, step: usize) -> Self {
        const BYTES: u32 = 64;
        let buffer = |n: usize| n as u64 * u64::from(BYTES);
        let mut buffers: Vec<Sge> =
            (0..wrs).map(|n| Sge { addr: 0x1000 + buffer(n), length: BYTES, lkey: 1 }).collect();
        let list = buffers.as_mut_ptr();
        let place = |place: usize| WholeWr {
            start: SendWr {
                wr_id: place as u64,
                next: ptr::null_mut(),
                sg_list: unsafe { list.add(place / step) },
                num_sge: 1,
                opcode: opcode::RDMA_WRITE,
                send_flags: if place / step + 1 == wrs { SEND_SIGNALED } else { 0 },
            },
            remote_addr: 0x10_0000 + buffer(place / step),
            rest: [0; 10],
        };
        let mut places: Vec<WholeWr> = (0..wrs * step).map(place).collect();
        let at = places.as_mut_ptr();
        for n in 1..wrs {
            places[(n - 1) * step].start.next = unsafe { at.add(n * step) }.cast();
        }
        Self { wrs, places, _buffers: buffers }
    }

    fn first(&self) -> *const SendWr {
        black_box(self.places.as_ptr().cast())
    }
}

/// Nanoseconds of a post of a chain.
fn post(qp: &'static FakeQp, chain: &Chain) -> f64 {
    time(|| {
        let mut bad = ptr::null_mut();
        qp.post_send(chain.first(), &mut bad)
    })
}

/// Nanoseconds of a call.
fn time<T>(call: impl Fn() -> T) -> f64 {
    let of = |calls: u32| {
        let start = Instant::now();
        for _ in 0..calls {
            black_box(call());
        }
        start.elapsed()
    };
    let mut calls = 1;
    while of(calls) < ROUND {
        calls *= 2;
    }
    let round = |_| of(calls).as_nanos() as f64 / f64::from(calls);
    middle(&(0..ROUNDS).map(round).collect::<Vec<f64>>())
}

fn middle(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

type PostSend = extern "C" fn(usize, *const SendWr, usize) -> i32;

#[unsafe(naked)]
#[unsafe(export_name = "bench_push_first")]
extern "C" fn push_first(_: usize, _: *const SendWr, _: usize) -> i32 {
    naked_asm!(".p2align 6", "push rbx", "pop rbx", "xor eax, eax", "ret")
}

#[unsafe(naked)]
#[unsafe(export_name = "bench_lea_first")]
extern "C" fn lea_first(_: usize, _: *const SendWr, _: usize) -> i32 {
    naked_asm!(".p2align 6", "lea rax, [rdi + 1]", "xor eax, eax", "ret")
}

struct Table {
    /// Each with what its passes measured, in ns.
    rows: Vec<(String, Vec<f64>)>,
}

impl Table {
    fn new() -> Self {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        println!("kernel {}, load {}", kernel.trim(), load.trim());
        println!(
            "ns a call, middle of {PASSES} medians of {ROUNDS} rounds of {ROUND:?}; in the last column, of bpftrace's \
             count() at the same site"
        );
        Self { rows: Vec::new() }
    }

    fn row(&mut self, name: &str, ns: f64) {
        match self.rows.iter_mut().find(|(of, _)| of == name) {
            Some((_, passes)) => passes.push(ns),
            None => self.rows.push((name.to_owned(), vec![ns])),
        }
    }

    fn of(&self, name: &str) -> f64 {
        self.rows.iter().find(|(of, _)| of == name).map_or(f64::NAN, |(_, passes)| middle(passes))
    }

    fn print(&self, count_ns: f64) {
        let mut text = String::new();
        for (name, passes) in &self.rows {
            assert_eq!(passes.len(), PASSES, "two rows named {name:?}");
            let ns = middle(passes);
            let _ = writeln!(text, "{name:<54}{ns:>10.1}{:>9.2}×", ns / count_ns);
        }
        print!("{text}");
    }

    fn aim(&self, what: &str, is: f64, at_most: f64) {
        let verdict = if is <= at_most { "met" } else { "MISSED" };
        println!("  {what:<44}{is:>8.2}  aim {at_most}: {verdict}");
    }
}
