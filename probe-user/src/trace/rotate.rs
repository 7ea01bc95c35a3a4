//! A recording cut into files of bounded size or time, each understood by itself.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use crate::sample::{Footer, Header, Record};

use super::carry::Carry;
use super::writer::{Options, Summary, WriteError, Writer};

/// When a new file is begun, and how many are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rotation {
    /// Begin a new file when one has this many bytes.
    pub bytes: Option<u64>,
    /// Begin a new file after this much of the recording, ns.
    pub ns: Option<u64>,
    /// Keep this many files, the latest; `None` keeps all.
    pub keep: Option<usize>,
}

/// Writes one file after the other.
#[derive(Debug)]
pub struct Rotating {
    path: PathBuf,
    rotation: Rotation,
    options: Options,
    carry: Carry,
    writer: Option<Writer>,
    began_ns: u64,
    number: u32,
    files: VecDeque<PathBuf>,
    before: Summary,
}

impl Rotating {
    /// Begins the first file beside `path`, whose name it has with a number in it.
    ///
    /// # Errors
    /// As [`Writer::create`].
    pub fn create(
        path: &Path,
        header: &Header,
        options: Options,
        rotation: Rotation,
    ) -> Result<Self, WriteError> {
        let mut carry = Carry::default();
        carry.take(&Record::Header(header.clone()));
        let first = numbered(path, 1);
        Ok(Self {
            path: path.to_owned(),
            rotation,
            options,
            carry,
            writer: Some(Writer::create(&first, header, options)?),
            began_ns: header.t_ns,
            number: 1,
            files: [first].into(),
            before: Summary { bytes: 0, events: 0, samples: 0 },
        })
    }

    /// Writes one record; after a sample, perhaps begins a new file.
    ///
    /// # Errors
    /// As [`Writer::push`], and as [`Writer::create`] for the new file.
    pub fn push(&mut self, record: &Record) -> Result<(), WriteError> {
        self.carry.take(record);
        let Some(writer) = &mut self.writer else { return Err(WriteError::DiskFull) };
        writer.push(record)?;
        let Record::Sample(sample) = record else { return Ok(()) };
        let full = self.rotation.bytes.is_some_and(|most| writer.bytes() >= most)
            || self.rotation.ns.is_some_and(|most| sample.t_ns.saturating_sub(self.began_ns) >= most);
        if full { self.next_file(sample.t_ns) } else { Ok(()) }
    }

    fn next_file(&mut self, t_ns: u64) -> Result<(), WriteError> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let footer =
            Footer { t_ns, reason: "rotated".to_owned(), lost: self.carry.lost(), ..Footer::default() };
        self.add(writer.finish(footer)?);
        self.number = self.number.saturating_add(1);
        let path = numbered(&self.path, self.number);
        // The oldest goes first, so that a disk that holds just so many is not asked for one more.
        if let Some(keep) = self.rotation.keep {
            while self.files.len() >= keep.max(1) {
                if let Some(oldest) = self.files.pop_front() {
                    // Moved away or removed by somebody: then it is not ours to remove.
                    let _ = std::fs::remove_file(oldest);
                }
            }
        }
        let (header, records) = self.carry.begin();
        let mut writer = Writer::create(&path, &header, self.options)?;
        self.files.push_back(path);
        let outcome = records.iter().try_for_each(|record| writer.push(record));
        self.began_ns = t_ns;
        self.writer = Some(writer);
        outcome
    }

    fn add(&mut self, part: Summary) {
        self.before.bytes += part.bytes;
        self.before.events += part.events;
        self.before.samples += part.samples;
    }

    /// Ends the last file; the summary is of all that were written.
    ///
    /// # Errors
    /// As [`Writer::finish`].
    pub fn finish(mut self, footer: Footer) -> Result<Summary, WriteError> {
        let Some(writer) = self.writer.take() else { return Err(WriteError::DiskFull) };
        let last = writer.finish(footer)?;
        self.add(last);
        Ok(self.before)
    }

    /// Files that were written and not removed, oldest first.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(PathBuf::as_path)
    }
}

/// `run.trace.zst` and 7: `run.0007.trace.zst`.
pub fn numbered(path: &Path, number: u32) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (stem, compressed) = match name.strip_suffix(".zst") {
        Some(stem) => (stem, ".zst"),
        None => (&*name, ""),
    };
    let (stem, kind) = match stem.rsplit_once('.') {
        Some((before, kind)) if !before.is_empty() => (before, format!(".{kind}")),
        _ => (stem, String::new()),
    };
    path.with_file_name(format!("{stem}.{number:04}{kind}{compressed}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_stands_before_what_says_of_which_kind_the_file_is() {
        for (path, expected) in [
            ("/a/run.trace.zst", "/a/run.0007.trace.zst"),
            ("rdma-probe.trace", "rdma-probe.0007.trace"),
            ("x", "x.0007"),
            (".hidden", ".hidden.0007"),
            ("a.b.jsonl", "a.b.0007.jsonl"),
        ] {
            assert_eq!(numbered(Path::new(path), 7), Path::new(expected));
        }
    }
}
