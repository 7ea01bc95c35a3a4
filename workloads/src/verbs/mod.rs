//! A thin owning layer over the raw verbs bindings: each object is destroyed when its owner goes, in the order the library
//! requires, so that an error or Ctrl-C leaves nothing registered. This is the only part of the crate that calls verbs,
//! and the place where ground truth is counted.

mod advise;
mod context;
mod cq;
mod list;
mod mr;
mod qp;

pub use advise::{Advice, prefetch};
pub use context::{Context, DeviceInfo, Port, device_names};
pub use cq::{Channel, Cq, WC_BATCH};
pub use ibverbs_sys as ffi;
pub use list::{Atomic, SendList};
pub use mr::{Access, Mr, Pd};
pub use qp::{Address, Caps, PostError, Qp, Retry, SharedQp, State, Transport, Wiring};

use std::io;

/// A verbs call that failed, with what was being done and how to get past it.
#[derive(Debug, thiserror::Error)]
#[error("{call} failed: {cause}{hint}")]
pub struct VerbsError {
    /// The library function, as documented in its manual page.
    pub call: &'static str,
    /// The operating system's reason.
    pub cause: io::Error,
    /// What to do about it, starting with a separator; empty when there is nothing to add.
    pub hint: String,
}

impl VerbsError {
    /// From `errno`, for calls that return a null pointer.
    fn last(call: &'static str) -> VerbsError {
        VerbsError { call, cause: io::Error::last_os_error(), hint: String::new() }
    }

    /// From a returned error number. Providers return it positive or negative, or -1 with `errno` set.
    fn returned(call: &'static str, status: i32) -> VerbsError {
        let cause = match status {
            -1 => io::Error::last_os_error(),
            _ => io::Error::from_raw_os_error(status.saturating_abs()),
        };
        VerbsError { call, cause, hint: String::new() }
    }

    fn hint(mut self, hint: impl AsRef<str>) -> VerbsError {
        self.hint = format!(" ({})", hint.as_ref());
        self
    }

    /// The error number, where the operating system gave one.
    pub fn errno(&self) -> Option<i32> {
        self.cause.raw_os_error()
    }
}

fn check(call: &'static str, status: i32) -> Result<(), VerbsError> {
    if status == 0 { Ok(()) } else { Err(VerbsError::returned(call, status)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_are_understood_with_either_sign() {
        assert_eq!(VerbsError::returned("ibv_modify_qp", 22).errno(), Some(22));
        assert_eq!(VerbsError::returned("ibv_modify_qp", -22).errno(), Some(22));
        assert!(check("ibv_modify_qp", 0).is_ok());
    }
}
