//! The offset between two monotonic clocks, from what must have come before what.
//!
//! A queue pair's number does not exist before the queue pair is created, and a peer that connects to the number must
//! have been told it: its creation on one host precedes the peer's change to RTR on the other. Each connection gives
//! one such bound in either direction, librdmacm's handshake two more that are tighter (a request arrives after
//! it was sent, a reply is acted upon after it was sent). Within the bounds the wall clocks choose, where they can.

use crate::sample::{Header, OffsetFrom};

/// What is known of the offset to be added to one clock to have another's: bounds on both sides, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// It is at least this.
    pub least: Option<i128>,
    /// It is at most this.
    pub most: Option<i128>,
}

impl Bounds {
    /// Something at `before_ns` of the reference clock preceded something at `after_ns` of the other.
    pub fn reference_first(&mut self, before_ns: u64, after_ns: u64) {
        let offset = i128::from(before_ns) - i128::from(after_ns);
        self.least = Some(self.least.map_or(offset, |least| least.max(offset)));
    }

    /// Something at `before_ns` of the other clock preceded something at `after_ns` of the reference.
    pub fn other_first(&mut self, before_ns: u64, after_ns: u64) {
        let offset = i128::from(after_ns) - i128::from(before_ns);
        self.most = Some(self.most.map_or(offset, |most| most.min(offset)));
    }

    /// The same, seen from the other clock.
    pub fn reversed(self) -> Self {
        Self { least: self.most.map(|n| -n), most: self.least.map(|n| -n) }
    }

    fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// An offset and how good it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// To be added to the clock.
    pub offset_ns: i64,
    /// The true one differs by no more than this; `None` where nothing bounds it on both sides.
    pub bound_ns: Option<u64>,
    /// How it was found.
    pub from: OffsetFrom,
}

/// The offset that the wall clocks say where that is within `bounds`, else the middle of what the bounds allow: wall
/// clocks outside them are known to be wrong.
pub fn estimate(bounds: Bounds, by_wall_clocks: i128) -> Estimate {
    let narrow = |offset: i128| offset.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
    let width = |ns: i128| u64::try_from(ns).unwrap_or(u64::MAX);
    match (bounds.least, bounds.most) {
        (Some(least), Some(most)) if least <= most => {
            let trusted = (least..=most).contains(&by_wall_clocks);
            let offset = if trusted { by_wall_clocks } else { least + (most - least) / 2 };
            let bound = (most - offset).max(offset - least);
            Estimate {
                offset_ns: narrow(offset),
                bound_ns: Some(width(bound)),
                from: OffsetFrom::Connections,
            }
        }
        (Some(least), Some(most)) => Estimate {
            offset_ns: narrow((least + most) / 2),
            bound_ns: Some(width((least - most + 1) / 2)),
            from: OffsetFrom::Contradiction,
        },
        (None, None) => {
            Estimate { offset_ns: narrow(by_wall_clocks), bound_ns: None, from: OffsetFrom::WallClocks }
        }
        (least, most) => {
            let offset = by_wall_clocks.max(least.unwrap_or(i128::MIN)).min(most.unwrap_or(i128::MAX));
            Estimate { offset_ns: narrow(offset), bound_ns: None, from: OffsetFrom::Connections }
        }
    }
}

/// The offset of every recording's clock to the first one's: directly, or by way of others where that is narrower.
///
/// `bounds[i][j]` bounds what is added to clock `j` to have clock `i`.
pub fn place(headers: &[Header], bounds: &[Vec<Bounds>]) -> Vec<Estimate> {
    let n = headers.len();
    let mut placed: Vec<Option<Estimate>> = vec![None; n];
    if n > 0 {
        placed[0] = Some(Estimate { offset_ns: 0, bound_ns: Some(0), from: OffsetFrom::Reference });
    }
    while let Some((j, found)) = nearest(headers, bounds, &placed) {
        placed[j] = Some(found);
    }
    placed.into_iter().flatten().collect()
}

/// Of the recordings not placed yet, the one whose relation to a placed one is narrowest.
fn nearest(
    headers: &[Header],
    bounds: &[Vec<Bounds>],
    placed: &[Option<Estimate>],
) -> Option<(usize, Estimate)> {
    let mut best: Option<(usize, Estimate)> = None;
    for (i, base) in placed.iter().enumerate() {
        let Some(base) = base else { continue };
        for j in (0..placed.len()).filter(|j| placed[*j].is_none()) {
            let found = beside(*base, relate(&headers[i], &headers[j], bounds[i][j]));
            if best.is_none_or(|(_, best)| rank(&found) < rank(&best)) {
                best = Some((j, found));
            }
        }
    }
    best
}

/// Narrower first, bounded before unbounded, connections before wall clocks.
fn rank(estimate: &Estimate) -> (u64, bool) {
    (estimate.bound_ns.unwrap_or(u64::MAX), estimate.from == OffsetFrom::WallClocks)
}

fn relate(reference: &Header, other: &Header, bounds: Bounds) -> Estimate {
    if !reference.boot_id.is_empty() && reference.boot_id == other.boot_id {
        return Estimate { offset_ns: 0, bound_ns: Some(0), from: OffsetFrom::SameClock };
    }
    let wall = |h: &Header| i128::from(h.wall_ns) - i128::from(h.t_ns);
    estimate(bounds, wall(other) - wall(reference))
}

