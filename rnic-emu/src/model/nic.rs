//! One NIC: its pipelines, links, processing units, caches and locks.

use std::collections::VecDeque;
use std::hint::select_unpredictable;

use super::cache::{Cache, CacheCounts};
use super::hw::Hw;
use super::lane::Lane;
use super::profile::{Key, Profile};
use super::time::Ps;
use super::wqe_store::WqeStore;

/// What waits for a processing unit.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    /// The next packet of a QP's send queue.
    Send { qp: u32 },
    /// The next packet of the answer to a READ.
    Response { wr: u32 },
}

/// Tables of the NIC that live in host memory; the number keeps their keys apart in the host's cache.
#[derive(Clone, Copy, Debug)]
pub(super) enum Table {
    Qpc = 1,
    Rxc,
    Cqc,
    Mpt,
    Mtt,
}

#[derive(Clone, Debug)]
pub(super) struct Nic {
    /// Send pipeline.
    pub tx: Lane,
    /// Receive pipeline.
    pub rx: Lane,
    /// Outgoing direction of the port.
    pub port: Lane,
    /// PCIe towards the host.
    pub up: Lane,
    /// PCIe from the host.
    pub down: Lane,
    /// Doorbell path.
    pub mmio: Lane,
    /// The atomic unit.
    pub atomics: Lane,
    /// When the last work for a request of its own went through the send pipeline.
    turn: Ps,
    /// When each processing unit is free again, and the one that is first.
    units: Vec<Ps>,
    first_free: usize,
    /// A look at the units is due then, because something waits for one; 0 when nothing does.
    pub look_at: Ps,
    /// QPs (and answers) waiting for a unit, served in turn, one packet each.
    pub ring: VecDeque<Job>,
    pub pu_busy: Ps,
    pub qpc: Cache,
    pub rxc: Cache,
    pub cqc: Cache,
    pub wqe: WqeStore,
    pub mpt: Cache,
    pub mtt: Cache,
    host: Cache,
    /// Time each atomic lock is free again; allocated at the first atomic.
    pub slots: Vec<Ps>,
    pub packets: u64,
    pub bytes: u64,
    pub cqes: u64,
    pub doorbells: u64,
}

impl Nic {
    pub fn new(p: &Profile) -> Self {
        let int = |key| p.get(key) as u64;
        let cache = |entries, ways| Cache::new(int(entries), int(ways));
        Self {
            tx: Lane::default(),
            rx: Lane::default(),
            port: Lane::default(),
            up: Lane::default(),
            down: Lane::default(),
            mmio: Lane::default(),
            atomics: Lane::default(),
            turn: 0,
            units: vec![0; int(Key::PuCount).max(1) as usize],
            first_free: 0,
            look_at: 0,
            ring: VecDeque::new(),
            pu_busy: 0,
            qpc: cache(Key::QpcEntries, Key::QpcWays),
            rxc: cache(Key::RxcEntries, Key::RxcWays),
            cqc: cache(Key::CqcEntries, Key::QpcWays),
            wqe: WqeStore::new(int(Key::WqeEntries)),
            mpt: cache(Key::MptEntries, Key::MptWays),
            mtt: Cache::new(int(Key::MttEntries) / int(Key::MttLine).max(1), int(Key::MttWays)),
            // 64-byte lines; a processor's last level cache has 16 ways or more.
            host: Cache::new(int(Key::TableCache) * 16, 16),
            slots: Vec::new(),
            packets: 0,
            bytes: 0,
            cqes: 0,
            doorbells: 0,
        }
    }

    /// When the processing unit that is free first is free.
    #[inline]
    pub fn unit_free_at(&self) -> Ps {
        self.units[self.first_free]
    }

    /// Takes the unit that is free first from `now` to `until`.
    #[inline]
    pub fn take_unit(&mut self, now: Ps, until: Ps) {
        self.pu_busy += until - now;
        self.units[self.first_free] = until;
        // Any that is free is as good as another: as long as there is work for few, it is the next.
        let next = if self.first_free + 1 < self.units.len() { self.first_free + 1 } else { 0 };
        if self.units[next] <= now {
            self.first_free = next;
            return;
        }
        // When all are busy it cannot be foreseen which is first: a branch would be guessed wrong for each request.
        let mut first = (0, Ps::MAX);
        for (unit, &free_at) in self.units.iter().enumerate() {
            let earlier = free_at < first.1;
            first = (
                select_unpredictable(earlier, unit, first.0),
                select_unpredictable(earlier, free_at, first.1),
            );
        }
        self.first_free = first.0;
    }

    /// Latency of a miss: more when the host's cache has lost the entry too. `key` counts 64-byte lines of that table.
    pub fn miss(&mut self, hw: &Hw, latency: Ps, table: Table, key: u64) -> Ps {
        if hw.cold == 0 || self.host.load((table as u64) << 60 | key) { latency } else { latency + hw.cold }
    }

    /// Lines of a table that the host has just written: those it can keep.
    pub fn host_holds(&mut self, table: Table, lines: std::ops::Range<u64>) {
        let first = lines.start.max(lines.end.saturating_sub(self.host.capacity()));
        for line in first..lines.end {
            self.host.load((table as u64) << 60 | line);
        }
    }

