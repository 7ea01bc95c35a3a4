//! Stock perftest under the tap, and what must come out: numbers that follow from perftest's own arguments.
#![allow(dead_code, reason = "each test program uses a part of this room")]

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use probe_user::tap::{Counts, Reading, Tap};
use testkit::Held;

/// One run of perftest.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub tool: &'static str,
    /// `-n`, `-s`, `-q`, `-l`, `-Q`.
    pub iterations: u64,
    pub size: u64,
    pub qps: u64,
    pub list: u64,
    pub moderation: u64,
    /// `-I`; 0: not given.
    pub inline: u64,
    /// `-e`.
    pub events: bool,
    /// Any others.
    pub more: &'static str,
    /// The opcode its requests have.
    pub opcode: &'static str,
}

pub const PLAIN: Case = Case {
    tool: "ib_write_bw",
    iterations: 1000,
    size: 64,
    qps: 1,
    list: 1,
    moderation: 100,
    inline: 0,
    events: false,
    more: "",
    opcode: "rdma_write",
};

/// What the client of a one-sided or two-sided bandwidth test must have done.
pub const BANDWIDTH: [Case; 9] = [
    PLAIN,
    Case { list: 10, ..PLAIN },
    Case { moderation: 1, size: 4096, ..PLAIN },
    Case { moderation: 10, qps: 3, ..PLAIN },
    Case { tool: "ib_send_bw", opcode: "send", size: 256, ..PLAIN },
    Case { tool: "ib_send_bw", opcode: "send", events: true, iterations: 500, ..PLAIN },
    Case { tool: "ib_send_bw", opcode: "send", more: "-c UD", size: 128, ..PLAIN },
    Case { tool: "ib_send_bw", opcode: "send", more: "-c UC", list: 5, ..PLAIN },
    Case { tool: "ib_read_bw", opcode: "rdma_read", iterations: 500, size: 8192, ..PLAIN },
];

impl Case {
    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("-n{}", self.iterations),
            format!("-s{}", self.size),
            format!("-q{}", self.qps),
            format!("-l{}", self.list),
        ];
        if self.list == 1 {
            arguments.push(format!("-Q{}", self.moderation));
        }
        if self.inline > 0 {
            arguments.push(format!("-I{}", self.inline));
        }
        if self.events {
            arguments.push("-e".to_owned());
        }
        arguments.extend(self.more.split_whitespace().map(str::to_owned));
        arguments
    }

    /// Compares the client's counts with what the arguments say.
    pub fn check_client(&self, seen: &Seen) {
        let c = &seen.reading.total;
        let wrs = self.iterations * self.qps;
        let signalled = if self.list > 1 { wrs / self.list } else { wrs / self.moderation };
        let inline = if self.inline >= self.size { wrs } else { 0 };
        let counted = (c.post_calls, c.wrs, c.signalled, c.inline, c.bytes, c.sges, c.post_failed);
        assert_eq!(counted, (wrs / self.list, wrs, signalled, inline, wrs * self.size, wrs, 0), "{self:?}");
        assert_eq!((c.cqes, c.cqe_errors), (signalled, 0), "{self:?}");
        assert_eq!(
            c.opcodes.iter().map(|(o, n)| (*o, *n)).collect::<Vec<_>>(),
            [(self.opcode, wrs)],
            "{self:?}"
        );
        check_sums(seen);
        let longest = if self.list > 1 { self.list } else { self.moderation } - 1;
        assert_eq!(c.longest_unsignalled, longest, "{self:?}");
    }

    /// The server of a two-sided test receives what the client sends.
    pub fn check_server(&self, seen: &Seen) {
        let c = &seen.reading.total;
        if self.opcode == "send" {
            let wrs = self.iterations * self.qps;
            assert_eq!((c.cqes, c.cqe_errors), (wrs, 0), "{self:?}");
            assert!(c.recv_wrs >= wrs, "{self:?}: {c:?}");
        } else {
            assert_eq!((c.wrs, c.cqes), (0, 0), "{self:?}");
        }
        check_sums(seen);
    }
}

