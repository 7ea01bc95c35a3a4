//! What the two sides of a run say to each other, over TCP: one JSON object per line, the version first.
//!
//! The other side is not trusted: lines and numbers are bounded before anything is allocated for them.

use crate::memory::{MemoryKind, Obtained};
use crate::verbs::{Address, Retry, Transport};
use anyhow::{Context as _, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

/// Version of this protocol; both sides must have the same.
pub const VERSION: u32 = 1;
/// Port used when none is given.
pub const DEFAULT_PORT: u16 = 18_516;
/// Longest line accepted, in bytes: addresses of the most QPs a request may name, with room to spare.
const LONGEST_LINE: u64 = 4 << 20;
/// Most QPs one side may ask the other for.
pub const MOST_QPS: u32 = 16_384;
/// Largest region one side may ask the other for, in bytes.
pub const LARGEST_REGION: u64 = 1 << 40;
/// Most set-ups one requester may have open at a time.
pub const MOST_OPEN: usize = 8;
/// How long to wait for the other side to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the responder is asked to set up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerSpec {
    /// Queue pairs.
    pub qps: u32,
    /// Their transport.
    pub transport: Transport,
    /// Receive queue depth of each.
    pub recv_depth: u32,
    /// Bytes of memory the requester may read and write.
    pub region: u64,
    /// Kind of that memory.
    pub memory: MemoryKind,
}

impl PeerSpec {
    /// Refuses sizes nobody needs before any are acted on.
    pub fn check(&self) -> Result<()> {
        if self.qps == 0 || self.qps > MOST_QPS {
            bail!("the peer asks for {} QPs; 1 to {MOST_QPS} are served", self.qps);
        }
        if self.region == 0 || self.region > LARGEST_REGION {
            bail!("the peer asks for a region of {} bytes; 1 to {LARGEST_REGION} are served", self.region);
        }
        Ok(())
    }
}

/// Memory at the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteRegion {
    /// Address of its first byte.
    pub addr: u64,
    /// Length in bytes.
    pub length: u64,
    /// Key to name it by.
    pub rkey: u32,
}

/// From requester to responder.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// First message.
    Hello {
        /// Protocol version.
        version: u32,
    },
    /// Set up queue pairs and memory.
    Open(PeerSpec),
    /// Connect the queue pairs to these, in order.
    Connect {
        /// Which set-up.
        id: u32,
        /// Addresses of the requester's queue pairs.
        peers: Vec<Address>,
        /// Patience of the queue pairs.
        retry: Retry,
        /// Outstanding READs and atomics per queue pair.
        reads: u8,
    },
    /// Post zero-length receives on one queue pair.
    Receives {
        /// Which set-up.
        id: u32,
        /// Index of the queue pair.
        qp: u32,
        /// How many.
        count: u32,
    },
    /// Say how many receives have completed.
    Received {
        /// Which set-up.
        id: u32,
    },
    /// Give everything of a set-up back.
    Close {
        /// Which set-up.
        id: u32,
    },
}

/// From responder to requester.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// Answer to [`Request::Hello`].
    Hello {
        /// Protocol version.
        version: u32,
        /// Name of the responder's device.
        device: String,
        /// READs and atomics its device can serve per queue pair.
        reads: u8,
    },
    /// Answer to [`Request::Open`].
    Opened {
        /// Number to name this set-up by.
        id: u32,
        /// Addresses of the responder's queue pairs.
        peers: Vec<Address>,
        /// Its memory.
        region: RemoteRegion,
        /// What kind that memory turned out to be, in words.
        memory: String,
        /// Effective page size of that memory.
        page: u64,
    },
    /// Done, nothing to tell.
    Done,
    /// Answer to [`Request::Received`].
    Received {
        /// Receives completed since the set-up was opened.
        count: u64,
    },
    /// It could not be done.
    Failed {
        /// Why.
        reason: String,
    },
}

impl Reply {
    /// Describes opened memory.
    pub fn opened(id: u32, peers: Vec<Address>, region: RemoteRegion, obtained: &Obtained) -> Reply {
        Reply::Opened { id, peers, region, memory: obtained.describe(), page: obtained.effective_page() }
    }
}

/// One end of a connection.
pub struct Wire {
    reader: BufReader<TcpStream>,
    peer: String,
}

