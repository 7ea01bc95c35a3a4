//! Putting the probes of the data path in place: by library, by process, by object.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::point::{self, Point, Turn};
use super::{Costs, Source, own_sites};
use crate::attach::{
    AttachError, Circumstances, Link, LoadError, Pmu, Programs, drop_links, verdict_of, verdict_on_loading,
};
use crate::collect::clock::now_ns;
use crate::contexts::{self, Budget, ContextsError};
use crate::entry::{Class, Kernel};
use crate::providers;
use crate::sample::{Probe, Verdict};
use crate::tap::Tap;
use crate::target::{MappedFile, identity};

/// Attaching waits in the kernel: so many at a time.
const AT_ONCE: usize = 16;
/// Larger files are no providers.
const LARGEST_FILE: u64 = 64 << 20;
/// Sets of functions of one process that are looked at: mlx5, the richest, has some dozens.
const MOST_SEEN: usize = 1024;

/// Puts probes on the data path, each once per file, for all processes that map it. Dropping it detaches them.
pub struct Attacher {
    kernel: Kernel,
    pmu: Result<Pmu, AttachError>,
    programs: Arc<Programs>,
    /// Those that were needed so far, or why they cannot be had.
    loaded: BTreeMap<&'static str, Result<OwnedFd, LoadError>>,
    circumstances: Circumstances,
    links: Vec<(Turn, Link)>,
    files: HashMap<(u64, u64), HeldFile>,
    /// What the objects of a process point to.
    seen: HashMap<u32, HashSet<Vec<u64>>>,
    /// Processes whose tap was asked to call its sites; `None` where it is not to be asked.
    taps: Option<HashMap<u32, Tap>>,
    costs: Costs,
}

/// Keeps the file's inode from being used again while its number marks it as attached.
struct HeldFile {
    file: File,
    points: BTreeSet<(&'static str, u64)>,
    inspected: bool,
}

impl Attacher {
    /// Nothing attached yet. With `fire_taps` the tap of a process that runs under it is asked to call its sites, which
    /// costs that process what the tap by itself does not: its own counts are exact without.
    /// What hits cost is told in `costs`.
    pub fn new(programs: Arc<Programs>, fire_taps: bool, costs: Costs) -> Self {
        Self {
            kernel: Kernel::running(),
            pmu: Pmu::read("uprobe"),
            programs,
            loaded: BTreeMap::new(),
            circumstances: Circumstances::read(),
            links: Vec::new(),
            files: HashMap::new(),
            seen: HashMap::new(),
            taps: fire_taps.then(HashMap::new),
            costs,
        }
    }

    /// Attaches to what a library's file tells: the sites of one of ours, the functions of a provider. Other files are
    /// left alone.
    pub fn library(&mut self, file: &File, shown: &Path) -> Vec<Probe> {
        let own = own_sites::is_own(shown);
        if !own && !is_provider(shown) {
            return Vec::new();
        }
        let Ok(id) = identity(file) else { return Vec::new() };
        if self.files.get(&id).is_some_and(|held| held.inspected) {
            return Vec::new();
        }
        let points = if own {
            read(file).map(|bytes| own_sites::find(shown, &bytes, &self.kernel)).unwrap_or_default()
        } else {
            from_file(file, &self.kernel)
        };
        let probes = self.attach(id, file, shown, points);
        if let Some(held) = self.files.get_mut(&id) {
            held.inspected = true;
        }
        probes
    }

    /// Attaches to the functions that the contexts and objects of a running process go through.
    ///
    /// # Errors
    /// [`ContextsError`] when the process is gone or may not be looked into.
    pub fn process(&mut self, pid: u32) -> Result<Vec<Probe>, ContextsError> {
        self.ask_tap(pid);
        let found = contexts::find(pid, None, &Budget::default())?;
        Ok(self.places(contexts::places(&found, &self.kernel)))
    }

