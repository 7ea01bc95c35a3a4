//! Walking a chain of work requests in the memory of the program.
//!
//! Requests that lie side by side, as programs keep them, are read many at once. Those of one kind (opcode, flags,
//! length) that follow one another are counted together: only their addresses are looked at one by one, and all that
//! their kind tells is told by multiplication.

use core::ffi::c_void;
use core::mem::offset_of;

use aya_ebpf::helpers::generated::{bpf_loop, bpf_probe_read_user};
use probe_common::counters::{ObjectCounters, detail, qp};
use probe_common::site::{self, Flags};
use probe_common::under_way::{Class, Ring};
use probe_common::verbs::{SendWr, Sge, WrStart, is_atomic};

use crate::addresses::{Steps, Told, is_zero, size_class};
use crate::bounds::{bounded, highest_bit, opaque};
use crate::data::{self, AT_ONCE, Thread};
use crate::under_way::{self, keys};
use crate::user::{clear, read};

/// `IBV_SEND_SIGNALED` and `IBV_SEND_INLINE`.
pub const SIGNALED: u32 = 1 << 1;
const INLINE: u32 = 1 << 3;
/// Opcodes that name remote memory, a bit each: RDMA_WRITE, RDMA_WRITE_WITH_IMM, RDMA_READ and the two atomics.
pub const NAME_REMOTE_MEMORY: u64 = 0b111_0011;
/// Opcodes whose data can go inline, a bit each: RDMA_WRITE, SEND, both with immediate data, and SEND_WITH_INV.
pub const GO_INLINE: u64 = 0b10_0000_1111;
/// Work requests of a chain that are looked at.
const MOST: u64 = site::MOST_SHOWN as u64;
/// Rounds it takes at most: each looks at one or more, but for the one that finds that several cannot be read at once.
const ROUNDS: u32 = MOST as u32 + 1;
/// Entries of a list that are read at once; longer lists are read one by one, up to [`MOST_SGES`].
const SHORT_LIST: u32 = 4;
/// Entries of a list that are looked at.
const MOST_SGES: u32 = site::MOST_SGES as u32;
/// Bytes of `struct ibv_send_wr`.
const WR_BYTES: u64 = size_of::<SendWr>() as u64;
/// Bits that an offset of an entry in the lists read at once may have.
const LIST_OFFSET: u64 = (AT_ONCE as u64 - 1) * size_of::<Sge>() as u64;

/// A walk in progress, and what it has come to. It lies in the thread's memory: on the stack there is no room, and the
/// verifier would tell the state after every round from the one before by what has been counted.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Walk {
    /// Zeroes at the beginning.
    sums: Sums,
    /// Each counts so many times.
    sign: u64,
    /// 1 where opcodes are counted.
    by_opcode: u64,
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
    /// 1 where there are more behind those.
    is_longer: u64,
    /// Opcode, and size class from bit 8 on, of those in `of_class`.
    class: u64,
    /// The list being read one by one.
    long: LongList,
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
    /// Work requests of the last class, not yet counted by it.
    of_class: u64,
    /// Where the work requests came from that are in the thread's memory, and how many bytes there are of them.
    from: u64,
    held: u64,
    /// Where the entries of their lists came from; 0 where there are none.
    list: u64,
    /// 1 once several could not be read at once.
    one_by_one: u64,
}

/// A list being read entry by entry.
#[repr(C)]
#[derive(Clone, Copy)]
struct LongList {
    at: u64,
    left: u64,
    bytes: u64,
    low: u64,
    first: Sge,
}

/// What work requests that are counted together have in common.
#[derive(Clone, Copy)]
pub struct Kind {
    opcode: u64,
    flags: u32,
    sges: u64,
    pub bytes: u64,
}

impl Kind {
    /// Of a digest of one work request.
    #[inline(always)]
    pub fn of_digest(opcode: u64, flags: Flags, sges: u64, bytes: u64) -> Self {
        let signalled = flags.signalled() as u32 & 1;
        let inline = flags.inline() as u32 & 1;
        Self { opcode, flags: signalled * SIGNALED | inline * INLINE, sges, bytes }
    }

