//! The real program in a pseudo-terminal: started, typed at, resized, ended, and the terminal given back.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use portable_pty::{Child, CommandBuilder, ExitStatus, MasterPty, PtySize, native_pty_system};

/// Longest wait for anything: a loaded machine running an unoptimised build.
const PATIENCE: Duration = Duration::from_secs(30);

struct Session {
    master: Box<dyn MasterPty + Send>,
    child: Box<dyn Child + Send + Sync>,
    keyboard: Box<dyn Write + Send>,
    output: Arc<Mutex<Output>>,
}

/// What came out: as a terminal shows it, and in how far the terminal was given back.
struct Output {
    terminal: vt100::Parser,
    /// The last bytes, enough for the sequences that end a program.
    tail: Vec<u8>,
}

impl Session {
    fn start(command: CommandBuilder, size: (u16, u16)) -> Self {
        let pair = native_pty_system().openpty(pty_size(size)).unwrap();
        let child = pair.slave.spawn_command(command).unwrap();
        drop(pair.slave);
        let mut reader = pair.master.try_clone_reader().unwrap();
        let keyboard = pair.master.take_writer().unwrap();
        let terminal = vt100::Parser::new(size.1, size.0, 0);
        let output = Arc::new(Mutex::new(Output { terminal, tail: Vec::new() }));
        let seen = Arc::clone(&output);
        thread::spawn(move || {
            let mut buffer = [0; 8192];
            while let Ok(n) = reader.read(&mut buffer) {
                if n == 0 {
                    return;
                }
                let mut seen = seen.lock().unwrap();
                seen.terminal.process(&buffer[..n]);
                seen.tail.extend_from_slice(&buffer[..n]);
                let old = seen.tail.len().saturating_sub(4096);
                seen.tail.drain(..old);
            }
        });
        Self { master: pair.master, child, keyboard, output }
    }

    fn replay(trace: &Path, folder: &Path) -> Self {
        let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_rdma-tui"));
        command.args(["--replay", &trace.display().to_string(), "--folder", &folder.display().to_string()]);
        command.args(["--log", &folder.join("log").display().to_string()]);
        for (name, value) in [("TERM", "xterm-256color"), ("LC_ALL", "C.UTF-8")] {
            command.env(name, value);
        }
        Self::start(command, (100, 30))
    }

