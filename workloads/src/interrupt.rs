//! Ctrl-C and SIGTERM become an error that unwinds through the owners, so that every verbs object is destroyed and
//! every reserved huge page is given back on the ordinary path.

use crate::error::Interrupted;
use anyhow::Result;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

static PENDING: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// Installs the handlers. A second signal while the first is being honoured ends the process at once.
pub fn install() -> Result<()> {
    let pending = PENDING.get_or_init(|| Arc::new(AtomicUsize::new(0)));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // Registered first, so it sees the state left by *earlier* signals only.
        let armed = Arc::new(std::sync::atomic::AtomicBool::new(false));
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&armed))?;
        signal_hook::flag::register(signal, armed)?;
        signal_hook::flag::register_usize(signal, Arc::clone(pending), signal as usize)?;
    }
    Ok(())
}

/// The signal that asked us to stop, if one did.
pub fn pending() -> Option<i32> {
    let signal = PENDING.get()?.load(Ordering::Relaxed);
    (signal != 0).then_some(signal as i32)
}

/// Fails with [`Interrupted`] once a signal has arrived. Cheap enough for every turn of a polling loop.
pub fn check() -> Result<()> {
    match pending() {
        Some(signal) => Err(Interrupted { signal }.into()),
        None => Ok(()),
    }
}
