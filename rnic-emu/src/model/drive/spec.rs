//! What load to put on the modelled NICs.

use serde::{Deserialize, Serialize};

use crate::model::work::{Op, Transport};

/// Who talks to whom. Figures (rates, counts) are per measured node: the initiator, or the target of a fan-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// Node 0 to node 1.
    #[default]
    OneToOne,
    /// Node 0 and node 1 to each other, each with its own threads and QPs; rates are those of one of them.
    Symmetric,
    /// That many nodes, each with its own threads and QPs, to node 0.
    FanIn(u16),
    /// Node 0 to that many nodes, its QPs dealt out among them.
    FanOut(u16),
}

/// How a thread keeps its window of outstanding requests full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Window {
    /// A new request for each that completed.
    #[default]
    Refill,
    /// Posts the whole window, waits for all of it, starts over.
    Batch,
}

/// Which of its QPs a thread takes for its next doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pick {
    /// In turn.
    #[default]
    RoundRobin,
    /// At random.
    Random,
}

/// Which doorbell register a QP rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Doorbells {
    /// One of its own.
    #[default]
    Own,
    /// As the driver deals them out: a few QPs get one each, the rest share, and share its lock.
    Driver,
}

/// Which bytes of the remote memory are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// The same place over and over.
    #[default]
    Fixed,
    /// One after the other, from the start again at the end.
    Sequential,
    /// That many bytes further each time.
    Stride(u64),
    /// Anywhere.
    Random,
}

/// The memory the requests touch at the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// Bytes of all regions together.
    pub bytes: u64,
    /// Page size behind them, in bytes.
    pub page: u64,
    /// Regions they are registered as; a request picks one at random.
    pub regions: u32,
    /// Order of the places.
    pub pattern: Pattern,
}

impl Default for Memory {
    fn default() -> Self {
        Self { bytes: 1 << 20, page: 4096, regions: 1, pattern: Pattern::Fixed }
    }
}

/// How threads learn of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Waiting {
    /// Polling without pause.
    #[default]
    Poll,
    /// Sleeping on the completion channel when there is nothing.
    Event,
}

/// A server's answer to each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reply {
    /// Threads that answer.
    pub threads: u32,
    /// Opcode of the answer.
    pub op: Op,
    /// Its payload in bytes.
    pub bytes: u32,
    /// Payload inside the WQE.
    pub inline: bool,
    /// Transport it goes by.
    pub transport: Transport,
    /// One in that many is signalled; 0 for none.
    pub signal_every: u32,
}

impl Default for Reply {
    fn default() -> Self {
        Self { threads: 8, op: Op::Send, bytes: 32, inline: true, transport: Transport::Rc, signal_every: 1 }
    }
}

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoadSpec {
    /// Who talks to whom.
    pub shape: Shape,
    /// Posting threads of each initiating node.
    pub threads: u32,
    /// QPs of each initiating node, dealt out among its threads; shared under a lock when there are fewer than threads.
    /// 0 means one per thread.
    pub qps: u32,
    /// Requests outstanding per initiating node, dealt out among its threads.
    pub outstanding: u32,
    /// How the window is kept full.
    pub window: Window,
    /// Which QP comes next.
    pub pick: Pick,
    /// WRs posted as one list with one doorbell.
    pub list: u32,
    /// The program's own CPU time per request, in nanoseconds.
    pub work_ns: f64,
    /// One WR in that many is signalled.
    pub signal_every: u32,
    /// Opcode.
    pub op: Op,
    /// Payload in bytes.
    pub bytes: u32,
    /// Payload inside the WQE.
    pub inline: bool,
    /// Scatter/gather entries.
    pub sges: u8,
    /// Transport service.
    pub transport: Transport,
    /// Doorbell registers.
    pub doorbells: Doorbells,
    /// Remote memory.
    pub memory: Memory,
    /// Share of READs mixed in, in percent, on the same QPs.
    pub read_percent: u8,
    /// How completions are learnt of.
    pub waiting: Waiting,
    /// One CQ for all threads' QPs instead of one per thread.
    pub shared_cq: bool,
    /// Open loop: requests arrive at random at this rate per initiating node, in requests a second; 0 for a closed loop.
    pub rate: f64,
    /// A server answers each request; a request is done when its answer is in.
    pub reply: Option<Reply>,
    /// Requests before measuring starts; 0 for enough to fill the window and the caches of a NIC.
    pub warmup: u64,
    /// Requests measured.
    pub measure: u64,
    /// Seed of everything random.
    pub seed: u64,
}

