//! Starting QEMU and holding on to it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::accel::Accel;
use super::kernel::Kernel;
use super::wire;
use crate::command;

/// What the virtual machine is made of.
#[derive(Debug)]
pub struct Machine {
    /// Kernel to boot.
    pub kernel: Kernel,
    /// Its initramfs.
    pub initramfs: PathBuf,
    /// How instructions are run.
    pub accel: Accel,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Host folder shared writable with the guest.
    pub out: Option<PathBuf>,
    /// Connect the terminal to a console of the guest.
    pub terminal: bool,
}

/// A running QEMU, killed when dropped.
#[derive(Debug)]
pub struct Qemu {
    child: Child,
    /// Frames to and from the agent.
    pub agent: UnixStream,
    /// What the kernel prints.
    pub console: UnixStream,
}

impl Qemu {
    /// Starts the machine.
    ///
    /// # Errors
    /// When QEMU is not installed or cannot be started, or a path cannot be passed on to the guest.
    pub fn start(machine: &Machine) -> Result<Self> {
        let (agent, agent_far) = UnixStream::pair().context("cannot make a socket pair")?;
        let (console, console_far) = UnixStream::pair().context("cannot make a socket pair")?;
        let inherited = [agent_far.as_raw_fd(), console_far.as_raw_fd()];
        let mut qemu = command::tool("qemu-system-x86_64")?;
        qemu.args(arguments(machine, inherited)?);
        qemu.stdin(if machine.terminal { Stdio::inherit() } else { Stdio::null() });
        if !machine.terminal {
            // Ctrl-C is for this process; QEMU would announce on the terminal that it got the signal too.
            qemu.process_group(0);
        }
        // Nothing of QEMU's own may mix with the command's output.
        qemu.stdout(if machine.terminal { Stdio::inherit() } else { Stdio::null() });
        let parent = std::process::id();
        // SAFETY: between fork and exec the closure only makes system calls that are async-signal-safe (prctl, getppid,
        // fcntl), allocates nothing and touches no lock; the descriptors are open until `spawn` has returned.
        unsafe {
            qemu.pre_exec(move || {
                die_with(parent)?;
                inherited.iter().try_for_each(|&fd| keep_open(fd))
            });
        }
        let child = qemu.spawn().context("cannot start qemu-system-x86_64")?;
        Ok(Self { child, agent, console })
    }

    /// Waits for the guest to power off, upon which QEMU gives the terminal back as it was; asks it to after five seconds.
    pub fn quit(mut self) {
        if !self.ends_within(Duration::from_secs(5)) {
            if let Ok(pid) = i32::try_from(self.child.id()) {
                // SAFETY: `kill` touches no memory; the child is ours and not waited for yet, so the pid is still its.
                unsafe { libc::kill(pid, libc::SIGTERM) };
            }
            self.ends_within(Duration::from_secs(2));
        }
    }

    fn ends_within(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            thread::sleep(Duration::from_millis(20));
        }
        false
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Has the kernel kill this process when its parent dies, however that happens.
fn die_with(parent: u32) -> io::Result<()> {
    // SAFETY: these calls take plain integers.
    let (set, now) = unsafe { (libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL), libc::getppid()) };
    if set != 0 {
        return Err(io::Error::last_os_error());
    }
    // The parent may have died before the request was made.
    if u32::try_from(now) != Ok(parent) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(())
}

/// Lets a descriptor through exec.
fn keep_open(fd: RawFd) -> io::Result<()> {
    // SAFETY: F_SETFD takes an integer and changes only the descriptor's flags.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// QEMU's command line. The descriptors are those of the agent's socket and of the console's.
fn arguments(machine: &Machine, [agent, console]: [RawFd; 2]) -> Result<Vec<OsString>> {
    let xtask = std::env::current_exe().context("cannot find xtask's own path")?;
    // On a busy host the emulated processors' time-stamp counters drift apart. The kernel's watchdog would then mark them
    // unstable, which rewrites running code, and that an emulated machine of two processors may not survive.
    let mut append = String::from("console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable");
    append.push_str(&parameter("agent", &xtask)?);
    append.push_str(&parameter("kmods", &machine.kernel.lib.join("modules"))?);
    if machine.out.is_some() {
        append.push_str(" out=1");
    }

    let mut line: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| line.extend(words.iter().map(OsString::from));
    add(&["-machine", "q35", "-smp", "2", "-m", &machine.memory_mib.to_string()]);
    add(&machine.accel.arguments());
    add(&["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
    add(&["-chardev", &format!("socket,id=console,fd={console}"), "-serial", "chardev:console"]);
    add(&["-device", "virtio-serial-pci"]);
    add(&["-chardev", &format!("socket,id=agent,fd={agent}")]);
    add(&["-device", &format!("virtserialport,chardev=agent,name={}", wire::PORT)]);
    if machine.terminal {
        add(&["-chardev", "stdio,id=terminal,signal=off", "-device", "virtconsole,chardev=terminal"]);
    }
    // Device numbers of the host's several file systems must not clash inside one share.
    add(&["-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"]);
    add(&["-device", "virtio-9p-pci,fsdev=host,mount_tag=host"]);
    if let Some(out) = &machine.out {
        let path = escaped(out)?;
        add(&["-fsdev", &format!("local,id=out,path={path},security_model=none,multidevs=remap")]);
        add(&["-device", "virtio-9p-pci,fsdev=out,mount_tag=out"]);
    }
    add(&["-append", &append]);
    line.extend(["-kernel".into(), machine.kernel.image.clone().into_os_string()]);
    line.extend(["-initrd".into(), machine.initramfs.clone().into_os_string()]);
    Ok(line)
}

/// A kernel parameter that the guest's init finds in its environment.
fn parameter(name: &str, path: &Path) -> Result<String> {
    match path.to_str() {
        Some(text) if !text.contains('"') && !text.contains('\n') => Ok(format!(" \"{name}={text}\"")),
        _ => bail!(
            "the path \"{}\" cannot be passed to the guest: it has a quote or is not UTF-8",
            path.display()
        ),
    }
}

/// A path inside one of QEMU's comma-separated options, where a comma is doubled.
fn escaped(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("the path \"{}\" is not UTF-8", path.display()))?;
    Ok(text.replace(',', ",,"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_paths_are_doubled_and_spaces_kept() {
        assert_eq!(escaped(Path::new("/a,b c")).unwrap(), "/a,,b c");
    }

    #[test]
    fn kernel_parameters_are_quoted_whole() {
        assert_eq!(parameter("agent", Path::new("/a b/xtask")).unwrap(), " \"agent=/a b/xtask\"");
        assert!(parameter("agent", Path::new("/a\"b")).is_err());
    }
}
