//! Nearly as many mappings as a process may have.

use super::kit::{Flow, Kit};
use super::{Needs, Program};
use crate::memory::Buffer;
use anyhow::Result;

/// The program.
pub static PROGRAM: Program = Program {
    name: "map-count-near",
    fault: "memory split into 54,000 mappings",
    healthy: "left whole",
    needs: Needs::Anything,
    environment: None,
    run,
};

fn run(kit: &Kit, healthy: bool) -> Result<()> {
    let rig = kit.rig(&kit.shape())?;
    let pages = 56_000_usize;
    let memory = Buffer::untouched(pages * 4096)?;
    let split = if healthy { 0 } else { 27_000 };
    for at in 0..split {
        let page = (memory.addr() as usize + at * 8192) as *mut libc::c_void;
        // SAFETY: a page of our own mapping, which nobody reads or writes; another protection splits the mapping.
        if unsafe { libc::mprotect(page, 4096, libc::PROT_READ) } != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
    }
    rig.run(&Flow::default(), kit.seconds)?;
    // Kept for as long again: where the machine is busy, whoever counts mappings comes late.
    kit.idle()?;
    drop(memory);
    Ok(())
}
