//! One CSV file per table, for pandas, DuckDB and spreadsheets. Times are ns since the beginning of the recording.

mod messages;
mod queues;

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter};
use std::path::Path;

use csv::Writer;

use crate::model::bounds;
use crate::sample::{Connection, Detail, Device, End, Event, Judgement, Record, Sample, Symbol};

use super::Exporter;
use super::perfetto::call_name;

type Table = Writer<BufWriter<File>>;

/// Writes the tables of a trace into a folder.
pub struct Csv {
    base_ns: u64,
    trace: Table,
    probes: Table,
    processes: Table,
    events: Table,
    registrations: Table,
    queue_pairs: Table,
    qp_changes: Table,
    completion_queues: Table,
    samples: Table,
    latencies: Table,
    losses: Table,
    counters: Table,
    queues: queues::Queues,
    symbols: Table,
    stacks: Table,
    connections: Table,
    findings: Table,
    messages: messages::Messages,
}

impl Csv {
    /// Makes the tables in `folder`, which must exist.
    ///
    /// # Errors
    /// When a file cannot be made, or exists already and `replace` is not set.
    pub fn create(folder: &Path, replace: bool) -> io::Result<Self> {
        let table = |name: &str, columns: &[&str]| -> io::Result<Table> {
            let path = folder.join(name);
            let mut options = OpenOptions::new();
            let options = if replace {
                options.write(true).create(true).truncate(true)
            } else {
                options.write(true).create_new(true)
            };
            let file = options
                .open(&path)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
            let mut table = Writer::from_writer(BufWriter::new(file));
            table.write_record(columns)?;
            Ok(table)
        };
        let call = ["t_ns", "duration_ns", "pid", "start_ns", "tid", "call", "errno"];
        let with = |columns: &[&'static str]| -> Vec<&'static str> { [&call, columns].concat() };
        Ok(Self {
            base_ns: 0,
            trace: table("trace.csv", &["key", "value"])?,
            probes: table("probes.csv", &["t_ns", "name", "place", "call", "verdict", "reason"])?,
            processes: table(
                "processes.csv",
                &["t_ns", "pid", "start_ns", "comm", "exe", "uid", "parent_pid", "cgroup", "exited"],
            )?,
            events: table("events.csv", &with(&["object", "length_bytes", "value"]))?,
            registrations: table(
                "registrations.csv",
                &with(&[
                    "mr",
                    "pd",
                    "addr",
                    "length_bytes",
                    "access",
                    "lkey",
                    "rkey",
                    "kernel_ns",
                    "pin_ns",
                    "dma_map_ns",
                    "driver_ns",
                    "page_faults",
                ]),
            )?,
            queue_pairs: table(
                "queue_pairs.csv",
                &with(&[
                    "qp",
                    "pd",
                    "qpn",
                    "qp_type",
                    "send_cq",
                    "recv_cq",
                    "srq",
                    "max_send_wr",
                    "max_recv_wr",
                    "max_send_sge",
                    "max_recv_sge",
                    "max_inline_bytes",
                    "sq_sig_all",
                ]),
            )?,
            qp_changes: table(
                "qp_changes.csv",
                &with(&[
                    "qp",
                    "qpn",
                    "attr_mask",
                    "from",
                    "to",
                    "qp_access_flags",
                    "path_mtu_bytes",
                    "dest_qpn",
                    "dgid",
                    "dlid",
                    "sgid_index",
                    "traffic_class",
                    "port",
                    "timeout",
                    "retry_cnt",
                    "rnr_retry",
                    "min_rnr_timer",
                    "max_rd_atomic",
                    "max_dest_rd_atomic",
                ]),
            )?,
            completion_queues: table("completion_queues.csv", &with(&["cq", "cqe", "channel"]))?,
            samples: table(
                "samples.csv",
                &["t_ns", "pid", "start_ns", "call", "entered", "returned", "failed", "bytes", "total_ns"],
            )?,
            latencies: table(
                "latencies.csv",
                &["t_ns", "pid", "start_ns", "call", "from_ns", "to_ns", "count"],
            )?,
            losses: table("losses.csv", &["t_ns", "ring_events", "unpaired", "kernel_returns", "uncounted"])?,
            counters: table("counters.csv", &["t_ns", "device", "port", "counter", "value"])?,
            queues: queues::Queues::create(table)?,
            symbols: table(
                "symbols.csv",
                &[
                    "pid",
                    "start_ns",
                    "addr",
                    "name",
                    "offset_bytes",
                    "module",
                    "module_offset_bytes",
                    "source",
                    "line",
                ],
            )?,
            stacks: table("stacks.csv", &["t_ns", "pid", "start_ns", "tid", "call", "depth", "addr"])?,
            connections: table(
                "connections.csv",
                &["t_ns", "a_pid", "a_start_ns", "a_qp", "a_qpn", "b_pid", "b_start_ns", "b_qp", "b_qpn"],
            )?,
            findings: table(
                "findings.csv",
                &[
                    "id",
                    "severity",
                    "confidence",
                    "pid",
                    "start_ns",
                    "comm",
                    "title",
                    "us_per_message",
                    "cpu_share",
                    "memory_bytes",
                    "evidence",
                    "remedy",
                ],
            )?,
            messages: messages::Messages::create(table)?,
        })
    }

    fn since(&self, t_ns: u64) -> String {
        since(t_ns, self.base_ns)
    }

    fn event(&mut self, e: &Event) -> io::Result<()> {
        let common = [
            self.since(e.t_ns),
            e.duration_ns.to_string(),
            e.id.pid.to_string(),
            e.id.start_ns.to_string(),
            e.tid.to_string(),
            call_name(e.call),
            e.errno.to_string(),
        ];
        let row = |more: Vec<String>| common.iter().cloned().chain(more);
        let (object, length, value) = match &e.detail {
            Detail::Mr { mr, pd, addr, length_bytes, access, lkey, rkey, split } => {
                self.registrations.write_record(row(vec![
                    hex(*mr),
                    hex(*pd),
                    hex(*addr),
                    length_bytes.to_string(),
                    access.to_string(),
                    lkey.to_string(),
                    rkey.to_string(),
                    some(split.kernel_ns),
                    some(split.pin_ns),
                    some(split.dma_map_ns),
                    some(split.driver_ns),
                    some(split.page_faults),
                ]))?;
                (hex(*mr), length_bytes.to_string(), String::new())
            }
            Detail::Qp {
                qp,
                pd,
                qpn,
                qp_type,
                send_cq,
                recv_cq,
                srq,
                max_send_wr,
                max_recv_wr,
                max_send_sge,
                max_recv_sge,
                max_inline_bytes,
                sq_sig_all,
            } => {
                self.queue_pairs.write_record(row(vec![
                    hex(*qp),
                    hex(*pd),
                    qpn.to_string(),
                    qp_type.clone(),
                    hex(*send_cq),
                    hex(*recv_cq),
                    hex(*srq),
                    max_send_wr.to_string(),
                    max_recv_wr.to_string(),
                    max_send_sge.to_string(),
                    max_recv_sge.to_string(),
                    max_inline_bytes.to_string(),
                    sq_sig_all.to_string(),
                ]))?;
                (hex(*qp), String::new(), qpn.to_string())
            }
            Detail::ModifyQp(a) => {
                self.qp_changes.write_record(row(vec![
                    hex(a.qp),
                    a.qpn.to_string(),
                    a.attr_mask.to_string(),
                    some(a.from.as_ref()),
                    some(a.to.as_ref()),
                    some(a.qp_access_flags),
                    some(a.path_mtu_bytes),
                    some(a.dest_qpn),
                    some(a.dgid.as_ref()),
                    some(a.dlid),
                    some(a.sgid_index),
                    some(a.traffic_class),
                    some(a.port),
                    some(a.timeout),
                    some(a.retry_cnt),
                    some(a.rnr_retry),
                    some(a.min_rnr_timer),
                    some(a.max_rd_atomic),
                    some(a.max_dest_rd_atomic),
                ]))?;
                (hex(a.qp), String::new(), some(a.to.as_ref()))
            }
            Detail::Cq { cq, cqe, channel } => {
                self.completion_queues.write_record(row(vec![hex(*cq), cqe.to_string(), hex(*channel)]))?;
                (hex(*cq), String::new(), cqe.to_string())
            }
            Detail::Srq { srq, max_wr } => (hex(*srq), String::new(), max_wr.to_string()),
            Detail::Object { object } => (hex(*object), String::new(), String::new()),
            Detail::Wait { object, value } => (hex(*object), String::new(), value.to_string()),
            Detail::Cm { id, event, status } => (hex(*id), status.to_string(), event.to_string()),
            Detail::Pages { addr, length_bytes, page_faults, .. } => {
                (hex(*addr), length_bytes.to_string(), page_faults.to_string())
            }
            Detail::None | Detail::Unknown => (String::new(), String::new(), String::new()),
        };
        for (depth, address) in e.stack.iter().enumerate() {
            let [t, _, pid, start, tid, call, _] = &common;
            let (depth, address) = (depth.to_string(), hex(*address));
            self.stacks.write_record([t, pid, start, tid, call, &depth, &address])?;
        }
        self.events.write_record(row(vec![object, length, value])).map_err(io::Error::from)
    }

    fn symbol(&mut self, s: &Symbol) -> io::Result<()> {
        let numbers = [u64::from(s.id.pid), s.id.start_ns, s.offset_bytes].map(|n| n.to_string());
        let (line, within) =
            (if s.line == 0 { String::new() } else { s.line.to_string() }, hex(s.module_offset_bytes));
        let [pid, start, offset] = &numbers;
        self.symbols
            .write_record([pid, start, &hex(s.addr), &s.name, offset, &s.module, &within, &s.source, &line])
            .map_err(io::Error::from)
    }

    fn connection(&mut self, c: &Connection) -> io::Result<()> {
        let end = |end: &End| {
            [end.id.pid.to_string(), end.id.start_ns.to_string(), hex(end.qp), end.qpn.to_string()]
        };
        let row = std::iter::once(self.since(c.t_ns)).chain(end(&c.a)).chain(end(&c.b));
        self.connections.write_record(row).map_err(io::Error::from)
    }

    fn finding(&mut self, f: &Judgement) -> io::Result<()> {
        let row = [
            f.text(&["id"]),
            f.text(&["severity"]),
            f.text(&["confidence"]),
            f.text(&["process", "pid"]),
            f.text(&["process", "start_ns"]),
            f.text(&["process", "comm"]),
            f.text(&["title"]),
            f.text(&["cost", "us_per_message"]),
            f.text(&["cost", "cpu_share"]),
            f.text(&["cost", "memory_bytes"]),
            f.evidence().collect::<Vec<_>>().join("; "),
            f.text(&["remedy"]),
        ];
        self.findings.write_record(row).map_err(io::Error::from)
    }

    fn sample(&mut self, sample: &Sample) -> io::Result<()> {
        let t = self.since(sample.t_ns);
        for process in &sample.processes {
            if let Some(path) = &process.data_path {
                self.queues.sample(&t, process.id, path)?;
            }
            let id = [process.id.pid.to_string(), process.id.start_ns.to_string()];
            for (call, count) in &process.calls {
                let numbers = [count.entered, count.returned, count.failed, count.bytes, count.total_ns];
                let head = [&t, &id[0], &id[1]].map(Clone::clone).into_iter().chain([call_name(*call)]);
                self.samples.write_record(head.chain(numbers.map(|n| n.to_string())))?;
            }
            for (call, histogram) in &process.latency_ns {
                for (bucket, n) in &histogram.0 {
                    let (low, high) = bounds(*bucket);
                    let head = [&t, &id[0], &id[1]].map(Clone::clone).into_iter().chain([call_name(*call)]);
                    self.latencies.write_record(head.chain([low, high, *n].map(|n| n.to_string())))?;
                }
            }
        }
        let lost = &sample.lost;
        let lost = [lost.ring_events, lost.unpaired, lost.kernel_returns, lost.uncounted];
        self.losses.write_record([t.clone()].into_iter().chain(lost.map(|n| n.to_string())))?;
        self.devices(&t, &sample.devices)
    }

    fn devices(&mut self, t: &str, devices: &[Device]) -> io::Result<()> {
        for device in devices {
            for port in &device.ports {
                for (name, value) in &port.counters {
                    let (number, value) = (port.number.to_string(), value.to_string());
                    self.counters.write_record([t, &device.name, &number, name, &value])?;
                }
            }
        }
        Ok(())
    }

    fn fact(&mut self, key: &str, value: impl ToString) -> io::Result<()> {
        self.trace.write_record([key, &value.to_string()]).map_err(io::Error::from)
    }
}

impl Exporter for Csv {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        match record {
            Record::Header(h) => {
                self.base_ns = h.t_ns;
                for (key, value) in [
                    ("schema", &h.schema),
                    ("writer", &h.writer),
                    ("host", &h.host),
                    ("kernel", &h.kernel),
                    ("arch", &h.arch),
                ] {
                    self.fact(key, value)?;
                }
                self.fact("began_wall_ns", h.wall_ns)?;
                self.fact("command", h.command.join(" "))?;
                self.devices("0", &h.devices)
            }
            Record::Process(p) => {
                self.messages.record(record, self.base_ns)?;
                self.processes
                    .write_record([
                        self.since(p.t_ns),
                        p.id.pid.to_string(),
                        p.id.start_ns.to_string(),
                        p.comm.clone(),
                        p.exe.clone(),
                        p.uid.to_string(),
                        p.parent_pid.to_string(),
                        p.cgroup.clone(),
                        p.exited.to_string(),
                    ])
                    .map_err(io::Error::from)
            }
            Record::Probe(p) => {
                let (verdict, reason) = p.verdict.words();
                let call = p.call.map(call_name).unwrap_or_default();
                let t = self.since(p.t_ns);
                self.probes
                    .write_record([&t, &p.name, &p.place, &call, verdict, &reason])
                    .map_err(io::Error::from)
            }
            // No table of what happened: the diagnosis reads it from the trace.
            Record::Facts(_) => Ok(()),
            Record::Event(event) => self.event(event),
            Record::Post(_) | Record::Poll(_) | Record::Gap(_) | Record::Message(_) => {
                self.messages.record(record, self.base_ns)
            }
            Record::Symbol(symbol) => self.symbol(symbol),
            Record::Connection(connection) => self.connection(connection),
            Record::Sample(sample) => self.sample(sample),
            Record::Finding(finding) => self.finding(finding),
            Record::Footer(f) => {
                let ended = self.since(f.t_ns);
                self.fact("ended_ns", ended)?;
                self.fact("ended", &f.reason)?;
                self.fact("exit_status", some(f.exit_status))?;
                self.fact("events", f.events)?;
                self.fact("samples", f.samples)
            }
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        [
            &mut self.trace,
            &mut self.probes,
            &mut self.processes,
            &mut self.events,
            &mut self.registrations,
            &mut self.queue_pairs,
            &mut self.qp_changes,
            &mut self.completion_queues,
            &mut self.samples,
            &mut self.latencies,
            &mut self.losses,
            &mut self.counters,
            &mut self.symbols,
            &mut self.stacks,
            &mut self.connections,
            &mut self.findings,
        ]
        .into_iter()
        .try_for_each(Table::flush)?;
        self.messages.finish(self.base_ns)?;
        self.queues.flush()
    }
}

/// Time since the beginning; what was read just before the anchor is a little before it.
fn since(t_ns: u64, base_ns: u64) -> String {
    (i128::from(t_ns) - i128::from(base_ns)).to_string()
}

/// Pointers are names, not numbers to calculate with, and many readers would round them.
fn hex(pointer: u64) -> String {
    format!("{pointer:#x}")
}

/// What is not known is an empty field, never 0.
fn some<T: ToString>(value: Option<T>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}