impl Default for LoadSpec {
    fn default() -> Self {
        Self {
            shape: Shape::OneToOne,
            threads: 1,
            qps: 0,
            outstanding: 1,
            window: Window::Refill,
            pick: Pick::RoundRobin,
            list: 1,
            work_ns: 0.0,
            signal_every: 1,
            op: Op::Write,
            bytes: 8,
            inline: false,
            sges: 1,
            transport: Transport::Rc,
            doorbells: Doorbells::Own,
            memory: Memory::default(),
            read_percent: 0,
            waiting: Waiting::Poll,
            shared_cq: false,
            rate: 0.0,
            reply: None,
            warmup: 0,
            measure: 60_000,
            seed: 1,
        }
    }
}

/// Why a load cannot be run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{field} = \"{value}\": {fix}")]
pub struct SpecError {
    /// Which field of the [`LoadSpec`].
    pub field: &'static str,
    /// Its value.
    pub value: String,
    /// What would do.
    pub fix: &'static str,
}

/// Most threads, QPs, nodes or requests under way of one run: bounds memory, far above any machine.
const MOST: u32 = 4_000_000;

impl LoadSpec {
    /// The closed loop behind the multi-QP figures that the profile `article` reproduces: one thread, its requests on QPs at
    /// random. Rate times latency of its rows is 10, 12 and 11 requests outstanding for 1, 8 and 16 QPs.
    pub fn article(qps: u32) -> Self {
        let outstanding = match qps {
            1 => 10,
            8 => 12,
            _ => 11,
        };
        Self { qps, outstanding, pick: Pick::Random, bytes: 64, measure: 20_000, ..Self::default() }
    }

    /// QPs of each initiating node.
    pub fn qps_per_node(&self) -> u32 {
        if self.qps == 0 { self.threads } else { self.qps }
    }

    /// Refuses loads that mean nothing.
    pub fn check(&self) -> Result<(), SpecError> {
        let refuse =
            |field, value: &dyn ToString, fix| Err(SpecError { field, value: value.to_string(), fix });
        for (field, value) in [
            ("threads", self.threads),
            ("outstanding", self.outstanding),
            ("list", self.list),
            ("signal_every", self.signal_every),
            ("memory.regions", self.memory.regions),
        ] {
            if value == 0 || value > MOST {
                return refuse(field, &value, "must be from 1 to 4000000");
            }
        }
        if self.qps > MOST {
            return refuse("qps", &self.qps, "must be at most 4000000");
        }
        if self.memory.page == 0 || self.memory.bytes == 0 {
            return refuse("memory", &"0 bytes", "page size and length must be above 0");
        }
        if self.measure == 0 {
            return refuse("measure", &self.measure, "must be above 0");
        }
        if self.signal_every > self.outstanding.div_ceil(self.threads).max(1) && self.rate == 0.0 {
            return refuse(
                "signal_every",
                &self.signal_every,
                "no CQE would come before a thread's window is full; use at most outstanding divided by threads",
            );
        }
        if !(self.work_ns >= 0.0 && self.work_ns <= 1e12) {
            return refuse("work_ns", &self.work_ns, "must be from 0 to 1e12 nanoseconds");
        }
        if !self.rate.is_finite() || self.rate < 0.0 {
            return refuse("rate", &self.rate, "must be 0 (closed loop) or requests per second");
        }
        match self.shape {
            Shape::FanIn(n) | Shape::FanOut(n) if n == 0 || n > 4096 => {
                refuse("shape", &n, "must fan to 1 to 4096 nodes")
            }
            _ if self.inline && self.op.reads() => {
                refuse("inline", &true, "READs and atomics carry no payload to inline")
            }
            _ if self.reply.is_some_and(|r| r.threads == 0) => refuse("reply.threads", &0, "must be above 0"),
            _ => Ok(()),
        }
    }
}
