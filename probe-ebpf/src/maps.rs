//! The tables shared with user space, and the values handed over at load time. All are bounded.

use aya_ebpf::Global;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, PerCpuArray, RingBuf};
use probe_common::wire::{BucketKey, CallCounters, CallKey, KernelOffsets, LOSSES, Site, Target};

use crate::frames::ThreadStack;

/// Watched processes by tgid. Unused when [`WHOLE_HOST`] is set.
#[map]
pub static TARGETS: HashMap<u32, Target> = HashMap::with_max_entries(16_384, 0);

/// Calls in progress, by thread. An entry lives only while the thread is inside a probed function.
#[map]
pub static STACKS: HashMap<u64, ThreadStack> = HashMap::with_max_entries(8_192, 0);

/// What a new entry of [`STACKS`] begins as; never written.
#[map]
pub static EMPTY_STACK: Array<ThreadStack> = Array::with_max_entries(1, 0);

/// Counters per process and call.
#[map]
pub static CALLS: HashMap<CallKey, CallCounters> = HashMap::with_max_entries(65_536, 0);

/// Latency histogram buckets per process and call.
#[map]
pub static BUCKETS: HashMap<BucketKey, u64> = HashMap::with_max_entries(262_144, 0);

/// Attachment sites in libraries, by the number in the cookie.
#[map]
pub static SITES: Array<Site> = Array::with_max_entries(16_384, 0);

/// What was lost, per CPU, by `wire::Loss`.
#[map]
pub static LOST: PerCpuArray<u64> = PerCpuArray::with_max_entries(LOSSES, 0);

/// Messages to user space: room for 60,000 calls between two looks.
#[map]
pub static EVENTS: RingBuf = RingBuf::with_byte_size(16 << 20, 0);

/// Non-zero: every process is watched.
#[unsafe(no_mangle)]
pub static WHOLE_HOST: Global<u32> = Global::new(0);

/// The profiler's own process, which is never watched.
#[unsafe(no_mangle)]
pub static PROFILER_TGID: Global<u32> = Global::new(0);

/// Offsets of kernel fields.
#[unsafe(no_mangle)]
pub static OFFSETS: KernelOffsets = KernelOffsets {
    task_group_leader: 0,
    task_start_boottime: 0,
    task_tgid: 0,
    task_pid: 0,
    task_signal: 0,
    signal_live: 0,
    task_min_flt: 0,
    task_maj_flt: 0,
    task_fsbase: 0,
    umem_address: 0,
    umem_length: 0,
    task_comm: 0,
};

/// One of [`OFFSETS`], as loaded: the compiler sees only the zeroes.
macro_rules! offset {
    ($field:ident) => {
        // SAFETY: a valid static, written before the program is loaded.
        unsafe { core::ptr::read_volatile(&raw const $crate::maps::OFFSETS.$field) as u64 }
    };
}
pub(crate) use offset;
