//! The merged trace.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::ends::shifted;
use super::messages::Messages;
use super::{MergeError, Merger, SCHEMA, Summary};
use crate::sample::{Device, End, Footer, Header, Host, Lost, OffsetFrom, Process, ProcessId, Record};
use crate::trace::{Options, Reader, Writer};

/// Processes renamed because another host has one of the same pid and start.
const MAX_RENAMED: usize = 1 << 20;

impl Merger {
    /// Writes the merged trace to `path`, in order of time as far as the recordings themselves are.
    ///
    /// # Errors
    /// When a recording can no longer be read, or the trace not be written.
    pub fn write(mut self, path: &Path) -> Result<Summary, MergeError> {
        self.lift();
        let header = self.header();
        let mut writer = Writer::create(path, &header, Options::default())?;
        let mut sources: Vec<Source<'_>> = Vec::new();
        for (index, file) in self.files.iter().enumerate() {
            let mut source = Source {
                reader: Reader::open(file)?,
                host: &self.hosts[index],
                index,
                next: None,
                at_ns: 0,
                lost: Lost::default(),
            };
            source.advance()?;
            sources.push(source);
        }
        let mut names = Names::default();
        let files: Vec<_> = self.joined.files(&self.hosts).collect();
        let mut connections: Vec<_> = self.joined.connections(&self.hosts).zip(files).collect();
        connections.sort_by_key(|(connection, _)| std::cmp::Reverse(connection.t_ns));
        let mut messages = Messages::default();
        for [a, b] in self.joined.reliable() {
            let end = |names: &mut Names, (file, end): (usize, End)| (names.of(file, end.id), end.qpn);
            messages.connect(end(&mut names, a), end(&mut names, b));
        }
        let mut end_ns = header.t_ns;
        loop {
            let earliest =
                sources.iter().filter(|s| s.next.is_some()).min_by_key(|s| s.at_ns).map(|s| s.index);
            let now_ns = earliest.map_or(u64::MAX, |index| sources[index].at_ns);
            while let Some((mut connection, (a, b))) = connections.pop_if(|(c, _)| c.t_ns < now_ns) {
                connection.a.id = names.of(a, connection.a.id);
                connection.b.id = names.of(b, connection.b.id);
                writer.push(&Record::Connection(connection))?;
            }
            let Some(index) = earliest else { break };
            let record = sources[index].next.take();
            sources[index].advance()?;
            end_ns = end_ns.max(now_ns);
            if let Some(record) = record.and_then(|record| translate(record, index, &mut sources, &mut names))
            {
                let mut found = Vec::new();
                messages.take(&record, |message| found.push(message));
                writer.push(&record)?;
                found.into_iter().try_for_each(|message| writer.push(&Record::Message(message)))?;
            }
        }
        let lost = total(sources.iter().map(|source| &source.lost));
        drop(sources);
        let footer = Footer { t_ns: end_ns, reason: "merged".to_owned(), lost, ..Footer::default() };
        let written = writer.finish(footer)?;
        Ok(Summary {
            schema: SCHEMA.to_owned(),
            connections: self.joined.count(),
            between_hosts: self.joined.between_hosts(),
            without_peer: self.joined.without_peer,
            ambiguous: self.joined.ambiguous,
            messages: messages.paired,
            messages_unpaired: messages.unpaired(),
            message_latency_ns: messages.latency(),
            hosts: self.hosts,
            events: written.events,
            samples: written.samples,
            bytes: written.bytes,
        })
    }

    /// A host that was up for longer than the first one may have begun before the first one's clock did: all clocks are
    /// then moved on together, since a trace's times are not negative.
    fn lift(&mut self) {
        let begins = |(header, host): (&Header, &Host)| i128::from(header.t_ns) + i128::from(host.offset_ns);
        let earliest = self.headers.iter().zip(&self.hosts).map(begins).min().unwrap_or(0);
        if earliest < 0 {
            let lift = i64::try_from(-earliest).unwrap_or(i64::MAX);
            for host in &mut self.hosts {
                host.offset_ns = host.offset_ns.saturating_add(lift);
            }
        }
    }

    fn header(&self) -> Header {
        let names: Vec<_> = self.hosts.iter().map(|host| host.host.as_str()).collect();
        let mut merged = Header {
            writer: format!("rdma-probe {}", env!("CARGO_PKG_VERSION")),
            host: names.join(" + "),
            hosts: self.hosts.clone(),
            ..Header::default()
        };
        if let Some(first) = self.headers.first() {
            merged.kernel.clone_from(&first.kernel);
            merged.arch.clone_from(&first.arch);
        }
        for (header, host) in self.headers.iter().zip(&self.hosts) {
            let t_ns = shifted(header.t_ns, host.offset_ns);
            // The beginning is that of the recording that began first; the wall clock that of the first host.
            if merged.t_ns == 0 || t_ns < merged.t_ns {
                merged.t_ns = t_ns;
            }
            if host.offset_from == OffsetFrom::Reference {
                let anchor = i128::from(header.wall_ns) - i128::from(t_ns);
                merged.wall_ns = u64::try_from(anchor + i128::from(t_ns)).unwrap_or(0);
            }
            merged.devices.extend(header.devices.iter().cloned().map(|device| of_host(device, host)));
        }
        if let (Some(first), Some(host)) = (self.headers.first(), self.hosts.first()) {
            let since = i128::from(merged.t_ns) - i128::from(shifted(first.t_ns, host.offset_ns));
            merged.wall_ns = u64::try_from(i128::from(first.wall_ns) + since).unwrap_or(0);
        }
        merged
    }
}

