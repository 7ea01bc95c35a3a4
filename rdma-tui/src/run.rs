//! The main loop: waits for a key, a new size or new data, and draws.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use crate::app::world::{Status, World};
use crate::app::{App, Effect, Step, Tone};
use crate::feed::live::Live;
use crate::feed::workloads::Workloads;
use crate::feed::{Input, Shared};
use crate::output::{clipboard, json, text};
use crate::terminal::Screen;
use crate::theme::{Depth, Theme};
use crate::view;

/// Shortest time between two frames that only new data asks for; keys are answered at once.
const FRAME: Duration = Duration::from_millis(50);

/// Longest wait for a collector to finish: it gives its command five seconds.
const PATIENCE: Duration = Duration::from_secs(6);

/// What the dashboard acts on.
pub struct Dashboard {
    /// State.
    pub app: App,
    /// The world, as it is.
    pub shared: Shared,
    /// Looks.
    pub theme: Theme,
    /// Colours of the terminal.
    pub depth: Depth,
    /// Asks a replay to move.
    pub steps: Option<Sender<Step>>,
    /// The running collection.
    pub live: Option<Live>,
    /// Reference workloads.
    pub workloads: Workloads,
    /// Where exports and recordings go.
    pub folder: PathBuf,
    /// The world as it was when the view was held.
    pub held: Option<Box<World>>,
}

/// Why the loop ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The reader asked for it.
    Quit,
    /// A signal.
    Signal(i32),
    /// The terminal is gone.
    TerminalLost(String),
}

impl Dashboard {
    /// Runs until the reader has enough.
    ///
    /// # Errors
    /// When the terminal cannot be written to.
    pub fn run(&mut self, screen: &mut Screen, inputs: &Receiver<Input>) -> io::Result<End> {
        let mut drawn: Option<Instant> = None;
        // A key asks for a frame at once, data for one when it is due.
        let (mut now, mut soon) = (true, false);
        loop {
            let due = soon && drawn.is_none_or(|at| at.elapsed() >= FRAME);
            if now || due {
                self.draw(screen)?;
                drawn = Some(Instant::now());
                (now, soon) = (false, false);
            }
            let input = if soon {
                let wait = FRAME.saturating_sub(drawn.map_or(FRAME, |at| at.elapsed()));
                match inputs.recv_timeout(wait) {
                    Ok(input) => Some(input),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return Ok(End::Quit),
                }
            } else {
                match inputs.recv() {
                    Ok(input) => Some(input),
                    Err(_) => return Ok(End::Quit),
                }
            };
            // All that waits is taken before the next frame: a resize storm or a held key costs one.
            for input in input.into_iter().chain(std::iter::from_fn(|| inputs.try_recv().ok())) {
                match input {
                    Input::Key(key) => {
                        now = true;
                        let effect = {
                            let shared = self.shared.read();
                            let world = self.held.as_deref().unwrap_or(&shared);
                            self.app.key(key, world)
                        };
                        if let Some(effect) = effect
                            && self.carry_out(effect, screen)? == Next::End
                        {
                            return Ok(End::Quit);
                        }
                    }
                    Input::Resize => now = true,
                    Input::Data => {}
                    Input::Signal(signal) => return Ok(End::Signal(signal)),
                    Input::TerminalLost(why) => return Ok(End::TerminalLost(why)),
                }
            }
            // A held view stays as it is; only its header must show what became of collection.
            soon |= self.shared.take_change();
        }
    }

    fn draw(&mut self, screen: &mut Screen) -> io::Result<()> {
        screen.terminal.draw(|frame| {
            let shared = self.shared.read();
            if let Some(held) = &mut self.held {
                held.source =
                    crate::app::world::Source { moment: held.source.moment, ..shared.source.clone() };
            }
            let world = self.held.as_deref().unwrap_or(&shared);
            self.app.refresh(world);
            view::draw(frame.buffer_mut(), &self.app, world, &self.theme);
        })?;
        Ok(())
    }

