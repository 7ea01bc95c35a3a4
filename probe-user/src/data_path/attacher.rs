//! Putting the probes of the data path in place: by library, by process, by object.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use probe_common::site::Rates;
use probe_common::wire::function;

use super::governor::{Flags, Governor};
use super::group::{Group, Placed, Way};
use super::point::{self, Point, Turn};
use super::{Costs, Recipes, Source, own_sites};
use crate::attach::{
    AttachError, Circumstances, FileEvent, FileEvents, Link, LoadError, Pmu, Programs, drop_links,
    verdict_of, verdict_on_loading,
};
use crate::collect::clock::now_ns;
use crate::contexts::{self, Budget, ContextsError};
use crate::entry::{Class, Kernel};
use crate::providers;
use crate::sample::{Probe, Verdict};
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
    /// For places that come and go one by one; `None` until there are any, and where tracefs has none.
    events: Option<Option<FileEvents>>,
    programs: Arc<Programs>,
    /// Those that were needed so far, or why they cannot be had.
    loaded: BTreeMap<&'static str, Result<Arc<OwnedFd>, LoadError>>,
    /// The same, for attaching to many places; `None` where this kernel does not.
    for_many: BTreeMap<&'static str, Option<Arc<OwnedFd>>>,
    circumstances: Circumstances,
    links: Vec<(Turn, Link)>,
    files: HashMap<(u64, u64), HeldFile>,
    /// What the objects of a process point to.
    seen: HashMap<u32, HashSet<Vec<u64>>>,
    asking: Asking,
    /// Libraries of ours that were asked for everything, by process.
    flags: HashMap<u32, Flags>,
    costs: Costs,
    recipes: Recipes,
}

/// Who asks the libraries of ours for what they are to tell.
pub enum Asking {
    /// For everything; of the tap too, where that is wanted.
    Everything {
        /// The tap of a process that runs under it is asked to call its sites, which costs that process what the tap by
        /// itself does not: its own counts are exact without.
        taps: bool,
    },
    /// For what is allowed to cost that much.
    Governed(Governor),
}

impl Asking {
    fn governor(&self) -> Option<&Governor> {
        match self {
            Self::Governed(governor) => Some(governor),
            Self::Everything { .. } => None,
        }
    }
}