    /// Takes something of this NIC's own requests through the send pipeline at `at`: `work`, and `stall` that the pipeline
    /// stands still for its misses. Returns when its work is done; what it misses comes after that.
    ///
    /// Answers to others' READs use the same pipeline. The two take turns, so a queue of answers delays a request by no more
    /// than as much again as requests take themselves.
    pub fn send_own(&mut self, now: Ps, at: Ps, work: Ps, stall: Ps) -> Ps {
        let behind_all = self.tx.reserve(now, at, work + stall);
        self.turn = behind_all.min(self.turn.max(at) + 2 * (work + stall));
        self.turn - stall
    }

    /// Takes an answer through the send pipeline at `at`, the same way.
    pub fn send_answer(&mut self, now: Ps, at: Ps, work: Ps, stall: Ps) -> Ps {
        self.tx.reserve(now, at, work + stall) - stall
    }

    /// Up to when the receiving side is busy with what it has: its pipeline, or PCIe behind it.
    pub fn behind_until(&self) -> Ps {
        self.rx.full_until().max(self.up.full_until())
    }

    /// Takes a packet through the receive pipeline, the same way.
    pub fn receive(&mut self, now: Ps, work: Ps, stall: Ps) -> Ps {
        self.rx.reserve(now, now, work + stall) - stall
    }

    /// Starts a DMA read at `at` and returns when its data is in.
    pub fn dma_read(&mut self, hw: &Hw, now: Ps, at: Ps, bytes: u64) -> Ps {
        let asked = self.up.reserve(now, at, hw.dma_read_request(bytes));
        let data = hw.dma_read_data(bytes);
        // The round trip is that of one line; more data streams in behind it.
        let first = asked + hw.pcie_round_trip;
        self.down.reserve(now, first.saturating_sub(data.min(hw.pcie_round_trip)), data).max(first)
    }

    /// Starts a DMA write at `at` and returns when it is visible in memory.
    pub fn dma_write(&mut self, hw: &Hw, now: Ps, at: Ps, bytes: u64) -> Ps {
        self.up.reserve(now, at, hw.dma_write(bytes)) + hw.pcie_write
    }
}

/// What a NIC has done since the model was made. No real NIC shows its hit rates; this one does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct NicCounts {
    /// Packets sent.
    pub packets: u64,
    /// Payload bytes sent.
    pub bytes: u64,
    /// CQEs written.
    pub cqes: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    /// QP contexts for sending.
    pub qpc: CacheCounts,
    /// QP contexts for receiving.
    pub rxc: CacheCounts,
    /// CQ contexts.
    pub cqc: CacheCounts,
    /// WQEs of outstanding requests.
    pub wqe: CacheCounts,
    /// Memory keys.
    pub mpt: CacheCounts,
    /// Page translations.
    pub mtt: CacheCounts,
    /// Time the processing units were taken, summed over them, in ps.
    pub pu_busy: Ps,
    /// Time the send pipeline was taken, in ps.
    pub tx_busy: Ps,
    /// Time the receive pipeline was taken, in ps.
    pub rx_busy: Ps,
    /// Time the port was sending, in ps.
    pub port_busy: Ps,
    /// Time PCIe towards the host was taken, in ps.
    pub pcie_up_busy: Ps,
    /// Time PCIe from the host was taken, in ps.
    pub pcie_down_busy: Ps,
}

impl Nic {
    pub fn counts(&self) -> NicCounts {
        NicCounts {
            packets: self.packets,
            bytes: self.bytes,
            cqes: self.cqes,
            doorbells: self.doorbells,
            qpc: self.qpc.counts(),
            rxc: self.rxc.counts(),
            cqc: self.cqc.counts(),
            wqe: self.wqe.counts(),
            mpt: self.mpt.counts(),
            mtt: self.mtt.counts(),
            pu_busy: self.pu_busy,
            tx_busy: self.tx.busy(),
            rx_busy: self.rx.busy(),
            port_busy: self.port.busy(),
            pcie_up_busy: self.up.busy(),
            pcie_down_busy: self.down.busy(),
        }
    }
}

impl NicCounts {
    /// What was counted after `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            packets: self.packets - earlier.packets,
            bytes: self.bytes - earlier.bytes,
            cqes: self.cqes - earlier.cqes,
            doorbells: self.doorbells - earlier.doorbells,
            qpc: self.qpc.since(&earlier.qpc),
            rxc: self.rxc.since(&earlier.rxc),
            cqc: self.cqc.since(&earlier.cqc),
            wqe: self.wqe.since(&earlier.wqe),
            mpt: self.mpt.since(&earlier.mpt),
            mtt: self.mtt.since(&earlier.mtt),
            pu_busy: self.pu_busy - earlier.pu_busy,
            tx_busy: self.tx_busy - earlier.tx_busy,
            rx_busy: self.rx_busy - earlier.rx_busy,
            port_busy: self.port_busy - earlier.port_busy,
            pcie_up_busy: self.pcie_up_busy - earlier.pcie_up_busy,
            pcie_down_busy: self.pcie_down_busy - earlier.pcie_down_busy,
        }
    }
}
