//! What the tests of the data path share: stock perftest counted by `rdma-probe count`, and the numbers that follow from
//! perftest's own arguments.
#![allow(dead_code, reason = "each test program uses a part of this room")]

pub mod failed;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use testkit::Held;

/// The program under test.
pub const PROBE: &str = env!("CARGO_BIN_EXE_rdma-probe");

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

/// Bandwidth tests of every kind.
pub const BANDWIDTH: [Case; 12] = [
    PLAIN,
    Case { list: 10, ..PLAIN },
    Case { list: 50, iterations: 500, qps: 2, ..PLAIN },
    Case { moderation: 1, size: 4096, ..PLAIN },
    Case { moderation: 10, qps: 3, ..PLAIN },
    Case { inline: 64, ..PLAIN },
    Case { tool: "ib_send_bw", opcode: "send", size: 256, ..PLAIN },
    Case { tool: "ib_send_bw", opcode: "send", size: 32, inline: 64, list: 4, ..PLAIN },
    Case { tool: "ib_send_bw", opcode: "send", events: true, iterations: 500, ..PLAIN },
    Case { tool: "ib_send_bw", opcode: "send", more: "-c UD", size: 128, iterations: 500, ..PLAIN },
    Case { tool: "ib_read_bw", opcode: "rdma_read", iterations: 500, size: 8192, ..PLAIN },
    Case { tool: "ib_write_bw", more: "-c UC", list: 5, ..PLAIN },
];

/// Rounds of what comes and goes: so many, or what `RDMA_PROBE_DAMAGE_ROUNDS` says.
pub fn rounds(few: u32) -> u32 {
    std::env::var("RDMA_PROBE_DAMAGE_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(few)
}

/// True where probes can be attached and perftest is installed; else says why the test does nothing.
pub fn can_run() -> bool {
    // SAFETY: the call has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: attaching probes needs root");
        return false;
    }
    if !Path::new("/sys/bus/event_source/devices/uprobe/type").exists() {
        eprintln!("skipped: this kernel has no user probes");
        return false;
    }
    if Command::new("ib_write_bw").arg("--version").output().is_err() {
        eprintln!("skipped: perftest is not installed");
        return false;
    }
    true
}

impl Case {
    fn arguments(&self) -> String {
        let mut text = format!("-n{} -s{} -q{} -l{}", self.iterations, self.size, self.qps, self.list);
        if self.list == 1 {
            text += &format!(" -Q{}", self.moderation);
        }
        if self.inline > 0 {
            text += &format!(" -I{}", self.inline);
        }
        if self.events {
            text += " -e";
        }
        format!("{text} {}", self.more)
    }

    /// Compares the client's counts with what the arguments say.
    /// perftest uses inline data and the extended interface only on device models it knows.
    pub fn check_client(&self, client: &Counted, is_known_model: bool) {
        let wrs = self.iterations * self.qps;
        let signalled = if self.list > 1 { wrs / self.list } else { wrs / self.moderation };
        let inline = if is_known_model && self.inline >= self.size { wrs } else { 0 };
        let total = |field: &str| client.total(field);
        let counted =
            ["post_calls", "wrs", "signalled", "inline", "bytes", "sges", "post_failed", "cut"].map(total);
        let expected = [wrs / self.list, wrs, signalled, inline, wrs * self.size, wrs, 0, 0];
        assert_eq!(counted, expected, "{self:?}: {client:?}");
        assert_eq!(["cqes", "cqe_errors"].map(total), [signalled, 0], "{self:?}");
        let opcodes: BTreeMap<String, u64> =
            serde_json::from_value(client.0["total"]["opcodes"].clone()).expect("opcodes");
        assert_eq!(opcodes, BTreeMap::from([(self.opcode.to_owned(), wrs)]), "{self:?}");
        let longest = if self.list > 1 { self.list } else { self.moderation } - 1;
        assert_eq!(total("longest_unsignalled"), longest, "{self:?}");
        // Every signalled request has its latency.
        assert_eq!((client.latencies(), client.unmatched()), (signalled, 0), "{self:?}");
        let qps: Vec<_> = client.objects("qp").collect();
        assert_eq!(qps.len() as u64, self.qps, "{self:?}");
        for qp in qps {
            assert_eq!(qp["counts"]["wrs"], self.iterations, "{self:?}: {qp}");
            if let (Some(most), Some(depth)) = (qp["most_outstanding"].as_u64(), qp["max_send_wr"].as_u64()) {
                assert!(most > 0 && most <= depth, "{self:?}: {qp}");
            }
            let sizes = BTreeMap::from([(self.size.ilog2().to_string(), self.iterations)]);
            assert_eq!(qp["sizes"], serde_json::json!(sizes), "{self:?}: {qp}");
            assert_eq!(qp["details"]["wrs"], self.iterations, "{self:?}: {qp}");
        }
    }