    /// Attaches to the functions that an object of a process goes through, and its context: what was there when the
    /// process was looked at may have changed since.
    pub fn object(&mut self, pid: u32, object: contexts::ObjectAt) -> Vec<Probe> {
        self.ask_tap(pid);
        let Ok(words) = contexts::function_words(pid, object) else { return Vec::new() };
        // A program makes thousands of objects, and all of a kind go through the same functions.
        let seen = self.seen.entry(pid).or_default();
        if seen.len() >= MOST_SEEN || !seen.insert(words) {
            return Vec::new();
        }
        let Ok(places) = contexts::places_of(pid, object, &self.kernel) else { return Vec::new() };
        self.places(places)
    }

    /// A process is no more: another may get its number.
    pub fn forget(&mut self, pid: u32) {
        self.seen.remove(&pid);
        if let Some(taps) = &mut self.taps {
            taps.remove(&pid);
        }
    }

    fn ask_tap(&mut self, pid: u32) {
        let Some(taps) = &mut self.taps else { return };
        if let Entry::Vacant(place) = taps.entry(pid)
            && let Ok(Some(tap)) = Tap::of(pid)
        {
            tap.ask(1);
            place.insert(tap);
        }
    }

    fn places(&mut self, places: Vec<(contexts::Site, MappedFile)>) -> Vec<Probe> {
        let mut by_file: HashMap<(u64, u64), (MappedFile, Vec<Point>)> = HashMap::new();
        let mut probes = Vec::new();
        for (site, mapped) in places {
            if own_sites::is_own(&mapped.path) {
                if let Ok(file) = mapped.open() {
                    probes.extend(self.library(&file, &mapped.path));
                }
                continue;
            }
            let Some(id) = site.file else { continue };
            if let (Some(delta), Some(class)) = (site.probe_delta, site.class) {
                let points = point::function(site.role, site.file_offset, delta, class);
                by_file.entry(id).or_insert_with(|| (mapped, Vec::new())).1.extend(points);
            } else {
                probes.push(Probe {
                    name: format!("data-path:{}", site.role.name()),
                    place: format!("{}+{:#x}", site.path.display(), site.file_offset),
                    call: None,
                    t_ns: now_ns(),
                    late_ns: None,
                    verdict: Verdict::NotHere { why: site.reason },
                });
            }
        }
        for (id, (mapped, points)) in by_file {
            if let Ok(file) = mapped.open() {
                probes.extend(self.attach(id, &file, &mapped.path, points));
            }
        }
        probes
    }

    /// Attaches those points of a file that are not yet.
    fn attach(&mut self, id: (u64, u64), file: &File, shown: &Path, mut points: Vec<Point>) -> Vec<Probe> {
        let held = match self.files.entry(id) {
            Entry::Occupied(held) => held.into_mut(),
            Entry::Vacant(place) => {
                let Ok(file) = file.try_clone() else { return Vec::new() };
                place.insert(HeldFile { file, points: BTreeSet::new(), inspected: false })
            }
        };
        points.retain(|point| held.points.insert((point.program, point.offset)));
        points.sort();
        // The file itself, whatever its path leads to by now.
        let path = format!("/proc/self/fd/{}", held.file.as_raw_fd());
        for point in &points {
            let load = || self.programs.load_uprobe(point.program);
            self.loaded.entry(point.program).or_insert_with(load);
        }
        let mut steady = BTreeSet::new();
        let mut probes = Vec::with_capacity(points.len());
        let mut unleft = HashSet::new();
        for turn in [Turn::First, Turn::Then, Turn::Last] {
            let now: Vec<Point> = points
                .iter()
                .filter(|point| point.turn == turn && !unleft.contains(&(point.name, point.offset)))
                .copied()
                .collect();
            for (point, outcome) in self.attach_at_once(&path, &now) {
                if outcome.is_err() {
                    // What cannot be left is not entered.
                    unleft.insert((point.name, point.offset));
                }
                let verdict = match outcome {
                    Ok(link) => {
                        self.links.push((turn, link));
                        if let Some((source, class)) = steadily_hit(&point) {
                            self.costs.note(source, class);
                            steady.insert(class);
                        }
                        Verdict::Live
                    }
                    Err(Failure::Attach(error)) => verdict_of(&error, &self.circumstances),
                    Err(Failure::Load(verdict)) => verdict,
                };
                probes.push(told(&point, shown, verdict));
            }
        }
        self.measure(steady);
        probes
    }

