//! The other end of a queue pair, where the same trace has it, and what of it explains an error.

use std::cmp::Reverse;

use crate::model::{EndedRegion, ProcessModel, Qp, Region};
use crate::report::units::{bytes, count, duration};
use crate::sample::{Opcode, ProcessId, QueueKind};

use super::finding::{Evidence, many};
use super::subject::Subject;
use super::traffic::{ATOMICS, READS, Traffic, WRITES, of_opcodes};

/// `IBV_ACCESS_LOCAL_WRITE`.
pub const LOCAL_WRITE: u32 = 1;
/// `IBV_ACCESS_REMOTE_WRITE`, `_READ`, `_ATOMIC`, and the opcodes that need them.
const NEEDS: [(u32, &str, &[Opcode]); 3] = [
    (2, "IBV_ACCESS_REMOTE_WRITE", &WRITES),
    (4, "IBV_ACCESS_REMOTE_READ", &READS),
    (8, "IBV_ACCESS_REMOTE_ATOMIC", &ATOMICS),
];

/// Regions named in a line of evidence.
const NAMED: usize = 3;

/// One end of a connection.
#[derive(Clone, Copy)]
pub struct End<'m> {
    /// Whose.
    pub process: &'m ProcessModel,
    /// The queue pair.
    pub qp: &'m Qp,
}

/// The other end of a queue pair of the process, where the trace has it too: by the connections of a merged trace, else
/// the queue pair that names this one as its peer.
pub fn other_end<'m>(subject: &Subject<'m>, qp: &Qp) -> Option<End<'m>> {
    let id = subject.process.info.id;
    let joined = subject.model.connections.iter().find_map(|connection| {
        let is_this = |end: &crate::sample::End| end.id == id && end.qp == qp.qp && end.qpn == qp.qpn;
        match (is_this(&connection.a), is_this(&connection.b)) {
            (true, _) => Some(connection.b),
            (_, true) => Some(connection.a),
            _ => None,
        }
    });
    let named = |process: &'m ProcessModel, qpn: u32| {
        let ended = process.queues.ended().filter(move |other| other.qpn == qpn);
        process.queues.live().filter(move |other| other.qpn == qpn).chain(ended)
    };
    if let Some(end) = joined {
        let process = subject.model.processes.get(&end.id)?;
        return named(process, end.qpn).find(|other| other.qp == end.qp).map(|qp| End { process, qp });
    }
    // Numbers alone are not unique between hosts: a merged trace names its connections.
    if !subject.model.connections.is_empty() {
        return None;
    }
    let there = qp.attributes.dest_qpn?;
    subject.model.processes.values().find_map(|process| {
        let talks_back = |other: &&Qp| other.attributes.dest_qpn == Some(qp.qpn);
        named(process, there).find(talks_back).map(|qp| End { process, qp })
    })
}

/// `server, pid 4711`, or `this process`.
pub fn who(subject: &Subject<'_>, end: &End<'_>) -> String {
    if end.process.info.id == subject.process.info.id {
        "this process".to_owned()
    } else {
        let comm: String =
            end.process.info.comm.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        format!("{comm}, pid {}", end.process.info.id.pid)
    }
}

/// Where an object was made, in words; empty where no stack was taken.
pub fn by_place(subject: &Subject<'_>, process: &ProcessModel, site: Option<usize>) -> String {
    let site = site.and_then(|site| process.sites.get(site));
    let caller = site.and_then(|site| crate::report::caller(subject.model, process.info.id, &site.stack));
    caller.map_or_else(String::new, |caller| format!(" by {caller}"))
}

/// The access rights that requests of this queue pair need at the peer.
pub fn rights_needed(traffic: &Traffic<'_>, qp: &Qp) -> Vec<(u32, &'static str)> {
    let posted = traffic.senders().find(|(queue, _)| queue.pointer == qp.qp && queue.number == qp.qpn);
    let needed = |opcodes: &[Opcode]| match posted {
        Some((_, counts)) => of_opcodes(counts, opcodes) > 0,
        None => of_opcodes(&traffic.all, opcodes) > 0,
    };
    NEEDS.iter().filter(|(_, _, opcodes)| needed(opcodes)).map(|(bit, name, _)| (*bit, *name)).collect()
}