impl Wire {
    fn new(stream: TcpStream, peer: String, patience: Option<Duration>) -> Result<Wire> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(patience)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Wire { reader: BufReader::new(stream), peer })
    }

    /// Connects to a waiting responder and agrees on the version.
    pub fn dial(host: &str, port: u16) -> Result<(Wire, Reply)> {
        let at = format!("{host}:{port}");
        let unreachable = || {
            format!("peer {at:?} is unreachable; start it there with `rdma-workload compare all --server`")
        };
        let addresses = (host, port).to_socket_addrs().with_context(unreachable)?;
        let mut last = None;
        for address in addresses {
            match TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
                Ok(stream) => {
                    let mut wire = Wire::new(stream, at.clone(), Some(PATIENCE))?;
                    let hello = wire.ask(&Request::Hello { version: VERSION })?;
                    return match hello {
                        Reply::Hello { version, .. } => check_version(&at, version).map(|()| (wire, hello)),
                        _ => bail!("peer {at:?} does not speak this program's protocol"),
                    };
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| ErrorKind::NotFound.into())).with_context(unreachable)
    }

    /// Waits for a requester on a listening socket.
    pub fn accept(listener: &TcpListener) -> Result<Wire> {
        listener.set_nonblocking(true)?;
        loop {
            crate::interrupt::check()?;
            match listener.accept() {
                Ok((stream, from)) => {
                    stream.set_nonblocking(false)?;
                    // The requester measures for as long as it likes between two requests; short waits let us see signals.
                    return Wire::new(stream, from.to_string(), Some(Duration::from_millis(200)));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => return Err(error).context("accepting a connection"),
            }
        }
    }

    /// Who is at the other end.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Sends one message.
    pub fn send<T: Serialize>(&mut self, message: &T) -> Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.reader.get_mut().write_all(&line).with_context(|| format!("writing to peer {:?}", self.peer))
    }

    /// Receives one message; `None` when the other side has closed the connection.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let mut line = Vec::new();
        let mut waited = Duration::ZERO;
        loop {
            let room = LONGEST_LINE - line.len() as u64;
            match (&mut self.reader).take(room).read_until(b'\n', &mut line) {
                Ok(0) if line.is_empty() => return Ok(None),
                Ok(_) if line.last() == Some(&b'\n') => break,
                Ok(0) => bail!("peer {:?} closed the connection in the middle of a message", self.peer),
                Ok(_) if line.len() as u64 >= LONGEST_LINE => {
                    bail!("peer {:?} sent a message that is too long", self.peer)
                }
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    crate::interrupt::check()?;
                    let patience = self.reader.get_ref().read_timeout()?.unwrap_or_default();
                    waited += patience;
                    // Requesters wait with a long timeout and give up; responders poll with a short one and do not.
                    if patience >= PATIENCE {
                        bail!("peer {:?} has not answered for {} s", self.peer, waited.as_secs());
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => crate::interrupt::check()?,
                Err(error) => {
                    return Err(error).with_context(|| format!("reading from peer {:?}", self.peer));
                }
            }
        }
        let message = serde_json::from_slice(&line).with_context(|| {
            format!("peer {:?} sent something this version does not understand", self.peer)
        })?;
        Ok(Some(message))
    }

    /// Sends a request and waits for its answer; a refusal becomes an error.
    pub fn ask(&mut self, request: &Request) -> Result<Reply> {
        self.send(request)?;
        match self.receive()? {
            None => bail!("peer {:?} closed the connection", self.peer),
            Some(Reply::Failed { reason }) => bail!("peer {:?} refused: {reason}", self.peer),
            Some(reply) => Ok(reply),
        }
    }
}

/// Refuses a peer of another version.
pub fn check_version(peer: &str, version: u32) -> Result<()> {
    if version != VERSION {
        bail!(
            "peer {peer:?} speaks version {version} of the protocol, this side {VERSION}; install the same release on both"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Wire, Wire) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = Wire::accept(&listener).unwrap();
        (Wire::new(near, "near".into(), Some(PATIENCE)).unwrap(), far)
    }

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let (mut near, mut far) = pair();
        let spec = PeerSpec {
            qps: 4,
            transport: Transport::Rc,
            recv_depth: 1,
            region: 4096,
            memory: MemoryKind::Huge2M,
        };
        near.send(&Request::Open(spec.clone())).unwrap();
        match far.receive().unwrap() {
            Some(Request::Open(got)) => assert_eq!(got, spec),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_closed_connection_is_an_end_and_half_a_message_an_error() {
        let (near, mut far) = pair();
        drop(near);
        assert!(far.receive::<Request>().unwrap().is_none());
        let (mut near, mut far) = pair();
        near.reader.get_mut().write_all(b"{\"request\":").unwrap();
        drop(near);
        assert!(far.receive::<Request>().unwrap_err().to_string().contains("middle"));
    }

    #[test]
    fn garbage_and_endless_lines_are_refused() {
        let (mut near, mut far) = pair();
        near.reader.get_mut().write_all(b"\xff\xfe garbage\n").unwrap();
        assert!(far.receive::<Request>().is_err());
        let (mut near, mut far) = pair();
        let writer = std::thread::spawn(move || {
            let chunk = vec![b'x'; 1 << 20];
            // Fails once the reader has given up and gone.
            while near.reader.get_mut().write_all(&chunk).is_ok() {}
        });
        assert!(far.receive::<Request>().unwrap_err().to_string().contains("too long"));
        drop(far);
        writer.join().unwrap();
    }

    #[test]
    fn another_version_is_named_with_both_numbers() {
        let text = check_version("host:1", 99).unwrap_err().to_string();
        assert!(text.contains("99") && text.contains("same release"));
    }

    #[test]
    fn absurd_requests_are_refused_before_anything_is_allocated() {
        let sane = PeerSpec {
            qps: 1,
            transport: Transport::Rc,
            recv_depth: 1,
            region: 1,
            memory: MemoryKind::Malloc,
        };
        assert!(sane.check().is_ok());
        assert!(PeerSpec { qps: 0, ..sane.clone() }.check().is_err());
        assert!(PeerSpec { qps: u32::MAX, ..sane.clone() }.check().is_err());
        assert!(PeerSpec { region: u64::MAX, ..sane.clone() }.check().is_err());
        assert!(PeerSpec { region: 0, ..sane }.check().is_err());
    }

    #[test]
    fn an_unreachable_peer_is_named_with_the_way_to_start_it() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        drop(taken);
        let error = Wire::dial("127.0.0.1", port).err().unwrap();
        assert!(error.to_string().contains("--server"));
    }
}
