//! Chrome's trace-event JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing open.
//!
//! Calls are slices on their threads; a QP's life and its states are asynchronous spans, since they outlive the calls;
//! live objects and losses are counters. Times are microseconds since the beginning of the recording: as doubles they
//! keep every nanosecond of 104 days.

mod failures;
mod messages;
mod rates;

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Value, json};

use crate::model::{Model, ProcessModel};
use crate::pairing::Pairing;
use crate::report::frame;
use crate::sample::{Call, Detail, Event, ProcessId, Record};

use super::Exporter;

/// Process ids of the kernel end at 2²²: a pid used a second time within one recording gets a number beyond.
const FIRST_SUBSTITUTE_PID: u32 = 10_000_000;

/// Writes a trace as an array of trace events.
pub struct Perfetto<W> {
    out: W,
    model: Model,
    base_ns: u64,
    end_ns: u64,
    /// The number each process is shown under.
    pids: HashMap<ProcessId, u32>,
    /// Which process has a number.
    taken: HashMap<u32, ProcessId>,
    qps: HashMap<(ProcessId, u64), QpSpan>,
    next_span: u64,
    counters: HashMap<(ProcessId, &'static str), u64>,
    lost: u64,
    /// Failures that are marked.
    marked: HashSet<(ProcessId, u64, String)>,
    pairing: Pairing,
    first: bool,
}

/// A QP whose span is open, and the span of the state it is in. Every span has an id of its own: importers pair begin
/// and end by category, id and name, and a QP may come back to a state.
struct QpSpan {
    id: u64,
    name: String,
    state: Option<(u64, String)>,
    /// Latest moment shown: events of different threads may be a little out of order, and no span may end before it
    /// began.
    until_ns: u64,
}

/// One trace event; `ph` says of which kind.
#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    ph: &'a str,
    pid: u32,
    tid: u32,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'a str>,
    #[serde(skip_serializing_if = "Value::is_null")]
    args: Value,
}

impl<W: Write> Perfetto<W> {
    /// Writes to `out`.
    pub fn new(out: W) -> Self {
        Self {
            out,
            model: Model::new(),
            base_ns: 0,
            end_ns: 0,
            pids: HashMap::new(),
            taken: HashMap::new(),
            qps: HashMap::new(),
            next_span: 1,
            counters: HashMap::new(),
            lost: 0,
            marked: HashSet::new(),
            pairing: Pairing::default(),
            first: true,
        }
    }

    fn micros(&self, t_ns: u64) -> f64 {
        t_ns.saturating_sub(self.base_ns) as f64 / 1e3
    }

    fn write(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        self.out.write_all(if std::mem::take(&mut self.first) { b"[\n" } else { b",\n" })?;
        serde_json::to_writer(&mut self.out, entry).map_err(io::Error::from)
    }

    fn metadata(&mut self, name: &str, pid: u32, tid: u32, args: Value) -> io::Result<()> {
        let ts = 0.0;
        self.write(&Entry {
            name,
            ph: "M",
            pid,
            tid,
            ts,
            cat: None,
            dur: None,
            id: None,
            s: None,
            bp: None,
            args,
        })
    }

    /// The number a process is shown under, announced with its name when it is new.
    fn pid(&mut self, id: ProcessId) -> io::Result<u32> {
        if let Some(pid) = self.pids.get(&id) {
            return Ok(*pid);
        }
        let pid = if self.taken.contains_key(&id.pid) {
            FIRST_SUBSTITUTE_PID + self.pids.len() as u32
        } else {
            id.pid
        };
        self.taken.insert(pid, id);
        self.pids.insert(id, pid);
        self.name_process(id, pid)?;
        Ok(pid)
    }