/// Those of the rights that the queue pair's own access flags, as set at INIT, deny its peer; none where they were not
/// seen.
pub fn denied(qp: &Qp, rights: &[(u32, &'static str)]) -> Vec<&'static str> {
    let Some(flags) = qp.attributes.qp_access_flags else { return Vec::new() };
    rights.iter().filter(|(bit, _)| flags & bit == 0).map(|(_, name)| *name).collect()
}

/// What the regions of a protection domain say of a request that was refused.
pub struct Regions {
    /// In words.
    pub evidence: Vec<Evidence>,
    /// The most likely reason; `None` where every one is left.
    pub why: Option<Why>,
}

/// Why a request for memory was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// No region of the protection domain lives, or ever did.
    NoRegion,
    /// None of them allows it.
    NoRight,
    /// One that allowed it was deregistered while the queue pair was connected.
    Gone,
    /// One that allowed it was deregistered before, while an earlier queue pair was connected.
    GoneBefore,
}

/// Regions of the protection domain of `end` that a request with those rights could have meant.
///
/// The first failure lies between two samples: what was registered or deregistered later has nothing to do with it.
pub fn regions(
    subject: &Subject<'_>,
    end: &End<'_>,
    rights: &[(u32, &'static str)],
    (failed_from_ns, failed_by_ns): (u64, u64),
) -> Regions {
    let (process, qp) = (end.process, end.qp);
    let all = rights.iter().fold(0, |all, (bit, _)| all | bit);
    let names = rights.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(" and ");
    // Where its creation was not seen nobody knows which domain is its own.
    let here = |region: &Region| qp.pd == 0 || region.pd == qp.pd;
    let allows = |region: &Region| region.access & all == all;
    let registrations = &process.registrations;
    let lived_on = registrations.ended().filter(|ended| ended.until_ns >= failed_from_ns);
    let live: Vec<&Region> = registrations
        .regions()
        .values()
        .chain(lived_on.map(|ended| &ended.region))
        .filter(|region| here(region) && region.since_ns <= failed_by_ns)
        .collect();
    let (fit, unfit): (Vec<&Region>, Vec<&Region>) = live.iter().partition(|region| allows(region));
    let connected = qp.transitions.iter().find(|change| change.to == "RTR" && change.errno == 0);
    let since = connected.map_or(qp.created_ns.unwrap_or(0), |change| change.t_ns);
    let until = qp.destroyed_ns.unwrap_or(u64::MAX).min(failed_by_ns);
    let mut gone: Vec<&EndedRegion> = process
        .registrations
        .ended()
        .filter(|ended| here(&ended.region) && allows(&ended.region))
        .filter(|ended| (since..until).contains(&ended.until_ns))
        .collect();
    gone.sort_by_key(|ended| Reverse(ended.until_ns));
    // A program that connects anew may go on with the keys it was told on the connection before.
    let earlier = process.queues.live().chain(process.queues.ended()).filter(|other| other.pd == qp.pd);
    let first_rtr = earlier
        .filter_map(|other| other.transitions.iter().find(|change| change.to == "RTR" && change.errno == 0))
        .map(|change| change.t_ns)
        .min();
    let mut before: Vec<&EndedRegion> = registrations
        .ended()
        .filter(|ended| gone.is_empty() && here(&ended.region) && allows(&ended.region))
        .filter(|ended| first_rtr.is_some_and(|first| (first..since).contains(&ended.until_ns)))
        .collect();
    before.sort_by_key(|ended| Reverse(ended.until_ns));

    let mut lines = Vec::new();
    let domain = if qp.pd == 0 { "of the process" } else { "in the protection domain of that queue pair" };
    let of_all = if names.is_empty() { String::new() } else { format!(" with {names}") };
    lines.push(format!(
        "{} {domain} alive then{of_all}, {} without",
        many(fit.len() as u64, "region"),
        count(unfit.len() as u64)
    ));
    for ended in gone.iter().take(NAMED) {
        let given_back = by_place(subject, process, ended.site);
        lines.push(format!(
            "deregistered while it was connected, {} after RTR{given_back}: {}{}",
            duration(ended.until_ns.saturating_sub(since)),
            words(&ended.region),
            made(subject, process, ended.region.site)
        ));
    }
    for ended in before.iter().take(NAMED) {
        lines.push(format!(
            "deregistered {} before it was connected, while an earlier queue pair was: {}{}",
            duration(since.saturating_sub(ended.until_ns)),
            words(&ended.region),
            made(subject, process, ended.region.site)
        ));
    }
    let mut shown = if fit.is_empty() { unfit.clone() } else { fit.clone() };
    // Between two samples one may have been alive and gone: it is told of once.
    shown.retain(|region| !gone.iter().any(|ended| std::ptr::eq(&raw const ended.region, *region)));
    for region in youngest(shown) {
        let right = if allows(region) { "" } else { ", not allowed there" };
        let made = made(subject, process, region.site);
        lines.push(format!("alive: {}{made}{right}", words(region)));
    }
    let why = if !gone.is_empty() {
        Some(Why::Gone)
    } else if live.is_empty() {
        Some(Why::NoRegion)
    } else if fit.is_empty() {
        Some(Why::NoRight)
    } else {
        (!before.is_empty()).then_some(Why::GoneBefore)
    };
    Regions { evidence: lines.into_iter().map(|text| Evidence { text, qpns: Vec::new() }).collect(), why }
}

/// `, registered by main`, or nothing where no stack was taken.
fn made(subject: &Subject<'_>, process: &ProcessModel, site: Option<usize>) -> String {
    match by_place(subject, process, site) {
        place if place.is_empty() => place,
        place => format!(", registered{place}"),
    }
}

/// The last made of them: a key that is wrong is seldom the first.
fn youngest(mut regions: Vec<&Region>) -> Vec<&Region> {
    regions.sort_by_key(|region| (Reverse(region.since_ns), region.addr));
    regions.truncate(NAMED);
    regions
}

/// `0x7f00 + 2 MiB (rkey 0x17)`
fn words(region: &Region) -> String {
    format!("0x{:x} + {} (rkey 0x{:x})", region.addr, bytes(region.length_bytes), region.rkey)
}

/// What became of the other end, where that explains that it does not answer.
pub fn state(subject: &Subject<'_>, qpn: u32, end: &End<'_>) -> Option<Evidence> {
    let (qp, process) = (end.qp, end.process);
    let who = who(subject, end);
    let started = subject.model.header.t_ns;
    let at = |t_ns: u64| duration(t_ns.saturating_sub(started));
    let text = if let Some(gone) = qp.destroyed_ns {
        format!("its peer, QPN {} of {who}, was destroyed {} after the recording began", qp.qpn, at(gone))
    } else if process.info.exited {
        format!(
            "its peer, QPN {} of {who}, ended with its process {} after the recording began",
            qp.qpn,
            at(process.info.t_ns)
        )
    } else {
        let state = qp.state.as_deref().unwrap_or("RESET");
        format!("its peer, QPN {} of {who}, is in state {state} at the end", qp.qpn)
    };
    Some(Evidence { text, qpns: vec![qpn] })
}

/// Whether both ends belong to one process.
pub fn is_own(subject: &Subject<'_>, end: &End<'_>) -> bool {
    let id: ProcessId = end.process.info.id;
    id == subject.process.info.id
}

/// Messages posted to the queue pair by its other end that take a receive; `None` where the other end is not recorded or
/// its posts were not observed.
pub fn messages_to(subject: &Subject<'_>, qp: &Qp) -> Option<u64> {
    let end = other_end(subject, qp)?;
    let path = &end.process.data_path;
    if !path.is_observed() {
        return None;
    }
    let of_end =
        path.queues().filter(|q| q.kind == QueueKind::Qp && q.pointer == end.qp.qp && q.number == end.qp.qpn);
    Some(of_end.map(|queue| of_opcodes(&queue.tally.seen(), &WITH_RECEIVE)).fold(0, u64::saturating_add))
}

/// Opcodes that take a receive at the other end.
const WITH_RECEIVE: [Opcode; 4] =
    [Opcode::Send, Opcode::SendWithImm, Opcode::SendWithInv, Opcode::RdmaWriteWithImm];
