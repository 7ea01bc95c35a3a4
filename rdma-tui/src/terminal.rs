//! The terminal, taken over and given back: on a normal end, an error, a panic or a signal.

use std::io::{self, Stdout, Write, stdout};
use std::panic;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread;

use crossterm::cursor::{Hide, Show};
use crossterm::execute;
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::feed::Input;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal while it is ours; dropping it gives it back.
pub struct Screen {
    /// Where frames go.
    pub terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// When standard output is no terminal, or refuses.
    pub fn take() -> io::Result<Self> {
        enable_raw_mode()?;
        TAKEN.store(true, Ordering::SeqCst);
        // Not `Terminal::clear`: that asks the terminal where its cursor is, and some never answer.
        let taken = execute!(stdout(), EnterAlternateScreen, Clear(ClearType::All), Hide)
            .and_then(|()| Ok(Self { terminal: Terminal::new(CrosstermBackend::new(stdout()))? }));
        if taken.is_err() {
            give_back();
        }
        taken
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back; once, whoever asks first.
pub fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        // A terminal that is gone needs nothing.
        let _ = execute!(stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
        let _ = stdout().flush();
    }
}

/// From now on a panic gives the terminal back, and says where its details are instead of printing them over it.
pub fn on_panic(log: PathBuf) {
    panic::set_hook(Box::new(move |info| {
        give_back();
        let written = std::fs::File::options().append(true).create(true).open(&log).and_then(|mut file| {
            writeln!(file, "rdma-tui: {info}\n{}", std::backtrace::Backtrace::force_capture())
        });
        eprintln!("rdma-tui: a defect ended it; what was watched goes on unharmed.");
        match written {
            Ok(()) => eprintln!("rdma-tui: please report it with the last lines of '{}'", log.display()),
            Err(_) => eprintln!("rdma-tui: please report: {info}"),
        }
        // A thread of ours that is gone would leave a screen that never changes again.
        std::process::exit(1);
    }));
}

/// Turns the signals that ask to end into inputs. A second one ends at once: the first may have met a terminal that
/// no longer takes what is written to it.
///
/// # Errors
/// When they cannot be handled.
pub fn on_signals(inputs: SyncSender<Input>) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGHUP, SIGINT, SIGQUIT])?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let mut first = true;
        for signal in &mut signals {
            if first && inputs.try_send(Input::Signal(signal)).is_ok() {
                first = false;
                continue;
            }
            give_back();
            std::process::exit(128 + signal);
        }
    })?;
    Ok(())
}
