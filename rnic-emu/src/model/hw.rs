//! A profile made ready for the inner loop: spans in picoseconds, counts as integers.

use super::profile::{Key, Profile};
use super::time::{Ps, from_ns};
use super::work::{Op, Transport};

/// Bytes of RDMA extension headers (InfiniBand Architecture 1.4, chapter 9): what a packet carries besides its payload.
mod header {
    pub const RETH: u64 = 16;
    pub const AETH: u64 = 4;
    pub const DETH: u64 = 8;
    pub const ATOMIC: u64 = 28;
    pub const ATOMIC_ACK: u64 = 8;
    pub const IMM: u64 = 4;
}

/// A WQE is written and fetched in lines of this many bytes.
const LINE: u64 = 64;

/// The numbers of one NIC and its host.
#[derive(Clone, Debug)]
pub struct Hw {
    wire_byte: PerByte,
    frame: u64,
    pub mtu: u64,
    pub delay: Ps,
    pcie_byte: PerByte,
    pub pcie_round_trip: Ps,
    pub pcie_write: Ps,
    pub mmio: Ps,
    pub mmio_line: Ps,
    pcie_request: u64,
    pcie_completion: u64,
    pcie_split: u64,
    pub tx_message: Ps,
    pub tx_dma_read: Ps,
    pub tx_ack: Ps,
    pub cqe: Ps,
    pub tx_latency: Ps,
    pub rx_message: Ps,
    pub rx_latency: Ps,
    pub rx_buffer: Ps,
    pub pu_write: Ps,
    pub pu_read: Ps,
    pub pu_packet: Ps,
    pub reads: u32,
    pub read_gap: Ps,
    pub prefetch: u32,
    pub wqe_miss: Ps,
    pub qpc_miss: Ps,
    pub rxc_miss: Ps,
    pub cqc_miss: Ps,
    pub mpt_miss: Ps,
    pub mtt_miss: Ps,
    pub mtt_line: u64,
    overlap: f64,
    pub cold: Ps,
    pub atomic_slots: u64,
    pub atomic_hold: Ps,
    pub atomic_message: Ps,
    blueflame: u8,
}

impl Hw {
    pub fn new(p: &Profile) -> Self {
        let ns = |key| from_ns(p.get(key));
        let int = |key| p.get(key) as u64;
        Self {
            wire_byte: PerByte::new(8_000.0 / p.get(Key::LinkRate)),
            frame: int(Key::LinkFrame),
            mtu: int(Key::LinkMtu),
            delay: ns(Key::LinkDelay),
            pcie_byte: PerByte::new(1_000.0 / p.get(Key::PcieRate)),
            pcie_round_trip: ns(Key::PcieRoundTrip),
            pcie_write: ns(Key::PcieWrite),
            mmio: ns(Key::PcieMmio),
            mmio_line: ns(Key::PcieMmioLine),
            pcie_request: int(Key::PcieRequest),
            pcie_completion: int(Key::PcieCompletion),
            pcie_split: int(Key::PcieSplit),
            tx_message: ns(Key::TxMessage),
            tx_dma_read: ns(Key::TxDmaRead),
            tx_ack: ns(Key::TxAck),
            cqe: ns(Key::TxCqe),
            tx_latency: ns(Key::TxLatency),
            rx_message: ns(Key::RxMessage),
            rx_latency: ns(Key::RxLatency),
            rx_buffer: ns(Key::RxBuffer),
            pu_write: ns(Key::PuWrite),
            pu_read: ns(Key::PuRead),
            pu_packet: ns(Key::PuPacket),
            reads: int(Key::QpReads) as u32,
            read_gap: ns(Key::QpReadGap),
            prefetch: int(Key::WqePrefetch) as u32,
            wqe_miss: ns(Key::WqeMiss),
            qpc_miss: ns(Key::QpcMiss),
            rxc_miss: ns(Key::RxcMiss),
            cqc_miss: ns(Key::CqcMiss),
            mpt_miss: ns(Key::MptMiss),
            mtt_miss: ns(Key::MttMiss),
            mtt_line: int(Key::MttLine).max(1),
            overlap: p.get(Key::MissOverlap),
            cold: ns(Key::TableCold),
            atomic_slots: int(Key::AtomicSlots),
            atomic_hold: ns(Key::AtomicHold),
            atomic_message: ns(Key::AtomicMessage),
            blueflame: int(Key::BlueFlame) as u8,
        }
    }

    /// Time of `bytes` on the wire.
    fn wire(&self, bytes: u64) -> Ps {
        self.wire_byte.times(bytes)
    }

