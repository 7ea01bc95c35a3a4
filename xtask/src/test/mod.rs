//! `cargo xtask test` and `cargo xtask ci`: everything that can be tested on this machine.

pub mod counts;
mod deny;
mod step;

use anyhow::Result;
use clap::Args;

use crate::build_task;
use crate::command;
use crate::ebpf::{self, Comparison};
use crate::screenshots;
use crate::setup::{self, Group, Wanted};
use crate::vm;
use step::{Outcome, Steps};

const EXAMPLES: &str = "\
Examples:
  cargo xtask test             all of it; the first run fetches two kernels (180 MB) for the virtual machine
  cargo xtask test --no-vm     without the virtual machine

What a step prints is shown when it fails; all of it is then in target/test-output/. The last line adds up tests and
steps. Exit status: 0 when nothing failed, else 1.";

/// Arguments of `test` and `ci`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Leave out what needs the virtual machine
    #[arg(long)]
    no_vm: bool,
    /// Show all output
    #[arg(long, short)]
    verbose: bool,
}

/// Who asked for the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// A person: what takes minutes to install is left out where it is missing.
    Person,
    /// The integration: everything is installed first.
    Integration,
}

/// The variable by which rdma-probe loads another BPF object than the embedded one.
const OBJECT: &str = "RDMA_PROBE_BPF_OBJECT";

/// Does the task; returns the status to exit with.
///
/// # Errors
/// When the machine cannot be set up.
pub fn main(options: &Options, by: By) -> Result<u8> {
    setup::ensure(&Wanted { groups: Group::USUAL.to_vec(), ..Wanted::default() })?;
    if by == By::Integration {
        // The steps that use these say themselves what they could not do without.
        let extras = [
            Wanted { groups: vec![Group::Ebpf], linker: true, deny: false },
            Wanted { deny: true, ..Wanted::default() },
        ];
        for error in extras.iter().filter_map(|extra| setup::ensure(extra).err()) {
            println!("setup: {error:#}");
        }
    }

    let mut steps = Steps::new(options.verbose);
    let mut format = command::cargo();
    format.args(["fmt", "--all", "--check"]);
    steps.command("format", format);
    if ebpf::manifest().exists() {
        let mut format = command::cargo();
        format.args(["fmt", "--check", "--manifest-path"]).arg(ebpf::manifest());
        steps.command("format, bpf", format);
    }
    let mut clippy = command::cargo();
    clippy.args(["clippy", "--quiet", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]);
    steps.command("clippy", clippy);
    steps.command("build", build_task::with_tests());
    steps.command("tests", tests());
    steps.take("pictures", |_| {
        screenshots::check()?;
        Ok((Outcome::Passed("(docs/screens is what the dashboard draws)".to_owned()), String::new()))
    });
    deny::take(&mut steps);

    let mut other = None;
    if ebpf::is_committed() {
        steps.take("bpf object", |_| {
            let (outcome, object) = bpf_object()?;
            other = object;
            Ok((outcome, String::new()))
        });
    }
    if let Some(object) = &other {
        let mut tests = tests();
        tests.env(OBJECT, object);
        steps.command("tests, rebuilt", tests);
    }
    guests(options, other.as_deref(), &mut steps);

    let summary = steps.summary();
    println!("{summary}");
    Ok(u8::from(summary.failed > 0))
}

fn tests() -> std::process::Command {
    let mut cargo = command::cargo();
    cargo.args(["test", "--workspace", "--locked", "--no-fail-fast"]).env(testkit::BUILT, "1");
    cargo
}

/// Compares the committed BPF object with its source; returns another object to test with, where there is one.
fn bpf_object() -> Result<(Outcome, Option<std::path::PathBuf>)> {
    if let Err(error) = ebpf::Toolchain::find() {
        // Without a compiler for it the digest of the source still tells whether it was forgotten.
        if ebpf::is_current()? {
            return Ok((
                Outcome::Passed("(from this source; not rebuilt: no toolchain here)".to_owned()),
                None,
            ));
        }
        anyhow::bail!("probe-ebpf/prebuilt is older than its source, and cannot be rebuilt here: {error:#}");
    }
    match ebpf::check()? {
        Comparison::Same => Ok((Outcome::Passed("(rebuilt: the same bytes)".to_owned()), None)),
        Comparison::Different(built) => anyhow::bail!(
            "probe-ebpf/prebuilt is not what its source makes (see \"{}\"): `cargo xtask build --ebpf` renews it",
            built.display()
        ),
        Comparison::OtherToolchain(built) => {
            let note = "(rebuilt with another toolchain than the recorded one: both objects are tested)";
            Ok((Outcome::Passed(note.to_owned()), Some(built)))
        }
    }
}

fn guests(options: &Options, other: Option<&std::path::Path>, steps: &mut Steps) {
    for kernel in vm::TESTED {
        let objects = [Some(None), other.map(Some)].into_iter().flatten();
        for object in objects {
            let name = format!("vm {kernel}{}", if object.is_some() { ", rebuilt" } else { "" });
            steps.take(&name, |verbose| {
                if options.no_vm {
                    return Ok((Outcome::Skipped("--no-vm".to_owned()), String::new()));
                }
                let env = object.map(|path| (OBJECT, path));
                let (status, output) = vm::test::collected(kernel, env, verbose)?;
                Ok((if status == 0 { Outcome::Passed(String::new()) } else { Outcome::Failed }, output))
            });
        }
    }
}
