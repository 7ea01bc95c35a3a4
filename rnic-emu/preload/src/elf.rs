//! Finding a function in the C library without `dlsym`, which this library shadows.

use std::ffi::CStr;

/// Address of the default definition of `name` in the C library (or libdl, where it lay before glibc 2.34).
pub fn in_c_library(name: &CStr) -> Option<usize> {
    let mut search = Search { name, found: None };
    // SAFETY: the callback gets back the pointer it is given here, and only during the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

struct Search<'a> {
    name: &'a CStr,
    found: Option<usize>,
}

unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    data: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the loader's description of a loaded object, and our own `Search`.
    let (info, search) = unsafe { (&*info, &mut *data.cast::<Search<'_>>()) };
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: the loader's C string.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    let file = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
    if !file.starts_with(b"libc.so.") && !file.starts_with(b"libdl.so.") {
        return 0;
    }
    // SAFETY: a loaded object with valid program headers.
    search.found = unsafe { symbol(info, search.name) };
    c_int_of(search.found.is_some())
}

fn c_int_of(b: bool) -> libc::c_int {
    libc::c_int::from(b)
}

const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;
/// Bit of a version index that says: not the default version.
const HIDDEN: u16 = 0x8000;

/// # Safety
/// A loaded object.
unsafe fn symbol(info: &libc::dl_phdr_info, name: &CStr) -> Option<usize> {
    let base = info.dlpi_addr as usize;
    // SAFETY: the loader's table of `dlpi_phnum` headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let dynamic = headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC)?;
    let entries = (base + dynamic.p_vaddr as usize) as *const [i64; 2];
    let (mut strings, mut symbols, mut hash, mut versions) = (0usize, 0usize, 0usize, 0usize);
    for i in 0.. {
        // SAFETY: the dynamic section ends with an entry of tag 0.
        let [tag, value] = unsafe { *entries.add(i) };
        // glibc has made these values addresses; other loaders leave offsets.
        let at = if (value as usize) < base { base + value as usize } else { value as usize };
        match tag {
            0 => break,
            DT_STRTAB => strings = at,
            DT_SYMTAB => symbols = at,
            DT_GNU_HASH => hash = at,
            DT_VERSYM => versions = at,
            _ => {}
        }
    }
    if strings == 0 || symbols == 0 || hash == 0 {
        return None;
    }
    // SAFETY: tables of a loaded object; the chain of a bucket ends with an odd word.
    unsafe {
        let table = hash as *const u32;
        let (buckets, first, bloom) = (*table, *table.add(1), *table.add(2));
        if buckets == 0 {
            return None;
        }
        let bucket = table.add(4 + 2 * bloom as usize);
        let chain = bucket.add(buckets as usize);
        let wanted = gnu_hash(name.to_bytes());
        let mut i = *bucket.add((wanted % buckets) as usize);
        if i < first {
            return None;
        }
        loop {
            let h = *chain.add((i - first) as usize);
            let s = &*(symbols as *const libc::Elf64_Sym).add(i as usize);
            let default = versions == 0 || *(versions as *const u16).add(i as usize) & HIDDEN == 0;
            if h | 1 == wanted | 1
                && default
                && s.st_value != 0
                && CStr::from_ptr((strings + s.st_name as usize) as *const libc::c_char) == name
            {
                return Some(base + s.st_value as usize);
            }
            if h & 1 != 0 {
                return None;
            }
            i += 1;
        }
    }
}

fn gnu_hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |h, b| h.wrapping_mul(33).wrapping_add(u32::from(*b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_librarys_own_functions_are_found() {
        let at = in_c_library(c"dlsym").expect("every C library has it");
        assert_eq!(at, libc::dlsym as *const () as usize);
        assert_eq!(in_c_library(c"no_such_function_anywhere"), None);
    }
}
