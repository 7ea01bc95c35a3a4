//! One key, one change.

use super::filter::Filter;
use super::key::Key;
use super::keymap::{self, Action, Scope};
use super::page::Page;
use super::prompt::{Edit, Prompt};
use super::table::{self, Group, RowKey, TableId, columns, fields};
use super::workload::Workload;
use super::world::{Origin, World};
use super::{App, Effect, FilterLine, Step, Tone};

/// Samples a leap covers.
const LEAP: i64 = 30;

impl App {
    /// Takes a key; returns what the surroundings must do.
    pub fn key(&mut self, key: Key, world: &World) -> Option<Effect> {
        self.refresh(world);
        self.message = None;
        if self.filter_line.is_some() {
            self.edit_filter(key, world);
            return None;
        }
        let Some(binding) = keymap::lookup(key) else {
            self.say(Tone::Note, format!("{key} does nothing here; ? lists the keys"));
            return None;
        };
        if let Some(why) = self.out_of_scope(binding.scope) {
            self.say(Tone::Note, format!("{key}: {why}"));
            return None;
        }
        self.act(binding.action, world)
    }

    fn out_of_scope(&self, scope: Scope) -> Option<String> {
        match scope {
            Scope::Anywhere => None,
            Scope::Tables if self.table_id().is_none() => Some("this page has no table".to_owned()),
            Scope::Tables if !self.details.is_empty() => Some("go back to the table first (Esc)".to_owned()),
            Scope::Replay if self.origin != Origin::Replay => {
                Some("only a replayed trace can be stepped through (rdma-tui --replay FILE)".to_owned())
            }
            Scope::Live if self.origin != Origin::Live => {
                Some("a replayed trace is already recorded".to_owned())
            }
            Scope::On(page) if page != self.page => {
                Some(format!("only on {} (press {})", page.title(), page.index() + 1))
            }
            _ => None,
        }
    }

    /// Does what an action asks for.
    pub fn act(&mut self, action: Action, world: &World) -> Option<Effect> {
        match action {
            Action::Quit => return Some(Effect::Quit),
            Action::Help => self.help = if self.help.is_some() { None } else { Some(0) },
            Action::Back => {
                self.back();
                self.refresh(world);
            }
            Action::NextPage => self.go(self.page.next(), world),
            Action::PreviousPage => self.go(self.page.previous(), world),
            Action::Go(page) => self.go(page, world),
            Action::Up => self.walk(-1),
            Action::Down => self.walk(1),
            Action::PageUp => self.walk(-self.screenful()),
            Action::PageDown => self.walk(self.screenful()),
            Action::Top => self.walk(isize::MIN / 2),
            Action::Bottom => self.walk(isize::MAX / 2),
            Action::Open => return self.open(world),
            Action::Filter => self.open_filter(),
            Action::SortNext | Action::SortPrevious => self.sort(action == Action::SortNext, world),
            Action::Invert => self.invert(world),
            Action::NextTable => self.next_table(world),
            Action::Group => self.group(world),
            Action::Pause => {
                self.paused = !self.paused;
                return Some(Effect::Hold(self.paused));
            }
            Action::WiderWindow | Action::NarrowerWindow => {
                let wider = action == Action::WiderWindow;
                self.window = if wider { self.window.wider() } else { self.window.narrower() };
                self.window_chosen = true;
            }
            Action::StepBack => return self.step(Step::By(-1)),
            Action::StepForward => return self.step(Step::By(1)),
            Action::LeapBack => return self.step(Step::By(-LEAP)),
            Action::LeapForward => return self.step(Step::By(LEAP)),
            Action::ToStart => return self.step(Step::Start),
            Action::ToEnd => return self.step(Step::End),
            Action::Play => return self.step(Step::Play),
            Action::Record if world.source.recording.is_some() => return Some(Effect::StopRecording),
            Action::Record => return Some(Effect::StartRecording),
            Action::Export => return Some(Effect::Export),
            Action::Copy => return self.copy(world),
            Action::SweepWorkload => return self.sweep(world),
            Action::StopWorkload if world.workloads.running.is_some() => return Some(Effect::StopWorkload),
            Action::StopWorkload => self.say(Tone::Note, "no workload is running"),
            Action::Theme => return Some(Effect::NextTheme),
        }
        None
    }

