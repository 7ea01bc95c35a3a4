//! Real, stripped provider libraries at work without their hardware: a kernel that is made up (`programs/uverbs.c`)
//! grants what they ask for, so that they make contexts and objects as they would with it. What these hold must be what
//! the library's file tells, and what is posted through them must be counted. Needs root, and a kernel without RDMA.

mod data_path;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use data_path::{
    Counted, Told, attach_to_running, can_run, check_one_after_the_other, check_posts, count_by, posts,
};
use probe_user::contexts::{Budget, Found, find};
use probe_user::entry::Kernel;
use probe_user::providers::{Role, inspect};
use serde_json::Value;
use support::announced::{Announced, MLX5, Model};
use support::compile;
use testkit::Held;

const IRDMA: Model = Model { provider: "irdma", name: "irdma0", pci: "v00008086d00001592", abi: "5" };
const EFA: Model = Model { provider: "efa", name: "efa_0", pci: "v00001D0Fd0000EFA0", abi: "1" };

impl Announced {
    /// Starts `holds` with these variables too, and gives it when it holds what it could make, and says what that is.
    fn holding(&self, more: &[(&str, &str)]) -> (Held, Vec<String>) {
        let flags = ["-libverbs", "-lmlx5", "-lefa"];
        let program = compile(self.folder.path(), "holds.c", "holds", &flags);
        let mut command = Command::new("unshare");
        command.args(self.place()).arg(program);
        command.envs(self.environment.iter().map(|(name, value)| (name, value))).envs(more.iter().copied());
        let mut child = Held(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare"));
        let lines = BufReader::new(child.0.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        let made: Vec<String> = lines.take_while(|line| line != "ready").collect();
        (child, made)
    }

    /// Counts a program from when it has made its objects.
    fn attach_to(&self, command: &[&str], variable: (&str, &str)) -> Told {
        let arguments = [&self.place()[..], command].concat();
        let own = self.environment.iter().map(|(name, value)| (*name, value.as_str()));
        let environment: Vec<(&str, &str)> = own.chain([variable]).collect();
        attach_to_running(Path::new("unshare"), &arguments, &environment)
    }
}

/// True where such a device can be announced; else says why the test does nothing.
fn can_announce() -> bool {
    if Path::new("/sys/class/infiniband").exists() {
        eprintln!("skipped: this kernel has RDMA, which libibverbs asks first");
        return false;
    }
    can_run()
}

/// A provider's own functions.
type Functions = BTreeSet<(Role, u64)>;

/// Those its file tells.
fn told(library: &Path) -> Functions {
    let provider = inspect(library, &Kernel::running()).expect("a library");
    provider.functions.iter().filter_map(|f| Some((f.role, f.file_offset?))).collect()
}

/// Those that what was found goes through.
fn held(found: &Found, library: &Path) -> Functions {
    let own = fs::canonicalize(library).expect("a library");
    let of_contexts = found.contexts.iter().flat_map(|c| &c.functions);
    let of_qps = found.qps.iter().flat_map(|q| &q.functions);
    let of_cqs = found.cqs.iter().flat_map(|c| &c.functions);
    let all = of_contexts.chain(of_qps).chain(of_cqs);
    all.map(|(role, place)| {
        assert_eq!(place.file.path, own, "{role:?}");
        (*role, place.offset)
    })
    .collect()
}

fn library(provider: &str) -> PathBuf {
    PathBuf::from(format!("/usr/lib/x86_64-linux-gnu/libibverbs/lib{provider}-rdmav34.so"))
}

/// What one process holds.
fn held_by(model: &Model, announced: &Announced, more: &[(&str, &str)]) -> (Functions, Vec<String>) {
    let (child, made) = announced.holding(more);
    let found = find(child.0.id(), None, &Budget::default()).expect("a process");
    assert_eq!((found.contexts.len(), found.cut), (1, None), "{}: {made:?}", model.provider);
    assert_eq!(found.contexts[0].device_name, model.name);
    let count = |what: &str| made.iter().filter(|line| line.starts_with(what)).count();
    let sending = made.iter().filter(|line| *line == "qp sends").count();
    assert_eq!(found.qps.len(), count("qp") - sending, "{made:?}");
    assert_eq!(found.cqs.len(), count("cq"), "{made:?}");
    (held(&found, &library(model.provider)), made)
}

#[test]
fn what_mlx5_objects_hold_in_all_their_variants_is_what_its_file_tells() {
    if !can_announce() {
        return;
    }
    let announced = Announced::new(&MLX5);
    let told = told(&library("mlx5"));
    let mut all = Functions::new();
    // Formats of completion entries; the three ways of waiting for the next one.
    for version in ["0", "1"] {
        for (stall, turns) in [("0", "60"), ("1", "60"), ("1", "-1")] {
            let variant = [
                ("UVERBS_CQE_VERSION", version),
                ("MLX5_STALL_CQ_POLL", stall),
                ("MLX5_STALL_NUM_LOOP", turns),
            ];
            let (held, made) = held_by(&MLX5, &announced, &variant);
            let strange: Vec<_> = held.difference(&told).collect();
            assert!(strange.is_empty(), "{variant:?}: {strange:x?}");
            assert_eq!(made.iter().filter(|line| line.starts_with("cq extended")).count(), 4, "{made:?}");
            all.extend(held);
        }
    }
    // rdma-core 44 chooses the functions of a completion queue before it notes that the queue is to wait for entries: those
    // that wait, two thirds of those that poll, stand in the file but are never used.
    let mut unseen = BTreeMap::new();
    for (role, _) in told.difference(&all) {
        *unseen.entry(*role).or_insert(0) += 1;
    }
    let never_used = BTreeMap::from([(Role::StartPoll, 16), (Role::NextPoll, 2), (Role::EndPoll, 4)]);
    assert_eq!(unseen, never_used, "in the file, but in no object");
    println!("{} functions", all.len());
}

#[test]
fn what_objects_of_irdma_and_efa_hold_is_what_their_files_tell() {
    if !can_announce() {
        return;
    }
    for model in [&IRDMA, &EFA] {
        let announced = Announced::new(model);
        let (held, made) = held_by(model, &announced, &[]);
        println!("{}: {} functions; {made:?}", model.provider, held.len());
        assert_eq!(held, told(&library(model.provider)), "{}: {made:?}", model.provider);
    }
}

#[test]
fn posts_and_polls_of_the_real_mlx5_library_are_counted_to_the_last_request() {
    if !can_announce() {
        return;
    }
    let announced = Announced::new(&MLX5);
    let program = posts(announced.folder.path()).display().to_string();
    for (interface, version) in [("classic", "0"), ("classic", "1"), ("extended", "0"), ("extended", "1")] {
        let command = [program.as_str(), interface, "60", "fork"];
        check_posts(&announced.attach_to(&command, ("UVERBS_CQE_VERSION", version)), 2, &[]);
    }
    // Two queue pairs that complete into one queue: whose completions are whose, an extended poll does not say.
    for interface in ["extended", "extended-post", "extended-poll"] {
        let command = [program.as_str(), interface, "60", "both"];
        check_posts(&announced.attach_to(&command, ("UVERBS_CQE_VERSION", "1")), 1, &[]);
    }
}

/// What `shares` says of itself, and what was counted of it.
fn shares(announced: &Announced, arguments: &[&str]) -> (Value, Counted) {
    let program = compile(announced.folder.path(), "shares.c", "shares", &["-libverbs"]);
    let command = [&[program.to_str().expect("a path")], arguments].concat();
    let told = announced.attach_to(&command, ("UVERBS_CQE_VERSION", "1"));
    told.assert_nothing_is_lost();
    let did: Value = serde_json::from_str(&told.printed).expect("what it did");
    let counted = told.of(did["pid"].as_u64().expect("a pid"));
    println!("{arguments:?}: {did}");
    assert_eq!(counted.unmatched(), 0, "{:?}", counted.0);
    assert!(counted.objects("cq").all(|cq| cq["guessed_cqes"] == 0), "{:?}", counted.0);
    (did, counted)
}

#[test]
fn queue_pairs_that_share_an_extended_queue_and_number_their_requests_alike_have_their_own_latencies() {
    if !can_announce() {
        return;
    }
    let announced = Announced::new(&MLX5);
    for named in [&["late", "2", "40"][..], &["late", "2", "40", "named"]] {
        let (did, counted) = shares(&announced, named);
        let said = |field: &str| did[field].as_u64().expect("a number");
        // What was posted first came last, and each request has its own time.
        let (late, early) = (counted.latency_of("send", 6), counted.latency_of("rdma_write", 12));
        assert_eq!((late.n, early.n), (40, 40), "{did}: {:?}", counted.0);
        assert!(late.most >= said("late_least_ns"), "{late:?}: {did}");
        assert!(early.least <= said("early_most_ns"), "{early:?}: {did}");
    }
}

#[test]
fn seventy_queue_pairs_that_share_an_extended_queue_have_all_their_latencies() {
    if !can_announce() {
        return;
    }
    let announced = Announced::new(&MLX5);
    let (did, counted) = shares(&announced, &["many", "70", "30"]);
    assert_eq!(counted.latencies(), 70 * 30, "{did}");
    for size_class in 0..12 {
        let qps = (0..70).filter(|qp| qp % 12 == size_class).count() as u64;
        let latency = counted.latency_of("rdma_write", size_class);
        assert_eq!(latency.n, qps * 30, "{size_class}: {:?}", counted.0);
    }
}

#[test]
fn a_failed_completion_of_an_extended_queue_has_the_number_of_its_queue_pair() {
    if !can_announce() {
        return;
    }
    let announced = Announced::new(&MLX5);
    let (did, counted) = shares(&announced, &["failed", "2", "1"]);
    assert_eq!((&did["reaped"], &did["failed"]), (&Value::from(2), &Value::from(1)), "{did}");
    let failures = counted.0["data_path"]["failures"].as_array().expect("a list");
    let failed: Vec<_> =
        failures.iter().map(|f| (&f["what"], &f["number"], &f["code"], &f["count"])).collect();
    // `IBV_WC_RETRY_EXC_ERR`.
    let expected = (&Value::from("cqe"), &did["qps"][1]["number"], &Value::from(12), &Value::from(1));
    assert_eq!(failed, [expected], "{did}");
}

/// Gives what follows its own copy of the verbs libraries, under the names that the host's have.
const OWN_COPY: &str = "set -e; at=/usr/lib/x86_64-linux-gnu; mkdir $0/lib; \
    cp -rL $at/libibverbs $at/libibverbs.so.1 $0/lib; mount --bind $0/lib/libibverbs $at/libibverbs; \
    export LD_LIBRARY_PATH=$0/lib; exec \"$@\"";

#[test]
fn a_process_with_its_own_copy_of_the_libraries_in_another_mount_namespace_is_counted() {
    if !can_announce() {
        return;
    }
    let announced = Announced::new(&MLX5);
    let program = posts(announced.folder.path()).display().to_string();
    let command = ["sh", "-c", OWN_COPY, announced.path(), &program, "classic", "60"];
    let told = announced.attach_to(&command, ("UVERBS_CQE_VERSION", "1"));
    check_posts(&told, 1, &[]);
    let probes = told.all["probes"].as_array().expect("a list");
    let places: Vec<&str> = probes.iter().filter_map(|probe| probe["place"].as_str()).collect();
    // The host's file has another name: this one only leads to it.
    let own = library("mlx5").display().to_string();
    assert!(places.iter().any(|place| place.starts_with(&own)), "{places:?}");
}

/// What is probed in a provider's file are functions of its data path, each as what it is: pointers in memory that was
/// freed lead elsewhere, and a probe in the middle of an instruction would destroy it.
fn check_places(told: &Told, file: &Path) {
    let provider = inspect(file, &Kernel::running()).expect("a library");
    let functions = provider.functions.iter();
    let known: Vec<(String, u64)> = functions
        .flat_map(|f| {
            let entry = f.file_offset.unwrap_or(0);
            [entry, entry + f.probe_delta.unwrap_or(0)].map(|at| (f.role.name().to_owned(), at))
        })
        .collect();
    let name = file.canonicalize().expect("the file").file_name().expect("a name").to_owned();
    let probes = told.all["probes"].as_array().expect("a list");
    for probe in probes {
        let (word, place) =
            (probe["name"].as_str().expect("a name"), probe["place"].as_str().expect("a place"));
        let role = word.strip_prefix("data-path:").expect("of the data path");
        let (path, offset) = place.split_once("+0x").expect("a file and an offset");
        assert_eq!(Path::new(path).file_name(), Some(name.as_os_str()), "{probe}");
        let offset = offset.split(' ').next().expect("a number");
        let offset = u64::from_str_radix(offset, 16).expect("a number");
        assert!(known.contains(&(role.to_owned(), offset)), "{probe}");
    }
}

#[test]
fn a_provider_that_is_unloaded_and_loaded_again_is_counted_on_and_each_queue_pair_by_itself() {
    if !can_announce() {
        return;
    }
    let announced = Announced::new(&MLX5);
    let program = compile(announced.folder.path(), "comes_and_goes.c", "comes_and_goes", &[]);
    let rounds = data_path::rounds(20).to_string();
    let command = [program.to_str().expect("a path"), "libmlx5.so.1", &rounds, "gone"];
    let told = announced.attach_to(&command, ("MLX5_STALL_CQ_POLL", "0"));
    check_one_after_the_other(&told);
    check_places(&told, &library("mlx5"));
}

/// Starts a program that only polls, as fast as it can; gives the file in which it says how often.
fn busy_polling(announced: &Announced) -> (Held, PathBuf) {
    let program = compile(announced.folder.path(), "steady.c", "steady", &["-libverbs"]);
    let says = announced.folder.path().join("polls");
    let mut command = Command::new("unshare");
    command.args(announced.place()).arg(program).arg(&says);
    // A request an hour: nothing but polls.
    command.args(["600", "0.0003", "1", "1", "1", "0", "busy"]);
    command.envs(announced.environment.iter().map(|(name, value)| (name, value)));
    (Held(command.spawn().expect("unshare")), says)
}

/// Polls a second in the next second.
fn polls_a_second(says: &Path) -> f64 {
    /// Place of the polls among the numbers of `steady.c`.
    const POLLS: usize = 4;
    let polls = || {
        let numbers = fs::read(says).unwrap_or_default();
        let word = numbers.get(8 * POLLS..8 * POLLS + 8)?;
        word.try_into().ok().map(u64::from_le_bytes).filter(|n| *n > 0)
    };
    let patience = Instant::now() + Duration::from_secs(60);
    let first = loop {
        if let Some(polls) = polls() {
            break polls;
        }
        assert!(Instant::now() < patience, "it does not poll");
        std::thread::sleep(Duration::from_millis(10));
    };
    let began = Instant::now();
    std::thread::sleep(Duration::from_secs(1));
    (polls().expect("polls") - first) as f64 / began.elapsed().as_secs_f64()
}

#[test]
fn a_process_that_is_not_watched_is_spared_although_it_polls_through_the_same_functions() {
    if !can_announce() {
        return;
    }
    let (announced, other) = (Announced::new(&MLX5), Announced::new(&MLX5));
    let (watched, _) = announced.holding(&[]);
    let (bystander, says) = busy_polling(&other);
    let alone = polls_a_second(&says);
    let counter = count_by(&["--duration", "4s"], watched.0.id(), announced.folder.path());
    let at_first = polls_a_second(&says);
    let then = polls_a_second(&says);
    let all = counter.finish();
    let probes = all["probes"].as_array().expect("a list");
    let is_of_polls = |probe: &&Value| probe["name"] == "data-path:poll_cq" && probe["verdict"] == "live";
    assert!(probes.iter().any(|probe| is_of_polls(&probe)), "{probes:?}");
    println!("polls a second: {alone:.0} alone, {at_first:.0} at first, {then:.0} then");
    // A hundredth is what is allowed; a probe on every call would leave a fiftieth of them.
    assert!(then > alone / 4.0, "{then} polls a second of {alone}");
    drop(bystander);
}
