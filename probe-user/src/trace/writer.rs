//! Records into a trace file.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::sample::{Footer, Header, ProcessSample, Record, SCHEMA, Sample};

use super::sink::{LimitReached, Sink};
use super::{MAX_LINE_BYTES, RESERVE_BYTES, destination};

/// Buffer before the sink; with one unfinished line it must fit into [`RESERVE_BYTES`].
const BUFFER_BYTES: usize = 256 << 10;

/// Longest command line a header carries; the rest of the arguments is left out.
const MAX_COMMAND_BYTES: usize = 64 << 10;

/// zstd's own default: beyond it, a level costs more time than it saves space on JSON Lines.
const ZSTD_LEVEL: i32 = 3;

/// How a trace is written.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Most bytes the file may take on disk; the recording then ends with the reason `size limit`.
    /// Anything below [`Options::MIN_LIMIT_BYTES`] counts as that.
    pub limit_bytes: Option<u64>,
}

impl Options {
    /// The smallest limit that leaves room for a header, a few records and the end of the file.
    pub const MIN_LIMIT_BYTES: u64 = 2 * RESERVE_BYTES;
}

/// What came out of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Bytes of the file.
    pub bytes: u64,
    /// Events written.
    pub events: u64,
    /// Samples written.
    pub samples: u64,
}

/// Why a trace could not be begun, or must end.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file could not be made.
    #[error("cannot create trace '{}': {reason}", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// The system's reason; not a `source`, since the message has it already.
        reason: io::Error,
    },
    /// The file must not be overwritten.
    #[error("cannot write trace '{}': it {why}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// What stands in the way, and the remedy.
        why: String,
    },
    /// The disk or quota is exhausted; room for the footer was kept.
    #[error("disk full")]
    DiskFull,
    /// The limit of [`Options::limit_bytes`] was reached.
    #[error("size limit")]
    SizeLimit,
    /// Writing failed for another reason.
    #[error("write error: {0}")]
    Io(#[from] io::Error),
    /// A record could not be put into a line of [`MAX_LINE_BYTES`].
    #[error("record cannot be written: {0}")]
    Encode(String),
}

impl WriteError {
    fn of(error: io::Error) -> Self {
        let limit = error.get_ref().is_some_and(|inner| inner.is::<LimitReached>());
        match error.kind() {
            // The system's own limit (`ulimit -f`) is no other thing than ours.
            _ if limit => Self::SizeLimit,
            io::ErrorKind::FileTooLarge => Self::SizeLimit,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull,
            _ => Self::Io(error),
        }
    }

    fn ends(&self) -> Ended {
        match self {
            Self::SizeLimit => Ended::SizeLimit,
            Self::Io(error) => Ended::Failed(error.raw_os_error()),
            _ => Ended::DiskFull,
        }
    }
}

/// Writes one trace: the header when made, then records, then the footer.
///
/// Every call either writes its record whole or says why the recording must end; after such an answer nothing more is
/// accepted, and [`Writer::finish`] still writes what is buffered and the footer.
#[derive(Debug)]
pub struct Writer {
    encoder: Option<Encoder>,
    line: Vec<u8>,
    ended: Option<Ended>,
    events: u64,
    samples: u64,
}

/// Why nothing more is accepted.
#[derive(Debug, Clone, Copy)]
enum Ended {
    DiskFull,
    SizeLimit,
    Failed(Option<i32>),
}

impl Ended {
    fn error(self) -> WriteError {
        match self {
            Self::DiskFull => WriteError::DiskFull,
            Self::SizeLimit => WriteError::SizeLimit,
            Self::Failed(Some(errno)) => io::Error::from_raw_os_error(errno).into(),
            Self::Failed(None) => io::Error::other("an earlier write failed").into(),
        }
    }
}

enum Encoder {
    Plain(BufWriter<Sink>),
    Zstd(zstd::Encoder<'static, Sink>),
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Self::Zstd(_)) { "Zstd" } else { "Plain" })
    }
}