    fn type_keys(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).unwrap();
        self.keyboard.flush().unwrap();
    }

    fn resize(&mut self, size: (u16, u16)) {
        self.output.lock().unwrap().terminal.screen_mut().set_size(size.1, size.0);
        self.master.resize(pty_size(size)).unwrap();
    }

    fn screen(&self) -> String {
        self.output.lock().unwrap().terminal.screen().contents()
    }

    #[track_caller]
    fn wait_for(&self, text: &str) {
        let begun = Instant::now();
        while !self.screen().contains(text) {
            assert!(begun.elapsed() < PATIENCE, "'{text}' does not appear:\n{}", self.screen());
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    fn wait_without(&self, text: &str) {
        let begun = Instant::now();
        while self.screen().contains(text) {
            assert!(begun.elapsed() < PATIENCE, "'{text}' does not go:\n{}", self.screen());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Escape, which is a key of its own only while nothing follows it: typed again, with a pause, until `key`
    /// does what it should.
    #[track_caller]
    fn leave_everything_and_type(&mut self, key: &str, text: &str) {
        let begun = Instant::now();
        loop {
            for keys in ["\x1b", "\x1b", key] {
                self.type_keys(keys.as_bytes());
                thread::sleep(Duration::from_millis(300));
            }
            if self.screen().contains(text) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "'{text}' does not appear:\n{}", self.screen());
        }
    }

    #[track_caller]
    fn ends(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end:\n{}", self.screen());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The alternate screen was left and the cursor shown, and neither taken again.
    #[track_caller]
    fn is_given_back(&self) {
        let begun = Instant::now();
        loop {
            let tail = String::from_utf8_lossy(&self.output.lock().unwrap().tail).into_owned();
            let left = tail.rfind("\x1b[?1049l");
            let shown = tail.rfind("\x1b[?25h");
            if left.is_some() && left > tail.rfind("\x1b[?1049h") && shown > tail.rfind("\x1b[?25l") {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "the terminal was not given back");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.process_id().unwrap().to_string();
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

fn pty_size((cols, rows): (u16, u16)) -> PtySize {
    PtySize { rows, cols, pixel_width: 0, pixel_height: 0 }
}

fn trace(folder: &Path) -> PathBuf {
    common::file(folder, "troubled.trace", &common::made::troubled_host())
}

#[test]
fn every_page_comes_up_and_q_gives_the_terminal_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut session = Session::replay(&trace(folder.path()), folder.path());
    session.wait_for("120/120");
    for (key, text) in [
        ("2", "Registration by process"),
        ("3", "Queue pairs"),
        ("4", "Queue pairs by work posted"),
        ("5", "WHAT IS WRONG"),
        ("6", "WORKLOAD"),
        ("7", "Devices and ports"),
        ("8", "What was missed"),
        ("1", "Health of the probes"),
        ("?", "this help"),
    ] {
        session.type_keys(key.as_bytes());
        session.wait_for(text);
    }
    // The page shows beside the help: what follows an escape too early becomes one key with it.
    session.type_keys(b"\x1b");
    session.wait_without("this help");
    session.type_keys(b"\x1b[D");
    session.wait_for("119/120");
    session.type_keys(b"<");
    session.wait_for(" 1/120");
    session.type_keys(b">");
    session.wait_for("120/120");
    session.type_keys(b"e");
    session.wait_for("written");
    session.type_keys(b"q");
    assert_eq!(session.ends().exit_code(), 0);
    session.is_given_back();
    let written = std::fs::read_dir(folder.path()).unwrap().filter_map(Result::ok).map(|e| e.path());
    let json = written.into_iter().find(|p| p.extension().is_some_and(|e| e == "json")).unwrap();
    let rows: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(rows["rows"].as_array().unwrap().len(), 3);
}

#[test]
fn a_signal_gives_the_terminal_back_and_is_told_in_the_exit_status() {
    let folder = tempfile::tempdir().unwrap();
    for (signal, status) in [("-TERM", 143), ("-HUP", 129), ("-INT", 130)] {
        let mut session = Session::replay(&trace(folder.path()), folder.path());
        session.wait_for("120/120");
        session.signal(signal);
        assert_eq!(session.ends().exit_code(), status, "{signal}");
        session.is_given_back();
    }
}

#[test]
fn garbage_is_survived() {
    let folder = tempfile::tempdir().unwrap();
    let mut session = Session::replay(&trace(folder.path()), folder.path());
    session.wait_for("120/120");
    let mut dice = common::made::Dice::new(3);
    for _ in 0..64 {
        // No q and no Ctrl-C, which would rightly end it.
        let bytes: Vec<u8> = (0..512)
            .map(|_| dice.below(256) as u8)
            .map(|byte| if matches!(byte, b'q' | 0x03) { b'j' } else { byte })
            .collect();
        session.type_keys(&bytes);
    }
    session.leave_everything_and_type("1", "Health of the probes");
    session.type_keys(b"q");
    assert_eq!(session.ends().exit_code(), 0);
    session.is_given_back();
}

#[test]
fn a_storm_of_resizes_is_survived() {
    let folder = tempfile::tempdir().unwrap();
    let mut session = Session::replay(&trace(folder.path()), folder.path());
    session.wait_for("120/120");
    let mut dice = common::made::Dice::new(5);
    for i in 0..300_u64 {
        session.resize((1 + dice.below(220) as u16, 1 + dice.below(70) as u16));
        if i % 20 == 0 {
            session.type_keys(b"\t");
            thread::sleep(Duration::from_millis(5));
        }
    }
    session.resize((100, 30));
    session.type_keys(b"1");
    session.wait_for("Health of the probes");
    session.type_keys(b"q");
    assert_eq!(session.ends().exit_code(), 0);
}

#[test]
fn a_trace_through_standard_input_is_live_and_its_end_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let trace = trace(folder.path());
    let mut command = CommandBuilder::new("/bin/sh");
    let program = env!("CARGO_BIN_EXE_rdma-tui");
    let log = folder.path().join("log");
    // Cut within a line, as a recorder that is killed leaves it.
    command.args([
        "-c",
        &format!("head -c 1000000 '{}' | '{program}' --log '{}' --replay -", trace.display(), log.display()),
    ]);
    command.env("TERM", "xterm-256color");
    let mut session = Session::start(command, (120, 40));
    session.wait_for("ended without a footer");
    session.wait_for("kv-store");
    session.type_keys(b"q");
    assert_eq!(session.ends().exit_code(), 0);
    session.is_given_back();
}

#[test]
fn what_cannot_be_shown_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let foreign = folder.path().join("foreign");
    std::fs::write(&foreign, "hello\n").unwrap();
    let program = env!("CARGO_BIN_EXE_rdma-tui");
    for (arguments, code, says) in [
        (vec!["--headless", "--replay", "/nonexistent.trace"], 1, "/nonexistent.trace"),
        (vec!["--headless", "--replay", foreign.to_str().unwrap()], 1, "line 1"),
        (vec!["--replay", foreign.to_str().unwrap()], 1, "not a terminal"),
        (vec!["--pid", "x"], 2, "'x'"),
        (vec!["--headless", "--size", "9"], 2, "'9'"),
        (vec!["--json"], 2, "--headless"),
    ] {
        let output = std::process::Command::new(program).args(&arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(says), "{arguments:?}: {errors}");
        assert!(!errors.contains("panicked"), "{errors}");
    }
}
