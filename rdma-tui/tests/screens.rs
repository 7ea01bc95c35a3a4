//! Every page at three sizes, as a reader sees it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use rdma_tui::app::page::Page;
use rdma_tui::app::world::{Origin, Status, World};
use rdma_tui::output::text::{lines, render};
use rdma_tui::theme::{Depth, Name, Theme};

const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 60)];

fn theme() -> Theme {
    Theme::new(Name::Dark, Depth::True, false)
}

#[test]
fn every_page_at_every_size() {
    let world = common::world(&common::made::troubled_host());
    for page in Page::ALL {
        for size in SIZES {
            let screen = lines(&render(page, &world, &theme(), size, |_| {}));
            insta::assert_snapshot!(format!("{}-{}x{}", page.slug(), size.0, size.1), screen);
        }
    }
}

#[test]
fn opened_rows_and_help() {
    use rdma_tui::app::key::Key;
    let world = common::world(&common::made::troubled_host());
    for (name, page, keys) in [
        ("process", Page::Overview, &[Key::Enter][..]),
        ("qp", Page::Queues, &[Key::Down, Key::Enter]),
        ("cq", Page::Queues, &[Key::Char('v'), Key::Enter]),
        ("probe", Page::Probes, &[Key::Enter]),
        ("help", Page::Queues, &[Key::Char('?')]),
        ("grouped", Page::Queues, &[Key::Char('b'), Key::Char('b'), Key::Char('b')]),
        ("ranges", Page::Registration, &[Key::Char('v')]),
        ("sites", Page::Registration, &[Key::Char('v'), Key::Char('v')]),
    ] {
        let screen = lines(&render(page, &world, &theme(), (120, 40), |app| {
            keys.iter().for_each(|key| _ = app.key(*key, &world));
        }));
        insta::assert_snapshot!(name, screen);
    }
}

#[test]
fn an_emulated_device_shows_its_inside() {
    let mut device = common::made::device("emu0", "rnic-emu", true);
    let figures = [
        ("now_ps", 8_000_000_000),
        ("completed", 12_000),
        ("qpc_lookups", 12_000),
        ("qpc_hits", 9_000),
        ("mtt_lookups", 24_000),
        ("mtt_hits", 23_976),
        ("pu_busy_ps", 9_600_000_000),
        ("port_busy_ps", 2_000_000_000),
        ("stage_doorbell_ps", 2_400_000_000),
        ("stage_wqe_fetch_ps", 7_200_000_000),
        ("stage_wire_ps", 4_800_000_000),
        ("stage_context_miss_ps", 3_600_000_000),
    ];
    let counters = figures.map(|(name, value)| (format!("{}{name}", rdma_tui::app::inside::PREFIX), value));
    device.ports[0].counters.extend(counters);
    let world = common::world(&common::made::Made::new("lab3", vec![device]).records);
    for size in SIZES {
        let screen = lines(&render(Page::Nic, &world, &theme(), size, |_| {}));
        insta::assert_snapshot!(format!("nic-inside-{}x{}", size.0, size.1), screen);
    }
}

#[test]
fn a_small_terminal_shows_a_message_and_smaller_ones_do_not_fail() {
    let world = common::world(&common::made::troubled_host());
    let message = lines(&render(Page::Overview, &world, &theme(), (40, 12), |_| {}));
    assert!(message.contains("40 × 12") && message.contains("60 × 16"), "{message}");
    for width in [1, 2, 3, 10, 59, 60, 61, 79, 99, 100, 149, 150, 500] {
        for height in [1, 2, 3, 15, 16, 17, 23, 29, 30, 37, 100] {
            for page in Page::ALL {
                render(page, &world, &theme(), (width, height), |_| {});
            }
        }
    }
}

#[test]
fn pages_without_data_say_why() {
    for (status, says) in [
        (Status::Waiting, "waiting for the first sample"),
        (Status::Loading, "being read"),
        (Status::Failed("the collector is gone".into()), "the collector is gone"),
        (Status::Ended("duration".into()), "no data"),
    ] {
        let mut world = World::new(Origin::Live, "whole host");
        world.source.status = status;
        for page in Page::ALL.into_iter().filter(|page| *page != Page::Workloads) {
            let screen = lines(&render(page, &world, &theme(), (80, 24), |_| {}));
            let flat = screen.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(flat.contains(says), "{}: {screen}", page.title());
        }
    }
}

#[test]
fn ascii_screens_hold_ascii_only_and_screens_without_colour_none() {
    let world = common::world(&common::made::troubled_host());
    for page in Page::ALL {
        let screen =
            lines(&render(page, &world, &Theme::new(Name::Dark, Depth::Sixteen, true), (120, 40), |_| {}));
        assert!(screen.is_ascii(), "{screen}");
        let plain = render(page, &world, &Theme::new(Name::None, Depth::True, false), (120, 40), |_| {});
        let reset = ratatui::style::Color::Reset;
        assert!(plain.content.iter().all(|cell| cell.fg == reset && cell.bg == reset));
    }
}

#[test]
fn names_from_other_programs_cannot_write_to_the_terminal() {
    let mut made =
        common::made::Made::new("host\x1b[2J", vec![common::made::device("mlx\x07", "d\x1b]0;x\x07", false)]);
    let id = made.process(1, "evil\x1b[31m", "/c\rg");
    made.register(id, 0, 4096);
    made.cq(id, 1, 0);
    made.qp(id, 7, "R\x1bC", 1, 1, true, "x\x1b[0m", &["RTS\x1b[1m"]);
    made.sample(1, 1);
    let world = common::world(&made.end("x\x1b[2J"));
    for page in Page::ALL {
        let buffer = render(page, &world, &theme(), (200, 60), |_| {});
        let bad = buffer.content.iter().find(|cell| cell.symbol().chars().any(char::is_control));
        assert!(bad.is_none(), "{}: {bad:?}", page.title());
    }
}