    /// A step in a held view would move what is not shown.
    fn step(&mut self, step: Step) -> Option<Effect> {
        if self.paused {
            self.say(Tone::Note, "the view is held: press Space first");
            return None;
        }
        Some(Effect::Replay(step))
    }

    fn back(&mut self) {
        if self.help.take().is_some() || self.details.pop().is_some() {
            return;
        }
        if let Some(table) = self.current()
            && !table.filter_text.is_empty()
        {
            table.filter_text.clear();
            table.filter = Filter::default();
            table.reorder();
        }
    }

    fn go(&mut self, page: Page, world: &World) {
        self.help = None;
        self.details.clear();
        self.page = page;
        self.refresh(world);
    }

    /// Moves what is in front: the help, an opened row, or the table.
    fn walk(&mut self, by: isize) {
        if let Some(lines) = &mut self.help {
            *lines = lines.saturating_add_signed(by).min(200);
        } else if let Some((_, lines)) = self.details.last_mut() {
            *lines = lines.saturating_add_signed(by).min(10_000);
        } else if let Some(table) = self.current() {
            table.move_by(by);
        }
    }

    fn screenful(&self) -> isize {
        let height = self.table_id().map_or(10, |table| self.table(table).height.get());
        isize::try_from(height.max(2) - 1).unwrap_or(10)
    }

    fn open(&mut self, world: &World) -> Option<Effect> {
        if self.help.is_some() {
            self.help = None;
            return None;
        }
        if let Some((opened, _)) = self.details.last() {
            // From a process on to its queue pairs: the table of all, filtered.
            if let RowKey::Finding { id, process } = *opened {
                let found = world.findings().iter().find(|f| f.id == id && f.process_id() == process);
                match found.and_then(|f| f.workload) {
                    Some(workload) => self.show_workload(workload, world),
                    None => self.say(Tone::Note, "no reference workload shows this one"),
                }
                return None;
            }
            if let RowKey::Process(id) = opened {
                let pid = id.pid;
                self.details.clear();
                self.page = Page::Queues;
                self.chosen.insert(Page::Queues, 0);
                // A pid is always a figure the filter understands.
                let _ = self.set_filter(TableId::Qps, &format!("pid={pid}"));
                self.refresh(world);
            }
            return None;
        }
        let Some(key) = self.current().and_then(|table| table.selection().cloned()) else {
            self.say(Tone::Note, "nothing is selected here");
            return None;
        };
        if let RowKey::Workload(index) = key {
            return self.may_run(index, world).map(|w| Effect::RunWorkload(w.name.clone()));
        }
        self.details.push((key, 0));
        None
    }

