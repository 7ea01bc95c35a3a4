//! The functions one object goes through, read where the object lies: for objects that were seen being made.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader};

use super::beginnings::{Beginnings, Begins};
use super::layout::{CQ_EX, OPS, QP_EX, context, cq, qp};
use super::memory::{Memory, Process};
use super::regions::Regions;
use super::search::{is_completion_queue, is_context_size, is_queue_pair};
use super::{Place, Site, at_work, site};
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
/// memory does not look like them, or no longer: an object that is gone leaves pointers to what was there once.
///
/// # Errors
/// When the process is gone or may not be looked into.
pub fn places_of(pid: u32, object: ObjectAt, kernel: &Kernel) -> io::Result<Vec<(Site, MappedFile)>> {
    let maps = File::open(format!("/proc/{pid}/maps"))?;
    let regions = Regions::parse(BufReader::new(maps))?;
    let functions = functions(&mut Process::open(pid)?, &regions, object);
    let places = functions.into_iter().filter_map(|(role, at)| Some((role, at_work(pid, &regions, at)?)));
    let places: BTreeMap<Role, Place> = places.collect();
    let begins = Beginnings::default().of_all(places.values());
    if begins == Begins::NotHere {
        return Ok(Vec::new());
    }
    let places = places.into_iter();
    Ok(places.map(|(role, at)| (site(role, at.offset, &at.file, begins, kernel), at.file)).collect())
}

/// Nothing, unless the object is whole before and after its functions were read: what a program has freed soon holds
/// something else, such as the table of another context's functions.
fn functions(memory: &mut impl Memory, regions: &Regions, object: ObjectAt) -> BTreeMap<Role, u64> {
    let mut look = Look { memory, regions };
    let Some(context) = look.context_of(object) else { return BTreeMap::new() };
    let mut found = look.fields(context, &OPS);
    let (address, extended) = object.parts();
    let of_object = look.fields(address, extended.unwrap_or_default());
    // Behind an object without the extended API lies something else: all of what makes it one must be there.
    let is_extended = match object {
        ObjectAt::Qp(_) => {
            of_object.contains_key(&Role::WrStart) && of_object.contains_key(&Role::WrComplete)
        }
        ObjectAt::Cq(_) => of_object.len() == CQ_EX.len(),
        _ => false,
    };
    if is_extended {
        found.extend(of_object);
    }
    if look.context_of(object) == Some(context) { found } else { BTreeMap::new() }
}

/// A look at the memory of a process.
struct Look<'a, M> {
    memory: &'a mut M,
    regions: &'a Regions,
}

