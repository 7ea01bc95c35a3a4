//! `rdma-tui`: the live dashboard.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use rdma_tui::app::App;
use rdma_tui::app::page::Page;
use rdma_tui::app::world::{Origin, Status, World};
use rdma_tui::cli::Cli;
use rdma_tui::feed::collector::Targets;
use rdma_tui::feed::workloads::Workloads;
use rdma_tui::feed::{Shared, live, replay};
use rdma_tui::output::{json, svg, text};
use rdma_tui::run::{Dashboard, End};
use rdma_tui::theme::{Depth, Name, Theme};
use rdma_tui::{input, terminal};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rdma-tui: {error:#}");
            ExitCode::from(1)
        }
    }
}

/// `rdma-tui --headless | head` closes our output early: the reader has what he wanted, nothing failed.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

fn run(cli: &Cli) -> Result<ExitCode> {
    if let Some(folder) = &cli.svg {
        return pictures(cli, folder);
    }
    if cli.headless {
        return headless(cli);
    }
    if !io::stdout().is_terminal() {
        bail!("standard output is not a terminal: use --headless for text, --headless --json for programs");
    }
    dashboard(cli)
}

fn dashboard(cli: &Cli) -> Result<ExitCode> {
    let log = log_file(cli)?;
    let depth = depth();
    let ascii = cli.ascii || !is_utf8();
    let theme = Theme::new(theme(cli), depth, ascii);
    let (shared, inputs) = Shared::new(world(cli));
    terminal::on_panic(log.clone());
    terminal::on_signals(shared.inputs()).context("cannot handle signals")?;
    let (steps, live) = source(cli, &shared, &log)?;
    let origin = shared.read().source.origin;
    let app = App::new(origin);
    let workloads = Workloads::start(shared.clone());
    let folder = cli.folder.clone();
    let mut dashboard = Dashboard { app, shared, theme, depth, steps, live, workloads, folder, held: None };

    let mut screen = terminal::Screen::take().context("cannot use this terminal")?;
    input::start(dashboard.shared.inputs()).context("cannot read the keyboard")?;
    let end = dashboard.run(&mut screen, &inputs);
    drop(screen);
    // Where the command ended before the reader quit, its status is ours, as a shell's would be.
    let status = dashboard.command_status();
    dashboard.close(&inputs);
    if let Some(why) = dashboard.last_words() {
        eprintln!("rdma-tui: {why}");
    }
    match end.context("cannot write to the terminal")? {
        End::Quit => Ok(status.map_or(ExitCode::SUCCESS, |status| ExitCode::from(status as u8))),
        End::Signal(signal) => Ok(ExitCode::from(128_u8.wrapping_add(signal as u8))),
        End::TerminalLost(why) => bail!("the terminal is gone: {why}"),
    }
}

fn world(cli: &Cli) -> World {
    match &cli.replay {
        Some(path) if path.as_os_str() == "-" => World::new(Origin::Live, "standard input"),
        Some(path) => World::new(Origin::Replay, replay::name_of(path)),
        None => World::new(Origin::Live, targets(cli).title()),
    }
}

fn targets(cli: &Cli) -> Targets {
    Targets { pids: cli.pids.clone(), command: cli.command.clone(), interval: Some(cli.interval) }
}

type Started = (Option<std::sync::mpsc::Sender<rdma_tui::app::Step>>, Option<live::Live>);

fn source(cli: &Cli, shared: &Shared, log: &Path) -> Result<Started> {
    match &cli.replay {
        Some(path) if path.as_os_str() == "-" => {
            live::from_stdin(shared.clone()).context("cannot read standard input")?;
            Ok((None, None))
        }
        Some(path) => Ok((Some(replay::start(path, shared.clone())?), None)),
        None => Ok((None, Some(live::start(&targets(cli), log, shared.clone())?))),
    }
}

