//! What happens at an entry and at a return, whatever is probed.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::{bpf_get_attach_cookie, bpf_ktime_get_ns};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use probe_common::counters::Granted;
use probe_common::hook::{Cookie, Part, Returns};
use probe_common::wire::{
    CallMessage, Header, Loss, MAX_DEPTH, MessageKind, PARTS, PAYLOAD_WORDS, StackedCall,
};
use probe_common::{CallId, Layout};

use crate::frames::{FAULTS_KNOWN, Frame, IN_LIBRARY, IN_REGISTRATION, KERNEL, NESTED, Side, ThreadStack};
use crate::maps::EVENTS;
use crate::subject::{self, Subject};
use crate::{arch, callers, count, data, errno, family, user};

/// `bpf_ringbuf_output` and `submit`: leave the reader asleep.
const NO_WAKEUP: u64 = 1;
/// `bpf_ringbuf_query`: bytes not yet read.
const AVAILABLE: u64 = 0;
/// Unread bytes from which on the reader is woken; below, it looks by itself several times a second.
const WAKE_AT_BYTES: u64 = 1 << 20;

/// An entry: counts the call and remembers it until its return.
#[inline(always)]
pub fn enter(ctx: &ProbeContext, side: Side) {
    let Some(subject) = subject::watched() else { return };
    // SAFETY: the context is the kernel's own.
    let cookie = Cookie(unsafe { bpf_get_attach_cookie(ctx.as_ptr()) });
    // The kernel's own callers release nothing that way too: there is no object, and nothing to be counted.
    if cookie.layout() == Layout::KernelUmem as u8 && ctx.arg::<u64>(0).unwrap_or(0) == 0 {
        return;
    }
    let sp = arch::stack_pointer(ctx.regs);
    if cookie.entry_only() {
        if cookie.call() != 0 {
            count_entry(subject, cookie.call());
        }
        return;
    }
    let Some(stack) = ThreadStack::of(subject.pid_tgid, true) else {
        // The table of threads is full: still counted, but its duration and outcome stay unknown.
        if cookie.call() != 0 {
            count_entry(subject, cookie.call());
            count::lose(Loss::Unpaired);
        }
        return;
    };
    // SAFETY: the map value is this thread's own; only it, here, reads or writes it.
    unsafe {
        ThreadStack::prune_at_entry(stack, sp, cookie, side);
        let flags = outer_flags(stack, cookie, side);
        if cookie.call() != 0 && flags & NESTED == 0 {
            count_entry(subject, cookie.call());
        }
        let depth = ThreadStack::depth(stack);
        if depth >= MAX_DEPTH as u64 {
            if cookie.call() != 0 && flags & NESTED == 0 {
                count::lose(Loss::Unpaired);
            }
            return;
        }
        let frame = &mut *ThreadStack::frame(stack, depth);
        frame.sp = sp;
        frame.entry = arch::instruction_pointer(ctx.regs);
        frame.return_address = if side == Side::User { user::word(sp).unwrap_or(0) } else { 0 };
        frame.cookie = cookie.0;
        frame.flags = flags;
        frame.inner_errno = 0;
        frame.parts_seen = 0;
        user::clear::<PARTS>(frame.part_ns.as_mut_ptr());
        frame.page_faults = 0;
        user::clear::<PAYLOAD_WORDS>(frame.payload.as_mut_ptr());
        frame.args = [
            ctx.arg(0).unwrap_or(0),
            ctx.arg(1).unwrap_or(0),
            ctx.arg(2).unwrap_or(0),
            ctx.arg(3).unwrap_or(0),
            ctx.arg(4).unwrap_or(0),
            ctx.arg(5).unwrap_or(0),
        ];
        if flags & NESTED == 0 {
            family::enter(cookie, frame);
            // Now, while no other object can be at its address.
            if let Some(kind) = family::destroys(cookie) {
                data::object_ends(subject, kind, frame.args[0]);
            }
        }
        if cookie.part() == Part::Pin as u8
            && let Some(faults) = subject::page_faults()
        {
            frame.page_faults = faults;
            frame.flags |= FAULTS_KNOWN;
        }
        ThreadStack::set_depth(stack, depth + 1);
        // Last, so that the time spent above is not the call's.
        frame.entered_ns = bpf_ktime_get_ns();
    }
}

/// A return: measures the call, says how it ended, and reports it.
#[inline(always)]
pub fn leave(ctx: &RetProbeContext, side: Side) {
    let sp = arch::entry_stack_pointer(arch::stack_pointer(ctx.regs));
    // SAFETY: the context is the kernel's own.
    let cookie = Cookie(unsafe { bpf_get_attach_cookie(ctx.as_ptr()) });
    left(sp, arch::frame_pointer(ctx.regs), cookie, ctx.ret::<u64>(), side);
}

