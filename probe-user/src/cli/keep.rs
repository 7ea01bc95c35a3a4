//! Where a recording goes: one file, a row of files, or memory until a trigger asks for it.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, bail};
use probe_user::doctor;
use probe_user::model::Model;
use probe_user::sample::{Footer, Header, Judgement, Record};
use probe_user::trace::{Extent, Options, Ring, Rotating, Rotation, Summary, WriteError, Writer, numbered};
use probe_user::trigger::{Trigger, Watch};

use super::UsageError;
use super::time::parse_duration;

/// Findings written at the end of a trace, the worst of them: a host of thousands of processes may have one for each.
const MAX_FINDINGS: usize = 1000;

/// Options of `record` that say what is kept.
#[derive(Debug, clap::Args)]
#[group(id = "kept")]
pub struct Args {
    /// Begin a new file when one has this size (such as 100MiB) or spans this time (such as 10m); files are numbered
    #[arg(long, value_name = "SIZE|TIME", value_parser = parse_rotation, conflicts_with = "max_size")]
    rotate: Option<Rotation>,
    /// Keep this many files, the latest; with --ring, write no more than this many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,
    /// Keep the last this much time in memory, and write it only when a trigger fires (see --on)
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "rotate")]
    ring: Option<Duration>,
    /// Memory for --ring in MiB; where that is not enough, less time is kept
    #[arg(long, value_name = "MIB", default_value = "256", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    ring_memory: u32,
    /// Write what --ring holds when this happens (repeatable): SIGUSR1, cqe_error, 'reg_latency_p99>1ms',
    /// 'reg_failed>10 and live_mrs>1000'; SIGUSR1 where not given
    #[arg(long, value_name = "TRIGGER", requires = "ring")]
    on: Vec<Trigger>,
    /// Time after a trigger that still goes into what is written
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    after: Duration,
}

/// Takes the records of a recording.
#[derive(Debug)]
pub enum Keeper {
    /// One file.
    File(Box<Single>),
    /// A row of files.
    Files(Box<Rotating>),
    /// Memory, until a trigger fires.
    Memory(Box<Memory>),
}

/// What came out of a recording.
#[derive(Debug)]
pub struct Kept {
    /// Files, oldest first.
    pub files: Vec<PathBuf>,
    /// What they hold together.
    pub summary: Summary,
}

impl Keeper {
    /// Begins as the options say.
    ///
    /// # Errors
    /// When the first file cannot be made, or options do not go together.
    pub fn create(path: &Path, header: &Header, options: Options, args: &Args) -> Result<Self> {
        if args.keep.is_some() && args.rotate.is_none() && args.ring.is_none() {
            bail!(UsageError("--keep is for --rotate and --ring: without them there is one file".to_owned()));
        }
        if path.as_os_str() == "-" && (args.rotate.is_some() || args.ring.is_some()) {
            bail!(UsageError("--rotate and --ring write numbered files: name one with -o".to_owned()));
        }
        let keep = args.keep.map(|n| n as usize);
        if let Some(rotation) = args.rotate {
            let rotation = Rotation { keep, ..rotation };
            return Ok(Self::Files(Box::new(Rotating::create(path, header, options, rotation)?)));
        }
        let Some(ring) = args.ring else {
            return Ok(Self::File(Box::new(Single::create(path, header, options)?)));
        };
        let extent = Extent { ns: ns(ring), bytes: (args.ring_memory as usize) << 20 };
        let mut on = args.on.clone();
        if on.is_empty() {
            on.extend("SIGUSR1".parse());
        }
        let signals = on.iter().flat_map(Trigger::signals).collect();
        let mut watch = Watch::new(on);
        watch.take(&Record::Header(header.clone()));
        Ok(Self::Memory(Box::new(Memory {
            ring: Ring::new(header, extent),
            watch,
            signals,
            path: path.to_owned(),
            options,
            keep,
            rest_ns: extent.ns,
            after_ns: ns(args.after),
            due: None,
            quiet_until_ns: 0,
            now_ns: header.t_ns,
            number: 0,
            files: VecDeque::new(),
            writing: None,
            summary: Summary { bytes: 0, events: 0, samples: 0 },
        })))
    }

