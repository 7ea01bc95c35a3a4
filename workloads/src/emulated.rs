//! Running under the emulated RNIC: finding its library beside this program and starting over with it preloaded.

use anyhow::{Context as _, Result, bail};
use rnic_emu::device::config::{ENV_PROFILE, ENV_SPEED};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// File name of the preloadable device.
const LIBRARY: &str = "librnic_emu.so";
/// Profile in force when nothing else is asked for.
pub const DEFAULT_PROFILE: &str = "cx5-like";
/// Carries the profile asked for to a device that is not timed by it.
const ENV_ASKED: &str = "RDMA_WORKLOAD_PROFILE";
/// Set on the second start, so that a library that fails to bring up a device cannot make us start over for ever.
const MARK: &str = "RDMA_WORKLOAD_EMULATED";

/// Whether the emulated device's library is mapped into this process.
pub fn is_loaded() -> bool {
    fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains(LIBRARY))
}

/// Profile of the timing model: the one the device is timed by, or the one asked for where it is not timed.
pub fn profile() -> String {
    env::var(ENV_PROFILE).or_else(|_| env::var(ENV_ASKED)).unwrap_or_else(|_| DEFAULT_PROFILE.to_owned())
}

/// Speed of the device's modelled time against the real clock, as it was asked for; `None` when it is not timed.
pub fn speed() -> Option<String> {
    env::var(ENV_PROFILE).ok()?;
    Some(env::var(ENV_SPEED).unwrap_or_else(|_| "1/64".to_owned()))
}

/// Settings of the emulated device in a process to be started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Profile; the default one when absent.
    pub profile: Option<String>,
    /// Speed of modelled time; absent for a device that is as fast as this machine.
    pub speed: Option<String>,
}

impl Settings {
    /// Puts the settings into a command's environment.
    pub fn apply(&self, command: &mut Command) {
        let profile = self.profile.as_deref().unwrap_or(DEFAULT_PROFILE);
        command.env(ENV_ASKED, profile);
        match &self.speed {
            Some(speed) => command.env(ENV_PROFILE, profile).env(ENV_SPEED, speed),
            None => command.env_remove(ENV_PROFILE).env_remove(ENV_SPEED),
        };
    }
}

/// Where the library may be, most likely first: beside the program (a build tree), or in an installation's lib folder.
fn candidates(program: &Path) -> Vec<PathBuf> {
    let Some(folder) = program.parent() else { return Vec::new() };
    let mut places = vec![folder.join(LIBRARY), folder.join("deps").join(LIBRARY)];
    if let Some(prefix) = folder.parent() {
        places.push(prefix.join(LIBRARY));
        places.push(prefix.join("lib").join(LIBRARY));
        places.push(prefix.join("lib/rdma-probe").join(LIBRARY));
    }
    places
}

/// The library, if it is installed.
pub fn library() -> Option<PathBuf> {
    candidates(&env::current_exe().ok()?).into_iter().find(|place| place.is_file())
}

/// `LD_PRELOAD` with the library behind whatever is preloaded already: a layer such as the tap must stay on top.
pub fn preload_value(library: &Path, present: Option<&OsStr>) -> OsString {
    let mut value = present.unwrap_or_default().to_owned();
    if !value.is_empty() {
        value.push(":");
    }
    value.push(library);
    value
}

/// Replaces this process by itself with the emulated device preloaded. Returns only on failure.
pub fn start_over(settings: &Settings) -> Result<std::convert::Infallible> {
    if env::var_os(MARK).is_some() {
        bail!(
            "the emulated device was loaded and offers no active port; rebuild it with `cargo build -p rnic-emu-preload`"
        );
    }
    let program = env::current_exe().context("finding this program")?;
    let Some(library) = library() else {
        bail!(
            "no usable RDMA device, and {LIBRARY} is not beside {}; build it with `cargo build -p rnic-emu-preload`",
            program.display()
        );
    };
    let mut command = Command::new(&program);
    command
        .args(env::args_os().skip(1))
        .env("LD_PRELOAD", preload_value(&library, env::var_os("LD_PRELOAD").as_deref()))
        .env(MARK, "1");
    settings.apply(&mut command);
    Err(command.exec()).with_context(|| format!("starting {} over", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_preloaded_stays_preloaded() {
        let library = Path::new("/opt/librnic_emu.so");
        assert_eq!(preload_value(library, None), "/opt/librnic_emu.so");
        assert_eq!(preload_value(library, Some(OsStr::new(""))), "/opt/librnic_emu.so");
        assert_eq!(preload_value(library, Some(OsStr::new("/x.so"))), "/x.so:/opt/librnic_emu.so");
    }

    #[test]
    fn an_untimed_device_still_knows_which_profile_was_asked_for() {
        let set = |settings: &Settings, name: &str| {
            let mut command = Command::new("true");
            settings.apply(&mut command);
            command.get_envs().find(|(key, _)| *key == name).map(|(_, value)| value.map(OsStr::to_owned))
        };
        let untimed = Settings { profile: Some("cx3-like".into()), speed: None };
        assert_eq!(set(&untimed, ENV_ASKED), Some(Some("cx3-like".into())));
        assert_eq!(set(&untimed, ENV_PROFILE), Some(None));
        let timed = Settings { profile: None, speed: Some("1/8".into()) };
        assert_eq!(set(&timed, ENV_PROFILE), Some(Some(DEFAULT_PROFILE.into())));
        assert_eq!(set(&timed, ENV_SPEED), Some(Some("1/8".into())));
    }

    #[test]
    fn build_trees_and_installations_are_both_searched() {
        let places = candidates(Path::new("/usr/bin/rdma-workload"));
        assert!(places.contains(&PathBuf::from("/usr/bin/librnic_emu.so")));
        assert!(places.contains(&PathBuf::from("/usr/lib/librnic_emu.so")));
        assert!(candidates(Path::new("/")).is_empty());
    }
}
