//! Processes: children are followed, new programs and ends are told.

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_current_uid_gid, bpf_ktime_get_ns};
use probe_common::wire::{Header, Loss, MessageKind, ProcessMessage, Spent, Target};

use crate::maps::{EVENTS, STACKS, TARGETS, WHOLE_HOST, offset};
use crate::subject::{self, current_task, start_of};
use crate::{count, data, hot, user};

/// A task was made: if it is a process of its own and its parent is watched, so is it.
#[inline(always)]
pub fn fork(_parent: u64, child: u64) {
    if WHOLE_HOST.load() != 0 {
        return;
    }
    let Some(parent) = subject::watched() else { return };
    let Some(tgid) = user::kernel::<u32>(child.wrapping_add(offset!(task_tgid))) else { return };
    let Some(pid) = user::kernel::<u32>(child.wrapping_add(offset!(task_pid))) else { return };
    if pid != tgid {
        return;
    }
    let start_ns = start_of(child);
    if TARGETS.insert(&tgid, &Target { start_ns, spent: Spent::NONE }, 0).is_err() {
        count::lose(Loss::Uncounted);
        return;
    }
    tell(MessageKind::Fork, tgid, tgid, start_ns, parent.tgid(), child);
}

/// The current process runs another program.
#[inline(always)]
pub fn exec() {
    // With the whole host watched, user space learns of a process from its first call.
    if WHOLE_HOST.load() != 0 {
        return;
    }
    let Some(subject) = subject::watched() else { return };
    tell(MessageKind::Exec, subject.tgid(), subject.tid(), subject.start_ns, 0, current_task());
}

/// A thread ends: whatever it was doing, its returns will not come.
#[inline(always)]
pub fn exit(task: u64) {
    let pid_tgid = bpf_get_current_pid_tgid();
    let _ = STACKS.remove(&pid_tgid);
    data::thread_ends(pid_tgid);
    let Some(subject) = subject::watched() else { return };
    let Some(signal) = user::kernel::<u64>(task.wrapping_add(offset!(task_signal))) else { return };
    let live = user::kernel::<u32>(signal.wrapping_add(offset!(signal_live))).unwrap_or(0);
    if live == 0 {
        hot::process_ends(subject);
        tell(MessageKind::Exit, subject.tgid(), subject.tid(), subject.start_ns, 0, task);
    }
}

#[inline(always)]
fn tell(kind: MessageKind, tgid: u32, tid: u32, start_ns: u64, parent_tgid: u32, task: u64) {
    let Some(mut entry) = EVENTS.reserve::<ProcessMessage>(0) else {
        count::lose(Loss::Ring);
        return;
    };
    let comm = process_name(task).unwrap_or([0; 16]);
    entry.write(ProcessMessage {
        header: Header {
            kind: kind as u32,
            tgid,
            tid,
            zero: 0,
            start_ns,
            // SAFETY: the helper has no preconditions.
            t_ns: unsafe { bpf_ktime_get_ns() },
        },
        parent_tgid,
        uid: bpf_get_current_uid_gid() as u32,
        comm,
    });
    entry.submit(0);
}

/// The name of a task's process: that of its first thread. The last thread to end may be any helper.
#[inline(always)]
fn process_name(task: u64) -> Option<[u8; 16]> {
    if offset!(task_comm) == 0 || offset!(task_group_leader) == 0 {
        return None;
    }
    let leader = user::kernel::<u64>(task.wrapping_add(offset!(task_group_leader)))?;
    user::kernel::<[u8; 16]>(leader.wrapping_add(offset!(task_comm)))
}
