//! The passive side of a run: memory to be read and written, and the queue pairs to reach it by. The same code serves a
//! loopback run in this process and a requester on another host.

use crate::device::Device;
use crate::exchange::{MOST_OPEN, PeerSpec, RemoteRegion, Reply, Request, VERSION, Wire, check_version};
use crate::memory::Buffer;
use crate::verbs::{Access, Address, Caps, Cq, Mr, Pd, Qp, Retry, WC_BATCH, ffi};
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeMap;
use std::rc::Rc;

/// What one [`Request::Open`] set up. Fields are in the order in which they must be destroyed.
pub struct Responder {
    qps: Vec<Qp>,
    cq: Rc<Cq>,
    region: Mr,
    received: u64,
}

impl Responder {
    /// Sets up memory and queue pairs.
    pub fn open(device: &Device, spec: &PeerSpec) -> Result<Responder> {
        spec.check()?;
        let length = usize::try_from(spec.region).context("region larger than the address space")?;
        let pd = Pd::new(&device.context)?;
        let buffer = Rc::new(Buffer::allocate(spec.memory, length)?);
        let access = if device.info.atomics { Access::Remote } else { Access::RemoteNoAtomics };
        let region = Mr::register(&pd, &buffer, access)?;
        // One queue for all: only demonstrations post receives, a handful at a time.
        let entries = spec.recv_depth.saturating_mul(spec.qps).clamp(16, device.info.max_cqe.max(16));
        let cq = Rc::new(Cq::new(&device.context, entries, None)?);
        let caps = Caps { send: 1, recv: spec.recv_depth.max(1), inline: 0 };
        let qps =
            (0..spec.qps).map(|_| Qp::new(&pd, &cq, &cq, spec.transport, caps)).collect::<Result<_, _>>()?;
        Ok(Responder { qps, cq, region, received: 0 })
    }

    /// Addresses of the queue pairs.
    pub fn addresses(&self, device: &Device) -> Vec<Address> {
        self.qps.iter().map(|qp| qp.address(&device.port)).collect()
    }

    /// How the requester names the memory.
    pub fn region(&self) -> RemoteRegion {
        RemoteRegion { addr: self.region.addr(), length: self.region.len() as u64, rkey: self.region.rkey() }
    }

    /// The memory itself.
    pub fn buffer(&self) -> &Rc<Buffer> {
        self.region.buffer()
    }

    /// Connects every queue pair to its counterpart.
    pub fn connect(&self, device: &Device, peers: &[Address], retry: Retry, reads: u8) -> Result<()> {
        if peers.len() != self.qps.len() {
            bail!("{} peer QPs for {} of ours", peers.len(), self.qps.len());
        }
        for (qp, peer) in self.qps.iter().zip(peers) {
            qp.connect(&device.port, peer, retry, reads)?;
        }
        Ok(())
    }

    /// Posts zero-length receives on one queue pair.
    pub fn post_receives(&self, qp: u32, count: u32) -> Result<()> {
        let Some(qp) = self.qps.get(qp as usize) else { bail!("there is no QP {qp}") };
        for id in 0..count {
            qp.post_recv(
                u64::from(id),
                ffi::ibv_sge { addr: self.region.addr(), length: 0, lkey: self.region.lkey() },
            )?;
        }
        Ok(())
    }

    /// Receives completed so far.
    pub fn received(&mut self) -> Result<u64> {
        let mut completions = [ffi::ibv_wc::default(); WC_BATCH];
        loop {
            let found = self.cq.poll(&mut completions)?;
            self.received += completions.iter().take(found).filter(|wc| wc.is_valid()).count() as u64;
            if found < WC_BATCH {
                return Ok(self.received);
            }
        }
    }
}

/// Serves one requester until it hangs up.
pub fn serve(device: &Device, wire: &mut Wire) -> Result<()> {
    let mut open = BTreeMap::new();
    let mut next = 0u32;
    while let Some(request) = wire.receive::<Request>()? {
        let answer = match &request {
            Request::Hello { version } => {
                let hello = Reply::Hello {
                    version: VERSION,
                    device: device.info.name.clone(),
                    reads: device.info.max_rd_atomic,
                };
                wire.send(&hello)?;
                check_version(wire.peer(), *version)?;
                continue;
            }
            Request::Open(spec) => {
                next = next.wrapping_add(1);
                set_up(device, spec, next, &mut open)
            }
            other => apply(device, &mut open, other),
        };
        let answer = answer.unwrap_or_else(|error| Reply::Failed { reason: format!("{error:#}") });
        wire.send(&answer)?;
    }
    Ok(())
}

fn set_up(device: &Device, spec: &PeerSpec, id: u32, open: &mut BTreeMap<u32, Responder>) -> Result<Reply> {
    if open.len() >= MOST_OPEN {
        bail!("{MOST_OPEN} set-ups are open already");
    }
    let responder = Responder::open(device, spec)?;
    let reply =
        Reply::opened(id, responder.addresses(device), responder.region(), responder.buffer().obtained());
    open.insert(id, responder);
    Ok(reply)
}

fn find(open: &mut BTreeMap<u32, Responder>, id: u32) -> Result<&mut Responder> {
    open.get_mut(&id).with_context(|| format!("there is no set-up {id}"))
}

fn apply(device: &Device, open: &mut BTreeMap<u32, Responder>, request: &Request) -> Result<Reply> {
    match request {
        Request::Connect { id, peers, retry, reads } => {
            find(open, *id)?.connect(device, peers, *retry, *reads).map(|()| Reply::Done)
        }
        Request::Receives { id, qp, count } => {
            find(open, *id)?.post_receives(*qp, *count).map(|()| Reply::Done)
        }
        Request::Received { id } => Ok(Reply::Received { count: find(open, *id)?.received()? }),
        Request::Close { id } => {
            open.remove(id);
            Ok(Reply::Done)
        }
        Request::Hello { .. } | Request::Open(_) => bail!("out of turn"),
    }
}
