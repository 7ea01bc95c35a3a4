//! The functions behind ours: the next library's verbs, and the next `dlsym`.
//!
//! The tap is preloaded, so its exports come first. The real ones are found with `dlsym(RTLD_NEXT)`, or, where the
//! program loads libibverbs itself with `dlopen`, are what the program's own `dlsym` on that handle would have
//! returned. `dlsym` and `dlvsym` are interposed for that case: they hand out our verbs and remember the real ones.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::exports;
use crate::shared;

/// An exported verb the tap stands before.
pub struct Verb {
    name: &'static CStr,
    ours: fn() -> usize,
    real: AtomicUsize,
}

macro_rules! verbs {
    ($($constant:ident $name:ident),* $(,)?) => {
        $(pub static $constant: Verb = Verb {
            // The literal ends in NUL and has no other.
            name: match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            },
            ours: || exports::$name as *const () as usize,
            real: AtomicUsize::new(0),
        };)*
        static VERBS: &[&Verb] = &[$(&$constant),*];
    };
}

verbs! {
    OPEN_DEVICE ibv_open_device,
    IMPORT_DEVICE ibv_import_device,
    VERBS_OPEN_DEVICE verbs_open_device,
    CLOSE_DEVICE ibv_close_device,
    ALLOC_PD ibv_alloc_pd,
    QUERY_DEVICE ibv_query_device,
    CREATE_CQ ibv_create_cq,
    DESTROY_CQ ibv_destroy_cq,
    CREATE_QP ibv_create_qp,
    MODIFY_QP ibv_modify_qp,
    DESTROY_QP ibv_destroy_qp,
    QP_TO_QP_EX ibv_qp_to_qp_ex,
    CREATE_SRQ ibv_create_srq,
    DESTROY_SRQ ibv_destroy_srq,
}

impl Verb {
    /// The real function, 0 when there is none.
    pub fn real(&self) -> usize {
        let known = self.real.load(Relaxed);
        if known != 0 {
            return known;
        }
        let _errno = crate::quiet::KeepErrno::new();
        // SAFETY: plain look-ups by name; a handle from RTLD_NOLOAD names a library that is loaded already.
        let found = unsafe {
            let next = libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr());
            if next.is_null() {
                let loaded = libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
                if loaded.is_null() { ptr::null_mut() } else { libc::dlsym(loaded, self.name.as_ptr()) }
            } else {
                next
            }
        } as usize;
        let found = if found == (self.ours)() { 0 } else { found };
        self.real.store(found, Relaxed);
        found
    }
}

/// The next library's `dlsym` and `dlvsym`, where our tails jump to.
static REAL_DLSYM: AtomicUsize = AtomicUsize::new(0);
static REAL_DLVSYM: AtomicUsize = AtomicUsize::new(0);

/// Both ask `$decide` first, with the caller's arguments; a null answer means: not ours. The real function is then
/// *jumped* to, since it looks at its return address to see who asks for `RTLD_NEXT`.
#[cfg(target_arch = "x86_64")]
macro_rules! before_real {
    ($decide:path, $real:path) => {
        std::arch::naked_asm!(
            "push rdi",
            "push rsi",
            "push rdx",
            "call {decide}",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "test rax, rax",
            "jnz 2f",
            "jmp qword ptr [rip + {real}]",
            "2:",
            "ret",
            decide = sym $decide,
            real = sym $real,
        )
    };
}

/// Interposed: hands out our verbs.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    before_real!(decide_dlsym, REAL_DLSYM)
}

/// Interposed: hands out our verbs.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    before_real!(decide_dlvsym, REAL_DLVSYM)
}

unsafe extern "C" fn decide_dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let real = next_function(&REAL_DLSYM, c"dlsym");
    let Some(verb) = asked_for(handle, name) else { return ptr::null_mut() };
    // SAFETY: the C library's dlsym, or the next interposer's, with the program's arguments.
    let found = unsafe {
        let real: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void = std::mem::transmute(real);
        real(handle, name)
    };
    ours_instead(verb, found)
}