    /// 1 where it was not inline and would have fitted.
    #[inline(always)]
    pub fn could_inline(self, max_inline: u64) -> u64 {
        // 1 where the bytes are at most those that go inline: else the difference is negative.
        let fits = 1 - highest_bit(max_inline.wrapping_sub(self.bytes));
        let inline = (self.flags / INLINE & 1) as u64;
        fits & (1 - inline) & GO_INLINE >> self.opcode & 1
    }

    /// 1 where they ask for completion entries.
    #[inline(always)]
    pub fn signalled(self) -> u64 {
        (self.flags / SIGNALED & 1) as u64
    }

    /// 1 where they make completion entries.
    #[inline(always)]
    fn makes_entries(self, walk: &Walk) -> u64 {
        self.signalled() | walk.signal_all
    }

    /// 1 where they name remote memory.
    #[inline(always)]
    pub fn is_remote(self) -> u64 {
        NAME_REMOTE_MEMORY >> self.opcode & 1
    }

    /// Opcode, and size class from bit 8 on.
    #[inline(always)]
    pub fn class(self) -> u64 {
        self.opcode | size_class(self.bytes) << 8
    }

    /// The same, with what else is remembered of a request ([`Class`]).
    #[inline(always)]
    pub fn noted_class(self) -> u64 {
        let several = (1 - is_zero(self.sges >> 1)) * Class::SEVERAL;
        self.class() | several | (self.flags / INLINE & 1) as u64 * Class::INLINE
    }

    /// How far behind its usual place the remote key stands.
    #[inline(always)]
    fn rkey_distance(self) -> u64 {
        is_atomic(self.opcode) * (SendWr::ATOMIC_RKEY - offset_of!(WrStart, rkey) as u64)
    }
}

/// What a walk works on, all of it map values that outlive the program; only the stack may hold pointers to them.
///
/// Neither [`Ring`] nor [`ObjectCounters`] is named: LLVM declares types that are only pointed to in the order of its own
/// memory, and with more than one of them the object is another in every folder it is built in.
#[derive(Clone, Copy)]
struct Context {
    thread: *mut Thread,
    ring: *mut c_void,
    counters: *mut c_void,
}

impl Context {
    #[inline(always)]
    fn ring(&self) -> *mut Ring {
        self.ring.cast()
    }

    #[inline(always)]
    fn counters(&self) -> *mut ObjectCounters {
        self.counters.cast()
    }

    /// The walk, in this thread's own memory.
    #[inline(always)]
    fn walk(&self) -> &'static mut Walk {
        // SAFETY: a live map value that no other thread uses.
        unsafe { &mut (*self.thread).walk }
    }

    /// A work request that was read, by its place; beyond the last one, any.
    #[inline(always)]
    fn wr(&self, place: u64) -> &'static WrStart {
        let place = bounded::<{ AT_ONCE as u64 - 1 }>(place);
        // SAFETY: a live map value, and within bounds.
        unsafe { &(*(&raw const (*self.thread).copied).cast::<SendWr>().add(place)).start }
    }

    /// An entry of the lists that were read, by its offset.
    #[inline(always)]
    fn sge(&self, offset: u64) -> &'static Sge {
        let offset = bounded::<LIST_OFFSET>(offset);
        // SAFETY: a live map value, and within bounds.
        unsafe { &*(&raw const (*self.thread).sges).cast::<u8>().add(offset).cast::<Sge>() }
    }
}

/// What is to be walked.
pub struct Chain {
    /// Its first work request.
    pub first: u64,
    /// How many are to be looked at; `u64::MAX` for all.
    pub most: u64,
    /// When they were posted.
    pub now: u64,
    /// Each counts so many times; -1 takes it back.
    pub sign: u64,
    /// 1 where opcodes are counted, 0 where somebody else does.
    pub by_opcode: u64,
}

