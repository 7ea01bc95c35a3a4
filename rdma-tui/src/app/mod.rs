//! The dashboard as a state machine: a key is looked up, an action changes the state, and what must happen outside
//! (quit, step a replay, start a recording) comes back as effects. Nothing here draws, reads or writes.

pub mod counters;
pub mod data_path;
pub mod filter;
pub mod format;
pub mod history;
pub mod inside;
pub mod key;
pub mod keymap;
pub mod page;
pub mod prompt;
pub mod table;
pub mod totals;
pub mod value;
pub mod window;
pub mod workload;
pub mod world;

mod update;

use std::collections::BTreeMap;

use filter::FilterError;
use page::Page;
use prompt::Prompt;
use table::{RowKey, TableId, TableState};
use window::Window;
use world::{Origin, World};

/// What the surroundings must do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// End the dashboard.
    Quit,
    /// Move a replay.
    Replay(Step),
    /// Keep a copy of the world to show while collection goes on, or let it go.
    Hold(bool),
    /// Begin recording to a file.
    StartRecording,
    /// Finish the recording.
    StopRecording,
    /// Write what is on screen to files.
    Export,
    /// Put a text on the clipboard.
    Copy(String),
    /// Run a workload's comparison.
    RunWorkload(String),
    /// Run a workload over its swept parameter.
    SweepWorkload(String),
    /// Stop the running workload.
    StopWorkload,
    /// Use the next theme.
    NextTheme,
}

/// A move within a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// So many samples on, or back.
    By(i64),
    /// To the first sample.
    Start,
    /// To the end.
    End,
    /// Play at the recorded pace, or stop.
    Play,
}

/// What a message means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Something went well.
    Good,
    /// Something to know.
    Note,
    /// Something failed.
    Bad,
}

/// A line for the reader, shown until the next key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// What it means.
    pub tone: Tone,
    /// What it says.
    pub text: String,
}

/// The filter line while it is open.
#[derive(Debug, Clone)]
pub struct FilterLine {
    /// Table it filters.
    pub table: TableId,
    /// What is typed.
    pub prompt: Prompt,
    /// What is wrong with it, if anything.
    pub error: Option<FilterError>,
    /// The filter as it was before.
    before: String,
}

/// The state of the dashboard.
#[derive(Debug, Clone)]
pub struct App {
    /// Page shown.
    pub page: Page,
    /// Help shown, scrolled by so many lines.
    pub help: Option<usize>,
    /// Opened rows, the innermost last, each with the lines it is scrolled by.
    pub details: Vec<(RowKey, usize)>,
    /// The filter line, while open.
    pub filter_line: Option<FilterLine>,
    /// The view stands still.
    pub paused: bool,
    /// Time window of the charts.
    pub window: Window,
    /// The reader chose the window; otherwise a replay shows all of its trace.
    window_chosen: bool,
    /// What to tell the reader.
    pub message: Option<Message>,
    /// Which of its tables each page shows.
    chosen: BTreeMap<Page, usize>,
    tables: BTreeMap<TableId, TableState>,
    origin: Origin,
}

impl App {
    /// The dashboard at its start.
    pub fn new(origin: Origin) -> Self {
        Self {
            page: Page::Overview,
            help: None,
            details: Vec::new(),
            filter_line: None,
            paused: false,
            window: Window::default(),
            window_chosen: false,
            message: None,
            chosen: BTreeMap::new(),
            tables: TableId::ALL.iter().map(|table| (*table, TableState::new(*table))).collect(),
            origin,
        }
    }

    /// The table the page shows, if it has one.
    pub fn table_id(&self) -> Option<TableId> {
        let tables = TableId::of(self.page);
        tables.get(self.chosen.get(&self.page).copied().unwrap_or(0)).copied()
    }

    /// The state of a table.
    pub fn table(&self, table: TableId) -> &TableState {
        &self.tables[&table]
    }

    fn current(&mut self) -> Option<&mut TableState> {
        let table = self.table_id()?;
        self.tables.get_mut(&table)
    }

    /// Brings what is derived from the world up to date; to be called before keys are handled and before drawing.
    pub fn refresh(&mut self, world: &World) {
        if self.origin == Origin::Replay && !self.window_chosen {
            self.window = Window::fitting(world.model.duration_ns());
        }
        if let Some(table) = self.current() {
            table.refresh(world);
            table.scroll();
        }
        // Shown beside the page's own table where there is room.
        if self.page == Page::Registration
            && let Some(sizes) = self.tables.get_mut(&TableId::Sizes)
        {
            sizes.refresh(world);
        }
    }

    /// Tells the reader something.
    pub fn say(&mut self, tone: Tone, text: impl Into<String>) {
        self.message = Some(Message { tone, text: text.into() });
    }
}
