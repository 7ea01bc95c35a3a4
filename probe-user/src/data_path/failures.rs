//! What failed, as the probes tell it: posts that were refused, and completion entries with an error.

use std::collections::BTreeMap;

use probe_common::failures::{Failed as Told, FailureKey, Request, known, what};
use probe_common::under_way::Class;
use serde::Serialize;

use super::Source;
use crate::model::size_class;
use crate::sample::{FailedRequest, Known, NextRequest, Opcode, WorkRequest};

/// Failed posts and completion entries of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// QP number, or handle of a shared receive queue; 0 where a completion entry did not tell.
    pub number: u32,
    /// What failed.
    pub what: Failed,
    /// errno of a post, status of a completion entry.
    pub code: u32,
    /// How often.
    pub count: u64,
    /// The first of them.
    pub first: FailedRequest,
}

/// What failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Failed {
    /// A post to a send queue.
    Post,
    /// A post to a receive queue.
    Receive,
    /// A post to a shared receive queue.
    SharedReceive,
    /// A work request, by its completion entry.
    Cqe,
}

impl Failed {
    fn from_wire(what: u32) -> Option<Self> {
        match what {
            what::POST => Some(Self::Post),
            what::RECEIVE => Some(Self::Receive),
            what::SHARED_RECEIVE => Some(Self::SharedReceive),
            what::CQE => Some(Self::Cqe),
            _ => None,
        }
    }
}

/// `IBV_WC_WR_FLUSH_ERR`: what was still outstanding when a request before it failed.
pub const FLUSHED: u32 = 5;

impl Failure {
    /// Who told of a failure, and the failure; `None` for what no program writes.
    pub fn of(key: &FailureKey, told: &Told) -> Option<(Source, Self)> {
        let what = Failed::from_wire(key.what & 0xffff)?;
        let by = Source::from_wire((key.what >> 16) as u16)?;
        let first = request(what, &told.first);
        Some((by, Self { number: key.number, what, code: key.code, count: told.count, first }))
    }

    /// In order of queue; what failed first comes first, and what was flushed behind it after it.
    pub fn in_order(failures: &mut [Self]) {
        failures.sort_by_key(|f| {
            (f.number, f.what, f.what == Failed::Cqe && f.code == FLUSHED, f.first.t_ns, f.code)
        });
    }
}

/// Of failures told by several places, those of one queue and kind are told by the place nearest to the program.
pub fn nearest(failures: Vec<(Source, Failure)>) -> Vec<Failure> {
    let mut best = BTreeMap::new();
    for (source, failure) in &failures {
        let nearest = best.entry((failure.what, failure.number)).or_insert(*source);
        *nearest = (*nearest).min(*source);
    }
    let is_best = |(by, f): &(Source, Failure)| best.get(&(f.what, f.number)) == Some(by);
    failures.into_iter().filter(is_best).map(|(_, failure)| failure).collect()
}

fn request(what: Failed, r: &Request) -> FailedRequest {
    let known = match r.known {
        known::EXACTLY => Known::Exactly,
        known::BY_NUMBER => Known::ByNumber,
        known::BEFORE => Known::Before,
        known::SAMPLED => Known::Sampled,
        known::UNSEEN => Known::Unseen,
        known::FORGOTTEN => Known::Forgotten,
        known::NO_QUEUE => Known::NoQueue,
        _ => Known::Unknown,
    };
    let is_cqe = what == Failed::Cqe;
    let seen = matches!(known, Known::Exactly | Known::ByNumber);
    let posted = work_request(what, r);
    // Where nothing signalled is remembered behind it, no time is.
    let next = (known == Known::Before && r.posted_ns != 0)
        .then(|| NextRequest { wr_id: r.next_wr_id, request: posted.clone() });
    let may_be_others = matches!(known, Known::Before | Known::ByNumber);
    FailedRequest {
        t_ns: r.t_ns,
        wr_id: (is_cqe || seen).then_some(r.wr_id),
        known,
        request: seen.then_some(posted),
        before: if is_cqe { Some(r.before).filter(|_| may_be_others) } else { seen.then_some(r.before) },
        next,
        outstanding: Some(r.outstanding).filter(|n| *n != 0),
        vendor_err: Some(r.vendor_err).filter(|code| *code != 0),
        stack: r.stack.into_iter().take_while(|address| *address != 0).collect(),
    }
}

