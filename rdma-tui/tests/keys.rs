//! Every key of the table, and what it does to the state.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::collections::BTreeSet;

use rdma_tui::app::key::Key;
use rdma_tui::app::keymap::{KEYMAP, Scope};
use rdma_tui::app::page::Page;
use rdma_tui::app::table::{Group, TableId};
use rdma_tui::app::workload::{Running, Swept, Workload};
use rdma_tui::app::world::{Origin, World};
use rdma_tui::app::{App, Effect, Step};

/// A case: keys that bring about the state before, the key tried, and what must then hold.
struct Case {
    before: &'static [Key],
    key: Key,
    effect: Option<Effect>,
    holds: fn(&App) -> bool,
}

fn case(before: &'static [Key], key: Key, effect: Option<Effect>, holds: fn(&App) -> bool) -> Case {
    Case { before, key, effect, holds }
}

fn any(_: &App) -> bool {
    true
}

fn selected(app: &App) -> usize {
    app.table_id().map_or(usize::MAX, |table| app.table(table).selected)
}

fn step(step: Step) -> Option<Effect> {
    Some(Effect::Replay(step))
}

/// The made world with rows for every table: 10 rows fit a screen.
fn world(origin: Origin) -> World {
    let mut world = common::world(&common::made::troubled_host());
    world.source.origin = origin;
    let workload = |name: &str| Workload { name: name.into(), ..Workload::default() };
    world.workloads.list = vec![workload("inline"), workload("registration")];
    world.workloads.list[0].sweep = Some(Swept { parameter: "size".into() });
    world
}

const Q: Key = Key::Char('3');

fn replay_cases() -> Vec<Case> {
    use Key::*;
    vec![
        case(&[], Char('?'), None, |a| a.help == Some(0)),
        case(&[Char('?')], Char('?'), None, |a| a.help.is_none()),
        case(&[], Char('q'), Some(Effect::Quit), any),
        case(&[], Ctrl('c'), Some(Effect::Quit), any),
        case(&[Char('?')], Esc, None, |a| a.help.is_none()),
        case(&[Enter], Backspace, None, |a| a.details.is_empty()),
        case(&[], Enter, None, |a| a.details.len() == 1),
        case(&[Enter], Enter, None, |a| {
            a.page == Page::Queues && a.details.is_empty() && a.table(TableId::Qps).filter_text == "pid=4711"
        }),
        case(&[Char('6')], Enter, Some(Effect::RunWorkload("inline".into())), any),
        case(&[], Char('/'), None, |a| a.filter_line.is_some()),
        case(&[], Char('s'), None, |a| a.table(TableId::Processes).sort == 4),
        case(&[], Char('S'), None, |a| a.table(TableId::Processes).sort == 2),
        case(&[], Char('I'), None, |a| !a.table(TableId::Processes).descending),
        case(&[Q], Char('v'), None, |a| a.table_id() == Some(TableId::Cqs)),
        case(&[Q, Char('v'), Char('v')], Char('v'), None, |a| a.table_id() == Some(TableId::Qps)),
        case(&[Q], Char('b'), None, |a| a.table(TableId::Qps).group == Group::Process),
        case(&[Q, Char('b'), Char('b'), Char('b')], Char('b'), None, |a| {
            a.table(TableId::Qps).group == Group::None
        }),
        case(&[Char('6')], Char('w'), Some(Effect::SweepWorkload("inline".into())), any),
        case(&[Char('6')], Char('x'), None, |a| a.message.is_some()),
        case(&[], Char(' '), Some(Effect::Hold(true)), |a| a.paused),
        case(&[Char(' ')], Char(' '), Some(Effect::Hold(false)), |a| !a.paused),
        case(&[], Left, step(Step::By(-1)), any),
        case(&[], Right, step(Step::By(1)), any),
        case(&[], ShiftLeft, step(Step::By(-30)), any),
        case(&[], Char('['), step(Step::By(-30)), any),
        case(&[], ShiftRight, step(Step::By(30)), any),
        case(&[], Char(']'), step(Step::By(30)), any),
        case(&[], Char('<'), step(Step::Start), any),
        case(&[], Char('>'), step(Step::End), any),
        case(&[], Char('p'), step(Step::Play), any),
        case(&[Char(' ')], Left, None, |a| a.message.is_some()),
        case(&[], Char('+'), None, |a| a.window.title() == "1 min"),
        case(&[], Char('='), None, |a| a.window.title() == "1 min"),
        case(&[], Char('-'), None, |a| a.window.title() == "5 min"),
        case(&[], Char('_'), None, |a| a.window.title() == "5 min"),
        case(&[], Char('e'), Some(Effect::Export), any),
        case(&[], Char('t'), Some(Effect::NextTheme), any),
        case(&[], Tab, None, |a| a.page == Page::Registration),
        case(&[], BackTab, None, |a| a.page == Page::Probes),
        case(&[Tab], Char('1'), None, |a| a.page == Page::Overview),
        case(&[], Char('2'), None, |a| a.page == Page::Registration),
        case(&[], Char('3'), None, |a| a.page == Page::Queues),
        case(&[], Char('4'), None, |a| a.page == Page::DataPath),
        case(&[], Char('5'), None, |a| a.page == Page::Findings),
        case(&[], Char('6'), None, |a| a.page == Page::Workloads),
        case(&[], Char('7'), None, |a| a.page == Page::Nic),
        case(&[], Char('8'), None, |a| a.page == Page::Probes),
        case(&[Q], Down, None, |a| selected(a) == 1),
        case(&[Q], Char('j'), None, |a| selected(a) == 1),
        case(&[Q, Down, Down], Up, None, |a| selected(a) == 1),
        case(&[Q, Down, Down], Char('k'), None, |a| selected(a) == 1),
        case(&[Q], PageDown, None, |a| selected(a) == 9),
        case(&[Q], Ctrl('f'), None, |a| selected(a) == 9),
        case(&[Q, PageDown, PageDown], PageUp, None, |a| selected(a) == 9),
        case(&[Q, PageDown, PageDown], Ctrl('b'), None, |a| selected(a) == 9),
        case(&[Q], End, None, |a| selected(a) == 268),
        case(&[Q], Char('G'), None, |a| selected(a) == 268),
        case(&[Q, End], Home, None, |a| selected(a) == 0),
        case(&[Q, End], Char('g'), None, |a| selected(a) == 0),
        case(&[Char('?')], Down, None, |a| a.help == Some(1)),
        case(&[Enter], Down, None, |a| a.details[0].1 == 1),
    ]
}

