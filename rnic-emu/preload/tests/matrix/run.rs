//! Running a cell, and what it takes to pass.

use crate::cells::{Cell, Shape};
use crate::kit;
use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// What became of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Pass,
    /// Not run, and why.
    Reason(String),
    /// What went wrong.
    Fail(String),
}

/// Runs a cell; each of its programs may take `limit`.
pub fn run(cell: &Cell, limit: Duration) -> Outcome {
    if let Some(reason) = cell.reason {
        return Outcome::Reason(reason.into());
    }
    let result = match cell.shape {
        Shape::Alone => output(start(cell, &[], limit)).and_then(|out| ended(cell.program, &out)),
        Shape::Perftest { .. } | Shape::PingPong => two(cell, limit),
    };
    match result {
        Ok(()) => Outcome::Pass,
        Err(why) if why.ends_with(" is not installed") => Outcome::Reason(why),
        Err(why) => Outcome::Fail(why),
    }
}

/// Starts the cell's program. `timeout` ends it even if this program is killed.
fn start(cell: &Cell, more: &[&str], limit: Duration) -> Result<Child, String> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=2", &limit.as_secs().to_string(), cell.program]);
    command.args(&cell.args).args(more).env("LD_PRELOAD", kit::library());
    if let Some(id) = cell.part_id {
        command.env("RNIC_EMU_PART_ID", id.to_string());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().map_err(|e| format!("timeout(1): {e}"))
}

fn output(child: Result<Child, String>) -> Result<Output, String> {
    child?.wait_with_output().map_err(|e| e.to_string())
}

fn ended(who: &str, out: &Output) -> Result<(), String> {
    let last = |bytes: &[u8]| {
        String::from_utf8_lossy(bytes)
            .lines()
            .map(str::trim)
            .rfind(|l| !l.is_empty())
            .unwrap_or("")
            .to_string()
    };
    match out.status.code() {
        Some(0) => Ok(()),
        Some(127) => Err(format!("{who} is not installed")),
        Some(124) => Err(format!("{who} did not end: {}", last(&out.stdout))),
        Some(code) => Err(format!("{who} ended with {code}: {} {}", last(&out.stderr), last(&out.stdout))),
        None => Err(format!("{who}: {}", out.status)),
    }
}

/// A server and a client.
fn two(cell: &Cell, limit: Duration) -> Result<(), String> {
    let port = free_port().map_err(|e| format!("no free port: {e}"))?.to_string();
    let mut server = start(cell, &["-p", &port], limit)?;
    let deadline = Instant::now() + limit;
    while !listens(&port) && server.try_wait().is_ok_and(|s| s.is_none()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let client = output(start(cell, &["-p", &port, "127.0.0.1"], limit));
    let server = output(Ok(server))?;
    let client = client?;
    ended("client", &client).and_then(|()| ended("server", &server)).map_err(|why| {
        let missing = [&client, &server].iter().any(|o| o.status.code() == Some(127));
        if missing { format!("{} is not installed", cell.program) } else { why }
    })?;
    if let Shape::Perftest { rows, iterations } = cell.shape {
        return table(&String::from_utf8_lossy(&client.stdout), rows, iterations);
    }
    let said = String::from_utf8_lossy(&server.stdout);
    if said.contains("invalid data") { Err("data check: invalid data".into()) } else { Ok(()) }
}

/// Checks the table perftest prints: number of sizes, iterations of each, and that it measured something.
pub fn table(text: &str, rows: usize, iterations: u64) -> Result<(), String> {
    let mut found = 0;
    for line in text.lines().skip_while(|l| !l.trim_start().starts_with("#bytes")).skip(1) {
        let fields: Vec<f64> = line.split_whitespace().map_while(|w| w.parse().ok()).collect();
        let [size, count, .., last] = fields[..] else { continue };
        if count as u64 != iterations {
            return Err(format!("{size} bytes: {count} iterations, not {iterations}"));
        }
        // A message rate is printed with six decimals and may round to nothing for the largest sizes.
        if !last.is_finite() || fields.len() < 4 || fields[3] <= 0.0 {
            return Err(format!("{size} bytes: nothing measured: {line}"));
        }
        found += 1;
    }
    if found == rows { Ok(()) } else { Err(format!("{found} sizes, not {rows}")) }
}

/// A port nobody listens on, of those that are not given out by themselves.
fn free_port() -> std::io::Result<u16> {
    TcpListener::bind("127.0.0.1:0")?.local_addr().map(|a| a.port())
}

/// Whether somebody listens on `port`, without connecting: a server takes the first connection for its client.
fn listens(port: &str) -> bool {
    let wanted = port.parse().map(|p: u16| format!(":{p:04X}")).unwrap_or_default();
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|file| {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines().any(|line| {
            let fields: Vec<&str> = line.split_whitespace().take(4).collect();
            fields.len() == 4 && fields[1].ends_with(&wanted) && fields[3] == "0A"
        })
    })
}
