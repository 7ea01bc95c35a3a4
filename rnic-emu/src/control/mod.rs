//! The control path: creating, querying, changing and destroying objects. Functions return as libibverbs does: an errno
//! value, or null with `errno` set.

pub mod ah;
pub mod cq;
pub mod events;
pub mod mr;
pub mod mw;
pub mod pd;
pub mod qp;
pub mod query;
pub mod srq;

/// Sets `errno`.
pub fn set_errno(errno: i32) {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = errno };
}

/// The pointer, or null with `errno` set.
pub fn or_null<T>(made: Result<*mut T, i32>) -> *mut T {
    made.unwrap_or_else(|errno| {
        set_errno(errno);
        std::ptr::null_mut()
    })
}

/// 0, or the errno value.
pub fn status(done: Result<(), i32>) -> i32 {
    done.err().unwrap_or(0)
}