unsafe extern "C" fn decide_dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    let real = next_function(&REAL_DLVSYM, c"dlvsym");
    let Some(verb) = asked_for(handle, name) else { return ptr::null_mut() };
    // The old version of a verb has other structs.
    // SAFETY: the program's arguments; a version is a string.
    let found = unsafe {
        if version.is_null() || CStr::from_ptr(version) == c"IBVERBS_1.0" {
            return ptr::null_mut();
        }
        let real: unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void =
            std::mem::transmute(real);
        real(handle, name, version)
    };
    ours_instead(verb, found)
}

/// The verb asked for, when it is one of ours and the look-up is in a library the program has loaded: `RTLD_DEFAULT`
/// finds ours by itself, and who asks for `RTLD_NEXT` wants what is behind.
fn asked_for(handle: *mut c_void, name: *const c_char) -> Option<&'static Verb> {
    if name.is_null() || handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT {
        return None;
    }
    // SAFETY: the program's argument is a string.
    let name = unsafe { CStr::from_ptr(name) };
    VERBS.iter().copied().find(|verb| verb.name == name)
}

/// Our function in place of the real one, whose address is kept. Null (the program gets what it asked for) where there
/// is none, where it is ours already, or where it is of a second libibverbs.
fn ours_instead(verb: &Verb, found: *mut c_void) -> *mut c_void {
    let ours = (verb.ours)();
    let found = found as usize;
    if found == 0 || found == ours {
        return ptr::null_mut();
    }
    if verb.real.load(Relaxed) == 0 {
        verb.real.store(found, Relaxed);
    }
    if verb.real.load(Relaxed) != found {
        if let Some(shared) = shared::get() {
            shared.header().foreign_libraries.fetch_add(1, Relaxed);
        }
        return ptr::null_mut();
    }
    ours as *mut c_void
}

/// The function of that name in the libraries behind this one, in the order they were loaded. Without `dlsym`, which is
/// what is being looked for.
fn next_function(known: &AtomicUsize, name: &'static CStr) -> usize {
    if known.load(Relaxed) == 0 {
        let mut search = Search { name, passed_us: false, found: 0 };
        // SAFETY: the callback gets the pointer passed here, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
        known.store(search.found, Relaxed);
    }
    known.load(Relaxed)
}

struct Search {
    name: &'static CStr,
    passed_us: bool,
    found: usize,
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: `data` is the Search that `next_function` passed; `info` describes a loaded library.
    let (search, info) = unsafe { (&mut *data.cast::<Search>(), &*info) };
    let us = next_function as *const () as usize;
    // SAFETY: the loader keeps that many program headers there.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let base = usize::try_from(info.dlpi_addr).unwrap_or(0);
    let start = |h: &libc::Elf64_Phdr| base.wrapping_add(usize::try_from(h.p_vaddr).unwrap_or(0));
    let is_us = headers.iter().any(|h| {
        let size = usize::try_from(h.p_memsz).unwrap_or(0);
        h.p_type == libc::PT_LOAD && us.wrapping_sub(start(h)) < size
    });
    if is_us {
        search.passed_us = true;
        return 0;
    }
    let dynamic = headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC);
    if let Some(dynamic) = dynamic.filter(|_| search.passed_us) {
        // SAFETY: the dynamic section of a loaded library.
        search.found = unsafe { symbols::find(base, start(dynamic) as *const [usize; 2], search.name) };
    }
    c_int::from(search.found != 0)
}

/// Look-up in the symbol table of one loaded library, by its GNU hash table.
mod symbols {
    use std::ffi::CStr;

    const DT_NULL: usize = 0;
    const DT_STRTAB: usize = 5;
    const DT_SYMTAB: usize = 6;
    const DT_GNU_HASH: usize = 0x6fff_fef5;
    const DT_VERSYM: usize = 0x6fff_fff0;
    /// A version that is not the default one.
    const HIDDEN: u16 = 0x8000;