/// One recording while it is written.
struct Source<'a> {
    reader: Reader,
    host: &'a Host,
    index: usize,
    next: Option<Record>,
    /// Moment of `next` on the common time line; of what is out of order, that of what came before.
    at_ns: u64,
    lost: Lost,
}

impl Source<'_> {
    fn advance(&mut self) -> Result<(), MergeError> {
        self.next = self.reader.next().transpose()?;
        let at = self.next.as_ref().and_then(|record| match record {
            Record::Event(e) => Some(e.t_ns.saturating_add(e.duration_ns)),
            Record::Sample(s) => Some(s.t_ns),
            Record::Process(p) => Some(p.t_ns),
            Record::Probe(p) => Some(p.t_ns),
            Record::Facts(f) => Some(f.t_ns),
            Record::Post(p) => Some(p.t_ns),
            Record::Poll(p) => Some(p.t_ns.saturating_add(p.duration_ns)),
            Record::Gap(g) => Some(g.t_ns),
            Record::Header(_)
            | Record::Footer(_)
            | Record::Symbol(_)
            | Record::Message(_)
            | Record::Finding(_)
            | Record::Connection(_) => None,
        });
        if let Some(at) = at {
            self.at_ns = self.at_ns.max(shifted(at, self.host.offset_ns));
        }
        Ok(())
    }
}

/// A record on the common time line; `None` for what only a single recording has.
fn translate(record: Record, index: usize, sources: &mut [Source<'_>], names: &mut Names) -> Option<Record> {
    let host = sources[index].host;
    let shift = |t_ns: u64| shifted(t_ns, host.offset_ns);
    Some(match record {
        // Both hosts together may show what neither recording did: the merged trace is to be judged anew.
        Record::Header(_) | Record::Connection(_) | Record::Message(_) | Record::Finding(_) => return None,
        Record::Footer(footer) => {
            sources[index].lost = footer.lost;
            return None;
        }
        Record::Process(process) => Record::Process(Process {
            id: names.of(index, process.id),
            t_ns: shift(process.t_ns),
            host: host.host.clone(),
            ..process
        }),
        Record::Probe(mut probe) => {
            probe.t_ns = shift(probe.t_ns);
            probe.place = format!("{}: {}", host.host, probe.place);
            Record::Probe(probe)
        }
        Record::Facts(mut facts) => {
            facts.id = names.of(index, facts.id);
            facts.t_ns = shift(facts.t_ns);
            Record::Facts(facts)
        }
        Record::Symbol(mut symbol) => {
            symbol.id = names.of(index, symbol.id);
            Record::Symbol(symbol)
        }
        Record::Post(mut post) => {
            post.id = names.of(index, post.id);
            post.t_ns = shift(post.t_ns);
            Record::Post(post)
        }
        Record::Poll(mut poll) => {
            poll.id = names.of(index, poll.id);
            poll.t_ns = shift(poll.t_ns);
            Record::Poll(poll)
        }
        Record::Gap(mut gap) => {
            gap.id = names.of(index, gap.id);
            gap.t_ns = shift(gap.t_ns);
            Record::Gap(gap)
        }
        Record::Event(mut event) => {
            event.id = names.of(index, event.id);
            event.t_ns = shift(event.t_ns);
            Record::Event(event)
        }
        Record::Sample(mut sample) => {
            sample.t_ns = shift(sample.t_ns);
            for process in &mut sample.processes {
                process.id = names.of(index, process.id);
                process.data_path.iter_mut().for_each(|path| path.shift(shift));
            }
            sample.devices = sample.devices.into_iter().map(|device| of_host(device, host)).collect();
            sources[index].lost = std::mem::take(&mut sample.lost);
            sample.lost = total(sources.iter().map(|source| &source.lost));
            Record::Sample(sample)
        }
    })
}

/// Every host may have an `mlx5_0`.
fn of_host(mut device: Device, host: &Host) -> Device {
    device.name = format!("{}:{}", host.host, device.name);
    device
}

fn total<'a>(all: impl Iterator<Item = &'a Lost>) -> Lost {
    all.fold(Lost::default(), |sum, one| Lost {
        ring_events: sum.ring_events.saturating_add(one.ring_events),
        unpaired: sum.unpaired.saturating_add(one.unpaired),
        kernel_returns: sum.kernel_returns.saturating_add(one.kernel_returns),
        uncounted: sum.uncounted.saturating_add(one.uncounted),
    })
}

/// Processes of different hosts that happen to have the same pid and start.
#[derive(Debug, Default)]
struct Names {
    given: HashMap<(usize, ProcessId), ProcessId>,
    taken: HashSet<ProcessId>,
}

impl Names {
    /// The identity of a process in the merged trace: its own, or with a start some ns later, which no real one has.
    fn of(&mut self, file: usize, id: ProcessId) -> ProcessId {
        if let Some(given) = self.given.get(&(file, id)) {
            return *given;
        }
        let mut free = id;
        while self.taken.contains(&free) {
            free.start_ns = free.start_ns.saturating_add(1);
        }
        if self.given.len() < MAX_RENAMED {
            self.taken.insert(free);
            self.given.insert((file, id), free);
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hosts_processes_of_one_pid_and_start_stay_two() {
        let id = ProcessId { pid: 7, start_ns: 10_000_000 };
        let mut names = Names::default();
        assert_eq!(names.of(0, id), id);
        assert_eq!(names.of(1, id), ProcessId { pid: 7, start_ns: 10_000_001 });
        assert_eq!(names.of(0, id), id);
        assert_eq!(names.of(1, id).start_ns, 10_000_001);
    }
}
