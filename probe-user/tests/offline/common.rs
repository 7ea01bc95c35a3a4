//! Records made up for tests, with as few words as a test needs.

use std::collections::BTreeMap;

use probe_user::sample::{
    Call, CallCount, Detail, Event, Footer, Header, Histogram, Process, ProcessId, ProcessSample, Record,
    RegistrationSplit, SCHEMA, Sample,
};

pub const ALICE: ProcessId = ProcessId { pid: 100, start_ns: 5 };

pub fn header() -> Header {
    Header { schema: SCHEMA.into(), writer: "test".into(), host: "host".into(), t_ns: 0, ..Header::default() }
}

pub fn process(id: ProcessId, comm: &str) -> Record {
    Record::Process(Process { id, comm: comm.into(), exe: format!("/usr/bin/{comm}"), ..Process::default() })
}

pub fn event(id: ProcessId, t_ns: u64, duration_ns: u64, call: Call, detail: Detail) -> Event {
    Event { t_ns, duration_ns, id, tid: id.pid, call, errno: 0, detail, stack: Vec::new() }
}

pub fn mr(mr: u64, addr: u64, length_bytes: u64) -> Detail {
    Detail::Mr {
        mr,
        pd: 1,
        addr,
        length_bytes,
        access: 7,
        lkey: mr as u32,
        rkey: mr as u32,
        split: RegistrationSplit::default(),
    }
}

/// A sample of one process and one call.
pub fn sample(id: ProcessId, t_ns: u64, call: Call, count: CallCount, latency: &[(u16, u64)]) -> Record {
    Record::Sample(Sample {
        t_ns,
        processes: vec![ProcessSample {
            id,
            calls: BTreeMap::from([(call, count)]),
            latency_ns: BTreeMap::from([(call, Histogram(latency.iter().copied().collect()))]),
        }],
        ..Sample::default()
    })
}

pub fn footer(reason: &str) -> Footer {
    Footer { reason: reason.into(), ..Footer::default() }
}
