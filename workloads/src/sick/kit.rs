//! What every program of the gallery is made of: connected queue pairs in one process, and a flow over them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::device::Device;
use crate::drive::completion_error;
use crate::interrupt;
use crate::memory::{Buffer, MemoryKind};
use crate::verbs::{
    Access, Address, Atomic, Caps, Channel, Cq, Mr, Pd, Qp, Retry, SendList, Transport, WC_BATCH, Wiring, ffi,
};

/// A device and the time there is.
pub struct Kit {
    /// The device.
    pub device: Device,
    /// How long to run.
    pub seconds: Duration,
}

/// What to set up. The usual shape has nothing that a diagnosis should find.
#[derive(Clone)]
pub struct Shape {
    /// Queue pairs, each with a peer in this process.
    pub qps: usize,
    /// A completion queue for each instead of one for all.
    pub cq_per_qp: bool,
    /// Entries of the completion queues; as many as may complete when not given.
    pub cqe: Option<u32>,
    /// Work requests that each send queue holds.
    pub depth: u32,
    /// Work requests that each receive queue holds.
    pub receives: u32,
    /// Inline bytes asked for.
    pub inline: u32,
    /// `sq_sig_all`.
    pub signal_all: bool,
    /// Whether the completion queue of the senders is bound to a channel.
    pub events: bool,
    /// How they are connected.
    pub wiring: Wiring,
    /// Bytes of memory on each side, and its kind.
    pub bytes: usize,
    /// Kind of memory.
    pub memory: MemoryKind,
    /// Access of the memory that is written to and read from.
    pub access: Access,
}

/// Connected queue pairs. Fields are in the order in which they must be destroyed.
pub struct Rig {
    /// Those that send.
    pub qps: Vec<Qp>,
    /// Their peers.
    pub peers: Vec<Qp>,
    /// Completion queues of the senders.
    pub cqs: Vec<Rc<Cq>>,
    /// Completion queue of the peers.
    pub peer_cq: Rc<Cq>,
    /// The senders' channel.
    pub channel: Option<Channel>,
    /// Local memory.
    pub local: Mr,
    /// The peers' memory.
    pub remote: Mr,
    /// Its protection domain.
    pub pd: Pd,
    /// How far each sender is: runs follow each other, and a slow device completes in the next what this one posted.
    progress: RefCell<Vec<Progress>>,
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// READs and WRITEs in turn.
    ReadWrite,
    /// Compare and swap.
    CompareSwap,
}

/// Where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places {
    /// On, by this many bytes each time.
    Step(u64),
    /// Anywhere.
    Anywhere,
    /// Always to the beginning.
    Same,
}

/// How it is sent. The usual flow has nothing that a diagnosis should find.
#[derive(Clone, Copy)]
pub struct Flow {
    /// What.
    pub operation: Operation,
    /// Bytes of a message.
    pub size: u32,
    /// Where to.
    pub places: Places,
    /// Distance of every address from the beginning of a cache line.
    pub offset: u64,
    /// Work requests posted by a call.
    pub list: usize,
    /// Calls in a row on a queue pair, before its completions are looked for.
    pub calls: usize,
    /// One in so many is signalled; 0 for none.
    pub signal_every: u64,
    /// Work requests outstanding per queue pair.
    pub window: u64,
    /// Payloads inline.
    pub inline: bool,
}

impl Default for Flow {
    fn default() -> Flow {
        Flow {
            operation: Operation::Write,
            size: 256,
            places: Places::Step(512),
            offset: 0,
            list: 16,
            calls: 1,
            signal_every: 16,
            window: 64,
            inline: false,
        }
    }
}

/// One queue pair's part of a flow.
#[derive(Clone, Default)]
struct Progress {
    posted: u64,
    completed: u64,
}

impl Kit {
    /// A kit for so long.
    pub fn new(device: Device, seconds: Duration) -> Kit {
        Kit { device, seconds }
    }

