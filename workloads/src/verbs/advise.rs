//! Prefetch advice for on-demand regions (`ibv_advise_mr`), which the library only offers as an inline function that
//! reads the extended context. The bindings do not carry that struct, so the two fields needed are read by offset.

use super::{Mr, Pd, VerbsError, check, ffi};

/// What came of asking for a prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// The device took it.
    Taken,
    /// The device or its provider has no such call.
    Unsupported,
}

/// `IBV_ADVISE_MR_ADVICE_PREFETCH`.
const PREFETCH: u32 = 0;
/// `IBV_ADVISE_MR_FLAG_FLUSH`: wait until the pages are there.
const FLUSH: u32 = 1;
/// Distance from the start of `verbs_context` to the `ibv_context` inside it; fields are only ever added in front.
const CONTEXT_AT: usize = 320;
/// Distance from the start of `verbs_context` to `advise_mr`.
const ADVISE_AT: usize = 8;
/// `__VERBS_ABI_IS_EXTENDED`.
const EXTENDED: usize = usize::MAX;

type AdviseMr = unsafe extern "C" fn(*mut ffi::ibv_pd, u32, u32, *mut ffi::ibv_sge, u32) -> i32;

/// Asks the device to fault in and map a whole on-demand region before it is used.
pub fn prefetch(pd: &Pd, region: &Mr) -> Result<Advice, VerbsError> {
    let Some(advise) = entry(pd) else { return Ok(Advice::Unsupported) };
    let length = u32::try_from(region.len()).unwrap_or(u32::MAX);
    let mut sge = ffi::ibv_sge { addr: region.addr(), length, lkey: region.lkey() };
    // SAFETY: the provider's own function, called with live objects and one initialised SGE.
    match unsafe { advise(pd.raw(), PREFETCH, FLUSH, &mut sge, 1) } {
        libc::EOPNOTSUPP | libc::ENOSYS => Ok(Advice::Unsupported),
        status => check("ibv_advise_mr", status).map(|()| Advice::Taken),
    }
}

fn entry(pd: &Pd) -> Option<AdviseMr> {
    let context = pd.context().raw();
    // SAFETY: the context is open.
    if unsafe { (*context).abi_compat } as usize != EXTENDED {
        return None;
    }
    let start = context.cast::<u8>().wrapping_sub(CONTEXT_AT);
    // SAFETY: `abi_compat` says an extended context lies in front; its last field before `context` is `sz`.
    let size = unsafe { start.add(CONTEXT_AT - 8).cast::<usize>().read() };
    // As the library's own inline check does: a provider built against older headers has no such field.
    if size < CONTEXT_AT + size_of::<ffi::ibv_context>() - ADVISE_AT {
        return None;
    }
    // SAFETY: the size check says the field exists; a null pointer reads as None.
    unsafe { start.add(ADVISE_AT).cast::<Option<AdviseMr>>().read() }
}
