//! The one table of keys: what a key does, what `?` says about it and what the footer hints at all come from here.

use super::key::Key;
use super::page::Page;

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the table below says what each does")]
pub enum Action {
    Quit,
    Help,
    Back,
    NextPage,
    PreviousPage,
    Go(Page),
    Up,
    Down,
    PageUp,
    PageDown,
    Top,
    Bottom,
    Open,
    Filter,
    SortNext,
    SortPrevious,
    Invert,
    NextTable,
    Group,
    Pause,
    WiderWindow,
    NarrowerWindow,
    StepBack,
    StepForward,
    LeapBack,
    LeapForward,
    ToStart,
    ToEnd,
    Play,
    Record,
    Export,
    Copy,
    StopWorkload,
    SweepWorkload,
    Theme,
}

/// Where a binding means something; elsewhere its key says why it does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Everywhere.
    Anywhere,
    /// On pages that show a table.
    Tables,
    /// While a trace is replayed.
    Replay,
    /// While watching live.
    Live,
    /// On one page.
    On(Page),
}

/// Keys, what they do, and the words for it.
#[derive(Debug, Clone, Copy)]
pub struct Binding {
    /// Any of these.
    pub keys: &'static [Key],
    /// Does this.
    pub action: Action,
    /// Where.
    pub scope: Scope,
    /// One or two words for the footer; empty to leave it out there.
    pub hint: &'static str,
    /// One line for the help.
    pub help: &'static str,
    /// Heading in the help.
    pub group: &'static str,
}

const fn bind(
    group: &'static str,
    keys: &'static [Key],
    action: Action,
    scope: Scope,
    hint: &'static str,
    help: &'static str,
) -> Binding {
    Binding { keys, action, scope, hint, help, group }
}

const MOVE: &str = "Move";
const PAGES: &str = "Pages";
const LISTS: &str = "Lists";
const TIME: &str = "Time";
const KEEP: &str = "Keep";
const GENERAL: &str = "General";

