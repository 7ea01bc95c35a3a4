//! Events in the exact form a [`Writer`](super::Writer) gives them, read without a general parser.
//!
//! A trace is nearly all events, and serde reads an internally tagged enum through a tree of copies. Keys in another
//! order, escapes, blanks, keys this version does not know: whatever differs is left to serde, so that this reader
//! decides how fast an event is read, never what it says.

use serde::Deserialize;
use serde::de::value::{Error, StrDeserializer};

use crate::sample::{Call, Detail, Event, ProcessId, QpAttributes, RegistrationSplit};

/// How every event begins.
pub const BEGINNING: &[u8] = br#"{"kind":"event","#;

/// What comes before a value: the comma after the one before, the key, the colon.
macro_rules! key {
    ($name:literal) => {
        concat!(",\"", $name, "\":").as_bytes()
    };
}

/// The value of a key that must be next.
macro_rules! value {
    ($line:ident, $name:literal, $read:ident) => {{
        $line.expect(key!($name))?;
        $line.$read()?
    }};
}

/// The value of a key that may be next.
macro_rules! optional {
    ($line:ident, $name:literal, $read:ident) => {
        if $line.expect(key!($name)).is_some() { Some($line.$read()?) } else { None }
    };
}

/// The event in `line`; `None` where it is none, or not written as the writer does.
pub fn read(line: &[u8]) -> Option<Event> {
    let mut line = Line(line);
    line.expect(BEGINNING)?;
    line.expect(br#""t_ns":"#)?;
    let t_ns = line.u64()?;
    let event = Event {
        t_ns,
        duration_ns: value!(line, "duration_ns", u64),
        id: ProcessId { pid: value!(line, "pid", u32), start_ns: value!(line, "start_ns", u64) },
        tid: value!(line, "tid", u32),
        call: value!(line, "call", call),
        errno: optional!(line, "errno", i32).unwrap_or(0),
        detail: optional!(line, "detail", detail).unwrap_or_default(),
        stack: optional!(line, "stack", addresses).unwrap_or_default(),
    };
    (line.0 == b"}").then_some(event)
}

/// What is left of a line.
struct Line<'a>(&'a [u8]);

impl<'a> Line<'a> {
    fn expect(&mut self, bytes: &[u8]) -> Option<()> {
        self.0 = self.0.strip_prefix(bytes)?;
        Some(())
    }

