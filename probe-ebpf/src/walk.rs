//! Walking a chain of work requests in the memory of the program.
//!
//! Requests that lie side by side, as programs keep them, are read eight at once: reading costs more than all that is
//! done with them. Sums are kept on the stack and added at the end.

use core::arch::asm;
use core::ffi::c_void;

use aya_ebpf::helpers::generated::{bpf_loop, bpf_probe_read_user};
use probe_common::counters::{ObjectCounters, Ring, SIZES, UnderWay, detail, qp};

use crate::data::{self, AT_ONCE, SendWr, Sge, Thread};
use crate::user::{clear, read};

/// `IBV_SEND_SIGNALED` and `IBV_SEND_INLINE`.
pub const SIGNALED: u32 = 1 << 1;
const INLINE: u32 = 1 << 3;
/// Opcodes that name remote memory, a bit each: RDMA_WRITE, RDMA_WRITE_WITH_IMM, RDMA_READ and the two atomics.
const NAME_REMOTE_MEMORY: u64 = 0b111_0011;
/// Opcodes whose data can go inline, a bit each: RDMA_WRITE, SEND, both with immediate data, and SEND_WITH_INV.
const GO_INLINE: u64 = 0b10_0000_1111;
/// Rounds of a walk: 2,048 work requests where they lie side by side, 256 where they do not.
const ROUNDS: u32 = 256;
/// Entries of a list that are read at once; longer lists are read one by one, up to [`MOST_SGES`].
const SHORT_LIST: u32 = 4;
/// Entries of a list that are looked at.
const MOST_SGES: u32 = 64;
/// Bytes of `struct ibv_send_wr`.
const WR_BYTES: u64 = 128;

/// A walk in progress, and what it has come to. It lies in the thread's memory: on the stack there is no room, and the
/// verifier would tell the state after every round from the one before by what has been counted.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Walk {
    /// Zeroes at the beginning.
    sums: Sums,
    /// Unsignalled work requests up to here, and the most in a row.
    run: u64,
    longest: u64,
    local: Steps,
    remote: Steps,
    /// When the post began.
    now: u64,
    /// 1 where every work request makes a completion entry.
    signal_all: u64,
    /// Bytes that go inline.
    max_inline: u64,
    at: u64,
    /// Work requests still to be looked at.
    left: u64,
    last_opcode: u64,
    last_size: u64,
    /// Of the work request being looked at: its first buffer.
    first: u64,
    first_length: u64,
    /// The list being read one by one: its next entry, entries left, bytes so far.
    list: u64,
    list_left: u64,
    list_bytes: u64,
}

/// What a walk adds up.
#[repr(C)]
#[derive(Clone, Copy)]
struct Sums {
    wrs: u64,
    signalled: u64,
    inline: u64,
    bytes: u64,
    sges: u64,
    cut: u64,
    /// A bit for each opcode and each size class there was.
    opcodes: u64,
    sizes: u64,
    unaligned_64: u64,
    unaligned_4096: u64,
    odd_lengths: u64,
    remote_wrs: u64,
    local_same: u64,
    local_sequential: u64,
    remote_same: u64,
    remote_sequential: u64,
    mergeable: u64,
    could_inline: u64,
    /// The bits of all addresses of the work request being looked at.
    low: u64,
}

/// Where a kind of memory was used last.
#[repr(C)]
#[derive(Clone, Copy)]
struct Steps {
    at: u64,
    behind: u64,
}

impl Steps {
    /// A step to a buffer, if it counts (1, or else 0). Returns 1 if it leads to the same place, and 1 if it goes on where
    /// the last one ended.
    #[inline(always)]
    fn to(&mut self, at: u64, length: u64, counts: u64) -> (u64, u64) {
        let same = is_zero((at ^ self.at) << 1 >> 1) & counts;
        let sequential = is_zero((at ^ self.behind) << 1 >> 1) & counts;
        let mask = counts.wrapping_neg();
        self.at = at & mask | self.at & !mask;
        self.behind = at.wrapping_add(length) & mask | self.behind & !mask;
        (same, sequential)
    }
}

/// 1 where a word is 0, else 0. Without a branch: in a loop over eight requests each would double the verifier's work.
#[inline(always)]
fn is_zero(word: u64) -> u64 {
    // The highest bit tells; words here are addresses, lengths and differences of addresses, and have it clear.
    word.wrapping_sub(1) >> 63
}

