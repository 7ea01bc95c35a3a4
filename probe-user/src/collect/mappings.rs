//! Code that processes map from now on: libraries opened late, by dlopen, by exec, in a new container.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use perf_event::data::Record;
use perf_event::events::Software;
use perf_event::{Builder, Clock, SampleFlag, Sampler};

use super::stacks::Spaces;
use crate::target::{MappedFile, parent_of};

/// Ring per processor; a record is about 120 bytes. An overflow is told, and answered by looking at every process.
const RING_BYTES: usize = 64 << 10;

/// So long a process is known to be no child of a watched one. It maps its files within less, and no process gets its
/// number so soon.
const STRANGE_FOR_NS: u64 = 50_000_000;

/// A file that was mapped with code in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMapping {
    /// Process.
    pub pid: u32,
    /// Address range, as `/proc/PID/map_files` names it.
    pub range: String,
    /// Path in the process's own mount namespace.
    pub path: PathBuf,
    /// Offset in the file.
    pub offset: u64,
    /// Inode of the file, where the kernel tells it.
    pub inode: Option<u64>,
    /// When it was mapped.
    pub t_ns: u64,
}

impl NewMapping {
    /// The file.
    pub fn mapped(&self) -> MappedFile {
        MappedFile { pid: self.pid, range: self.range.clone(), path: self.path.clone(), deleted: false }
    }
}

/// What has come since the last look.
#[derive(Debug, Default)]
pub struct News {
    /// New mappings.
    pub mappings: Vec<NewMapping>,
    /// True when some were lost.
    pub lost: bool,
}

/// New mappings of the processes of a recording. Whoever needs to know takes them in, and remembers where code lies at
/// once: the librarian may be busy attaching while a process comes and goes.
#[derive(Debug, Clone)]
pub struct Mappings(Arc<Mutex<Kept>>);

#[derive(Debug)]
struct Kept {
    watch: MappingWatch,
    whole_host: bool,
    watched: HashSet<u32>,
    strangers: Strangers,
    spaces: Arc<Mutex<Spaces>>,
    /// Taken in, and not yet looked at by the librarian.
    news: News,
    /// Wakes the librarian for news that somebody else took in.
    bell: Option<UnixStream>,
}

impl Mappings {
    /// Begins to watch; of the whole host, or of processes that are named.
    ///
    /// # Errors
    /// Where perf events of other processes are not for us.
    pub fn new(whole_host: bool, spaces: Arc<Mutex<Spaces>>) -> io::Result<Self> {
        let watch = MappingWatch::new()?;
        let kept = Kept {
            watch,
            whole_host,
            watched: HashSet::new(),
            strangers: Strangers::default(),
            spaces,
            news: News::default(),
            bell: None,
        };
        Ok(Self(Arc::new(Mutex::new(kept))))
    }

    /// Descriptors that become readable when there are news.
    pub fn descriptors(&self) -> Vec<RawFd> {
        self.lock().watch.descriptors().collect()
    }

    /// A process is of interest.
    pub fn watch(&self, pid: u32) {
        self.lock().watched.insert(pid);
    }

    /// A process is no more.
    pub fn forget(&self, pid: u32) {
        self.lock().watched.remove(&pid);
    }

    /// Has this bell rung for news that others than the librarian take in.
    pub fn ring(&self, bell: UnixStream) {
        self.lock().bell = Some(bell);
    }

    /// Remembers where the code lies that processes have mapped until now.
    pub fn catch_up(&self) {
        let mut kept = self.lock();
        kept.catch_up();
        let has_news = kept.news.lost || !kept.news.mappings.is_empty();
        if let (true, Some(bell)) = (has_news, &mut kept.bell) {
            // A full pipe rings already.
            let _ = bell.write(&[1]);
        }
    }

    /// What the librarian has to look at.
    pub fn take(&self) -> News {
        let mut kept = self.lock();
        kept.catch_up();
        std::mem::take(&mut kept.news)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn catch_up(&mut self) {
        let news = self.watch.take();
        self.news.lost |= news.lost;
        for new in news.mappings {
            // Files that no process of ours maps cost us nothing: the probes filter by process, but not the attaching.
            if self.whole_host || self.watched.contains(&new.pid) || self.is_child_of_watched(&new) {
                let mapped = new.mapped();
                self.spaces
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .note(&mapped, new.offset, new.inode);
                self.news.mappings.push(new);
            }
        }
    }

    /// A child's first mappings may be told before its fork is.
    fn is_child_of_watched(&mut self, new: &NewMapping) -> bool {
        if self.strangers.has(new.pid, new.t_ns) {
            return false;
        }
        let is = parent_of(new.pid).is_some_and(|parent| self.watched.contains(&parent));
        if is {
            self.watched.insert(new.pid);
        } else {
            self.strangers.add(new.pid, new.t_ns);
        }
        is
    }
}

/// Processes that are not ours. One that begins maps several files at once: where processes come and go by the hundreds, the
/// kernel is asked for the parent of each once.
#[derive(Debug, Default)]
struct Strangers {
    pids: HashSet<u32>,
    since_ns: u64,
}

impl Strangers {
    fn has(&self, pid: u32, t_ns: u64) -> bool {
        self.is_fresh(t_ns) && self.pids.contains(&pid)
    }