impl Encoder {
    fn output(&mut self) -> &mut dyn Write {
        match self {
            Self::Plain(buffer) => buffer,
            Self::Zstd(zstd) => zstd,
        }
    }

    fn sink(&mut self) -> &mut Sink {
        match self {
            Self::Plain(buffer) => buffer.get_mut(),
            Self::Zstd(zstd) => zstd.get_mut(),
        }
    }
}

impl Writer {
    /// Begins a trace at `path` (`-` for standard output), compressed where the name ends in `.zst`.
    ///
    /// # Errors
    /// [`WriteError::Refused`] when something other than a trace is in the way, [`WriteError::Create`] when the system
    /// refuses, [`WriteError::DiskFull`] when not even the header fits.
    pub fn create(path: &Path, header: &Header, options: Options) -> Result<Self, WriteError> {
        let limit = options.limit_bytes.map(|limit| limit.max(Options::MIN_LIMIT_BYTES));
        let sink = if path.as_os_str() == "-" {
            Sink::stdout()
        } else {
            Sink::file(destination::open(path)?, path, limit)
        };
        let encoder = if path.extension().is_some_and(|e| e == "zst") {
            Encoder::Zstd(zstd::Encoder::new(sink, ZSTD_LEVEL)?)
        } else {
            Encoder::Plain(BufWriter::with_capacity(BUFFER_BYTES, sink))
        };
        let mut writer =
            Self { encoder: Some(encoder), line: Vec::new(), ended: None, events: 0, samples: 0 };
        let mut header = header.clone();
        header.schema = SCHEMA.to_owned();
        shorten(&mut header.command, MAX_COMMAND_BYTES);
        writer.push(&Record::Header(header))?;
        writer.flush()?;
        Ok(writer)
    }

    /// Writes one record. A sample also flushes, so that a crash loses at most what came after the last one.
    ///
    /// # Errors
    /// Why the recording must end: [`WriteError::DiskFull`], [`WriteError::SizeLimit`] or [`WriteError::Io`]. The
    /// record was still written in the first two cases, except after an earlier such answer.
    pub fn push(&mut self, record: &Record) -> Result<(), WriteError> {
        match record {
            Record::Sample(sample) => {
                self.push_sample(sample)?;
                self.flush()
            }
            _ => {
                self.encode(record)?;
                self.put(u64::from(matches!(record, Record::Event(_))), 0)
            }
        }
    }

    /// Hands what is buffered to the system.
    ///
    /// # Errors
    /// As [`Writer::push`].
    pub fn flush(&mut self) -> Result<(), WriteError> {
        let Some(encoder) = &mut self.encoder else { return Ok(()) };
        retry(|| encoder.output().flush()).map_err(|error| {
            let error = WriteError::of(error);
            self.ended.get_or_insert(error.ends());
            error
        })
    }

    /// Bytes that have reached the file so far.
    pub fn bytes(&mut self) -> u64 {
        self.encoder.as_mut().map_or(0, |encoder| encoder.sink().written())
    }

    /// Ends the trace: writes what is buffered and the footer, whose `events` and `samples` are filled in here.
    ///
    /// # Errors
    /// [`WriteError`] when not even the reserve was enough. An uncompressed file then still ends with a whole line.
    pub fn finish(mut self, mut footer: Footer) -> Result<Summary, WriteError> {
        footer.events = self.events;
        footer.samples = self.samples;
        self.encode(&Record::Footer(footer))?;
        let Some(mut encoder) = self.encoder.take() else { return Err(WriteError::DiskFull) };
        encoder.sink().use_reserve();
        let line = std::mem::take(&mut self.line);
        let mut outcome = retry(|| encoder.output().flush()).and_then(|()| encoder.output().write_all(&line));
        let sink = match encoder {
            Encoder::Plain(mut buffer) => {
                outcome = outcome.and_then(|()| buffer.flush());
                buffer.into_parts().0
            }
            Encoder::Zstd(zstd) => zstd.finish()?,
        };
        let closed = sink.close(outcome.is_err());
        outcome.map_err(WriteError::of)?;
        Ok(Summary { bytes: closed?, events: self.events, samples: self.samples })
    }