/// Place of the highest bit, plus one.
#[inline(always)]
fn bits(word: u64) -> u64 {
    64 - word.leading_zeros() as u64
}

/// What the rounds of a walk are given: only the stack may hold pointers.
///
/// The [`Ring`] is not named: LLVM declares types that are only pointed to in the order of its own memory, and with more
/// than one of them the object is another in every folder it is built in.
#[derive(Clone, Copy)]
struct Context {
    thread: *mut Thread,
    ring: *mut c_void,
}

/// Looks at a chain of at most `most` work requests. `counters` tell what came before; in `ring` the signalled ones are
/// noted as posted at `now`.
#[inline(always)]
pub fn over(
    counters: *mut ObjectCounters,
    thread: *mut Thread,
    ring: *mut Ring,
    wr: u64,
    most: u64,
    now: u64,
) -> &'static mut Walk {
    // SAFETY: this thread's own memory, and live map values; all outlive the program.
    unsafe {
        let walk = &mut (*thread).walk;
        clear::<{ size_of::<Sums>() / 8 }>((&raw mut walk.sums).cast());
        walk.run = (*counters).counters[qp::UNSIGNALLED_RUN];
        walk.longest = (*counters).counters[qp::LONGEST_UNSIGNALLED];
        walk.local = Steps { at: (*counters).last[0], behind: (*counters).last[1] };
        walk.remote = Steps { at: (*counters).last[2], behind: (*counters).last[3] };
        walk.now = now;
        walk.signal_all = (*counters).granted.signal_all as u64 & 1;
        walk.max_inline = (*counters).granted.max_inline as u64;
        walk.at = wr;
        walk.left = most;
        if wr != 0 && most != 0 {
            let mut context = Context { thread, ring: ring.cast::<c_void>() };
            let next = one(&raw mut context, wr);
            (*thread).walk.at = next;
            if next != 0 && most > 1 {
                bpf_loop(ROUNDS, round as *mut c_void, (&raw mut context).cast::<c_void>(), 0);
            }
        }
        let walk = &mut (*thread).walk;
        if walk.at != 0 && walk.left != 0 {
            walk.sums.cut = 1;
        }
        walk
    }
}

/// Notes how many work requests are under way now.
#[inline(always)]
pub fn note_outstanding(counters: *mut ObjectCounters, ring: *mut Ring) {
    // SAFETY: live map values.
    unsafe {
        let outstanding = (*ring).posted.wrapping_sub((*ring).completed);
        let most = &mut (*counters).details[detail::MOST_OUTSTANDING];
        if outstanding as i64 > *most as i64 {
            *most = outstanding;
        }
    }
}

impl Walk {
    /// Signalled work requests, and all.
    #[inline(always)]
    pub fn under_way(&self) -> (u64, u64) {
        (self.sums.signalled, self.sums.wrs)
    }

    /// 1 where not everything was seen.
    #[inline(always)]
    pub fn cut(&self) -> u64 {
        self.sums.cut
    }

    /// Adds the counts so many times; -1 takes them back.
    #[inline(always)]
    pub fn count(&self, counters: *mut ObjectCounters, sign: u64) {
        data::add(counters, qp::WRS, self.sums.wrs.wrapping_mul(sign));
        data::add(counters, qp::SIGNALLED, self.sums.signalled.wrapping_mul(sign));
        data::add(counters, qp::INLINE, self.sums.inline.wrapping_mul(sign));
        data::add(counters, qp::BYTES, self.sums.bytes.wrapping_mul(sign));
        data::add(counters, qp::SGES, self.sums.sges.wrapping_mul(sign));
    }

    /// Keeps the run of unsignalled work requests. Written, not added: it is one thread's, and holds as far as one posts.
    #[inline(always)]
    pub fn follow_run(&self, counters: *mut ObjectCounters) {
        // SAFETY: a live map value.
        unsafe {
            (*counters).counters[qp::UNSIGNALLED_RUN] = self.run;
            (*counters).counters[qp::LONGEST_UNSIGNALLED] = self.longest;
        }
    }