    /// Has what hits of these classes cost measured, by a thread that nobody waits for: putting a probe in place and
    /// taking it away again takes longer than attaching may.
    fn measure(&mut self, classes: BTreeSet<Class>) {
        let Ok(pmu) = self.pmu else { return };
        // The smallest ones there are.
        for name in ["req_notify_enter", "wr_complete_leave"] {
            let load = || self.programs.load_uprobe(name);
            self.loaded.entry(name).or_insert_with(load);
        }
        let program = |name| self.loaded.get(name)?.as_ref().ok()?.try_clone().ok();
        let (Some(entry), leave) = (program("req_notify_enter"), program("wr_complete_leave")) else {
            return;
        };
        let wanted: Vec<Class> = classes.into_iter().filter(|class| self.costs.lacks(*class)).collect();
        if wanted.is_empty() {
            return;
        }
        let costs = self.costs.clone();
        let measure = move || {
            for class in wanted {
                // Sites of ours have no return probes, and only they are optimised.
                let leave = leave.as_ref().filter(|_| class != Class::Optimised).map(AsFd::as_fd);
                costs.measure(pmu, class, entry.as_fd(), leave);
            }
        };
        // Without it the cost stays unknown.
        let _ = thread::Builder::new().name("hit-cost".to_owned()).spawn(measure);
    }

    fn attach_at_once(&self, path: &str, points: &[Point]) -> Vec<(Point, Result<Link, Failure>)> {
        let results = Mutex::new(Vec::with_capacity(points.len()));
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..AT_ONCE.min(points.len()) {
                scope.spawn(|| {
                    while let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let outcome = self.attach_one(path, point);
                        results.lock().unwrap_or_else(PoisonError::into_inner).push((*point, outcome));
                    }
                });
            }
        });
        results.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn attach_one(&self, path: &str, point: &Point) -> Result<Link, Failure> {
        let program = match self.loaded.get(point.program) {
            Some(Ok(program)) => program,
            Some(Err(error)) => return Err(Failure::Load(verdict_on_loading(error))),
            None => {
                return Err(Failure::Load(Verdict::Broken {
                    report: format!("{} is not loaded", point.program),
                }));
            }
        };
        let attached = match &self.pmu {
            Ok(pmu) => pmu.attach_file(program.as_fd(), path, point.offset, point.returns, point.cookie),
            Err(error) => {
                let code = error.source.raw_os_error().unwrap_or(libc::ENODEV);
                Err(AttachError { step: error.step, source: std::io::Error::from_raw_os_error(code) })
            }
        };
        attached.map_err(Failure::Attach)
    }

    /// Detaches everything: what was attached last goes first, so that no call is entered that is not left.
    pub fn detach(self) {
        self.taps.iter().flat_map(HashMap::values).for_each(|tap| tap.ask(0));
        let mut links = self.links;
        for turn in [Turn::Last, Turn::Then, Turn::First] {
            let now = links.extract_if(.., |(of, _)| *of == turn).map(|(_, link)| link).collect();
            drop_links(now);
        }
    }
}

/// Who counts at a point and the class of its instruction, where a program that communicates passes it all the time.
fn steadily_hit(point: &Point) -> Option<(Source, Class)> {
    match point.program {
        "site_posted" | "site_polled" => Some((Source::from_wire(point.cookie as u16)?, point.class?)),
        "post_send_enter" | "poll_enter" | "wr_complete_enter" => Some((Source::Function, point.class?)),
        _ => None,
    }
}

