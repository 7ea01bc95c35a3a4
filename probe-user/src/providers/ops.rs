//! The operation tables of a provider: what it hands to `verbs_set_ops`.
//!
//! A provider gives libibverbs one or more `struct verbs_context_ops`, from which `context->ops` is filled. The calls
//! are found in the code, the tables in relocated data. Where the table is reached through a pointer instead (hns), it
//! is searched by its shape.

use std::collections::BTreeSet;

use super::flow::{Act, acts};
use super::library::{Library, Pointer};
use super::{FoundBy, Role};

/// Where the data path's operations stand in `struct verbs_context_ops`, in words.
///
/// The struct lists operations alphabetically and grows with the private ABI, so each ABI has its own places. From
/// rdma-core's `libibverbs/driver.h`.
struct Layout {
    private_abi: u32,
    poll_cq: u64,
    post_recv: u64,
    post_send: u64,
    post_srq_recv: u64,
    req_notify_cq: u64,
}

/// Private ABIs whose layout is known: 33 is rdma-core 33 (Debian 11's), 34 its 36 to 56 (Debian 12's and 13's among them), 57
/// its 57 and 58, 64 and 65 those. 25 (its 25 to 32) and 59 (its 59 to 63) are not here: the layout changed within them.
/// So it did within 34: rdma-core 34 and 35 have other places.
const LAYOUTS: [Layout; 5] = [
    Layout::new(33, 52, 66),
    Layout::new(34, 53, 69),
    Layout::new(57, 53, 69),
    Layout::new(64, 58, 76),
    Layout::new(65, 62, 84),
];

impl Layout {
    /// In every release `post_recv`, `post_send`, `post_srq_ops` and `post_srq_recv` follow `poll_cq`.
    const fn new(private_abi: u32, poll_cq: u64, req_notify_cq: u64) -> Self {
        Self {
            private_abi,
            poll_cq,
            post_recv: poll_cq + 1,
            post_send: poll_cq + 2,
            post_srq_recv: poll_cq + 4,
            req_notify_cq,
        }
    }

    fn roles(&self) -> [(Role, u64); 5] {
        [
            (Role::PostSend, self.post_send),
            (Role::PostRecv, self.post_recv),
            (Role::PostSrqRecv, self.post_srq_recv),
            (Role::PollCq, self.poll_cq),
            (Role::ReqNotifyCq, self.req_notify_cq),
        ]
    }
}

/// One operation found in a table.
pub struct Operation {
    pub role: Role,
    pub target: Pointer,
    pub found_by: FoundBy,
}

/// Where the tables are, without reading them: needs no known layout.
pub fn tables(library: &Library) -> BTreeSet<u64> {
    let mut tables = BTreeSet::new();
    for start in library.functions() {
        for act in acts(library.code(start), start) {
            let Act::Call { target, second_argument: Some(table) } = act else { continue };
            if library.stubs.get(&target).is_some_and(|name| name == "verbs_set_ops") {
                tables.insert(table);
            }
        }
    }
    tables
}

/// The data path's operations of every table; empty when the private ABI's layout is not known.
pub fn operations(library: &Library) -> Vec<Operation> {
    let Some(layout) = LAYOUTS.iter().find(|l| Some(l.private_abi) == library.private_abi) else {
        return Vec::new();
    };
    let called = tables(library);
    let mut found: Vec<Operation> =
        called.iter().flat_map(|table| read(library, *table, layout, FoundBy::Call)).collect();
    if !found.iter().any(|o| o.role == Role::PostSend)
        && let Some(table) = by_shape(library, layout)
    {
        found.extend(read(library, table, layout, FoundBy::Shape));
    }
    found
}

fn read<'a>(
    library: &'a Library,
    table: u64,
    layout: &Layout,
    found_by: FoundBy,
) -> impl Iterator<Item = Operation> + 'a {
    layout.roles().into_iter().filter_map(move |(role, word)| {
        let target = library.pointers.get(&table.checked_add(word * 8)?)?;
        let real = match target {
            Pointer::Local(address) => library.is_function(*address),
            Pointer::Import(_) => true,
        };
        real.then(|| Operation { role, target: target.clone(), found_by })
    })
}

/// The one place in relocated data where the words of the data path all point to functions, while those around them
/// that a table with a data path leaves empty (post_srq_ops, and everything behind the last operation) do not.
fn by_shape(library: &Library, layout: &Layout) -> Option<u64> {
    let data_path = [layout.poll_cq, layout.post_recv, layout.post_send, layout.req_notify_cq];
    let is_code = |table: u64, word: u64| {
        table.checked_add(word * 8).is_some_and(|at| match library.pointers.get(&at) {
            Some(Pointer::Local(address)) => library.is_function(*address),
            Some(Pointer::Import(_)) => true,
            None => false,
        })
    };
    let mut candidates = library.pointers.keys().filter_map(|at| {
        let table = at.checked_sub(layout.post_send * 8)?;
        let whole = data_path.iter().all(|word| is_code(table, *word));
        let between = is_code(table, layout.post_send + 1);
        let ends = !(1..=8).all(|word| is_code(table, layout.req_notify_cq + word));
        (whole && !between && ends).then_some(table)
    });
    let only = candidates.next()?;
    candidates.next().is_none().then_some(only)
}
