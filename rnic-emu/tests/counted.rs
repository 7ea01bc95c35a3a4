//! The device's own counters against an independent tracer at the probe sites: equal, to the last one.

mod kit;

use kit::{Link, Options, atomic, pair, remote, request};
use rnic_emu::abi::consts::*;
use rnic_emu::stats::{self, CqCounter, QpCounter};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = r#"
uprobe:EXE:rnic_emu_posted { $q = (arg3 >> 48) & 3; @calls[$q] = count(); @wrs[$q] = sum(arg1); @bytes[$q] = sum(arg2);
  @signalled[$q] = sum(arg3 & 0xffff); @inline[$q] = sum((arg3 >> 16) & 0xffff); @sges[$q] = sum(arg4); }
uprobe:EXE:rnic_emu_post_failed { @failed = count(); @errno = max(arg5 >> 48); }
uprobe:EXE:rnic_emu_polled { @polls = count(); @polled = sum(arg1); }
uprobe:EXE:rnic_emu_poll_cq { @entries = count(); }
"#;

/// The value bpftrace printed for `name`.
fn value(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|l| l.strip_prefix(&format!("@{name}: ")));
    line.unwrap_or_else(|| panic!("@{name} is not in:\n{text}")).trim().parse().expect("a number")
}

#[test]
fn tracer_and_counters_agree() {
    let exe = std::env::current_exe().expect("own path");
    let tracer = Command::new("bpftrace")
        .args(["-e", &PROGRAM.replace("EXE", exe.to_str().expect("UTF-8"))])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut tracer = match tracer {
        Ok(t) => t,
        Err(e) => return eprintln!("not run: bpftrace is not installed ({e})"),
    };
    // The last probe to be attached is that of poll_cq or one before it: wait for all.
    let sites: Vec<usize> = rnic_emu::sites::all()
        .into_iter()
        .filter(|(n, _)| {
            ["posted", "post_failed", "polled", "poll_cq"].iter().any(|s| *n == format!("rnic_emu_{s}"))
        })
        .map(|(_, at)| at)
        .collect();
    assert_eq!(sites.len(), 4);
    // SAFETY: code of this program.
    let attached = || sites.iter().all(|at| unsafe { (*at as *const u8).read_volatile() } != 0x0f);
    let deadline = Instant::now() + Duration::from_secs(30);
    while !attached() {
        if let Some(status) = tracer.try_wait().expect("own child") {
            return eprintln!("not run: bpftrace cannot probe here ({status})");
        }
        assert!(Instant::now() < deadline, "the probes never arrived");
        std::thread::sleep(Duration::from_millis(20));
    }

    let (a, b) = pair(Options::default(), Link::default());
    for i in 0..500u64 {
        assert_eq!(b.receive(i, &mut [b.sge(0, 64), b.sge(64, 64)]), 0);
        let mut send = request(IBV_WR_SEND, i);
        send.send_flags = if i % 3 == 0 { IBV_SEND_SIGNALED | IBV_SEND_INLINE } else { IBV_SEND_INLINE };
        assert_eq!(a.post(send, &mut [a.sge(0, 30)]), 0);
        let write = remote(IBV_WR_RDMA_WRITE, i, b.addr(0), b.lkey());
        assert_eq!(a.post(write, &mut [a.sge(0, 1000), a.sge(0, 24)]), 0);
        assert_eq!(a.post(write, &mut [a.sge(0, 1); 5]), libc::ENOMEM);
        let add = atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, i, b.addr(0) / 8 * 8 + 8, b.lkey(), 1, 0);
        assert_eq!(a.post(add, &mut [a.sge(0, 8)]), 0);
        b.received();
        for _ in 0..if i % 3 == 0 { 3 } else { 2 } {
            assert_eq!(a.sent().status, IBV_WC_SUCCESS);
        }
        assert!(kit::poll(a.send_cq).is_none());
    }
    let own = stats::read(std::process::id()).expect("own counters");
    // SAFETY: a signal to our own child.
    unsafe { libc::kill(tracer.id() as i32, libc::SIGINT) };
    let out = tracer.wait_with_output().expect("bpftrace ends");
    let text = String::from_utf8_lossy(&out.stdout);
    for (name, counter, expected) in [
        ("calls[0]", QpCounter::SendCalls, 2000),
        ("wrs[0]", QpCounter::SendWrs, 1500),
        ("bytes[0]", QpCounter::SendBytes, 500 * (30 + 1024 + 8)),
        ("signalled[0]", QpCounter::Signalled, 1000 + 167),
        ("inline[0]", QpCounter::Inline, 500),
        ("sges[0]", QpCounter::SendSges, 500 * 4),
        ("calls[1]", QpCounter::RecvCalls, 500),
        ("wrs[1]", QpCounter::RecvWrs, 500),
    ] {
        assert_eq!((value(&text, name), own.qp_total(counter)), (expected, expected), "{name}");
    }
    assert_eq!((value(&text, "failed"), value(&text, "errno")), (500, libc::ENOMEM as u64));
    assert_eq!(value(&text, "polls"), own.cq_total(CqCounter::PollCalls));
    assert_eq!(value(&text, "entries"), own.cq_total(CqCounter::PollCalls));
    assert_eq!(value(&text, "polled"), own.cq_total(CqCounter::Polled));
    assert_eq!(own.cq_total(CqCounter::Polled), own.cq_total(CqCounter::Cqes));
}