/// The same, at a return instruction of a library function that has yet to be carried out.
#[inline(always)]
pub fn leave_by_instruction(ctx: &ProbeContext) {
    // SAFETY: the context is the kernel's own.
    let cookie = Cookie(unsafe { bpf_get_attach_cookie(ctx.as_ptr()) });
    let frame_pointer = arch::frame_pointer(ctx.regs);
    left(arch::stack_pointer(ctx.regs), frame_pointer, cookie, arch::return_value(ctx.regs), Side::User);
}

#[inline(always)]
fn left(sp: u64, frame_pointer: u64, cookie: Cookie, value: u64, side: Side) {
    // Before all else, so that the time spent below is not the call's.
    // SAFETY: the helper has no preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    let Some(subject) = subject::watched() else { return };
    let Some(stack) = ThreadStack::of(subject.pid_tgid, false) else { return };
    // SAFETY: as in `enter`.
    unsafe {
        if ThreadStack::unwind_to(stack, sp, cookie, side) {
            let depth = ThreadStack::depth(stack).wrapping_sub(1);
            ThreadStack::set_depth(stack, depth);
            let frame = &mut *ThreadStack::frame(stack, depth);
            finish(subject, stack, depth, frame, frame_pointer, value, now);
        }
        if ThreadStack::depth(stack) == 0 {
            let _ = crate::maps::STACKS.remove(&subject.pid_tgid);
        }
    }
}

#[inline(always)]
fn count_entry(subject: Subject, call: u8) {
    if let Some(counters) = count::counters(subject, call) {
        // SAFETY: a live map value.
        count::add(unsafe { &raw mut (*counters).entered }, 1);
    }
}

/// What the frames below say of a new one: is it part of a call already counted, is it inside a registration?
#[inline(always)]
unsafe fn outer_flags(stack: *mut ThreadStack, cookie: Cookie, side: Side) -> u32 {
    // In the thread's memory: in a register, the verifier would follow each sum of them there may be by itself.
    let flags = unsafe { &raw mut (*stack).flags };
    let set = |flag: u32| unsafe { flags.write_volatile(flags.read_volatile() | flag) };
    unsafe { flags.write_volatile(if side == Side::Kernel { KERNEL } else { 0 }) };
    let depth = unsafe { ThreadStack::depth(stack) };
    let mut i = 0u64;
    while i < MAX_DEPTH as u64 {
        if i >= depth {
            break;
        }
        let outer = unsafe { &*ThreadStack::frame(stack, i) };
        let call = Cookie(outer.cookie).call();
        if outer.flags & KERNEL == 0 {
            set(IN_LIBRARY);
        }
        if call != 0 && call == cookie.call() {
            set(NESTED);
        }
        if call == CallId::RegMr as u8
            || call == CallId::RegDmabufMr as u8
            || call == CallId::ReregMr as u8
            || call == CallId::KernelRegMr as u8
        {
            set(IN_REGISTRATION);
        }
        i += 1;
    }
    unsafe { flags.read_volatile() }
}

#[inline(always)]
unsafe fn finish(
    subject: Subject,
    stack: *mut ThreadStack,
    depth: u64,
    frame: &mut Frame,
    frame_pointer: u64,
    value: u64,
    now: u64,
) {
    let cookie = Cookie(frame.cookie);
    let duration = now.saturating_sub(frame.entered_ns);
    let nested = frame.flags & NESTED != 0;
    let (failed, told) = outcome(cookie, value);
    let pin_faults = if cookie.part() == Part::Pin as u8 && frame.flags & FAULTS_KNOWN != 0 {
        subject::page_faults().map(|after| after.wrapping_sub(frame.page_faults))
    } else {
        None
    };
    unsafe {
        tell_outer(stack, depth, frame, duration, failed, told, pin_faults);
    }
    if nested || cookie.call() == 0 {
        return;
    }
    let errno = match (failed, told) {
        (false, _) => 0,
        (true, told) if told > 0 => told,
        _ if frame.inner_errno > 0 => frame.inner_errno,
        _ if frame.flags & KERNEL == 0 => errno::of_thread(cookie.site(), frame.entry).unwrap_or(-1),
        _ => -1,
    };
    if let Some(faults) = pin_faults {
        frame.page_faults = faults;
    }
    let bytes = family::leave(frame, value, failed);
    if cookie.call() == CallId::CreateQp as u8 && !failed {
        // See the payload of `family::queues`.
        let granted = Granted {
            max_send_wr: frame.payload[6] as u32,
            max_inline: frame.payload[8] as u32,
            signal_all: (frame.payload[8] >> 32) as u32 & 1,
            known: 1,
        };
        data::qp_made(subject, frame.payload[0], granted);
    }
    if cookie.call() == CallId::GetCqEvent as u8 && !failed {
        // See the payload of `family::waits`.
        data::event_came(subject, frame.payload[2]);
    }
    if let Some(counters) = count::counters(subject, cookie.call()) {
        // SAFETY: a live map value.
        unsafe {
            count::add(&raw mut (*counters).returned, 1);
            count::add(&raw mut (*counters).total_ns, duration);
            if failed {
                count::add(&raw mut (*counters).failed, 1);
            } else if bytes > 0 {
                count::add(&raw mut (*counters).bytes, bytes);
            }
        }
    }
    count::latency(subject, cookie.call(), duration);
    // The kernel's part of a library call is told with that call; by itself it is told only where nobody asked for it
    // through a library (a process ends), and for pins, which have a story of their own.
    if frame.flags & IN_LIBRARY != 0 && frame.flags & KERNEL != 0 && cookie.call() != CallId::KernelPin as u8
    {
        return;
    }
    report(subject, cookie, frame, frame_pointer, duration, errno);
}

