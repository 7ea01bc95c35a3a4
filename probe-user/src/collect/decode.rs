//! From messages of the probes to events of a trace.

use std::net::Ipv6Addr;

use probe_common::wire::{CallMessage, PAYLOAD_WORDS};
use probe_common::{CallId, Layout, Part};

use crate::sample::{Call, Detail, Event, ProcessId, QpAttributes, RegistrationSplit};

/// The call of the trace vocabulary.
pub const fn call(id: CallId) -> Call {
    match id {
        CallId::RegMr => Call::RegMr,
        CallId::RegDmabufMr => Call::RegDmabufMr,
        CallId::ReregMr => Call::ReregMr,
        CallId::DeregMr => Call::DeregMr,
        CallId::CreateQp => Call::CreateQp,
        CallId::DestroyQp => Call::DestroyQp,
        CallId::ModifyQp => Call::ModifyQp,
        CallId::CreateCq => Call::CreateCq,
        CallId::ResizeCq => Call::ResizeCq,
        CallId::DestroyCq => Call::DestroyCq,
        CallId::CreateSrq => Call::CreateSrq,
        CallId::DestroySrq => Call::DestroySrq,
        CallId::AllocPd => Call::AllocPd,
        CallId::DeallocPd => Call::DeallocPd,
        CallId::CreateCompChannel => Call::CreateCompChannel,
        CallId::DestroyCompChannel => Call::DestroyCompChannel,
        CallId::OpenDevice => Call::OpenDevice,
        CallId::CloseDevice => Call::CloseDevice,
        CallId::GetCqEvent => Call::GetCqEvent,
        CallId::AckCqEvents => Call::AckCqEvents,
        CallId::GetAsyncEvent => Call::GetAsyncEvent,
        CallId::CmResolveAddr => Call::CmResolveAddr,
        CallId::CmResolveRoute => Call::CmResolveRoute,
        CallId::CmConnect => Call::CmConnect,
        CallId::CmAccept => Call::CmAccept,
        CallId::CmReject => Call::CmReject,
        CallId::CmDisconnect => Call::CmDisconnect,
        CallId::CmGetEvent => Call::CmGetEvent,
        CallId::KernelPin => Call::KernelPin,
        CallId::KernelUnpin => Call::KernelUnpin,
        CallId::KernelRegMr => Call::KernelRegMr,
        CallId::KernelDeregMr => Call::KernelDeregMr,
        CallId::KernelCreateQp => Call::KernelCreateQp,
        CallId::KernelDestroyQp => Call::KernelDestroyQp,
        CallId::KernelModifyQp => Call::KernelModifyQp,
        CallId::KernelCreateCq => Call::KernelCreateCq,
        CallId::KernelDestroyCq => Call::KernelDestroyCq,
    }
}

/// The event a message tells; `None` for a call this version does not know.
pub fn event(message: &CallMessage) -> Option<Event> {
    let id = CallId::from_number(message.call)?;
    Some(Event {
        t_ns: message.header.t_ns,
        duration_ns: message.duration_ns,
        id: ProcessId { pid: message.header.tgid, start_ns: message.header.start_ns },
        tid: message.header.tid,
        call: call(id),
        errno: message.errno,
        detail: detail(message),
        stack: Vec::new(),
    })
}

fn detail(message: &CallMessage) -> Detail {
    let words = &message.payload;
    let is = |layout: Layout| message.layout == layout as u8;
    let within = |first: Layout, last: Layout| (first as u8..=last as u8).contains(&message.layout);
    if within(Layout::RegMr, Layout::DeregMr) {
        Detail::Mr {
            mr: words[0],
            pd: words[1],
            addr: words[2],
            length_bytes: words[3],
            access: low(words[4]),
            lkey: low(words[5]),
            rkey: high(words[5]),
            split: split(message),
        }
    } else if within(Layout::CreateQp, Layout::DestroyQp) {
        Detail::Qp {
            qp: words[0],
            pd: words[1],
            qpn: low(words[2]),
            qp_type: qp_type(high(words[2])),
            send_cq: words[3],
            recv_cq: words[4],
            srq: words[5],
            max_send_wr: low(words[6]),
            max_recv_wr: high(words[6]),
            max_send_sge: low(words[7]),
            max_recv_sge: high(words[7]),
            max_inline_bytes: low(words[8]),
            sq_sig_all: high(words[8]) != 0,
        }
    } else if is(Layout::ModifyQp) {
        Detail::ModifyQp(qp_attributes(words))
    } else if within(Layout::CreateCq, Layout::Cq) {
        Detail::Cq { cq: words[0], cqe: low(words[1]), channel: words[2] }
    } else if is(Layout::CreateSrq) || is(Layout::CmdCreateSrqEx) {
        Detail::Srq { srq: words[0], max_wr: low(words[1]) }
    } else if is(Layout::Object) || is(Layout::ReturnedObject) {
        Detail::Object { object: words[0] }
    } else if within(Layout::GetCqEvent, Layout::GetAsyncEvent) {
        Detail::Wait { object: words[0], value: low(words[1]) }
    } else if is(Layout::Cm) || is(Layout::GetCmEvent) {
        Detail::Cm { id: words[0], event: low(words[1]), status: low(words[2]).cast_signed() }
    } else if is(Layout::KernelRange) || is(Layout::KernelUmem) {
        Detail::Pages {
            addr: words[0],
            length_bytes: words[1],
            page_faults: saturated(message.page_faults),
            in_registration: words[2] != 0,
        }
    } else {
        Detail::None
    }
}

