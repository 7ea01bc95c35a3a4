//! The thread that finds verbs libraries in processes and puts probes into them, so that the collection of events never
//! waits for a file or for the kernel.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use aya::maps::{Array, MapData};
use object::read::ReadCache;

use super::clock::now_ns;
use super::mappings::Mappings;
use super::wire::PlainSite;
use crate::attach::{LibraryProbes, Programs};
use crate::contexts::{ContextsError, ObjectAt};
use crate::data_path::{Attacher, Bound, OwnTime};
use crate::hooks::{PREFIXES, is_hooked};
use crate::library::Image;
use crate::sample::{Probe, Record, Verdict};
use crate::target::{MappedFile, identity, mapped_files};

/// How often processes are looked at where new mappings cannot be watched.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Files known to hold no verbs; beyond this many they are looked at again.
const MAX_DULL: usize = 100_000;

/// What news of processes that are not ours may take: on a host where they come and go by the hundreds a second, each rings
/// several times. So long a wait then puts many into one look, and is less than attaching takes.
const OWN_TIME: Bound =
    Bound { one_in: 100, saved: Duration::from_millis(20), longest: Duration::from_millis(10) };

/// What the librarian is asked.
#[derive(Debug)]
enum Request {
    /// Look at the libraries of a process, and keep an eye on it; since when it has run unwatched, if we should have been first.
    Watch(u32, Option<u64>),
    /// Keep an eye on a process that maps, so far, what a watched one does.
    Note(u32),
    /// This process is no more.
    Forget(u32),
    /// Look at a file that a process will probably load; answer when done.
    Prepare(Vec<PathBuf>, Sender<()>),
    /// Look at files that a process maps; answer when done.
    PrepareMapped(Vec<MappedFile>, Sender<()>),
    /// Look for the data path of a process that runs already.
    Search(u32),
    /// A process has made an object.
    Object(u32, ObjectAt),
    /// Detach and end.
    End,
}

/// The librarian, as the session sees it.
#[derive(Debug)]
pub struct Librarian {
    requests: Sender<Request>,
    bell: UnixStream,
    mappings: Option<Mappings>,
    answers: Receiver<Record>,
    thread: JoinHandle<()>,
}

impl Librarian {
    /// Starts the thread. Without `mappings`, processes are looked at now and then.
    ///
    /// # Errors
    /// When the thread cannot be made.
    pub fn start(
        programs: Arc<Programs>,
        sites: Array<MapData, PlainSite>,
        data_path: Option<Attacher>,
        whole_host: bool,
        mappings: Option<Mappings>,
    ) -> io::Result<Self> {
        let (requests, inbox) = mpsc::channel();
        let (outbox, answers) = mpsc::channel();
        let (bell, heard) = UnixStream::pair()?;
        heard.set_nonblocking(true)?;
        bell.set_nonblocking(true)?;
        if let Some(mappings) = &mappings {
            mappings.ring(bell.try_clone()?);
        }
        let mut worker = Worker {
            programs,
            probes: LibraryProbes::new(sites),
            data_path,
            mappings: mappings.clone(),
            whole_host,
            watched: HashSet::new(),
            dull: HashSet::new(),
            outbox,
        };
        let thread = thread::Builder::new().name("librarian".to_owned()).spawn(move || {
            worker.run(&inbox, heard);
            if let Some(data_path) = worker.data_path {
                data_path.detach();
            }
            worker.probes.detach();
        })?;
        Ok(Self { requests, bell, mappings, answers, thread })
    }

    /// Looks at a process now, and whenever it maps more code.
    pub fn watch(&mut self, pid: u32) {
        self.heed(pid);
        self.ask(Request::Watch(pid, None));
    }

    /// The same for one that has become another program at that time: what it calls before the probes are in place is missed.
    pub fn watch_anew(&mut self, pid: u32, since_ns: u64) {
        self.heed(pid);
        self.ask(Request::Watch(pid, Some(since_ns)));
    }

    /// Looks at a process only when it maps more code: what a forked child has so far, its parent has too.
    pub fn note(&mut self, pid: u32) {
        self.heed(pid);
        self.ask(Request::Note(pid));
    }

    /// A process is no more.
    pub fn forget(&mut self, pid: u32) {
        if let Some(mappings) = &self.mappings {
            mappings.forget(pid);
        }
        self.ask(Request::Forget(pid));
    }

