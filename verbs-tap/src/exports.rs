//! The exported verbs the tap stands before: where contexts and objects come into sight and go out of it.

use std::ffi::{c_int, c_void};
use std::ptr;

use probe_common::tap::kind;

use crate::abi::{Context, Cq, Object, Qp, QpEx, QpInitAttr, Srq};
use crate::contexts;
use crate::extended;
use crate::next::{self, Verb};
use crate::objects;
use crate::quiet::KeepErrno;

/// The real function; where there is none, `$otherwise` with errno set, as if the program were linked without it.
macro_rules! real {
    ($verb:expr, fn($($kind:ty),*) -> $result:ty, $otherwise:expr) => {{
        let verb: &Verb = &$verb;
        let function = verb.real();
        if function == 0 {
            *libc::__errno_location() = libc::ENOSYS;
            return $otherwise;
        }
        std::mem::transmute::<usize, unsafe extern "C-unwind" fn($($kind),*) -> $result>(function)
    }};
}

/// Exports a verb of the same signature as the real one. `$after` runs when it has succeeded, with errno kept.
macro_rules! export {
    (
        $verb:ident, $name:ident($($argument:ident: $kind:ty),*) -> $result:ty,
        failed: |$failed:ident| $is_failed:expr, otherwise: $otherwise:expr,
        then: |$made:pat_param| $after:expr
    ) => {
        /// Interposed; see the module.
        ///
        /// # Safety
        /// As for the verb itself.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the program's own call, passed on to the function it would have called.
            unsafe {
                let function = real!(next::$verb, fn($($kind),*) -> $result, $otherwise);
                let $failed = function($($argument),*);
                if !$is_failed {
                    let _errno = KeepErrno::new();
                    let $made = $failed;
                    $after;
                }
                $failed
            }
        }
    };
}

export!(OPEN_DEVICE, ibv_open_device(device: *mut c_void) -> *mut Context,
    failed: |made| made.is_null(), otherwise: ptr::null_mut(), then: |context| contexts::adopt(context));
export!(IMPORT_DEVICE, ibv_import_device(fd: c_int) -> *mut Context,
    failed: |made| made.is_null(), otherwise: ptr::null_mut(), then: |context| contexts::adopt(context));
export!(VERBS_OPEN_DEVICE, verbs_open_device(device: *mut c_void, private: *mut c_void) -> *mut Context,
    failed: |made| made.is_null(), otherwise: ptr::null_mut(), then: |context| contexts::adopt(context));
export!(CLOSE_DEVICE, ibv_close_device(context: *mut Context) -> c_int,
    failed: |result| result != 0, otherwise: -1, then: |_| contexts::closed(context));
export!(ALLOC_PD, ibv_alloc_pd(context: *mut Context) -> *mut Object,
    failed: |made| made.is_null(), otherwise: ptr::null_mut(), then: |_| contexts::adopt(context));
export!(QUERY_DEVICE, ibv_query_device(context: *mut Context, attr: *mut c_void) -> c_int,
    failed: |result| result != 0, otherwise: -1, then: |_| contexts::adopt(context));
export!(CREATE_CQ,
ibv_create_cq(context: *mut Context, cqe: c_int, data: *mut c_void, channel: *mut c_void, vector: c_int) -> *mut Cq,
failed: |made| made.is_null(), otherwise: ptr::null_mut(), then: |cq| {
    contexts::adopt(context);
    objects::created(cq as usize, kind::CQ, 0)
});
export!(DESTROY_CQ, ibv_destroy_cq(cq: *mut Cq) -> c_int,
    failed: |result| result != 0, otherwise: libc::ENOSYS, then: |_| objects::destroyed(cq as usize));
export!(CREATE_QP, ibv_create_qp(pd: *mut Object, attr: *mut QpInitAttr) -> *mut Qp,
failed: |made| made.is_null(), otherwise: ptr::null_mut(), then: |qp| {
    contexts::adopt((*pd).context);
    objects::created(qp as usize, kind::QP, u32::from((*attr).sq_sig_all != 0))
});
export!(MODIFY_QP, ibv_modify_qp(qp: *mut Qp, attr: *mut c_void, mask: c_int) -> c_int,
    failed: |result| result != 0, otherwise: libc::ENOSYS, then: |_| extended::retap_qp(qp.cast()));
export!(DESTROY_QP, ibv_destroy_qp(qp: *mut Qp) -> c_int,
    failed: |result| result != 0, otherwise: libc::ENOSYS, then: |_| objects::destroyed(qp as usize));
export!(QP_TO_QP_EX, ibv_qp_to_qp_ex(qp: *mut Qp) -> *mut QpEx,
    failed: |made| made.is_null(), otherwise: ptr::null_mut(), then: |ex| extended::tap_qp(ex, false));
export!(CREATE_SRQ, ibv_create_srq(pd: *mut Object, attr: *mut c_void) -> *mut Srq,
failed: |made| made.is_null(), otherwise: ptr::null_mut(), then: |srq| {
    contexts::adopt((*pd).context);
    objects::created(srq as usize, kind::SRQ, 0)
});
export!(DESTROY_SRQ, ibv_destroy_srq(srq: *mut Srq) -> c_int,
    failed: |result| result != 0, otherwise: libc::ENOSYS, then: |_| objects::destroyed(srq as usize));

/// Taps a context that came to the program in a way the tap does not see. Nothing happens to one that is tapped.
///
/// # Safety
/// `context` is null or a live `ibv_context`.
#[cfg(not(test))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn verbs_tap_adopt(context: *mut Context) {
    let _errno = KeepErrno::new();
    contexts::adopt(context);
}