    fn carry_out(&mut self, effect: Effect, screen: &mut Screen) -> io::Result<Next> {
        match effect {
            Effect::Quit => return Ok(Next::End),
            Effect::Hold(true) => {
                // A generation of its own, so that tables sorted before are sorted again afterwards.
                let world = self.shared.read().clone();
                self.held = Some(Box::new(world));
            }
            Effect::Hold(false) => {
                self.held = None;
                self.shared.change(|_| {});
            }
            Effect::Replay(step) => {
                let sent = self.steps.as_ref().is_some_and(|steps| steps.send(step).is_ok());
                if !sent {
                    self.app.say(Tone::Bad, "the replay has ended: its file could not be read further");
                }
            }
            Effect::StartRecording => self.start_recording(),
            Effect::StopRecording => match self.live.as_ref().map(Live::stop_recording) {
                Some(Ok(Some(summary))) => self.app.say(Tone::Good, format!("recorded {summary}")),
                Some(Err(why)) => self.app.say(Tone::Bad, format!("the recording ended badly: {why}")),
                Some(Ok(None)) | None => {}
            },
            Effect::Export => self.export(screen),
            Effect::Copy(text) => {
                clipboard::copy(screen.terminal.backend_mut(), &text)?;
                let lines = text.lines().count();
                self.app.say(Tone::Good, format!("{lines} lines sent to the terminal's clipboard (OSC 52)"));
            }
            Effect::RunWorkload(name) => self.workloads.run(name),
            Effect::SweepWorkload(name) => self.workloads.sweep(name),
            Effect::StopWorkload => self.workloads.stop(),
            Effect::NextTheme => {
                self.theme = self.theme.next(self.depth);
                self.app.say(Tone::Note, format!("theme: {}", self.theme.name.title()));
            }
        }
        Ok(Next::Go)
    }

    fn start_recording(&mut self) {
        let Some(live) = &self.live else {
            self.app.say(Tone::Bad, "nothing is being collected here that could be recorded");
            return;
        };
        let path = self.fresh_name("trace");
        match live.start_recording(&path) {
            Ok(()) => self.app.say(Tone::Good, format!("recording to '{}'; r finishes it", path.display())),
            Err(why) => self.app.say(Tone::Bad, why),
        }
    }

    /// Writes the screen as text, and the page's table as JSON.
    fn export(&mut self, screen: &mut Screen) {
        let shared = self.shared.read();
        let world = self.held.as_deref().unwrap_or(&shared);
        let screen_text = text::lines(screen.terminal.current_buffer_mut());
        // The current buffer is the one drawn next; where it is still empty the page is drawn once more.
        let screen_text = if screen_text.trim().is_empty() {
            let size = screen.terminal.size().map_or((80, 24), |s| (s.width, s.height));
            let mut buffer = ratatui::buffer::Buffer::empty(ratatui::layout::Rect::new(0, 0, size.0, size.1));
            view::draw(&mut buffer, &self.app, world, &self.theme);
            text::lines(&buffer)
        } else {
            screen_text
        };
        let table = self.app.table_id().map(|id| (json::name(id), json::table(self.app.table(id), world)));
        drop(shared);
        let path = self.fresh_name("txt");
        let mut written = vec![path.clone()];
        let mut outcome = write_new(&path, &screen_text);
        if let Some((name, rows)) = table
            && outcome.is_ok()
        {
            let path = path.with_extension("json");
            let object = serde_json::json!({ "schema": "rdma-tui/1", "table": name, "rows": rows });
            outcome = write_new(&path, &format!("{object:#}\n"));
            written.push(path);
        }
        match outcome {
            Ok(()) => {
                let names: Vec<String> = written.iter().map(|p| format!("'{}'", p.display())).collect();
                self.app.say(Tone::Good, format!("written: {}", names.join(" and ")));
            }
            Err(error) => self.app.say(Tone::Bad, format!("cannot write '{}': {error}", path.display())),
        }
    }

    /// A name that says what and when, in the folder for exports.
    fn fresh_name(&self, extension: &str) -> PathBuf {
        let seconds = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let page = self.app.page.slug();
        let stem = if extension == "trace" { "rdma-tui".to_owned() } else { format!("rdma-tui-{page}") };
        (0..)
            .map(|n| match n {
                0 => self.folder.join(format!("{stem}-{seconds}.{extension}")),
                n => self.folder.join(format!("{stem}-{seconds}-{n}.{extension}")),
            })
            .find(|path| !path.exists())
            .unwrap_or_else(|| self.folder.join(format!("{stem}.{extension}")))
    }

    /// Ends what was started, a collection and a workload, and waits a moment for the collection's last words.
    pub fn close(&self, inputs: &Receiver<Input>) {
        self.workloads.stop();
        let Some(live) = &self.live else { return };
        live.end();
        let patience = Instant::now() + PATIENCE;
        while Instant::now() < patience && !self.shared.has_ended() {
            let _ = inputs.recv_timeout(Duration::from_millis(50));
            self.shared.take_change();
        }
    }

    /// The exit status of the command that was watched, where it ended by itself.
    pub fn command_status(&self) -> Option<i32> {
        self.shared.read().model.footer.as_ref()?.exit_status
    }

    /// How collection ended, for a last word after the screen is gone.
    pub fn last_words(&self) -> Option<String> {
        match &self.shared.read().source.status {
            Status::Failed(why) => Some(why.clone()),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Go,
    End,
}

/// Makes a file that was not there, readable by its owner alone: it tells other people's programs.
fn write_new(path: &std::path::Path, content: &str) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content.as_bytes())
}