/// Looks at a chain of work requests, and counts them by opcode and size. `counters` tell what came before; in `ring` the
/// signalled ones are noted as under way.
#[inline(always)]
pub fn over(
    counters: *mut ObjectCounters,
    thread: *mut Thread,
    ring: *mut Ring,
    chain: &Chain,
) -> &'static mut Walk {
    let context = Context { thread, ring: ring.cast(), counters: counters.cast() };
    let walk = context.walk();
    // SAFETY: this thread's own memory, and live map values.
    unsafe {
        clear::<{ size_of::<Sums>() / 8 }>((&raw mut walk.sums).cast());
        walk.run = (*counters).counters[qp::UNSIGNALLED_RUN];
        walk.longest = (*counters).counters[qp::LONGEST_UNSIGNALLED];
        walk.local = Steps { at: (*counters).last[0], behind: (*counters).last[1] };
        walk.remote = Steps { at: (*counters).last[2], behind: (*counters).last[3] };
        walk.signal_all = (*counters).granted.signal_all as u64 & 1;
        walk.max_inline = (*counters).granted.max_inline as u64;
    }
    walk.sign = chain.sign;
    walk.by_opcode = chain.by_opcode;
    walk.now = chain.now;
    walk.class = 0;
    walk.at = chain.first;
    walk.left = if chain.most < MOST { chain.most } else { MOST };
    walk.is_longer = (chain.most > MOST) as u64;
    walk_chain(thread, ring, counters);
    context.walk()
}

/// Walks the chain that the walk in the thread's memory begins with, verified by itself (see the crate).
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn walk_chain(thread: *mut Thread, ring: *mut Ring, counters: *mut ObjectCounters) -> u32 {
    if thread.is_null() || ring.is_null() || counters.is_null() {
        return 0;
    }
    let mut context = Context { thread, ring: ring.cast(), counters: counters.cast() };
    let is_empty = context.walk().at == 0 || context.walk().left == 0;
    // Most chains are of one: that needs no loop.
    if !is_empty && first_alone(&context) {
        if context.walk().at != 0 && context.walk().left != 0 {
            // SAFETY: the callback gets a pointer to the context, which outlives the call.
            unsafe {
                bpf_loop(ROUNDS, round as *mut c_void, (&raw mut context).cast::<c_void>(), 0);
            }
        }
    }
    let walk = context.walk();
    walk.flush(counters);
    if walk.at != 0 && (walk.left != 0 || walk.is_longer != 0) {
        walk.sums.cut = 1;
    }
    0
}

/// One round: work requests of one kind that lie side by side, or one.
extern "C" fn round(_index: u32, context: *mut Context) -> i64 {
    // SAFETY: what `over` passed to bpf_loop.
    let context = unsafe { &*context };
    let walk = context.walk();
    let at = walk.at;
    if at == 0 || walk.left == 0 {
        return 1;
    }
    let mut offset = at.wrapping_sub(walk.sums.from);
    if offset >= walk.sums.held || offset % WR_BYTES != 0 {
        // Where this one lies behind the one before, the next ones are taken to do so too.
        let several = offset == walk.sums.held && walk.left > 1 && walk.sums.one_by_one == 0;
        if !fetch(context, if several { AT_ONCE as u64 } else { 1 }) {
            // What lies behind the chain may not be there: that costs a page fault, which is not to be had twice.
            context.walk().sums.one_by_one = 1;
            return i64::from(!several);
        }
        offset = 0;
    }
    let place = offset / WR_BYTES;
    let walk = context.walk();
    let here = walk.sums.held / WR_BYTES - place;
    let here = if here < walk.left { here } else { walk.left };
    let wr = context.wr(place);
    let next = if here > 1 && wr.num_sge == 1 && have_list(context, wr.sg_list) {
        several_of_a_kind(context, place, here)
    } else {
        single(context, wr)
    };
    context.walk().at = next;
    0
}

/// Reads the first work request of a chain and takes note of it. False where it cannot be read.
///
/// It is read to the stack: the kernel checks where it copies to, and is done with a stack sooner than with a map. A
/// function of its own: the stacks of a program and of its loop together have no room for this.
#[inline(never)]
fn first_alone(context: &Context) -> bool {
    let at = context.walk().at;
    let Some(wr) = read::<WrStart>(at) else { return false };
    let next = single(context, &wr);
    let walk = context.walk();
    (walk.sums.from, walk.sums.held) = (at.wrapping_add(WR_BYTES), 0);
    walk.at = next;
    true
}

/// Reads the work request in turn and those behind it, at most so many. False where they cannot be read: then there are
/// none.
#[inline(always)]
fn fetch(context: &Context, most: u64) -> bool {
    let walk = context.walk();
    let n = if walk.left < most { walk.left } else { most };
    let bytes = (n * WR_BYTES) as u32 & 0xfff;
    let room = size_of::<[SendWr; AT_ONCE]>() as u32;
    // SAFETY: this thread's own memory; the helper checks the source.
    let is_read = bytes <= room
        && unsafe {
            let into = (&raw mut (*context.thread).copied).cast::<c_void>();
            bpf_probe_read_user(into, bytes, walk.at as *const c_void) == 0
        };
    (walk.sums.from, walk.sums.held) = (walk.at, if is_read { n * WR_BYTES } else { 0 });
    is_read
}

