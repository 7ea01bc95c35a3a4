//! Protection domains and thread domains.

use crate::abi::{ibv_pd, ibv_td};
use std::sync::atomic::AtomicU32;

/// A protection domain, or a parent domain on top of one.
#[repr(C)]
pub struct Pd {
    /// What the program sees.
    pub ibv: ibv_pd,
    /// The domain memory keys are checked against; a parent domain has that of the domain below.
    pub id: u32,
    /// Objects made in it.
    pub users: AtomicU32,
    /// The domain below a parent domain.
    pub below: Option<&'static Pd>,
}

/// A thread domain: a promise of the program that the emulated device need not make use of.
#[repr(C)]
pub struct Td {
    /// What the program sees.
    pub ibv: ibv_td,
    /// Parent domains made with it.
    pub users: AtomicU32,
}

// SAFETY: the program's view holds pointers only programs follow; everything else is atomic, locked or immutable.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    /// Our struct around a PD of ours.
    ///
    /// # Safety
    /// `pd` is a live PD of an emulated device.
    pub unsafe fn of(pd: *mut ibv_pd) -> &'static Self {
        // SAFETY: the caller's promise; the program's view is the first field.
        unsafe { &*pd.cast() }
    }
}
