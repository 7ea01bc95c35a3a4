//! Address handles.

use crate::abi::{ibv_ah, ibv_ah_attr};

/// Where a datagram goes.
#[repr(C)]
pub struct Ah {
    /// What the program sees.
    pub ibv: ibv_ah,
    /// As given.
    pub attr: ibv_ah_attr,
    /// The device the destination GID belongs to, if any of ours.
    pub device: Option<u8>,
}

impl Ah {
    /// Our struct around an AH of ours.
    ///
    /// # Safety
    /// `ah` is a live AH of an emulated device.
    pub unsafe fn of<'a>(ah: *mut ibv_ah) -> &'a Self {
        // SAFETY: the caller's promise; the program's view is the first field.
        unsafe { &*ah.cast() }
    }
}