    /// A workload that may be started: one at a time, so that they do not disturb each other's figures.
    fn may_run<'w>(&mut self, index: usize, world: &'w World) -> Option<&'w Workload> {
        if let Some(running) = &world.workloads.running {
            let text = format!("'{}' is still running: x stops it", running.name);
            self.say(Tone::Note, text);
            return None;
        }
        world.workloads.list.get(index)
    }

    fn sweep(&mut self, world: &World) -> Option<Effect> {
        let Some(&RowKey::Workload(index)) = self.current().and_then(|table| table.selection()) else {
            self.say(Tone::Note, "nothing is selected here");
            return None;
        };
        let workload = self.may_run(index, world)?;
        if workload.sweep.is_none() {
            self.say(Tone::Note, format!("'{}' sweeps nothing", workload.name));
            return None;
        }
        Some(Effect::SweepWorkload(workload.name.clone()))
    }

    /// The page of workloads, with the one selected that shows an effect.
    fn show_workload(&mut self, name: &str, world: &World) {
        let Some(index) = world.workloads.list.iter().position(|w| w.name == name) else {
            self.say(Tone::Note, format!("shown by the workload '{name}', which is not available here"));
            return;
        };
        self.go(Page::Workloads, world);
        if let Some(table) = self.current() {
            let place = table.rows.iter().position(|row| *row == RowKey::Workload(index));
            table.select(place.unwrap_or(0));
        }
        self.say(Tone::Note, format!("'{name}' shows the effect: Enter runs it"));
    }

    fn open_filter(&mut self) {
        self.help = None;
        if let Some(table) = self.table_id() {
            let before = self.table(table).filter_text.clone();
            let prompt = Prompt::new(&before);
            self.filter_line = Some(FilterLine { table, prompt, error: None, before });
        }
    }

    fn edit_filter(&mut self, key: Key, world: &World) {
        let Some(mut line) = self.filter_line.take() else { return };
        match line.prompt.key(key) {
            Edit::Changed => {
                let text = line.prompt.text();
                line.error = self.set_filter(line.table, &text).err();
            }
            Edit::Moved => {}
            // A filter that cannot be understood stays open: it would silently show something else.
            Edit::Accepted if line.error.is_some() => {}
            Edit::Accepted => {
                self.refresh(world);
                return;
            }
            Edit::Cancelled => {
                // What was there before was a filter already.
                let _ = self.set_filter(line.table, &line.before);
                self.refresh(world);
                return;
            }
        }
        self.filter_line = Some(line);
        self.refresh(world);
    }

    /// Filters a table; with an error, the last filter that could be understood stays.
    ///
    /// # Errors
    /// What is wrong with `text`, and where.
    pub fn set_filter(&mut self, table: TableId, text: &str) -> Result<(), super::FilterError> {
        let filter = Filter::parse(text, fields(table))?;
        if let Some(state) = self.tables.get_mut(&table) {
            state.filter = filter;
            state.filter_text = text.trim().to_owned();
            state.reorder();
        }
        Ok(())
    }

    fn sort(&mut self, forward: bool, world: &World) {
        let Some(table) = self.current() else { return };
        table.sort_step(forward);
        table.refresh(world);
        let said =
            columns(table.table).get(table.sort).map(|c| format!("sorted by {}: {}", c.key, c.explain));
        if let Some(text) = said {
            self.say(Tone::Note, text);
        }
    }

    fn invert(&mut self, world: &World) {
        if let Some(table) = self.current() {
            table.descending = !table.descending;
            table.reorder();
            table.refresh(world);
        }
    }

    fn next_table(&mut self, world: &World) {
        let n = TableId::of(self.page).len();
        if n < 2 {
            self.say(Tone::Note, "this page has one table");
            return;
        }
        let chosen = self.chosen.entry(self.page).or_default();
        *chosen = (*chosen + 1) % n;
        self.refresh(world);
    }

    fn group(&mut self, world: &World) {
        let Some(table) = self.current().filter(|table| table.table == TableId::Qps) else {
            self.say(Tone::Note, "only queue pairs are grouped (v shows them)");
            return;
        };
        table.group = table.group.next();
        table.reorder();
        table.refresh(world);
        let text = match table.group {
            Group::None => "queue pairs are not grouped".to_owned(),
            group => format!("queue pairs grouped {}", group.title()),
        };
        self.say(Tone::Note, text);
    }

    fn copy(&mut self, world: &World) -> Option<Effect> {
        let key = match self.details.last() {
            Some((key, _)) => Some(key.clone()),
            None => self.current().and_then(|table| table.selection().cloned()),
        };
        let row = key.as_ref().and_then(|key| table::row(key, world));
        let (Some(row), Some(table)) = (row, self.table_id()) else {
            self.say(Tone::Note, "nothing to copy is selected here");
            return None;
        };
        let cells =
            columns(table).iter().map(|column| (column.key, (column.get)(world, &row).show(column.unit)));
        let lines: Vec<String> = cells.map(|(key, text)| format!("{key}: {text}")).collect();
        Some(Effect::Copy(lines.join("\n")))
    }
}