    /// Time on the wire of a request packet with `payload` bytes. Payload is padded to 4 bytes.
    pub fn request_packet(&self, op: Op, transport: Transport, payload: u64, first: bool) -> Ps {
        let operation = match op {
            Op::Write | Op::WriteImm if first => header::RETH,
            Op::Read => header::RETH,
            Op::CompareSwap | Op::FetchAdd => header::ATOMIC,
            _ => 0,
        };
        let imm = if matches!(op, Op::WriteImm | Op::SendImm) { header::IMM } else { 0 };
        let datagram = if transport == Transport::Ud { header::DETH } else { 0 };
        self.wire(self.frame + operation + imm + datagram + payload.next_multiple_of(4))
    }

    /// Time on the wire of a packet of a READ response.
    pub fn response_packet(&self, payload: u64) -> Ps {
        self.wire(self.frame + header::AETH + payload.next_multiple_of(4))
    }

    /// Time on the wire of an acknowledgement, or of the answer to an atomic.
    pub fn ack_packet(&self, atomic: bool) -> Ps {
        self.wire(self.frame + header::AETH + if atomic { header::ATOMIC_ACK } else { 0 })
    }

    /// Time a DMA write of `bytes` takes of the link towards the host.
    pub fn dma_write(&self, bytes: u64) -> Ps {
        self.pcie(bytes + self.splits(bytes) * self.pcie_request)
    }

    /// Time a DMA read's requests take of the link towards the host; one request asks for up to 512 bytes.
    pub fn dma_read_request(&self, bytes: u64) -> Ps {
        // Nearly all reads are small, and a division is the dearest thing here.
        let requests = if bytes <= 512 { 1 } else { bytes.div_ceil(512) };
        self.pcie(requests * self.pcie_request)
    }

    /// Time a DMA read's data takes of the link from the host.
    pub fn dma_read_data(&self, bytes: u64) -> Ps {
        self.pcie(bytes + self.splits(bytes) * self.pcie_completion)
    }

    fn splits(&self, bytes: u64) -> u64 {
        if bytes <= self.pcie_split { 1 } else { bytes.div_ceil(self.pcie_split) }
    }

    fn pcie(&self, bytes: u64) -> Ps {
        self.pcie_byte.times(bytes)
    }

    /// How long a pipeline stands still for a miss of this latency: others are under way at the same time.
    pub fn stall(&self, miss: Ps) -> Ps {
        if miss == 0 { 0 } else { (miss as f64 / self.overlap) as Ps }
    }

    /// 64-byte lines of a WQE. 36 bytes precede inline data on RC and UC, 68 on UD (Kalia et al., ATC 2016, section 3.1);
    /// otherwise 16 bytes a scatter/gather entry follow 32 or 64 bytes of segments.
    pub fn wqe_lines(&self, transport: Transport, inline: bool, bytes: u64, sges: u64) -> u64 {
        let datagram = if transport == Transport::Ud { 32 } else { 0 };
        let length = if inline { 36 + datagram + bytes } else { 32 + datagram + 16 * sges.max(1) };
        length.div_ceil(LINE)
    }

    /// True when a single WR of that kind is written along with its doorbell.
    pub fn goes_by_blueflame(&self, inline: bool, lines: u64) -> bool {
        // The register takes 256 bytes; a longer WQE is always fetched.
        lines <= 4 && (self.blueflame == 2 || (self.blueflame == 1 && inline))
    }
}

/// Picoseconds a byte takes, in units of 2^-20 ps: exact to a millionth, and a multiplication away. (Conversions between
/// whole numbers and floating point were a tenth of the model's time.)
#[derive(Clone, Copy, Debug)]
struct PerByte(u64);

impl PerByte {
    const SHIFT: u32 = 20;

    fn new(ps: f64) -> Self {
        Self((ps * f64::from(1u32 << Self::SHIFT)).round() as u64)
    }

    /// Bytes of a packet or a DMA: at most some megabytes, which leaves room for the slowest link accepted (80 ns a byte).
    fn times(self, bytes: u64) -> Ps {
        (self.0 * bytes + (1 << (Self::SHIFT - 1))) >> Self::SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bytes_take_106_on_a_100_gigabit_wire() {
        let hw = Hw::new(&Profile::builtin("cx5-like").expect("is built in"));
        assert_eq!(hw.request_packet(Op::Write, Transport::Rc, 8, true), 8_480);
        assert_eq!(hw.request_packet(Op::Write, Transport::Rc, 7, true), 8_480);
    }

    #[test]
    fn inline_payload_grows_the_wqe_by_lines() {
        let hw = Hw::new(&Profile::builtin("cx3-like").expect("is built in"));
        let lines = |bytes| hw.wqe_lines(Transport::Uc, true, bytes, 0);
        assert_eq!([28, 29, 92, 93, 156, 157, 220].map(lines), [1, 2, 2, 3, 3, 4, 4]);
        assert_eq!(hw.wqe_lines(Transport::Rc, false, 1 << 20, 1), 1);
    }
}