    /// Adds the work requests by opcode and size, as [`Walk::count`]. To be called once after every walk: it leaves the
    /// thread's memory as the next walk expects it. `opcodes` is false where somebody else counted them.
    #[inline(always)]
    pub fn classify(&self, counters: *mut ObjectCounters, thread: *mut Thread, sign: u64, opcodes: bool) {
        // Nearly always all of a chain are of one kind.
        let (o, s) = (self.sums.opcodes, self.sums.sizes);
        if o & o.wrapping_sub(1) == 0 && s & s.wrapping_sub(1) == 0 {
            let (opcode, size) = (bounded::<15>(self.last_opcode), bounded::<31>(self.last_size));
            // SAFETY: this thread's own memory, and a live map value; both places are within bounds.
            unsafe {
                let by_opcode = (&raw mut (*thread).opcodes).cast::<u64>().add(opcode);
                let by_size = (&raw mut (*thread).sizes).cast::<u64>().add(size);
                if opcodes && *by_opcode != 0 {
                    let counter = (&raw mut (*counters).counters).cast::<u64>().add(qp::OPCODES).add(opcode);
                    crate::count::add(counter, (*by_opcode).wrapping_mul(sign));
                }
                if *by_size != 0 {
                    let counter = (&raw mut (*counters).sizes).cast::<u64>().add(size);
                    crate::count::add(counter, (*by_size).wrapping_mul(sign));
                }
                by_opcode.write_volatile(0);
                by_size.write_volatile(0);
            }
            return;
        }
        let mut place = 0;
        while place < 16 {
            // SAFETY: this thread's own memory.
            let n = unsafe { (*thread).opcodes[place] };
            if opcodes {
                data::add(counters, qp::OPCODES + place, n.wrapping_mul(sign));
            }
            place += 1;
        }
        let mut place = 0;
        while place < SIZES {
            // SAFETY: this thread's own memory.
            let n = unsafe { (*thread).sizes[place] };
            data::add_size(counters, place, n.wrapping_mul(sign));
            place += 1;
        }
        // SAFETY: as above.
        unsafe {
            clear::<16>((&raw mut (*thread).opcodes).cast());
            clear::<SIZES>((&raw mut (*thread).sizes).cast());
        }
    }

    /// Adds what was seen of the buffers, as [`Walk::count`]; how they follow the ones before, where that is known.
    #[inline(always)]
    pub fn describe(&self, counters: *mut ObjectCounters, sign: u64, follows: bool) {
        data::add_detail(counters, detail::WRS, self.sums.wrs.wrapping_mul(sign));
        data::add_detail(counters, detail::UNALIGNED_64, self.sums.unaligned_64.wrapping_mul(sign));
        data::add_detail(counters, detail::UNALIGNED_4096, self.sums.unaligned_4096.wrapping_mul(sign));
        data::add_detail(counters, detail::ODD_LENGTHS, self.sums.odd_lengths.wrapping_mul(sign));
        data::add_detail(counters, detail::REMOTE_WRS, self.sums.remote_wrs.wrapping_mul(sign));
        data::add_detail(counters, detail::COULD_INLINE, self.sums.could_inline.wrapping_mul(sign));
        if !follows {
            return;
        }
        data::add_detail(counters, detail::LOCAL_SAME, self.sums.local_same.wrapping_mul(sign));
        data::add_detail(counters, detail::LOCAL_SEQUENTIAL, self.sums.local_sequential.wrapping_mul(sign));
        data::add_detail(counters, detail::REMOTE_SAME, self.sums.remote_same.wrapping_mul(sign));
        data::add_detail(counters, detail::REMOTE_SEQUENTIAL, self.sums.remote_sequential.wrapping_mul(sign));
        data::add_detail(counters, detail::MERGEABLE, self.sums.mergeable.wrapping_mul(sign));
        // SAFETY: a live map value.
        unsafe {
            (*counters).last = [self.local.at, self.local.behind, self.remote.at, self.remote.behind];
        }
    }

