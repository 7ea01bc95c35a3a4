//! `rnic-emu`: runs a program with emulated RDMA devices.

use anyhow::{Context, Result};
use clap::Parser;
use rnic_emu::device::config::{parse_devices, parse_part_id};
use rnic_emu::device::speed::Speed;
use rnic_emu::launch::{self, Wanted};
use rnic_emu::model::Profile;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Run a program with emulated RDMA devices (emu0, emu1, …), beside any real ones. No root, no kernel module.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:
  rnic-emu -- ibv_devinfo
  rnic-emu -- ib_write_bw -d emu0 & rnic-emu -- ib_write_bw -d emu0 localhost
  rnic-emu --part-id 4123 -- ib_send_lat        # perftest takes its extended path on part IDs it knows
  rnic-emu --devices 2 -- ibv_devices
  rnic-emu --profile cx5-like --speed 1/64 -- ib_write_lat   # as slow as the real thing, times 64

Programs of one user on one host reach each other by GID and QP number. The exit status is the program's.
rdma_cm is not emulated: connection managers (rping, perftest -R) need a real device.
RNIC_EMU_LIB names the library to preload if it is not beside this program."
)]
struct Args {
    /// Number of devices, 1 to 16
    #[arg(long, value_name = "N", value_parser = |v: &str| parse_devices("--devices", v).map_err(|e| e.to_string()))]
    devices: Option<usize>,
    /// Part ID the devices present, e.g. 4119 (ConnectX-5) or 4123 (ConnectX-6)
    #[arg(long, value_name = "ID", value_parser = |v: &str| parse_part_id("--part-id", v).map_err(|e| e.to_string()))]
    part_id: Option<u32>,
    /// Timing profile: the devices take the time such a NIC would (cx3-like, cx5-like, cx6-like, article, or a file).
    /// Without one they are as fast as this machine
    #[arg(long, value_name = "P", value_parser = profile)]
    profile: Option<String>,
    /// Speed of modelled time against the real clock, with --profile; 1/64 lets two cores keep up
    #[arg(long, value_name = "S", requires = "profile", value_parser = speed)]
    speed: Option<String>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Checks a profile here, where a mistake can be answered, and names its file so that the program's folder does not matter.
fn profile(value: &str) -> Result<String, String> {
    Profile::resolve(value).map_err(|e| e.to_string())?;
    if Profile::builtin(value).is_ok() {
        return Ok(value.into());
    }
    let path = std::path::Path::new(value).canonicalize().map_err(|e| e.to_string())?;
    path.into_os_string().into_string().map_err(|p| format!("{p:?} is not UTF-8"))
}

fn speed(value: &str) -> Result<String, String> {
    Speed::parse("--speed", value).map(|_| value.to_string()).map_err(|e| e.to_string())
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(never) => match never {},
        Err(e) => {
            eprintln!("rnic-emu: {e:#}");
            // As shells do: 127 for a program that is not there, 126 for one that cannot be run.
            let code = e.downcast_ref::<std::io::Error>().map(|e| match e.kind() {
                std::io::ErrorKind::NotFound => 127,
                _ => 126,
            });
            ExitCode::from(code.unwrap_or(1))
        }
    }
}

fn run(args: Args) -> Result<std::convert::Infallible> {
    let this = std::env::current_exe().context("cannot find out where this program lies")?;
    let library = launch::library(std::env::var_os(launch::ENV_LIBRARY).as_deref(), &this)?;
    let wanted =
        Wanted { devices: args.devices, part_id: args.part_id, profile: args.profile, speed: args.speed };
    let preload = std::env::var_os("LD_PRELOAD");
    let (program, rest) = args.command.split_first().context("no program given")?;
    // Becoming the program keeps its process ID, signals and exit status its own.
    let failed = Command::new(program)
        .args(rest)
        .envs(launch::environment(&library, preload.as_deref(), &wanted))
        .exec();
    Err(failed).with_context(|| format!("cannot run \"{}\"", program.display()))
}
