//! Pinned memory near its limit.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use crate::memory::{Buffer, MemoryKind};
use crate::verbs::{Access, Mr};
use anyhow::Result;
use std::io;
use std::rc::Rc;

/// Sets the limit, and gives up the right to go beyond it.
fn limit_locked_memory(bytes: u64) -> io::Result<()> {
    const CAP_IPC_LOCK: u32 = 14;
    const VERSION_3: u32 = 0x2008_0522;
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: a whole struct, read during the call.
    if unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // `struct __user_cap_header_struct` and two `__user_cap_data_struct` of linux/capability.h.
    let mut header = [VERSION_3, 0];
    let mut data = [0_u32; 6];
    // SAFETY: both arrays have the layout the call reads and writes.
    let got = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), data.as_mut_ptr()) };
    data[0] &= !(1 << CAP_IPC_LOCK);
    // SAFETY: as above.
    let set = unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), data.as_ptr()) };
    if got == 0 && set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The program.
pub static PROGRAM: Program = Program {
    name: "memlock-near",
    fault: "7 MiB pinned under a limit of 8 MiB",
    healthy: "2 MiB",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&kit.shape())?;
    limit_locked_memory(8 << 20)?;
    // Beside the 2 MiB of every program.
    let buffer = Rc::new(Buffer::allocate(MemoryKind::Aligned, 5 << 20)?);
    let _region = (!healthy).then(|| Mr::register(&rig.pd, &buffer, Access::Local)).transpose()?;
    rig.run(&Flow::default(), kit.seconds)
}
