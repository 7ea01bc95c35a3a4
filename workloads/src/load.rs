//! What traffic a run makes, as data: the same description drives a device and the timing model.

use crate::error::usage;
use anyhow::Result;
use serde::Serialize;

/// An operation on remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// Compare-and-swap on eight bytes.
    CompareSwap,
    /// Fetch-and-add on eight bytes.
    FetchAdd,
}

/// How operations are spread over queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mix {
    /// The same operation everywhere.
    Only(Op),
    /// READs on the even, WRITEs on the odd queue pairs.
    ReadWriteApart,
    /// READ and WRITE in turn on every queue pair.
    ReadWriteMixed,
}

impl Mix {
    /// Operation of the `index`-th request on queue pair `qp`.
    #[inline]
    pub fn op(self, qp: usize, index: u64) -> Op {
        let even = match self {
            Mix::Only(op) => return op,
            Mix::ReadWriteApart => qp.is_multiple_of(2),
            Mix::ReadWriteMixed => index.is_multiple_of(2),
        };
        if even { Op::Read } else { Op::Write }
    }
}

/// Where in a region successive requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Walk {
    /// Always the same place.
    Fixed,
    /// One after the other, wrapping round.
    Sequential,
    /// Steps of that many bytes, wrapping round.
    Strided(u64),
    /// Anywhere, uniformly.
    Random,
}

/// How completions are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// Poll without pause.
    Busy,
    /// Sleep on the completion channel.
    Events,
}

/// When requests are made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// A new one as soon as an old one completes.
    Closed,
    /// At a steady rate per second, whatever has completed; latency counts from when a request was due.
    Open(f64),
}

/// Which queue pair the next list goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pick {
    /// Each in turn.
    InTurn,
    /// Any, as requests of many clients would.
    Random,
}

/// One load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Load {
    /// Operations.
    pub mix: Mix,
    /// Bytes per operation.
    pub size: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Requests outstanding per queue pair, those not known to be complete included.
    pub window: u32,
    /// Requests outstanding over all queue pairs; 0 for no limit beyond `window`.
    pub total_window: u32,
    /// Which queue pair the next list goes to.
    pub pick: Pick,
    /// Requests per call of post_send.
    pub batch: u32,
    /// One request in this many asks for a completion.
    pub signal_every: u32,
    /// Whether the payload is copied into the request.
    pub inline: bool,
    /// How completions are waited for.
    pub wait: Wait,
    /// When requests are made.
    pub pace: Pace,
    /// Offset of every local address from a 64-byte boundary.
    pub local_offset: u32,
    /// Offset of every remote address from a 64-byte boundary.
    pub remote_offset: u32,
    /// Walk over the remote region.
    pub walk: Walk,
    /// Bytes of the remote region walked over.
    pub region: u64,
}

impl Default for Load {
    fn default() -> Load {
        Load {
            mix: Mix::Only(Op::Write),
            size: 64,
            qps: 1,
            window: 64,
            total_window: 0,
            pick: Pick::InTurn,
            batch: 1,
            signal_every: 1,
            inline: false,
            wait: Wait::Busy,
            pace: Pace::Closed,
            local_offset: 0,
            remote_offset: 0,
            walk: Walk::Sequential,
            region: 1 << 20,
        }
    }
}

impl Load {
    /// Distance between the places two requests use: the size and offset, rounded up so that each starts at the same
    /// alignment. The requests of a list are no neighbours: else a single longer one would do the work of all.
    pub fn slot(&self) -> u64 {
        let wanted = u64::from(self.size).max(8) + u64::from(self.remote_offset.max(self.local_offset));
        wanted.next_multiple_of(64) + if self.batch > 1 { 64 } else { 0 }
    }

    /// Places in the remote region.
    pub fn slots(&self) -> u64 {
        (self.region / self.slot()).max(1)
    }

    /// Refuses loads that cannot run: zero or absurd sizes, a window that can never drain.
    pub fn check(&self) -> Result<()> {
        let bounds: [(&str, u64, u64); 6] = [
            ("--size", u64::from(self.size), 1 << 30),
            ("--qps", u64::from(self.qps), 100_000),
            ("--window", u64::from(self.window), 1 << 20),
            ("batch", u64::from(self.batch), 1 << 16),
            ("signal interval", u64::from(self.signal_every), 1 << 20),
            ("--region", self.region, 1 << 40),
        ];
        for (name, value, most) in bounds {
            if value == 0 || value > most {
                return Err(usage(format!("{name} {value} is out of range; give 1 to {most}")));
            }
        }
        // With every request of a full window unsignalled, none would ever be known to be complete.
        if self.signal_every > self.window {
            return Err(usage(format!(
                "signalling one request in {} needs a window of at least that many; it is {}",
                self.signal_every, self.window
            )));
        }
        if self.total_window > 0 && (self.signal_every > 1 || self.batch > self.total_window) {
            return Err(usage(
                "a limit over all queue pairs needs every request signalled and lists that fit it",
            ));
        }
        if self.batch > self.window {
            return Err(usage(format!("a batch of {} does not fit a window of {}", self.batch, self.window)));
        }
        if self.region < self.slot() {
            return Err(usage(format!(
                "a region of {} bytes has no room for an operation of {}",
                self.region, self.size
            )));
        }
        let atomic = matches!(self.mix, Mix::Only(Op::CompareSwap | Op::FetchAdd));
        if atomic && (self.size != 8 || !self.remote_offset.is_multiple_of(8)) {
            return Err(usage("atomics act on 8 aligned bytes".to_owned()));
        }
        if let Pace::Open(rate) = self.pace
            && !(rate.is_finite() && rate > 0.0)
        {
            return Err(usage(format!("a rate of {rate} operations per second cannot be offered")));
        }
        Ok(())
    }
}