/// Keeps the file's inode from being used again while its number marks it as attached.
struct HeldFile {
    file: Arc<File>,
    points: BTreeSet<(&'static str, u64)>,
    inspected: bool,
    /// Its `next_poll` is not probed: see [`point::affordable`].
    next_poll_unseen: bool,
    /// The place of what tells whose completion entry its extended polls stand at; `None` until one is probed.
    recipe: Option<u64>,
}

impl Attacher {
    /// Nothing attached yet. What hits cost is measured with the first that is, and told in `costs`.
    pub fn new(programs: Arc<Programs>, asking: Asking, costs: Costs, recipes: Recipes) -> Self {
        Self {
            kernel: Kernel::running(),
            pmu: Pmu::read("uprobe"),
            events: None,
            programs,
            loaded: BTreeMap::new(),
            for_many: BTreeMap::new(),
            circumstances: Circumstances::read(),
            links: Vec::new(),
            files: HashMap::new(),
            seen: HashMap::new(),
            asking,
            flags: HashMap::new(),
            costs,
            recipes,
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
        self.ask(pid);
        let found = contexts::find(pid, None, &Budget::default())?;
        Ok(self.places(contexts::places(&found, &self.kernel)))
    }

    /// Attaches to the functions that an object of a process goes through, and its context: what was there when the
    /// process was looked at may have changed since.
    pub fn object(&mut self, pid: u32, object: contexts::ObjectAt) -> Vec<Probe> {
        self.ask(pid);
        let Ok(words) = contexts::function_words(pid, object) else { return Vec::new() };
        // A program makes thousands of objects, and all of a kind go through the same functions.
        let seen = self.seen.entry(pid).or_default();
        if seen.len() >= MOST_SEEN || seen.contains(&words) {
            return Vec::new();
        }
        let Ok(places) = contexts::places_of(pid, object, &self.kernel) else { return Vec::new() };
        // What is gone already tells nothing of the next one with the same words.
        if !places.is_empty() {
            seen.insert(words);
        }
        self.places(places)
    }

    /// A process maps these files: where one is a library of ours, it is known before probes are put into that.
    pub fn expect(&self, pid: u32, mapped: &[MappedFile]) {
        if let Asking::Governed(governor) = &self.asking
            && mapped.iter().any(|mapped| own_sites::is_own(&mapped.path))
        {
            governor.expect(pid);
        }
    }

    /// A process is no more: another may get its number.
    pub fn forget(&mut self, pid: u32) {
        self.seen.remove(&pid);
        self.flags.remove(&pid);
        if let Asking::Governed(governor) = &self.asking {
            governor.forget(pid);
        }
    }

    fn ask(&mut self, pid: u32) {
        match &self.asking {
            Asking::Governed(governor) => governor.meet(pid),
            Asking::Everything { taps } => {
                let flags = self.flags.entry(pid).or_default();
                if flags.look(pid, *taps) {
                    flags.ask(Rates::ALL);
                }
            }
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
                place.insert(HeldFile {
                    file: Arc::new(file),
                    points: BTreeSet::new(),
                    inspected: false,
                    next_poll_unseen: false,
                    recipe: None,
                })
            }
        };
        points.retain(|point| held.points.insert((point.program, point.offset)));
        let mut probes = Vec::with_capacity(points.len());
        if matches!(self.asking, Asking::Governed(_)) {
            let dear;
            (points, dear) = point::affordable(points, held.next_poll_unseen);
            held.next_poll_unseen |= dear.iter().any(Point::is_next_poll);
            let verdict = || Verdict::NotHere { why: TOO_DEAR.to_owned() };
            probes.extend(dear.iter().map(|point| told(point, shown, verdict())));
        }
        if points.iter().any(Point::shows_entries) {
            let recipe = *held.recipe.get_or_insert_with(|| {
                providers::reads(&path_of(file)).map_or(0, |reads| self.recipes.place_of(&reads.recipe))
            });
            points.iter_mut().filter(|point| point.shows_entries()).for_each(|point| point.cookie = recipe);
        }
        points.sort();
        let file = Arc::clone(&held.file);
        self.load_beforehand(&points);
        let mut unleft = HashSet::new();
        let is_function = !own_sites::is_own(shown);
        let is_governed = is_function && self.asking.governor().is_some();
        let hold = match self.asking.governor() {
            Some(governor) if is_function => Some(governor.hold()),
            Some(governor) if !points.is_empty() => {
                governor.brace();
                None
            }
            _ => None,
        };
        for turn in [Turn::First, Turn::Then, Turn::Last] {
            let now: Vec<Point> = points
                .iter()
                .filter(|point| point.turn == turn && !unleft.contains(&(point.name, point.offset)))
                .copied()
                .collect();
            for (of_group, outcome) in self.attach_turn(&file, &now, is_governed) {
                for point in &of_group {
                    if outcome.is_err() {
                        // What cannot be left is not entered.
                        unleft.insert((point.name, point.offset));
                    } else if let Some((source, part, class)) = steadily_hit(point) {
                        self.costs.note(source, part, class);
                    }
                    probes.push(told(point, shown, self.verdict(outcome.as_ref().err())));
                }
                let Ok(placed) = outcome else { continue };
                match self.asking.governor().filter(|_| is_governed) {
                    // At once: a program that is busy pays for them already, and may be spared the rest for now.
                    Some(governor) => governor.take(placed),
                    None => self.links.extend(placed.links.into_iter().map(|link| (turn, link))),
                }
            }
        }
        drop(hold);
        if !probes.is_empty() {
            self.costs.calibrate(&self.programs);
        }
        probes
    }

