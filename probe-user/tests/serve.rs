//! Metrics over HTTP, as Prometheus itself reads them. Attaching probes needs root; what is not installed is left out.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use support::{RECORDER, compile, is_root};
use testkit::Held;

fn installed(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !there {
        eprintln!("skipped: {program} is not installed");
    }
    there
}

/// Starts serving the metrics of a process; the answer is `host:port`.
fn serve(pid: u32, options: &[&str]) -> (Held, String) {
    let mut child = Command::new(RECORDER)
        .args(["serve", "--listen", "0", "--no-kernel", "--interval", "200ms", "--pid", &pid.to_string()])
        .args(options)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    let address =
        said.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect(&said).to_owned();
    (Held(child), address)
}

fn get(address: &str, accept: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn target(folder: &Path) -> Held {
    let library = compile(folder, "verbs.c", "libibverbs.so.1", &["-shared", "-fPIC"]);
    let user = compile(folder, "user.c", "user", &["-pthread", "-ldl"]);
    Held(Command::new(user).args(["forever", "0"]).arg(library).stdout(Stdio::null()).spawn().unwrap())
}

fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < until, "{what} did not come");
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn metrics_of_a_running_process_grow_and_promtool_finds_nothing_wrong_with_them() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let user = target(folder.path());
    let (_serving, address) = serve(user.0.id(), &[]);
    let line = format!("rdma_calls_total{{pid=\"{}\",comm=\"user\",call=\"reg_mr\"}} ", user.0.id());
    let value = || {
        let answer = get(&address, "text/plain");
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        answer.lines().find_map(|l| l.strip_prefix(&line)).and_then(|n| n.parse::<u64>().ok())
    };
    let first = wait_for("the first registrations", value);
    wait_for("more registrations", || value().filter(|n| *n > first));
    let open = get(&address, "application/openmetrics-text;version=1.0.0,text/plain;q=0.1");
    assert!(open.contains("application/openmetrics-text") && open.ends_with("# EOF\n"), "{open}");
    if !installed("promtool") {
        return;
    }
    let text = get(&address, "text/plain");
    let body = text.split_once("\r\n\r\n").unwrap().1;
    let mut check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    check.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
    let found = check.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&found.stdout) + String::from_utf8_lossy(&found.stderr);
    assert!(found.status.success() && said.trim().is_empty(), "{said}\n{body}");
}

#[test]
fn prometheus_scrapes_what_is_served() {
    if !is_root() || !installed("prometheus") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let user = target(folder.path());
    let (_serving, address) = serve(user.0.id(), &[]);
    let config = folder.path().join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: rdma, static_configs: [{{targets: ['{address}']}}]}}]\n"
    );
    std::fs::write(&config, text).unwrap();
    let port = {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let at = format!("127.0.0.1:{port}");
    let _prometheus = Held(
        Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={at}"))
            .arg("--log.level=error")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let ask = |query: &str| -> Option<String> {
        let mut stream = TcpStream::connect(&at).ok()?;
        write!(stream, "GET /api/v1/query?query={query} HTTP/1.0\r\nHost: {at}\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let body = answer.split_once("\r\n\r\n")?.1;
        let value: serde_json::Value = serde_json::from_str(body).ok()?;
        value["data"]["result"][0]["value"][1].as_str().map(str::to_owned)
    };
    let registrations = wait_for("a scrape", || ask("rdma_calls_total%7Bcall=%22reg_mr%22%7D"));
    assert!(registrations.parse::<f64>().unwrap() > 0.0);
    let quantile = "histogram_quantile(0.99,rdma_call_duration_seconds_bucket%7Bcall=%22reg_mr%22%7D)";
    let slowest: f64 = wait_for("a quantile", || ask(quantile)).parse().unwrap();
    assert!(slowest > 0.0 && slowest < 1.0, "{slowest}");
    assert_eq!(ask("up").as_deref(), Some("1"));
}

#[test]
fn posts_and_polls_of_a_running_process_are_served_where_that_is_asked_for() {
    if !is_root() || !installed("ib_write_bw") {
        return;
    }
    let device = testkit::built("rnic-emu-preload", "librnic_emu.so");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let run = |more: &[&str]| {
        let mut command = Command::new("ib_write_bw");
        command.args(["-D", "120", "-s", "64", "-p", &port]).args(more).env("LD_PRELOAD", &device);
        Held(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    };
    let _server = run(&[]);
    // A client tries only once, and ends at once where nobody listens yet.
    let client = wait_for("the client", || {
        let mut client = run(&["127.0.0.1"]);
        thread::sleep(Duration::from_millis(300));
        client.0.try_wait().unwrap().is_none().then_some(client)
    });
    let (_serving, address) = serve(client.0.id(), &["--data-path", "full"]);
    let wrs = || {
        let text = get(&address, "text/plain");
        let labels = format!("rdma_wrs_total{{pid=\"{}\"", client.0.id());
        let line = text.lines().find(|line| line.starts_with(&labels))?;
        line.rsplit(' ').next()?.parse::<f64>().ok().filter(|n| *n > 0.0)
    };
    let first = wait_for("a count of work requests", wrs);
    wait_for("a greater one", || wrs().filter(|n| *n > first));
}
