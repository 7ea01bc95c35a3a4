//! The active side of a run: queue pairs connected to a responder in this process or on another host.

use crate::bench::Bench;
use crate::error::usage;
use crate::exchange::{PeerSpec, RemoteRegion, Reply, Request, Wire};
use crate::memory::{Buffer, MemoryKind, Obtained};
use crate::responder::Responder;
use crate::verbs::{Access, Caps, Channel, Cq, Mr, Pd, Qp, Retry, Transport};
use anyhow::{Result, bail};
use std::cell::RefCell;
use std::rc::Rc;

/// How completions are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqLayout {
    /// A completion queue for each queue pair.
    PerQp,
    /// One for all.
    Shared,
}

/// What to set up.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Queue pairs.
    pub qps: u32,
    /// Completion queues.
    pub cqs: CqLayout,
    /// Whether completion queues are bound to a completion channel.
    pub events: bool,
    /// Send queue depth in work requests.
    pub depth: u32,
    /// Bytes that must fit inline.
    pub inline: u32,
    /// Transport.
    pub transport: Transport,
    /// Local memory in bytes.
    pub local: usize,
    /// Kind of the local memory.
    pub local_memory: MemoryKind,
    /// Memory at the responder in bytes.
    pub remote: u64,
    /// Kind of the memory at the responder.
    pub remote_memory: MemoryKind,
    /// Receive queue depth at the responder.
    pub recv_depth: u32,
    /// Patience of the queue pairs.
    pub retry: Retry,
}

impl Default for Spec {
    fn default() -> Spec {
        Spec {
            qps: 1,
            cqs: CqLayout::Shared,
            events: false,
            depth: 256,
            inline: 0,
            transport: Transport::Rc,
            local: 1 << 20,
            local_memory: MemoryKind::Aligned,
            remote: 1 << 20,
            remote_memory: MemoryKind::Aligned,
            recv_depth: 1,
            retry: Retry::default(),
        }
    }
}

enum Peer {
    /// In this process.
    Loopback(Box<Responder>),
    /// On another host.
    Remote { wire: Rc<RefCell<Wire>>, id: u32 },
}

/// Connected queue pairs with local and remote memory. Fields are in the order in which they must be destroyed: queue pairs
/// before what they use.
pub struct Endpoint {
    /// Queue pairs, in RTS.
    pub qps: Vec<Qp>,
    /// Completion queues: one per QP or a single one.
    pub cqs: Vec<Rc<Cq>>,
    /// Completion channel, when asked for.
    pub channel: Option<Channel>,
    /// Local memory.
    pub local: Mr,
    /// Memory at the responder.
    pub remote: RemoteRegion,
    /// Page size behind the memory at the responder.
    pub remote_page: u64,
    /// What the responder's memory turned out to be.
    pub remote_memory: String,
    peer: Peer,
}