/// Why a probe is not in place.
enum Failure {
    Load(Verdict),
    Attach(AttachError),
}

/// What is told of a probe.
fn told(point: &Point, shown: &Path, verdict: Verdict) -> Probe {
    let how = match point.class {
        Some(Class::Optimised) => "optimised",
        Some(Class::Emulated) => "emulated",
        Some(Class::SingleStepped) => "single-stepped",
        None => "return",
    };
    Probe {
        name: format!("data-path:{}", point.name.replace(' ', ":")),
        place: format!("{}+{:#x} ({how})", shown.display(), point.offset),
        call: None,
        t_ns: now_ns(),
        late_ns: None,
        verdict,
    }
}

/// True for the provider library of a device that is here, by its name: `librxe-rdmav34.so`, `libmlx5.so.1.24.44.0`. Others
/// are left alone until an object leads to them: perftest alone loads those of two vendors, and detaching takes its time.
fn is_provider(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    provider_name(name).is_some_and(|name| drivers().iter().any(|driver| belong_together(name, driver)))
}

/// `rxe` of `librxe-rdmav34.so`, `mlx5` of `libmlx5.so.1`.
fn provider_name(file_name: &str) -> Option<&str> {
    let rest = file_name.strip_prefix("lib")?;
    let end = rest.find("-rdmav").or_else(|| rest.find(".so"))?;
    rest.get(..end).filter(|name| !name.is_empty() && *name != "ibverbs")
}

/// Whether a provider is that of a kernel driver: `mlx5` of `mlx5_core`.
fn belong_together(provider: &str, driver: &str) -> bool {
    driver == provider || driver.strip_prefix(provider).is_some_and(|rest| rest.starts_with('_'))
}

/// Kernel drivers of the RDMA devices here. Those in software have no device below them.
fn drivers() -> Vec<String> {
    let devices = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let mut drivers = Vec::new();
    for device in devices {
        match std::fs::read_link(device.path().join("device/driver")) {
            Ok(driver) => {
                drivers.extend(driver.file_name().and_then(|name| name.to_str()).map(str::to_owned));
            }
            Err(_) => {
                let is_loaded = |(_, module): &(&str, &str)| Path::new("/sys/module").join(module).exists();
                let software = [("rxe", "rdma_rxe"), ("siw", "siw")].into_iter().filter(is_loaded);
                drivers.extend(software.map(|(provider, _)| provider.to_owned()));
            }
        }
    }
    drivers
}

fn from_file(file: &File, kernel: &Kernel) -> Vec<Point> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let Ok(provider) = providers::inspect(Path::new(&path), kernel) else { return Vec::new() };
    let functions = provider.functions.iter();
    functions
        .filter_map(|f| Some(point::function(f.role, f.file_offset?, f.probe_delta?, f.class?)))
        .flatten()
        .collect()
}

fn read(file: &File) -> Option<Vec<u8>> {
    let length = file.metadata().ok()?.len();
    let length = usize::try_from(length).ok().filter(|_| length <= LARGEST_FILE)?;
    let mut bytes = vec![0; length];
    // From the start, wherever another reader of the same open file has left it.
    file.read_exact_at(&mut bytes, 0).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_is_told_by_its_file_and_its_driver() {
        assert_eq!(provider_name("librxe-rdmav34.so"), Some("rxe"));
        assert_eq!(provider_name("libmlx5.so.1.24.44.0"), Some("mlx5"));
        assert_eq!(provider_name("libibverbs.so.1"), None);
        assert_eq!(provider_name("perftest"), None);
        assert!(belong_together("mlx5", "mlx5_core") && belong_together("bnxt_re", "bnxt_re"));
        assert!(!belong_together("mlx4", "mlx5_core") && !belong_together("m", "mlx5_core"));
    }
}