    /// Takes note of a work request; returns its opcode and size class, within bounds.
    #[inline(always)]
    fn note(&mut self, opcode: u32, flags: u32, sges: u32, remote_addr: u64, bytes: u64) -> (usize, usize) {
        let signalled = (flags / SIGNALED & 1) as u64 | self.signal_all;
        let inline = (flags / INLINE & 1) as u64;
        let sums = &mut self.sums;
        sums.wrs += 1;
        self.left = self.left.wrapping_sub(1);
        sums.signalled += signalled;
        sums.inline += inline;
        sums.sges += sges as u64;
        sums.bytes += bytes;
        // A signalled request ends the run: the mask is zero then.
        self.run = (self.run + 1) & signalled.wrapping_sub(1);
        let longer = self.run.wrapping_sub(self.longest);
        self.longest = self.longest.wrapping_add(longer & !((longer as i64 >> 63) as u64));
        let opcode = bounded::<15>(opcode as u64);
        let size = bounded::<31>(size_class(bytes));
        sums.opcodes |= 1 << opcode;
        self.last_opcode = opcode as u64;
        sums.sizes |= 1 << size;
        self.last_size = size as u64;
        // 1 where the bytes are at most those that go inline: else the difference is negative.
        let fits = 1 - (self.max_inline.wrapping_sub(bytes) >> 63);
        sums.could_inline += fits & (1 - inline) & GO_INLINE >> opcode & 1;
        let is_remote = NAME_REMOTE_MEMORY >> opcode & 1;
        let low = sums.low | remote_addr & is_remote.wrapping_neg();
        sums.unaligned_64 += 1 - is_zero(low & 63);
        sums.unaligned_4096 += 1 - is_zero(low & 4095);
        sums.odd_lengths += 1 - is_zero(bytes & 63);
        sums.remote_wrs += is_remote;
        sums.low = 0;
        let has_buffer = 1 - is_zero(sges as u64);
        let (same, sequential) = self.local.to(self.first, self.first_length, has_buffer);
        sums.local_same += same;
        sums.local_sequential += sequential;
        let (remote_same, remote_sequential) = self.remote.to(remote_addr, bytes, is_remote);
        sums.remote_same += remote_same;
        sums.remote_sequential += remote_sequential;
        sums.mergeable += remote_sequential & sequential;
        (opcode, size)
    }

    /// Takes note of the first buffer of the work request that is noted next.
    #[inline(always)]
    fn begin(&mut self, address: u64, length: u32) {
        self.sums.low = address;
        self.first = address;
        self.first_length = length as u64;
    }
}

/// The class of a size; see [`SIZES`].
#[inline(always)]
pub fn size_class(bytes: u64) -> u64 {
    bits(bytes.wrapping_sub(1).wrapping_add(is_zero(bytes)))
}

/// A number cut to `MASK`. The compiler would drop the mask where it knows the range; the verifier does not know it.
#[inline(always)]
pub fn bounded<const MASK: u64>(mut number: u64) -> usize {
    // SAFETY: arithmetic on a register.
    unsafe { asm!("{0} &= {1}", inout(reg) number, const MASK) };
    number as usize
}

/// Counts a work request in the thread's classes, and notes it as under way.
///
/// # Safety
/// The classes are those of [`Walk::note`] for this work request.
#[inline(always)]
unsafe fn class(context: Context, (opcode, size): (usize, usize), flags: u32, wr_id: u64) {
    let Context { thread, ring } = context;
    let ring = ring.cast::<Ring>();
    // SAFETY: this thread's own memory, and a live map value; the places are within bounds, as promised.
    unsafe {
        *(&raw mut (*thread).opcodes).cast::<u64>().add(opcode) += 1;
        *(&raw mut (*thread).sizes).cast::<u64>().add(size) += 1;
        let signalled = (flags / SIGNALED & 1) as u64 | (*thread).walk.signal_all;
        note_posted(ring, signalled, wr_id, (opcode | size << 8) as u64, (*thread).walk.now);
    }
}

/// Notes a work request as under way. An unsignalled one leaves its place to the next.
///
/// # Safety
/// `ring` is a live map value.
#[inline(always)]
pub unsafe fn note_posted(ring: *mut Ring, signalled: u64, wr_id: u64, class: u64, now: u64) {
    // SAFETY: as promised; the place is within bounds.
    unsafe {
        let posted = (*ring).posted.wrapping_add(1);
        (*ring).posted = posted;
        let entry = &mut *(&raw mut (*ring).entries).cast::<UnderWay>().add(bounded::<255>((*ring).head));
        entry.t_ns = now;
        entry.wr_id = wr_id;
        entry.posted = posted;
        entry.class = class;
        (*ring).head = (*ring).head.wrapping_add(signalled);
    }
}

