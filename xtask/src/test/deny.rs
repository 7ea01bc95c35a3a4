//! Licences, sources and advisories of the dependencies, by cargo-deny.

use anyhow::Result;

use super::step::{self, Outcome, Steps};
use crate::command;
use crate::ebpf;
use crate::paths;
use crate::setup::tools;

/// Takes the two steps; skipped with the reason where the tool or the advisory database is out of reach.
pub fn take(steps: &mut Steps) {
    steps.take("licences", |verbose| each(&["--offline"], &["licenses", "bans", "sources"], verbose));
    // The database is fetched first.
    steps.take("advisories", |verbose| each(&[], &["advisories"], verbose));
}

/// Runs checks on the workspace, and on the BPF programs, which have a lock file of their own.
fn each(options: &[&str], checks: &[&str], verbose: bool) -> Result<(Outcome, String)> {
    let Some(deny) = tools::find(tools::DENY) else {
        let reason = "no cargo-deny here; `cargo xtask setup --deny` builds it";
        return Ok((Outcome::Skipped(reason.to_owned()), String::new()));
    };
    let manifests = [paths::workspace().join("Cargo.toml"), ebpf::manifest()];
    let mut all = String::new();
    let mut worst = Outcome::Passed(String::new());
    for manifest in manifests.iter().filter(|manifest| manifest.exists()) {
        // A network that swallows packets must not hold the tests up.
        let mut limited = command::tool("timeout")?;
        limited.arg("120").arg(&deny).args(["--workspace", "--locked", "--manifest-path"]).arg(manifest);
        limited.arg("--config").arg(paths::workspace().join("deny.toml")).args(options);
        limited.arg("check").args(checks);
        let (success, output) = step::run(&mut limited, verbose)?;
        match judged(success, &output) {
            Outcome::Passed(_) => {}
            outcome if worst == Outcome::Failed => drop(outcome),
            outcome => worst = outcome,
        }
        all.push_str(&output);
    }
    Ok((worst, all))
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