fn work_request(what: Failed, r: &Request) -> WorkRequest {
    let class = Class(r.class.into());
    let is_send = matches!(what, Failed::Post | Failed::Cqe);
    let opcode = is_send.then(|| Opcode::from_number(class.opcode()));
    let names_remote = opcode.is_some_and(Opcode::names_remote_memory);
    // What is remembered of a length is 32 bits of it; its class is of all.
    let whole = what != Failed::Cqe || u32::from(size_class(r.bytes)) == class.size_class();
    let has_buffer = r.addr != 0 || r.lkey != 0;
    let inline = class.0 & Class::INLINE != 0;
    WorkRequest {
        posted_ns: Some(r.posted_ns).filter(|t_ns| *t_ns != 0),
        opcode,
        bytes: Some(r.bytes).filter(|_| whole),
        inline,
        more_buffers: class.0 & Class::SEVERAL != 0 || r.sges > 1,
        addr: has_buffer.then_some(r.addr),
        // Inline data needs no region.
        lkey: (has_buffer && !inline).then_some(r.lkey),
        remote_addr: names_remote.then_some(r.remote_addr),
        rkey: names_remote.then_some(r.rkey),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_common::counters::source;
    use probe_common::wire::STACK_FRAMES;

    fn told(known: u32, opcode: u32) -> Request {
        Request {
            t_ns: 100,
            wr_id: 7,
            posted_ns: 60,
            remote_addr: 0x5000,
            addr: 0x1000,
            bytes: 64,
            rkey: 0x17,
            lkey: 0x16,
            class: opcode | 6 << 8,
            known,
            vendor_err: 0,
            sges: 0,
            before: 3,
            outstanding: 5,
            next_wr_id: 9,
            stack: [0; STACK_FRAMES],
        }
    }

    fn cqe(request: Request) -> FailedRequest {
        let key = FailureKey {
            start_ns: 1,
            tgid: 5,
            number: 17,
            what: what::CQE | u32::from(source::TAP) << 16,
            code: 10,
        };
        let (by, failure) = Failure::of(&key, &Told { count: 2, first: request }).unwrap();
        assert_eq!((by, failure.what, failure.number, failure.count), (Source::Tap, Failed::Cqe, 17, 2));
        failure.first
    }

    #[test]
    fn a_request_that_is_remembered_is_told_in_full_and_one_that_is_not_says_so() {
        let write = cqe(told(known::EXACTLY, 0));
        let request = write.request.unwrap();
        assert_eq!(
            (request.opcode, request.bytes, request.rkey),
            (Some(Opcode::RdmaWrite), Some(64), Some(0x17))
        );
        assert_eq!((write.wr_id, write.before, write.outstanding), (Some(7), None, Some(5)));
        // What stands at the place of a send's remote address means nothing.
        let send = cqe(told(known::EXACTLY, 2)).request.unwrap();
        assert_eq!((send.remote_addr, send.rkey, send.lkey), (None, None, Some(0x16)));
        let unseen = cqe(told(known::UNSEEN, 0));
        assert_eq!((unseen.wr_id, unseen.known, unseen.request), (Some(7), Known::Unseen, None));
    }

    #[test]
    fn of_an_unsignalled_request_the_signalled_one_behind_it_is_told_as_another() {
        let before = cqe(told(known::BEFORE, 0));
        assert_eq!((before.request, before.before), (None, Some(3)));
        assert_eq!(before.next.unwrap().wr_id, 9);
        assert_eq!(cqe(Request { posted_ns: 0, ..told(known::BEFORE, 0) }).next, None);
    }

    #[test]
    fn a_length_of_which_only_a_part_is_remembered_is_not_told() {
        let long = Request { bytes: 64, class: 34 << 8, ..told(known::EXACTLY, 0) };
        assert_eq!(cqe(long).request.unwrap().bytes, None);
    }

    #[test]
    fn a_failure_told_at_several_places_is_counted_once() {
        let failed = |number, code| Failure {
            number,
            what: Failed::Post,
            code,
            count: 1,
            first: FailedRequest::default(),
        };
        let told = vec![
            (Source::Emulator, failed(17, 12)),
            (Source::Tap, failed(17, 12)),
            (Source::Tap, failed(17, 22)),
            (Source::Function, failed(18, 12)),
        ];
        assert_eq!(nearest(told), [failed(17, 12), failed(17, 22), failed(18, 12)]);
    }

    #[test]
    fn what_was_flushed_comes_behind_what_failed() {
        let failed = |code, t_ns| Failure {
            number: 17,
            what: Failed::Cqe,
            code,
            count: 1,
            first: FailedRequest { t_ns, ..FailedRequest::default() },
        };
        let mut all = [failed(FLUSHED, 10), failed(12, 30), failed(10, 20)];
        Failure::in_order(&mut all);
        assert_eq!(all.map(|f| f.code), [10, 12, FLUSHED]);
    }
}
