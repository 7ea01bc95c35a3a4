//! One boot from the host's side: start, hand over the job, pass output on, end.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::accel::{self, Accel};
use super::initramfs;
use super::kernel::Kernel;
use super::qemu::{Machine, Qemu};
use super::wire::{self, Frame, Job};

/// How long a boot may take. Under emulation on a busy machine it has been seen to take a minute.
const BOOT_TCG: Duration = Duration::from_secs(240);
/// A boot under a KVM that works takes three seconds; one that does not work never ends.
const BOOT_KVM: Duration = Duration::from_secs(30);
/// How much of the kernel's console is kept for error messages, in bytes.
const CONSOLE_KEPT: usize = 16384;
/// How many of its lines an error message shows.
const SHOWN: usize = 24;
/// Status on a time limit, as `timeout` has it.
pub const TIMED_OUT: u8 = 124;

/// What to run, and in which guest.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Kernel to boot.
    pub kernel: Kernel,
    /// Command.
    pub job: Job,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Limit for the command, the boot not counted; `None` for no limit.
    pub limit: Option<Duration>,
    /// Host folder to share writable.
    pub out: Option<std::path::PathBuf>,
    /// Print the kernel's console on standard error as it comes.
    pub console: bool,
}

/// Where the command's output goes.
pub trait Sink {
    /// Takes bytes of its standard output.
    fn stdout(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Takes bytes of its standard error.
    fn stderr(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// Passes both streams on, unchanged and at once.
#[derive(Debug)]
pub struct PassOn;

impl Sink for PassOn {
    fn stdout(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        stdout.flush()
    }

    fn stderr(&mut self, bytes: &[u8]) -> io::Result<()> {
        io::stderr().write_all(bytes)
    }
}

/// Boots a guest and runs the job in it; returns the status to exit with.
///
/// # Errors
/// When the guest cannot be started, does not come up, or stops before the command ends.
pub fn run(plan: &Plan, sink: &mut dyn Sink) -> Result<u8> {
    let initramfs = initramfs::for_kernel(&plan.kernel)?;
    let mut machine = Machine {
        kernel: plan.kernel.clone(),
        initramfs,
        accel: accel::choose(accel::offer()),
        memory_mib: plan.memory_mib,
        out: plan.out.clone(),
        terminal: plan.job.terminal,
    };
    match boot(&machine, plan) {
        Ok(session) => session.serve(plan, sink),
        Err(error) if machine.accel == Accel::Kvm => {
            eprintln!("vm: no boot under KVM ({error:#}); emulating from now on");
            accel::remember_failure()?;
            machine.accel = Accel::Tcg;
            boot(&machine, plan)?.serve(plan, sink)
        }
        Err(error) => Err(error),
    }
}

/// A guest whose command is running.
struct Session {
    qemu: Qemu,
    frames: Receiver<Frame>,
    console: Arc<Mutex<VecDeque<u8>>>,
}

/// Starts the machine and waits until the agent is about to start the command.
fn boot(machine: &Machine, plan: &Plan) -> Result<Session> {
    let mut qemu = Qemu::start(machine)?;
    let console = watch_console(qemu.console.try_clone()?, plan.console);
    let frames = receive(qemu.agent.try_clone()?);
    // A QEMU that has already ended is reported below, with what it said.
    let _ = wire::write(&mut qemu.agent, &Frame::Job(plan.job.clone()));
    let limit = if machine.accel == Accel::Kvm { BOOT_KVM } else { BOOT_TCG };
    let reason = match frames.recv_timeout(limit) {
        Ok(Frame::Started) => return Ok(Session { qemu, frames, console }),
        Ok(Frame::Failed(reason)) => format!("the guest could not be made ready: {reason}"),
        Ok(_) => "the guest's agent spoke out of turn".to_owned(),
        Err(RecvTimeoutError::Timeout) => format!("the guest did not come up within {} s", limit.as_secs()),
        Err(RecvTimeoutError::Disconnected) => "the guest stopped while it booted".to_owned(),
    };
    bail!("{reason}{}", tail(&console))
}

impl Session {
    fn serve(self, plan: &Plan, sink: &mut dyn Sink) -> Result<u8> {
        let status = self.follow(plan, sink);
        if plan.job.terminal {
            self.qemu.quit();
        }
        status
    }

    fn follow(&self, plan: &Plan, sink: &mut dyn Sink) -> Result<u8> {
        let deadline = plan.limit.map(|limit| Instant::now() + limit);
        loop {
            let frame = match deadline {
                Some(deadline) => {
                    self.frames.recv_timeout(deadline.saturating_duration_since(Instant::now()))
                }
                None => self.frames.recv().map_err(RecvTimeoutError::from),
            };
            match frame {
                Ok(Frame::Stdout(bytes)) => {
                    sink.stdout(&bytes).context("cannot write the command's output")?;
                }
                Ok(Frame::Stderr(bytes)) => {
                    sink.stderr(&bytes).context("cannot write the command's errors")?;
                }
                Ok(Frame::Exited(status)) => return Ok(status),
                Ok(Frame::Failed(reason)) => bail!("the command could not be run: {reason}"),
                Ok(Frame::Job(_) | Frame::Started) => bail!("the guest's agent spoke out of turn"),
                Err(RecvTimeoutError::Timeout) => {
                    let limit = plan.limit.unwrap_or_default().as_secs();
                    eprintln!("vm: the command was ended after {limit} s (--timeout)");
                    return Ok(TIMED_OUT);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("the guest stopped before the command ended{}", tail(&self.console))
                }
            }
        }
    }
}

/// Reads the agent's frames; few wait at a time, so that a slow reader of the output slows the guest.
fn receive(mut agent: UnixStream) -> Receiver<Frame> {
    let (sender, frames) = mpsc::sync_channel(16);
    thread::spawn(move || {
        while let Ok(Some(frame)) = wire::read(&mut agent) {
            if sender.send(frame).is_err() {
                break;
            }
        }
    });
    frames
}

/// Keeps the last of what the kernel prints.
fn watch_console(mut console: UnixStream, show: bool) -> Arc<Mutex<VecDeque<u8>>> {
    let kept = Arc::new(Mutex::new(VecDeque::new()));
    let writer = Arc::clone(&kept);
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = console.read(&mut buffer) {
            if show {
                let _ = io::stderr().write_all(&buffer[..count]);
            }
            if let Ok(mut kept) = writer.lock() {
                kept.extend(&buffer[..count]);
                let over = kept.len().saturating_sub(CONSOLE_KEPT);
                kept.drain(..over);
            }
        }
    });
    kept
}

/// The console's last lines, for an error message.
fn tail(console: &Mutex<VecDeque<u8>>) -> String {
    let bytes: Vec<u8> = console.lock().map(|kept| kept.iter().copied().collect()).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines = excerpt(&text);
    if lines.is_empty() {
        return "; its console is empty".to_owned();
    }
    format!("; from its console:\n    {}", lines.join("\n    "))
}

/// The lines worth showing: where the kernel says what went wrong, else the end.
fn excerpt(console: &str) -> Vec<&str> {
    let lines: Vec<&str> = console.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let trouble = ["Kernel panic", "BUG: ", "Oops: ", "general protection fault"];
    let first = lines.iter().position(|line| trouble.iter().any(|word| line.contains(word)));
    let start = first.unwrap_or(lines.len().saturating_sub(SHOWN));
    lines.into_iter().skip(start).take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_excerpt_begins_where_the_kernel_names_the_trouble() {
        let console = "[1] fine\r\n\r\n[2] BUG: kernel NULL pointer\r\n[3] Call Trace:\n";
        assert_eq!(excerpt(console), ["[2] BUG: kernel NULL pointer", "[3] Call Trace:"]);
    }

    #[test]
    fn without_trouble_the_excerpt_is_the_end() {
        let console = (0..100).map(|line| format!("line {line}\n")).collect::<String>();
        let lines = excerpt(&console);
        assert_eq!((lines.len(), lines.last()), (SHOWN, Some(&"line 99")));
        assert!(excerpt(" \n\n").is_empty());
    }
}