    /// Puts probes into files a command will load, and waits until they are in place.
    pub fn prepare(&mut self, files: Vec<PathBuf>) {
        let (done, wait) = mpsc::channel();
        self.ask(Request::Prepare(files, done));
        // An error means that the thread is gone; the command then runs unobserved, which the verdicts tell.
        let _ = wait.recv();
    }

    /// Puts probes into files a process maps, and waits until they are in place.
    pub fn prepare_mapped(&mut self, files: Vec<MappedFile>) {
        let (done, wait) = mpsc::channel();
        self.ask(Request::PrepareMapped(files, done));
        let _ = wait.recv();
    }

    /// Looks for the data path of a process that runs already.
    pub fn search(&mut self, pid: u32) {
        self.ask(Request::Search(pid));
    }

    /// A process has made an object.
    pub fn object(&mut self, pid: u32, object: ObjectAt) {
        self.ask(Request::Object(pid, object));
    }

    /// Verdicts reached since the last call.
    pub fn answers(&self) -> impl Iterator<Item = Record> + '_ {
        self.answers.try_iter()
    }

    /// Detaches everything; returns what was still to be told.
    pub fn end(mut self) -> Vec<Record> {
        self.ask(Request::End);
        let _ = self.thread.join();
        self.answers.try_iter().collect()
    }

    /// From now on, not only once the thread has time: its mappings are of interest.
    fn heed(&self, pid: u32) {
        if let Some(mappings) = &self.mappings {
            mappings.watch(pid);
        }
    }

    fn ask(&mut self, request: Request) {
        let _ = self.requests.send(request);
        // A full pipe rings already.
        let _ = self.bell.write(&[1]);
    }
}

struct Worker {
    programs: Arc<Programs>,
    probes: LibraryProbes,
    data_path: Option<Attacher>,
    mappings: Option<Mappings>,
    whole_host: bool,
    watched: HashSet<u32>,
    /// Files without verbs: device, inode, time of change.
    dull: HashSet<(u64, u64, i64)>,
    outbox: Sender<Record>,
}

impl Worker {
    fn run(&mut self, inbox: &Receiver<Request>, mut bell: UnixStream) {
        if self.whole_host {
            self.look_at_everyone();
        }
        let watched = self.mappings.as_ref().map(Mappings::descriptors);
        let mut own_time = OwnTime::new(OWN_TIME);
        loop {
            wait(&bell, watched.as_deref());
            let mut is_asked = false;
            // Empties the bell before the requests are taken: what is sent afterwards rings again.
            let mut rung = [0; 256];
            while matches!(bell.read(&mut rung), Ok(n) if n == rung.len()) {}
            for request in inbox.try_iter() {
                is_asked = true;
                match request {
                    Request::Watch(pid, since_ns) => {
                        self.watched.insert(pid);
                        self.look_at(pid, since_ns);
                    }
                    Request::Note(pid) => {
                        self.watched.insert(pid);
                    }
                    Request::Forget(pid) => {
                        self.watched.remove(&pid);
                        if let Some(data_path) = &mut self.data_path {
                            data_path.forget(pid);
                        }
                    }
                    Request::Search(pid) => self.search(pid),
                    Request::Object(pid, object) => {
                        if let Some(data_path) = &mut self.data_path {
                            let probes = data_path.object(pid, object);
                            self.tell(probes);
                        }
                    }
                    Request::Prepare(files, done) => {
                        for path in files {
                            if let Ok(file) = File::open(&path) {
                                self.consider(file, &path, None);
                            }
                        }
                        let _ = done.send(());
                    }
                    Request::PrepareMapped(files, done) => {
                        for mapped in files {
                            self.consider_mapped(&mapped, None);
                        }
                        let _ = done.send(());
                    }
                    Request::End => return,
                }
            }
            let has_news = self.look_at_news();
            if is_asked || has_news {
                own_time.leave_out();
                continue;
            }
            let pause = own_time.sleep(Duration::ZERO);
            if !pause.is_zero() {
                // Whoever asks is answered at once.
                wait_for(&mut [poll_entry(bell.as_raw_fd())], pause.as_millis() as i32 + 1);
            }
        }
    }

    /// Returns whether there was anything of interest.
    fn look_at_news(&mut self) -> bool {
        let Some(mappings) = &self.mappings else {
            self.look_again();
            return true;
        };
        let news = mappings.take();
        let is_of_interest = news.lost || !news.mappings.is_empty();
        if news.lost {
            self.look_again();
        }
        for new in news.mappings {
            if !self.whole_host {
                self.watched.insert(new.pid);
            }
            self.consider_mapped(&new.mapped(), Some(new.t_ns));
        }
        is_of_interest
    }

