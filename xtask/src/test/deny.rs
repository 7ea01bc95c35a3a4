//! Licences, sources and advisories of the dependencies, by cargo-deny.

use std::process::Command;

use anyhow::Result;

use super::step::{self, Outcome, Steps};
use crate::command;
use crate::paths;
use crate::setup::tools;

/// Takes the two steps; skipped with the reason where the tool or the advisory database is out of reach.
pub fn take(steps: &mut Steps) {
    steps.take("licences", |verbose| {
        let Some(mut deny) = deny() else { return Ok(absent()) };
        let (success, output) =
            step::run(deny.args(["--offline", "check", "licenses", "bans", "sources"]), verbose)?;
        Ok((if success { Outcome::Passed(String::new()) } else { Outcome::Failed }, output))
    });
    steps.take("advisories", advisories);
}

fn advisories(verbose: bool) -> Result<(Outcome, String)> {
    let Some(deny) = deny() else { return Ok(absent()) };
    // The database is fetched first; a network that swallows packets must not hold the tests up.
    let mut limited = command::tool("timeout")?;
    limited.arg("120").arg(deny.get_program()).args(deny.get_args()).args(["check", "advisories"]);
    limited.current_dir(paths::workspace());
    let (success, output) = step::run(&mut limited, verbose)?;
    Ok((judged(success, &output), output))
}

/// A database that cannot be had is no finding.
fn judged(success: bool, output: &str) -> Outcome {
    let unreachable =
        ["failed to fetch advisory database", "failed to load advisory database", "failed to acquire"];
    if success {
        Outcome::Passed(String::new())
    } else if output.contains("error[") {
        Outcome::Failed
    } else if output.trim().is_empty() || unreachable.iter().any(|words| output.contains(words)) {
        Outcome::Skipped("the advisory database cannot be reached from here".to_owned())
    } else {
        Outcome::Failed
    }
}

fn deny() -> Option<Command> {
    let mut command = Command::new(tools::find(tools::DENY)?);
    command.current_dir(paths::workspace()).args(["--workspace", "--locked"]);
    Some(command)
}

fn absent() -> (Outcome, String) {
    (Outcome::Skipped("no cargo-deny here; `cargo xtask setup --deny` builds it".to_owned()), String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_database_is_skipped_and_a_finding_is_not() {
        let fetch = "2026-01-01 [ERROR] failed to fetch advisory database https://x/y";
        assert!(matches!(judged(false, fetch), Outcome::Skipped(_)));
        assert!(matches!(judged(false, ""), Outcome::Skipped(_)));
        assert_eq!(
            judged(false, "error[vulnerability]: bad\nfailed to fetch advisory database"),
            Outcome::Failed
        );
        assert_eq!(judged(false, "error: unknown option"), Outcome::Failed);
        assert_eq!(judged(true, ""), Outcome::Passed(String::new()));
    }
}
