//! Waiting for single completions, for work that goes one step at a time.

use crate::drive::completion_error;
use crate::interrupt;
use crate::verbs::{Qp, SendList, WC_BATCH, ffi};
use anyhow::{Context as _, Result, bail};
use std::time::{Duration, Instant};

/// Longer than the longest retry sequence of the default patience.
const PATIENCE: Duration = Duration::from_secs(20);

/// The next completion of a queue pair's send queue; `None` when none came within `limit`.
pub fn next_completion(qp: &Qp, limit: Duration) -> Result<Option<ffi::ibv_wc>> {
    let mut completions = [ffi::ibv_wc::default(); WC_BATCH];
    let start = Instant::now();
    loop {
        if qp.send_cq().poll(&mut completions)? > 0 {
            return Ok(Some(completions[0]));
        }
        interrupt::check()?;
        if start.elapsed() > limit {
            return Ok(None);
        }
    }
}

/// Posts a list whose last request is signalled and waits until it has completed.
pub fn execute(qp: &Qp, list: &mut SendList) -> Result<()> {
    qp.post(list)?;
    list.clear();
    let completion =
        next_completion(qp, PATIENCE)?.context("no completion for 20 s; is the peer still there?")?;
    match completion.error() {
        None => Ok(()),
        Some((status, vendor)) => bail!("{}", completion_error(&completion, status, vendor)),
    }
}
