//! `cargo xtask bench tui`: the dashboard on a host of 10,000 queue pairs and 1,000 processes.
//!
//! Arguments: `--seconds N` for the length of the trace (default 120), `--check` to fail where a bound is exceeded.

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use probe_user::sample::Record;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use rdma_tui::app::App;
use rdma_tui::app::key::Key;
use rdma_tui::app::page::Page;
use rdma_tui::app::world::{Origin, World};
use rdma_tui::feed;
use rdma_tui::theme::{Depth, Name, Theme};
use rdma_tui::view;

/// Longest frame, as issue and users have it: sixty a second.
const FRAME: Duration = Duration::from_millis(16);

/// Frames measured of each page.
const FRAMES: usize = 100;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let seconds = arguments
        .iter()
        .position(|a| a == "--seconds")
        .and_then(|i| arguments.get(i + 1)?.parse().ok())
        .unwrap_or(120);
    let check = arguments.iter().any(|a| a == "--check");
    let records = common::made::large_host(1000, 10_000, seconds);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = common::file(folder.path(), "large.trace", &records);
    let size = std::fs::metadata(&path).map_or(0, |m| m.len());
    println!(
        "trace: 10,000 QPs, 1,000 processes, {seconds} s: {} records, {} MB",
        records.len(),
        size / 1_000_000
    );
    let mut exceeded = false;

    let begun = Instant::now();
    let world = feed::replay::load(&path, Some(1)).expect("the trace is read");
    println!("first screen of a replay can be drawn after {:.0?}", begun.elapsed());
    drop(world);
    let (begun, begun_cpu) = (Instant::now(), cpu());
    let mut world = feed::replay::load(&path, None).expect("the trace is read");
    let (open, open_cpu) = (begun.elapsed(), cpu() - begun_cpu);
    let speed = size as f64 / 1e6 / open_cpu.as_secs_f64();
    println!("whole trace read in {open:.2?}, {open_cpu:.2?} of CPU ({speed:.0} MB/s)");
    println!("resident memory {} MiB", resident_mib());

    println!("CPU time of a frame of 200 × 60:");
    println!("{:<14} {:>12} {:>12} {:>14} {:>14}", "page", "p50", "p99", "new data p50", "new data p99");
    for page in Page::ALL {
        let (still, fresh) = frames(page, &mut world);
        let at = |times: &[Duration], q: usize| times[(times.len() - 1) * q / 100];
        let over = at(&still, 99).max(at(&fresh, 99)) > FRAME;
        exceeded |= over;
        let mark = if over { "  over 16 ms" } else { "" };
        println!(
            "{:<14} {:>12.2?} {:>12.2?} {:>14.2?} {:>14.2?}{mark}",
            page.slug(),
            at(&still, 50),
            at(&still, 99),
            at(&fresh, 50),
            at(&fresh, 99)
        );
    }
    steady(&records);
    if check && exceeded {
        eprintln!("bench: a frame took longer than {FRAME:?}");
        std::process::exit(1);
    }
}

/// Frame times, shortest first: with the order of the tables known, and after new data.
fn frames(page: Page, world: &mut World) -> (Vec<Duration>, Vec<Duration>) {
    let theme = Theme::new(Name::Dark, Depth::True, false);
    let mut app = App::new(Origin::Replay);
    app.page = page;
    let mut buffer = Buffer::empty(Rect::new(0, 0, 200, 60));
    let draw = |app: &mut App, world: &World, buffer: &mut Buffer| {
        let begun = cpu();
        buffer.reset();
        app.refresh(world);
        view::draw(buffer, app, world, &theme);
        cpu() - begun
    };
    draw(&mut app, world, &mut buffer);
    let mut still: Vec<Duration> = (0..FRAMES)
        .map(|_| {
            app.key(Key::Down, world);
            draw(&mut app, world, &mut buffer)
        })
        .collect();
    let mut fresh: Vec<Duration> = (0..FRAMES)
        .map(|_| {
            world.touch();
            draw(&mut app, world, &mut buffer)
        })
        .collect();
    still.sort_unstable();
    fresh.sort_unstable();
    (still, fresh)
}

/// What a live dashboard costs once a second: taking in what came, and a frame of the dearest page.
fn steady(records: &[Record]) {
    let mut world = World::new(Origin::Live, "whole host");
    let theme = Theme::new(Name::Dark, Depth::True, false);
    let mut app = App::new(Origin::Live);
    app.page = Page::Queues;
    let mut buffer = Buffer::empty(Rect::new(0, 0, 200, 60));
    let mut judging = Vec::new();
    let (mut seconds, mut busy, mut warm) = (0_u32, Duration::ZERO, false);
    for record in records {
        let begun = cpu();
        world.push(record);
        if matches!(record, Record::Sample(_)) {
            let before = cpu();
            world.diagnose();
            judging.push(cpu() - before);
            buffer.reset();
            app.refresh(&world);
            view::draw(&mut buffer, &app, &world, &theme);
            if warm {
                seconds += 1;
            }
        }
        if warm {
            busy += cpu() - begun;
        }
        // The first second creates all the queue pairs.
        warm |= matches!(record, Record::Sample(_));
    }
    let share = busy.as_secs_f64() / f64::from(seconds.max(1)) * 100.0;
    println!(
        "steady: {:.2} ms of CPU per second of live data, {share:.2} % of a core (terminal output not counted)",
        share * 10.0
    );
    judging.sort_unstable();
    if let (Some(median), Some(longest)) = (judging.get(judging.len() / 2), judging.last()) {
        println!(
            "of which the rules, beside collection: {median:.2?} per sample in the median, {longest:.2?} at most"
        );
    }
}

/// CPU time of this thread: what a frame costs, whatever else the machine does.
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0) / 1024
}
