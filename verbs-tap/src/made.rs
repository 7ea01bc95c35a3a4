//! Objects as they are made by the inline creators, through the `verbs_context`.

use probe_common::tap::kind;

use crate::abi::{self, Context, CqEx, Qp, QpInitAttrEx};
use crate::contexts::{self, Call};
use crate::extended;
use crate::objects;
use crate::quiet::KeepErrno;

type CreateQpEx = unsafe extern "C-unwind" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp;
type CreateCqEx = unsafe extern "C-unwind" fn(*mut Context, *mut std::ffi::c_void) -> *mut CqEx;

pub unsafe extern "C-unwind" fn create_qp_ex(context: *mut Context, attr: *mut QpInitAttrEx) -> *mut Qp {
    let function = contexts::original(context, Call::CreateQpEx);
    if function == 0 {
        return no_such_call();
    }
    // SAFETY: the program's own call, passed on to the function that stood there; what it returns is live.
    unsafe {
        let create: CreateQpEx = std::mem::transmute(function);
        let made = create(context, attr);
        if !made.is_null() {
            let _errno = KeepErrno::new();
            contexts::adopt(context);
            objects::created(made as usize, kind::QP, u32::from((*attr).sq_sig_all != 0));
            if (*attr).comp_mask & abi::INIT_SEND_OPS_FLAGS != 0 {
                let atomic_write = (*attr).send_ops_flags & abi::SEND_OPS_ATOMIC_WRITE != 0;
                extended::tap_qp(made.cast(), atomic_write);
            }
        }
        made
    }
}

pub unsafe extern "C-unwind" fn create_cq_ex(
    context: *mut Context,
    attr: *mut std::ffi::c_void,
) -> *mut CqEx {
    let function = contexts::original(context, Call::CreateCqEx);
    if function == 0 {
        return no_such_call();
    }
    // SAFETY: as above.
    unsafe {
        let create: CreateCqEx = std::mem::transmute(function);
        let made = create(context, attr);
        if !made.is_null() {
            let _errno = KeepErrno::new();
            contexts::adopt(context);
            objects::created(made as usize, kind::CQ, 0);
            extended::tap_cq(made);
        }
        made
    }
}

fn no_such_call<T>() -> *mut T {
    // SAFETY: errno of this thread.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    std::ptr::null_mut()
}
