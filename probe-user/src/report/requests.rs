//! A request that failed, in words.

use crate::sample::{FailedRequest, Known, NextRequest, WorkRequest};

use super::units::{bytes, count, duration};

/// A request that was posted and failed: `wr_id 0x2a, RDMA_WRITE of 4096 bytes from 0x… (lkey 0x…) to 0x… (rkey 0x…), 12 µs
/// under way`; and how far that is known.
pub fn failed_request(failed: &FailedRequest) -> String {
    let mut parts = vec![wr_id(failed.wr_id)];
    parts.extend(failed.request.as_ref().map(what));
    parts.extend(failed.under_way_ns().map(|ns| format!("{} under way", duration(ns))));
    match failed.known {
        Known::Exactly => {}
        Known::ByNumber => parts.push(by_number(failed.before.unwrap_or(0))),
        Known::Before => parts.push(before(failed)),
        Known::Sampled => parts.push("what it was is not known: not every post is looked at".to_owned()),
        Known::Unseen => {
            parts.push("not seen being posted: a receive, or older than the recording".to_owned());
        }
        Known::Forgotten => parts.push("what it was is not known: too many were under way".to_owned()),
        Known::NoQueue => parts.push("its queue pair is not known".to_owned()),
        Known::Unknown => parts.push("what it was is not known".to_owned()),
    }
    parts.extend(failed.vendor_err.map(|code| format!("vendor error {code:#x}")));
    parts.join(", ")
}

/// A request that a post refused: the same, and where it stood in its list.
pub fn refused_request(failed: &FailedRequest) -> String {
    let mut parts = vec![wr_id(failed.wr_id)];
    parts.extend(failed.request.as_ref().map(what));
    let place = match (failed.before, failed.outstanding) {
        (Some(before), Some(rest)) => Some(format!("number {} of {} in its list", before + 1, before + rest)),
        // Of more than that nobody counts how many.
        (Some(before), None) if before < 255 => Some(format!("number {} in its list", before + 1)),
        (None, Some(rest)) => Some(format!("one of a batch of {}", count(rest))),
        _ => None,
    };
    parts.extend(place);
    parts.join(", ")
}

fn wr_id(wr_id: Option<u64>) -> String {
    wr_id.map_or_else(|| "wr_id unknown".to_owned(), |wr_id| format!("wr_id {wr_id:#x}"))
}

/// `RDMA_WRITE of 4096 bytes from 0x… (lkey 0x…) to 0x… (rkey 0x…)`
pub fn what(request: &WorkRequest) -> String {
    let mut text = request.opcode.map_or_else(|| "receive".to_owned(), |opcode| opcode.name().to_uppercase());
    match request.bytes {
        Some(n) => text += &format!(" of {}", exactly(n)),
        None => text += " of an unknown length",
    }
    if request.inline {
        text += ", inline,";
    }
    if let Some(addr) = request.addr {
        let side = if request.opcode.is_none() { "into" } else { "from" };
        let lkey = request.lkey.map(|key| format!(" (lkey {key:#x})")).unwrap_or_default();
        let more = if request.more_buffers { " and other buffers" } else { "" };
        text += &format!(" {side} {addr:#x}{lkey}{more}");
    }
    if let (Some(addr), Some(rkey)) = (request.remote_addr, request.rkey) {
        text += &format!(" to {addr:#x} (rkey {rkey:#x})");
    }
    text
}

/// Bytes, whole: a length that is one too many must not be rounded.
fn exactly(n: u64) -> String {
    match n {
        1 => "1 byte".to_owned(),
        n if n < 1 << 20 => format!("{n} bytes"),
        n => format!("{n} bytes ({})", bytes(n)),
    }
}

fn by_number(before: u64) -> String {
    let or = match before {
        0 => String::new(),
        n => format!(" or one of {} unsignalled ones before it", count(n)),
    };
    format!("the oldest of several with this wr_id{or}")
}

fn before(failed: &FailedRequest) -> String {
    let n = count(failed.before.unwrap_or(0));
    let behind = match &failed.next {
        Some(NextRequest { wr_id, request }) => {
            let posted = request.posted_ns.map(|t_ns| failed.t_ns.saturating_sub(t_ns));
            let posted = posted.map(|ns| format!(", {} under way", duration(ns))).unwrap_or_default();
            format!(" before wr_id {wr_id:#x} ({}{posted})", what(request))
        }
        None => String::new(),
    };
    format!("one of {n} unsignalled ones{behind}, or a receive")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Opcode;

    fn write(bytes: u64) -> WorkRequest {
        WorkRequest {
            posted_ns: Some(1_000),
            opcode: Some(Opcode::RdmaWrite),
            bytes: Some(bytes),
            addr: Some(0x1000),
            lkey: Some(0x16),
            remote_addr: Some(0x5000),
            rkey: Some(0x17),
            ..WorkRequest::default()
        }
    }

    fn failed(known: Known, request: Option<WorkRequest>) -> FailedRequest {
        FailedRequest { t_ns: 13_000, wr_id: Some(42), known, request, ..FailedRequest::default() }
    }

    #[test]
    fn a_request_is_named_with_all_that_a_region_is_compared_with() {
        assert_eq!(
            failed_request(&failed(Known::Exactly, Some(write(4097)))),
            "wr_id 0x2a, RDMA_WRITE of 4097 bytes from 0x1000 (lkey 0x16) to 0x5000 (rkey 0x17), 12.0 µs under way"
        );
        let send = WorkRequest { opcode: Some(Opcode::Send), inline: true, lkey: None, ..write(1) };
        let send = WorkRequest { remote_addr: None, rkey: None, more_buffers: true, ..send };
        let send = FailedRequest { vendor_err: Some(0x88), ..failed(Known::Exactly, Some(send)) };
        assert_eq!(
            failed_request(&send),
            "wr_id 0x2a, SEND of 1 byte, inline, from 0x1000 and other buffers, 12.0 µs under way, vendor error 0x88"
        );
    }

    #[test]
    fn what_is_not_known_is_said_and_not_made_up() {
        let text = |known| failed_request(&failed(known, None));
        assert!(text(Known::Unseen).ends_with("a receive, or older than the recording"));
        assert!(text(Known::Sampled).contains("not every post"));
        assert_eq!(text(Known::NoQueue), "wr_id 0x2a, its queue pair is not known");
        let next = Some(NextRequest { wr_id: 43, request: write(64) });
        let before = FailedRequest { before: Some(3), next, ..failed(Known::Before, None) };
        assert_eq!(
            failed_request(&before),
            "wr_id 0x2a, one of 3 unsignalled ones before wr_id 0x2b (RDMA_WRITE of 64 bytes from 0x1000 (lkey 0x16) to \
             0x5000 (rkey 0x17), 12.0 µs under way), or a receive"
        );
    }

    #[test]
    fn a_refused_request_has_its_place_in_the_list() {
        let refused = |before, outstanding| {
            let request = WorkRequest { posted_ns: None, ..write(64) };
            refused_request(&FailedRequest { before, outstanding, ..failed(Known::Exactly, Some(request)) })
        };
        assert!(
            refused(Some(2), Some(3)).ends_with("number 3 of 5 in its list"),
            "{}",
            refused(Some(2), Some(3))
        );
        assert!(refused(Some(2), None).ends_with("number 3 in its list"));
        assert!(refused(None, Some(16)).ends_with("one of a batch of 16"));
    }
}
