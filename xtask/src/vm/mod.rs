//! `cargo xtask vm`: a Debian kernel with real soft-RoCE, over this machine's files.

mod accel;
pub mod agent;
mod cpio;
mod initramfs;
mod kernel;
mod qemu;
mod session;
pub mod test;
mod wire;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};

use crate::build_task;
use crate::paths;
use session::{PassOn, Plan};
use wire::Job;

/// Status when the virtual machine itself fails, as `env` and `timeout` have it for failures of their own.
pub const FAILED: u8 = 125;

pub use kernel::TESTED;

/// What to do with the virtual machine.
#[derive(Debug, Subcommand)]
pub enum Task {
    /// Run a command as root in the guest
    Run(Run),
    /// Open a shell in the guest
    Shell(Options),
    /// Run the tests that need real soft-RoCE, on each kernel
    Test(test::Test),
}

const EXAMPLES: &str = "\
The guest has this machine's files, read-only with a writable layer that is thrown away, the workspace's binaries on
PATH and a soft-RoCE device. The command finds RDMA_DEV, RDMA_IP and RDMA_GID_INDEX in its environment.

Examples:
  cargo xtask vm run -- ibv_devinfo
  cargo xtask vm run --kernel 6.12 -- sh -c 'ib_write_bw -d $RDMA_DEV & sleep 2; ib_write_bw -d $RDMA_DEV $RDMA_IP'
  cargo xtask vm run --out results -- sh -c 'dmesg > $VM_OUT/dmesg'

Exit status: the command's; 124 on the time limit, 125 when the virtual machine itself fails,
126 and 127 when the command cannot be run or is not found.";

/// Arguments of `vm run`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Run {
    #[command(flatten)]
    options: Options,
    /// Seconds the command may take, the boot not counted; 0 for no limit
    #[arg(long, value_name = "S", default_value_t = TIMEOUT_S)]
    timeout: u64,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// What the guest is made of.
#[derive(Debug, Args)]
pub struct Options {
    /// Debian kernel series (6.1, 6.12), a folder unpacked from a kernel package, or a vmlinuz beside its modules
    #[arg(long, value_name = "SERIES|PATH", default_value = kernel::TESTED[0])]
    kernel: String,
    /// Memory of the guest in MiB
    #[arg(long, value_name = "MIB", default_value_t = MEMORY_MIB, value_parser = clap::value_parser!(u32).range(512..))]
    memory: u32,
    /// Folder the guest can write to: it finds it at $VM_OUT
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Put the release binaries on PATH, not the debug ones
    #[arg(long)]
    release: bool,
    /// Take the binaries as they are, without building them first
    #[arg(long)]
    no_build: bool,
    /// Show the kernel's console on standard error
    #[arg(long)]
    console: bool,
}

/// Limit for the command unless told otherwise, in seconds.
const TIMEOUT_S: u64 = 600;
/// Memory of the guest unless told otherwise, in MiB.
const MEMORY_MIB: u32 = 4096;

impl Options {
    /// The usual guest with a kernel.
    fn new(kernel: &str) -> Self {
        Self {
            kernel: kernel.to_owned(),
            memory: MEMORY_MIB,
            out: None,
            release: false,
            no_build: false,
            console: false,
        }
    }
}

/// Where the guest finds the `--out` folder.
const OUT: &str = "/mnt/out";

/// Does the task; returns the status to exit with.
///
/// # Errors
/// When the guest cannot be had or fails.
pub fn main(task: Task) -> Result<u8> {
    match task {
        Task::Run(run) => {
            let limit = (run.timeout > 0).then(|| Duration::from_secs(run.timeout));
            let plan = plan(&run.options, run.command, false, limit)?;
            session::run(&plan, &mut PassOn)
        }
        Task::Test(test) => test::main(&test),
        Task::Shell(options) => {
            let shell = env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
            let plan = plan(&options, vec![shell], true, None)?;
            session::run(&plan, &mut PassOn)
        }
    }
}