/// Has the list of a work request in the thread's memory, and what lies behind it; false where it cannot be read.
#[inline(always)]
fn have_list(context: &Context, list: u64) -> bool {
    let sums = &mut context.walk().sums;
    if list.wrapping_sub(sums.list) & !LIST_OFFSET == 0 && sums.list != 0 {
        return true;
    }
    let bytes = size_of::<[Sge; AT_ONCE]>() as u32;
    // SAFETY: this thread's own memory; the helper checks the source.
    let read = unsafe {
        let into = (&raw mut (*context.thread).sges).cast::<c_void>();
        bpf_probe_read_user(into, bytes, list as *const c_void)
    };
    sums.list = if read == 0 { list } else { 0 };
    read == 0
}

/// Takes note of the work requests from a place on that are of the same kind and lie side by side, at most `here`.
/// Returns the address of the next one.
#[inline(always)]
fn several_of_a_kind(context: &Context, place: u64, here: u64) -> u64 {
    let walk = context.walk();
    let first = context.wr(place);
    let list = walk.sums.list;
    let length = context.sge(first.sg_list.wrapping_sub(list)).length;
    let opcode = bounded::<15>(first.opcode as u64) as u64;
    let kind = Kind { opcode, flags: first.send_flags, sges: 1, bytes: length as u64 };
    // Apart, for a branch in the loop would double the verifier's work with every round.
    if kind.makes_entries(walk) != 0 {
        look_at::<true>(context, place, here, kind)
    } else {
        look_at::<false>(context, place, here, kind)
    }
}

/// The loop of [`several_of_a_kind`].
#[inline(always)]
fn look_at<const SIGNALLED: bool>(context: &Context, place: u64, here: u64, kind: Kind) -> u64 {
    let walk = context.walk();
    let (first, list, now) = (context.wr(place), walk.sums.list, walk.now);
    let (class, names_remote) = (kind.noted_class(), kind.is_remote().wrapping_neg());
    let rkey_distance =
        bounded::<{ SendWr::ATOMIC_RKEY - offset_of!(WrStart, rkey) as u64 }>(kind.rkey_distance());
    let (mut local, mut remote) = (walk.local, walk.remote);
    let (mut told, mut n, mut next) = (0, 0, walk.at);
    while n < AT_ONCE as u64 && n < here {
        let wr = context.wr(place + n);
        let offset = wr.sg_list.wrapping_sub(list);
        let is_of_kind = wr.num_sge == 1 && wr.opcode == first.opcode && wr.send_flags == kind.flags;
        if !is_of_kind || offset & !LIST_OFFSET != 0 {
            break;
        }
        let sge = context.sge(offset);
        if sge.length as u64 != kind.bytes {
            break;
        }
        let low = sge.addr | wr.remote_addr & names_remote;
        let local_step = local.to(sge.addr, kind.bytes);
        told += Told::of(low, local_step, remote.to(wr.remote_addr, kind.bytes)).0;
        if SIGNALLED {
            // SAFETY: a live map value; the key is within the work request, all of which was read.
            unsafe {
                under_way::note(context.ring(), now, kind.bytes, |entry| {
                    entry.wr_id = wr.wr_id;
                    entry.remote_addr = wr.remote_addr;
                    let rkey = *(&raw const wr.rkey).byte_add(rkey_distance);
                    entry.keys = keys(rkey, sge.lkey);
                    entry.class_addr = class | sge.addr << 16;
                });
            }
        }
        n = opaque(n + 1);
        let side_by_side = next.wrapping_add(WR_BYTES);
        next = wr.next;
        if next != side_by_side {
            break;
        }
    }
    walk.local = local;
    note(context, kind, n, Told(told), remote);
    next
}

