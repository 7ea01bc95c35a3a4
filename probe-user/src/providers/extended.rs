//! The extended API of a provider: functions it stores into `struct ibv_qp_ex` and `struct ibv_cq_ex`.
//!
//! They stand in no operation table: the code that creates a queue pair or completion queue stores their addresses into
//! the object, field by field, which is what is looked for. mlx5 keeps the poll functions of its completion queues in a
//! table of (start, next, end) rows instead, told by its shape.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::Register;

use super::flow::{Act, Object, acts};
use super::library::Library;
use super::{FoundBy, Role};
use crate::contexts::layout::{CQ_EX, QP_EX};

/// The first function of `struct ibv_qp_ex`, `wr_atomic_cmp_swp`.
const QP_FIRST: u64 = 184;
/// Behind `wr_abort`; only devices with atomics have a function there (`wr_atomic_write`).
const QP_END: u64 = 344;
/// Behind the three that walk a completion queue, the first of those that read an entry.
const CQ_READ_OPCODE: u64 = 168;
const CQ_READ_VENDOR_ERROR: u64 = 176;
const CQ_READ_QP_NUM: u64 = 200;
/// The first of the three that walk it.
const CQ_FIRST: u64 = 144;
/// The last field of `struct ibv_cq_ex`.
const CQ_LAST_FIELD: u64 = 280;
/// The object may begin within the provider's own struct: farthest start looked for.
const LARGEST_SHIFT: u64 = 512;

/// Functions of the extended API, each with how it was told.
pub fn functions(library: &Library) -> BTreeSet<(Role, u64, FoundBy)> {
    let mut found = BTreeSet::new();
    let mut places = BTreeSet::new();
    let mut others = Vec::new();
    for start in library.functions() {
        for fields in filled(library, start).into_values() {
            if let Some(shift) = queue_pair(&fields) {
                places.insert(shift);
                found.extend(named(&fields, &QP_EX, shift));
            } else if completion_queue(&fields) {
                found.extend(named(&fields, &CQ_EX, 0));
            } else {
                others.push(fields);
            }
        }
    }
    // Once it is known where in the provider's struct the object lies, code that replaces single functions is told too:
    // mlx5 gives a queue pair another `wr_complete` when its state changes. Where it begins the struct, the same fields of
    // other structs look alike.
    for shift in places.into_iter().filter(|shift| *shift > 0) {
        let is_field = |at: &u64| QP_EX.iter().any(|(field, _)| field + shift == *at);
        for fields in others.iter().filter(|fields| fields.keys().all(is_field)) {
            found.extend(named(fields, &QP_EX, shift));
        }
    }
    found.extend(poll_rows(library));
    found
}

/// Functions of `struct ibv_cq_ex` that tell whose a completion entry is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Readers {
    /// Behind `ibv_wc_read_qp_num`.
    pub qp_num: BTreeSet<u64>,
    /// Behind `ibv_wc_read_opcode`.
    pub opcode: BTreeSet<u64>,
}

/// Those of a library. The code that makes an extended completion queue always stores the ones that read opcode and
/// vendor error, and those that were asked for.
pub fn readers(library: &Library) -> Readers {
    let mut found = Readers::default();
    for start in library.functions() {
        for fields in filled(library, start).into_values() {
            let are_readers = fields.keys().all(|at| (CQ_FIRST..=CQ_LAST_FIELD).contains(at))
                && [CQ_READ_OPCODE, CQ_READ_VENDOR_ERROR, CQ_READ_QP_NUM]
                    .iter()
                    .all(|at| fields.contains_key(at));
            if are_readers {
                found.opcode.extend(&fields[&CQ_READ_OPCODE]);
                found.qp_num.extend(&fields[&CQ_READ_QP_NUM]);
            }
        }
    }
    found
}

/// Function addresses stored by displacement: two branches may store different ones into one field.
type Fields = BTreeMap<u64, BTreeSet<u64>>;

