//! Records as they happen.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use probe_user::sample::Record;
use probe_user::trace::Reader;

use super::Shared;
use super::collector::{self, Collector, StartError, Targets};
use super::judge::Judge;
use super::recorder::Recorder;
use crate::app::world::Status;

/// A running collection.
#[derive(Debug, Clone)]
pub struct Live {
    collector: u32,
    recorder: Arc<Mutex<Recorder>>,
    shared: Shared,
    judge: Judge,
}

/// Starts collecting from `targets`; what the collector prints goes to `log`.
///
/// # Errors
/// When it cannot start: with the collector's own words.
pub fn start(targets: &Targets, log: &Path, shared: Shared) -> Result<Live, StartError> {
    let thread_failed = |reason| StartError::System { what: "start a thread".to_owned(), reason };
    let (collector, trace) = Collector::start(targets, log)?;
    let judge = Judge::start(shared.clone()).map_err(thread_failed)?;
    let live = Live { collector: collector.pid(), recorder: Arc::default(), shared, judge };
    let (for_thread, log) = (live.clone(), log.to_owned());
    thread::Builder::new()
        .name("collect".to_owned())
        .spawn(move || for_thread.run(collector, trace, log))
        .map_err(thread_failed)?;
    Ok(live)
}

/// Reads a trace that is still being written from standard input.
///
/// # Errors
/// When no thread can be started.
pub fn from_stdin(shared: Shared) -> std::io::Result<()> {
    let judge = Judge::start(shared.clone())?;
    thread::Builder::new().name("collect".to_owned()).spawn(move || {
        let outcome = Reader::open(Path::new("-")).and_then(|mut reader| {
            shared.change(|world| world.source.status = Status::Running);
            reader.try_for_each(|record| {
                let record = record?;
                shared.write().push(&record);
                shared.announce();
                if matches!(record, Record::Sample(_)) {
                    judge.sampled();
                }
                Ok(())
            })
        });
        shared.diagnose();
        let status = match outcome {
            Ok(()) => Status::Ended(end_of(&shared)),
            Err(error) => Status::Failed(error.to_string()),
        };
        shared.change(|world| world.source.status = status);
    })?;
    Ok(())
}

impl Live {
    fn run(&self, mut collector: Collector, trace: BufReader<File>, log: PathBuf) {
        let size = std::fs::metadata(&log).map_or(0, |m| m.len());
        let outcome = Reader::new("the collector", trace).and_then(|mut reader| {
            self.shared.change(|world| world.source.status = Status::Running);
            reader.try_for_each(|record| {
                self.take(&record?);
                Ok(())
            })
        });
        // What came after the last sample counts too, before anybody is told that this is all.
        self.shared.diagnose();
        let footer = self.shared.read().model.footer.is_some();
        let ended = collector.wait();
        let status = match outcome {
            Ok(()) if footer => Status::Ended(end_of(&self.shared)),
            Ok(()) => {
                let said = collector::last_words(&log, size);
                let said = if said.is_empty() { String::new() } else { format!(": {said}") };
                Status::Failed(format!("the collector is gone ({ended}){said}; what it saw stays on screen"))
            }
            Err(error) => Status::Failed(error.to_string()),
        };
        if let Err(why) = self.stop_recording() {
            self.shared.change(|world| world.source.notes.push(format!("the recording ended badly: {why}")));
        }
        self.shared.change(|world| world.source.status = status);
    }

    fn take(&self, record: &Record) {
        let trouble = self.recorder().take(record);
        let mut world = self.shared.write();
        world.push(record);
        if let Some(why) = trouble {
            world.source.recording = None;
            world.source.notes.push(format!("the recording ended: {why}"));
        }
        drop(world);
        self.shared.announce();
        if matches!(record, Record::Sample(_)) {
            self.judge.sampled();
        }
    }

    fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a trace of what comes from now on.
    ///
    /// # Errors
    /// Why the file cannot be written, in words.
    pub fn start_recording(&self, path: &Path) -> Result<(), String> {
        self.recorder().start(path).map_err(|error| error.to_string())?;
        self.shared.change(|world| world.source.recording = Some(path.display().to_string()));
        Ok(())
    }

    /// Finishes the trace; says what is in it, or nothing when none was being written.
    ///
    /// # Errors
    /// Why it could not be finished, in words.
    pub fn stop_recording(&self) -> Result<Option<String>, String> {
        let summary = self.recorder().stop().map_err(|error| error.to_string())?;
        self.shared.change(|world| world.source.recording = None);
        Ok(summary.map(|s| format!("{} events and {} samples", s.events, s.samples)))
    }

    /// Asks the collector to end, and with it the command it started.
    pub fn end(&self) {
        // Its end has been told on screen already, where it failed before.
        let _ = self.stop_recording();
        if !self.shared.has_ended() {
            collector::ask_to_end(self.collector);
        }
    }
}

fn end_of(shared: &Shared) -> String {
    let world = shared.read();
    match &world.model.footer {
        Some(footer) => match footer.exit_status {
            Some(status) => format!("{}, exit status {status}", footer.reason),
            None => footer.reason.clone(),
        },
        None => "the stream ended without a footer".to_owned(),
    }
}
