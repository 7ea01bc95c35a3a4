//! `rdma-probe providers`: the data path of provider libraries, read from their files.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use probe_user::entry::{Class, Kernel};
use probe_user::providers::{Function, Probed, Provider, inspect, installed};

/// Show the data-path functions of provider libraries and what a probe on each would cost here
///
/// Needs no device and no privilege: post, poll and extended-API functions are found in the files of stripped
/// libraries. A probe costs about 0.2 µs a hit where the kernel rewrites the instruction, 0.4 µs where it emulates it,
/// and 3–16 µs where it single-steps it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rdma-probe providers                       every provider installed on this host
  rdma-probe providers --extended libmlx5.so.1
  rdma-probe providers --root /proc/4711/root      those a container sees
  rdma-probe providers --kernel 6.1.0 --json")]
pub struct Args {
    /// Libraries to look at; those installed under --root when none is named
    #[arg(value_name = "LIBRARY")]
    libraries: Vec<PathBuf>,
    /// Where to look for installed providers
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// List the extended API's functions too (`ibv_wr_*`, `start_poll`)
    #[arg(long)]
    extended: bool,
    /// Judge for this kernel release (x86-64) instead of the running one
    #[arg(long, value_name = "RELEASE")]
    kernel: Option<String>,
    /// Print JSON, every function listed
    #[arg(long)]
    json: bool,
}

/// # Errors
/// A library named on the command line that cannot be inspected; standard output that cannot be written.
pub fn run(args: Args) -> Result<ExitCode> {
    let kernel = args.kernel.as_deref().map_or_else(Kernel::running, |r| Kernel::from_release(r, "x86_64"));
    let paths = if args.libraries.is_empty() { installed(&args.root) } else { args.libraries };
    let mut providers = Vec::new();
    for path in &paths {
        providers.push(inspect(path, &kernel)?);
    }
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &providers).context("cannot write the list")?;
        writeln!(out)?;
    } else if providers.is_empty() {
        writeln!(out, "no provider library under \"{}\"", args.root.display())?;
    } else {
        for provider in &providers {
            table(&mut out, provider, args.extended)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table(out: &mut impl Write, provider: &Provider, extended: bool) -> io::Result<()> {
    let abi = provider.private_abi.map_or_else(|| "no provider".to_owned(), |n| format!("private ABI {n}"));
    writeln!(out, "{} ({abi})", provider.path.display())?;
    let classic = provider.functions.iter().filter(|f| !f.role.is_extended());
    let more = provider.functions.iter().filter(|f| f.role.is_extended());
    for function in classic.chain(more.clone().filter(|_| extended)) {
        row(out, function)?;
    }
    if extended {
        let reads = &provider.reads;
        let parts = [
            ("read_qp_num", &reads.read_qp_num, &reads.number),
            ("read_opcode", &reads.read_opcode, &reads.side),
        ];
        for (field, functions, understood) in
            parts.into_iter().filter(|(_, functions, _)| !functions.is_empty())
        {
            let places = functions.iter().map(|f| format!("+{f:#x}")).collect::<Vec<_>>().join(" ");
            let understood =
                understood.as_deref().unwrap_or("not understood: it is guessed what a completion is of");
            writeln!(out, "  {field:<24}{places:<24}{:<15}{understood}", "read, not run")?;
        }
    }
    if provider.functions.is_empty() {
        writeln!(out, "  no data path found in the file; a running process still shows its own")?;
    } else if !extended && more.clone().next().is_some() {
        writeln!(out, "  and {} of the extended API (--extended)", more.count())?;
    }
    writeln!(out)
}

fn row(out: &mut impl Write, function: &Function) -> io::Result<()> {
    let place = match (function.file_offset, function.probe_delta) {
        (Some(offset), Some(0)) => format!("+{offset:#x}"),
        (Some(offset), Some(delta)) => format!("+{offset:#x}+{delta}"),
        (Some(offset), None) => format!("+{offset:#x}"),
        (None, _) => function.import.clone().unwrap_or_default(),
    };
    let class = function.class.map_or("-", class_name);
    let probed = match function.probed {
        Probed::Entry => "entry",
        Probed::EntryAndReturn => "entry, return",
        Probed::Nowhere => "not probed",
    };
    writeln!(out, "  {:<24}{place:<24}{probed:<15}{class:<16}{}", function.role.name(), function.reason)
}

fn class_name(class: Class) -> &'static str {
    match class {
        Class::Optimised => "optimised",
        Class::Emulated => "emulated",
        Class::SingleStepped => "single-stepped",
    }
}
