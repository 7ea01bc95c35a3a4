//! Two processes: the requester measures, the responder serves, and each refuses what it must.

use crate::kit::{emulated, refusal, run};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use testkit::Held;

/// A free TCP port. Somebody else may take it before we do; the port range is large enough for that not to matter.
fn port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a bound socket has an address").port().to_string()
}

struct Server(Held);

impl Server {
    fn start(port: &str) -> Server {
        let mut command = emulated();
        command.args(["compare", "all", "--server", "--device", "emu0", "--port", port]);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the server starts");
        // It listens once it says so. Nobody reads what it says after that.
        let mut line = String::new();
        let said = child.stderr.take().expect("a pipe was asked for");
        BufReader::new(said).read_line(&mut line).expect("the server says something");
        assert!(line.contains("serving emu0"), "{line}");
        Server(Held(child))
    }

    /// Waits for its end and returns what it reports.
    fn finish(mut self) -> Value {
        let mut text = String::new();
        let mut out = self.0.stdout.take().expect("a pipe was asked for");
        out.read_to_string(&mut text).expect("the server reports");
        assert!(self.0.wait().expect("our child").success());
        serde_json::from_str(&text).expect("valid JSON")
    }
}

fn client(port: &str, name: &str, seconds: &str) -> Command {
    let mut command = emulated();
    command.args(["compare", name, "--client", "127.0.0.1", "--device", "emu0", "--port", port, "--json"]);
    command.args(["--seconds", seconds, "--pairs", "2", "--draws", "1"]);
    command
}

#[test]
fn a_requester_and_a_responder_share_the_work_and_give_everything_back() {
    let port = port();
    let server = Server::start(&port);
    let output = client(&port, "access-pattern", "0.1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(outcome["baseline"]["ops_per_s"].as_f64().unwrap() > 0.0);
    // The demonstrations need the responder to post receives and to count them.
    assert!(
        outcome["findings"].as_array().unwrap().iter().all(|finding| finding["holds"] != false),
        "{outcome}"
    );
    let served = server.finish();
    let truth = &served["ground_truth"];
    assert!(truth["qps_created"].as_u64().unwrap() > 0);
    for (made, unmade) in [("qps_created", "qps_destroyed"), ("registrations", "deregistrations")] {
        assert_eq!(truth[made], truth[unmade]);
    }
    // One side's queue pairs are the other's, one for one.
    assert_eq!(truth["qps_created"], outcome["ground_truth"]["qps_created"]);
}

#[test]
fn a_responder_that_dies_is_an_error_not_a_hang() {
    let port = port();
    let mut server = Server::start(&port);
    let mut command = client(&port, "doorbell-batching", "30");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    server.0.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(refusal(&output).0, 1);
}

#[test]
fn a_peer_of_another_version_is_refused_with_both_versions() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("hello"));
        stream.write_all(b"{\"reply\":\"hello\",\"version\":99,\"device\":\"x\",\"reads\":1}\n").unwrap();
    });
    let (status, text) = refusal(&client(&port, "inline", "0.1").output().unwrap());
    assert_eq!(status, 1);
    assert!(text.contains("version 99") && text.contains("same release"), "{text}");
    other.join().unwrap();
}

#[test]
fn an_unreachable_peer_is_named_with_what_to_start_there() {
    let (status, text) =
        refusal(&run(&["compare", "inline", "--client", "127.0.0.1", "--port", &port(), "--device", "emu0"]));
    assert_eq!(status, 1);
    assert!(text.contains("127.0.0.1") && text.contains("--server"), "{text}");
}
