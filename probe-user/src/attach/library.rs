//! Probes in libraries: every hook a library exports, once per file, for all processes that map it.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use aya::maps::{Array, MapData};
use probe_common::wire::Site;

use super::perf::{Link, Pmu};
use super::program::LibraryPrograms;
use super::verdict::Circumstances;
use super::{AttachError, Programs, multi, verdict_of};
use crate::collect::clock::now_ns;
use crate::collect::decode;
use crate::collect::wire::PlainSite;
use crate::library::Image;
use crate::plan::{self, Exit, LibraryPoint};
use crate::sample::{Probe, Verdict};

/// Attaching costs about 8 ms, detaching 124 ms, spent waiting in the kernel: so many wait at a time.
const AT_ONCE: usize = 24;

/// What came of attaching to one library.
#[derive(Debug, Clone, PartialEq)]
pub struct Attachment {
    /// The verdict on each of its probes; their `t_ns` is when it was reached.
    pub probes: Vec<Probe>,
}

/// What came of each place: its links and verdict, or why it has none.
type Outcomes = Vec<(LibraryPoint, Result<(Vec<Link>, Verdict), AttachError>)>;

/// All probes in libraries.
pub struct LibraryProbes {
    uprobe: Result<Pmu, AttachError>,
    sites: Array<MapData, PlainSite>,
    next_site: u16,
    links: Vec<Link>,
    circumstances: Circumstances,
    /// Keeps the file's inode from being used again while its number marks it as attached.
    held: HashMap<(u64, u64), File>,
}

impl LibraryProbes {
    /// Nothing attached yet.
    pub fn new(sites: Array<MapData, PlainSite>) -> Self {
        Self {
            uprobe: Pmu::read("uprobe"),
            sites,
            // Site 0 is the one nothing is known of.
            next_site: 1,
            links: Vec::new(),
            circumstances: Circumstances::read(),
            held: HashMap::new(),
        }
    }

    /// True when the file with this device and inode number has its probes.
    pub fn has(&self, id: (u64, u64)) -> bool {
        self.held.contains_key(&id)
    }

    /// Attaches every hook the library exports. `shown` is the path a person knows it by.
    pub fn attach(
        &mut self,
        programs: &Programs,
        id: (u64, u64),
        file: File,
        shown: &Path,
        image: &Image,
    ) -> Attachment {
        let points = plan::library(image);
        let numbered: Vec<_> = points.iter().map(|point| (point.clone(), self.site(point, image))).collect();
        // The file itself, whatever its path leads to by now.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        self.held.insert(id, file);
        let result = match self.attach_all(programs, &path, &numbered) {
            Some(links) => {
                self.links.extend(links);
                numbered.into_iter().map(|(point, _)| (point, Ok((Vec::new(), Verdict::Live)))).collect()
            }
            None => self.attach_each(programs, &path, &numbered),
        };
        Attachment { probes: self.verdicts(shown, result) }
    }

    /// Attaches with one link for all entries and one for each kind of return. `None` where this kernel, or one of the
    /// places, does not allow it.
    fn attach_all(
        &self,
        programs: &Programs,
        path: &str,
        points: &[(LibraryPoint, u16)],
    ) -> Option<Vec<Link>> {
        let LibraryPrograms::ManyAtOnce(set) = &programs.library else { return None };
        let (mut entries, mut returns, mut instructions) = (Vec::new(), Vec::new(), Vec::new());
        for (point, site) in points {
            let cookie = point.told(*site).cookie();
            entries.push((point.file_offset, cookie));
            match &point.exit {
                Exit::ReturnAddress => returns.push((point.file_offset, cookie)),
                Exit::Instructions(places) => {
                    instructions.extend(places.iter().map(|place| (*place, cookie)));
                }
            }
        }
        // The returns first: an entry whose return cannot come would be remembered in vain.
        [
            (&set.pair.leave, returns, true),
            (&set.exit, instructions, false),
            (&set.pair.enter, entries, false),
        ]
        .into_iter()
        .filter(|(_, places, _)| !places.is_empty())
        .map(|(program, places, returns)| multi::attach_file(program.as_fd(), path, &places, returns).ok())
        .collect()
    }

