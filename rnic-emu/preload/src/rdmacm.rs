//! rdma_cm is not emulated: programs that connect through it get a clear answer instead of a puzzle.

use crate::next::Next;
use libc::c_void;
use std::sync::Once;

static NEXT: Next = Next::of(c"rdma_create_event_channel");
static SAY_ONCE: Once = Once::new();

/// Opens the connection manager, as librdmacm does; where there is none, says why once.
///
/// # Safety
/// As the function of the same name in librdmacm.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_event_channel() -> *mut c_void {
    let next = NEXT.get();
    if next.is_null() {
        emu::control::set_errno(libc::ENOSYS);
        return std::ptr::null_mut();
    }
    // SAFETY: librdmacm's own function of this name.
    let made = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *mut c_void>(next)() };
    if made.is_null() {
        let error = std::io::Error::last_os_error();
        SAY_ONCE.call_once(|| {
            eprintln!(
                "rnic-emu: rdma_cm is not emulated and this kernel offers none ({error}); \
                 connect by exchanging QP numbers instead (perftest: without -R)"
            );
        });
        emu::control::set_errno(error.raw_os_error().unwrap_or(libc::ENODEV));
    }
    made
}
