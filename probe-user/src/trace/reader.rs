//! A trace file back into records, whoever wrote it and however it ended.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::sample::{Header, Judgement, Record, SCHEMA};

use super::lines::{self, Line};
use super::{MAX_LINE_BYTES, event_line};

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Why a trace cannot be read, or not further.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system would not give us the file, or its bytes.
    #[error("cannot read '{name}': {reason}")]
    Io {
        /// File name, or `standard input`.
        name: String,
        /// The system's reason; not a `source`, since the message has it already.
        reason: io::Error,
    },
    /// The content is not what a trace holds.
    #[error("'{name}', line {line}: {reason}")]
    Content {
        /// File name, or `standard input`.
        name: String,
        /// Line number, from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
}

/// What a reader noticed besides the records: to be told to whoever reads the result.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Notes {
    /// Lines of a kind this version does not know, skipped.
    pub unknown_kinds: u64,
    /// The last line was cut off (line number); it is not among the records.
    pub cut_off_line: Option<u64>,
    /// The file ended without a footer: the recorder was killed, or still runs.
    pub no_footer: bool,
}

/// Reads one trace record by record; memory does not grow with the file.
pub struct Reader {
    name: String,
    source: Box<dyn BufRead + Send>,
    line: Vec<u8>,
    number: u64,
    header: Header,
    notes: Notes,
    /// The header is also handed out as the first record.
    header_due: bool,
    footer_seen: bool,
    done: bool,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("name", &self.name).field("line", &self.number).finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens the trace at `path` (`-` for standard input) and reads its header. Compression is recognised by content.
    ///
    /// # Errors
    /// [`ReadError::Io`] when it cannot be opened, [`ReadError::Content`] when it is not a trace of this schema.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        if path.as_os_str() == "-" {
            return Self::new("standard input", BufReader::new(io::stdin()));
        }
        let name = path.display().to_string();
        let io = |reason| ReadError::Io { name: name.clone(), reason };
        let file = File::open(path).map_err(io)?;
        if file.metadata().map_err(io)?.is_dir() {
            return Err(io(io::ErrorKind::IsADirectory.into()));
        }
        Self::new(&name, BufReader::with_capacity(256 << 10, file))
    }

    /// Reads a trace called `name` from any source of bytes.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn new(name: &str, mut source: impl BufRead + Send + 'static) -> Result<Self, ReadError> {
        let io = |reason| ReadError::Io { name: name.to_owned(), reason };
        let start = source.fill_buf().map_err(io)?;
        let source: Box<dyn BufRead + Send> = if start.starts_with(&ZSTD_MAGIC) {
            let decoder = zstd::Decoder::with_buffer(source).map_err(io)?;
            Box::new(BufReader::with_capacity(256 << 10, decoder))
        } else if start.starts_with(&GZIP_MAGIC) {
            let reason = "is compressed with gzip; unpack it first (zstd is read as it is)".to_owned();
            return Err(ReadError::Content { name: name.to_owned(), line: 1, reason });
        } else {
            Box::new(source)
        };
        let mut reader = Self {
            name: name.to_owned(),
            source,
            line: Vec::new(),
            number: 0,
            header: Header::default(),
            notes: Notes::default(),
            header_due: true,
            footer_seen: false,
            done: false,
        };
        reader.header = reader.read_header()?;
        Ok(reader)
    }

    /// The first line.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What was noticed so far; complete once the records are exhausted.
    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    fn content(&self, reason: impl Into<String>) -> ReadError {
        ReadError::Content { name: self.name.clone(), line: self.number, reason: reason.into() }
    }

    fn read_line(&mut self) -> Result<Line, ReadError> {
        let line = lines::next(&mut *self.source, &mut self.line)
            .map_err(|reason| ReadError::Io { name: self.name.clone(), reason })?;
        self.number += u64::from(line != Line::End);
        if line == Line::TooLong {
            return Err(self.content(format!("longer than {MAX_LINE_BYTES} bytes, which no trace line is")));
        }
        Ok(line)
    }

    fn read_header(&mut self) -> Result<Header, ReadError> {
        const FOREIGN: &str = "not a trace of rdma-probe: the first line should be its header";
        if self.read_line()? == Line::End {
            self.number = 1;
            return Err(self.content("the file is empty; a trace begins with its header"));
        }
        /// Read before the header itself, whose other keys a later schema may have changed.
        #[derive(Deserialize)]
        struct Introduction<'a> {
            #[serde(borrow)]
            schema: Cow<'a, str>,
        }
        let text = std::str::from_utf8(&self.line).map_err(|_| self.content(FOREIGN))?;
        let introduction: Introduction<'_> =
            serde_json::from_str(text).map_err(|e| self.content(format!("{FOREIGN} ({e})")))?;
        if introduction.schema != SCHEMA {
            let reason = format!("the schema is '{}', this version reads '{SCHEMA}'", introduction.schema);
            return Err(self.content(reason));
        }
        match parse(text) {
            Ok(Some(Record::Header(header))) => Ok(header),
            Ok(_) => Err(self.content(FOREIGN)),
            Err(e) => Err(self.content(format!("{FOREIGN} ({e})"))),
        }
    }

    fn read_record(&mut self) -> Result<Option<Record>, ReadError> {
        loop {
            let line = self.read_line()?;
            if line == Line::End {
                self.notes.no_footer = !self.footer_seen;
                return Ok(None);
            }
            if let Some(event) = event_line::read(&self.line)
                && !self.footer_seen
            {
                return Ok(Some(Record::Event(event)));
            }
            if self.line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let parsed = match std::str::from_utf8(&self.line) {
                Ok(text) => parse(text).map_err(|e| describe(&e)),
                Err(e) => Err(format!("not UTF-8 after {} bytes", e.valid_up_to())),
            };
            match parsed {
                Ok(None) => self.notes.unknown_kinds += 1,
                Ok(Some(Record::Header(_))) => {
                    return Err(self.content("a second header: several traces in one file"));
                }
                Ok(Some(_)) if self.footer_seen => {
                    return Err(self.content("a record after the footer: several traces in one file"));
                }
                Ok(Some(record)) => {
                    self.footer_seen = matches!(record, Record::Footer(_));
                    return Ok(Some(record));
                }
                // The recorder was killed within a line, or the host lost power before the last bytes were on disk.
                Err(_) if line == Line::Unfinished => self.notes.cut_off_line = Some(self.number),
                Err(reason) => return Err(self.content(reason)),
            }
        }
    }
}