fn split(message: &CallMessage) -> RegistrationSplit {
    let part = |part: Part| {
        let seen = message.parts_seen >> (part as u16) & 1 != 0;
        seen.then_some(message.part_ns[part as usize])
    };
    let pin_ns = part(Part::Pin);
    RegistrationSplit {
        kernel_ns: part(Part::Kernel),
        pin_ns,
        dma_map_ns: part(Part::DmaMap),
        // What is hooked is the driver's whole function, which pins as its first step.
        driver_ns: part(Part::Driver).map(|whole| whole.saturating_sub(pin_ns.unwrap_or(0))),
        page_faults: pin_ns.map(|_| saturated(message.page_faults)),
    }
}

/// Reads `struct ibv_qp_attr` as far as the mask names its fields.
fn qp_attributes(words: &[u64; PAYLOAD_WORDS]) -> QpAttributes {
    let mut bytes = [0u8; 144];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(&words[4..]) {
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    let u32_at = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let mask = low(words[2]);
    let named = |bit: u32| mask >> bit & 1 != 0;
    // Bits of `enum ibv_qp_attr_mask`.
    let (state, port, av, mtu) = (named(0), named(5), named(7), named(8));
    let from = high(words[1]);
    let is_global = bytes[AH + 29] != 0;
    QpAttributes {
        qp: words[0],
        qpn: low(words[1]),
        attr_mask: mask,
        from: (from != u32::MAX).then(|| qp_state(from)),
        to: state.then(|| qp_state(u32_at(0))),
        qp_access_flags: named(3).then(|| u32_at(32)),
        path_mtu_bytes: mtu.then(|| mtu_bytes(u32_at(8))),
        dest_qpn: named(20).then(|| u32_at(28)),
        dgid: (av && is_global).then(|| {
            let mut gid = [0; 16];
            gid.copy_from_slice(&bytes[AH..AH + 16]);
            Ipv6Addr::from(gid).to_string()
        }),
        dlid: av.then(|| u16::from_ne_bytes([bytes[AH + 24], bytes[AH + 25]])),
        sgid_index: (av && is_global).then(|| bytes[AH + 20]),
        traffic_class: (av && is_global).then(|| bytes[AH + 22]),
        port: if port { Some(bytes[SMALL + 5]) } else { av.then(|| bytes[AH + 30]) },
        timeout: named(9).then(|| bytes[SMALL + 6]),
        retry_cnt: named(10).then(|| bytes[SMALL + 7]),
        rnr_retry: named(11).then(|| bytes[SMALL + 8]),
        min_rnr_timer: named(15).then(|| bytes[SMALL + 4]),
        max_rd_atomic: named(13).then(|| bytes[SMALL + 2]),
        max_dest_rd_atomic: named(17).then(|| bytes[SMALL + 3]),
    }
}

/// `ah_attr` in `struct ibv_qp_attr`: nine u32 and `struct ibv_qp_cap` (20 bytes) come before. In it: dgid 0,
/// sgid_index 20, hop_limit 21, traffic_class 22, dlid 24, is_global 29, port_num 30.
const AH: usize = 56;
/// `en_sqd_async_notify`: two address handles (32 bytes each) and two pkey indices further. After it: sq_draining,
/// max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry.
const SMALL: usize = AH + 64 + 4;

fn qp_type(number: u32) -> String {
    match number {
        2 => "RC",
        3 => "UC",
        4 => "UD",
        8 => "RAW_PACKET",
        9 => "XRC_SEND",
        10 => "XRC_RECV",
        0xff => "DRIVER",
        other => return other.to_string(),
    }
    .to_owned()
}

fn qp_state(number: u32) -> String {
    match number {
        0 => "RESET",
        1 => "INIT",
        2 => "RTR",
        3 => "RTS",
        4 => "SQD",
        5 => "SQE",
        6 => "ERR",
        other => return other.to_string(),
    }
    .to_owned()
}

const fn mtu_bytes(code: u32) -> u32 {
    // `enum ibv_mtu`: 1 is 256 bytes, each further doubles, 5 is 4096.
    if code >= 1 && code <= 5 { 128 << code } else { 0 }
}

const fn low(word: u64) -> u32 {
    word as u32
}

const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

fn saturated(n: u64) -> u32 {
    n.try_into().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use probe_common::wire::{Header, PARTS};

    use super::*;

    fn message(call: CallId, layout: Layout) -> CallMessage {
        CallMessage {
            header: Header { kind: 1, tgid: 10, tid: 11, zero: 0, start_ns: 70, t_ns: 1000 },
            duration_ns: 5,
            errno: 0,
            call: call as u8,
            layout: layout as u8,
            parts_seen: 0,
            part_ns: [0; PARTS],
            page_faults: 0,
            payload: [0; PAYLOAD_WORDS],
        }
    }

    #[test]
    fn every_call_has_its_name_in_the_trace() {
        let names: std::collections::BTreeSet<_> = CallId::ALL.iter().map(|id| call(*id)).collect();
        assert_eq!(names.len(), CallId::ALL.len());
    }

    #[test]
    fn a_part_not_seen_is_absent_and_never_zero() {
        let mut m = message(CallId::RegMr, Layout::RegMrIova);
        m.parts_seen = 1 << Part::Pin as u16 | 1 << Part::Driver as u16;
        m.part_ns[Part::Pin as usize] = 30;
        m.part_ns[Part::Driver as usize] = 100;
        m.page_faults = 3;
        let Detail::Mr { split, .. } = event(&m).unwrap().detail else { panic!("not a region") };
        assert_eq!(split.pin_ns, Some(30));
        assert_eq!(split.driver_ns, Some(70));
        assert_eq!(split.page_faults, Some(3));
        assert_eq!((split.kernel_ns, split.dma_map_ns), (None, None));
    }

    #[test]
    fn attributes_the_mask_does_not_name_are_absent() {
        let mut m = message(CallId::ModifyQp, Layout::ModifyQp);
        m.payload[1] = u64::from(u32::MAX) << 32 | 77;
        m.payload[2] = 1;
        m.payload[4] = 3;
        let Detail::ModifyQp(found) = event(&m).unwrap().detail else { panic!("not modify") };
        assert_eq!(found.to.as_deref(), Some("RTS"));
        assert_eq!(found.qpn, 77);
        assert_eq!(found.from, None);
        assert_eq!((found.timeout, found.dest_qpn, found.path_mtu_bytes), (None, None, None));
    }

    #[test]
    fn every_attribute_is_read_from_its_own_place() {
        // struct ibv_qp_attr with a distinct value in each field.
        let mut attr = [0u8; 144];
        attr[0] = 2;
        attr[8] = 5;
        attr[28..32].copy_from_slice(&0x1234u32.to_ne_bytes());
        attr[32] = 7;
        attr[56] = 0xfe;
        attr[56 + 20] = 7;
        attr[56 + 22] = 104;
        attr[56 + 24] = 9;
        attr[56 + 29] = 1;
        attr[124 + 2] = 16;
        attr[124 + 3] = 17;
        attr[124 + 4] = 12;
        attr[124 + 5] = 1;
        attr[124 + 6] = 14;
        attr[124 + 7] = 6;
        attr[124 + 8] = 5;
        let mut m = message(CallId::ModifyQp, Layout::ModifyQp);
        m.payload[2] = 0x1f_ffff;
        for (word, chunk) in m.payload[4..].iter_mut().zip(attr.chunks_exact(8)) {
            *word = u64::from_ne_bytes(chunk.try_into().unwrap());
        }
        let Detail::ModifyQp(found) = event(&m).unwrap().detail else { panic!("not modify") };
        assert_eq!(found.to.as_deref(), Some("RTR"));
        assert_eq!(found.path_mtu_bytes, Some(4096));
        assert_eq!((found.dest_qpn, found.qp_access_flags), (Some(0x1234), Some(7)));
        assert_eq!(found.dgid.as_deref(), Some("fe00::"));
        assert_eq!((found.sgid_index, found.traffic_class, found.dlid), (Some(7), Some(104), Some(9)));
        assert_eq!((found.max_rd_atomic, found.max_dest_rd_atomic), (Some(16), Some(17)));
        assert_eq!((found.min_rnr_timer, found.port, found.timeout), (Some(12), Some(1), Some(14)));
        assert_eq!((found.retry_cnt, found.rnr_retry), (Some(6), Some(5)));
    }

    #[test]
    fn a_call_of_a_newer_version_is_skipped() {
        let mut m = message(CallId::RegMr, Layout::RegMr);
        m.call = 200;
        assert!(event(&m).is_none());
        m.call = CallId::RegMr as u8;
        m.layout = 250;
        assert_eq!(event(&m).unwrap().detail, Detail::None);
    }
}