    fn look_again(&mut self) {
        if self.whole_host {
            self.look_at_everyone();
        } else {
            for pid in self.watched.clone() {
                self.look_at(pid, None);
            }
        }
    }

    fn look_at_everyone(&mut self) {
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                self.look_at(pid, None);
            }
        }
    }

    fn look_at(&mut self, pid: u32, since_ns: Option<u64>) {
        // A process that is gone, or a kernel thread, maps nothing.
        let mapped = mapped_files(pid).unwrap_or_default();
        if let Some(data_path) = self.data_path.as_ref().filter(|_| self.watched.contains(&pid)) {
            data_path.expect(pid, &mapped);
        }
        for mapped in mapped {
            self.consider_mapped(&mapped, since_ns);
        }
    }

    fn consider_mapped(&mut self, mapped: &MappedFile, mapped_at: Option<u64>) {
        if let Ok(file) = mapped.open() {
            self.consider(file, &mapped.path, mapped_at);
        }
    }

    /// Puts probes on the data path of a process that runs already.
    fn search(&mut self, pid: u32) {
        let Some(data_path) = &mut self.data_path else { return };
        let probes = data_path.process(pid).unwrap_or_else(|error| {
            let verdict = match &error {
                ContextsError::Denied(_) => Verdict::Denied { missing: error.to_string() },
                _ => Verdict::NotHere { why: error.to_string() },
            };
            let (name, place) = ("data-path:objects".to_owned(), String::new());
            vec![Probe { name, place, call: None, t_ns: now_ns(), late_ns: None, verdict }]
        });
        self.tell(probes);
    }

    fn tell(&self, probes: Vec<Probe>) {
        for probe in probes {
            let _ = self.outbox.send(Record::Probe(probe));
        }
    }

    /// Puts probes into a file, if it holds verbs and has none yet.
    fn consider(&mut self, file: File, shown: &Path, mapped_at: Option<u64>) {
        let Ok(id) = identity(&file) else { return };
        let changed = file.metadata().map(|meta| std::os::unix::fs::MetadataExt::ctime(&meta)).unwrap_or(0);
        let dull = (id.0, id.1, changed);
        if self.probes.has(id) || self.dull.contains(&dull) {
            return;
        }
        if let Some(data_path) = &mut self.data_path {
            for probe in data_path.library(&file, shown) {
                let _ = self.outbox.send(Record::Probe(with_delay(probe, mapped_at)));
            }
        }
        let image = Image::parse(&ReadCache::new(&file), &PREFIXES, &is_hooked).unwrap_or_default();
        if image.exports.is_empty() {
            if self.dull.len() >= MAX_DULL {
                self.dull.clear();
            }
            self.dull.insert(dull);
            return;
        }
        let attached = self.probes.attach(&self.programs, id, file, shown, &image);
        for probe in attached.probes {
            let _ = self.outbox.send(Record::Probe(with_delay(probe, mapped_at)));
        }
    }
}

/// Waits for a request, or for the news that one of these descriptors tells of.
fn wait(bell: &UnixStream, watched: Option<&[RawFd]>) {
    let mut fds = vec![poll_entry(bell.as_raw_fd())];
    let timeout = match watched {
        Some(watched) => {
            fds.extend(watched.iter().copied().map(poll_entry));
            -1
        }
        None => LOOK_EVERY.as_millis() as i32,
    };
    wait_for(&mut fds, timeout);
}

/// Waits for one of these, at most so many milliseconds; for ever where less than none.
fn wait_for(fds: &mut [libc::pollfd], timeout: i32) {
    // SAFETY: the list is as long as said; whoever calls holds what its descriptors belong to.
    unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
}

/// Says how long a library was in use before it was watched: what it did in between is not in the counts.
fn with_delay(probe: Probe, mapped_at: Option<u64>) -> Probe {
    Probe { late_ns: mapped_at.map(|at| probe.t_ns.saturating_sub(at)), ..probe }
}

const fn poll_entry(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_attachment_says_how_late() {
        let probe = Probe {
            name: "ibv_reg_mr_iova2".to_owned(),
            place: "/lib/x+0x10".to_owned(),
            call: None,
            t_ns: 12_345_679,
            late_ns: None,
            verdict: Verdict::Live,
        };
        assert_eq!(with_delay(probe.clone(), None).late_ns, None);
        assert_eq!(with_delay(probe, Some(1)).late_ns, Some(12_345_678));
    }
}