impl Iterator for Reader {
    type Item = Result<Record, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if std::mem::take(&mut self.header_due) {
            return Some(Ok(Record::Header(self.header.clone())));
        }
        if self.done {
            return None;
        }
        let next = self.read_record().transpose();
        self.done = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Parses one line that is known to be of a trace; `None` is a kind this version does not know.
pub(super) fn record_of(line: &[u8]) -> Result<Option<Record>, String> {
    if let Some(event) = event_line::read(line) {
        return Ok(Some(Record::Event(event)));
    }
    let text = std::str::from_utf8(line).map_err(|error| error.to_string())?;
    parse(text).map_err(|error| describe(&error))
}

/// Parses one line; `None` is a kind this version does not know.
///
/// In two steps: its kind first, then the record of that kind. Letting serde find the kind by itself
/// would first copy the whole line into a tree, and could not tell an unknown kind from a broken line.
fn parse(text: &str) -> serde_json::Result<Option<Record>> {
    #[derive(Deserialize)]
    struct Kind<'a> {
        #[serde(borrow)]
        kind: Cow<'a, str>,
    }
    let Kind { kind } = serde_json::from_str(text)?;
    Ok(Some(match &*kind {
        "header" => Record::Header(serde_json::from_str(text)?),
        "process" => Record::Process(serde_json::from_str(text)?),
        "facts" => Record::Facts(serde_json::from_str(text)?),
        "probe" => Record::Probe(serde_json::from_str(text)?),
        "sample" => Record::Sample(serde_json::from_str(text)?),
        "event" => Record::Event(serde_json::from_str(text)?),
        "post" => Record::Post(serde_json::from_str(text)?),
        "poll" => Record::Poll(serde_json::from_str(text)?),
        "gap" => Record::Gap(serde_json::from_str(text)?),
        "symbol" => Record::Symbol(serde_json::from_str(text)?),
        "connection" => Record::Connection(serde_json::from_str(text)?),
        "message" => Record::Message(serde_json::from_str(text)?),
        "finding" => {
            // The only record kept as an object: the key that says what it is belongs to the line.
            let mut finding: Judgement = serde_json::from_str(text)?;
            finding.0.remove("kind");
            Record::Finding(finding)
        }
        "footer" => Record::Footer(serde_json::from_str(text)?),
        _ => {
            serde_json::from_str::<IgnoredAny>(text)?;
            return Ok(None);
        }
    }))
}

/// serde names the place within the one line we gave it; only the column is of use to a person.
fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    format!("{} (column {})", text.strip_suffix(&place).unwrap_or(&text), error.column())
}