fn filled(library: &Library, start: u64) -> BTreeMap<Object, Fields> {
    let mut objects: BTreeMap<Object, Fields> = BTreeMap::new();
    for act in acts(library.code(start), start) {
        let Act::Store { object, displacement, value } = act else { continue };
        if library.is_function(value) && object.register != Register::RSP {
            objects.entry(object).or_default().entry(displacement).or_default().insert(value);
        }
    }
    objects
}

/// The object may begin anywhere in the provider's own struct (mlx5 has it behind a resource header), and its fields
/// all look alike, so its ends tell where it is: nothing is stored before the first function, which is
/// that of compare-and-swap where there is one, and otherwise the last is `wr_abort`. `None` where these are not the
/// fields of a queue pair.
fn queue_pair(fields: &Fields) -> Option<u64> {
    let has = |field: u64| fields.contains_key(&field);
    let fits = |shift: &u64| {
        let frame = [320, 328, 336].map(|field| field + shift);
        let builders = QP_EX.iter().map(|(f, _)| f + shift).filter(|f| !frame.contains(f) && has(*f)).count();
        let before = fields.range(*shift..QP_FIRST + shift).next().is_none();
        frame.into_iter().all(has) && builders >= 3 && before
    };
    let shifts: Vec<u64> = (0..=LARGEST_SHIFT).step_by(8).filter(fits).collect();
    let begins = |shift: &&u64| has(QP_FIRST + **shift) && !has(QP_FIRST - 8 + **shift);
    let ends = |shift: &&u64| !has(QP_END + **shift);
    shifts.iter().find(begins).or_else(|| shifts.iter().find(ends)).copied()
}

/// Every provider has its `ibv_cq_ex` first in its own struct. A shift must not be tried here: the fields that read an
/// entry look like the poll functions three fields on.
fn completion_queue(fields: &Fields) -> bool {
    let has = |field: u64| fields.contains_key(&field);
    let whole = CQ_EX.iter().all(|(field, _)| has(*field)) && has(CQ_READ_OPCODE);
    whole && fields.keys().all(|at| *at <= CQ_LAST_FIELD)
}

fn named(fields: &Fields, roles: &[(u64, Role)], shift: u64) -> Vec<(Role, u64, FoundBy)> {
    roles
        .iter()
        .flat_map(|(field, role)| {
            fields.get(&(field + shift)).into_iter().flatten().map(|f| (*role, *f, FoundBy::Store))
        })
        .collect()
}

/// Rows of three functions in relocated data, the first different in every row, the last shared between rows: one row
/// per variant of a completion queue (locking, stalling, clock), few ways to end a poll.
fn poll_rows(library: &Library) -> Vec<(Role, u64, FoundBy)> {
    const ROW: u64 = 24;
    const FEWEST_ROWS: usize = 8;
    /// Variants that cannot occur together leave holes of a few rows.
    const LARGEST_HOLE: u64 = 4 * ROW;
    let row = |at: u64| {
        Some([library.function_in(at)?, library.function_in(at + 8)?, library.function_in(at + 16)?])
    };
    let mut best: Vec<[u64; 3]> = Vec::new();
    for first in library.pointers.keys().copied() {
        let (mut rows, mut at, mut hole) = (Vec::new(), first, 0);
        let mut starts = BTreeSet::new();
        while hole <= LARGEST_HOLE {
            match row(at) {
                Some(functions) if starts.insert(functions[0]) => {
                    rows.push(functions);
                    hole = 0;
                }
                Some(_) => break,
                None => hole += ROW,
            }
            let Some(next) = at.checked_add(ROW) else { break };
            at = next;
        }
        let distinct = |n: usize| rows.iter().map(|r| r[n]).collect::<BTreeSet<_>>().len();
        let shared =
            rows.len() >= FEWEST_ROWS && distinct(1) * 2 <= rows.len() && distinct(2) * 2 <= rows.len();
        let apart = rows.iter().all(|r| !starts.contains(&r[1]) && !starts.contains(&r[2]));
        if shared && apart && rows.len() > best.len() {
            best = rows;
        }
    }
    let roles = [Role::StartPoll, Role::NextPoll, Role::EndPoll];
    best.iter().flat_map(|row| roles.into_iter().zip(*row)).map(|(r, f)| (r, f, FoundBy::Shape)).collect()
}
