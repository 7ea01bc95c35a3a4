//! What the host and the agent in the guest say to each other, over one virtio-serial port.
//!
//! A frame is a kind (1 byte), a length (4 bytes, little-endian) and that many bytes. Streams are framed, not given
//! ports of their own, so that the exit status can only arrive after the last byte of output.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The port's name inside the guest.
pub const PORT: &str = "agent";

/// Longest payload either side accepts, in bytes.
const MAX: usize = 1 << 24;

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Host to guest: run this.
    Job(Job),
    /// The device is up and the command is about to start.
    Started,
    /// Bytes of the command's standard output.
    Stdout(Vec<u8>),
    /// Bytes of its standard error.
    Stderr(Vec<u8>),
    /// It ended, with the status to pass on.
    Exited(u8),
    /// The guest could not be made ready, for this reason.
    Failed(String),
}

/// A command to run in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Job {
    /// Program and arguments; never empty.
    pub argv: Vec<OsString>,
    /// The whole environment, as `NAME=VALUE`.
    pub env: Vec<OsString>,
    /// Working directory.
    pub cwd: OsString,
    /// The command talks to the terminal `/dev/hvc0`, not through frames.
    pub terminal: bool,
}

/// Writes a frame.
pub fn write(to: &mut impl Write, frame: &Frame) -> io::Result<()> {
    let (kind, payload) = match frame {
        Frame::Job(job) => (b'j', encode(job)),
        Frame::Started => (b's', Vec::new()),
        Frame::Stdout(bytes) => (b'o', bytes.clone()),
        Frame::Stderr(bytes) => (b'e', bytes.clone()),
        Frame::Exited(status) => (b'x', vec![*status]),
        Frame::Failed(reason) => (b'f', reason.clone().into_bytes()),
    };
    let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
    // One write: the port's driver sends each as a packet of its own.
    let mut bytes = Vec::with_capacity(payload.len() + 5);
    bytes.push(kind);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&payload);
    to.write_all(&bytes)?;
    to.flush()
}

/// Reads a frame; `None` where the stream ends between two.
pub fn read(from: &mut impl Read) -> io::Result<Option<Frame>> {
    let mut kind = [0];
    match from.read_exact(&mut kind) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX {
        return Err(invalid("a frame is too long"));
    }
    let mut payload = vec![0; length];
    from.read_exact(&mut payload)?;
    let frame = match kind[0] {
        b'j' => Frame::Job(decode(&payload).ok_or_else(|| invalid("a job is cut short"))?),
        b's' => Frame::Started,
        b'o' => Frame::Stdout(payload),
        b'e' => Frame::Stderr(payload),
        b'x' => Frame::Exited(*payload.first().ok_or_else(|| invalid("a status is missing"))?),
        b'f' => Frame::Failed(String::from_utf8_lossy(&payload).into_owned()),
        _ => return Err(invalid("a frame is of no known kind")),
    };
    Ok(Some(frame))
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Strings cannot hold a NUL, so each is ended by one; the number of arguments says where the environment begins.
fn encode(job: &Job) -> Vec<u8> {
    let count = OsString::from(job.argv.len().to_string());
    let terminal = OsStr::new(if job.terminal { "1" } else { "0" });
    let head = [count.as_os_str(), terminal, &job.cwd];
    let tail = job.argv.iter().chain(&job.env).map(OsString::as_os_str);
    let mut bytes = Vec::new();
    for string in head.into_iter().chain(tail) {
        bytes.extend_from_slice(string.as_bytes());
        bytes.push(0);
    }
    bytes
}

fn decode(payload: &[u8]) -> Option<Job> {
    let mut strings =
        payload.strip_suffix(&[0])?.split(|&byte| byte == 0).map(|s| OsString::from_vec(s.to_vec()));
    let count: usize = strings.next()?.to_str()?.parse().ok()?;
    let terminal = strings.next()? == "1";
    let cwd = strings.next()?;
    let mut argv: Vec<OsString> = strings.collect();
    if count == 0 || count > argv.len() {
        return None;
    }
    let env = argv.split_off(count);
    Some(Job { argv, env, cwd, terminal })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(frame: &Frame) -> Option<Frame> {
        let mut bytes = Vec::new();
        write(&mut bytes, frame).unwrap();
        read(&mut bytes.as_slice()).unwrap()
    }

    #[test]
    fn every_frame_comes_back_as_it_was() {
        let job = Job {
            argv: vec!["sh".into(), "".into(), "a b\n".into(), OsString::from_vec(vec![0xff])],
            env: vec!["A=1".into(), "B=".into()],
            cwd: "/tmp/a folder".into(),
            terminal: true,
        };
        let frames = [
            Frame::Job(job),
            Frame::Started,
            Frame::Stdout(vec![0, 255, b'\n', 4, 26]),
            Frame::Stderr(vec![]),
            Frame::Exited(124),
            Frame::Failed("no device".into()),
        ];
        for frame in frames {
            assert_eq!(back(&frame), Some(frame));
        }
    }

    #[test]
    fn a_command_without_environment_comes_back() {
        let job = Job { argv: vec!["true".into()], cwd: "/".into(), ..Job::default() };
        assert_eq!(back(&Frame::Job(job.clone())), Some(Frame::Job(job)));
    }

    #[test]
    fn the_end_between_frames_is_no_error_and_inside_one_it_is() {
        assert_eq!(read(&mut [].as_slice()).unwrap(), None);
        assert!(read(&mut [b'o', 5, 0, 0, 0, 1].as_slice()).is_err());
    }

    #[test]
    fn foreign_bytes_are_refused_without_allocating_what_they_ask_for() {
        assert!(read(&mut [b'o', 255, 255, 255, 255].as_slice()).is_err());
        assert!(read(&mut [b'?', 0, 0, 0, 0].as_slice()).is_err());
        assert!(read(&mut [b'j', 2, 0, 0, 0, b'9', 0].as_slice()).is_err());
        assert!(read(&mut [b'x', 0, 0, 0, 0].as_slice()).is_err());
    }
}
