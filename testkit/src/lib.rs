//! What the tests of several crates share: finding what another crate of the workspace builds, and
//! leaving no process behind.

use std::collections::BTreeSet;
use std::env;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};

/// Set for tests by who has built the whole workspace just before: nothing is built again then. (Of one package alone,
/// cargo builds every dependency anew whose features differ from those that all packages together ask for.)
pub const BUILT: &str = "RDMA_PROBE_BUILT";

/// The file that `package` builds under the name `file`, in the profile of the running test. It is built first, once, for
/// `cargo test` builds no preloadable library and no other package's program; in a virtual machine, which has no cargo,
/// it is there already.
///
/// # Panics
/// When it does not build.
pub fn built(package: &str, file: &str) -> PathBuf {
    static DONE: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

    let test = env::current_exe().expect("own path");
    let profile = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    if let (None, Some(cargo)) = (env::var_os(BUILT), env::var_os("CARGO")) {
        // Held while it builds: whoever asks for the same waits.
        let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
        if !done.contains(package) {
            let mut build = Command::new(cargo);
            build.args(["build", "--quiet", "--package", package, "--target-dir"]).arg(target(profile));
            build.args(profile.ends_with("release").then_some("--release"));
            assert!(build.status().expect("cargo").success(), "cannot build {package}");
            done.insert(package.to_owned());
        }
    }
    let built = profile.join(file);
    assert!(built.is_file(), "'{}' is not there: cargo build --package {package}", built.display());
    built
}

fn target(profile: &Path) -> &Path {
    profile.parent().expect("a profile's folder lies in the target folder")
}

/// A process that does not outlive the test, whether or not that passes.
#[derive(Debug)]
pub struct Held(pub Child);

impl Deref for Held {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