fn live_cases() -> Vec<Case> {
    vec![
        case(&[], Key::Char('r'), Some(Effect::StartRecording), any),
        case(&[], Key::Left, None, |a| a.message.as_ref().is_some_and(|m| m.text.contains("--replay"))),
    ]
}

fn app(origin: Origin) -> App {
    let app = App::new(origin);
    for table in TableId::ALL {
        app.table(table).height.set(10);
    }
    app
}

fn check(case: &Case, origin: Origin) {
    let world = world(origin);
    let mut app = app(origin);
    for key in case.before {
        app.key(*key, &world);
    }
    let effect = app.key(case.key, &world);
    let name = format!("'{}' after {:?}", case.key, case.before);
    assert_eq!(effect, case.effect, "{name}");
    assert!((case.holds)(&app), "{name}: {app:?}");
}

#[test]
fn every_key_does_what_the_table_says() {
    replay_cases().iter().for_each(|case| check(case, Origin::Replay));
    live_cases().iter().for_each(|case| check(case, Origin::Live));
}

#[test]
fn no_key_of_the_table_is_untested() {
    let copied = Key::Char('y');
    let tested: BTreeSet<String> = replay_cases()
        .iter()
        .chain(&live_cases())
        .map(|case| case.key.to_string())
        .chain([copied.to_string()])
        .collect();
    for binding in KEYMAP {
        for key in binding.keys {
            assert!(tested.contains(&key.to_string()), "'{key}' ({:?}) has no case", binding.action);
        }
    }
}

#[test]
fn copying_takes_every_cell_of_the_selected_row() {
    let world = world(Origin::Replay);
    let mut app = app(Origin::Replay);
    let Some(Effect::Copy(text)) = app.key(Key::Char('y'), &world) else { panic!("nothing was copied") };
    assert!(text.contains("pid: 4711\n") && text.contains("comm: kv-store\n"), "{text}");
}

#[test]
fn recording_ends_with_the_key_that_began_it() {
    let mut world = world(Origin::Live);
    world.source.recording = Some("x.trace".into());
    assert_eq!(app(Origin::Live).key(Key::Char('r'), &world), Some(Effect::StopRecording));
}

#[test]
fn a_running_workload_is_stopped_and_no_second_one_started() {
    let mut world = world(Origin::Live);
    world.workloads.running = Some(Running { name: "inline".into(), ..Running::default() });
    let mut app = app(Origin::Live);
    app.key(Key::Char('6'), &world);
    for key in [Key::Enter, Key::Char('w')] {
        app.message = None;
        assert_eq!(app.key(key, &world), None);
        assert!(app.message.is_some());
    }
    assert_eq!(app.key(Key::Char('x'), &world), Some(Effect::StopWorkload));
}