/// Runs a command in the usual guest with a folder shared at `$VM_OUT`; returns its status.
///
/// # Errors
/// When the guest cannot be had or fails.
pub fn run_shared(kernel: &str, out: &Path, argv: Vec<OsString>) -> Result<u8> {
    let options = Options { out: Some(out.to_path_buf()), ..Options::new(kernel) };
    session::run(&plan(&options, argv, false, Some(Duration::from_secs(TIMEOUT_S)))?, &mut PassOn)
}

fn plan(options: &Options, argv: Vec<OsString>, terminal: bool, limit: Option<Duration>) -> Result<Plan> {
    if !options.no_build {
        build_task::workspace(options.release)
            .context("the workspace does not build (--no-build takes the binaries as they are)")?;
    }
    let kernel = kernel::resolve(&options.kernel)?;
    let out = options.out.as_deref().map(shared).transpose()?;
    let cwd = env::current_dir().context("cannot read the working directory")?.into_os_string();
    let env = environment(env::vars_os(), &paths::binaries(options.release), out.is_some());
    let job = Job { argv, env, cwd, terminal };
    Ok(Plan { kernel, job, memory_mib: options.memory, limit, out, console: options.console })
}

fn shared(out: &Path) -> Result<PathBuf> {
    fs::create_dir_all(out).with_context(|| format!("cannot create \"{}\"", out.display()))?;
    fs::canonicalize(out).with_context(|| format!("cannot resolve \"{}\"", out.display()))
}

/// The command's environment: the caller's, without what cargo adds to run this task, with our binaries first on PATH
/// and the system folders on it, since the command runs as root whoever called.
fn environment(
    caller: impl Iterator<Item = (OsString, OsString)>,
    binaries: &Path,
    out: bool,
) -> Vec<OsString> {
    let mut path = OsString::new();
    let mut env = Vec::new();
    for (name, value) in caller {
        match name.to_str() {
            Some("PATH") => path = value,
            Some(name) if is_cargos(name) => {}
            _ => env.push(assignment(&name, &value)),
        }
    }
    let mut folders: Vec<PathBuf> = vec![binaries.to_path_buf()];
    folders.extend(env::split_paths(&path).filter(|folder| !folder.as_os_str().is_empty()));
    for system in ["/usr/sbin", "/usr/bin", "/sbin", "/bin"] {
        if !folders.iter().any(|folder| folder == Path::new(system)) {
            folders.push(PathBuf::from(system));
        }
    }
    // Joining fails only on a colon inside a folder's name, which PATH cannot express anyway.
    let path = env::join_paths(folders).unwrap_or(path);
    env.push(assignment(OsStr::new("PATH"), &path));
    if out {
        env.push(assignment(OsStr::new("VM_OUT"), OsStr::new(OUT)));
    }
    env
}

/// Variables that `cargo run` sets for the program it runs.
fn is_cargos(name: &str) -> bool {
    let prefixes = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
        || ["LD_LIBRARY_PATH", "RUST_RECURSION_COUNT", "RUSTUP_TOOLCHAIN"].contains(&name)
}

fn assignment(name: &OsStr, value: &OsStr) -> OsString {
    let mut text = name.to_os_string();
    text.push("=");
    text.push(value);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> impl Iterator<Item = (OsString, OsString)> {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn our_binaries_come_first_and_system_folders_are_not_repeated() {
        let env = environment(variables(&[("PATH", "/usr/bin:/opt/bin")]), Path::new("/t/debug"), false);
        assert_eq!(env, [OsString::from("PATH=/t/debug:/usr/bin:/opt/bin:/usr/sbin:/sbin:/bin")]);
    }

    #[test]
    fn the_callers_variables_reach_the_command_but_cargos_own_do_not() {
        let caller =
            [("A", "1 2"), ("CARGO_PKG_NAME", "xtask"), ("LD_LIBRARY_PATH", "/x"), ("CARGO_HOME", "/c")];
        let env = environment(variables(&caller), Path::new("/t"), true);
        let expected = ["A=1 2", "CARGO_HOME=/c", "PATH=/t:/usr/sbin:/usr/bin:/sbin:/bin", "VM_OUT=/mnt/out"];
        assert_eq!(env, expected.map(OsString::from));
    }
}
