//! Whose completion entry an extended completion queue stands at, read where the provider's own functions read it.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::bpf_get_attach_cookie;
use aya_ebpf::macros::map;
use aya_ebpf::maps::Array;
use aya_ebpf::programs::RetProbeContext;
use probe_common::recipe::{Path, RECIPES as MOST, Recipe, Side};

use crate::user::{half, read, word};

/// By the number in the cookie of a return probe.
#[map]
static RECIPES: Array<Recipe> = Array::with_max_entries(MOST as u32, 0);

/// The recipe for the completion queues of the function that returns; `None` where nothing is known of them.
#[inline(always)]
pub fn of(ctx: &RetProbeContext) -> Option<&'static Recipe> {
    // SAFETY: the context is the kernel's own.
    let place = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as u32;
    if place == 0 { None } else { RECIPES.get(place) }
}

/// The number of the queue pair whose completion entry a queue stands at; 0 where that cannot be told.
#[inline(always)]
pub fn number(recipe: Option<&'static Recipe>, cq: u64) -> u32 {
    let Some(recipe) = recipe.filter(|recipe| recipe.mask != 0) else { return 0 };
    let bytes = follow(&recipe.number, cq).and_then(half);
    bytes.and_then(|bytes| recipe.number_of(bytes)).unwrap_or(0)
}

/// Which of its queues the completion entry is of; `None` where that cannot be told.
#[inline(always)]
pub fn side(recipe: Option<&'static Recipe>, cq: u64) -> Option<Side> {
    let recipe = recipe.filter(|recipe| recipe.side.tells())?;
    let byte = follow(&recipe.side.at, cq).and_then(read::<u8>)?;
    let told = recipe.side.of(byte);
    if told.is_some() || !recipe.more.has(byte) {
        return told;
    }
    recipe.then.of(follow(&recipe.then.at, cq).and_then(read::<u8>)?)
}

/// The address a path leads to.
#[inline(always)]
fn follow(path: &Path, cq: u64) -> Option<u64> {
    let mut at = cq;
    if path.hops > 0 {
        at = word(at.wrapping_add(path.to[0] as u64))?;
    }
    if path.hops > 1 {
        at = word(at.wrapping_add(path.to[1] as u64))?;
    }
    Some(at.wrapping_add(path.last as u64))
}
