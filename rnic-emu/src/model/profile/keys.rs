//! The parameters of a profile: name, unit, what is accepted, what it means.

/// What a parameter is and which values are accepted. The plausible range of a NIC is the profile's own matter.
#[derive(Clone, Copy, Debug)]
pub struct KeyDef {
    /// Which parameter.
    pub key: Key,
    /// `table.name` as written in the TOML file.
    pub name: &'static str,
    /// Unit of the value; `""` for a plain number.
    pub unit: &'static str,
    /// Least accepted value.
    pub min: f64,
    /// Greatest accepted value.
    pub max: f64,
    /// True when only whole numbers make sense.
    pub whole: bool,
    /// One sentence on what it means.
    pub meaning: &'static str,
}

macro_rules! keys {
    ($($key:ident, $name:literal, $unit:literal, $min:literal, $max:literal, $whole:literal, $meaning:literal;)*) => {
        /// Every parameter of the model.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Key {
            $(#[doc = $meaning] $key,)*
        }

        /// All parameters, in the order of [`Key`].
        pub const KEYS: &[KeyDef] = &[
            $(KeyDef {
                key: Key::$key, name: $name, unit: $unit, min: $min, max: $max, whole: $whole, meaning: $meaning,
            },)*
        ];
    };
}

keys! {
    LinkRate, "link.rate", "Gb/s", 0.1, 3200.0, false, "Data rate of the port, each way.";
    LinkFrame, "link.frame", "B", 8.0, 256.0, true, "Bytes a packet takes on the wire before any RDMA extension header and payload.";
    LinkMtu, "link.mtu", "B", 256.0, 4096.0, true, "Path MTU: payload bytes of one packet.";
    LinkDelay, "link.delay", "ns", 0.0, 1e7, false, "Cable, switch and port logic, one way.";
    PcieRate, "pcie.rate", "GB/s", 0.1, 512.0, false, "PCIe data rate each way, before packet overheads.";
    PcieRoundTrip, "pcie.round_trip", "ns", 0.0, 1e6, false, "DMA read of a line: request out to data in.";
    PcieWrite, "pcie.write", "ns", 0.0, 1e6, false, "Posted DMA write: leaving the NIC to visible in memory.";
    PcieMmio, "pcie.mmio", "ns", 0.0, 1e6, false, "Store of the CPU to a doorbell until the NIC sees it.";
    PcieMmioLine, "pcie.mmio_line", "ns", 0.0, 1e5, false, "Time one 64 B write-combined line takes of the NIC's doorbell path.";
    PcieRequest, "pcie.request_overhead", "B", 0.0, 128.0, true, "Overhead of a read request or a write on PCIe.";
    PcieCompletion, "pcie.completion_overhead", "B", 0.0, 128.0, true, "Overhead of each completion carrying read data.";
    PcieSplit, "pcie.split", "B", 64.0, 4096.0, true, "Payload of one completion or write on PCIe.";
    TxMessage, "tx.message", "ns", 0.0, 1e6, false, "Send pipeline per packet sent: request, response or first packet of a message.";
    TxDmaRead, "tx.dma_read", "ns", 0.0, 1e6, false, "Send pipeline per DMA read it has to start: WQE fetch, payload fetch.";
    TxAck, "tx.ack", "ns", 0.0, 1e6, false, "Send pipeline per acknowledged request, to retire it.";
    TxCqe, "tx.cqe", "ns", 0.0, 1e6, false, "Pipeline time per CQE written.";
    TxLatency, "tx.latency", "ns", 0.0, 1e7, false, "Depth of the send pipeline for a request: WQE in, first byte out. Responses skip it.";
    RxBuffer, "rx.buffer", "ns", 0.0, 1e9, false, "Backlog of the receiving side at which senders are paused (link credits, PFC).";
    RxMessage, "rx.message", "ns", 0.0, 1e6, false, "Receive pipeline per packet.";
    RxLatency, "rx.latency", "ns", 0.0, 1e7, false, "Depth of the receive pipeline: last byte in, DMA or response started.";
    PuCount, "pu.count", "", 1.0, 4096.0, true, "Processing units: how many QPs are worked on at once.";
    PuWrite, "pu.write", "ns", 0.0, 1e7, false, "A unit is taken this long by a SEND or WRITE, and its QP with it.";
    PuRead, "pu.read", "ns", 0.0, 1e7, false, "A unit is taken this long by a READ or atomic, and its QP with it.";
    PuPacket, "pu.packet", "ns", 0.0, 1e7, false, "A unit is taken this long by each further packet of a message.";
    QpReads, "qp.reads", "", 1.0, 256.0, true, "READs and atomics a QP may have outstanding.";
    QpReadGap, "qp.read_gap", "ns", 0.0, 1e7, false, "Least time between two READs of one QP, while the unit goes on to other QPs.";
    QpContextBytes, "qp.context", "B", 1.0, 65536.0, true, "Context memory of a QP.";
    CqContextBytes, "cq.context", "B", 1.0, 65536.0, true, "Context memory of a CQ (its ring lies in host memory).";
    WqePrefetch, "wqe.prefetch", "", 1.0, 1024.0, true, "WQEs brought in by one DMA read when a list was posted.";
    WqeEntries, "wqe.entries", "", 0.0, 1e9, true, "WQEs of outstanding requests the NIC can keep; needed again when the answer comes.";
    WqeMiss, "wqe.miss", "ns", 0.0, 1e6, false, "Latency of fetching a WQE again.";
    QpcEntries, "qpc.entries", "", 0.0, 1e9, true, "QP contexts the NIC can keep for sending: requests and READ responses.";
    QpcWays, "qpc.ways", "", 1.0, 4096.0, true, "Associativity of that cache.";
    QpcMiss, "qpc.miss", "ns", 0.0, 1e6, false, "Latency of fetching a QP context.";
    RxcEntries, "rxc.entries", "", 0.0, 1e9, true, "QP contexts the NIC can keep for receiving requests.";
    RxcWays, "rxc.ways", "", 1.0, 4096.0, true, "Associativity of that cache.";
    RxcMiss, "rxc.miss", "ns", 0.0, 1e6, false, "Latency of fetching a receive context.";
    CqcEntries, "cqc.entries", "", 0.0, 1e9, true, "CQ contexts the NIC can keep.";
    CqcMiss, "cqc.miss", "ns", 0.0, 1e6, false, "Latency of fetching a CQ context.";
    MptEntries, "mpt.entries", "", 0.0, 1e9, true, "Memory keys the NIC can keep.";
    MptWays, "mpt.ways", "", 1.0, 4096.0, true, "Associativity of that cache.";
    MptMiss, "mpt.miss", "ns", 0.0, 1e6, false, "Latency of fetching a memory key.";
    MttEntries, "mtt.entries", "", 0.0, 1e9, true, "Page translations the NIC can keep.";
    MttWays, "mtt.ways", "", 1.0, 4096.0, true, "Associativity of that cache.";
    MttLine, "mtt.line", "", 1.0, 1024.0, true, "Translations brought in by one fetch.";
    MttMiss, "mtt.miss", "ns", 0.0, 1e6, false, "Latency of fetching a translation.";
    MissOverlap, "miss.overlap", "", 1.0, 10000.0, false, "Misses in flight at once: a pipeline stalls for the latency divided by this.";
    TableCache, "table.host_cache", "KiB", 0.0, 1e9, false, "Host cache that keeps the NIC's tables; what falls out of it is fetched from DRAM.";
    TableCold, "table.cold", "ns", 0.0, 1e6, false, "What a miss costs more when the host's cache does not hold the entry.";
    AtomicSlots, "atomic.slots", "", 1.0, 1e6, true, "Locks for atomics, chosen by the low address bits.";
    AtomicHold, "atomic.hold", "ns", 0.0, 1e6, false, "An atomic holds its lock and its QP this long.";
    AtomicMessage, "atomic.message", "ns", 0.0, 1e6, false, "Time of the NIC's atomic unit per atomic.";
    DoorbellRegisters, "doorbell.registers", "", 1.0, 65536.0, true, "Doorbell registers (uUARs) of a device context.";
    DoorbellLockFree, "doorbell.lock_free", "", 0.0, 65536.0, true, "Those given to one QP each, which need no lock.";
    BlueFlame, "doorbell.blueflame", "", 0.0, 2.0, true, "A single WR is written with its doorbell: 0 never, 1 when inline, 2 always.";
    HostPost, "host.post", "ns", 0.0, 1e7, false, "CPU time to build one WQE.";
    HostDoorbell, "host.doorbell", "ns", 0.0, 1e7, false, "CPU time to ring a doorbell: barriers and the store, per 64 B line.";
    HostPoll, "host.poll", "ns", 0.0, 1e7, false, "CPU time to reap one CQE.";
    HostEmptyPoll, "host.empty_poll", "ns", 0.0, 1e7, false, "CPU time of a poll that finds nothing.";
    HostLock, "host.lock", "ns", 0.0, 1e7, false, "Taking an uncontended lock around a post.";
    HostHandoff, "host.handoff", "ns", 0.0, 1e7, false, "A lock's line moving to another core, when the thread that held it last was another.";
    HostWaiter, "host.waiter", "ns", 0.0, 1e7, false, "What each further waiting thread adds to handing a lock over: all of them read its line again at every release.";
    HostWaiters, "host.waiters", "", 0.0, 1e6, false, "Waiting threads beyond this many make a handover no slower.";
    HostFlush, "host.flush", "ns", 0.0, 1e7, false, "Draining the write-combining buffer before a shared register's lock is given back; without a lock the CPU goes on meanwhile.";
    HostMigrate, "host.migrate", "ns", 0.0, 1e7, false, "What a shared QP adds to a handover: its own data moves from core to core with the lock.";
    HostDouble, "host.double_at", "", 1.0, 1e9, false, "CPU work takes twice as long with this many busy threads: shared cores, turbo, shared caches.";
    EventInterrupt, "event.interrupt", "ns", 0.0, 1e9, false, "CQE written to interrupt handled.";
    EventWakeup, "event.wakeup", "ns", 0.0, 1e9, false, "Interrupt handled to the waiting thread running again.";
    RegBase, "registration.base", "ns", 0.0, 1e10, false, "Registering a region: the part that does not depend on its size.";
    RegPage, "registration.page", "ns", 0.0, 1e9, false, "Registering a region: per page, of the size the pages really have.";
    DeregBase, "deregistration.base", "ns", 0.0, 1e10, false, "Deregistering: the fixed part.";
    DeregPage, "deregistration.page", "ns", 0.0, 1e9, false, "Deregistering: per page.";
}

impl Key {
    /// Its definition.
    pub fn def(self) -> &'static KeyDef {
        &KEYS[self as usize]
    }

    /// The parameter of that name, or the name that comes closest.
    pub fn find(name: &str) -> Result<Self, &'static str> {
        match KEYS.iter().find(|d| d.name == name) {
            Some(def) => Ok(def.key),
            None => Err(KEYS.iter().min_by_key(|d| distance(d.name, name)).map_or("", |d| d.name)),
        }
    }
}

/// Edit distance: single letters inserted, removed or changed.
pub(super) fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &cb) in b.iter().enumerate() {
            let change = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_listed_in_the_order_of_the_enum_and_names_are_unique() {
        for (i, def) in KEYS.iter().enumerate() {
            assert_eq!(def.key as usize, i, "{}", def.name);
            assert_eq!(Key::find(def.name), Ok(def.key));
            assert!(def.min < def.max && def.name.contains('.'));
        }
    }

    #[test]
    fn a_misspelt_key_is_answered_with_the_nearest() {
        assert_eq!(Key::find("mtt.entires"), Err("mtt.entries"));
        assert_eq!(Key::find("link.speed"), Err("link.rate"));
    }
}
