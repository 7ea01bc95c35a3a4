//! The processes named with `--pid`: that they exist, and watching them and their descendants.

use anyhow::{Context, Result, bail};
use probe_user::collect::Session;
use probe_user::target;

use super::UsageError;

/// Refuses pids of no process.
///
/// # Errors
/// [`UsageError`] naming the first.
pub fn must_exist(pids: &[u32]) -> Result<()> {
    match pids.iter().find(|pid| target::start_ns_of(**pid).is_none()) {
        Some(pid) => bail!(UsageError(format!("--pid '{pid}': there is no such process"))),
        None => Ok(()),
    }
}

/// Watches `asked` and all that descends from them.
///
/// # Errors
/// When one of `asked` cannot be watched. A descendant may end at any time; one that was asked for may not go unnoticed.
pub fn with_descendants(session: &mut Session, asked: &[u32]) -> Result<()> {
    for pid in asked.iter().copied().chain(target::children_of(asked)) {
        match session.watch(pid) {
            Err(error) if asked.contains(&pid) => {
                return Err(error).with_context(|| format!("cannot watch process {pid}"));
            }
            _ => {}
        }
    }
    Ok(())
}
