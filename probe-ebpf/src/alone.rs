//! A work request alone, of which the registers at a site tell: counted without a look at the memory of the program.

use aya_ebpf::programs::ProbeContext;
use probe_common::counters::{ObjectCounters, detail, qp};
use probe_common::site::Flags;
use probe_common::under_way::Ring;

use crate::addresses::{Steps, Told, is_zero};
use crate::arch;
use crate::bounds::bounded;
use crate::data;
use crate::under_way;
use crate::walk::Kind;

/// What is known of it.
pub struct Alone {
    kind: Kind,
    wr_id: u64,
    remote_addr: u64,
    /// As [`probe_common::under_way::UnderWay::keys`].
    keys: u64,
    /// Address of its buffer, and 1 where it has one.
    addr: u64,
    buffers: u64,
    /// It stands for so many.
    weight: u64,
}

impl Alone {
    /// Of a digest of one work request.
    #[inline(always)]
    pub fn by(ctx: &ProbeContext, flags: Flags, opcode: u64, bytes: u64) -> Self {
        let [wr_id, remote_addr, addr, keys] = arch::alone(ctx.regs);
        let buffers = flags.has_buffer() as u64;
        let kind = Kind::of_digest(opcode, flags, buffers, bytes);
        Self { kind, wr_id, remote_addr, keys, addr, buffers, weight: 1 << flags.exponent() }
    }

    /// Counts what a walk would tell of it. `ring` notes it as under way; `None` where not every one is seen, and nothing
    /// is known of those before it.
    #[inline(always)]
    pub fn count(&self, counters: *mut ObjectCounters, ring: Option<*mut Ring>, now: u64) {
        let Self { kind, wr_id, remote_addr, keys, addr, buffers, weight } = *self;
        let is_remote = kind.is_remote();
        let low = addr | remote_addr & is_remote.wrapping_neg();
        // SAFETY: live map values.
        let told = unsafe {
            let last = &mut (*counters).last;
            let mut local = Steps { at: last[0], behind: last[1] };
            let mut remote = Steps { at: last[2], behind: last[3] };
            // Where there is no buffer, the next one follows the one before.
            let local_step = if buffers != 0 { local.to(addr, kind.bytes) } else { (0, 0) };
            let remote_step = if is_remote != 0 { remote.to(remote_addr, kind.bytes) } else { (0, 0) };
            if ring.is_some() {
                *last = [local.at, local.behind, remote.at, remote.behind];
            }
            Told::of(low, local_step, remote_step)
        };
        // SAFETY: a live map value.
        let max_inline = unsafe { (*counters).granted.max_inline } as u64;
        data::add_size(counters, bounded::<31>(kind.class() >> 8), weight);
        data::add_detail(counters, detail::WRS, weight);
        data::add_detail(counters, detail::UNALIGNED_64, told.get(Told::UNALIGNED_64).wrapping_mul(weight));
        data::add_detail(
            counters,
            detail::UNALIGNED_4096,
            told.get(Told::UNALIGNED_4096).wrapping_mul(weight),
        );
        data::add_detail(counters, detail::ODD_LENGTHS, (1 - is_zero(kind.bytes & 63)).wrapping_mul(weight));
        data::add_detail(counters, detail::REMOTE_WRS, is_remote.wrapping_mul(weight));
        data::add_detail(counters, detail::COULD_INLINE, kind.could_inline(max_inline).wrapping_mul(weight));
        // SAFETY: a live map value.
        let run = unsafe { &mut (*counters).counters[qp::UNSIGNALLED_RUN] };
        let Some(ring) = ring else {
            *run = 0;
            return;
        };
        data::add_loosely(counters, detail::LOCAL_SAME, told.get(Told::LOCAL_SAME));
        data::add_loosely(counters, detail::LOCAL_SEQUENTIAL, told.get(Told::LOCAL_SEQUENTIAL));
        data::add_loosely(counters, detail::REMOTE_SAME, told.get(Told::REMOTE_SAME));
        data::add_loosely(counters, detail::REMOTE_SEQUENTIAL, told.get(Told::REMOTE_SEQUENTIAL));
        data::add_loosely(counters, detail::MERGEABLE, told.get(Told::MERGEABLE));
        // SAFETY: live map values.
        unsafe {
            if kind.signalled() | (*counters).granted.signal_all as u64 & 1 != 0 {
                *run = 0;
                under_way::note(ring, now, kind.bytes, |entry| {
                    entry.wr_id = wr_id;
                    entry.remote_addr = remote_addr;
                    entry.keys = keys;
                    entry.class_addr = kind.noted_class() | addr << 16;
                });
            } else {
                *run = (*run).wrapping_add(1);
                let longest = &mut (*counters).counters[qp::LONGEST_UNSIGNALLED];
                if *run > *longest {
                    *longest = *run;
                }
                (*ring).posted = (*ring).posted.wrapping_add(1);
            }
        }
        under_way::note_outstanding(counters, ring);
    }
}
