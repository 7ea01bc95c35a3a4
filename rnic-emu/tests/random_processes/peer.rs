//! The other process: how it is started, how both wait for each other, and the memory both can see.

use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::process::{Child, Command, Stdio};

/// Bytes of one side's buffer: its active half is used by its own requests, its passive half by the peer's.
pub const SIDE: usize = 2 * HALF;
/// Bytes of a half.
pub const HALF: usize = 256 << 10;

const ENV: &str = "RNIC_EMU_TEST_PEER";

/// The two buffers, shared so that the survivor can look at what was done to the memory of a killed process.
pub struct Memory {
    base: *mut u8,
    fd: i32,
}

impl Memory {
    fn map(fd: i32) -> Self {
        // SAFETY: a fresh mapping of a file of ours.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                2 * SIDE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Self { base: base.cast(), fd }
    }

    /// Where side `side` begins in this process.
    pub fn at(&self, side: usize) -> *mut u8 {
        // SAFETY: both sides lie in the mapping.
        unsafe { self.base.add(side * SIDE) }
    }

    /// What side `side` holds now. The device may be writing to it.
    pub fn copy(&self, side: usize) -> Vec<u8> {
        let mut bytes = vec![0; SIDE];
        // SAFETY: inside the mapping; a copy of memory that others may write is what is wanted.
        unsafe { std::ptr::copy_nonoverlapping(self.at(side), bytes.as_mut_ptr(), SIDE) };
        bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: ours, used no more.
        unsafe {
            libc::munmap(self.base.cast(), 2 * SIDE);
            libc::close(self.fd);
        }
    }
}

/// What connects the two, seen from one of them.
pub struct Peer {
    /// Which side we are: 0 is the test, 1 the process it started.
    pub me: usize,
    child: Option<Child>,
    to: Box<dyn Write>,
    from: Box<dyn BufRead>,
}

/// Starts the other process.
pub fn start(seed: u64) -> (Peer, Memory) {
    // SAFETY: plain calls.
    let fd = unsafe {
        let fd = libc::memfd_create(c"random-processes".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0 && libc::ftruncate(fd, 2 * SIDE as libc::off_t) == 0);
        fd
    };
    let mut child = Command::new(std::env::current_exe().expect("own path"))
        .args(["other_process", "--exact", "--ignored", "--nocapture"])
        .env(ENV, format!("{seed} /proc/{}/fd/{fd}", std::process::id()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start the other process");
    let to = Box::new(child.stdin.take().expect("piped"));
    let from = Box::new(BufReader::new(child.stdout.take().expect("piped")));
    (Peer { me: 0, child: Some(child), to, from }, Memory::map(fd))
}

/// In the other process: the test's end and seed. `None` in an ordinary run of the tests.
pub fn ours() -> Option<(Peer, Memory, u64)> {
    let told = std::env::var(ENV).ok()?;
    let (seed, path) = told.split_once(' ').expect("two words");
    let path = std::ffi::CString::new(path).expect("a path");
    // SAFETY: a valid path.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    let peer = Peer { me: 1, child: None, to: Box::new(stdout()), from: Box::new(stdin().lock()) };
    Some((peer, Memory::map(fd), seed.parse().expect("a number")))
}

impl Peer {
    /// Waits until the other process is here, too; tells it `word` and returns what it says.
    pub fn meet(&mut self, word: &str) -> String {
        writeln!(self.to, "> {word}").and_then(|()| self.to.flush()).expect("the peer listens");
        loop {
            let mut line = String::new();
            assert_ne!(self.from.read_line(&mut line).expect("readable"), 0, "the peer ended");
            // The test harness prints lines of its own.
            if let Some((_, answer)) = line.trim_end().split_once("> ") {
                return answer.into();
            }
        }
    }

    /// Kills the other process, which stands for an ended program or a host that lost power.
    pub fn kill(&mut self) {
        let child = self.child.as_mut().expect("the test kills, not the other way round");
        child.kill().expect("kill -9");
        child.wait().expect("gone");
        self.child = None;
    }

    /// The other process has found nothing wrong either.
    pub fn end(mut self) {
        if let Some(mut child) = self.child.take() {
            // The test harness there still has its result to print.
            std::io::copy(&mut self.from, &mut std::io::sink()).expect("readable");
            let status = child.wait().expect("our child");
            assert!(status.success(), "the other process: {status}");
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
