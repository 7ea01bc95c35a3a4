//! Which operations are told at the digest sites.

use crate::device::process::Process;
use crate::sites;
use probe_common::site::{Chance, Stream};
use std::cell::Cell;

use crate::abi::{ibv_cq, ibv_wc};

thread_local! {
    static CHANCE: Cell<Chance> = const { Cell::new(Chance::NEW) };
}

/// How many operations of its stream this one stands for, as a power of two; `None` when no profiler wants to see it.
#[inline]
pub fn exponent(stream: Stream) -> Option<u32> {
    // In a forked child that has no device of its own, posts and polls fail: all of that is told.
    let Some(process) = Process::current() else { return Some(0) };
    match process.stats.rates().exponent(stream)? {
        0 => Some(0),
        exponent => by_chance(exponent),
    }
}

fn by_chance(exponent: u32) -> Option<u32> {
    CHANCE.with(|cell| {
        let mut chance = cell.get();
        // The address of a thread's own memory tells threads apart.
        let seed = (std::ptr::from_ref(cell) as usize >> 4) as u32;
        let is_told = chance.is_told(exponent, seed);
        cell.set(chance);
        is_told.then_some(exponent)
    })
}

/// True where every operation of a stream is to be told: then a profiler wants to know when each was, too.
#[inline]
pub fn every(stream: Stream) -> bool {
    Process::current().is_some_and(|process| process.stats.rates().exponent(stream) == Some(0))
}

/// Tells of a poll; `how` is 0 or [`probe_common::site::FOUND_BEFORE`].
#[inline]
pub fn polled(cq: *mut ibv_cq, n: i64, wc: *const ibv_wc, how: u32) {
    let stream = if n == 0 { Stream::Empty } else { Stream::Finds };
    if let Some(exponent) = exponent(stream) {
        // SAFETY: the site does nothing; its arguments are for tracers.
        unsafe { sites::rnic_emu_polled(cq, n, wc, exponent | how) };
    }
}