    fn add(&mut self, pid: u32, t_ns: u64) {
        if !self.is_fresh(t_ns) {
            self.pids.clear();
            self.since_ns = t_ns;
        }
        self.pids.insert(pid);
    }

    /// Records of several processors are not in the order of their time.
    fn is_fresh(&self, t_ns: u64) -> bool {
        self.since_ns.abs_diff(t_ns) < STRANGE_FOR_NS
    }
}

/// Watches all processors.
pub struct MappingWatch {
    samplers: Vec<Sampler>,
}

impl std::fmt::Debug for MappingWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MappingWatch on {} processors", self.samplers.len())
    }
}

impl MappingWatch {
    /// Begins to watch.
    ///
    /// # Errors
    /// Where perf events of other processes are not for us.
    pub fn new() -> io::Result<Self> {
        let samplers = online_processors()
            .into_iter()
            .map(|processor| {
                Builder::new(Software::DUMMY)
                    .any_pid()
                    .one_cpu(processor)
                    .mmap(true)
                    .mmap2(true)
                    .sample_id_all(true)
                    .sample(SampleFlag::TIME)
                    .clockid(Clock::MONOTONIC)
                    // In bytes: the kernel counts only samples as events, and a mapping is none.
                    .wakeup_watermark(1)
                    .enabled(true)
                    .build()?
                    .sampled(RING_BYTES)
            })
            .collect::<io::Result<_>>()?;
        Ok(Self { samplers })
    }

    /// Descriptors that become readable when there are news.
    pub fn descriptors(&self) -> impl Iterator<Item = i32> + '_ {
        self.samplers.iter().map(AsRawFd::as_raw_fd)
    }

    /// Takes what has come.
    pub fn take(&mut self) -> News {
        let mut news = News::default();
        for sampler in &mut self.samplers {
            while let Some(record) = sampler.next_record() {
                let t_ns = time_of(&record.to_contiguous());
                match record.parse_record() {
                    Ok(Record::Mmap2(found)) => {
                        // Anonymous code, the vdso and such have no path.
                        let path = path_of(found.filename_os().as_bytes());
                        if path.is_absolute() {
                            let end = found.addr.saturating_add(found.len);
                            let range = format!("{:x}-{end:x}", found.addr);
                            news.mappings.push(NewMapping {
                                pid: found.pid,
                                range,
                                path,
                                offset: found.pgoff,
                                inode: found.ino(),
                                t_ns,
                            });
                        }
                    }
                    Ok(Record::Lost(_) | Record::LostSamples(_)) => news.lost = true,
                    Ok(_) | Err(_) => {}
                }
            }
        }
        news
    }
}

/// The name without the zeroes that fill it up to a multiple of eight.
fn path_of(name: &[u8]) -> PathBuf {
    let end = memchr::memchr(0, name).unwrap_or(name.len());
    PathBuf::from(OsStr::from_bytes(&name[..end]))
}

/// When a record was made: with the settings above, its last word.
fn time_of(record: &[u8]) -> u64 {
    record.last_chunk().map_or(0, |word| u64::from_ne_bytes(*word))
}

/// Numbers of the processors that run, as `/sys/devices/system/cpu/online` lists them.
fn online_processors() -> Vec<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let found = parse_list(&text);
    if found.is_empty() { vec![0] } else { found }
}

/// `0-3,8,10-11`.
fn parse_list(text: &str) -> Vec<usize> {
    // No machine has more; a damaged list must not make us open a million events.
    const MOST: usize = 8192;
    text.trim()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?.min(MOST))
        })
        .flatten()
        .take(MOST)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_is_known_for_a_moment_only() {
        let mut strangers = Strangers::default();
        let begin = 7 * STRANGE_FOR_NS;
        assert!(!strangers.has(5, begin));
        strangers.add(5, begin);
        strangers.add(6, begin + STRANGE_FOR_NS / 2);
        assert!(strangers.has(5, begin - 1) && strangers.has(6, begin + STRANGE_FOR_NS - 1));
        assert!(!strangers.has(5, begin + STRANGE_FOR_NS));
        strangers.add(8, begin + STRANGE_FOR_NS);
        assert!(strangers.has(8, begin + STRANGE_FOR_NS) && !strangers.has(6, begin + STRANGE_FOR_NS));
    }

    #[test]
    fn processor_lists_are_read_with_their_gaps() {
        assert_eq!(parse_list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_list("0"), [0]);
        assert!(parse_list("").is_empty());
        assert!(parse_list("5-99999999999999999999").is_empty());
        assert!(parse_list("0-4000000000").len() <= 8192);
    }
}
