//! How fast the emulated device is by itself, without a timing model: `cargo xtask bench device [--json] [--messages N]`.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use rnic_emu::abi::{consts::*, *};
use rnic_emu::control as c;
use rnic_emu::device::{context::DeviceContext, gid};
use serde::Serialize;
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::process::{Child, Command, Stdio};
use std::ptr::null_mut;
use std::time::Instant;

/// Measure the emulated device: message rate, bandwidth, and how both hold up with many QPs and regions.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:
  cargo xtask bench device               # everything, as a table
  cargo xtask bench device --json
  cargo xtask bench device --messages 200000

Each figure is the best of five rounds: other load on the machine only ever slows. \"cpu\" is processor time of the
posting thread per message in that round."
)]
struct Args {
    /// Messages per measurement
    #[arg(long, default_value_t = 1_000_000)]
    messages: u64,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Be the other process of a two-process measurement
    #[arg(long, hide = true)]
    target: bool,
    /// Given by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

/// One line of the result.
#[derive(Serialize)]
struct Row {
    what: String,
    value: f64,
    unit: &'static str,
    /// Processor time of the posting thread per message, where messages are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_ns: Option<f64>,
}

const CHUNK: usize = 1 << 20;
const DEPTH: u32 = 128;
const ROUNDS: u64 = 5;

struct Node {
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    context: *mut ibv_context,
    memory: Vec<u8>,
    mr: *mut ibv_mr,
}

impl Node {
    fn new() -> Result<Self> {
        let context =
            DeviceContext::open(0).map_err(std::io::Error::from_raw_os_error).context("open emu0")?;
        let mut memory = vec![0u8; 2 * CHUNK];
        // SAFETY: objects just made; the memory outlives its region.
        let (pd, cq, mr) = unsafe {
            let pd = c::pd::alloc_pd(context);
            let cq = c::cq::create_cq(context, 1 << 18, null_mut(), null_mut(), 0);
            (pd, cq, register(pd, &mut memory))
        };
        ensure!(!pd.is_null() && !cq.is_null() && !mr.is_null(), "cannot create a PD, CQ and MR");
        Ok(Self { pd, cq, context, memory, mr })
    }

