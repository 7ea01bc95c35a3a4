//! `cargo xtask setup`: finds what the machine lacks, says why it is needed, and installs it where it may.

mod manager;
mod needs;
pub mod tools;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::command::quoted;
use manager::{Manager, Root};
use needs::NEEDS;
pub use needs::{Group, Need};

const EXAMPLES: &str = "\
Examples:
  cargo xtask setup --check    say what is missing and change nothing; status 1 if anything is
  cargo xtask setup            install it
  cargo xtask setup --ebpf     also what rebuilding the BPF object needs

On Debian and Ubuntu packages are installed with apt-get (as root, or through sudo); elsewhere the command to
install them is printed. Tools built by cargo go to $XDG_CACHE_HOME/rdma-probe/toolchain.";

/// Arguments of `setup`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Only say what is missing; exit with status 1 if anything is
    #[arg(long)]
    check: bool,
    /// Also look after what rebuilding the BPF object needs (compiler with sources, LLVM, bpf-linker)
    #[arg(long)]
    ebpf: bool,
    /// Also build cargo-deny, which `test` then runs
    #[arg(long)]
    deny: bool,
}

/// Does the task; returns the status to exit with.
///
/// # Errors
/// When something that is missing cannot be installed.
pub fn main(options: &Options) -> Result<u8> {
    let wanted = Wanted {
        groups: Group::USUAL.into_iter().chain(options.ebpf.then_some(Group::Ebpf)).collect(),
        linker: options.ebpf,
        deny: options.deny,
    };
    if options.check {
        return Ok(u8::from(!check(&wanted)));
    }
    ensure(&wanted)?;
    println!("setup: everything is there");
    Ok(0)
}

/// What is to be there.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Groups of needs.
    pub groups: Vec<Group>,
    /// The BPF linker, with its LLVM.
    pub linker: bool,
    /// cargo-deny.
    pub deny: bool,
}

/// Installs what is missing of what is wanted; says nothing when nothing is.
///
/// # Errors
/// When it cannot be installed, with the command that would.
pub fn ensure(wanted: &Wanted) -> Result<()> {
    let missing = missing(&wanted.groups);
    if !missing.is_empty() {
        show(&missing);
        install(&missing)?;
        let left: Vec<String> =
            missing.iter().filter(|n| !n.sign.is_there()).map(|n| n.sign.to_string()).collect();
        if !left.is_empty() {
            bail!("still missing after the installation: {}", left.join(", "));
        }
    }
    if wanted.linker {
        linker()?;
    }
    if wanted.deny && tools::find(tools::DENY).is_none() {
        tools::cargo_deny().install()?;
    }
    Ok(())
}

/// Says what is missing; true when nothing is.
fn check(wanted: &Wanted) -> bool {
    let missing = missing(&wanted.groups);
    show(&missing);
    if let (false, Some(manager)) = (missing.is_empty(), Manager::here()) {
        println!(
            "setup: `cargo xtask setup` would run: {}",
            line(&manager.install(&manager.packages(&missing)))
        );
    }
    let built = [
        (wanted.linker, tools::LINKER, "links the BPF object"),
        (wanted.deny, tools::DENY, "checks dependencies"),
    ];
    let absent: Vec<_> =
        built.iter().filter(|(wanted, name, _)| *wanted && tools::find(name).is_none()).collect();
    for (_, name, why) in &absent {
        println!("  {name:<22} {why} (built by `cargo install`)");
    }
    let complete = missing.is_empty() && absent.is_empty();
    if complete {
        println!("setup: everything is there");
    }
    complete
}

fn missing(groups: &[Group]) -> Vec<Need> {
    NEEDS.iter().filter(|need| groups.contains(&need.group) && !need.sign.is_there()).copied().collect()
}

fn show(missing: &[Need]) {
    if missing.is_empty() {
        return;
    }
    println!("setup: missing here, and why it is needed:");
    for need in missing {
        println!("  {:<22} {}", need.sign.to_string(), need.why);
    }
}

fn install(missing: &[Need]) -> Result<()> {
    let Some(manager) = Manager::here() else {
        bail!("no package manager known here (apt, dnf, pacman, zypper): install the above by hand");
    };
    let packages = manager.packages(missing);
    let command = line(&manager.install(&packages));
    let root = Root::here();
    if manager != Manager::Apt || root == Root::No {
        bail!("install what is missing with: sudo {command}");
    }
    println!("setup: {command}");
    manager::apt_install(&packages, root).with_context(|| format!("cannot install: try `sudo {command}`"))
}

/// The linker and the LLVM it shares with the compiler.
fn linker() -> Result<()> {
    if tools::find(tools::LINKER).is_some() {
        return Ok(());
    }
    let major = tools::debian_llvm_major()?;
    let known = tools::LINKER_LLVM;
    if !known.contains(&major) {
        bail!(
            "bpf-linker is known to build with LLVM {} to {}, and the compiler here has LLVM {major}: upgrade rustc-web",
            known.start(),
            known.end()
        );
    }
    let header = format!("/usr/lib/llvm-{major}/include/llvm/IR/Module.h");
    if !std::path::Path::new(&header).exists() {
        let package = format!("llvm-{major}-dev");
        println!("setup: installing {package} (what bpf-linker is built with, the compiler's own LLVM)");
        manager::apt_install(&[package.as_str()].into(), Root::here())?;
    }
    tools::bpf_linker(major).install()
}

fn line(words: &[String]) -> String {
    words.iter().map(|word| quoted(word.as_ref())).collect::<Vec<_>>().join(" ")
}