/// What was counted of a process that has ended.
pub struct Seen {
    pub reading: Reading,
    /// Its exit status was 0. In a guest perftest may fail after its run, where it makes nothing of the processor's
    /// clock, and then leaves its objects to the kernel.
    pub succeeded: bool,
}

/// Polls add up, every object is named, and nothing is left out.
fn check_sums(Seen { reading, succeeded }: &Seen) {
    assert_eq!((reading.uncounted, reading.untapped_contexts, reading.unnamed_objects), (0, 0, 0));
    assert_eq!((&reading.unnamed, &reading.retired), (&Counts::default(), &Counts::default()));
    let wrs: u64 = reading.objects.iter().map(|o| o.counts.wrs).sum();
    assert_eq!(wrs, reading.total.wrs);
    assert!(!succeeded || reading.objects.iter().all(|o| o.gone), "perftest destroys what it makes");
}

/// How perftest is to be run.
pub struct Setting<'a> {
    /// `LD_PRELOAD`.
    pub preload: OsString,
    /// More of the environment.
    pub environment: Vec<(&'a str, &'a str)>,
    /// Arguments that name the device.
    pub device: Vec<String>,
    /// The server's address.
    pub server: String,
}

/// `LD_PRELOAD` of some libraries, the tap first.
pub fn preload(libraries: &[&Path]) -> OsString {
    libraries.iter().map(|l| l.as_os_str()).collect::<Vec<_>>().join(":".as_ref())
}

/// Runs server and client, and returns what was counted of both.
pub fn run(case: &Case, setting: &Setting<'_>, port: u16) -> (Seen, Seen) {
    let command = |server: Option<&str>| {
        let mut command = Command::new(case.tool);
        command
            .args(case.arguments())
            .args(&setting.device)
            .arg(format!("-p{port}"))
            .args(server)
            .env("LD_PRELOAD", &setting.preload)
            .envs(setting.environment.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    };
    let server = Held(command(None).spawn().unwrap_or_else(|e| panic!("{}: {e}", case.tool)));
    wait_until_listening(port);
    let client = Held(command(Some(&setting.server)).spawn().expect("the client"));
    // Both are followed at the same time: counters must be opened while their process lives.
    std::thread::scope(|scope| {
        let server = scope.spawn(|| finish(server, case));
        (finish(client, case), server.join().expect("the server's counts"))
    })
}

/// Waits for the end of a process with its counters held open, and reads them.
fn finish(mut process: Held, case: &Case) -> Seen {
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut tap = None;
    let status = loop {
        if tap.is_none() {
            tap = Tap::of(process.id()).unwrap_or_default();
        }
        if let Some(status) = process.try_wait().expect("wait") {
            break status;
        }
        assert!(Instant::now() < deadline, "{case:?} hangs");
        std::thread::sleep(Duration::from_millis(1));
    };
    let tap = tap.unwrap_or_else(|| panic!("{case:?}: no counters were seen"));
    Seen { reading: tap.read().expect("a reading"), succeeded: status.success() }
}

fn wait_until_listening(port: u16) {
    let wanted = format!(":{port:04X} ");
    let deadline = Instant::now() + Duration::from_secs(60);
    let listening = || {
        ["/proc/net/tcp", "/proc/net/tcp6"].iter().filter_map(|f| std::fs::read_to_string(f).ok()).any(
            |text| {
                // `sl local_address rem_address st`: 0A is LISTEN.
                text.lines().any(|line| {
                    let mut fields = line.split_whitespace().skip(1);
                    let local = fields.next().unwrap_or_default();
                    local.ends_with(wanted.trim_end()) && fields.nth(1) == Some("0A")
                })
            },
        )
    };
    while !listening() {
        assert!(Instant::now() < deadline, "the server does not listen on {port}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