    fn qp(&self) -> Result<*mut ibv_qp> {
        // SAFETY: plain data and live objects.
        let qp = unsafe {
            let mut i: ibv_qp_init_attr = std::mem::zeroed();
            (i.send_cq, i.recv_cq, i.qp_type) = (self.cq, self.cq, IBV_QPT_RC);
            i.cap =
                ibv_qp_cap { max_send_wr: DEPTH, max_send_sge: 1, max_recv_wr: 1, max_recv_sge: 1, ..i.cap };
            c::qp::create_qp(self.pd, &mut i)
        };
        ensure!(!qp.is_null(), "cannot create a QP");
        Ok(qp)
    }
}

/// # Safety
/// A live PD, memory that outlives the region.
unsafe fn register(pd: *mut ibv_pd, memory: &mut [u8]) -> *mut ibv_mr {
    let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    let at = memory.as_mut_ptr();
    // SAFETY: the caller's promise.
    unsafe { c::mr::reg_mr(pd, at.cast(), memory.len(), at as u64, access) }
}

fn connect(qp: *mut ibv_qp, peer: u32) -> Result<()> {
    let mut a = ibv_qp_attr {
        port_num: 1,
        qp_access_flags: IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
        path_mtu: IBV_MTU_4096,
        dest_qp_num: peer,
        max_dest_rd_atomic: 16,
        max_rd_atomic: 16,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..Default::default()
    };
    a.ah_attr.grh.dgid = gid::of_device(0);
    (a.ah_attr.is_global, a.ah_attr.port_num) = (1, 1);
    let rtr = IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    let rts = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    for (state, mask) in [
        (IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
        (IBV_QPS_RTR, rtr),
        (IBV_QPS_RTS, rts),
    ] {
        a.qp_state = state;
        // SAFETY: a live QP.
        let r = unsafe { c::qp::modify_qp(qp, &mut a, mask | IBV_QP_STATE) };
        ensure!(r == 0, "modify_qp to state {state}: {}", std::io::Error::from_raw_os_error(r));
    }
    Ok(())
}

/// What a stream of WRITEs looks like.
struct Stream<'a> {
    node: &'a Node,
    qps: &'a [*mut ibv_qp],
    /// Registered regions written from, in turn.
    lkeys: &'a [(u64, u32)],
    remote: (u64, u32),
    len: u32,
    /// Requests per post.
    list: usize,
    /// One request in this many is signalled.
    signal_every: usize,
}

impl Stream<'_> {
    /// Posts `n` WRITEs and waits for all; returns seconds and processor seconds.
    fn run(&self, n: u64) -> Result<(f64, f64)> {
        // SAFETY: a live context.
        let post = unsafe { (*self.node.context).ops.post_send }.context("post_send")?;
        // SAFETY: plain data.
        let mut wrs: Vec<ibv_send_wr> = vec![unsafe { std::mem::zeroed() }; self.list];
        let mut sges = vec![ibv_sge::default(); self.list];
        for i in 0..self.list {
            wrs[i].next = if i + 1 < self.list { &raw mut wrs[i + 1] } else { null_mut() };
            (wrs[i].sg_list, wrs[i].num_sge) = (&raw mut sges[i], 1);
            wrs[i].opcode = IBV_WR_RDMA_WRITE;
            wrs[i].wr.rdma = ibv_send_wr_rdma { remote_addr: self.remote.0, rkey: self.remote.1 };
        }
        let window = u64::from(DEPTH) * self.qps.len() as u64 / 2;
        let (mut posted, mut done, mut region) = (0u64, 0u64, 0usize);
        let mut since_signal = vec![0usize; self.qps.len()];
        let mut turn = 0;
        let (wall, cpu) = (Instant::now(), thread_seconds());
        while done < n {
            while posted < n && posted - done + self.list as u64 <= window.max(self.list as u64) {
                let q = turn % self.qps.len();
                turn += 1;
                for i in 0..self.list {
                    let (addr, lkey) = self.lkeys[region % self.lkeys.len()];
                    region += 1;
                    sges[i] = ibv_sge { addr, length: self.len, lkey };
                    since_signal[q] += 1;
                    let last = posted + i as u64 + self.qps.len() as u64 * self.list as u64 >= n;
                    let signal = since_signal[q] >= self.signal_every || last && i + 1 == self.list;
                    wrs[i].wr_id = since_signal[q] as u64;
                    wrs[i].send_flags = if signal { IBV_SEND_SIGNALED } else { 0 };
                    if signal {
                        since_signal[q] = 0;
                    }
                }
                let mut bad = null_mut();
                // SAFETY: a live QP and valid requests.
                let r = unsafe { post(self.qps[q], wrs.as_mut_ptr(), &mut bad) };
                ensure!(r == 0, "post_send: {}", std::io::Error::from_raw_os_error(r));
                posted += self.list as u64;
            }
            done += self.reap()?;
        }
        Ok((wall.elapsed().as_secs_f64(), thread_seconds() - cpu))
    }

    /// The best of [`ROUNDS`] rounds of `n` WRITEs in all.
    fn best(&self, n: u64) -> Result<(f64, f64)> {
        let per_round = (n / ROUNDS / self.list as u64).max(1) * self.list as u64;
        let mut best = (f64::INFINITY, 0.0);
        for _ in 0..ROUNDS {
            let round = self.run(per_round)?;
            if round.0 < best.0 {
                best = round;
            }
        }
        let scale = n as f64 / per_round as f64;
        Ok((best.0 * scale, best.1 * scale))
    }

