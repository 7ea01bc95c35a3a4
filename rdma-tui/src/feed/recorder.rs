//! A trace of what comes from now on, written beside the dashboard.
//!
//! Samples are cumulative since the collector began; a trace begun later must count from its own beginning. So the
//! latest counters of every process are remembered, and what they were when the recording began is taken off.

use std::collections::BTreeMap;
use std::path::Path;

use probe_user::sample::{
    CallCount, Facts, Footer, Header, Histogram, Lost, Probe, Process, ProcessId, ProcessSample, Record,
    Sample,
};
use probe_user::trace::{Options, Summary, WriteError, Writer};

use super::queues_before::QueuesBefore;

/// What has come so far, as far as a later recording needs it, and the recording.
#[derive(Debug, Default)]
pub struct Recorder {
    header: Header,
    processes: BTreeMap<ProcessId, Process>,
    facts: BTreeMap<ProcessId, Facts>,
    probes: BTreeMap<(String, String), Probe>,
    counters: BTreeMap<ProcessId, ProcessSample>,
    queues: BTreeMap<ProcessId, QueuesBefore>,
    lost: Lost,
    now_ns: u64,
    writing: Option<Writing>,
}

#[derive(Debug)]
struct Writing {
    writer: Writer,
    before: BTreeMap<ProcessId, ProcessSample>,
    queues_before: BTreeMap<ProcessId, QueuesBefore>,
    lost_before: Lost,
}

impl Recorder {
    /// Takes in a record; says why, when the recording must end for it.
    pub fn take(&mut self, record: &Record) -> Option<String> {
        match record {
            Record::Header(header) => {
                self.header = header.clone();
                self.now_ns = header.t_ns;
            }
            Record::Process(process) if process.exited => {
                self.processes.remove(&process.id);
                self.facts.remove(&process.id);
                self.counters.remove(&process.id);
                self.queues.remove(&process.id);
            }
            Record::Process(process) => {
                self.processes.insert(process.id, process.clone());
            }
            Record::Facts(facts) => {
                self.facts.insert(facts.id, facts.clone());
            }
            Record::Probe(probe) => {
                self.probes.insert((probe.name.clone(), probe.place.clone()), probe.clone());
            }
            Record::Sample(sample) => self.remember(sample),
            Record::Event(event) => self.now_ns = self.now_ns.max(event.t_ns),
            Record::Post(post) => self.now_ns = self.now_ns.max(post.t_ns),
            Record::Poll(poll) => self.now_ns = self.now_ns.max(poll.t_ns),
            Record::Footer(_)
            | Record::Symbol(_)
            | Record::Gap(_)
            | Record::Connection(_)
            | Record::Message(_)
            | Record::Finding(_) => {}
        }
        let writing = self.writing.as_mut()?;
        let outcome = match record {
            // A recording that begins later is not what the collector judged.
            Record::Header(_) | Record::Footer(_) | Record::Finding(_) => return None,
            Record::Sample(sample) => writing.writer.push(&Record::Sample(writing.since(sample))),
            other => writing.writer.push(other),
        };
        match outcome {
            Ok(()) | Err(WriteError::Encode(_)) => None,
            Err(error) => {
                let why = error.to_string();
                // The reason it ends for is the one to tell.
                let _ = self.finish(&why);
                Some(why)
            }
        }
    }

    fn remember(&mut self, sample: &Sample) {
        self.now_ns = sample.t_ns;
        self.lost = sample.lost.clone();
        for one in &sample.processes {
            let all = self.counters.entry(one.id).or_default();
            all.id = one.id;
            all.calls.extend(one.calls.iter().map(|(call, count)| (*call, *count)));
            all.latency_ns.extend(one.latency_ns.iter().map(|(call, h)| (*call, h.clone())));
            if let Some(path) = &one.data_path {
                self.queues.entry(one.id).or_default().remember(path);
            }
        }
    }