    #[repr(C)]
    struct Symbol {
        name: u32,
        info: u8,
        other: u8,
        section: u16,
        value: usize,
        size: usize,
    }

    /// Address of a defined symbol, 0 if the library has none of that name.
    ///
    /// # Safety
    /// `dynamic` is the dynamic section of the loaded library at `base`.
    pub unsafe fn find(base: usize, mut dynamic: *const [usize; 2], name: &CStr) -> usize {
        let (mut strings, mut table, mut hash, mut versions) = (0, 0, 0, 0);
        // SAFETY: the section ends with DT_NULL; the tables it names are mapped while the library is loaded, and the
        // loader has used them before. The C library relocates the addresses in place, except for the kernel's own.
        unsafe {
            loop {
                let [tag, value] = *dynamic;
                let address = if value < base { base + value } else { value };
                match tag {
                    DT_NULL => break,
                    DT_STRTAB => strings = address,
                    DT_SYMTAB => table = address,
                    DT_GNU_HASH => hash = address,
                    DT_VERSYM => versions = address,
                    _ => {}
                }
                dynamic = dynamic.add(1);
            }
            if strings == 0 || table == 0 || hash == 0 {
                return 0;
            }
            let [buckets, first, bloom, _shift] = *(hash as *const [u32; 4]);
            if buckets == 0 {
                return 0;
            }
            let bucket_table = (hash as *const u8).add(16 + bloom as usize * 8).cast::<u32>();
            let chains = bucket_table.add(buckets as usize);
            let wanted = gnu_hash(name);
            let mut index = *bucket_table.add((wanted % buckets) as usize);
            if index < first {
                return 0;
            }
            loop {
                let entry = *chains.add((index - first) as usize);
                if entry | 1 == wanted | 1 {
                    let symbol = &*(table as *const Symbol).add(index as usize);
                    let same = CStr::from_ptr((strings as *const std::ffi::c_char).add(symbol.name as usize))
                        == name;
                    let default =
                        versions == 0 || *(versions as *const u16).add(index as usize) & HIDDEN == 0;
                    if same && default && symbol.section != 0 {
                        return base + symbol.value;
                    }
                }
                if entry & 1 == 1 {
                    return 0;
                }
                index += 1;
            }
        }
    }

    fn gnu_hash(name: &CStr) -> u32 {
        name.to_bytes()
            .iter()
            .fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_hash_is_that_of_the_format() {
            // From the description of the GNU hash section: h("") = 5381, h("printf") = 0x156b2bb8.
            assert_eq!(gnu_hash(c""), 5381);
            assert_eq!(gnu_hash(c"printf"), 0x156b_2bb8);
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_next_dlsym_is_the_c_librarys() {
        let found = next_function(&AtomicUsize::new(0), c"dlsym");
        // SAFETY: a look-up by name.
        let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dlsym".as_ptr()) };
        assert_eq!(found, expected as usize);
    }

    #[test]
    fn look_ups_that_are_not_for_us_are_passed_on() {
        // SAFETY: look-ups by name, through our function and the real one.
        unsafe {
            let ours = dlsym(libc::RTLD_DEFAULT, c"memcpy".as_ptr());
            assert_eq!(ours, libc::dlsym(libc::RTLD_DEFAULT, c"memcpy".as_ptr()));
            assert!(dlsym(libc::RTLD_DEFAULT, c"no_such_function".as_ptr()).is_null());
        }
    }

    #[test]
    fn a_version_is_passed_on_too() {
        // SAFETY: look-ups by name, through our function and the real one.
        unsafe {
            let version = c"GLIBC_2.2.5".as_ptr();
            let ours = dlvsym(libc::RTLD_DEFAULT, c"malloc".as_ptr(), version);
            assert_eq!(ours, libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()));
            assert!(dlvsym(libc::RTLD_DEFAULT, c"malloc".as_ptr(), c"NO_SUCH_VERSION".as_ptr()).is_null());
        }
    }
}
