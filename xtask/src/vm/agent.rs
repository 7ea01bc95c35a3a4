//! The guest's side: brings the RDMA device up, runs the command, sends its output and status to the host.
//!
//! This is xtask itself, started from the host's files by the guest's init.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::wire::{self, Frame, Job};
use crate::command;

/// The soft-RoCE device.
pub const DEVICE: &str = "rxe0";
/// The network device under it.
const NETDEV: &str = "dummy0";
/// Its address, from a block reserved for documentation (RFC 5737) so that it clashes with nothing.
const ADDRESS: &str = "198.51.100.1";
/// Terminal of `vm shell`.
const TERMINAL: &str = "/dev/hvc0";
/// How long the output of processes left behind by the command is waited for.
const DRAIN: Duration = Duration::from_secs(1);

type Port = Arc<Mutex<File>>;

/// Serves one job; returns when the host was told its status.
///
/// # Errors
/// When there is no port to the host: not inside the guest.
pub fn serve() -> Result<()> {
    let path = port_path()?;
    let mut file = File::options().read(true).write(true).open(&path)?;
    let Some(Frame::Job(job)) = wire::read(&mut file)? else { bail!("the host sent no job") };
    let port = Arc::new(Mutex::new(file));
    let last = match bring_up().and_then(|gid_index| run(&job, gid_index, &port)) {
        Ok(status) => Frame::Exited(status),
        Err(error) => Frame::Failed(format!("{error:#}")),
    };
    send(&port, &last);
    if !job.terminal {
        // The host ends the guest on that frame; returning sooner would race it with the power-off that follows.
        thread::sleep(Duration::from_secs(10));
    }
    Ok(())
}

fn port_path() -> Result<PathBuf> {
    let ports = fs::read_dir("/sys/class/virtio-ports")
        .context("no virtio ports here: `vm-agent` runs inside the guest of `cargo xtask vm run`")?;
    for entry in ports.flatten() {
        let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if name.trim() == wire::PORT {
            return Ok(Path::new("/dev").join(entry.file_name()));
        }
    }
    bail!("no virtio port is named \"{}\"", wire::PORT)
}

/// Makes the RDMA device and returns the GID index of its IPv4 address.
fn bring_up() -> Result<usize> {
    if !Path::new("/sys/class/net").join(NETDEV).exists() {
        command::output(command::tool("ip")?.args(["link", "add", NETDEV, "type", "dummy"]))?;
    }
    command::output(command::tool("ip")?.args(["addr", "add", &format!("{ADDRESS}/24"), "dev", NETDEV]))?;
    command::output(command::tool("ip")?.args(["link", "set", NETDEV, "up"]))?;
    command::output(command::tool("rdma")?.args(["link", "add", DEVICE, "type", "rxe", "netdev", NETDEV]))?;
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        // The kernel fills the GID table from a worker.
        if let Some(index) = gids().iter().position(|gid| gid == &mapped(ADDRESS)) {
            return Ok(index);
        }
        if Instant::now() > deadline {
            bail!("{DEVICE} did not get a GID for {ADDRESS}: it has {:?}", gids());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn gids() -> Vec<String> {
    let table = format!("/sys/class/infiniband/{DEVICE}/ports/1/gids");
    (0..16)
        .map_while(|index| fs::read_to_string(format!("{table}/{index}")).ok())
        .map(|g| g.trim().to_owned())
        .collect()
}

/// The GID of an IPv4 address in the kernel's notation.
fn mapped(address: &str) -> String {
    let octets: Vec<u8> = address.split('.').filter_map(|octet| octet.parse().ok()).collect();
    match octets.as_slice() {
        [a, b, c, d] => format!("0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"),
        _ => String::new(),
    }
}

/// Runs the job and returns its status.
fn run(job: &Job, gid_index: usize, port: &Port) -> Result<u8> {
    let mut command = prepared(job)?;
    command.env("RDMA_DEV", DEVICE).env("RDMA_IP", ADDRESS).env("RDMA_GID_INDEX", gid_index.to_string());
    if !job.terminal {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    send(port, &Frame::Started);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let message = format!("vm: cannot run \"{}\": {error}\n", job.argv[0].display());
            send(port, &Frame::Stderr(message.into_bytes()));
            return Ok(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 });
        }
    };
    let (done, ended) = mpsc::channel();
    let streams = usize::from(child.stdout.is_some()) + usize::from(child.stderr.is_some());
    if let Some(stdout) = child.stdout.take() {
        forward(stdout, Frame::Stdout, port, &done);
    }
    if let Some(stderr) = child.stderr.take() {
        forward(stderr, Frame::Stderr, port, &done);
    }
    let status = child.wait().context("cannot wait for the command")?;
    // A process it left behind may hold the pipes open for ever: what was written so far has to do.
    let deadline = Instant::now() + DRAIN;
    for _ in 0..streams {
        if ended.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_err() {
            break;
        }
    }
    Ok(command::exit_code(status))
}

fn prepared(job: &Job) -> Result<Command> {
    let (program, arguments) = job.argv.split_first().context("the job has no command")?;
    let mut command = if job.terminal {
        let terminal =
            || File::options().read(true).write(true).open(TERMINAL).context("no terminal in the guest");
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(program).stdin(terminal()?).stdout(terminal()?).stderr(terminal()?);
        command
    } else {
        Command::new(program)
    };
    command
        .args(arguments)
        .current_dir(&job.cwd)
        .env_clear()
        .envs(job.env.iter().filter_map(split_assignment));
    Ok(command)
}

/// Splits `NAME=VALUE` at the first `=` behind the name's first byte.
fn split_assignment(assignment: &OsString) -> Option<(&std::ffi::OsStr, &std::ffi::OsStr)> {
    let bytes = assignment.as_bytes();
    let at = 1 + bytes.get(1..)?.iter().position(|&byte| byte == b'=')?;
    Some((std::ffi::OsStr::from_bytes(&bytes[..at]), std::ffi::OsStr::from_bytes(&bytes[at + 1..])))
}

fn forward(
    mut from: impl Read + Send + 'static,
    kind: fn(Vec<u8>) -> Frame,
    port: &Port,
    done: &mpsc::Sender<()>,
) {
    let (port, done) = (Arc::clone(port), done.clone());
    thread::spawn(move || {
        let mut buffer = vec![0; 16384];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            send(&port, &kind(buffer[..count].to_vec()));
        }
        let _ = done.send(());
    });
}

/// The port only fails when the host is gone, and with it this guest.
fn send(port: &Port, frame: &Frame) {
    if let Ok(mut port) = port.lock() {
        let _ = wire::write(&mut *port, frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_maps_to_the_gid_the_kernel_prints() {
        assert_eq!(mapped("198.51.100.1"), "0000:0000:0000:0000:0000:ffff:c633:6401");
    }

    #[test]
    fn an_assignment_is_split_at_its_first_equals_sign() {
        let split = |text: &str| {
            let text = OsString::from(text);
            split_assignment(&text).map(|(name, value)| (name.to_os_string(), value.to_os_string()))
        };
        assert_eq!(split("A=b=c"), Some(("A".into(), "b=c".into())));
        assert_eq!(split("A="), Some(("A".into(), "".into())));
        assert_eq!(split("=A"), None);
        assert_eq!(split("A"), None);
    }
}
