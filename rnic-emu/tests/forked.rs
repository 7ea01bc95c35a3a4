//! What a forked child may do with an emulated device, also under a probe.

mod kit;

use kit::{End, Link, Options, pair, remote};
use rnic_emu::abi::consts::*;
use rnic_emu::control as c;
use rnic_emu::device::context::DeviceContext;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs `body` in a forked child; its answer becomes the exit status. The child must not panic or return.
fn in_child(body: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child runs `body` and leaves without returning to the test harness.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0, "fork");
        if pid == 0 {
            libc::alarm(20);
            libc::_exit(i32::from(body()));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        status
    }
}

/// A WRITE from one end to the other, polled to its end. False if anything is not as it should be.
fn writes(a: &End, b: &End) -> bool {
    a.post(remote(IBV_WR_RDMA_WRITE, 1, b.addr(0), b.lkey()), &mut [a.sge(0, 64)]) == 0
        && a.sent().status == IBV_WC_SUCCESS
}

#[test]
fn inherited_objects_answer_with_an_error_and_the_parent_goes_on_undisturbed() {
    let (a, b) = pair(Options::default(), Link::default());
    assert!(writes(&a, &b));
    let status = in_child(|| {
        let mut wr = remote(IBV_WR_RDMA_WRITE, 1, b.addr(0), b.lkey());
        wr.send_flags = 0;
        // SAFETY: objects of the parent, which must refuse.
        let refused = unsafe {
            [
                a.post(wr, &mut []) == libc::EIO,
                c::pd::alloc_pd(a.context).is_null(),
                c::mr::dereg_mr(a.mr) == libc::EIO,
                c::qp::destroy_qp(a.qp) == libc::EIO,
            ]
        };
        u8::from(refused.contains(&false))
    });
    assert_eq!(status, 0);
    for _ in 0..100 {
        assert!(writes(&a, &b));
    }
}

#[test]
fn a_child_opens_a_device_of_its_own() {
    let (a, b) = pair(Options::default(), Link::default());
    let parents = a.qpn() >> 16;
    let status = in_child(|| {
        let (x, y) = pair(Options::default(), Link::default());
        let ok = writes(&x, &y) && x.qpn() >> 16 != parents;
        std::mem::forget((x, y));
        u8::from(!ok)
    });
    assert_eq!(status, 0);
    assert!(writes(&a, &b));
}

#[test]
fn a_child_does_not_hide_its_parents_death_from_peers() {
    // The child keeps none of the device's sockets: only what the program itself was given.
    let (_a, _b) = pair(Options::default(), Link::default());
    let sockets = || {
        let links = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        links
            .filter_map(|e| std::fs::read_link(e.path()).ok())
            .filter(|l| l.to_string_lossy().starts_with("socket:"))
            .count()
    };
    let before = sockets();
    let status = in_child(|| sockets() as u8);
    assert!(before > 0);
    assert!((libc::WEXITSTATUS(status) as usize) < before, "{status:#x} against {before}");
}

/// Linux 6.18 rewrites a probed 5-byte nop into a call to a trampoline that a forked child does not inherit.
#[test]
fn a_child_forked_under_a_probe_lives() {
    let exe = std::env::current_exe().expect("own path");
    let program = format!("uprobe:{}:rnic_emu_posted {{ @hits[pid] = count(); }}", exe.display());
    let tracer = Command::new("bpftrace")
        .args(["-e", &program])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut tracer = match tracer {
        Ok(t) => t,
        Err(e) => return eprintln!("not run: bpftrace is not installed ({e})"),
    };
    let (a, b) = pair(Options::default(), Link::default());
    let site = rnic_emu::sites::rnic_emu_posted as *const u8;
    // SAFETY: code of this program.
    let first_byte = || unsafe { site.read_volatile() };
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut probed = false;
    while Instant::now() < deadline && !probed {
        if let Some(status) = tracer.try_wait().expect("own child") {
            return eprintln!("not run: bpftrace cannot probe here ({status})");
        }
        std::thread::sleep(Duration::from_millis(20));
        // 0x0f while it is the nop; a breakpoint or a call once probed.
        probed = first_byte() != 0x0f;
    }
    // The kernel optimises a site some hits after it was attached.
    for _ in 0..200 {
        assert!(writes(&a, &b));
    }
    let optimised = first_byte() == 0xe8;
    let status = in_child(|| {
        let (x, y) = pair(Options::default(), Link::default());
        let ok = (0..200).all(|_| writes(&x, &y));
        std::mem::forget((x, y));
        u8::from(!ok)
    });
    let alive = (0..10).all(|_| writes(&a, &b));
    // SAFETY: a signal to our own child.
    unsafe { libc::kill(tracer.id() as i32, libc::SIGINT) };
    let out = tracer.wait_with_output().expect("bpftrace ends");
    if !probed {
        return eprintln!("not run: the probe never arrived: {}", String::from_utf8_lossy(&out.stderr));
    }
    assert_eq!(status, 0, "the child died or failed (optimised: {optimised})");
    assert!(alive);
    let text = String::from_utf8_lossy(&out.stdout);
    let ours = format!("@hits[{}]: 210", std::process::id());
    assert!(text.contains(&ours), "{ours} is not in:\n{text}");
    eprintln!("optimised: {optimised}");
}

#[test]
fn a_context_is_closed_and_opened_again() {
    for _ in 0..3 {
        let context = DeviceContext::open(0).expect("opens");
        // SAFETY: just opened.
        assert_eq!(unsafe { DeviceContext::close(context) }, 0);
    }
}