    /// Begins a recording.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn start(&mut self, path: &Path) -> Result<(), WriteError> {
        let since_header = self.now_ns.saturating_sub(self.header.t_ns);
        let header = Header {
            t_ns: self.now_ns,
            wall_ns: self.header.wall_ns.saturating_add(since_header),
            ..self.header.clone()
        };
        let mut writer = Writer::create(path, &header, Options::default())?;
        for process in self.processes.values() {
            writer.push(&Record::Process(process.clone()))?;
        }
        for facts in self.facts.values() {
            writer.push(&Record::Facts(facts.clone()))?;
        }
        for probe in self.probes.values() {
            writer.push(&Record::Probe(probe.clone()))?;
        }
        writer.flush()?;
        let (before, lost_before) = (self.counters.clone(), self.lost.clone());
        let queues_before = self.queues.clone();
        self.writing = Some(Writing { writer, before, queues_before, lost_before });
        Ok(())
    }

    /// Ends the recording, if there is one.
    ///
    /// # Errors
    /// When its end cannot be written.
    pub fn stop(&mut self) -> Result<Option<Summary>, WriteError> {
        self.finish("interrupted")
    }

    fn finish(&mut self, reason: &str) -> Result<Option<Summary>, WriteError> {
        let Some(writing) = self.writing.take() else { return Ok(None) };
        let lost = less(&self.lost, &writing.lost_before);
        let footer = Footer { t_ns: self.now_ns, reason: reason.to_owned(), lost, ..Footer::default() };
        writing.writer.finish(footer).map(Some)
    }
}

impl Writing {
    /// A sample counted from the recording's own beginning.
    fn since(&self, sample: &Sample) -> Sample {
        let mut sample = sample.clone();
        for one in &mut sample.processes {
            if let (Some(path), Some(before)) = (&mut one.data_path, self.queues_before.get(&one.id)) {
                before.take_off(path);
            }
            let Some(before) = self.before.get(&one.id) else { continue };
            for (call, count) in &mut one.calls {
                *count = count_since(*count, before.calls.get(call).copied().unwrap_or_default());
            }
            for (call, latency) in &mut one.latency_ns {
                *latency = latency_since(latency, before.latency_ns.get(call));
            }
        }
        sample.lost = less(&sample.lost, &self.lost_before);
        sample
    }
}

fn count_since(now: CallCount, before: CallCount) -> CallCount {
    CallCount {
        entered: now.entered.saturating_sub(before.entered),
        returned: now.returned.saturating_sub(before.returned),
        failed: now.failed.saturating_sub(before.failed),
        bytes: now.bytes.saturating_sub(before.bytes),
        total_ns: now.total_ns.saturating_sub(before.total_ns),
    }
}

fn latency_since(now: &Histogram, before: Option<&Histogram>) -> Histogram {
    before.map_or_else(|| now.clone(), |before| now.since(before))
}

fn less(now: &Lost, before: &Lost) -> Lost {
    Lost {
        ring_events: now.ring_events.saturating_sub(before.ring_events),
        unpaired: now.unpaired.saturating_sub(before.unpaired),
        kernel_returns: now.kernel_returns.saturating_sub(before.kernel_returns),
        uncounted: now.uncounted.saturating_sub(before.uncounted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_user::sample::{Call, SCHEMA};
    use probe_user::trace::Reader;

    fn sample(t_ns: u64, entered: u64) -> Record {
        let id = ProcessId { pid: 7, start_ns: 1 };
        let count = CallCount { entered, returned: entered, ..CallCount::default() };
        Record::Sample(Sample {
            t_ns,
            processes: vec![ProcessSample {
                id,
                calls: [(Call::RegMr, count)].into(),
                latency_ns: [(Call::RegMr, Histogram([(100, entered)].into()))].into(),
                data_path: None,
            }],
            ..Sample::default()
        })
    }

    #[test]
    fn a_recording_begun_later_counts_from_its_own_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("late.trace");
        let mut recorder = Recorder::default();
        let header = Header { schema: SCHEMA.into(), t_ns: 10, wall_ns: 1_000, ..Header::default() };
        recorder.take(&Record::Header(header));
        recorder.take(&sample(20, 40));
        recorder.start(&path).unwrap();
        recorder.take(&sample(30, 45));
        let summary = recorder.stop().unwrap().unwrap();
        assert_eq!(summary.samples, 1);

        let records: Vec<Record> = Reader::open(&path).unwrap().map(Result::unwrap).collect();
        let Record::Header(header) = &records[0] else { panic!("{records:?}") };
        assert_eq!((header.t_ns, header.wall_ns), (20, 1_010));
        let Some(Record::Sample(sample)) = records.iter().find(|r| matches!(r, Record::Sample(_))) else {
            panic!("{records:?}")
        };
        assert_eq!(sample.processes[0].calls[&Call::RegMr].entered, 5);
        assert_eq!(sample.processes[0].latency_ns[&Call::RegMr].total(), 5);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_an_error_and_not_a_recording() {
        let mut recorder = Recorder::default();
        assert!(recorder.start(Path::new("/nonexistent/x.trace")).is_err());
        assert!(recorder.stop().unwrap().is_none());
    }
}
