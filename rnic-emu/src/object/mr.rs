//! Memory regions.

use crate::abi::ibv_mr;

/// A memory region. Its key table entry says what it opens.
#[repr(C)]
pub struct Mr {
    /// What the program sees; `lkey` and `rkey` are the same key.
    pub ibv: ibv_mr,
    /// The address requests use for the first byte.
    pub iova: u64,
    /// `ibv_access_flags` of the registration.
    pub access: u32,
}

impl Mr {
    /// Our struct around an MR of ours.
    ///
    /// # Safety
    /// `mr` is a live MR of an emulated device, not in use by another thread.
    pub unsafe fn of<'a>(mr: *mut ibv_mr) -> &'a mut Self {
        // SAFETY: the caller's promise; the program's view is the first field.
        unsafe { &mut *mr.cast() }
    }
}