/// Takes note of one work request that was read, whatever its list. Returns the address of the next one.
#[inline(always)]
fn single(context: &Context, wr: &WrStart) -> u64 {
    let walk = context.walk();
    let n = wr.num_sge;
    let (mut total, mut low) = (0, 0);
    // No `Option`: what is not there would be a register that was never written.
    let (mut first, mut is_known) = (Sge::default(), false);
    if n > SHORT_LIST {
        // SAFETY: this thread's own memory; the callback gets a pointer to the context, which outlives the call.
        unsafe {
            clear::<{ size_of::<LongList>() / 8 }>((&raw mut walk.long).cast());
            (walk.long.at, walk.long.left) = (wr.sg_list, n as u64);
            bpf_loop(MOST_SGES, entry as *mut c_void, (&raw const *context).cast_mut().cast::<c_void>(), 0);
        }
        let walk = context.walk();
        let long = &walk.long;
        (total, low) = (long.bytes, long.low);
        (first, is_known) = (long.first, long.left != n as u64);
        if long.left != 0 {
            walk.sums.cut = 1;
        }
    } else if n == 1 {
        match read::<Sge>(wr.sg_list) {
            Some(sge) => {
                (first, is_known) = (sge, true);
                (total, low) = (first.length as u64, first.addr);
            }
            None => walk.sums.cut = 1,
        }
    } else if n != 0 {
        let bytes = (n * 16) & 0x7f;
        // SAFETY: this thread's own memory; at most its 64 bytes are read into the list.
        unsafe {
            let list = &raw mut (*context.thread).list;
            if bytes <= 64 && bpf_probe_read_user(list.cast(), bytes, wr.sg_list as *const c_void) == 0 {
                // Written out: a loop over them costs the verifier more than all the rest.
                (first, is_known) = ((*list)[0], true);
                (total, low) = (first.length as u64, first.addr | (*list)[1].addr);
                total += (*list)[1].length as u64;
                if n > 2 {
                    low |= (*list)[2].addr;
                    total += (*list)[2].length as u64;
                }
                if n > 3 {
                    low |= (*list)[3].addr;
                    total += (*list)[3].length as u64;
                }
            } else {
                walk.sums.cut = 1;
            }
        }
    }
    let opcode = bounded::<15>(wr.opcode as u64) as u64;
    let kind = Kind { opcode, flags: wr.send_flags, sges: n as u64, bytes: total };
    low |= wr.remote_addr & kind.is_remote().wrapping_neg();
    // Where no buffer is known, the next one follows the one before.
    let local_step = if is_known { walk.local.to(first.addr, first.length as u64) } else { (0, 0) };
    let mut remote = walk.remote;
    let told = Told::of(low, local_step, remote.to(wr.remote_addr, total));
    if kind.makes_entries(walk) != 0 {
        // SAFETY: a live map value.
        unsafe {
            under_way::note(context.ring(), walk.now, total, |entry| {
                entry.wr_id = wr.wr_id;
                entry.remote_addr = wr.remote_addr;
                entry.keys = keys(wr.rkey, first.lkey);
                entry.class_addr = kind.noted_class() | first.addr << 16;
                if is_atomic(opcode) != 0 {
                    // Behind what was read of it, and into its place: on the stack there is no room.
                    let at = context.walk().at.wrapping_add(SendWr::ATOMIC_RKEY);
                    bpf_probe_read_user((&raw mut entry.keys).cast(), 4, at as *const c_void);
                }
            });
        }
    }
    let next = wr.next;
    note(context, kind, 1, told, remote);
    next
}

/// One entry of a long list.
extern "C" fn entry(index: u32, context: *mut Context) -> i64 {
    // SAFETY: what `single` passed to bpf_loop.
    let list = unsafe { &mut (*context).walk().long };
    if list.left == 0 {
        return 1;
    }
    let Some(sge) = read::<Sge>(list.at) else { return 1 };
    if index == 0 {
        list.first = sge;
    }
    list.low |= sge.addr;
    list.bytes = list.bytes.wrapping_add(sge.length as u64);
    list.at = list.at.wrapping_add(16);
    list.left -= 1;
    0
}

