//! The functions one object goes through, read where the object lies: for objects that were seen being made.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader};

use super::layout::{CQ_EX, OPS, QP_EX};
use super::memory::{Memory, Process};
use super::regions::Regions;
use super::{Site, place, site};
use crate::entry::Kernel;
use crate::providers::Role;
use crate::target::MappedFile;

/// An object of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectAt {
    /// `ibv_context` at an address.
    Context(u64),
    /// `ibv_qp` at an address.
    Qp(u64),
    /// `ibv_cq` at an address.
    Cq(u64),
    /// `ibv_srq` at an address.
    Srq(u64),
}

impl ObjectAt {
    /// Its address, and the functions it may have of its own; `None` for a context.
    fn parts(self) -> (u64, Option<&'static [(u64, Role)]>) {
        match self {
            Self::Context(address) => (address, None),
            Self::Srq(address) => (address, Some(&[])),
            Self::Qp(address) => (address, Some(&QP_EX)),
            Self::Cq(address) => (address, Some(&CQ_EX)),
        }
    }
}

/// The words at the places of an object's functions, whatever they are: objects with the same words go through the same
/// functions. Much cheaper than [`places_of`].
///
/// # Errors
/// As [`places_of`].
pub fn function_words(pid: u32, object: ObjectAt) -> io::Result<Vec<u64>> {
    let mut memory = Process::open(pid)?;
    let (address, extended) = object.parts();
    let context = if extended.is_none() { Some(address) } else { memory.word(address) };
    let of_context = OPS.iter().map(|(field, _)| (context, *field));
    let of_object = extended.unwrap_or_default().iter().map(|(field, _)| (Some(address), *field));
    let words = of_context.chain(of_object).map(|(base, field)| memory.word(base?.checked_add(field)?));
    Ok(words.map(Option::unwrap_or_default).collect())
}

/// The functions an object and its context go through, and where probes would sit on this kernel; nothing where the
/// memory does not look like them.
///
/// # Errors
/// When the process is gone or may not be looked into.
pub fn places_of(pid: u32, object: ObjectAt, kernel: &Kernel) -> io::Result<Vec<(Site, MappedFile)>> {
    let maps = File::open(format!("/proc/{pid}/maps"))?;
    let regions = Regions::parse(BufReader::new(maps))?;
    let functions = functions(&mut Process::open(pid)?, &regions, object);
    let places = functions.into_iter().filter_map(|(role, at)| Some((role, place(pid, &regions, at)?)));
    Ok(places.map(|(role, at)| (site(role, at.offset, &at.file, kernel), at.file)).collect())
}

fn functions(memory: &mut impl Memory, regions: &Regions, object: ObjectAt) -> BTreeMap<Role, u64> {
    let mut found = BTreeMap::new();
    let (address, extended) = object.parts();
    let fields = |memory: &mut _, base: u64, fields: &[(u64, Role)]| -> BTreeMap<Role, u64> {
        let mut function = |field: u64| Memory::word(memory, base.checked_add(field)?);
        let read = fields.iter().filter_map(|(field, role)| Some((*role, function(*field)?)));
        read.filter(|(_, function)| regions.is_code(*function)).collect()
    };
    // Behind an object without the extended API lies something else: all of what makes it one must be there.
    let of_object = fields(memory, address, extended.unwrap_or_default());
    let whole = match object {
        ObjectAt::Qp(_) => {
            of_object.contains_key(&Role::WrStart) && of_object.contains_key(&Role::WrComplete)
        }
        ObjectAt::Cq(_) => of_object.len() == CQ_EX.len(),
        _ => false,
    };
    if whole {
        found.extend(of_object);
    }
    let context = match object {
        ObjectAt::Context(address) => Some(address),
        // The first word of every object.
        _ => memory.word(address),
    };
    if let Some(context) = context {
        let of_context = fields(memory, context, &OPS);
        if of_context.contains_key(&Role::PostSend) && of_context.contains_key(&Role::PollCq) {
            found.extend(of_context);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words by address.
    struct Words(BTreeMap<u64, u64>);

    impl Memory for Words {
        fn present(&mut self, _start: u64, pages: &mut [bool]) -> io::Result<()> {
            pages.fill(true);
            Ok(())
        }

        fn read(&mut self, address: u64, into: &mut [u8]) -> usize {
            let Some(word) = self.0.get(&address) else { return 0 };
            into.copy_from_slice(&word.to_ne_bytes());
            8
        }
    }

    const CODE: u64 = 0x7000_0000;
    const CONTEXT: u64 = 0x5000_1000;
    const QP: u64 = 0x5000_3000;

    fn regions() -> Regions {
        let maps = "50000000-50010000 rw-p 00000000 00:00 0 [heap]\n\
                    70000000-70010000 r-xp 00001000 08:01 9 /lib/librxe-rdmav34.so\n";
        Regions::parse(maps.as_bytes()).unwrap()
    }

    fn classic() -> BTreeMap<u64, u64> {
        let mut words: BTreeMap<u64, u64> =
            OPS.iter().map(|(field, _)| (CONTEXT + field, CODE + field)).collect();
        words.insert(QP, CONTEXT);
        words
    }

    #[test]
    fn a_classic_queue_pair_has_the_functions_of_its_context() {
        let found = functions(&mut Words(classic()), &regions(), ObjectAt::Qp(QP));
        assert_eq!(found.len(), OPS.len());
        assert_eq!(found[&Role::PostSend], CODE + 208);
        let of_context = functions(&mut Words(classic()), &regions(), ObjectAt::Context(CONTEXT));
        assert_eq!(of_context, found);
    }

    #[test]
    fn an_extended_queue_pair_has_its_own_as_well() {
        let mut words = classic();
        words.extend(QP_EX.iter().map(|(field, _)| (QP + field, CODE + 0x1000 + field)));
        let found = functions(&mut Words(words), &regions(), ObjectAt::Qp(QP));
        assert_eq!(found.len(), OPS.len() + QP_EX.len());
    }

    #[test]
    fn half_an_extended_object_is_none() {
        let mut words = classic();
        words.insert(QP + 320, CODE);
        let found = functions(&mut Words(words), &regions(), ObjectAt::Qp(QP));
        assert!(!found.contains_key(&Role::WrStart));
    }

    #[test]
    fn memory_that_is_something_else_by_now_tells_nothing() {
        let words = Words(BTreeMap::from([(QP, CONTEXT), (CONTEXT + 208, 5)]));
        assert!(functions(&mut { words }, &regions(), ObjectAt::Qp(QP)).is_empty());
        assert!(functions(&mut Words(BTreeMap::new()), &regions(), ObjectAt::Cq(u64::MAX - 3)).is_empty());
    }
}