    fn name_process(&mut self, id: ProcessId, pid: u32) -> io::Result<()> {
        let comm = self.model.processes.get(&id).map(|p| p.info.comm.clone()).unwrap_or_default();
        let name = match (comm.is_empty(), pid == id.pid) {
            (true, true) => return Ok(()),
            (true, false) => format!("pid {}", id.pid),
            (false, true) => comm,
            (false, false) => format!("{comm} (pid {})", id.pid),
        };
        self.metadata("process_name", pid, pid, json!({ "name": name }))
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        let pid = self.pid(event.id)?;
        let end_ns = event.t_ns.saturating_add(event.duration_ns);
        self.end_ns = self.end_ns.max(end_ns);
        let name = call_name(event.call);
        // What a recording that goes on from another repeats of the time before it, to be understood by itself.
        if self.model.header.continued && end_ns <= self.base_ns {
            return self.queue_pair(event, pid, self.base_ns);
        }
        let cat = if name.starts_with("kernel_") { "kernel" } else { "verbs" };
        self.write(&Entry {
            name: &name,
            ph: "X",
            pid,
            tid: event.tid,
            ts: self.micros(event.t_ns),
            cat: Some(cat),
            dur: Some(event.duration_ns as f64 / 1e3),
            id: None,
            s: None,
            bp: None,
            args: arguments(event, &self.model),
        })?;
        self.queue_pair(event, pid, end_ns)?;
        self.populations(event.id, pid, end_ns)
    }