    /// Requests that the completions polled now stand for.
    fn reap(&self) -> Result<u64> {
        let mut wc = [ibv_wc::default(); 64];
        // SAFETY: a live CQ and room for the completions.
        let n = unsafe {
            let poll = (*self.node.context).ops.poll_cq.context("poll_cq")?;
            poll(self.node.cq, wc.len() as i32, wc.as_mut_ptr())
        };
        ensure!(n >= 0, "poll_cq: {n}");
        let wc = &wc[..n as usize];
        if let Some(failed) = wc.iter().find(|w| w.status != IBV_WC_SUCCESS) {
            anyhow::bail!("a WRITE failed with status {}", failed.status);
        }
        // Each signalled request carries how many were posted since the last one.
        Ok(wc.iter().map(|w| w.wr_id).sum())
    }
}

fn thread_seconds() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

/// The other process: makes the QPs asked for and then sleeps in a read of its pipe.
fn be_target() -> Result<()> {
    let node = Node::new()?;
    // SAFETY: a live MR.
    println!("{} {}", node.memory.as_ptr() as u64, unsafe { (*node.mr).rkey });
    stdout().flush()?;
    for line in stdin().lock().lines() {
        let qp = node.qp()?;
        connect(qp, line?.trim().parse()?)?;
        // SAFETY: a live QP.
        println!("{}", unsafe { (*qp).qp_num });
        stdout().flush()?;
    }
    Ok(())
}

struct Target {
    child: Child,
    from: BufReader<std::process::ChildStdout>,
    memory: (u64, u32),
}

impl Target {
    fn start() -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--target")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the other process")?;
        let mut from = BufReader::new(child.stdout.take().context("pipe")?);
        let line = read_line(&mut from)?;
        let (addr, key) = line.split_once(' ').context("the other process says nonsense")?;
        let memory = (addr.parse()?, key.parse()?);
        Ok(Self { child, from, memory })
    }

    fn connect(&mut self, node: &Node) -> Result<*mut ibv_qp> {
        let qp = node.qp()?;
        // SAFETY: a live QP.
        let qpn = unsafe { (*qp).qp_num };
        writeln!(self.child.stdin.as_mut().context("pipe")?, "{qpn}")?;
        let peer = read_line(&mut self.from)?.parse()?;
        connect(qp, peer)?;
        Ok(qp)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_line(from: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    ensure!(from.read_line(&mut line)? != 0, "the other process ended");
    Ok(line.trim().into())
}

/// QPs of this process connected in pairs; the first of each pair is returned.
fn loopback(node: &Node, n: usize) -> Result<Vec<*mut ibv_qp>> {
    (0..n)
        .map(|_| {
            let (a, b) = (node.qp()?, node.qp()?);
            // SAFETY: live QPs.
            let (an, bn) = unsafe { ((*a).qp_num, (*b).qp_num) };
            connect(b, an)?;
            connect(a, bn)?;
            Ok(a)
        })
        .collect()
}

fn memcpy_gbps(node: &mut Node) -> f64 {
    let (src, dst) = node.memory.split_at_mut(CHUNK);
    const COPIES: usize = 400;
    let round = |_| {
        let start = Instant::now();
        for _ in 0..COPIES {
            dst.copy_from_slice(std::hint::black_box(src));
            std::hint::black_box(&dst);
        }
        start.elapsed().as_secs_f64()
    };
    (COPIES * CHUNK) as f64 / (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min) / 1e9
}

fn stream<'a>(
    node: &'a Node,
    lkeys: &'a [(u64, u32)],
    qps: &'a [*mut ibv_qp],
    remote: (u64, u32),
    len: u32,
    list: usize,
    signal_every: usize,
) -> Stream<'a> {
    Stream { node, qps, lkeys, remote, len, list, signal_every }
}

