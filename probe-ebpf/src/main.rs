//! BPF programs of the RDMA profiler.
//!
//! Two pairs of programs serve all hooks: what a hook is (call, argument layout, how it fails, which part of a
//! registration it times) travels in the cookie of its attachment, so that a new hook is a row of a table in user
//! space. Entries count and remember; returns measure, digest and report. The programs know nothing of output formats.
//!
//! Functions that are exported ([`walk`], [`failures`], [`senders`], [`family`]) are verified by the kernel by themselves, from
//! their arguments alone and once for each program. Others are verified as a part of their callers, once for each state
//! that these come to them in; nearly all the time until probes are in place goes to that, so what is long lies behind such
//! a function. The kernel has their pointers for ones that may be null, and makes nothing of what they return.
//!
//! Uprobe programs run preemptibly, so nothing here keeps scratch data per CPU: a thread's frames are its own, and
//! counters are added to atomically.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod addresses;
mod alone;
mod arch;
mod batch;
mod bounds;
mod bystanders;
mod callers;
mod count;
mod data;
mod errno;
mod failures;
mod family;
mod frames;
mod functions;
mod gap;
mod hot;
mod maps;
mod meter;
mod poll;
mod post;
mod probe;
mod process;
mod recipes;
mod senders;
mod subject;
mod under_way;
mod user;
mod walk;

use aya_ebpf::EbpfContext as _;
use aya_ebpf::macros::{kprobe, kretprobe, raw_tracepoint, uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RawTracePointContext, RetProbeContext};
use probe_common::wire::function;

/// Notes that the program of this name was hit.
macro_rules! hit {
    ($program:ident) => {
        functions::hit(const { function::place(stringify!($program)).expect("a program at functions") })
    };
}

/// Entry of a library function.
#[uprobe]
pub fn library_enter(ctx: ProbeContext) -> u32 {
    probe::enter(&ctx, frames::Side::User);
    0
}

/// Return of a library function.
#[uretprobe]
pub fn library_return(ctx: RetProbeContext) -> u32 {
    probe::leave(&ctx, frames::Side::User);
    0
}

/// A return instruction of a library function.
#[uprobe]
pub fn library_exit(ctx: ProbeContext) -> u32 {
    probe::leave_by_instruction(&ctx);
    0
}

/// Entry of a kernel function.
#[kprobe]
pub fn kernel_enter(ctx: ProbeContext) -> u32 {
    probe::enter(&ctx, frames::Side::Kernel);
    0
}

/// Return of a kernel function.
#[kretprobe]
pub fn kernel_return(ctx: RetProbeContext) -> u32 {
    probe::leave(&ctx, frames::Side::Kernel);
    0
}

/// `sched_process_fork(parent, child)`.
#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn process_fork(ctx: RawTracePointContext) -> i32 {
    process::fork(ctx.arg(0), ctx.arg(1));
    0
}

/// `sched_process_exec(task, old_pid, binprm)`.
#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn process_exec(_ctx: RawTracePointContext) -> i32 {
    process::exec();
    0
}

/// `sched_process_exit(task)`.
#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub fn process_exit(ctx: RawTracePointContext) -> i32 {
    process::exit(ctx.arg(0));
    0
}

/// A post, digested by a site of ours.
#[uprobe]
pub fn site_posted(ctx: ProbeContext) -> u32 {
    if !post::hot_site(ctx.as_ptr()) {
        post::site(&ctx);
    }
    0
}

/// What a failed post did not post, digested by a site of ours.
#[uprobe]
pub fn site_post_failed(ctx: ProbeContext) -> u32 {
    post::site_failed(&ctx);
    0
}

/// A poll, digested by a site of ours.
#[uprobe]
pub fn site_polled(ctx: ProbeContext) -> u32 {
    poll::site(&ctx);
    0
}

/// Entry of a provider's `post_send`.
#[uprobe]
pub fn post_send_enter(ctx: ProbeContext) -> u32 {
    hit!(post_send_enter);
    post::send_enter(&ctx);
    0
}

/// Its return.
#[uretprobe]
pub fn post_send_leave(ctx: RetProbeContext) -> u32 {
    hit!(post_send_leave);
    post::send_leave(&ctx);
    0
}

/// Entry of a provider's `post_recv` or `post_srq_recv`.
#[uprobe]
pub fn post_recv_enter(ctx: ProbeContext) -> u32 {
    hit!(post_recv_enter);
    post::receive_enter(&ctx);
    0
}

/// Its return.
#[uretprobe]
pub fn post_recv_leave(ctx: RetProbeContext) -> u32 {
    hit!(post_recv_leave);
    post::receive_leave(&ctx);
    0
}

/// Entry of a provider's `poll_cq`, `start_poll` or `next_poll`.
#[uprobe]
pub fn poll_enter(ctx: ProbeContext) -> u32 {
    hit!(poll_enter);
    poll::enter(&ctx);
    0
}

/// Return of `poll_cq`.
#[uretprobe]
pub fn poll_cq_leave(ctx: RetProbeContext) -> u32 {
    hit!(poll_cq_leave);
    poll::leave(&ctx);
    0
}

/// Return of `start_poll`.
#[uretprobe]
pub fn start_poll_leave(ctx: RetProbeContext) -> u32 {
    hit!(start_poll_leave);
    poll::start_leave(&ctx);
    0
}

/// Return of `next_poll`.
#[uretprobe]
pub fn next_poll_leave(ctx: RetProbeContext) -> u32 {
    hit!(next_poll_leave);
    poll::next_leave(&ctx);
    0
}

/// Entry of a provider's `req_notify_cq`.
#[uprobe]
pub fn req_notify_enter(ctx: ProbeContext) -> u32 {
    hit!(req_notify_enter);
    poll::notify(&ctx);
    0
}

/// Entry of a provider's `wr_start`.
#[uprobe]
pub fn wr_start_enter(ctx: ProbeContext) -> u32 {
    hit!(wr_start_enter);
    batch::start(&ctx);
    0
}

/// Entry of a provider's `wr_send` and its like.
#[uprobe]
pub fn wr_build_enter(ctx: ProbeContext) -> u32 {
    hit!(wr_build_enter);
    batch::build(&ctx);
    0
}

/// Entry of a provider's `wr_set_sge` and its like.
#[uprobe]
pub fn wr_set_enter(ctx: ProbeContext) -> u32 {
    hit!(wr_set_enter);
    batch::set(&ctx);
    0
}

/// Entry of a provider's `wr_complete`.
#[uprobe]
pub fn wr_complete_enter(ctx: ProbeContext) -> u32 {
    hit!(wr_complete_enter);
    batch::complete_enter(&ctx);
    0
}

/// Its return.
#[uretprobe]
pub fn wr_complete_leave(ctx: RetProbeContext) -> u32 {
    hit!(wr_complete_leave);
    batch::complete_leave(&ctx);
    0
}

/// Entry of a provider's `wr_abort`.
#[uprobe]
pub fn wr_abort_enter(ctx: ProbeContext) -> u32 {
    hit!(wr_abort_enter);
    batch::abort(&ctx);
    0
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Never reached: a program that could panic would not pass the kernel's verifier.
    loop {}
}

/// Some helpers are only for programs under a GPL-compatible licence.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