    /// The server of a two-sided test receives what the client sends.
    pub fn check_server(&self, server: &Counted) {
        let total = |field: &str| server.total(field);
        if self.opcode == "send" {
            let wrs = self.iterations * self.qps;
            assert_eq!(["cqes", "cqe_errors", "recv_failed"].map(total), [wrs, 0, 0], "{self:?}");
            assert!(total("recv_wrs") >= wrs, "{self:?}");
            assert_eq!(self.events, total("notifies") > 0, "{self:?}");
        } else {
            assert_eq!(["wrs", "cqes"].map(total), [0, 0], "{self:?}");
        }
    }
}

/// What was counted of one process.
#[derive(Debug)]
pub struct Counted(pub Value);

impl Counted {
    /// A sum over all objects.
    pub fn total(&self, field: &str) -> u64 {
        self.0["total"][field].as_u64().unwrap_or_else(|| panic!("no {field} in {}", self.0))
    }

    /// Latencies from post to reap that were told.
    pub fn latencies(&self) -> u64 {
        let of_class = |class: &Value| -> u64 {
            class["ns"].as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64()).sum()
        };
        self.0["data_path"]["post_to_reap"].as_array().into_iter().flatten().map(of_class).sum()
    }

    /// What these latencies come to together: at least and at most, for they are told by buckets.
    pub fn latency_sums(&self) -> (u64, u64) {
        let classes = self.0["data_path"]["post_to_reap"].as_array().into_iter().flatten();
        let buckets = classes.flat_map(|class| class["ns"].as_object().into_iter().flatten());
        buckets.fold((0, 0), |(least, most), (bucket, n)| {
            let (bucket, n): (u16, u64) = (bucket.parse().expect("a bucket"), n.as_u64().expect("a count"));
            let bound = |bucket| n * probe_common::histogram::lower_bound(bucket);
            (least + bound(bucket), most + bound(bucket + 1))
        })
    }

    /// Those of an opcode and size class.
    pub fn latency_of(&self, opcode: &str, size_class: u8) -> Latencies {
        let classes = self.0["data_path"]["post_to_reap"].as_array().into_iter().flatten();
        let own = classes.filter(|class| class["opcode"] == opcode && class["size_class"] == size_class);
        let buckets = own.flat_map(|class| class["ns"].as_object().into_iter().flatten());
        buckets.fold(Latencies::default(), |sum, (bucket, n)| {
            let (bucket, n): (u16, u64) = (bucket.parse().expect("a bucket"), n.as_u64().expect("a count"));
            let bound = |bucket| n * probe_common::histogram::lower_bound(bucket);
            Latencies { n: sum.n + n, least: sum.least + bound(bucket), most: sum.most + bound(bucket + 1) }
        })
    }

    /// Completion entries whose work request was not found.
    pub fn unmatched(&self) -> u64 {
        self.0["data_path"]["unmatched"].as_u64().expect("a number")
    }

    /// The objects of a kind.
    pub fn objects(&self, kind: &str) -> impl Iterator<Item = &Value> {
        let objects = self.0["data_path"]["objects"].as_array().into_iter().flatten();
        objects.filter(move |object| object["kind"] == kind)
    }
}