    fn u64(&mut self) -> Option<u64> {
        // 19 digits cannot overflow; what is longer is rare enough for serde.
        const MOST_DIGITS: usize = 19;
        let mut value = 0_u64;
        let mut digits = 0;
        for byte in self.0.iter().take(MOST_DIGITS + 1) {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                break;
            }
            value = value.wrapping_mul(10).wrapping_add(digit.into());
            digits += 1;
        }
        // JSON knows no leading zeroes.
        let plain = (1..=MOST_DIGITS).contains(&digits) && (digits == 1 || self.0[0] != b'0');
        self.0 = self.0.get(digits..)?;
        plain.then_some(value)
    }

    fn u32(&mut self) -> Option<u32> {
        self.u64()?.try_into().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        self.u64()?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.u64()?.try_into().ok()
    }

    fn i32(&mut self) -> Option<i32> {
        let negative = self.expect(b"-").is_some();
        let value = i64::try_from(self.u64()?).ok()?;
        // serde takes "-0" for a float.
        if negative && value == 0 {
            return None;
        }
        i32::try_from(if negative { -value } else { value }).ok()
    }

    fn bool(&mut self) -> Option<bool> {
        if self.expect(b"true").is_some() {
            return Some(true);
        }
        self.expect(b"false").map(|()| false)
    }

    /// Text of printable ASCII without escapes.
    fn text(&mut self) -> Option<&'a str> {
        self.expect(b"\"")?;
        let end = self.0.iter().position(|byte| !matches!(byte, b' ' | b'!' | b'#'..=b'[' | b']'..=b'~'))?;
        let (text, rest) = self.0.split_at(end);
        self.0 = rest.strip_prefix(b"\"")?;
        std::str::from_utf8(text).ok()
    }

    fn string(&mut self) -> Option<String> {
        self.text().map(str::to_owned)
    }

    fn call(&mut self) -> Option<Call> {
        Call::deserialize(StrDeserializer::<Error>::new(self.text()?)).ok()
    }

    fn addresses(&mut self) -> Option<Vec<u64>> {
        self.expect(b"[")?;
        let mut addresses = Vec::new();
        loop {
            addresses.push(self.u64()?);
            if self.expect(b"]").is_some() {
                return Some(addresses);
            }
            self.expect(b",")?;
        }
    }

    fn detail(&mut self) -> Option<Detail> {
        self.expect(br#"{"of":"#)?;
        let of = self.text()?;
        let detail = match of {
            "mr" => self.mr()?,
            "qp" => self.qp()?,
            "modify_qp" => Detail::ModifyQp(self.qp_attributes()?),
            "cq" => Detail::Cq {
                cq: value!(self, "cq", u64),
                cqe: value!(self, "cqe", u32),
                channel: value!(self, "channel", u64),
            },
            "srq" => Detail::Srq { srq: value!(self, "srq", u64), max_wr: value!(self, "max_wr", u32) },
            "object" => Detail::Object { object: value!(self, "object", u64) },
            "wait" => Detail::Wait { object: value!(self, "object", u64), value: value!(self, "value", u32) },
            "cm" => Detail::Cm {
                id: value!(self, "id", u64),
                event: value!(self, "event", u32),
                status: value!(self, "status", i32),
            },
            "pages" => Detail::Pages {
                addr: value!(self, "addr", u64),
                length_bytes: value!(self, "length_bytes", u64),
                page_faults: value!(self, "page_faults", u32),
                in_registration: value!(self, "in_registration", bool),
            },
            _ => return None,
        };
        self.expect(b"}")?;
        Some(detail)
    }

    fn mr(&mut self) -> Option<Detail> {
        Some(Detail::Mr {
            mr: value!(self, "mr", u64),
            pd: value!(self, "pd", u64),
            addr: value!(self, "addr", u64),
            length_bytes: value!(self, "length_bytes", u64),
            access: value!(self, "access", u32),
            lkey: value!(self, "lkey", u32),
            rkey: value!(self, "rkey", u32),
            split: RegistrationSplit {
                kernel_ns: optional!(self, "kernel_ns", u64),
                pin_ns: optional!(self, "pin_ns", u64),
                dma_map_ns: optional!(self, "dma_map_ns", u64),
                driver_ns: optional!(self, "driver_ns", u64),
                page_faults: optional!(self, "page_faults", u32),
            },
        })
    }

    fn qp(&mut self) -> Option<Detail> {
        Some(Detail::Qp {
            qp: value!(self, "qp", u64),
            pd: value!(self, "pd", u64),
            qpn: value!(self, "qpn", u32),
            qp_type: value!(self, "qp_type", string),
            send_cq: value!(self, "send_cq", u64),
            recv_cq: value!(self, "recv_cq", u64),
            srq: value!(self, "srq", u64),
            max_send_wr: value!(self, "max_send_wr", u32),
            max_recv_wr: value!(self, "max_recv_wr", u32),
            max_send_sge: value!(self, "max_send_sge", u32),
            max_recv_sge: value!(self, "max_recv_sge", u32),
            max_inline_bytes: value!(self, "max_inline_bytes", u32),
            sq_sig_all: value!(self, "sq_sig_all", bool),
        })
    }

    fn qp_attributes(&mut self) -> Option<QpAttributes> {
        Some(QpAttributes {
            qp: value!(self, "qp", u64),
            qpn: value!(self, "qpn", u32),
            attr_mask: value!(self, "attr_mask", u32),
            from: optional!(self, "from", string),
            to: optional!(self, "to", string),
            qp_access_flags: optional!(self, "qp_access_flags", u32),
            path_mtu_bytes: optional!(self, "path_mtu_bytes", u32),
            dest_qpn: optional!(self, "dest_qpn", u32),
            dgid: optional!(self, "dgid", string),
            dlid: optional!(self, "dlid", u16),
            sgid_index: optional!(self, "sgid_index", u8),
            traffic_class: optional!(self, "traffic_class", u8),
            port: optional!(self, "port", u8),
            timeout: optional!(self, "timeout", u8),
            retry_cnt: optional!(self, "retry_cnt", u8),
            rnr_retry: optional!(self, "rnr_retry", u8),
            min_rnr_timer: optional!(self, "min_rnr_timer", u8),
            max_rd_atomic: optional!(self, "max_rd_atomic", u8),
            max_dest_rd_atomic: optional!(self, "max_dest_rd_atomic", u8),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sample::Record;

    const LINES: [&str; 8] = [
        r#"{"kind":"event","t_ns":34601729190,"duration_ns":81340,"pid":4711,"start_ns":88120000000,"tid":4712,"call":"reg_mr","detail":{"of":"mr","mr":94554768499136,"pd":1,"addr":139715543334912,"length_bytes":65536,"access":7,"lkey":7,"rkey":8,"kernel_ns":70000,"pin_ns":40000,"driver_ns":0,"page_faults":16}}"#,
        r#"{"kind":"event","t_ns":1,"duration_ns":2,"pid":3,"start_ns":4,"tid":5,"call":"reg_mr","errno":12}"#,
        r#"{"kind":"event","t_ns":1,"duration_ns":2,"pid":3,"start_ns":4,"tid":5,"call":"get_cq_event","errno":-1,"detail":{"of":"wait","object":9,"value":1},"stack":[4660,22136]}"#,
        r#"{"kind":"event","t_ns":1,"duration_ns":2,"pid":3,"start_ns":4,"tid":5,"call":"create_qp","detail":{"of":"qp","qp":10,"pd":1,"qpn":17,"qp_type":"RC","send_cq":5,"recv_cq":5,"srq":0,"max_send_wr":128,"max_recv_wr":512,"max_send_sge":1,"max_recv_sge":1,"max_inline_bytes":220,"sq_sig_all":false},"stack":[1]}"#,
        r#"{"kind":"event","t_ns":1,"duration_ns":2,"pid":3,"start_ns":4,"tid":5,"call":"modify_qp","detail":{"of":"modify_qp","qp":10,"qpn":17,"attr_mask":1966080,"from":"INIT","to":"RTR","qp_access_flags":7,"path_mtu_bytes":1024,"dest_qpn":18,"dgid":"::1","dlid":0,"sgid_index":1,"traffic_class":0,"port":1,"timeout":14,"retry_cnt":7,"rnr_retry":7,"min_rnr_timer":12,"max_rd_atomic":1,"max_dest_rd_atomic":1}}"#,
        r#"{"kind":"event","t_ns":1,"duration_ns":2,"pid":3,"start_ns":4,"tid":5,"call":"create_cq","detail":{"of":"cq","cq":5,"cqe":256,"channel":7}}"#,
        r#"{"kind":"event","t_ns":1,"duration_ns":2,"pid":3,"start_ns":4,"tid":5,"call":"cm_get_event","detail":{"of":"cm","id":9,"event":9,"status":-5}}"#,
        r#"{"kind":"event","t_ns":1,"duration_ns":2,"pid":3,"start_ns":4,"tid":5,"call":"kernel_pin","detail":{"of":"pages","addr":4096,"length_bytes":8192,"page_faults":2,"in_registration":true}}"#,
    ];

    fn by_serde(line: &[u8]) -> Option<Event> {
        match serde_json::from_slice(line) {
            Ok(Record::Event(event)) => Some(event),
            _ => None,
        }
    }

    #[test]
    fn every_kind_of_event_is_read_here_and_as_serde_reads_it() {
        for line in LINES {
            assert!(by_serde(line.as_bytes()).is_some(), "{line}");
            assert_eq!(read(line.as_bytes()), by_serde(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn what_the_writer_writes_is_read_here() {
        for line in LINES {
            let event = by_serde(line.as_bytes()).unwrap();
            let written = serde_json::to_vec(&Record::Event(event.clone())).unwrap();
            assert_eq!(read(&written), Some(event), "{line}");
        }
    }

    #[test]
    fn numbers_that_json_does_not_allow_or_that_do_not_fit_are_left_to_serde() {
        for number in ["01", "", "-1", "1e3", "1.0", "18446744073709551616", "99999999999999999999"] {
            let line = LINES[1].replace("\"t_ns\":1", &format!("\"t_ns\":{number}"));
            assert_eq!(read(line.as_bytes()), None, "{number}");
        }
        let big = LINES[1].replace("\"pid\":3", "\"pid\":4294967296");
        assert_eq!(read(big.as_bytes()), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        /// Bytes changed, taken out and put in: whatever is still read here, serde reads alike.
        #[test]
        fn what_is_read_here_serde_reads_alike(
            line in 0..LINES.len(),
            edits in prop::collection::vec((any::<prop::sample::Index>(), 0..3_u8, any::<prop::sample::Index>()), 1..4),
        ) {
            const BYTES: &[u8] = b"0123456789-+.eE\"\\{}[],: truefalsn_\x00\x1f\x7f\xc3\xa9";
            let mut bytes = LINES[line].as_bytes().to_vec();
            for (at, how, which) in edits {
                let (at, byte) = (at.index(bytes.len()), BYTES[which.index(BYTES.len())]);
                match how {
                    0 => bytes[at] = byte,
                    1 => bytes.insert(at, byte),
                    _ => { bytes.remove(at); }
                }
            }
            if let Some(event) = read(&bytes) {
                prop_assert_eq!(by_serde(&bytes), Some(event));
            }
        }
    }
}
