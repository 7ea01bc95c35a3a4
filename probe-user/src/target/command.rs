//! A command started under the profiler: held before its first instruction until the probes are in place.

use std::ffi::{CStr, CString, OsString};
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::thread::{self, JoinHandle};

/// As whom a command runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// All groups.
    pub groups: Vec<u32>,
    /// Login name, empty where the id has none.
    pub name: String,
    /// Home directory, where known.
    pub home: Option<PathBuf>,
}

/// The user who called sudo, when we run as root through it: the command is his, not root's.
pub fn invoking_user() -> Option<Identity> {
    // SAFETY: the call has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return None;
    }
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    let (uid, gid) = (number("SUDO_UID")?, number("SUDO_GID")?);
    if uid == 0 {
        return None;
    }
    let (name, home) = account(uid).unwrap_or_default();
    let groups = groups_of(&name, gid);
    Some(Identity { uid, gid, groups, name, home })
}

/// A command that waits before its first instruction.
#[derive(Debug)]
pub struct Paused {
    pid: u32,
    gate: PipeWriter,
    spawner: JoinHandle<io::Result<Child>>,
}

/// A command that runs.
pub type Running = Child;

impl Paused {
    /// Forks, and holds the child before `exec`. Standard input, output and error are the profiler's own.
    ///
    /// # Errors
    /// When the process cannot be made. A program that does not exist is told by [`Paused::release`].
    pub fn spawn(command: &[OsString], identity: Option<Identity>) -> io::Result<Self> {
        Self::spawn_with(command, identity, &[])
    }

    /// As [`Paused::spawn`], with these environment variables set.
    ///
    /// # Errors
    /// As [`Paused::spawn`].
    pub fn spawn_with(
        command: &[OsString],
        identity: Option<Identity>,
        variables: &[(&str, OsString)],
    ) -> io::Result<Self> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut child = Command::new(program);
        child.args(arguments).envs(variables.iter().map(|(name, value)| (name, value)));
        if let Some(user) = &identity {
            if let Some(home) = &user.home {
                child.env("HOME", home);
            }
            if !user.name.is_empty() {
                child.env("USER", &user.name).env("LOGNAME", &user.name);
            }
        }
        let (mut ready, ready_end) = io::pipe()?;
        let (gate_end, gate) = io::pipe()?;
        let ours = gate.as_raw_fd();
        let mut ends = Some((ready_end, gate_end));
        // SAFETY: between fork and exec the closure makes system calls only, on descriptors and memory made before.
        unsafe {
            child.pre_exec(move || {
                // The child's copy of our end would keep the gate from closing should we die.
                libc::close(ours);
                let Some((ready, gate)) = ends.take() else { return Err(io::ErrorKind::InvalidInput.into()) };
                hold(ready, gate)?;
                identity.as_ref().map_or(Ok(()), become_user)
            });
        }
        // `spawn` returns only after exec, so it waits in a thread of its own.
        let spawner = thread::Builder::new().name("spawn".to_owned()).spawn(move || {
            let spawned = child.spawn();
            // Closes the parent's copies of the pipe ends the closure holds.
            drop(child);
            spawned
        })?;
        let mut pid = [0; 4];
        match ready.read_exact(&mut pid) {
            Ok(()) => Ok(Self { pid: u32::from_ne_bytes(pid), gate, spawner }),
            // The fork itself failed.
            Err(_) => Err(join(spawner).err().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Process id, the same before and after `exec`.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Lets the command run.
    ///
    /// # Errors
    /// When the program cannot be executed.
    pub fn release(mut self) -> io::Result<Running> {
        self.gate.write_all(&[1])?;
        drop(self.gate);
        join(self.spawner)
    }
}

fn join(spawner: JoinHandle<io::Result<Child>>) -> io::Result<Child> {
    spawner.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

/// In the child: tells its pid and waits to be let go.
fn hold(mut ready: PipeWriter, mut gate: PipeReader) -> io::Result<()> {
    // SAFETY: the call has no preconditions.
    let pid = unsafe { libc::getpid() }.cast_unsigned();
    ready.write_all(&pid.to_ne_bytes())?;
    drop(ready);
    let mut word = [0; 1];
    // Nothing comes when the profiler has died: then the command never runs.
    gate.read_exact(&mut word)
}

/// In the child: takes on the identity of a user, groups first, while still allowed to.
fn become_user(user: &Identity) -> io::Result<()> {
    // SAFETY: plain system calls; the group list is as long as said.
    let failed = unsafe {
        libc::setgroups(user.groups.len(), user.groups.as_ptr()) != 0
            || libc::setgid(user.gid) != 0
            || libc::setuid(user.uid) != 0
    };
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Login name and home directory of a user.
fn account(uid: u32) -> Option<(String, Option<PathBuf>)> {
    let mut buffer = vec![0 as libc::c_char; 16 << 10];
    // SAFETY: all-zero is a valid passwd (null pointers, zero ids).
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: the buffer is as long as said and outlives the use of what points into it.
    let status =
        unsafe { libc::getpwuid_r(uid, &raw mut entry, buffer.as_mut_ptr(), buffer.len(), &raw mut found) };
    if status != 0 || found.is_null() {
        return None;
    }
    let text = |at: *const libc::c_char| {
        // SAFETY: a string of the entry just read, in our buffer, or null.
        (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
    };
    Some((text(entry.pw_name)?, text(entry.pw_dir).map(PathBuf::from)))
}

/// All groups of a user; the primary one alone where the name is not known.
fn groups_of(name: &str, gid: u32) -> Vec<u32> {
    let Ok(name) = CString::new(name) else { return vec![gid] };
    if name.is_empty() {
        return vec![gid];
    }
    let mut groups = vec![0; 1024];
    let mut count = groups.len() as libc::c_int;
    // SAFETY: the list is as long as said.
    if unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) } < 0 {
        return vec![gid];
    }
    groups.truncate(usize::try_from(count).unwrap_or(0));
    groups
}

/// The file of a program as the shell would find it.
pub fn program_file(program: &std::ffi::OsStr) -> Option<(PathBuf, File)> {
    let direct = PathBuf::from(program);
    if program.as_encoded_bytes().contains(&b'/') {
        return File::open(&direct).ok().map(|file| (direct, file));
    }
    std::env::split_paths(&std::env::var_os("PATH")?).find_map(|folder| {
        let path = folder.join(program);
        let file = File::open(&path).ok()?;
        file.metadata().ok()?.is_file().then_some((path, file))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_runs_only_when_released_and_its_status_is_passed_on() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("mark");
        let script = format!("touch {}; exit 7", mark.display());
        let paused = Paused::spawn(&["sh".into(), "-c".into(), script.into()], None).unwrap();
        assert!(paused.pid() > 0);
        thread::sleep(std::time::Duration::from_millis(50));
        assert!(!mark.exists());
        let mut running = paused.release().unwrap();
        assert_eq!(running.wait().unwrap().code(), Some(7));
        assert!(mark.exists());
    }

    #[test]
    fn a_program_that_is_not_there_is_told_at_release() {
        let paused = Paused::spawn(&["/nonexistent/program".into()], None).unwrap();
        assert_eq!(paused.release().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_command_never_runs_when_the_profiler_gives_up() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("mark");
        let paused = Paused::spawn(&["touch".into(), mark.clone().into()], None).unwrap();
        let Paused { gate, spawner, .. } = paused;
        drop(gate);
        assert!(join(spawner).is_err());
        assert!(!mark.exists());
    }
}
