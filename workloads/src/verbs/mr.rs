//! Protection domains and memory regions.

use super::{Context, VerbsError, ffi};
use crate::memory::Buffer;
use crate::truth;
use std::ptr::NonNull;
use std::rc::Rc;

struct PdInner {
    raw: NonNull<ffi::ibv_pd>,
    context: Context,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // SAFETY: allocated once; regions and QPs made in it hold an Rc and are gone by now.
        unsafe { ffi::ibv_dealloc_pd(self.raw.as_ptr()) };
    }
}

/// A protection domain.
#[derive(Clone)]
pub struct Pd(Rc<PdInner>);

impl Pd {
    /// Allocates a protection domain on an open device.
    pub fn new(context: &Context) -> Result<Pd, VerbsError> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { ffi::ibv_alloc_pd(context.raw()) })
            .ok_or_else(|| VerbsError::last("ibv_alloc_pd"))?;
        Ok(Pd(Rc::new(PdInner { raw, context: context.clone() })))
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_pd {
        self.0.raw.as_ptr()
    }

    /// The device it belongs to.
    pub fn context(&self) -> &Context {
        &self.0.context
    }
}

/// What may be done with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The local device may read and write it.
    Local,
    /// A peer may also read, write and (where the device can) do atomics on it.
    Remote,
    /// As [`Access::Remote`], without atomics, for devices that have none.
    RemoteNoAtomics,
    /// Remote write without local write, which contradicts itself: refused.
    Contradictory,
    /// Local access to memory that is paged in on demand instead of pinned.
    OnDemand,
}

impl Access {
    fn flags(self) -> i32 {
        let local = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        let remote = ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
            | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        let flags = match self {
            Access::Local => local,
            Access::Contradictory => ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
            Access::OnDemand => local | ffi::ibv_access_flags::IBV_ACCESS_ON_DEMAND.0,
            Access::RemoteNoAtomics => local | remote,
            Access::Remote => local | remote | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0,
        };
        flags as i32
    }
}

/// A registered memory region; deregistered when dropped.
pub struct Mr {
    raw: NonNull<ffi::ibv_mr>,
    /// Memory must outlive its registration: the device writes to it.
    buffer: Rc<Buffer>,
    pd: Pd,
}

impl Mr {
    /// Registers a whole buffer.
    pub fn register(pd: &Pd, buffer: &Rc<Buffer>, access: Access) -> Result<Mr, VerbsError> {
        Mr::register_part(pd, buffer, 0, buffer.len(), access)
    }

    /// Registers `length` bytes at `offset` of a buffer; both must lie within it.
    pub fn register_part(
        pd: &Pd,
        buffer: &Rc<Buffer>,
        offset: usize,
        length: usize,
        access: Access,
    ) -> Result<Mr, VerbsError> {
        assert!(
            offset.checked_add(length).is_some_and(|end| end <= buffer.len()),
            "region outside its buffer"
        );
        // SAFETY: the range lies in `buffer`, which the region keeps alive until after deregistration.
        let raw = unsafe { ffi::ibv_reg_mr(pd.raw(), buffer.at(offset).cast(), length, access.flags()) };
        match NonNull::new(raw) {
            Some(raw) => {
                truth::record(|truth| {
                    truth.registrations += 1;
                    truth.registered_bytes += length as u64;
                });
                Ok(Mr { raw, buffer: Rc::clone(buffer), pd: pd.clone() })
            }
            None => {
                let error = VerbsError::last("ibv_reg_mr");
                truth::record(|truth| truth.registrations_failed += 1);
                Err(match error.errno() {
                    Some(libc::ENOMEM | libc::EPERM | libc::EAGAIN) => error.hint(memlock_hint(length)),
                    _ => error,
                })
            }
        }
    }

    /// Key for local use in an SGE.
    pub fn lkey(&self) -> u32 {
        // SAFETY: the region is alive; the library fills the struct before returning it.
        unsafe { self.raw.as_ref() }.lkey
    }

    /// Key a peer names the region by.
    pub fn rkey(&self) -> u32 {
        // SAFETY: as in `lkey`.
        unsafe { self.raw.as_ref() }.rkey
    }

    /// First address of the region.
    pub fn addr(&self) -> u64 {
        // SAFETY: as in `lkey`.
        unsafe { self.raw.as_ref() }.addr as u64
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "the library refuses to register nothing")]
    pub fn len(&self) -> usize {
        // SAFETY: as in `lkey`.
        unsafe { self.raw.as_ref() }.length
    }

    /// The protection domain it belongs to.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The memory behind it.
    pub fn buffer(&self) -> &Rc<Buffer> {
        &self.buffer
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: registered once, deregistered once; QPs that could still use it are dropped first by their owner.
        if unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) } == 0 {
            truth::record(|truth| truth.deregistrations += 1);
        }
    }
}

fn memlock_hint(length: usize) -> String {
    let limit = match crate::memory::memlock_limit() {
        Some(bytes) => format!("{} KiB", bytes / 1024),
        None => "unlimited".to_owned(),
    };
    format!(
        "registering {} KiB with a locked-memory limit of {limit}; raise it with `ulimit -l unlimited`, or \
         LimitMEMLOCK= for a service, or make --region smaller",
        length / 1024
    )
}