/// What is known of a clock by way of another one.
fn beside(base: Estimate, beyond: Estimate) -> Estimate {
    let bound_ns = base.bound_ns.zip(beyond.bound_ns).map(|(a, b)| a.saturating_add(b));
    let from = match (base.from, beyond.from) {
        (OffsetFrom::Reference | OffsetFrom::SameClock, from) => from,
        (from, OffsetFrom::SameClock) => from,
        (OffsetFrom::Contradiction, _) | (_, OffsetFrom::Contradiction) => OffsetFrom::Contradiction,
        (OffsetFrom::WallClocks, _) | (_, OffsetFrom::WallClocks) => OffsetFrom::WallClocks,
        _ => OffsetFrom::Connections,
    };
    Estimate { offset_ns: base.offset_ns.saturating_add(beyond.offset_ns), bound_ns, from }
}

/// Sets up a table of bounds for `n` clocks.
pub fn unknown(n: usize) -> Vec<Vec<Bounds>> {
    vec![vec![Bounds::default(); n]; n]
}

/// Records that one moment preceded another, for both directions of the table.
pub fn precede(bounds: &mut [Vec<Bounds>], before: (usize, u64), after: (usize, u64)) {
    if before.0 == after.0 {
        return;
    }
    bounds[before.0][after.0].reference_first(before.1, after.1);
    let there = bounds[before.0][after.0];
    let back = &mut bounds[after.0][before.0];
    back.other_first(before.1, after.1);
    debug_assert!(!there.is_empty() && *back == there.reversed(), "both directions say the same");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(t_ns: u64, wall_ns: u64) -> Header {
        Header { t_ns, wall_ns, ..Header::default() }
    }

    #[test]
    fn wall_clocks_alone_give_an_offset_without_a_bound() {
        let [_, other] = place(&[header(100, 5000), header(900, 5100)], &unknown(2))[..] else {
            panic!("two recordings")
        };
        // 900 there is wall 5100, which is 200 here.
        assert_eq!((other.offset_ns, other.bound_ns, other.from), (-700, None, OffsetFrom::WallClocks));
    }

    #[test]
    fn one_boot_is_one_clock_whatever_the_wall_clocks_said() {
        let same = |t_ns, wall_ns| Header { boot_id: "b".into(), ..header(t_ns, wall_ns) };
        let placed = place(&[same(100, 5000), same(900, 1)], &unknown(2));
        assert_eq!((placed[1].offset_ns, placed[1].bound_ns), (0, Some(0)));
    }

    #[test]
    fn a_wrong_wall_clock_is_held_within_what_the_connections_allow() {
        let bounds = Bounds { least: Some(-40), most: Some(60) };
        let found = estimate(bounds, 1_000_000);
        assert_eq!((found.offset_ns, found.bound_ns, found.from), (10, Some(50), OffsetFrom::Connections));
        let found = estimate(bounds, -30);
        assert_eq!((found.offset_ns, found.bound_ns), (-30, Some(90)));
    }

    #[test]
    fn contradicting_connections_are_said_with_half_their_distance() {
        let found = estimate(Bounds { least: Some(100), most: Some(40) }, 0);
        assert_eq!((found.offset_ns, found.bound_ns, found.from), (70, Some(30), OffsetFrom::Contradiction));
    }

    #[test]
    fn a_recording_without_a_connection_to_the_first_is_placed_by_way_of_another() {
        let mut bounds = unknown(3);
        // 1 runs 500 behind 0; 2 runs 30 ahead of 1.
        precede(&mut bounds, (0, 1000), (1, 510));
        precede(&mut bounds, (1, 500), (0, 1010));
        precede(&mut bounds, (1, 700), (2, 740));
        precede(&mut bounds, (2, 735), (1, 710));
        let placed = place(&[header(0, 0), header(0, 0), header(0, 0)], &bounds);
        let within = |e: &Estimate, truth: i64| e.offset_ns.abs_diff(truth) <= e.bound_ns.unwrap();
        assert!(within(&placed[1], 500), "{placed:?}");
        assert!(within(&placed[2], 470), "{placed:?}");
        assert_eq!(placed[2].from, OffsetFrom::Connections);
    }

    proptest! {
        /// Whatever the true offset and the delays, it lies within the stated bound.
        #[test]
        fn the_truth_lies_within_the_bound(
            truth in -1_000_000_000_000_i64..1_000_000_000_000,
            wall_error in -50_000_000_i64..50_000_000,
            handshakes in prop::collection::vec((0..1_000_000_000_u64, 1..100_000_u64, 1..100_000_u64), 1..20),
        ) {
            const BASE: u64 = 2_000_000_000_000;
            let there = |t: u64| (t as i64 - truth) as u64;
            let mut bounds = unknown(2);
            for (at, out, back) in handshakes {
                let sent = BASE + at;
                let received = sent + out;
                precede(&mut bounds, (0, sent), (1, there(received)));
                precede(&mut bounds, (1, there(received)), (0, received + back));
            }
            let headers = [header(BASE, BASE), header(there(BASE), BASE.saturating_add_signed(wall_error))];
            let found = place(&headers, &bounds)[1];
            prop_assert_eq!(found.from, OffsetFrom::Connections);
            prop_assert!(found.offset_ns.abs_diff(truth) <= found.bound_ns.unwrap());
        }
    }
}
