//! Tables of single work requests, with their completions, and of messages from one recorded host to another.

use std::io;

use crate::pairing::{Paired, Pairing};
use crate::sample::{MessageEnd, Record};

use super::{Table, hex, since, some};

/// The tables, and the requests that are still outstanding.
pub(super) struct Messages {
    work_requests: Table,
    messages: Table,
    gaps: Table,
    pairing: Pairing,
}

impl Messages {
    /// Makes them with `table`, which takes a file name and columns.
    pub(super) fn create(table: impl Fn(&str, &[&str]) -> io::Result<Table>) -> io::Result<Self> {
        Ok(Self {
            work_requests: table(
                "work_requests.csv",
                &[
                    "posted_ns",
                    "pid",
                    "start_ns",
                    "tid",
                    "queue",
                    "object",
                    "qpn",
                    "number",
                    "wr_id",
                    "opcode",
                    "bytes",
                    "signalled",
                    "inline",
                    "reaped_ns",
                    "reaped_tid",
                    "own_completion",
                    "status",
                    "received_bytes",
                ],
            )?,
            messages: table(
                "messages.csv",
                &[
                    "number",
                    "opcode",
                    "bytes",
                    "posted_ns",
                    "from_pid",
                    "from_start_ns",
                    "from_tid",
                    "from_qpn",
                    "from_wr_id",
                    "polled_ns",
                    "to_pid",
                    "to_start_ns",
                    "to_tid",
                    "to_qpn",
                    "to_wr_id",
                ],
            )?,
            gaps: table("gaps.csv", &["t_ns", "pid", "start_ns", "entries"])?,
            pairing: Pairing::default(),
        })
    }

    /// Takes in a record that may say what became of work requests; times are told since `base_ns`.
    pub(super) fn record(&mut self, record: &Record, base_ns: u64) -> io::Result<()> {
        match record {
            Record::Message(message) => {
                let end = |end: &MessageEnd, at_ns: u64| {
                    [
                        since(at_ns, base_ns),
                        end.id.pid.to_string(),
                        end.id.start_ns.to_string(),
                        end.tid.to_string(),
                        end.qpn.to_string(),
                        end.wr_id.to_string(),
                    ]
                };
                let (from, to) = (&message.from, &message.to);
                let what = [
                    message.number.to_string(),
                    message.opcode.map(|opcode| opcode.name().to_owned()).unwrap_or_default(),
                    message.bytes.to_string(),
                ];
                let returned = to.t_ns.saturating_add(to.duration_ns);
                let row = what.into_iter().chain(end(from, from.t_ns)).chain(end(to, returned));
                self.messages.write_record(row)?;
            }
            Record::Gap(gap) => {
                let row = [
                    since(gap.t_ns, base_ns),
                    gap.id.pid.to_string(),
                    gap.id.start_ns.to_string(),
                    gap.entries.to_string(),
                ];
                self.gaps.write_record(row)?;
            }
            _ => {}
        }
        let mut done = Vec::new();
        self.pairing.take(record, |one| done.push(one));
        done.iter().try_for_each(|one| self.request(one, base_ns))
    }

    /// Writes the requests that were never seen to be done.
    pub(super) fn finish(&mut self, base_ns: u64) -> io::Result<()> {
        let mut left = Vec::new();
        self.pairing.finish(|one| left.push(one));
        left.iter().try_for_each(|one| self.request(one, base_ns))?;
        [&mut self.work_requests, &mut self.messages, &mut self.gaps].into_iter().try_for_each(Table::flush)
    }

    fn request(&mut self, one: &Paired, base_ns: u64) -> io::Result<()> {
        let reaped = one.reaped.as_ref();
        let row = [
            since(one.posted_ns, base_ns),
            one.id.pid.to_string(),
            one.id.start_ns.to_string(),
            one.tid.to_string(),
            one.queue.name().to_owned(),
            hex(one.object),
            one.qpn.to_string(),
            one.number.to_string(),
            one.wr.wr_id.to_string(),
            one.wr.opcode.map(|opcode| opcode.name().to_owned()).unwrap_or_default(),
            one.wr.bytes.to_string(),
            one.wr.signalled.to_string(),
            one.wr.inline.to_string(),
            some(reaped.map(|reaped| since(reaped.t_ns, base_ns))),
            some(reaped.map(|reaped| reaped.tid)),
            some(reaped.map(|reaped| reaped.own)),
            some(reaped.map(|reaped| reaped.status)),
            some(reaped.and_then(|reaped| reaped.bytes)),
        ];
        self.work_requests.write_record(row).map_err(io::Error::from)
    }
}
