//! Which region a request that failed named, by its key, and whether its range lies inside.

use crate::model::{ProcessModel, Region, Registrations};
use crate::report::units::{bytes, duration};
use crate::sample::{FailedRequest, WorkRequest};

use super::finding::{Confidence, Evidence};

/// Which of its two places a request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Its first buffer, by lkey: in a region of its own process.
    Local,
    /// Remote memory, by rkey: in a region of the other end's.
    Remote,
}

/// What a request named.
#[derive(Debug, Clone, PartialEq)]
pub enum Named<'m> {
    /// A living region, and the range lies inside.
    Inside(&'m Region),
    /// A living region, and the range ends so many bytes behind its end.
    Beyond(&'m Region, u64),
    /// A living region, and the range begins so many bytes before it.
    Before(&'m Region, u64),
    /// A region that had been given back by then, so many ns before.
    GivenBack(&'m Region, u64),
    /// No region that is known to have had this key.
    NoRegion,
}

/// Key, first byte and length that a request names; `None` where that is not known.
pub fn range(request: &WorkRequest, side: Side) -> Option<(u32, u64, u64)> {
    let (key, addr) = match side {
        Side::Local => (request.lkey?, request.addr?),
        Side::Remote => (request.rkey?, request.remote_addr?),
    };
    Some((key, addr, request.bytes?))
}

/// Looks the key up among the regions, as they were when the request was found to have failed.
pub fn named<'m>(
    registrations: &'m Registrations,
    side: Side,
    (key, addr, length): (u32, u64, u64),
    failed_ns: u64,
) -> Named<'m> {
    let has_key = |region: &Region| key == if side == Side::Local { region.lkey } else { region.rkey };
    let ended = || registrations.ended().filter(|ended| has_key(&ended.region));
    let lived_on = ended().filter(|ended| ended.until_ns >= failed_ns).map(|ended| &ended.region);
    let living = registrations.regions().values().filter(|region| has_key(region));
    // A key may be used again: the youngest that was there by then.
    let region = living.chain(lived_on).filter(|r| r.since_ns <= failed_ns).max_by_key(|r| r.since_ns);
    if let Some(region) = region {
        let end = u128::from(addr) + u128::from(length);
        let region_end = u128::from(region.addr) + u128::from(region.length_bytes);
        let clamped = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
        return if addr < region.addr {
            Named::Before(region, region.addr - addr)
        } else if end > region_end {
            Named::Beyond(region, clamped(end - region_end))
        } else {
            Named::Inside(region)
        };
    }
    let gone = ended().filter(|ended| ended.until_ns < failed_ns).max_by_key(|ended| ended.until_ns);
    gone.map_or(Named::NoRegion, |ended| {
        Named::GivenBack(&ended.region, failed_ns.saturating_sub(ended.until_ns))
    })
}

/// What came of the comparison.
pub struct Judged {
    /// In words.
    pub evidence: Evidence,
    /// The cause, and what is to be done; `None` where the region explains nothing.
    pub why: Option<(Confidence, String, String)>,
}

/// Compares a request that failed with the regions of the process that owns the memory it named; `whose` names that one.
/// `None` where the request, or what it named, is not known.
pub fn judge(owner: &ProcessModel, whose: &str, failed: &FailedRequest, side: Side) -> Option<Judged> {
    let request = failed.request.as_ref()?;
    let (key, addr, length) = range(request, side)?;
    // Only the first of its buffers is known.
    if side == Side::Local && request.more_buffers {
        return None;
    }
    let name = if side == Side::Local { "lkey" } else { "rkey" };
    let whole = |region: &Region| format!("{:#x} + {}", region.addr, bytes(region.length_bytes));
    let sure = Confidence::High;
    let (text, why) = match named(&owner.registrations, side, (key, addr, length), failed.t_ns) {
        Named::Inside(region) => {
            (format!("{name} {key:#x} is that of a living region of {whose}, {}, and the range lies inside: what is missing is a right, or the region belongs to another protection domain", whole(region)), None)
        }
        Named::Beyond(region, by) => (
            format!("{name} {key:#x} is that of {} of {whose}: the range ends {by} bytes behind its end", whole(region)),
            Some((
                sure,
                format!("The request reaches {by} bytes beyond the end of the region that its {name} names."),
                "Check address and length against the region: an offset that is counted twice, a length in elements instead of bytes, or a region that was registered shorter than its buffer.".to_owned(),
            )),
        ),
        Named::Before(region, by) => (
            format!("{name} {key:#x} is that of {} of {whose}: the range begins {by} bytes before it", whole(region)),
            Some((
                sure,
                format!("The request begins {by} bytes before the region that its {name} names."),
                "Check the address against the region: it is that of another buffer, or key and address were taken from two different regions.".to_owned(),
            )),
        ),
        Named::GivenBack(region, ns) => (
            format!("{name} {key:#x} was that of {} of {whose}, which was deregistered {} before the request failed", whole(region), duration(ns)),
            Some((
                sure,
                format!("The request names a region by a {name} that was given back {} before.", duration(ns)),
                if side == Side::Local {
                    "Wait for the completion of the last request that uses a buffer before calling ibv_dereg_mr on its region, and take the key from the region that lives.".to_owned()
                } else {
                    "Keep the region until no peer uses it any more, and tell the peers the new address and rkey after registering anew.".to_owned()
                },
            )),
        ),
        Named::NoRegion => (
            format!("{name} {key:#x} is that of no region of {whose} that was seen being registered"),
            (owner.registrations.population.live > 0).then(|| (
                Confidence::Medium,
                format!("The request names a {name} that no region seen here has had: it was made up, damaged on its way, or is that of another process or of a region registered before the recording."),
                format!("Compare the {name} that the program uses with those that ibv_reg_mr returned: byte order, a stale connection, a structure that both ends lay out differently."),
            )),
        ),
    };
    Some(Judged { evidence: Evidence { text, qpns: Vec::new() }, why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::sample::{Call, Detail, Event, ProcessId, Record, RegistrationSplit};

    const ALICE: ProcessId = ProcessId { pid: 1, start_ns: 1 };

    fn event(t_ns: u64, call: Call, detail: Detail) -> Record {
        Record::Event(Event {
            t_ns,
            duration_ns: 1,
            id: ALICE,
            tid: 1,
            call,
            errno: 0,
            detail,
            stack: Vec::new(),
        })
    }

    fn registered(t_ns: u64, mr: u64, addr: u64, key: u32) -> Record {
        let (pd, length_bytes, access, split) = (1, 4096, 7, RegistrationSplit::default());
        let detail = Detail::Mr { mr, pd, addr, length_bytes, access, lkey: key, rkey: key + 1, split };
        event(t_ns, Call::RegMr, detail)
    }

    /// A region at 0x10000 (keys 7 and 8) that lives, and one at 0x20000 (9 and 10) that is given back at 50.
    fn model() -> Model {
        let mut model = Model::new();
        model.push(&registered(10, 0xa, 0x10000, 7));
        model.push(&registered(20, 0xb, 0x20000, 9));
        model.push(&event(50, Call::DeregMr, Detail::Object { object: 0xb }));
        model
    }

    #[test]
    fn a_key_leads_to_its_region_and_the_range_to_what_is_wrong_with_it() {
        let model = model();
        let registrations = &model.processes[&ALICE].registrations;
        let remote = |key, addr, length| named(registrations, Side::Remote, (key, addr, length), 100);
        assert!(matches!(remote(8, 0x10000, 4096), Named::Inside(_)));
        assert!(matches!(remote(8, 0x10ff8, 16), Named::Beyond(_, 8)));
        assert!(matches!(remote(8, 0xfff0, 16), Named::Before(_, 16)));
        assert!(matches!(remote(10, 0x20000, 16), Named::GivenBack(_, 50)));
        assert!(matches!(remote(7, 0x10000, 16), Named::NoRegion));
        assert!(matches!(remote(8, u64::MAX, u64::MAX), Named::Beyond(..)));
        let local = |key, failed_ns| named(registrations, Side::Local, (key, 0x20000, 16), failed_ns);
        // It lived then.
        assert!(matches!(local(9, 40), Named::Inside(_)));
        assert!(matches!(local(9, 15), Named::NoRegion));
    }

    #[test]
    fn a_request_whose_buffers_are_not_all_known_is_not_judged_by_its_first() {
        let model = model();
        let request = WorkRequest {
            bytes: Some(64),
            addr: Some(0x10000),
            lkey: Some(99),
            more_buffers: true,
            ..WorkRequest::default()
        };
        let failed = FailedRequest { t_ns: 100, request: Some(request.clone()), ..FailedRequest::default() };
        assert!(judge(&model.processes[&ALICE], "it", &failed, Side::Local).is_none());
        let request = WorkRequest { more_buffers: false, ..request };
        let failed = FailedRequest { request: Some(request), ..failed };
        let judged = judge(&model.processes[&ALICE], "it", &failed, Side::Local).unwrap();
        assert!(judged.evidence.text.contains("lkey 0x63 is that of no region"), "{}", judged.evidence.text);
        assert!(judge(&model.processes[&ALICE], "it", &failed, Side::Remote).is_none());
    }
}
