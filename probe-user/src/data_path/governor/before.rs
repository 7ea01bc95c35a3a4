//! What a process did before a probe hit it, by the counters that the libraries of ours keep anyway: one that is busy is
//! asked for one operation in so many from the first hit on, instead of paying for every one until somebody has looked.

use probe_common::site::STREAMS;

use super::plan::{self, Allowed, Seen};

/// Less CPU time tells no rate: one that has just begun is looked at in full, so that a short one is counted exactly.
const ENOUGH_NS: u64 = 100_000_000;
/// The same between two readings.
const ENOUGH_BETWEEN_NS: u64 = 20_000_000;

/// What a process has done since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Operations, in the order of [`probe_common::site::Stream`].
    pub operations: [u64; STREAMS],
    /// CPU time it used, in ns.
    pub cpu_ns: u64,
}

/// What to ask for from the first hit on, where one costs `hit_ns`, by what was done until `now`, and since an `earlier`
/// reading.
///
/// Everything is taken by CPU time, which is what hits are paid from: what a program does in a second becomes less while the
/// kernel checks programs on the processors it runs on. The busier of its whole life and of late counts.
pub fn exponents(earlier: Option<Done>, now: Done, hit_ns: f64, allowed: &Allowed) -> [u32; STREAMS] {
    let begin = Done { operations: [0; STREAMS], cpu_ns: 0 };
    let life = rates(begin, now, ENOUGH_NS);
    let lately = earlier.map_or([0.0; STREAMS], |earlier| rates(earlier, now, ENOUGH_BETWEEN_NS));
    let seen = std::array::from_fn(|stream| Seen {
        seconds: 1.0,
        lately: life[stream].max(lately[stream]),
        ..Seen::default()
    });
    plan::exponents(&seen, hit_ns, allowed.overhead * 1e9)
}

/// Operations in a second of CPU time; none where it is too short to tell.
fn rates(from: Done, to: Done, enough_ns: u64) -> [f64; STREAMS] {
    let cpu_ns = to.cpu_ns.saturating_sub(from.cpu_ns);
    if cpu_ns < enough_ns {
        return [0.0; STREAMS];
    }
    let rate = |(to, from): (u64, u64)| to.saturating_sub(from) as f64 / cpu_ns as f64 * 1e9;
    std::array::from_fn(|stream| rate((to.operations[stream], from.operations[stream])))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn asked(earlier: Option<Done>, now: Done) -> [u32; STREAMS] {
        exponents(earlier, now, 1000.0, &Allowed::default())
    }

    fn done(posts: u64, cpu_ns: u64) -> Done {
        Done { operations: [posts, 0, 0, 0], cpu_ns }
    }

    #[test]
    fn a_busy_program_is_asked_for_what_is_allowed_and_a_slow_one_for_everything() {
        let busy = Done { operations: [3_000_000, 20_000, 60_000_000, 20_000], cpu_ns: 10 * SECOND_NS };
        let [posts, finds, empty, signalled] = asked(None, busy);
        assert!(posts >= 6 && empty >= 10, "{posts} {empty}");
        assert_eq!([finds, signalled], [0, 0]);
        let cost = (300_000 >> posts) + 2000 + (6_000_000 >> empty) + 2000;
        assert!(cost <= 10_000, "{cost} hits of a microsecond in a second");
        assert_eq!(asked(None, done(10_000, 10 * SECOND_NS)), [0; STREAMS]);
    }

    #[test]
    fn one_that_has_just_begun_is_looked_at_in_full_whatever_it_did() {
        assert_eq!(asked(None, done(1_000_000, ENOUGH_NS - 1)), [0; STREAMS]);
        assert_eq!(asked(None, done(0, 0)), [0; STREAMS]);
    }

    #[test]
    fn the_busier_of_its_life_and_of_late_counts() {
        let idle = done(0, 100 * SECOND_NS);
        assert!(asked(Some(idle), done(1_000_000, 101 * SECOND_NS))[0] > 5);
        // Too short to tell.
        let soon = done(100_000, 100 * SECOND_NS + ENOUGH_BETWEEN_NS - 1);
        assert_eq!(asked(Some(idle), soon), [0; STREAMS]);
        let paused = done(1_000_000, 2 * SECOND_NS);
        assert!(asked(Some(done(1_000_000, SECOND_NS)), paused)[0] > 5);
    }

    #[test]
    fn counters_that_run_backwards_are_no_rate_and_wild_ones_no_panic() {
        let forged = done(u64::MAX, u64::MAX);
        asked(Some(forged), forged);
        assert_eq!(asked(Some(forged), done(0, 0)), [0; STREAMS]);
        assert!(asked(None, done(u64::MAX, ENOUGH_NS))[0] > 10);
    }
}
