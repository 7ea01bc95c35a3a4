//! Running perftest on the emulated device: once recorded, and unwatched for its own figure.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use probe_user::doctor::{Finding, Settings, examine};
use probe_user::replay::{Window, replay};
use probe_user::trace::Reader;

use crate::case::{Api, Case};

const RECORDER: &str = env!("CARGO_BIN_EXE_rdma-probe");

/// A run that takes longer hangs.
const LIMIT: &str = "60";

/// Speed of the device: so slow that what the machine and the tap do is small against modelled time.
const SPEED: &str = "1/256";

/// How long a server needs until it listens.
const STARTS: Duration = Duration::from_millis(300);

fn beside(name: &str) -> PathBuf {
    Path::new(RECORDER).with_file_name(name)
}

/// A port for each run, so that one that hangs does not spoil the next.
fn port() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = 20_000 + (std::process::id() % 200) as u16 * 100;
    (base + NEXT.fetch_add(1, Ordering::Relaxed) % 100).to_string()
}

/// The command, in front of it what puts it on the device.
fn words(command: &str, api: Api, port: &str) -> Vec<String> {
    let mut words = vec!["env".to_owned()];
    words.push(format!("LD_PRELOAD={}", beside("librnic_emu.so").display()));
    words.push("RNIC_EMU_PROFILE=cx5-like".into());
    words.push(format!("RNIC_EMU_SPEED={SPEED}"));
    if api == Api::Extended {
        // ConnectX-5: perftest knows it.
        words.push("RNIC_EMU_PART_ID=4119".into());
    }
    // The device's clock runs on while others have the processor: ahead of them, where that is allowed.
    // SAFETY: plain system call.
    if unsafe { libc::geteuid() } == 0 {
        words.extend(["chrt", "--rr", "1"].map(str::to_owned));
    }
    words.extend(["timeout", LIMIT].map(str::to_owned));
    let mut of_command = command.split(' ');
    words.extend(of_command.next().map(str::to_owned));
    words.extend(["-d", "emu0", "-p", port].map(str::to_owned));
    words.extend(of_command.map(str::to_owned));
    words
}

fn serve(words: &[String]) -> Result<Child, String> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().map_err(|error| format!("cannot start the server: {error}"))?;
    std::thread::sleep(STARTS);
    Ok(child)
}

/// Runs a client against a server of its own; its output.
fn both(server: &[String], client: &mut Command) -> Result<String, String> {
    let mut served = serve(server)?;
    let output = client.stdin(Stdio::null()).output().map_err(|error| format!("cannot start: {error}"))?;
    let ended = served.wait().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() && ended.success() {
        return Ok(said);
    }
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = |text: &str| text.lines().last().unwrap_or_default().to_owned();
    Err(format!("client: {}, server: {ended}: {} {}", output.status, last(&said), last(&errors)))
}

/// What the doctor finds on the client.
pub fn findings(case: &Case) -> Result<Vec<Finding>, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let trace = folder.path().join("trace");
    let server = words(case.command, case.api, &port());
    let mut client = Command::new(RECORDER);
    client.args(["record", "--quiet", "--tap", "--no-kernel", "--output"]).arg(&trace);
    client.arg("--").args(&server).arg("localhost");
    both(&server, &mut client)?;
    let mut reader = Reader::open(&trace).map_err(|error| error.to_string())?;
    let model =
        replay(reader.by_ref(), Window { from_ns: None, to_ns: None }).map_err(|error| error.to_string())?;
    Ok(examine(&model, &Settings::default()).findings)
}

/// perftest's own figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figure {
    /// Messages, or megabytes, a second: more is better.
    Rate(f64),
    /// Latency in µs: less is better.
    Latency(f64),
}

impl Figure {
    /// How many times better `self` is than `other`.
    pub fn over(self, other: Self) -> Option<f64> {
        match (self, other) {
            (Self::Rate(this), Self::Rate(other)) if other > 0.0 => Some(this / other),
            (Self::Latency(this), Self::Latency(other)) if this > 0.0 => Some(other / this),
            _ => None,
        }
    }
}

/// Runs a command unwatched. `bytes`: the figure is bytes a second, where messages of different length are compared.
pub fn figure(command: &str, api: Api, bytes: bool) -> Result<Figure, String> {
    let server = words(command, api, &port());
    let mut client = Command::new(&server[0]);
    client.args(&server[1..]).arg("localhost");
    let said = both(&server, &mut client)?;
    read(command, &said, bytes).ok_or_else(|| format!("no figure in what {command} printed"))
}

/// The figure in perftest's table: its only line of numbers.
fn read(command: &str, said: &str, bytes: bool) -> Option<Figure> {
    let numbers = |line: &str| line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>().ok();
    let row = said.lines().filter_map(numbers).rfind(|row| row.len() >= 4)?;
    if !command.contains("_lat") {
        // #bytes #iterations peak average message-rate
        return Some(Figure::Rate(*row.get(if bytes { 3 } else { 4 })?));
    }
    // By duration: #bytes #iterations t_avg tps. By number: #bytes #iterations t_min t_max t_typical …
    Some(Figure::Latency(*row.get(if row.len() > 4 { 4 } else { 2 })?))
}