/// Some latencies: how many, and what they come to together, at least and at most, in ns.
#[derive(Debug, Clone, Copy, Default)]
pub struct Latencies {
    pub n: u64,
    pub least: u64,
    pub most: u64,
}

/// All that `rdma-probe count` told.
#[derive(Debug)]
pub struct Told {
    pub all: Value,
    /// What the script printed.
    pub printed: String,
}

impl Told {
    /// What was counted of a process; panics where nothing was.
    pub fn of(&self, pid: u64) -> Counted {
        self.find(pid).unwrap_or_else(|| panic!("nothing was counted of {pid}, but of {:?}", self.pids()))
    }

    fn pids(&self) -> Vec<&Value> {
        self.all["processes"].as_array().into_iter().flatten().map(|process| &process["pid"]).collect()
    }

    /// What was counted of a process.
    pub fn find(&self, pid: u64) -> Option<Counted> {
        let processes = self.all["processes"].as_array().into_iter().flatten();
        processes.into_iter().find(|p| p["pid"] == pid).cloned().map(Counted)
    }

    /// Classes of probed instructions, by name of the probe.
    pub fn assert_nothing_is_lost(&self) {
        assert_eq!(self.all["uncounted"], 0);
    }
}

/// Compiles `posts.c`, which posts and polls in every way there is and says what it did.
pub fn posts(folder: &Path) -> PathBuf {
    compiled(folder, "posts")
}

/// Compiles one of the programs that stand by themselves.
pub fn compiled(folder: &Path, name: &str) -> PathBuf {
    let program = folder.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name).with_extension("c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-pthread", "-o"]).arg(&program).arg(source).arg("-libverbs");
    assert!(compiler.status().expect("a C compiler").success(), "{name}.c does not compile");
    program
}

/// Starts `posts` and lets it make its objects; only then counting begins, and only then it posts.
pub fn attach_to_running(program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Told {
    attach_to_running_by(&["--data-path", "full"], program, arguments, environment)
}

/// Compares what was counted of each queue pair of `crowd.c` with what it says: those that came and went, and those that
/// stayed. One in so many of the requests was in a list; every post had one signalled request, which was reaped.
pub fn check_crowd(told: &Told, rounds: usize, threads: u64) {
    told.assert_nothing_is_lost();
    let number = |value: &Value| value.as_u64().expect("a number");
    let mut said: Vec<(u64, u64)> = told
        .printed
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(number, wrs)| (number.parse().expect("a number"), wrs.parse().expect("a number")))
        .collect();
    let processes = told.all["processes"].as_array().expect("processes");
    let counted = Counted(processes.first().expect("a process").clone());
    let qps: Vec<&Value> = counted.objects("qp").collect();
    let mut all: Vec<(u64, u64)> =
        qps.iter().map(|qp| (number(&qp["number"]), number(&qp["counts"]["wrs"]))).collect();
    let [gone, stayed] = [true, false].map(|is| qps.iter().filter(move |qp| qp["ended_ns"].is_u64() == is));
    assert_eq!(gone.count(), rounds);
    said.sort_unstable();
    all.sort_unstable();
    assert_eq!(all, said);
    for qp in &qps {
        let wrs = number(&qp["counts"]["wrs"]);
        // Of twelve requests of a thread, six are alone and two times three in a list.
        let posts = wrs * 8 / 12;
        assert_eq!(["post_calls", "signalled"].map(|field| number(&qp["counts"][field])), [posts; 2], "{qp}");
        assert_eq!(number(&qp["counts"]["bytes"]), 64 * wrs, "{qp}");
        assert_eq!(["wrs", "remote_wrs"].map(|field| number(&qp["details"][field])), [wrs; 2], "{qp}");
        let sizes: u64 = qp["sizes"].as_object().expect("sizes").values().filter_map(Value::as_u64).sum();
        assert_eq!((sizes, number(&qp["most_outstanding"])), (wrs, 3), "{qp}");
        assert_eq!(number(&qp["counts"]["longest_unsignalled"]), 2, "{qp}");
        // What follows what, as far as threads do not come in between.
        if qp["ended_ns"].is_null() {
            assert_eq!(number(&qp["details"]["remote_same"]), wrs - 1, "{qp}");
            let (same, next) = (&qp["details"]["local_same"], &qp["details"]["local_sequential"]);
            assert_eq!((number(same), number(next)), (0, wrs - 2), "{qp}");
        } else {
            assert_eq!(number(&qp["threads"]), threads, "{qp}");
        }
    }
    let posts: u64 = qps.iter().map(|qp| number(&qp["counts"]["post_calls"])).sum();
    assert_eq!((counted.latencies(), counted.unmatched()), (posts, 0));
    let addresses = |qps: &mut dyn Iterator<Item = &&Value>| {
        qps.map(|qp| number(&qp["address"])).collect::<BTreeSet<_>>().len()
    };
    let [mut gone, _] = [true, false].map(|is| qps.iter().filter(move |qp| qp["ended_ns"].is_u64() == is));
    assert!(addresses(&mut gone) < rounds, "no address was used again");
    println!("{} queue pairs, {posts} posts", stayed.count() + rounds);
}

