//! Crate identities that do not depend on where the clone lies.
//!
//! Cargo derives the identity of a crate outside its workspace from the crate's absolute path, and rustc puts the
//! identity into every symbol. The object would then differ from clone to clone. So cargo calls this program in place
//! of rustc, which replaces what cargo derived by the crate's name and version and goes on as rustc.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::TARGET;

/// Set for cargo, and through it for the calls in place of rustc.
pub const VARIABLE: &str = "RDMA_XTASK_STANDS_FOR_RUSTC";

/// True when this process was started in place of rustc.
pub fn is_called() -> bool {
    env::var_os(VARIABLE).is_some()
}

/// Goes on as rustc; returns only the reason for which that failed.
pub fn go_on() -> std::io::Error {
    let mut words = env::args_os().skip(1);
    let Some(rustc) = words.next() else { return std::io::Error::other("called without rustc's path") };
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    Command::new(rustc).args(with_stable_identity(words.collect(), &version)).exec()
}

/// rustc's arguments with the identity replaced, for crates that end up in the object.
fn with_stable_identity(mut arguments: Vec<OsString>, version: &str) -> Vec<OsString> {
    let after = |word: &str| {
        let at = arguments.iter().position(|argument| argument == word)?;
        arguments.get(at + 1)?.to_str().map(str::to_owned)
    };
    if after("--target").as_deref() != Some(TARGET) {
        return arguments;
    }
    let Some(name) = after("--crate-name") else { return arguments };
    for argument in &mut arguments {
        if argument.to_str().is_some_and(|text| text.starts_with("metadata=")) {
            *argument = format!("metadata={name}-{version}").into();
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(line: &str) -> String {
        let words = line.split_whitespace().map(OsString::from).collect();
        let words = with_stable_identity(words, "0.1.0");
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_crate_of_the_object_is_identified_by_name_and_version() {
        assert_eq!(
            changed("--crate-name probe -C metadata=0123 -C extra-filename=-01 --target bpfel-unknown-none"),
            "--crate-name probe -C metadata=probe-0.1.0 -C extra-filename=-01 --target bpfel-unknown-none"
        );
    }

    #[test]
    fn what_runs_on_the_host_is_left_alone() {
        let macros = "--crate-name aya_ebpf_macros -C metadata=0123";
        assert_eq!(changed(macros), macros);
        assert_eq!(changed("-vV"), "-vV");
        assert_eq!(
            changed("- --crate-name ___ --print=cfg --target"),
            "- --crate-name ___ --print=cfg --target"
        );
    }
}
