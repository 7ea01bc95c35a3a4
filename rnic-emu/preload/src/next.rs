//! The functions this library shadows.

use libc::c_void;
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// Address of the next definition of an export, looked up on first use.
pub struct Next {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Next {
    /// Of the export `name`.
    pub const fn of(name: &'static CStr) -> Self {
        Self { name, at: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; null if no library has it.
    pub fn get(&self) -> *mut c_void {
        let known = self.at.load(Acquire);
        if !known.is_null() {
            return known;
        }
        let found = find(self.name);
        self.at.store(found, Release);
        found
    }
}

/// The next definition after this library; failing that (the program opened libibverbs privately), libibverbs' own.
fn find(name: &CStr) -> *mut c_void {
    // SAFETY: a C string; RTLD_NEXT means after this library, which is where this code lies.
    let next = unsafe { crate::dlsym::real(libc::RTLD_NEXT, name.as_ptr()) };
    if !next.is_null() {
        return next;
    }
    // SAFETY: C strings. The handle is kept for ever: its functions are.
    unsafe {
        let library = libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
        if library.is_null() { std::ptr::null_mut() } else { crate::dlsym::real(library, name.as_ptr()) }
    }
}