/// Every key of the dashboard outside the filter line, in the order the footer offers them.
pub const KEYMAP: &[Binding] = {
    use Action as A;
    use Key::*;
    use Scope::*;
    &[
        bind(GENERAL, &[Char('?')], A::Help, Anywhere, "help", "this help; again or Esc to close"),
        bind(
            GENERAL,
            &[Char('q'), Ctrl('c')],
            A::Quit,
            Anywhere,
            "quit",
            "quit; what was watched goes on unharmed",
        ),
        bind(
            GENERAL,
            &[Esc, Backspace],
            A::Back,
            Anywhere,
            "",
            "back: close help, detail, filter, in that order",
        ),
        bind(
            LISTS,
            &[Enter],
            A::Open,
            Anywhere,
            "open",
            "open what is selected: process, QP, finding; run a workload",
        ),
        bind(
            LISTS,
            &[Char('/')],
            A::Filter,
            Tables,
            "filter",
            "filter: comm:ib_* qp.state=ERR reg.p99>1ms, or any word",
        ),
        bind(LISTS, &[Char('s')], A::SortNext, Tables, "sort", "sort by the next column"),
        bind(LISTS, &[Char('S')], A::SortPrevious, Tables, "", "sort by the column before"),
        bind(LISTS, &[Char('I')], A::Invert, Tables, "invert", "turn the order round"),
        bind(
            LISTS,
            &[Char('v')],
            A::NextTable,
            Tables,
            "view",
            "the page's next table: QPs, CQs, SRQs; processes, ranges, sizes",
        ),
        bind(
            LISTS,
            &[Char('b')],
            A::Group,
            On(Page::Queues),
            "group",
            "group QPs by process, by peer, by CQ, or not",
        ),
        bind(
            LISTS,
            &[Char('w')],
            A::SweepWorkload,
            On(Page::Workloads),
            "sweep",
            "measure the selected workload over its parameter, as a chart",
        ),
        bind(LISTS, &[Char('x')], A::StopWorkload, On(Page::Workloads), "stop", "stop the running workload"),
        bind(
            TIME,
            &[Char(' ')],
            A::Pause,
            Anywhere,
            "pause",
            "hold the view still while collection goes on; again to catch up",
        ),
        bind(TIME, &[Left], A::StepBack, Replay, "step", "one sample back in a replay"),
        bind(TIME, &[Right], A::StepForward, Replay, "", "one sample on in a replay"),
        bind(TIME, &[ShiftLeft, Char('[')], A::LeapBack, Replay, "", "thirty samples back"),
        bind(TIME, &[ShiftRight, Char(']')], A::LeapForward, Replay, "", "thirty samples on"),
        bind(TIME, &[Char('<')], A::ToStart, Replay, "", "to the start of the trace"),
        bind(TIME, &[Char('>')], A::ToEnd, Replay, "", "to its end"),
        bind(TIME, &[Char('p')], A::Play, Replay, "play", "play at the recorded pace; again to stop"),
        bind(
            TIME,
            &[Char('+'), Char('=')],
            A::NarrowerWindow,
            Anywhere,
            "zoom",
            "a shorter time window in the charts",
        ),
        bind(TIME, &[Char('-'), Char('_')], A::WiderWindow, Anywhere, "", "a longer one"),
        bind(KEEP, &[Char('r')], A::Record, Live, "record", "record a trace from now on; again to finish it"),
        bind(
            KEEP,
            &[Char('e')],
            A::Export,
            Anywhere,
            "export",
            "write what is on screen to a file: text, and the table as JSON",
        ),
        bind(
            KEEP,
            &[Char('y')],
            A::Copy,
            Anywhere,
            "copy",
            "copy the finding or row to the clipboard (OSC 52)",
        ),
        bind(PAGES, &[Tab], A::NextPage, Anywhere, "", "next page"),
        bind(PAGES, &[BackTab], A::PreviousPage, Anywhere, "", "page before"),
        bind(
            PAGES,
            &[Char('1')],
            A::Go(Page::Overview),
            Anywhere,
            "",
            "Overview: devices, processes, findings, probes",
        ),
        bind(
            PAGES,
            &[Char('2')],
            A::Go(Page::Registration),
            Anywhere,
            "",
            "Registration: what it costs, and who does it",
        ),
        bind(PAGES, &[Char('3')], A::Go(Page::Queues), Anywhere, "", "Queues: QPs, CQs, SRQs"),
        bind(
            PAGES,
            &[Char('4')],
            A::Go(Page::DataPath),
            Anywhere,
            "",
            "Data path: posts, completions, latency",
        ),
        bind(
            PAGES,
            &[Char('5')],
            A::Go(Page::Findings),
            Anywhere,
            "",
            "Findings: what is wrong, why, what would help",
        ),
        bind(
            PAGES,
            &[Char('6')],
            A::Go(Page::Workloads),
            Anywhere,
            "",
            "Workloads: slow against fast, on this device",
        ),
        bind(
            PAGES,
            &[Char('7')],
            A::Go(Page::Nic),
            Anywhere,
            "",
            "NIC: ports, counters, the emulated device's inside",
        ),
        bind(PAGES, &[Char('8')], A::Go(Page::Probes), Anywhere, "", "Probes: verdict of each"),
        bind(MOVE, &[Up, Char('k')], A::Up, Anywhere, "", "up"),
        bind(MOVE, &[Down, Char('j')], A::Down, Anywhere, "", "down"),
        bind(MOVE, &[PageUp, Ctrl('b')], A::PageUp, Anywhere, "", "a screenful up"),
        bind(MOVE, &[PageDown, Ctrl('f')], A::PageDown, Anywhere, "", "a screenful down"),
        bind(MOVE, &[Home, Char('g')], A::Top, Anywhere, "", "to the first"),
        bind(MOVE, &[End, Char('G')], A::Bottom, Anywhere, "", "to the last"),
        bind(
            GENERAL,
            &[Char('t')],
            A::Theme,
            Anywhere,
            "",
            "next theme: dark, light, colour-blind safe, none",
        ),
    ]
};

/// What `key` is bound to, if anything.
pub fn lookup(key: Key) -> Option<&'static Binding> {
    KEYMAP.iter().find(|binding| binding.keys.contains(&key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_bound_twice() {
        let keys: Vec<Key> = KEYMAP.iter().flat_map(|b| b.keys).copied().collect();
        for (i, key) in keys.iter().enumerate() {
            assert!(!keys[..i].contains(key), "'{key}' is bound twice");
        }
    }

    #[test]
    fn every_page_has_its_digit() {
        for page in Page::ALL {
            let digit = char::from_digit(page.index() as u32 + 1, 10).unwrap();
            assert_eq!(lookup(Key::Char(digit)).map(|b| b.action), Some(Action::Go(page)));
        }
    }

    #[test]
    fn every_binding_explains_itself() {
        for binding in KEYMAP {
            assert!(!binding.help.is_empty() && !binding.keys.is_empty());
            assert!(binding.hint.len() <= 8, "'{}' is too long for the footer", binding.hint);
        }
    }
}
