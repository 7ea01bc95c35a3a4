//! Package managers: which one this machine has, and what to tell it.

use std::collections::BTreeSet;
use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};

use super::needs::{Need, Packages};
use crate::command;
use crate::paths;

/// A package manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manager {
    /// Debian and its descendants.
    Apt,
    /// Fedora and its relatives.
    Dnf,
    /// Arch.
    Pacman,
    /// openSUSE.
    Zypper,
}

impl Manager {
    /// The one this machine has.
    pub fn here() -> Option<Self> {
        let known =
            [(Self::Apt, "apt-get"), (Self::Dnf, "dnf"), (Self::Pacman, "pacman"), (Self::Zypper, "zypper")];
        known.into_iter().find(|(_, program)| paths::program(program).is_some()).map(|(manager, _)| manager)
    }

    /// The packages for these needs, each once.
    pub fn packages(self, needs: &[Need]) -> BTreeSet<&'static str> {
        let name = |packages: Packages| match self {
            Self::Apt => packages.apt,
            Self::Dnf => packages.dnf,
            Self::Pacman => packages.pacman,
            Self::Zypper => packages.zypper,
        };
        needs.iter().map(|need| name(need.packages)).filter(|name| !name.is_empty()).collect()
    }

    /// The command that installs them, without `sudo`.
    pub fn install(self, packages: &BTreeSet<&str>) -> Vec<String> {
        let words: &[&str] = match self {
            // Recommended packages would bring a desktop's worth of QEMU front ends. Another apt may be at work.
            Self::Apt => &[
                "apt-get",
                "install",
                "-y",
                "-q",
                "--no-install-recommends",
                "-o",
                "DPkg::Lock::Timeout=300",
            ],
            Self::Dnf => &["dnf", "install", "-y"],
            Self::Pacman => &["pacman", "-S", "--needed"],
            Self::Zypper => &["zypper", "install", "-y"],
        };
        words.iter().chain(packages).map(|&word| word.to_owned()).collect()
    }
}

/// How commands can be run as root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// This process is root.
    Already,
    /// By sudo, which may ask for a password.
    Sudo,
    /// Not at all.
    No,
}

impl Root {
    /// Looks at who runs this and whether sudo would work.
    pub fn here() -> Self {
        // SAFETY: `geteuid` takes nothing, changes nothing and cannot fail.
        let euid = unsafe { libc::geteuid() };
        let sudo = paths::program("sudo").is_some();
        let silent = || {
            let sudo = Command::new("sudo").args(["-n", "true"]).stderr(std::process::Stdio::null()).status();
            sudo.is_ok_and(|status| status.success())
        };
        decide(euid, sudo, std::io::stdin().is_terminal(), silent)
    }

    fn command(self, words: &[String]) -> Command {
        let (program, arguments) = words.split_first().map_or(("", words), |(p, a)| (p.as_str(), a));
        let mut command = match self {
            Self::Sudo => {
                let mut command = Command::new("sudo");
                command.arg("DEBIAN_FRONTEND=noninteractive").arg(program);
                command
            }
            Self::Already | Self::No => Command::new(program),
        };
        command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        command
    }
}

/// sudo serves where someone can type a password, or none is asked for.
fn decide(euid: u32, sudo: bool, terminal: bool, silent: impl FnOnce() -> bool) -> Root {
    match (euid, sudo) {
        (0, _) => Root::Already,
        (_, true) if terminal || silent() => Root::Sudo,
        _ => Root::No,
    }
}

/// Installs Debian packages, renewing the package lists at most once and only where that is needed.
///
/// # Errors
/// When apt fails; what it said is quoted.
pub fn apt_install(packages: &BTreeSet<&str>, root: Root) -> Result<()> {
    if root == Root::No {
        bail!("installing needs root, and sudo would not work here");
    }
    let stale = lists_are_stale() || !all_known(packages);
    if stale {
        renew(root)?;
    }
    let install = Manager::Apt.install(packages);
    match command::output(&mut root.command(&install)) {
        Err(_) if !stale => {
            // The usual cause: the archive no longer has the versions that the lists name.
            renew(root)?;
            command::output(&mut root.command(&install)).map(drop)
        }
        other => other.map(drop),
    }
}