fn headless(cli: &Cli) -> Result<ExitCode> {
    let world = match &cli.replay {
        Some(path) if path.as_os_str() != "-" => {
            let (shared, _inputs) = Shared::new(replay::load(path, None)?);
            Workloads::idle(shared.clone()).ask();
            shared.read().clone()
        }
        _ => watch(cli)?,
    };
    let mut out = io::stdout().lock();
    if cli.json {
        writeln!(out, "{:#}", json::everything(&world))?;
    } else {
        let theme = Theme::new(Name::None, Depth::None, cli.ascii || !is_utf8());
        for page in Page::ALL {
            let buffer = text::render(page, &world, &theme, cli.size, |_| {});
            writeln!(out, "{}", text::lines(&buffer))?;
        }
    }
    match &world.source.status {
        Status::Failed(why) => bail!("{why}"),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Watches for the time asked for, or until what is watched ends, or a signal comes.
fn watch(cli: &Cli) -> Result<World> {
    let (shared, inputs) = Shared::new(world(cli));
    terminal::on_signals(shared.inputs()).context("cannot handle signals")?;
    let (_, live) = source(cli, &shared, &log_file(cli)?)?;
    Workloads::idle(shared.clone()).ask();
    let until = Instant::now() + cli.duration;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if shared.has_ended() || left.is_zero() {
            break;
        }
        if let Ok(rdma_tui::feed::Input::Signal(_)) =
            inputs.recv_timeout(left.min(Duration::from_millis(500)))
        {
            break;
        }
        shared.take_change();
    }
    if let Some(live) = live {
        live.end();
        // The collector answers with a last sample and the footer.
        let patience = Instant::now() + Duration::from_secs(6);
        while Instant::now() < patience && !shared.has_ended() {
            let _ = inputs.recv_timeout(Duration::from_millis(50));
            shared.take_change();
        }
    }
    // Whatever came since the last sample was judged.
    shared.diagnose();
    let world = shared.read().clone();
    Ok(world)
}

fn pictures(cli: &Cli, folder: &Path) -> Result<ExitCode> {
    let path = cli.replay.as_deref().context("--svg needs --replay")?;
    let (shared, _inputs) = Shared::new(replay::load(path, None)?);
    Workloads::idle(shared.clone()).ask();
    let world = shared.read();
    fs::create_dir_all(folder).with_context(|| format!("cannot make folder '{}'", folder.display()))?;
    let name = theme(cli);
    let theme = Theme::new(name, Depth::True, cli.ascii);
    let paper = if name == Name::Light { svg::LIGHT } else { svg::DARK };
    for page in Page::ALL {
        let buffer = text::render(page, &world, &theme, cli.size, |_| {});
        let title = format!("The dashboard's {} page", page.title());
        let file = folder.join(format!("{}.svg", page.slug()));
        fs::write(&file, svg::svg(&buffer, &title, paper))
            .with_context(|| format!("cannot write '{}'", file.display()))?;
        println!("{}", file.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn theme(cli: &Cli) -> Name {
    cli.theme.unwrap_or_default()
}

fn depth() -> Depth {
    let variable = |name: &str| std::env::var_os(name);
    Depth::of_environment(
        variable("NO_COLOR").as_deref(),
        variable("COLORTERM").as_deref(),
        variable("TERM").as_deref(),
    )
}

/// Whether the locale is UTF-8, by the variables in their order of precedence. Where none is set, most terminals of
/// today are; containers rarely set any.
fn is_utf8() -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| std::env::var_os(name).filter(|value| !value.is_empty()));
    set.is_none_or(|value| {
        let value = value.to_string_lossy().to_lowercase();
        value.contains("utf-8") || value.contains("utf8")
    })
}

/// The log; its folder is made where it is missing.
fn log_file(cli: &Cli) -> Result<PathBuf> {
    if let Some(path) = &cli.log {
        return Ok(path.clone());
    }
    let folder = std::env::var_os("XDG_STATE_HOME")
        .filter(|value| Path::new(value).is_absolute())
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".local/state")))
        .filter(|folder| folder.as_os_str() != OsStr::new(""))
        .unwrap_or_else(std::env::temp_dir);
    match fs::create_dir_all(&folder) {
        Ok(()) => Ok(folder.join("rdma-tui.log")),
        Err(error) => {
            bail!("cannot make folder '{}' for the log: {error}; choose a file with --log", folder.display())
        }
    }
}