/// Whether the call failed, and the errno its return value tells (0 where it tells none).
#[inline(always)]
fn outcome(cookie: Cookie, value: u64) -> (bool, i32) {
    let returns = cookie.returns();
    if returns == Returns::Pointer as u8 {
        (value == 0, 0)
    } else if returns == Returns::Errno as u8 {
        (value as i32 != 0, if value as i32 > 0 { value as i32 } else { 0 })
    } else if returns == Returns::MinusOne as u8 {
        ((value as i32) < 0, 0)
    } else if returns == Returns::KernelInt as u8 {
        ((value as i32) < 0, (value as i32).wrapping_neg())
    } else if returns == Returns::KernelPointer as u8 {
        // The kernel encodes errnos in the last 4095 values of a pointer.
        (value > u64::MAX - 4095, (value as i32).wrapping_neg())
    } else {
        (false, 0)
    }
}

/// Passes time, page faults and errno on to the calls this one was part of.
#[inline(always)]
unsafe fn tell_outer(
    stack: *mut ThreadStack,
    depth: u64,
    frame: &Frame,
    duration: u64,
    failed: bool,
    told: i32,
    pin_faults: Option<u64>,
) {
    let cookie = Cookie(frame.cookie);
    let part = (cookie.part() & 7) as usize;
    let mut i = 0u64;
    while i < MAX_DEPTH as u64 {
        if i >= depth {
            break;
        }
        let outer = unsafe { &mut *ThreadStack::frame(stack, i) };
        if failed && told > 0 {
            outer.inner_errno = told;
        }
        // A nested frame of the same part is within its outer one's time already.
        if part > 0 && part < PARTS && frame.flags & NESTED == 0 {
            outer.parts_seen |= 1 << part;
            outer.part_ns[part] = outer.part_ns[part].wrapping_add(duration);
            if let Some(faults) = pin_faults
                && Cookie(outer.cookie).part() != Part::Pin as u8
            {
                outer.page_faults = outer.page_faults.wrapping_add(faults);
            }
        }
        i += 1;
    }
}

/// Whether a call is told with the stack it came from: those that make what may be leaked or shared, and failures.
#[inline(always)]
fn tells_callers(call: u8, flags: u32, errno: i32) -> bool {
    flags & KERNEL == 0
        && (errno != 0
            || call == CallId::RegMr as u8
            || call == CallId::RegDmabufMr as u8
            || call == CallId::ReregMr as u8
            || call == CallId::CreateQp as u8
            || call == CallId::CreateCq as u8)
}

#[inline(always)]
fn report(subject: Subject, cookie: Cookie, frame: &Frame, frame_pointer: u64, duration_ns: u64, errno: i32) {
    if tells_callers(cookie.call(), frame.flags, errno) {
        let Some(mut entry) = EVENTS.reserve::<StackedCall>(0) else {
            count::lose(Loss::Ring);
            return;
        };
        let message = entry.as_mut_ptr();
        // SAFETY: the entry is as long as the type; every field is written before it is submitted.
        unsafe {
            write_call(&raw mut (*message).call, subject, cookie, frame, duration_ns, errno);
            callers::walk(&mut (*message).stack, frame.return_address, frame_pointer, frame.sp);
        }
        entry.submit(wake());
        return;
    }
    let Some(mut entry) = EVENTS.reserve::<CallMessage>(0) else {
        count::lose(Loss::Ring);
        return;
    };
    // SAFETY: as above.
    unsafe { write_call(entry.as_mut_ptr(), subject, cookie, frame, duration_ns, errno) };
    entry.submit(wake());
}

#[inline(always)]
fn wake() -> u64 {
    if EVENTS.query(AVAILABLE) < WAKE_AT_BYTES { NO_WAKEUP } else { 0 }
}

#[inline(always)]
unsafe fn write_call(
    into: *mut CallMessage,
    subject: Subject,
    cookie: Cookie,
    frame: &Frame,
    duration_ns: u64,
    errno: i32,
) {
    let message = CallMessage {
        header: Header {
            kind: MessageKind::Call as u32,
            tgid: subject.tgid(),
            tid: subject.tid(),
            zero: 0,
            start_ns: subject.start_ns,
            t_ns: frame.entered_ns,
        },
        duration_ns,
        errno,
        call: cookie.call(),
        layout: cookie.layout(),
        parts_seen: frame.parts_seen as u16,
        part_ns: frame.part_ns,
        page_faults: frame.page_faults,
        payload: frame.payload,
    };
    unsafe { into.write(message) };
}