fn renew(root: Root) -> Result<()> {
    println!("setup: apt-get update (the package lists are missing or stale)");
    let words = ["apt-get", "update", "-q", "-o", "DPkg::Lock::Timeout=300"].map(str::to_owned);
    command::output(&mut root.command(&words)).map(drop).context("cannot renew the package lists")
}

/// Old lists name versions that are gone, or an old compiler where a security archive has a newer one.
fn lists_are_stale() -> bool {
    let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let lists = Path::new("/var/lib/apt/lists");
    let empty = !fs::read_dir(lists).is_ok_and(|mut entries| {
        entries
            .any(|entry| entry.is_ok_and(|entry| entry.file_name().to_string_lossy().contains("_Packages")))
    });
    // `apt-get update` works in this folder even when nothing has changed, and nothing else does.
    let renewed = modified(&lists.join("partial"));
    let folder =
        fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten().map(|entry| entry.path());
    let sources =
        folder.chain([PathBuf::from("/etc/apt/sources.list")]).filter_map(|path| modified(&path)).max();
    empty || renewed.is_none_or(|renewed| stale(renewed, sources, SystemTime::now()))
}

/// Lists go stale after a day, and when the sources they were made from have changed.
fn stale(renewed: SystemTime, sources: Option<SystemTime>, now: SystemTime) -> bool {
    let age = now.duration_since(renewed).unwrap_or_default();
    age > Duration::from_secs(24 * 3600) || sources.is_some_and(|changed| changed > renewed)
}

/// True when apt's lists have every package.
fn all_known(packages: &BTreeSet<&str>) -> bool {
    let Ok(mut show) = command::tool("apt-cache") else { return false };
    command::output(show.args(["show", "--no-all-versions"]).args(packages)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::needs::{Group, NEEDS};

    #[test]
    fn packages_shared_by_needs_are_asked_for_once() {
        let build: Vec<Need> = NEEDS.iter().filter(|need| need.group == Group::Build).copied().collect();
        let packages = Manager::Dnf.packages(&build);
        assert!(packages.contains("rdma-core-devel") && packages.len() < build.len());
    }

    #[test]
    fn needs_without_a_package_here_are_left_out() {
        let ebpf: Vec<Need> = NEEDS.iter().filter(|need| need.group == Group::Ebpf).copied().collect();
        assert!(Manager::Pacman.packages(&ebpf).is_empty());
        assert!(Manager::Apt.packages(&ebpf).contains("rust-web-src"));
    }

    #[test]
    fn each_manager_is_given_its_own_words() {
        let packages = BTreeSet::from(["perftest", "strace"]);
        assert_eq!(Manager::Pacman.install(&packages).join(" "), "pacman -S --needed perftest strace");
        assert!(Manager::Apt.install(&packages).starts_with(&["apt-get".to_owned(), "install".to_owned()]));
    }

    #[test]
    fn lists_go_stale_with_age_and_with_changed_sources() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let ago = |hours: u64| now - Duration::from_secs(hours * 3600);
        assert!(!stale(ago(1), Some(ago(2)), now));
        assert!(!stale(ago(1), None, now));
        assert!(stale(ago(30), Some(ago(50)), now));
        assert!(stale(ago(2), Some(ago(1)), now));
        assert!(!stale(now + Duration::from_secs(60), Some(now), now), "a clock that went back");
    }

    #[test]
    fn sudo_is_used_only_where_it_can_work() {
        assert_eq!(decide(0, false, false, || false), Root::Already);
        assert_eq!(decide(1000, true, true, || false), Root::Sudo);
        assert_eq!(decide(1000, true, false, || true), Root::Sudo);
        assert_eq!(decide(1000, true, false, || false), Root::No);
        assert_eq!(decide(1000, false, true, || true), Root::No);
    }
}
