//! Single work requests: calls as slices, requests in flight as spans, arrows from each post to the poll that reaped
//! it, and in a merged trace from a post at one end to the poll of its receive at the other.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::{Entry, Perfetto};
use crate::pairing::Paired;
use crate::sample::{Message, MessageEnd, Poll, Post, PostedTo, ProcessId, Record};

impl<W: Write> Perfetto<W> {
    /// Takes in a record that may say what became of work requests; the slices of its calls come first, since arrows
    /// begin and end in them.
    pub(super) fn messages(&mut self, record: &Record) -> io::Result<()> {
        match record {
            Record::Post(post) => self.post(post)?,
            Record::Poll(poll) => self.poll(poll)?,
            Record::Message(message) => return self.message(message),
            Record::Gap(gap) => {
                let pid = self.pid(gap.id)?;
                self.instant(
                    "posts and polls are missing",
                    pid,
                    pid,
                    gap.t_ns,
                    json!({ "entries": gap.entries }),
                )?;
            }
            _ => {}
        }
        let mut done = Vec::new();
        self.pairing.take(record, |one| done.push(one));
        done.iter().try_for_each(|one| self.in_flight(one))
    }

    /// What was never seen to be done is in flight to the end.
    pub(super) fn still_in_flight(&mut self) -> io::Result<()> {
        let mut left = Vec::new();
        self.pairing.finish(|one| left.push(one));
        left.iter().try_for_each(|one| self.in_flight(one))
    }

    fn post(&mut self, post: &Post) -> io::Result<()> {
        let name = match post.queue {
            PostedTo::Send => "post_send",
            PostedTo::Receive => "post_recv",
            PostedTo::SharedReceive => "post_srq_recv",
        };
        let number = if post.queue == PostedTo::SharedReceive { "srq" } else { "qpn" };
        let mut args = json!({ number: post.number, "wrs": post.wrs.len() });
        if post.errno != 0 {
            args["errno"] = post.errno.into();
        }
        self.call(name, post.id, post.tid, (post.t_ns, post.duration_ns), args)
    }

    fn poll(&mut self, poll: &Poll) -> io::Result<()> {
        let args = json!({ "cq": format!("{:#x}", poll.cq), "cqes": poll.cqes.len() });
        self.call("poll_cq", poll.id, poll.tid, (poll.t_ns, poll.duration_ns), args)
    }

    fn call(
        &mut self,
        name: &str,
        id: ProcessId,
        tid: u32,
        (t_ns, duration_ns): (u64, u64),
        args: Value,
    ) -> io::Result<()> {
        let pid = self.pid(id)?;
        self.end_ns = self.end_ns.max(t_ns.saturating_add(duration_ns));
        self.write(&Entry {
            name,
            ph: "X",
            pid,
            tid,
            ts: self.micros(t_ns),
            cat: Some("data path"),
            dur: Some(duration_ns as f64 / 1e3),
            id: None,
            s: None,
            bp: None,
            args,
        })
    }

    fn in_flight(&mut self, one: &Paired) -> io::Result<()> {
        let pid = self.pid(one.id)?;
        let what = one.wr.opcode.map_or("receive", |opcode| opcode.name());
        let name = format!("{what} on QP {}", one.qpn);
        let span = self.new_id();
        let mut args =
            json!({ "number": one.number, "wr_id": format!("{:#x}", one.wr.wr_id), "bytes": one.wr.bytes });
        let end_ns = match one.reaped {
            Some(reaped) => {
                if reaped.status != 0 {
                    args["status"] = reaped.status.into();
                }
                if !reaped.own {
                    args["done"] = "by a later completion".into();
                }
                reaped.t_ns
            }
            None => {
                args["done"] = "not seen".into();
                self.end_ns
            }
        };
        self.async_entry("b", &name, span, pid, one.posted_ns, args)?;
        self.async_entry("e", &name, span, pid, end_ns.max(one.posted_ns), Value::Null)?;
        let Some(reaped) = one.reaped.filter(|reaped| reaped.own) else { return Ok(()) };
        let arrow = self.new_id();
        self.arrow("s", "reaped", arrow, (pid, one.tid), one.posted_ns)?;
        self.arrow("f", "reaped", arrow, (pid, reaped.tid), reaped.poll_ns)
    }

    fn message(&mut self, message: &Message) -> io::Result<()> {
        let arrow = self.new_id();
        let MessageEnd { id, tid, t_ns, .. } = message.from;
        let from = self.pid(id)?;
        self.arrow("s", "message", arrow, (from, tid), t_ns)?;
        let to = self.pid(message.to.id)?;
        self.arrow("f", "message", arrow, (to, message.to.tid), message.to.t_ns)
    }

    fn async_entry(
        &mut self,
        ph: &str,
        name: &str,
        id: u64,
        pid: u32,
        at_ns: u64,
        args: Value,
    ) -> io::Result<()> {
        self.write(&Entry {
            name,
            ph,
            pid,
            tid: pid,
            ts: self.micros(at_ns),
            cat: Some("work request"),
            dur: None,
            id: Some(format!("{id:#x}")),
            s: None,
            bp: None,
            args,
        })
    }

    fn arrow(&mut self, ph: &str, name: &str, id: u64, (pid, tid): (u32, u32), at_ns: u64) -> io::Result<()> {
        self.write(&Entry {
            name,
            ph,
            pid,
            tid,
            ts: self.micros(at_ns),
            cat: Some(name),
            dur: None,
            id: Some(format!("{id:#x}")),
            s: None,
            // An arrow ends in the slice around it, not at the next one.
            bp: (ph == "f").then_some("e"),
            args: Value::Null,
        })
    }
}
