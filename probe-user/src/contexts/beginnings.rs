//! Where functions begin in a mapped file: nowhere else is a probe put.
//!
//! What is read from a process's memory may be out of date by then. A program that unloads a library and loads it again,
//! elsewhere, has pointers in freed memory that lead into the new one, between or into its functions. A probe in the
//! middle of an instruction destroys that instruction. Every file with unwinding information lists its functions, and the
//! segment that holds the list is loaded with the code, so it is there in stripped files too.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use object::elf;
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::read::{ReadCache, ReadRef};
use object::{LittleEndian, elf::FileHeader64};

use super::Place;
use crate::providers::function_starts;
use crate::target::identity;

const LE: LittleEndian = LittleEndian;
/// A list of two million functions.
const LARGEST_TABLE: u64 = 16 << 20;
/// Files looked at for one process: an object's functions lie in one or two.
const MOST_FILES: usize = 64;

/// What a file says of a place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Begins {
    /// A function begins there.
    Here,
    /// The file has no list of its functions, or could not be read.
    Unknown,
    /// None does.
    NotHere,
}

/// The beginnings of functions in the files of a process, each file read once.
#[derive(Debug, Default)]
pub struct Beginnings(HashMap<(u64, u64), Option<Vec<u64>>>);

impl Beginnings {
    /// What is known of a place.
    pub fn at(&mut self, place: &Place) -> Begins {
        let Ok(file) = place.file.open() else { return Begins::Unknown };
        let Ok(id) = identity(&file) else { return Begins::Unknown };
        let is_full = self.0.len() >= MOST_FILES;
        let offsets = match self.0.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if is_full => return Begins::Unknown,
            Entry::Vacant(new) => new.insert(offsets(&ReadCache::new(&file))),
        };
        match offsets.as_ref().map(|offsets| offsets.binary_search(&place.offset)) {
            None => Begins::Unknown,
            Some(Ok(_)) => Begins::Here,
            Some(Err(_)) => Begins::NotHere,
        }
    }

    /// The worst of what is known of these places: that of functions which one object holds, for they are all what they
    /// should be or the object is none.
    pub fn of_all<'a>(&mut self, places: impl Iterator<Item = &'a Place>) -> Begins {
        places.map(|place| self.at(place)).max().unwrap_or(Begins::Here)
    }
}

/// Offsets in a file at which its functions begin, ascending; `None` where it does not tell.
fn offsets<'data, R: ReadRef<'data>>(data: R) -> Option<Vec<u64>> {
    let header = FileHeader64::<LittleEndian>::parse(data).ok()?;
    header.endian().ok()?;
    let segments = header.program_headers(LE, data).ok()?;
    let list = segments.iter().find(|segment| segment.p_type(LE) == elf::PT_GNU_EH_FRAME)?;
    if list.p_filesz(LE) > LARGEST_TABLE {
        return None;
    }
    let table = data.read_bytes_at(list.p_offset(LE), list.p_filesz(LE)).ok()?;
    let is_code = |segment: &&elf::ProgramHeader64<LittleEndian>| {
        segment.p_type(LE) == elf::PT_LOAD && segment.p_flags(LE).contains(elf::PF_X)
    };
    let code: Vec<_> = segments.iter().filter(is_code).collect();
    let offset = |address: u64| {
        code.iter().find_map(|segment| {
            let within = address.checked_sub(segment.p_vaddr(LE))?;
            (within < segment.p_filesz(LE)).then(|| segment.p_offset(LE).checked_add(within))?
        })
    };
    let mut offsets: Vec<u64> =
        function_starts(list.p_vaddr(LE), table).into_iter().filter_map(offset).collect();
    offsets.sort_unstable();
    // A table in an encoding that nobody writes tells nothing.
    (!offsets.is_empty()).then_some(offsets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contexts::code_at;

    #[test]
    fn functions_of_this_program_begin_where_they_are_and_nowhere_else() {
        let here = functions_of_this_program_begin_where_they_are_and_nowhere_else as fn() as usize as u64;
        let mut place = code_at(std::process::id(), here).expect("code");
        let mut beginnings = Beginnings::default();
        assert_eq!(beginnings.at(&place), Begins::Here);
        place.offset += 1;
        assert_eq!(beginnings.at(&place), Begins::NotHere);
    }

    #[test]
    fn one_that_is_none_makes_all_doubtful() {
        let here = one_that_is_none_makes_all_doubtful as fn() as usize as u64;
        let good = code_at(std::process::id(), here).expect("code");
        let mut bad = good.clone();
        bad.offset += 3;
        let mut beginnings = Beginnings::default();
        assert_eq!(beginnings.of_all([&good, &bad].into_iter()), Begins::NotHere);
        assert_eq!(beginnings.of_all([&good].into_iter()), Begins::Here);
        bad.file.path = "/nonexistent".into();
        bad.file.range = "0-0".to_owned();
        assert_eq!(beginnings.of_all([&good, &bad].into_iter()), Begins::Unknown);
    }

    #[test]
    fn files_that_are_cut_or_damaged_tell_nothing_or_less_and_never_panic() {
        let whole = std::fs::read("/proc/self/exe").expect("this program");
        let end = whole.len().min(1 << 20);
        for cut in (0..end).step_by(4093) {
            let _ = offsets(whole.get(..cut).unwrap_or_default());
        }
        let mut damaged = whole.get(..end).unwrap_or_default().to_vec();
        for at in 0..damaged.len().min(1024) {
            let was = std::mem::replace(&mut damaged[at], 0xff);
            let _ = offsets(damaged.as_slice());
            damaged[at] = was;
        }
        assert_eq!(offsets(&b"#!/bin/sh\n"[..]), None);
    }
}