    /// Attaches place by place.
    fn attach_each(&self, programs: &Programs, path: &str, numbered: &[(LibraryPoint, u16)]) -> Outcomes {
        let results = Mutex::new(Vec::with_capacity(numbered.len()));
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..AT_ONCE.min(numbered.len()) {
                scope.spawn(|| {
                    while let Some((point, site)) = numbered.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let outcome = self.attach_point(programs, path, point, *site);
                        results.lock().unwrap_or_else(PoisonError::into_inner).push((point.clone(), outcome));
                    }
                });
            }
        });
        results.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn verdicts(&mut self, shown: &Path, results: Outcomes) -> Vec<Probe> {
        let mut probes = Vec::with_capacity(results.len());
        for (point, outcome) in results {
            let verdict = match outcome {
                Ok((links, verdict)) => {
                    self.links.extend(links);
                    verdict
                }
                Err(error) => verdict_of(&error, &self.circumstances),
            };
            probes.push(Probe {
                name: point.hook.symbol.to_owned(),
                place: format!("{}+{:#x}", shown.display(), point.file_offset),
                call: Some(decode::call(point.hook.call)),
                t_ns: now_ns(),
                late_ns: None,
                verdict,
            });
        }
        probes.sort_by(|a, b| a.name.cmp(&b.name));
        probes
    }

    fn attach_point(
        &self,
        programs: &Programs,
        path: &str,
        point: &LibraryPoint,
        site: u16,
    ) -> Result<(Vec<Link>, Verdict), AttachError> {
        let mut told = point.told(site);
        let set = programs.library.set();
        let attach =
            |program: BorrowedFd<'_>, offset, returns, cookie| match (&programs.library, &self.uprobe) {
                (LibraryPrograms::ManyAtOnce(_), _) => {
                    multi::attach_file(program, path, &[(offset, cookie)], returns)
                }
                (LibraryPrograms::OneByOne(_), Ok(pmu)) => {
                    pmu.attach_file(program, path, offset, returns, cookie)
                }
                (LibraryPrograms::OneByOne(_), Err(error)) => {
                    Err(AttachError { step: error.step, source: copy_of(&error.source) })
                }
            };
        // The return first: an entry whose return cannot come would be remembered in vain.
        let returned: Result<Vec<_>, _> = match &point.exit {
            Exit::ReturnAddress => {
                attach(set.pair.leave.as_fd(), point.file_offset, true, told.cookie()).map(|link| vec![link])
            }
            Exit::Instructions(places) => {
                places.iter().map(|place| attach(set.exit.as_fd(), *place, false, told.cookie())).collect()
            }
        };
        told.entry_only = returned.is_err();
        let entered = attach(set.pair.enter.as_fd(), point.file_offset, false, told.cookie())?;
        Ok(match returned {
            Ok(mut links) => {
                links.push(entered);
                (links, Verdict::Live)
            }
            Err(error) => (
                vec![entered],
                Verdict::Broken { report: format!("entries are counted, but returns are not seen: {error}") },
            ),
        })
    }

    fn site(&mut self, point: &LibraryPoint, image: &Image) -> u16 {
        let number = self.next_site;
        let site = Site { entry_vaddr: point.vaddr, errno_slot_vaddr: image.errno_slot_vaddr.unwrap_or(0) };
        if u32::from(number) >= self.sites.len() || self.sites.set(number.into(), PlainSite(site), 0).is_err()
        {
            // Without a site a failure's errno is not seen; everything else works.
            return 0;
        }
        self.next_site += 1;
        number
    }

    /// Detaches everything, many at a time.
    pub fn detach(self) {
        drop_links(self.links);
    }
}

/// Detaches many at a time: one after the other would hold up the profiler's end for seconds.
pub fn drop_links(links: Vec<Link>) {
    let threads = links.len().min(4 * AT_ONCE);
    let links = Mutex::new(links);
    let next = || links.lock().unwrap_or_else(PoisonError::into_inner).pop();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(link) = next() {
                    drop(link);
                }
            });
        }
    });
}

fn copy_of(error: &std::io::Error) -> std::io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), std::io::Error::from_raw_os_error)
}