    /// Signals that are triggers.
    pub fn signals(&self) -> &[i32] {
        if let Self::Memory(memory) = self { &memory.signals } else { &[] }
    }

    /// A signal came.
    pub fn signalled(&mut self, signal: i32) {
        if let Self::Memory(memory) = self {
            memory.watch.signalled(signal);
            memory.look(true);
        }
    }

    /// Takes a record.
    ///
    /// # Errors
    /// As [`Writer::push`].
    pub fn push(&mut self, record: &Record) -> Result<(), WriteError> {
        match self {
            Self::File(file) => file.push(record),
            Self::Files(files) => files.push(record),
            Self::Memory(memory) => memory.push(record),
        }
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// As [`Writer::finish`].
    pub fn finish(self, footer: Footer) -> Result<Kept, WriteError> {
        match self {
            Self::File(file) => file.finish(footer),
            Self::Files(files) => {
                let names = files.files().map(Path::to_owned).collect();
                Ok(Kept { summary: files.finish(footer)?, files: names })
            }
            Self::Memory(mut memory) => {
                memory.end();
                Ok(Kept { summary: memory.summary, files: memory.files.into() })
            }
        }
    }
}

/// A recording in one file, which ends with what is wrong in it.
#[derive(Debug)]
pub struct Single {
    writer: Writer,
    path: PathBuf,
    model: Model,
}

impl Single {
    fn create(path: &Path, header: &Header, options: Options) -> Result<Self, WriteError> {
        let writer = Writer::create(path, header, options)?;
        let mut model = Model::new();
        model.push(&Record::Header(header.clone()));
        Ok(Self { writer, path: path.to_owned(), model })
    }

    fn push(&mut self, record: &Record) -> Result<(), WriteError> {
        self.writer.push(record)?;
        self.model.push(record);
        Ok(())
    }

    fn finish(mut self, footer: Footer) -> Result<Kept, WriteError> {
        // Judged with the footer, as whoever reads the file will.
        self.model.push(&Record::Footer(footer.clone()));
        for finding in doctor::find(&self.model).iter().take(MAX_FINDINGS).filter_map(Judgement::of) {
            // Where there is no room for them, there still is for the footer.
            match self.writer.push(&Record::Finding(finding)) {
                Ok(()) | Err(WriteError::Encode(_)) => {}
                Err(_) => break,
            }
        }
        Ok(Kept { summary: self.writer.finish(footer)?, files: vec![self.path] })
    }
}

/// A recording in memory.
#[derive(Debug)]
pub struct Memory {
    ring: Ring,
    watch: Watch,
    signals: Vec<i32>,
    path: PathBuf,
    options: Options,
    keep: Option<usize>,
    /// Time between two writings, so that the same records are not written twice.
    rest_ns: u64,
    after_ns: u64,
    /// A trigger fired: when its trace is written, and why.
    due: Option<(u64, String)>,
    quiet_until_ns: u64,
    now_ns: u64,
    number: u32,
    files: VecDeque<PathBuf>,
    writing: Option<JoinHandle<Result<Summary, WriteError>>>,
    summary: Summary,
}

impl Memory {
    fn push(&mut self, record: &Record) -> Result<(), WriteError> {
        self.watch.take(record);
        self.ring.push(record)?;
        if let Record::Sample(sample) = record {
            self.now_ns = self.now_ns.max(sample.t_ns);
            self.look(false);
        }
        Ok(())
    }

