//! Running other programs, with errors that say which one failed and how.

use std::ffi::OsStr;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};

use crate::paths;

/// A command for a program found on PATH or in the system folders.
///
/// # Errors
/// When the program is not installed; the message names `cargo xtask setup`.
pub fn tool(name: &str) -> Result<Command> {
    let path = paths::program(name).with_context(|| {
        format!("`{name}` is not installed: run `cargo xtask setup` to get what is missing")
    })?;
    Ok(Command::new(path))
}

/// The cargo that runs this task, started in the workspace and building where the caller's would.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(paths::workspace()).env("CARGO_TARGET_DIR", paths::target());
    command
}

/// Runs a command with this process's streams.
///
/// # Errors
/// When it cannot be started or does not succeed.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !status.success() {
        bail!("`{}` failed ({})", shown(command), described(status));
    }
    Ok(())
}

/// Runs a command and returns what it printed; its error stream is quoted when it fails.
///
/// # Errors
/// When it cannot be started or does not succeed.
pub fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed ({}): {}", shown(command), described(output.status), stderr.trim());
    }
    Ok(output.stdout)
}

/// As [`output`], as text without the trailing newline.
pub fn text(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&output(command)?).trim_end().to_owned())
}

/// A command line as one would type it, for messages.
pub fn shown(command: &Command) -> String {
    let program = command.get_program();
    let name = std::path::Path::new(program).file_name().unwrap_or(program);
    std::iter::once(name).chain(command.get_args()).map(quoted).collect::<Vec<_>>().join(" ")
}

/// Quotes a word for the shell where it needs it.
pub fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// `status 3` or `killed by signal 9`.
pub fn described(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "no status".to_owned(),
    }
}

/// The exit status to pass on, as shells do: 128 plus the signal for a killed command.
pub fn exit_code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn words_are_quoted_only_where_the_shell_needs_it() {
        assert_eq!(quoted(OsStr::new("--kernel=6.1")), "--kernel=6.1");
        assert_eq!(quoted(OsStr::new("")), "''");
        assert_eq!(quoted(OsStr::new("it's $HOME")), r"'it'\''s $HOME'");
    }

    #[test]
    fn a_killed_command_passes_on_128_plus_the_signal() {
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
    }
}
