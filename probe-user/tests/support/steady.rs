//! A program that writes at a steady pace (`programs/steady.c`) and says of itself what it did, counted by
//! `rdma-probe count` at default settings.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::announced::Announced;
use super::{RECORDER, compile};

/// How the program goes about it.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub name: &'static str,
    /// Posts a second; 0: as many as it can.
    pub rate: u32,
    /// Work requests a post.
    pub list: u32,
    /// One in so many is signalled.
    pub every: u32,
    /// Most under way.
    pub depth: u32,
    /// Turns of a loop before each post.
    pub work: u32,
    /// It naps between polls that find nothing.
    pub sleeps: bool,
    /// Time the device takes for a work request; 0: none.
    pub pace_ns: u32,
}

/// Posts, work requests, signalled ones, completions, polls, those that found nothing, and bytes.
pub type Did = [u64; 7];

/// What the figures of [`Did`] are called where they are told.
pub const FIGURES: [&str; 7] = ["post_calls", "wrs", "signalled", "cqes", "polls", "empty_polls", "bytes"];

/// A run, counted.
#[derive(Debug)]
pub struct Counted {
    /// What the program did while it was counted.
    pub did: Did,
    /// What it did while the probes were put in place, of which any part may be counted.
    pub before: Did,
    /// What was told of it.
    pub told: Value,
}

/// Where the program runs.
pub enum Place<'a> {
    /// On the device of a kernel that is made up.
    Announced(&'a Announced),
    /// On the device of the environment.
    Here,
}

/// How far a figure is from the truth, and how far it may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Held {
    /// That what is estimated is nearest to, of all that may be the truth.
    pub truth: f64,
    pub estimate: f64,
    /// Told bound, relative; nothing where every call was counted, `None` where none is told.
    pub bound: Option<f64>,
}

impl Held {
    /// Of the truth.
    pub fn ratio(&self) -> f64 {
        self.estimate / self.truth
    }

    /// Whether the truth is within the bound; `None` without one. What is under way when the counting begins or ends may
    /// be counted or not.
    pub fn holds(&self, under_way: u32) -> Option<bool> {
        let off = (self.estimate - self.truth).abs();
        self.bound.map(|bound| off <= self.estimate * bound + f64::from(under_way))
    }
}

impl Counted {
    /// One of [`FIGURES`].
    pub fn figure(&self, which: usize) -> Held {
        let part = usize::from((3..6).contains(&which));
        let slices = &self.told["data_path"]["slices"][part];
        let estimate = self.told["total"][FIGURES[which]].as_f64().expect("a figure");
        let bound = if slices.is_null() { Some(0.0) } else { slices["error"].as_f64() };
        let (least, before) = (self.did[which] as f64, self.before[which] as f64);
        Held { truth: estimate.clamp(least, least + before), estimate, bound }
    }
}

/// Runs a load for so many seconds. It is counted from before it begins, or, where it `runs_before`, from a moment on.
pub fn counted(place: &Place<'_>, load: &Load, seconds: u32, runs_before: bool) -> Counted {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile(folder.path(), "steady.c", "steady", &["-libverbs"]);
    let file = folder.path().join("did");
    let mut steady = testkit::Held(start(place, load, seconds, &program, &file));
    let mut printed = BufReader::new(steady.0.stdout.take().expect("a pipe")).lines();
    let first = printed.next().expect("a line").expect("a line");
    assert_eq!(first, "ready");
    let mut input = steady.0.stdin.take().expect("a pipe");
    let mut go = || input.write_all(b"\n").expect("it reads");
    if runs_before {
        go();
        while did(&file)[0] == 0 {
            thread::sleep(Duration::from_millis(20));
        }
    }
    let pid = steady.0.id().to_string();
    let at_first = did(&file);
    let mut counter = Command::new("timeout");
    counter.args(["-k", "5", "300", RECORDER, "count", "--json", "--pid", &pid]);
    let mut counter = counter.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the profiler");
    let mut lines = BufReader::new(counter.stderr.take().expect("a pipe")).lines();
    assert!(lines.by_ref().map_while(Result::ok).any(|line| line.ends_with("counting")), "it counts");
    let drain = thread::spawn(move || lines.for_each(drop));
    let before = did(&file);
    if !runs_before {
        go();
    }
    let output = counter.wait_with_output().expect("its end");
    let _ = drain.join();
    assert!(steady.0.wait().expect("its end").success(), "{load:?}");
    let after = did(&file);
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let told = all["processes"][0].clone();
    let between = |later: Did, earlier: Did| std::array::from_fn(|n| later[n] - earlier[n]);
    Counted { did: between(after, before), before: between(before, at_first), told }
}

fn start(place: &Place<'_>, load: &Load, seconds: u32, program: &Path, file: &PathBuf) -> Child {
    let mut command = match place {
        Place::Here => Command::new(program),
        Place::Announced(announced) => {
            let mut command = Command::new("unshare");
            command.args(announced.place()).arg(program);
            command.envs(announced.environment.iter().map(|(name, value)| (name, value)));
            command.env("UVERBS_PACE_NS", load.pace_ns.to_string());
            command
        }
    };
    let numbers = [seconds, load.rate, load.list, load.every, load.depth, load.work].map(|n| n.to_string());
    command.arg(file).args(numbers).args([if load.sleeps { "sleep" } else { "busy" }, "wait"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program")
}

/// What the program did so far.
fn did(file: &Path) -> Did {
    let bytes = fs::read(file).unwrap_or_default();
    let words = bytes.as_chunks().0;
    std::array::from_fn(|n| words.get(n).copied().map_or(0, u64::from_ne_bytes))
}