fn measure(args: &Args) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut node = Node::new()?;
    // SAFETY: a live MR.
    let own = unsafe { (node.memory.as_ptr() as u64, (*node.mr).lkey) };
    let far = (own.0 + CHUNK as u64, own.1);
    let mut rate = |what: String, stream: &Stream<'_>, n: u64| -> Result<()> {
        let n = n - n % stream.list as u64;
        stream.run(n.min(20_000) - n.min(20_000) % stream.list as u64)?;
        let (wall, cpu) = stream.best(n)?;
        rows.push(Row {
            what,
            value: n as f64 / wall / 1e6,
            unit: "M messages/s",
            cpu_ns: Some(cpu / n as f64 * 1e9),
        });
        Ok(())
    };
    let region = [own];
    let one = loopback(&node, 1)?;
    rate(
        "64 B, one process, 1 per post, all signalled".into(),
        &stream(&node, &region, &one, far, 64, 1, 1),
        args.messages,
    )?;
    rate(
        "64 B, one process, 16 per post, 1 in 16 signalled".into(),
        &stream(&node, &region, &one, far, 64, 16, 16),
        args.messages,
    )?;
    for n in [1, 10, 100, 1000] {
        let qps = loopback(&node, n)?;
        rate(
            format!("64 B, one process, {n} QPs"),
            &stream(&node, &region, &qps, far, 64, 1, 16),
            args.messages,
        )?;
    }
    let mut regions = vec![0u8; 10_000 * 64];
    for n in [1usize, 100, 10_000] {
        // SAFETY: the memory outlives the measurement and its regions.
        let lkeys: Vec<(u64, u32)> = regions
            .chunks_mut(64)
            .take(n)
            .map(|m| unsafe { (m.as_ptr() as u64, (*register(node.pd, m)).lkey) })
            .collect();
        let s = Stream { lkeys: &lkeys, ..stream(&node, &region, &one, far, 64, 1, 16) };
        rate(format!("64 B, one process, from {n} regions in turn"), &s, args.messages)?;
    }
    let mut target = Target::start()?;
    let there = target.memory;
    for n in [1, 8, 64, 1000] {
        let qps = (0..n).map(|_| target.connect(&node)).collect::<Result<Vec<_>>>()?;
        rate(
            format!("64 B, two processes, {n} QPs"),
            &stream(&node, &region, &qps, there, 64, 1, 16),
            args.messages,
        )?;
        if n == 1 {
            rate(
                "64 B, two processes, 16 per post".into(),
                &stream(&node, &region, &qps, there, 64, 16, 16),
                args.messages,
            )?;
        }
    }
    let far_qp = vec![target.connect(&node)?];
    let big = (args.messages / 200).max(64);
    let gbps = |qps: &[*mut ibv_qp], remote| -> Result<f64> {
        let s = stream(&node, &region, qps, remote, CHUNK as u32, 1, 1);
        s.run(64)?;
        Ok(big as f64 * CHUNK as f64 / s.best(big)?.0 / 1e9)
    };
    let (here_gbps, there_gbps) = (gbps(&one, far)?, gbps(&far_qp, there)?);
    let copy = memcpy_gbps(&mut node);
    for (what, value, unit) in [
        ("memcpy of 1 MiB", copy, "GB/s"),
        ("1 MiB WRITEs, one process", here_gbps, "GB/s"),
        ("1 MiB WRITEs, one process, share of memcpy", 100.0 * here_gbps / copy, "%"),
        ("1 MiB WRITEs, two processes", there_gbps, "GB/s"),
        ("1 MiB WRITEs, two processes, share of memcpy", 100.0 * there_gbps / copy, "%"),
    ] {
        rows.push(Row { what: what.into(), value, unit, cpu_ns: None });
    }
    Ok(rows)
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.target {
        return be_target();
    }
    let rows = measure(&args)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    for r in rows {
        let cpu = r.cpu_ns.map(|ns| format!("  cpu {ns:6.0} ns")).unwrap_or_default();
        println!("{:55} {:8.2} {}{cpu}", r.what, r.value, r.unit);
    }
    Ok(())
}
