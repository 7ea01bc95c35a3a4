//! `rdma-probe record` as a child: its trace comes through a named pipe, everything it prints goes to the log.
//!
//! A process of its own keeps the two apart for good: a slow terminal cannot slow collection beyond what the pipe
//! holds, privileges stay with the part that needs them, and when either is killed the other says so and goes on.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_setfl, mknodat, open};
use rustix::pipe::fcntl_setpipe_size;
use rustix::process::{Pid, Signal, kill_process};

/// Room in the pipe, bytes: as much as an unprivileged process may ask for, so that a burst of events waits here rather
/// than in the kernel's ring.
const PIPE_BYTES: usize = 1 << 20;

/// What is to be watched.
#[derive(Debug, Clone, Default)]
pub struct Targets {
    /// These processes and their children.
    pub pids: Vec<u32>,
    /// This command, started under the probes.
    pub command: Vec<OsString>,
    /// Time between two samples.
    pub interval: Option<Duration>,
}

impl Targets {
    /// What the header calls them.
    pub fn title(&self) -> String {
        if let Some(program) = self.command.first() {
            let name = Path::new(program).file_name().unwrap_or(program);
            name.to_string_lossy().into_owned()
        } else if self.pids.is_empty() {
            "whole host".to_owned()
        } else {
            let pids: Vec<String> = self.pids.iter().map(u32::to_string).collect();
            format!("pid {}", pids.join(" "))
        }
    }
}

/// Why collection could not begin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The collector is not installed where it is looked for.
    #[error(
        "cannot find 'rdma-probe' beside this program or in PATH: build it with `cargo build -p probe-user`"
    )]
    NotFound,
    /// Something the system refused.
    #[error("cannot {what}: {reason}")]
    System {
        /// What was tried.
        what: String,
        /// The system's reason; not a `source`, since the message has it already.
        reason: io::Error,
    },
    /// It ended before its first record.
    #[error("{0}")]
    Refused(String),
}

/// The running collector.
#[derive(Debug)]
pub struct Collector {
    child: Child,
    /// Removed, with the pipe in it, when this is dropped.
    _directory: tempfile::TempDir,
    log: PathBuf,
}

/// The program `name`: beside this one, else as PATH has it.
pub fn program(name: &str) -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(name)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file());
    beside.filter(|path| path.is_file()).or(in_path)
}

impl Collector {
    /// Starts collecting; the trace comes out of the returned reader. What the collector and its command print is
    /// appended to `log`.
    ///
    /// # Errors
    /// When the collector is not there, or ends before its first record: with its own words.
    pub fn start(targets: &Targets, log: &Path) -> Result<(Self, BufReader<File>), StartError> {
        let system = |what: &str, reason: io::Error| StartError::System { what: what.to_owned(), reason };
        let program = program("rdma-probe").ok_or(StartError::NotFound)?;
        let directory = tempfile::Builder::new()
            .prefix("rdma-tui-")
            .tempdir()
            .map_err(|e| system("make a folder for the pipe", e))?;
        let pipe = directory.path().join("trace");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .map_err(|e| system("make the pipe for the trace", e.into()))?;
        // Without O_NONBLOCK this would wait for a collector that may never come.
        let reader = open(&pipe, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| system("open the pipe for the trace", e.into()))?;
        // A pipe that stays at its usual 64 KiB works as well.
        let _ = fcntl_setpipe_size(&reader, PIPE_BYTES);
        let log_file =
            File::options().append(true).create(true).open(log).map_err(|e| system("open the log", e))?;
        let log_size = log_file.metadata().map_or(0, |m| m.len());
        let errors = log_file.try_clone().map_err(|e| system("open the log", e))?;

        let mut command = Command::new(&program);
        command.arg("record").arg("--quiet").arg("-o").arg(&pipe);
        if let Some(interval) = targets.interval {
            command.arg("--interval").arg(format!("{}ms", interval.as_millis()));
        }
        for pid in &targets.pids {
            command.arg("--pid").arg(pid.to_string());
        }
        // Where the tap is installed, every post and poll of a command is counted, at a few nanoseconds each.
        if !targets.command.is_empty() && probe_user::tap::library().is_some() {
            command.arg("--tap");
        }
        if !targets.command.is_empty() {
            command.arg("--").args(&targets.command);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(log_file)
            .stderr(errors)
            .spawn()
            .map_err(|e| system(&format!("run '{}'", program.display()), e))?;
        let mut collector = Self { child, _directory: directory, log: log.to_owned() };
        loop {
            let mut fds = [PollFd::new(&reader, PollFlags::IN)];
            let wait = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            let ready = poll(&mut fds, Some(&wait)).is_ok_and(|n| n > 0);
            if ready && fds[0].revents().contains(PollFlags::IN) {
                break;
            }
            if let Ok(Some(status)) = collector.child.try_wait() {
                let said = last_words(&collector.log, log_size);
                let why = if said.is_empty() { format!("rdma-probe ended at once ({status})") } else { said };
                return Err(StartError::Refused(why));
            }
        }
        fcntl_setfl(&reader, OFlags::empty()).map_err(|e| system("read the pipe for the trace", e.into()))?;
        Ok((collector, BufReader::with_capacity(256 << 10, File::from(reader))))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end; says how it ended.
    pub fn wait(&mut self) -> String {
        match self.child.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }
}

/// Asks a child to finish: the collector passes the signal on to the command it started.
pub fn ask_to_end(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended by itself; then there is nothing to do.
        let _ = kill_process(pid, Signal::TERM);
    }
}

/// The last line a program has written to the log since it was `from` bytes long.
pub fn last_words(log: &Path, from: u64) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let new = text.get(usize::try_from(from).unwrap_or(usize::MAX)..).unwrap_or_default();
    let new = String::from_utf8_lossy(new);
    let last = new.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    last.strip_prefix("rdma-probe: ").unwrap_or(last).to_owned()
}