    /// The usual shape on this device.
    pub fn shape(&self) -> Shape {
        let access = if self.device.info.atomics { Access::Remote } else { Access::RemoteNoAtomics };
        Shape {
            qps: 1,
            cq_per_qp: false,
            cqe: None,
            depth: 128,
            receives: 16,
            inline: 0,
            signal_all: false,
            events: false,
            wiring: Wiring::usual(Retry::default(), self.device.info.max_rd_atomic),
            bytes: 1 << 20,
            memory: MemoryKind::Aligned,
            access,
        }
    }

    /// Sets a shape up.
    pub fn rig(&self, shape: &Shape) -> Result<Rig> {
        let rig = self.unconnected(shape)?;
        for (qp, peer) in rig.qps.iter().zip(&rig.peers) {
            self.connect(qp, peer, &shape.wiring)?;
        }
        Ok(rig)
    }

    /// Sets it up but for the connections.
    pub fn unconnected(&self, shape: &Shape) -> Result<Rig> {
        let context = &self.device.context;
        let pd = Pd::new(context)?;
        let channel = shape.events.then(|| Channel::new(context)).transpose()?;
        let queues = if shape.cq_per_qp { shape.qps } else { 1 };
        let share = shape.qps.div_ceil(queues.max(1)) as u32;
        let entries = shape.cqe.unwrap_or((shape.depth + shape.receives) * share).max(1);
        let new = |channel: Option<&Channel>| Cq::new(context, entries, channel).map(Rc::new);
        let cqs: Vec<Rc<Cq>> = (0..queues).map(|_| new(channel.as_ref())).collect::<Result<_, _>>()?;
        let all = (shape.depth + shape.receives) * shape.qps as u32;
        let peer_cq = Rc::new(Cq::new(context, all, None)?);
        let memory = || Buffer::allocate(shape.memory, shape.bytes).map(Rc::new);
        let local = Mr::register(&pd, &memory()?, Access::Local)?;
        let remote = Mr::register(&pd, &memory()?, shape.access)?;
        let caps = Caps { send: shape.depth, recv: shape.receives, inline: shape.inline };
        let make = |cq: &Rc<Cq>| Qp::signalling(&pd, cq, cq, Transport::Rc, caps, shape.signal_all);
        let (mut qps, mut peers) = (Vec::new(), Vec::new());
        for at in 0..shape.qps {
            qps.push(make(&cqs[at % queues])?);
            let own = if shape.cq_per_qp { new(None)? } else { Rc::clone(&peer_cq) };
            peers.push(make(&own)?);
        }
        let progress = RefCell::new(vec![Progress::default(); qps.len()]);
        Ok(Rig { qps, peers, cqs, peer_cq, channel, local, remote, pd, progress })
    }

    /// Connects two queue pairs with each other.
    pub fn connect(&self, qp: &Qp, peer: &Qp, wiring: &Wiring) -> Result<()> {
        let port = &self.device.port;
        peer.wire(port, &qp.address(port), wiring)?;
        qp.wire(port, &peer.address(port), wiring)?;
        Ok(())
    }

    /// Connects a queue pair to an address where nobody answers.
    pub fn connect_to_nobody(&self, qp: &Qp, wiring: &Wiring) -> Result<()> {
        let port = &self.device.port;
        // A queue pair of this number has long been destroyed, or never lived.
        let nobody = Address { qpn: qp.number() ^ 0x7f_0000, ..qp.address(port) };
        qp.wire(port, &nobody, wiring)?;
        Ok(())
    }

    /// Waits while nothing happens, so that there is something to look at.
    pub fn idle(&self) -> Result<()> {
        self.idle_for(self.seconds)
    }