    /// Loads the programs of places side by side: the kernel takes up to half a second to check one that walks chains of
    /// requests, and meanwhile nothing of a program that runs already is seen.
    fn load_beforehand(&mut self, points: &[Point]) {
        let is_new = |name: &&str| !self.for_many.contains_key(name);
        let names: BTreeSet<&'static str> = points.iter().map(|point| point.program).filter(is_new).collect();
        let programs = &self.programs;
        let load = |name| programs.load_uprobe_for_many(name)?.ok().map(Arc::new);
        let loaded: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = names.iter().map(|name| (*name, scope.spawn(move || load(name)))).collect();
            threads.into_iter().filter_map(|(name, thread)| Some((name, thread.join().ok()?))).collect()
        });
        self.for_many.extend(loaded);
    }

    fn verdict(&self, failure: Option<&Failure>) -> Verdict {
        match failure {
            None => Verdict::Live,
            Some(Failure::Attach(error)) => verdict_of(error, &self.circumstances),
            Some(Failure::Load(verdict)) => verdict.clone(),
        }
    }

    /// Attaches points of one turn: those of one program with one link where the kernel knows that, and all of them take
    /// a probe. Places that are `governed` come and go.
    fn attach_turn(
        &mut self,
        file: &Arc<File>,
        points: &[Point],
        governed: bool,
    ) -> Vec<(Vec<Point>, Result<Placed, Failure>)> {
        let mut by_program: BTreeMap<(&'static str, bool), Vec<Point>> = BTreeMap::new();
        for point in points {
            by_program.entry((point.program, point.returns)).or_default().push(*point);
        }
        let mut wanted = Vec::new();
        for ((program, _), points) in by_program {
            let load = || self.programs.load_uprobe_for_many(program)?.ok().map(Arc::new);
            let many = self.for_many.entry(program).or_insert_with(load).clone();
            if let Some(program) = many {
                let group = group(file, &points, program, Way::Many);
                wanted.push((points, Ok(group)));
                continue;
            }
            for point in points {
                let each = self.for_each(file, &point, governed);
                let group = each.map(|(program, way)| group(file, &[point], program, way));
                wanted.push((vec![point], group));
            }
        }
        let attached = attach_at_once(wanted);
        let mut outcomes = Vec::new();
        let mut again = Vec::new();
        for (points, outcome) in attached {
            if outcome.is_err() && points.len() > 1 {
                // One of them is to blame: it is found by itself.
                for point in points {
                    let each = self.for_each(file, &point, governed);
                    let group = each.map(|(program, way)| group(file, &[point], program, way));
                    again.push((vec![point], group));
                }
            } else {
                outcomes.push((points, outcome));
            }
        }
        outcomes.extend(attach_at_once(again));
        outcomes
    }

    /// The program for attaching place by place, and how.
    fn for_each(
        &mut self,
        file: &File,
        point: &Point,
        governed: bool,
    ) -> Result<(Arc<OwnedFd>, Way), Failure> {
        let load = || self.programs.load_uprobe(point.program).map(Arc::new);
        let program = match self.loaded.entry(point.program).or_insert_with(load) {
            Ok(program) => Arc::clone(program),
            Err(error) => return Err(Failure::Load(verdict_on_loading(error))),
        };
        if let Some(event) = governed.then(|| self.standing(&program, file, point)).flatten() {
            return Ok((program, Way::Standing(Arc::new(event))));
        }
        match &self.pmu {
            Ok(pmu) => Ok((program, Way::Each(*pmu))),
            Err(error) => {
                let code = error.source.raw_os_error().unwrap_or(libc::ENODEV);
                let source = std::io::Error::from_raw_os_error(code);
                Err(Failure::Attach(AttachError { step: error.step, source }))
            }
        }
    }

    /// An event for a place that comes and goes; `None` where there can be none: it is attached to by itself then.
    fn standing(&mut self, program: &OwnedFd, file: &File, point: &Point) -> Option<FileEvent> {
        let events = self.events.get_or_insert_with(|| FileEvents::new().ok()).as_ref()?;
        let path = path_of(file);
        let path = path.to_string_lossy();
        events.make(program.as_fd(), &path, point.offset, point.returns, point.cookie).ok()
    }

    /// Detaches everything: what was attached last goes first, so that no call is entered that is not left.
    pub fn detach(self) {
        match self.asking {
            Asking::Governed(governor) => governor.end(),
            Asking::Everything { .. } => self.flags.values().for_each(Flags::restore),
        }
        let mut links = self.links;
        for turn in [Turn::Last, Turn::Then, Turn::First] {
            let now = links.extract_if(.., |(of, _)| *of == turn).map(|(_, link)| link).collect();
            drop_links(now);
        }
    }
}

/// Who counts at a point and the class of its instruction, where a program that communicates passes it all the time.
fn steadily_hit(point: &Point) -> Option<(Source, usize, Class)> {
    let source = match point.program {
        "site_posted" | "site_polled" => Source::from_wire(point.cookie as u16)?,
        "post_send_enter" | "poll_enter" | "wr_complete_enter" => Source::Function,
        _ => return None,
    };
    Some((source, point.part(), point.class?))
}

/// Points of one program, at least one.
fn group(file: &Arc<File>, points: &[Point], program: Arc<OwnedFd>, way: Way) -> Group {
    let Point { turn, returns, program: name, .. } = points[0];
    Group {
        turn,
        part: points[0].part(),
        function: function::place(name),
        program,
        way,
        file: Arc::clone(file),
        places: points.iter().map(|point| (point.offset, point.cookie)).collect(),
        returns,
    }
}

fn attach_at_once(
    wanted: Vec<(Vec<Point>, Result<Group, Failure>)>,
) -> Vec<(Vec<Point>, Result<Placed, Failure>)> {
    let outcomes = Mutex::new(Vec::with_capacity(wanted.len()));
    let threads = AT_ONCE.min(wanted.len());
    let wanted = Mutex::new(wanted);
    let next = || wanted.lock().unwrap_or_else(PoisonError::into_inner).pop();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((points, group)) = next() {
                    let outcome = group.and_then(|group| match group.attach() {
                        Ok(links) => Ok(Placed { group, links }),
                        Err(error) => Err(Failure::Attach(error)),
                    });
                    outcomes.lock().unwrap_or_else(PoisonError::into_inner).push((points, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcomes.sort_by(|(a, _), (b, _)| a.cmp(b));
    outcomes
}

/// Why a poll is not probed where what that costs is bounded.
const TOO_DEAR: &str = "a poll here would be single-stepped, which slows every poll several times: only `--data-path full` does that";

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

/// A path to an open file, whatever mount namespace it is of.
fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn from_file(file: &File, kernel: &Kernel) -> Vec<Point> {
    let Ok(provider) = providers::inspect(&path_of(file), kernel) else { return Vec::new() };
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