    /// Looks whether a trigger fired; someone who sends a signal is not told to wait.
    fn look(&mut self, asked: bool) {
        if let Some(why) = self.watch.fired()
            && self.due.is_none()
            && (asked || self.now_ns >= self.quiet_until_ns)
        {
            eprintln!("rdma-probe: {why}");
            self.due = Some((self.now_ns.saturating_add(self.after_ns), why));
        }
        if let Some((at_ns, why)) = self.due.take() {
            if self.now_ns >= at_ns {
                self.write(why);
            } else {
                self.due = Some((at_ns, why));
            }
        }
    }

    /// Writes what is in memory, in a thread of its own: the recording goes on.
    fn write(&mut self, why: String) {
        self.join();
        self.quiet_until_ns = self.now_ns.saturating_add(self.rest_ns);
        if let Some(keep) = self.keep {
            while self.files.len() >= keep {
                if let Some(oldest) = self.files.pop_front() {
                    // Moved away by somebody: then it is not ours to remove.
                    let _ = std::fs::remove_file(oldest);
                }
            }
        }
        self.number = self.number.saturating_add(1);
        let path = numbered(&self.path, self.number);
        let (snapshot, options) = (self.ring.snapshot(), self.options);
        self.files.push_back(path.clone());
        let writing = thread::Builder::new()
            .name("keep".to_owned())
            .spawn(move || snapshot.write(&path, options, &why));
        match writing {
            Ok(thread) => self.writing = Some(thread),
            Err(error) => eprintln!("rdma-probe: the recording cannot be written: {error}"),
        }
    }

    fn join(&mut self) {
        let Some(thread) = self.writing.take() else { return };
        let failed = match thread.join() {
            Ok(Ok(part)) => {
                self.summary.bytes += part.bytes;
                self.summary.events += part.events;
                self.summary.samples += part.samples;
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the thread that writes it failed".to_owned(),
        };
        let name = self.files.pop_back().unwrap_or_default();
        eprintln!("rdma-probe: '{}' was not written: {failed}", name.display());
    }

    /// Writes what a trigger asked for and was still waited with.
    fn end(&mut self) {
        if let Some((_, why)) = self.due.take() {
            self.write(why);
        }
        self.join();
    }
}

fn ns(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// A size or a time: the unit tells which.
fn parse_rotation(text: &str) -> Result<Rotation, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "" => return Err("needs a unit: KiB, MiB or GiB for a size, s, m or h for a time".to_owned()),
        _ => {
            let time = parse_duration(text).map_err(|why| {
                if why.starts_with("unknown unit") {
                    format!("unknown unit '{unit}': use KiB, MiB or GiB for a size, s, m or h for a time")
                } else {
                    why
                }
            })?;
            if time < Duration::from_secs(1) {
                return Err("too short: a file spans a second or more".to_owned());
            }
            return Ok(Rotation { ns: Some(ns(time)), ..Rotation::default() });
        }
    };
    let number: f64 =
        number.parse().map_err(|_| "not a size: write a number and a unit, such as 100MiB".to_owned())?;
    let bytes = number * f64::from(1_u32 << shift);
    if bytes < Options::MIN_LIMIT_BYTES as f64 {
        return Err(format!("too small: a file takes {} KiB or more", Options::MIN_LIMIT_BYTES >> 10));
    }
    if bytes >= 2_f64.powi(63) {
        return Err("too large".to_owned());
    }
    Ok(Rotation { bytes: Some(bytes as u64), ..Rotation::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_tells_a_size_from_a_time() {
        assert_eq!(parse_rotation("100MiB").unwrap().bytes, Some(100 << 20));
        assert_eq!(parse_rotation("1.5GiB").unwrap().bytes, Some(3 << 29));
        assert_eq!(parse_rotation("10m").unwrap().ns, Some(600_000_000_000));
        for wrong in ["", "100", "5parsecs", "1KiB", "10ms", "-1s", "1e9GiB", "nanGiB", "9999999999999GiB"] {
            assert!(parse_rotation(wrong).is_err(), "{wrong}");
        }
    }
}