/// The same with these arguments for the counter.
pub fn attach_to_running_by(
    how: &[&str],
    program: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Told {
    let folder = tempfile::tempdir().expect("a folder");
    let mut posts = Command::new("timeout");
    posts.args(["-k", "5", "200"]).arg(program).args(arguments).arg("wait");
    posts.envs(environment.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut posts = Held(posts.spawn().expect("the program"));
    let mut printed = BufReader::new(posts.0.stdout.take().expect("a pipe"));
    let mut line = String::new();
    printed.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    let counter = count_by(how, posts.0.id(), folder.path());
    let mut input = posts.0.stdin.take().expect("a pipe");
    input.write_all(b"\n").expect("it reads");
    drop(input);
    let mut told = String::new();
    printed.read_to_string(&mut told).expect("what it prints");
    assert!(posts.0.wait().expect("its end").success(), "{told}");
    Told { all: counter.finish(), printed: told }
}

/// Compares what was counted of every process that said what it did with that; `but` are counts that cannot be known.
pub fn check_posts(told: &Told, processes: usize, but: &[&str]) {
    told.assert_nothing_is_lost();
    let lines: Vec<Value> =
        told.printed.lines().map(|line| serde_json::from_str(line).expect("what it did")).collect();
    assert_eq!(lines.len(), processes, "{}", told.printed);
    for did in lines {
        let counted = told.of(did["pid"].as_u64().expect("a pid"));
        let fields = did.as_object().expect("an object").iter();
        let no_counts = ["pid", "errno", "reaped", "least_ns", "most_ns"];
        for (field, n) in fields.filter(|(field, _)| !no_counts.contains(&field.as_str())) {
            if !but.contains(&field.as_str()) {
                assert_eq!(Some(counted.total(field)), n.as_u64(), "{field}: {did} but {:?}", counted.0);
            }
        }
        assert_eq!(["cut", "cqe_errors", "failed_polls"].map(|field| counted.total(field)), [0; 3]);
        let failures = counted.0["data_path"]["failures"].as_array().expect("a list");
        let of_post: Vec<_> = failures.iter().filter(|f| f["what"] == "post").collect();
        let expected = did["post_failed"].as_u64().map_or(0, |n| n.min(1) as usize);
        assert_eq!(of_post.len(), expected, "{failures:?}");
        assert!(of_post.iter().all(|f| f["code"] == did["errno"]), "{failures:?}: {did}");
        check_latencies(&did, &counted);
        println!("{did}");
    }
}

/// Every signalled request that was reaped has its latency, and together they took as long as the program says of itself.
fn check_latencies(did: &Value, counted: &Counted) {
    let said = |field: &str| did[field].as_u64().expect("a number");
    assert_eq!((counted.latencies(), counted.unmatched()), (said("reaped"), 0), "{did}: {:?}", counted.0);
    let (least, most) = counted.latency_sums();
    assert!(least <= said("most_ns") && said("least_ns") <= most, "{least} to {most} ns, but {did}");
    println!("{} latencies, {least} to {most} ns together", counted.latencies());
}

/// Of `posts`, which uses the same buffers over and over: every request is looked at, whatever interface it was posted by.
pub fn check_buffers(told: &Told) {
    for did in told.printed.lines() {
        let did: Value = serde_json::from_str(did).expect("what it did");
        let counted = told.of(did["pid"].as_u64().expect("a pid"));
        let qp = counted.objects("qp").find(|qp| qp["counts"]["wrs"] != 0).expect("a queue pair");
        let (wrs, details) = (&did["wrs"], &qp["details"]);
        assert_eq!(&details["wrs"], wrs, "{qp}");
        let sizes: u64 = qp["sizes"].as_object().expect("sizes").values().filter_map(Value::as_u64).sum();
        assert_eq!(Some(sizes), wrs.as_u64(), "{qp}");
        let other = |n: &Value| n.as_u64().map(|n| n - 1);
        assert_eq!(
            (details["local_same"].as_u64(), details["remote_same"].as_u64()),
            (other(wrs), other(&details["remote_wrs"])),
            "{qp}"
        );
        assert_eq!(
            (&details["local_sequential"], &details["mergeable"]),
            (&Value::from(0), &Value::from(0)),
            "{qp}"
        );
    }
}

/// Compares the queue pairs of `comes_and_goes`, in the order of their ends, with what it says: each has its own counts,
/// although it has the number or the address of one before.
pub fn check_one_after_the_other(told: &Told) {
    told.assert_nothing_is_lost();
    let said: Vec<(u64, u64)> = told
        .printed
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(number, wrs)| (number.parse().expect("a number"), wrs.parse().expect("a number")))
        .collect();
    let processes = told.all["processes"].as_array().into_iter().flatten();
    let objects = processes.flat_map(|p| p["data_path"]["objects"].as_array().into_iter().flatten());
    let mut qps: Vec<&Value> = objects.filter(|object| object["kind"] == "qp").collect();
    qps.sort_by_key(|qp| qp["ended_ns"].as_u64());
    let number = |value: &Value| value.as_u64().expect("a number");
    let counted: Vec<_> =
        qps.iter().map(|qp| (number(&qp["number"]), number(&qp["counts"]["wrs"]))).collect();
    assert_eq!(counted, said);
    assert!(qps.iter().all(|qp| qp["ended_ns"].is_u64()), "{qps:?}");
    let distinct = |field: &str| qps.iter().map(|qp| number(&qp[field])).collect::<BTreeSet<_>>().len();
    let (numbers, addresses) = (distinct("number"), distinct("address"));
    println!("{} queue pairs, {numbers} numbers, {addresses} addresses", qps.len());
    assert!(numbers < qps.len() || addresses < qps.len(), "none was used again");
}

/// Starts counting a process, and returns when every probe that can be is in place.
pub fn count(pid: u32, folder: &Path) -> Counter {
    count_by(&["--data-path", "full"], pid, folder)
}

/// The same with these arguments.
pub fn count_by(how: &[&str], pid: u32, folder: &Path) -> Counter {
    let out = folder.join(format!("{pid}.json"));
    let mut child = Command::new("timeout")
        .args(["-k", "5", "300", PROBE, "count", "--json", "--pid", &pid.to_string()])
        .args(how)
        .stdout(File::create(&out).expect("a file"))
        .stderr(Stdio::piped())
        .spawn()
        .expect("the counter");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let counting = lines.by_ref().map_while(Result::ok).any(|line| line.ends_with("counting"));
    let counter = Counter { child: Held(child), out };
    assert!(counting, "not counting");
    // Whatever else it says must not fill the pipe.
    std::thread::spawn(move || lines.for_each(drop));
    counter
}

/// A counter that counts.
pub struct Counter {
    child: Held,
    out: PathBuf,
}

impl Counter {
    /// Ends it with a signal, whatever it does.
    pub fn end(&mut self, signal: i32) {
        // `timeout` passes on what asks it to end; what kills it would leave its child.
        let children = format!("/proc/{0}/task/{0}/children", self.child.0.id());
        let pid = std::fs::read_to_string(children).ok().and_then(|pids| pids.trim().parse().ok());
        if let Some(pid) = pid {
            // SAFETY: plain system call; the child of a child of this program, which that one has not waited for.
            unsafe { libc::kill(pid, signal) };
        }
        self.child.0.wait().expect("the counter ends");
    }

    /// Waits for its end, which is that of the process.
    pub fn finish(mut self) -> Value {
        let status = self.child.0.wait().expect("the counter ends");
        assert!(status.success(), "{status}");
        serde_json::from_slice(&std::fs::read(&self.out).expect("counts")).expect("JSON")
    }
}

/// Runs a shell script, and counts it and its children from its first command on.
pub fn count_script(script: &str) -> Told {
    count_script_with(script, &[])
}

/// The same with these variables for the shell too: what they preload is probed before the first command.
pub fn count_script_with(script: &str, environment: &[(&str, &Path)]) -> Told {
    let folder = tempfile::tempdir().expect("a folder");
    let mut shell = Command::new("timeout");
    // Held until its input ends; with it, at its time, end its children.
    let script = format!("read go; {script}");
    let shell =
        shell.args(["-k", "5", "280", "sh", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    shell.envs(environment.iter().copied());
    let mut shell = Held(shell.spawn().expect("a shell"));
    let counter = count(shell.0.id(), folder.path());
    drop(shell.0.stdin.take());
    let mut printed = String::new();
    shell.0.stdout.take().expect("a pipe").read_to_string(&mut printed).expect("what it prints");
    shell.0.wait().expect("its end");
    Told { all: counter.finish(), printed }
}

/// A script that runs cases of perftest one after the other, and prints the pids of server and client of each. `device`
/// are the arguments that name it, `setting` what comes before the command (`env …`).
pub fn perftest(cases: &[Case], setting: &str, device: &str, server: &str, port: u16) -> String {
    let mut script = String::from(
        "listening() { for i in $(seq 600); do grep -q \":$1 [0-9A-F:]* 0A\" /proc/net/tcp /proc/net/tcp6 && return; \
         sleep 0.1; done; }\nsaid=$(mktemp -d)\n",
    );
    for (case, port) in cases.iter().zip(port..) {
        let command = format!("{setting} {} {} {device} -p{port}", case.tool, case.arguments());
        script += &format!(
            "{command} >$said/s 2>&1 & s=$!\nlistening {port:04X}\n{command} {server} >$said/c 2>&1 & c=$!\n\
             wait $c || cat $said/c >&2; wait $s || cat $said/s >&2\necho $s $c\n"
        );
    }
    script + "rm -r $said\n"
}

/// Compares what was counted of each case with what its arguments say.
pub fn check(cases: &[Case], told: &Told, is_known_model: bool) {
    told.assert_nothing_is_lost();
    let pids: Vec<u64> = told.printed.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    assert_eq!(pids.len(), cases.len() * 2, "{}", told.printed);
    for (case, [server, client]) in cases.iter().zip(pids.as_chunks::<2>().0) {
        let client = told.of(*client);
        case.check_client(&client, is_known_model);
        if let Some(server) = told.find(*server) {
            case.check_server(&server);
        } else {
            // A server of one-sided operations may not poll even once.
            assert_ne!(case.opcode, "send", "{case:?}: nothing was counted of the server");
        }
        println!(
            "{case:?}: {} WRs in {} posts, {} completions",
            client.total("wrs"),
            client.total("post_calls"),
            client.total("cqes")
        );
    }
}