impl<M: Memory> Look<'_, M> {
    fn word(&mut self, base: u64, field: u64) -> Option<u64> {
        self.memory.word(base.checked_add(field)?)
    }

    /// Those of the fields that point to code.
    fn fields(&mut self, base: u64, fields: &[(u64, Role)]) -> BTreeMap<Role, u64> {
        let regions = self.regions;
        let read = fields.iter().filter_map(|(field, role)| Some((*role, self.word(base, *field)?)));
        read.filter(|(_, function)| regions.is_code(*function)).collect()
    }

    /// The context of an object; `None` where either is not what it should be.
    fn context_of(&mut self, object: ObjectAt) -> Option<u64> {
        let (address, _) = object.parts();
        // The first word of every object.
        let context = match object {
            ObjectAt::Context(_) => address,
            _ => self.word(address, 0)?,
        };
        let fits = match object {
            ObjectAt::Context(_) | ObjectAt::Srq(_) => true,
            ObjectAt::Qp(_) => {
                is_queue_pair(
                    self.word(address, qp::HANDLE_AND_NUMBER)?,
                    self.word(address, qp::STATE_AND_TYPE)?,
                ) && self.points_back(address, qp::PD, context)
                    && [qp::SEND_CQ, qp::RECV_CQ, qp::SRQ].into_iter().all(|field| {
                        self.word(address, field) == Some(0) || self.points_back(address, field, context)
                    })
            }
            ObjectAt::Cq(_) => is_completion_queue(
                self.word(address, cq::HANDLE_AND_CQE)?,
                self.word(address, cq::MUTEX)?,
                self.word(address, cq::MUTEX_KIND)?,
            ),
        };
        let size = self.memory.word(context.checked_sub(context::SIZE_BEFORE)?)?;
        let is_context = is_context_size(size) && self.word(context, context::ABI_COMPAT) == Some(u64::MAX);
        (fits && is_context && self.has_operations(context)).then_some(context)
    }

    fn has_operations(&mut self, context: u64) -> bool {
        let found = self.fields(context, &OPS);
        found.contains_key(&Role::PostSend) && found.contains_key(&Role::PollCq)
    }

    fn points_back(&mut self, address: u64, field: u64, context: u64) -> bool {
        self.word(address, field).is_some_and(|other| self.memory.word(other) == Some(context))
    }
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
    const PD: u64 = 0x5000_4000;
    const CQ: u64 = 0x5000_5000;

    fn regions() -> Regions {
        let maps = "50000000-50010000 rw-p 00000000 00:00 0 [heap]\n\
                    70000000-70010000 r-xp 00001000 08:01 9 /lib/librxe-rdmav34.so\n";
        Regions::parse(maps.as_bytes()).unwrap()
    }

    fn classic() -> BTreeMap<u64, u64> {
        let mut words: BTreeMap<u64, u64> =
            OPS.iter().map(|(field, _)| (CONTEXT + field, CODE + field)).collect();
        words.extend([(CONTEXT - 8, 648), (CONTEXT + context::ABI_COMPAT, u64::MAX)]);
        words.extend([(QP, CONTEXT), (QP + qp::PD, PD), (PD, CONTEXT), (QP + qp::SEND_CQ, CQ)]);
        words.extend([(QP + qp::RECV_CQ, CQ), (QP + qp::SRQ, 0), (CQ, CONTEXT)]);
        // Number 17; RTS, RC.
        words.extend([(QP + qp::HANDLE_AND_NUMBER, 17 << 32), (QP + qp::STATE_AND_TYPE, 2 << 32 | 3)]);
        words.extend([(CQ + cq::HANDLE_AND_CQE, 63 << 32), (CQ + cq::MUTEX, 0), (CQ + cq::MUTEX_KIND, 0)]);
        words
    }

    #[test]
    fn a_classic_queue_pair_has_the_functions_of_its_context() {
        let found = functions(&mut Words(classic()), &regions(), ObjectAt::Qp(QP));
        assert_eq!(found.len(), OPS.len());
        assert_eq!(found[&Role::PostSend], CODE + 208);
        for object in [ObjectAt::Context(CONTEXT), ObjectAt::Cq(CQ)] {
            assert_eq!(functions(&mut Words(classic()), &regions(), object), found);
        }
    }

    #[test]
    fn an_object_of_which_any_part_is_not_what_it_should_be_tells_nothing() {
        let mut words = classic();
        words.extend(QP_EX.iter().map(|(field, _)| (QP + field, CODE + 0x1000 + field)));
        let broken = [
            (QP, PD),
            (QP + qp::PD, CQ + 8),
            (QP + qp::SEND_CQ, QP + 8),
            (QP + qp::HANDLE_AND_NUMBER, CODE),
            (QP + qp::STATE_AND_TYPE, CODE),
            (CONTEXT - 8, 7),
            (CONTEXT + context::ABI_COMPAT, CODE),
            (CONTEXT + 208, 5),
        ];
        for (place, word) in broken {
            let mut words = words.clone();
            words.insert(place, word);
            let found = functions(&mut Words(words), &regions(), ObjectAt::Qp(QP));
            assert_eq!(found, BTreeMap::new(), "{place:#x}");
        }
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
