//! How an export decides whose a call is.

use emu::abi::ibv_context;
use emu::device::context::DeviceContext;

/// Whether `object`, which begins with a pointer to its context as every verbs object does, is an emulated device's.
///
/// # Safety
/// A live object of any provider.
pub unsafe fn owns<T>(object: *const T) -> bool {
    if object.is_null() {
        return false;
    }
    // SAFETY: the caller's promise.
    unsafe { DeviceContext::is_ours(*object.cast::<*mut ibv_context>()) }
}

/// Defines exports: by the object named after `where`, a call goes to ours or to the next definition.
///
/// `missing` is returned when neither applies: not our object, and no libibverbs behind us.
macro_rules! exports {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $kind:ty),*) $(-> $ret:ty)? where $how:ident($object:expr) $(, else $missing:expr)?
            => $ours:expr;
    )+) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As the function of the same name in libibverbs.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $kind),*) $(-> $ret)? {
                static NEXT: $crate::next::Next =
                    match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => $crate::next::Next::of(name),
                        Err(_) => panic!("a name without NUL"),
                    };
                // SAFETY: the program's promise to libibverbs; the next definition has the same signature.
                unsafe {
                    if $how($object) {
                        return $ours;
                    }
                    let next = NEXT.get();
                    if next.is_null() {
                        return $($missing)?;
                    }
                    let next: unsafe extern "C" fn($($kind),*) $(-> $ret)? = std::mem::transmute(next);
                    next($($arg),*)
                }
            }
        )+

        /// Name and address of the exports above.
        pub fn table() -> Vec<(&'static str, usize)> {
            vec![$((stringify!($name), $name as *const () as usize)),+]
        }
    };
}
pub(crate) use exports;

/// Null with `errno` set to ENOSYS, where there is no libibverbs to ask.
pub fn null<T>() -> *mut T {
    emu::control::set_errno(libc::ENOSYS);
    std::ptr::null_mut()
}