    /// The same for a given time.
    pub fn idle_for(&self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            interrupt::check()?;
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Rig {
    /// A piece of the local memory.
    pub fn sge(&self, offset: u64, length: u32) -> ffi::ibv_sge {
        ffi::ibv_sge { addr: self.local.addr() + offset, length, lkey: self.local.lkey() }
    }

    /// Sends as `flow` says, over all queue pairs in turn, for that long.
    pub fn run(&self, flow: &Flow, time: Duration) -> Result<()> {
        let mut progress = self.progress.borrow_mut();
        let index: HashMap<u32, usize> =
            self.qps.iter().enumerate().map(|(at, qp)| (qp.number(), at)).collect();
        let mut list = SendList::with_capacity(flow.list);
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let end = Instant::now() + time;
        let mut turn = 0_u32;
        loop {
            turn = turn.wrapping_add(1);
            if turn.is_multiple_of(64) {
                interrupt::check()?;
                if Instant::now() >= end {
                    return Ok(());
                }
            }
            for (at, qp) in self.qps.iter().enumerate() {
                for _ in 0..flow.calls {
                    let mine = &mut progress[at];
                    if mine.posted - mine.completed + flow.list as u64 > flow.window {
                        break;
                    }
                    list.clear();
                    for _ in 0..flow.list {
                        self.push(&mut list, flow, mine.posted, &mut seed);
                        let last =
                            flow.signal_every > 0 && (mine.posted + 1).is_multiple_of(flow.signal_every);
                        list.flag_last(last, flow.inline);
                        mine.posted += 1;
                    }
                    qp.post(&mut list)?;
                }
            }
            self.reap(&mut progress, &index)?;
        }
    }

    fn push(&self, list: &mut SendList, flow: &Flow, number: u64, seed: &mut u64) {
        let room = (self.remote.len() as u64).saturating_sub(u64::from(flow.size) + flow.offset).max(64);
        let place = match flow.places {
            Places::Step(step) => (number * step) % (room & !63),
            Places::Same => 0,
            Places::Anywhere => {
                // Xorshift: anywhere, and fast.
                *seed ^= *seed << 13;
                *seed ^= *seed >> 7;
                *seed ^= *seed << 17;
                (*seed % room) & !63
            }
        };
        let near = place
            % ((self.local.len() as u64).saturating_sub(u64::from(flow.size) + flow.offset).max(64) & !63);
        let sge = self.sge(near + flow.offset, flow.size);
        let (remote, rkey) = (self.remote.addr() + place + flow.offset, self.remote.rkey());
        match flow.operation {
            Operation::Write => list.write(number, sge, remote, rkey, None),
            Operation::Read => list.read(number, sge, remote, rkey),
            Operation::ReadWrite if number.is_multiple_of(2) => list.read(number, sge, remote, rkey),
            Operation::ReadWrite => list.write(number, sge, remote, rkey, None),
            Operation::CompareSwap => {
                list.atomic(number, sge, remote, rkey, Atomic::CompareSwap { compare: 0, swap: 0 });
            }
        }
    }

    fn reap(&self, progress: &mut [Progress], index: &HashMap<u32, usize>) -> Result<()> {
        let mut completions = [ffi::ibv_wc::default(); WC_BATCH];
        for cq in &self.cqs {
            let found = cq.poll(&mut completions)?;
            for completion in &completions[..found] {
                if let Some((status, vendor)) = completion.error() {
                    bail!("{}", completion_error(completion, status, vendor));
                }
                if let Some(mine) = index.get(&completion.qp_num).and_then(|at| progress.get_mut(*at)) {
                    mine.completed = mine.completed.max(completion.wr_id() + 1);
                }
            }
        }
        Ok(())
    }

    /// Completions with an error on the first queue, until one came or the time is up.
    pub fn failures(&self, limit: Duration) -> Result<usize> {
        let mut completions = [ffi::ibv_wc::default(); WC_BATCH];
        let end = Instant::now() + limit;
        while Instant::now() < end {
            interrupt::check()?;
            let found = self.cqs[0].poll(&mut completions)?;
            let failed = completions[..found].iter().filter(|c| c.error().is_some()).count();
            if failed > 0 {
                return Ok(failed);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(0)
    }

    /// Posts one request of a flow, signalled.
    pub fn post_one(&self, flow: &Flow) -> Result<()> {
        let mut list = SendList::with_capacity(1);
        self.push(&mut list, flow, 0, &mut 1);
        list.flag_last(true, flow.inline);
        self.qps[0].post(&mut list)?;
        Ok(())
    }
}