    /// Opens, names and closes the span of a QP, and within it the spans of its states.
    fn queue_pair(&mut self, event: &Event, pid: u32, at_ns: u64) -> io::Result<()> {
        if event.errno != 0 {
            return Ok(());
        }
        match (event.call, &event.detail) {
            (Call::CreateQp, Detail::Qp { qp, qpn, qp_type, .. }) => {
                // A pointer in use again: the destruction of its earlier owner was not seen.
                self.close_qp((event.id, *qp), pid, at_ns)?;
                let id = self.new_id();
                let span = QpSpan { id, name: format!("QP {qpn} {qp_type}"), state: None, until_ns: at_ns };
                self.span("b", "qp", &span.name, id, pid, at_ns)?;
                self.qps.insert((event.id, *qp), span);
            }
            (Call::ModifyQp, Detail::ModifyQp(attributes)) => {
                let Some(to) = &attributes.to else { return Ok(()) };
                let key = (event.id, attributes.qp);
                let name = format!("QP {} → {to}", attributes.qpn);
                self.instant(&name, pid, event.tid, at_ns, Value::Null)?;
                let id = self.new_id();
                let Some(span) = self.qps.get_mut(&key) else { return Ok(()) };
                let before = span.state.replace((id, to.clone()));
                let at_ns = at_ns.max(span.until_ns);
                span.until_ns = at_ns;
                if let Some((id, before)) = before {
                    self.span("e", "qp_state", &before, id, pid, at_ns)?;
                }
                self.span("b", "qp_state", to, id, pid, at_ns)?;
            }
            (
                Call::DestroyQp,
                Detail::Object { object: qp } | Detail::Qp { qp, .. } | Detail::Wait { object: qp, .. },
            ) => {
                self.close_qp((event.id, *qp), pid, at_ns)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn instant(&mut self, name: &str, pid: u32, tid: u32, at_ns: u64, args: Value) -> io::Result<()> {
        self.write(&Entry {
            name,
            ph: "i",
            pid,
            tid,
            ts: self.micros(at_ns),
            cat: Some("state"),
            dur: None,
            id: None,
            s: Some("t"),
            bp: None,
            args,
        })
    }

    fn new_id(&mut self) -> u64 {
        let id = self.next_span;
        self.next_span += 1;
        id
    }

    fn close_qp(&mut self, key: (ProcessId, u64), pid: u32, at_ns: u64) -> io::Result<()> {
        let Some(span) = self.qps.remove(&key) else { return Ok(()) };
        let at_ns = at_ns.max(span.until_ns);
        if let Some((id, state)) = &span.state {
            self.span("e", "qp_state", state, *id, pid, at_ns)?;
        }
        self.span("e", "qp", &span.name, span.id, pid, at_ns)
    }

    fn span(&mut self, ph: &str, cat: &str, name: &str, id: u64, pid: u32, at_ns: u64) -> io::Result<()> {
        self.write(&Entry {
            name,
            ph,
            pid,
            tid: pid,
            ts: self.micros(at_ns),
            cat: Some(cat),
            dur: None,
            id: Some(format!("{id:#x}")),
            s: None,
            bp: None,
            args: Value::Null,
        })
    }

    /// Counters of live objects, where they changed.
    fn populations(&mut self, id: ProcessId, pid: u32, at_ns: u64) -> io::Result<()> {
        let Some(process) = self.model.processes.get(&id) else { return Ok(()) };
        for (name, value) in gauges(process) {
            if self.counters.insert((id, name), value) != Some(value) {
                self.counter(name, pid, at_ns, value)?;
            }
        }
        Ok(())
    }

    /// Rates of posts and polls, where they changed.
    fn rates(&mut self) -> io::Result<()> {
        for rate in rates::rates(&self.model) {
            let before = self.counters.insert((rate.process, rate.name), rate.value);
            if before.unwrap_or(0) != rate.value {
                let pid = self.pid(rate.process)?;
                self.counter(rate.name, pid, rate.at_ns, rate.value)?;
            }
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, pid: u32, at_ns: u64, value: u64) -> io::Result<()> {
        self.write(&Entry {
            name,
            ph: "C",
            pid,
            tid: pid,
            ts: self.micros(at_ns),
            cat: None,
            dur: None,
            id: None,
            s: None,
            bp: None,
            args: json!({ "value": value }),
        })
    }
}

impl<W: Write> Exporter for Perfetto<W> {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        self.model.push(record);
        match record {
            Record::Header(header) => {
                self.base_ns = header.t_ns;
                let name = format!("rdma-probe on {}", header.host);
                self.metadata("process_name", 0, 0, json!({ "name": name }))
            }
            Record::Process(process) => {
                let known = self.pids.contains_key(&process.id);
                let pid = self.pid(process.id)?;
                if known {
                    self.name_process(process.id, pid)?;
                }
                self.messages(record)
            }
            Record::Event(event) => self.event(event),
            Record::Sample(sample) => {
                self.end_ns = self.end_ns.max(sample.t_ns);
                let lost = &sample.lost;
                let lost = [lost.ring_events, lost.unpaired, lost.kernel_returns, lost.uncounted]
                    .into_iter()
                    .fold(0, u64::saturating_add);
                if lost != self.lost {
                    self.lost = lost;
                    self.counter("lost", 0, sample.t_ns, lost)?;
                }
                self.failures(sample)?;
                self.rates()
            }
            Record::Post(_) | Record::Poll(_) | Record::Gap(_) | Record::Message(_) => self.messages(record),
            Record::Probe(_)
            | Record::Facts(_)
            | Record::Finding(_)
            | Record::Footer(_)
            | Record::Symbol(_)
            | Record::Connection(_) => Ok(()),
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        self.still_in_flight()?;
        let mut open: Vec<_> = self.qps.keys().copied().collect();
        open.sort_unstable();
        for key in open {
            let pid = self.pid(key.0)?;
            self.close_qp(key, pid, self.end_ns)?;
        }
        self.out.write_all(if self.first { b"[\n]\n" } else { b"\n]\n" })?;
        self.out.flush()
    }
}

fn gauges(process: &ProcessModel) -> [(&'static str, u64); 4] {
    let registrations = &process.registrations;
    [
        ("live MRs", registrations.population.live),
        ("registered bytes", registrations.bytes.live),
        ("live QPs", process.queues.qp_population.live),
        ("live CQs", process.queues.cq_population.live),
    ]
}

/// The call's name as traces spell it.
pub(super) fn call_name(call: Call) -> String {
    match serde_json::to_value(call) {
        Ok(Value::String(name)) => name,
        _ => "unknown".to_owned(),
    }
}

/// What the call was about; pointers and keys as hexadecimal text, since a viewer's doubles would round them.
fn arguments(event: &Event, model: &Model) -> Value {
    const HEXADECIMAL: [&str; 12] =
        ["mr", "pd", "addr", "qp", "cq", "send_cq", "recv_cq", "srq", "channel", "object", "lkey", "rkey"];
    let mut arguments = serde_json::Map::new();
    if event.errno != 0 {
        arguments.insert("errno".to_owned(), event.errno.into());
    }
    if let Ok(Value::Object(detail)) = serde_json::to_value(&event.detail) {
        for (key, value) in detail.into_iter().filter(|(key, _)| key != "of") {
            let value = match value.as_u64() {
                Some(n) if HEXADECIMAL.contains(&key.as_str()) || n > 1 << 53 => format!("{n:#x}").into(),
                _ => value,
            };
            arguments.insert(key, value);
        }
    }
    if !event.stack.is_empty() {
        let frames = event.stack.iter().map(|address| frame(model, event.id, *address));
        arguments.insert("callers".to_owned(), frames.collect());
    }
    if arguments.is_empty() { Value::Null } else { Value::Object(arguments) }
}