/// Reads the work request at an address, and returns the next one's.
///
/// # Safety
/// The context holds this thread's own memory, and a live map value.
#[inline(always)]
unsafe fn one(context: *mut Context, at: u64) -> u64 {
    /// Bytes of a work request up to its remote address.
    const START: u32 = 48;
    // SAFETY: as promised.
    unsafe {
        let thread = (*context).thread;
        let walk = &mut (*thread).walk;
        // Into the thread's memory: together with that of a loop, the stack is too small on Linux 6.12.
        let into = (&raw mut (*thread).wrs).cast::<c_void>();
        if bpf_probe_read_user(into, START, at as *const c_void) != 0 {
            walk.sums.cut = 1;
            return 0;
        }
        let wr = &(*thread).wrs[0];
        let n = wr.num_sge;
        let mut total = 0;
        if n > SHORT_LIST {
            walk.list = wr.sg_list;
            walk.list_left = n as u64;
            walk.list_bytes = 0;
            bpf_loop(MOST_SGES, entry as *mut c_void, context.cast::<c_void>(), 0);
            if walk.list_left != 0 {
                walk.sums.cut = 1;
            }
            total = walk.list_bytes;
        } else if n != 0 {
            let bytes = (n * 16) & 0x7f;
            // At most the 64 bytes of the thread's list.
            let list = &raw mut (*thread).list;
            if bytes <= 64 && bpf_probe_read_user(list.cast(), bytes, wr.sg_list as *const c_void) == 0 {
                let first = &(*list)[0];
                walk.begin(first.addr, first.length);
                // Written out: a loop over them costs the verifier more than all the rest.
                total += first.length as u64;
                if n > 1 {
                    walk.sums.low |= (*list)[1].addr;
                    total += (*list)[1].length as u64;
                }
                if n > 2 {
                    walk.sums.low |= (*list)[2].addr;
                    total += (*list)[2].length as u64;
                }
                if n > 3 {
                    walk.sums.low |= (*list)[3].addr;
                    total += (*list)[3].length as u64;
                }
            } else {
                walk.sums.cut = 1;
            }
        }
        let classes = walk.note(wr.opcode, wr.send_flags, n, wr.remote_addr, total);
        class(*context, classes, wr.send_flags, wr.wr_id);
        wr.next
    }
}

/// One entry of a long list.
extern "C" fn entry(index: u32, context: *mut Context) -> i64 {
    // SAFETY: what `one` passed to bpf_loop.
    let walk = unsafe { &mut (*(*context).thread).walk };
    if walk.list_left == 0 {
        return 1;
    }
    let Some(sge) = read::<Sge>(walk.list) else { return 1 };
    if index == 0 {
        walk.begin(sge.addr, sge.length);
    }
    walk.sums.low |= sge.addr;
    walk.list_bytes = walk.list_bytes.wrapping_add(sge.length as u64);
    walk.list = walk.list.wrapping_add(16);
    walk.list_left -= 1;
    0
}

/// One round: as many work requests as lie side by side, or one.
extern "C" fn round(_index: u32, context: *mut Context) -> i64 {
    // SAFETY: what `over` passed to bpf_loop; map values outlive the program.
    unsafe {
        let thread = (*context).thread;
        let walk = &mut (*thread).walk;
        if walk.at == 0 || walk.left == 0 {
            return 1;
        }
        let from = walk.at;
        let bytes = size_of::<[SendWr; AT_ONCE]>() as u32;
        if bpf_probe_read_user((&raw mut (*thread).wrs).cast(), bytes, from as *const c_void) != 0 {
            walk.at = one(context, from);
            return 0;
        }
        let list = (*thread).wrs[0].sg_list;
        let bytes = size_of::<[Sge; AT_ONCE]>() as u32;
        let have_list =
            bpf_probe_read_user((&raw mut (*thread).sges).cast(), bytes, list as *const c_void) == 0;
        let side_by_side = if have_list { AT_ONCE } else { 0 };
        let (mut n, mut next) = (0_usize, from);
        while n < side_by_side {
            let wr = &(*thread).wrs[n];
            let offset = wr.sg_list.wrapping_sub(list);
            // One with a list of another kind ends the batch, and is read by itself in the next round.
            if wr.num_sge != 1 || offset & !0x70 != 0 || walk.left == 0 {
                break;
            }
            let within = bounded::<112>(offset);
            let sge = &*(&raw const (*thread).sges).cast::<u8>().add(within).cast::<Sge>();
            walk.begin(sge.addr, sge.length);
            let classes = walk.note(wr.opcode, wr.send_flags, 1, wr.remote_addr, sge.length as u64);
            class(*context, classes, wr.send_flags, wr.wr_id);
            n += 1;
            next = wr.next;
            if next != from.wrapping_add(n as u64 * WR_BYTES) {
                break;
            }
        }
        if n == 0 {
            next = one(context, from);
        }
        walk.at = next;
        0
    }
}