/// Takes note of `n` work requests of a kind, of what their addresses tell, and where in remote memory they end.
#[inline(always)]
fn note(context: &Context, kind: Kind, n: u64, told: Told, remote: Steps) {
    let walk = context.walk();
    let signalled = kind.makes_entries(walk);
    let inline = (kind.flags / INLINE & 1) as u64;
    let is_remote = kind.is_remote();
    walk.left = walk.left.wrapping_sub(n);
    if signalled != 0 {
        walk.run = 0;
    } else {
        walk.run = walk.run.wrapping_add(n);
        if walk.run > walk.longest {
            walk.longest = walk.run;
        }
        // SAFETY: a live map value.
        unsafe {
            let posted = &raw mut (*context.ring()).posted;
            *posted = (*posted).wrapping_add(n);
        }
    }
    let told = if is_remote != 0 {
        walk.remote = remote;
        told
    } else {
        Told(told.0 & !Told::REMOTE)
    };
    let could_inline = kind.could_inline(walk.max_inline);
    let sums = &mut walk.sums;
    sums.wrs += n;
    sums.signalled += n * signalled;
    sums.inline += n * inline;
    sums.sges = sums.sges.wrapping_add(n.wrapping_mul(kind.sges));
    sums.bytes = sums.bytes.wrapping_add(n.wrapping_mul(kind.bytes));
    sums.could_inline += n * could_inline;
    sums.odd_lengths += n * (1 - is_zero(kind.bytes & 63));
    sums.remote_wrs += n * is_remote;
    sums.unaligned_64 += told.get(Told::UNALIGNED_64);
    sums.unaligned_4096 += told.get(Told::UNALIGNED_4096);
    if told.0 & (Told::LOCAL | Told::REMOTE) != 0 {
        sums.local_same += told.get(Told::LOCAL_SAME);
        sums.local_sequential += told.get(Told::LOCAL_SEQUENTIAL);
        sums.remote_same += told.get(Told::REMOTE_SAME);
        sums.remote_sequential += told.get(Told::REMOTE_SEQUENTIAL);
        sums.mergeable += told.get(Told::MERGEABLE);
    }
    let class = kind.class();
    if class != walk.class {
        walk.flush(context.counters());
        walk.class = class;
    }
    walk.sums.of_class += n;
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

    /// Counts the work requests of one opcode and size. Nearly always all of a chain are.
    #[inline(always)]
    fn flush(&mut self, counters: *mut ObjectCounters) {
        let n = self.sums.of_class.wrapping_mul(self.sign);
        if n == 0 {
            return;
        }
        self.sums.of_class = 0;
        if self.by_opcode != 0 {
            data::add_opcode(counters, self.class, n);
        }
        data::add_size(counters, bounded::<31>(self.class >> 8), n);
    }

    /// Adds the counts.
    #[inline(always)]
    pub fn count(&self, counters: *mut ObjectCounters) {
        let Sums { wrs, signalled, inline, bytes, sges, .. } = self.sums;
        let sums = data::Sends { signalled, inline, bytes, more_sges: sges.wrapping_sub(wrs) };
        data::add_sends(counters, sums, self.sign);
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

    /// Adds what was seen of the buffers; how they follow the ones before, where that is known.
    #[inline(always)]
    pub fn describe(&self, counters: *mut ObjectCounters, follows: bool) {
        let (sums, sign) = (&self.sums, self.sign);
        data::add_detail(counters, detail::WRS, sums.wrs.wrapping_mul(sign));
        data::add_detail(counters, detail::UNALIGNED_64, sums.unaligned_64.wrapping_mul(sign));
        data::add_detail(counters, detail::UNALIGNED_4096, sums.unaligned_4096.wrapping_mul(sign));
        data::add_detail(counters, detail::ODD_LENGTHS, sums.odd_lengths.wrapping_mul(sign));
        data::add_detail(counters, detail::REMOTE_WRS, sums.remote_wrs.wrapping_mul(sign));
        data::add_detail(counters, detail::COULD_INLINE, sums.could_inline.wrapping_mul(sign));
        if !follows {
            return;
        }
        data::add_loosely(counters, detail::LOCAL_SAME, sums.local_same.wrapping_mul(sign));
        data::add_loosely(counters, detail::LOCAL_SEQUENTIAL, sums.local_sequential.wrapping_mul(sign));
        data::add_loosely(counters, detail::REMOTE_SAME, sums.remote_same.wrapping_mul(sign));
        data::add_loosely(counters, detail::REMOTE_SEQUENTIAL, sums.remote_sequential.wrapping_mul(sign));
        data::add_loosely(counters, detail::MERGEABLE, sums.mergeable.wrapping_mul(sign));
        // SAFETY: a live map value.
        unsafe {
            (*counters).last = [self.local.at, self.local.behind, self.remote.at, self.remote.behind];
        }
    }
}