/// Produces the offsets a walk visits.
#[derive(Clone, Debug)]
pub struct Walker {
    walk: Walk,
    slot: u64,
    slots: u64,
    next: u64,
    random: Random,
}

impl Walker {
    /// A walker over a load's remote region; `seed` tells apart the walkers of several queue pairs.
    pub fn new(load: &Load, seed: u64) -> Walker {
        let slots = load.slots();
        // Each queue pair starts somewhere else, so that sequential walks do not follow in each other's steps.
        let next = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) % slots;
        Walker { walk: load.walk, slot: load.slot(), slots, next, random: Random::new(seed) }
    }

    /// Offset of the next request.
    #[inline]
    pub fn next_offset(&mut self) -> u64 {
        match self.walk {
            Walk::Fixed => 0,
            Walk::Sequential => self.advance(1),
            Walk::Strided(bytes) => self.advance((bytes / self.slot).max(1)),
            Walk::Random => self.random.below(self.slots) * self.slot,
        }
    }

    #[inline]
    fn advance(&mut self, steps: u64) -> u64 {
        let here = self.next;
        self.next += steps;
        if self.next >= self.slots {
            // A whole number of strides rarely fits: going on one slot further visits the ones left out.
            self.next = if steps == 1 { 0 } else { (here % steps + 1) % steps % self.slots };
        }
        here * self.slot
    }
}

/// xorshift64*: a few cycles, and far better than needed to spread addresses.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_add(0x1234_5678_9ABC_DEF1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `bound`, which must not be 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let value = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D);
        ((u128::from(value) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn visited(walk: Walk, steps: usize) -> Vec<u64> {
        let load = Load { walk, region: 64 * 16, ..Load::default() };
        let mut walker = Walker::new(&load, 0);
        (0..steps).map(|_| walker.next_offset()).collect()
    }

    #[test]
    fn a_sequential_walk_visits_every_slot_in_order_and_wraps() {
        let seen = visited(Walk::Sequential, 17);
        assert_eq!(seen[..3], [0, 64, 128]);
        assert_eq!(seen[16], 0);
    }

    #[test]
    fn a_strided_walk_visits_every_slot_in_the_end() {
        let seen = visited(Walk::Strided(256), 16);
        assert_eq!(seen[..5], [0, 256, 512, 768, 64]);
        assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), 16);
    }

    #[test]
    fn a_random_walk_stays_inside_and_reaches_everywhere() {
        let seen: BTreeSet<_> = visited(Walk::Random, 1000).into_iter().collect();
        assert_eq!(seen.len(), 16);
        assert!(seen.iter().all(|offset| offset + 64 <= 64 * 16));
    }

    #[test]
    fn misaligned_slots_keep_their_offset_and_do_not_overlap() {
        let load = Load { size: 64, remote_offset: 32, ..Load::default() };
        assert_eq!(load.slot(), 128);
        assert_eq!(Load { size: 65, ..Load::default() }.slot(), 128);
    }

    #[test]
    fn zero_and_absurd_values_are_usage_errors() {
        let good = Load::default();
        assert!(good.check().is_ok());
        let bad = [
            Load { size: 0, ..good.clone() },
            Load { qps: 0, ..good.clone() },
            Load { qps: 1 << 30, ..good.clone() },
            Load { window: 0, ..good.clone() },
            Load { region: 0, ..good.clone() },
            Load { region: 8, ..good.clone() },
            Load { batch: 65, ..good.clone() },
            Load { signal_every: 65, ..good.clone() },
            Load { mix: Mix::Only(Op::FetchAdd), size: 64, ..good.clone() },
            Load { pace: Pace::Open(0.0), ..good.clone() },
            Load { pace: Pace::Open(f64::NAN), ..good.clone() },
        ];
        for load in bad {
            let error = load.check().expect_err(&format!("{load:?}"));
            assert_eq!(crate::error::exit_status(&error), 2, "{load:?}");
        }
    }

    #[test]
    fn reads_and_writes_are_spread_as_named() {
        assert_eq!(Mix::ReadWriteApart.op(0, 7), Op::Read);
        assert_eq!(Mix::ReadWriteApart.op(1, 8), Op::Write);
        assert_eq!(Mix::ReadWriteMixed.op(1, 8), Op::Read);
        assert_eq!(Mix::Only(Op::FetchAdd).op(3, 3), Op::FetchAdd);
    }
}
