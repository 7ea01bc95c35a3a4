//! A trace file: read to its end, then stepped through, forward by reading on, backward by reading again.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use probe_user::trace::ReadError;

use super::Shared;
use super::cursor::Cursor;
use crate::app::Step;
use crate::app::world::{Origin, Status, World};

/// How often a long load shows how far it is.
const SHOW_EVERY: Duration = Duration::from_millis(100);

/// Pauses in a recording longer than this are played as this long.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Starts replaying `path`; steps are asked for through the sender.
///
/// # Errors
/// When it cannot be opened, or is not a trace.
pub fn start(path: &Path, shared: Shared) -> Result<Sender<Step>, ReadError> {
    let cursor = Cursor::open(path)?;
    let (steps, wanted) = channel();
    let mut replay = Replay { path: path.to_owned(), cursor, shared, wanted };
    thread::Builder::new()
        .name("replay".to_owned())
        .spawn(move || replay.run())
        .map_err(|reason| ReadError::Io { name: path.display().to_string(), reason })?;
    Ok(steps)
}

/// Reads `path` to its end, or to moment `until`, into a world, at once.
///
/// # Errors
/// As [`start`], and when a line is not what a trace holds.
pub fn load(path: &Path, until: Option<u64>) -> Result<World, ReadError> {
    let mut cursor = Cursor::open(path)?;
    let mut world = World::new(Origin::Replay, name_of(path));
    while cursor.batch(&mut world, until)? {}
    cursor.arrived(&mut world);
    Ok(world)
}

/// What the header calls a file.
pub fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

struct Replay {
    path: PathBuf,
    cursor: Cursor,
    shared: Shared,
    wanted: Receiver<Step>,
}

impl Replay {
    fn run(&mut self) {
        self.set_status(Status::Loading);
        self.forward(None);
        let mut playing: Option<Instant> = None;
        loop {
            let step = match playing {
                None => self.wanted.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => self.wanted.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            match step {
                Ok(Step::Play) if playing.is_some() => {
                    playing = None;
                    self.set_status(Status::Standing);
                }
                Ok(Step::Play) => {
                    if self.cursor.at_end {
                        self.go_to(0);
                    }
                    playing = Some(Instant::now());
                    self.set_status(Status::Running);
                }
                Ok(step) => {
                    playing = None;
                    self.step(step);
                }
                Err(RecvTimeoutError::Timeout) => playing = self.play(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Goes on by one sample; says when the next is due, or nothing at the end.
    fn play(&mut self) -> Option<Instant> {
        let (before, t_before) = self.place();
        self.forward(Some(before + 1));
        let (_, t_now) = self.place();
        if self.cursor.at_end {
            return None;
        }
        self.set_status(Status::Running);
        let pause = Duration::from_nanos(t_now.saturating_sub(t_before)).min(LONGEST_PAUSE);
        Some(Instant::now() + pause.max(Duration::from_millis(20)))
    }

    fn place(&self) -> (u64, u64) {
        let world = self.shared.read();
        (world.source.moment, world.model.interval.1)
    }

    fn set_status(&self, status: Status) {
        self.shared.change(|world| world.source.status = status);
    }

    /// Takes a step, and all steps that were asked for in the meantime: a held arrow key costs one seek, not fifty.
    fn step(&mut self, first: Step) {
        let (mut target, _) = self.place();
        let end = self.shared.read().source.moments;
        let mut to_end = false;
        let mut next = Some(first);
        while let Some(step) = next {
            match step {
                Step::By(n) => {
                    if to_end {
                        target = end.unwrap_or(target);
                    }
                    to_end = false;
                    target = target.saturating_add_signed(n);
                }
                Step::Start => (target, to_end) = (0, false),
                Step::End => to_end = true,
                Step::Play => {}
            }
            next = self.wanted.try_recv().ok();
        }
        if to_end || end.is_some_and(|end| target >= end) { self.forward(None) } else { self.go_to(target) }
    }

    /// Goes to moment `target` (the first is 1; before it there is nothing to see).
    fn go_to(&mut self, target: u64) {
        let target = target.max(1);
        let (now, _) = self.place();
        if target >= now && !self.cursor.at_end {
            return self.forward(Some(target));
        }
        let mut cursor = match Cursor::open(&self.path) {
            Ok(cursor) => cursor,
            Err(error) => return self.failed(&error),
        };
        let old = self.shared.read().source.clone();
        let mut world = World::new(Origin::Replay, old.target);
        let outcome = loop {
            match cursor.batch(&mut world, Some(target)) {
                Ok(true) => {}
                other => break other,
            }
        };
        cursor.arrived(&mut world);
        world.source.moments = old.moments;
        world.source.notes = old.notes;
        {
            let mut shared = self.shared.write();
            world.generation = shared.generation + 1;
            world.workloads = std::mem::take(&mut shared.workloads);
            *shared = world;
        }
        self.cursor = cursor;
        match outcome {
            Err(error) => self.failed(&error),
            Ok(_) => self.shared.announce(),
        }
    }

    /// Reads on, to moment `until` or to the end.
    fn forward(&mut self, until: Option<u64>) {
        let mut shown = Instant::now();
        loop {
            let more = {
                let mut world = self.shared.write();
                let more = self.cursor.batch(&mut world, until);
                if matches!(more, Ok(false)) {
                    self.cursor.arrived(&mut world);
                }
                more
            };
            match more {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return self.failed(&error),
            }
            if shown.elapsed() >= SHOW_EVERY {
                self.shared.change(|world| world.source.loaded = self.cursor.share_read());
                self.shared.diagnose();
                shown = Instant::now();
            }
        }
        self.shared.announce();
    }

    /// What was read so far stays on screen.
    fn failed(&mut self, error: &ReadError) {
        self.cursor.at_end = true;
        self.shared.change(|world| {
            world.diagnose();
            world.source.moments = Some(world.source.moment);
            world.source.loaded = None;
            world.source.status = Status::Failed(error.to_string());
        });
    }
}