impl Endpoint {
    /// Sets everything up on the bench's device.
    pub fn open(bench: &Bench, spec: &Spec) -> Result<Endpoint> {
        let device = bench.device();
        fits("queue depth", spec.depth, device.info.max_qp_wr)?;
        // Loopback needs the other half on the same device.
        let needed = if bench.is_remote() { spec.qps } else { spec.qps.saturating_mul(2) };
        fits("queue pairs", needed, device.info.max_qp)?;

        let pd = Pd::new(&device.context)?;
        let channel = spec.events.then(|| Channel::new(&device.context)).transpose()?;
        let (queues, entries) = match spec.cqs {
            CqLayout::PerQp => (spec.qps, spec.depth),
            CqLayout::Shared => (1, spec.depth.saturating_mul(spec.qps)),
        };
        fits("completion queue entries", entries, device.info.max_cqe)?;
        let cqs: Vec<Rc<Cq>> = (0..queues)
            .map(|_| Cq::new(&device.context, entries, channel.as_ref()).map(Rc::new))
            .collect::<Result<_, _>>()?;
        let buffer = Rc::new(Buffer::allocate(spec.local_memory, spec.local)?);
        let local = Mr::register(&pd, &buffer, Access::Local)?;
        let caps = Caps { send: spec.depth, recv: 1, inline: spec.inline };
        let qps: Vec<Qp> = (0..spec.qps as usize)
            .map(|at| {
                let cq = &cqs[at % cqs.len()];
                Qp::new(&pd, cq, cq, spec.transport, caps)
            })
            .collect::<Result<_, _>>()?;

        let ours = qps.iter().map(|qp| qp.address(&device.port)).collect::<Vec<_>>();
        let peer_spec = PeerSpec {
            qps: spec.qps,
            transport: spec.transport,
            recv_depth: spec.recv_depth,
            region: spec.remote,
            memory: spec.remote_memory,
        };
        let (peer, theirs, remote, remote_memory, remote_page) = match bench.wire() {
            None => {
                let responder = Responder::open(device, &peer_spec)?;
                responder.connect(device, &ours, spec.retry, device.info.max_rd_atomic)?;
                let (theirs, region) = (responder.addresses(device), responder.region());
                let obtained = responder.buffer().obtained().clone();
                (
                    Peer::Loopback(Box::new(responder)),
                    theirs,
                    region,
                    obtained.describe(),
                    obtained.effective_page(),
                )
            }
            Some(wire) => {
                let reads = device.info.max_rd_atomic.min(bench.peer_reads());
                let opened = wire.borrow_mut().ask(&Request::Open(peer_spec))?;
                let Reply::Opened { id, peers, region, memory, page } = opened else {
                    bail!("unexpected answer to open")
                };
                if peers.len() != qps.len() || region.length < spec.remote {
                    bail!("the peer set up less than was asked for");
                }
                wire.borrow_mut().ask(&Request::Connect { id, peers: ours, retry: spec.retry, reads })?;
                (Peer::Remote { wire, id }, peers, region, memory, page)
            }
        };
        let reads = match &peer {
            Peer::Loopback(_) => device.info.max_rd_atomic,
            Peer::Remote { .. } => device.info.max_rd_atomic.min(bench.peer_reads()),
        };
        for (qp, peer) in qps.iter().zip(&theirs) {
            qp.connect(&device.port, peer, spec.retry, reads)?;
        }
        Ok(Endpoint { qps, cqs, channel, local, remote, remote_page, remote_memory, peer })
    }

    /// What the local memory turned out to be.
    pub fn obtained(&self) -> &Obtained {
        self.local.buffer().obtained()
    }

    /// Posts zero-length receives at the responder.
    pub fn peer_receives(&self, qp: u32, count: u32) -> Result<()> {
        match &self.peer {
            Peer::Loopback(responder) => responder.post_receives(qp, count),
            Peer::Remote { wire, id } => {
                wire.borrow_mut().ask(&Request::Receives { id: *id, qp, count }).map(drop)
            }
        }
    }

    /// Receives that have completed at the responder.
    pub fn peer_received(&mut self) -> Result<u64> {
        match &mut self.peer {
            Peer::Loopback(responder) => responder.received(),
            Peer::Remote { wire, id } => match wire.borrow_mut().ask(&Request::Received { id: *id })? {
                Reply::Received { count } => Ok(count),
                _ => bail!("unexpected answer"),
            },
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Peer::Remote { wire, id } = &self.peer {
            // A peer that is gone has given everything back already.
            let _ = wire.borrow_mut().ask(&Request::Close { id: *id });
        }
    }
}

fn fits(what: &str, asked: u32, limit: u32) -> Result<()> {
    if asked > limit {
        return Err(usage(format!("{asked} {what} asked for, the device allows {limit}; ask for fewer")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_beyond_the_device_are_usage_errors_naming_its_limit() {
        assert!(fits("queue pairs", 10, 10).is_ok());
        let error = fits("queue pairs", 11, 10).unwrap_err();
        assert_eq!(crate::error::exit_status(&error), 2);
        assert!(error.to_string().contains("allows 10"));
    }
}