#[test]
fn a_workload_that_has_a_parameter_is_swept_and_another_says_that_it_has_none() {
    let world = world(Origin::Live);
    let mut app = app(Origin::Live);
    app.key(Key::Char('6'), &world);
    assert_eq!(app.key(Key::Char('w'), &world), Some(Effect::SweepWorkload("inline".into())));
    app.key(Key::Down, &world);
    assert_eq!(app.key(Key::Char('w'), &world), None);
    assert!(app.message.is_some());
}

#[test]
fn keys_out_of_scope_say_why() {
    let world = world(Origin::Replay);
    for binding in KEYMAP {
        let page = match binding.scope {
            // Every page has a table now.
            Scope::Tables | Scope::Anywhere | Scope::Replay => continue,
            Scope::On(_) => Page::Probes,
            Scope::Live => Page::Overview,
        };
        let mut app = app(Origin::Replay);
        app.page = page;
        assert_eq!(app.key(binding.keys[0], &world), None, "{}", binding.keys[0]);
        assert!(app.message.is_some(), "{} on {}", binding.keys[0], page.title());
    }
}

#[test]
fn unbound_keys_change_nothing() {
    let world = world(Origin::Replay);
    let mut app = app(Origin::Replay);
    for key in [Key::Char('é'), Key::Char('\u{7f}'), Key::Ctrl('z'), Key::Delete] {
        assert_eq!(app.key(key, &world), None);
        assert_eq!(app.page, Page::Overview);
    }
}

fn type_text(app: &mut App, world: &World, text: &str) {
    for c in text.chars() {
        app.key(Key::Char(c), world);
    }
}

#[test]
fn a_filter_acts_while_it_is_typed_and_esc_brings_the_old_one_back() {
    let world = world(Origin::Replay);
    let mut app = app(Origin::Replay);
    app.key(Q, &world);
    app.key(Key::Char('/'), &world);
    type_text(&mut app, &world, "qp.signal_all:yes");
    assert_eq!(app.table(TableId::Qps).rows.len(), 256);
    app.key(Key::Enter, &world);
    assert!(app.filter_line.is_none());

    app.key(Key::Char('/'), &world);
    type_text(&mut app, &world, " qpn<1008");
    assert_eq!(app.table(TableId::Qps).rows.len(), 8);
    app.key(Key::Esc, &world);
    assert_eq!(app.table(TableId::Qps).rows.len(), 256);
    app.key(Key::Esc, &world);
    assert_eq!(app.table(TableId::Qps).rows.len(), 269, "Esc on the page clears the filter");
}

#[test]
fn a_filter_that_cannot_be_understood_stays_open_and_keeps_the_last_good_rows() {
    let world = world(Origin::Replay);
    let mut app = app(Origin::Replay);
    app.key(Q, &world);
    app.key(Key::Char('/'), &world);
    type_text(&mut app, &world, "qpn>1250x");
    let line = app.filter_line.as_ref().unwrap();
    assert_eq!(line.error.as_ref().map(|e| (e.at, e.len)), Some((4, 5)));
    app.key(Key::Enter, &world);
    assert!(app.filter_line.is_some());
    assert_eq!(app.table(TableId::Qps).rows.len(), 6, "QPNs 1251 to 1255, and 9999");
}

#[test]
fn the_selection_stays_with_its_row_when_the_order_changes() {
    let world = world(Origin::Replay);
    let mut app = app(Origin::Replay);
    app.key(Q, &world);
    for _ in 0..20 {
        app.key(Key::Down, &world);
    }
    let before = app.table(TableId::Qps).selection().cloned();
    app.key(Key::Char('I'), &world);
    assert_eq!(app.table(TableId::Qps).selection().cloned(), before);
    assert_ne!(selected(&app), 20);
}

#[test]
fn a_table_keeps_its_sort_and_selection_while_other_pages_are_shown() {
    let world = world(Origin::Replay);
    let mut app = app(Origin::Replay);
    for key in [Q, Key::Char('s'), Key::Down, Key::Down, Key::Tab, Key::Char('3')] {
        app.key(key, &world);
    }
    assert_eq!(selected(&app), 2);
    assert_eq!(app.table(TableId::Qps).sort, 1);
}

#[test]
fn everything_bears_any_sequence_of_keys() {
    let world = world(Origin::Replay);
    let empty = World::new(Origin::Replay, "nothing");
    let keys: Vec<Key> = KEYMAP
        .iter()
        .flat_map(|b| b.keys)
        .copied()
        .chain([Key::Char('"'), Key::Char('('), Key::Delete])
        .collect();
    let mut dice = common::made::Dice::new(11);
    for world in [&world, &empty] {
        let mut app = app(Origin::Replay);
        for _ in 0..5_000 {
            app.key(keys[dice.below(keys.len() as u64) as usize], world);
        }
    }
}