    /// Writes a sample, in parts where its line would be too long: a sample carries only what changed, so two of the
    /// same moment say together what one would.
    fn push_sample(&mut self, sample: &Sample) -> Result<(), WriteError> {
        match self.encode(&Record::Sample(sample.clone())) {
            Ok(()) => self.put(0, 1),
            Err(error @ WriteError::Encode(_)) => {
                let Some((one, other)) = halves(sample) else { return Err(error) };
                self.push_sample(&one)?;
                self.push_sample(&other)
            }
            Err(error) => Err(error),
        }
    }

    fn encode(&mut self, record: &Record) -> Result<(), WriteError> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, record).map_err(|e| WriteError::Encode(e.to_string()))?;
        self.line.push(b'\n');
        if self.line.len() > MAX_LINE_BYTES {
            return Err(WriteError::Encode(format!("a line of {} bytes is too long", self.line.len())));
        }
        Ok(())
    }

    /// Puts the encoded line into the buffer, whole: where the disk fills up in the middle, its rest goes into the
    /// reserve. Adds to the totals of the footer what the line stands for.
    fn put(&mut self, events: u64, samples: u64) -> Result<(), WriteError> {
        if let Some(ended) = self.ended {
            return Err(ended.error());
        }
        let Some(encoder) = &mut self.encoder else { return Err(Ended::Failed(None).error()) };
        let mut rest = self.line.as_slice();
        while !rest.is_empty() {
            let error = match encoder.output().write(rest) {
                Ok(0) => WriteError::Io(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    rest = &rest[n..];
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => WriteError::of(error),
            };
            let second = self.ended.replace(error.ends()).is_some();
            if second || matches!(error, WriteError::Io(_)) {
                return Err(error);
            }
            encoder.sink().use_reserve();
        }
        self.events += events;
        self.samples += samples;
        self.ended.map_or(Ok(()), |ended| Err(ended.error()))
    }
}

/// A sample as two: its processes and devices shared out, or the queues of its only process. `None` where there is
/// nothing left to share out.
fn halves(sample: &Sample) -> Option<(Sample, Sample)> {
    let part = |processes: &[ProcessSample], devices: &[_]| Sample {
        t_ns: sample.t_ns,
        processes: processes.to_vec(),
        lost: sample.lost.clone(),
        devices: devices.to_vec(),
    };
    let (processes, devices) = (&sample.processes, &sample.devices);
    if processes.len() > 1 || devices.len() > 1 {
        let (p, d) = (processes.len().div_ceil(2), devices.len().div_ceil(2));
        return Some((part(&processes[..p], &devices[..d]), part(&processes[p..], &devices[d..])));
    }
    let queues = processes.first()?.data_path.as_ref()?.queues.len();
    if queues < 2 {
        return None;
    }
    let (mut one, mut other) = (part(processes, devices), part(processes, &[]));
    if let Some(path) = &mut one.processes[0].data_path {
        path.queues.truncate(queues / 2);
    }
    if let Some(path) = &mut other.processes[0].data_path {
        path.queues.drain(..queues / 2);
    }
    Some((one, other))
}

/// Repeats what a signal interrupted: the recorder is told to stop by signals, and must still write its end.
fn retry(mut write: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    loop {
        match write() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

fn shorten(arguments: &mut Vec<String>, most_bytes: usize) {
    let mut total = 0;
    let keep = arguments
        .iter()
        .take_while(|argument| {
            total += argument.len();
            total <= most_bytes
        })
        .count();
    arguments.truncate(keep);
}
