//! Gates of a work request, and the token that names it in the model.

/// The responder may not see the request yet.
pub const DELIVER: u8 = 1;
/// The program may not see its completion yet.
pub const COMPLETE: u8 = 2;

const COUNTER_BITS: u32 = 40;

/// Names request `counter` of the QP at `index`, in its `generation`-th life.
pub fn token(index: usize, generation: u8, counter: u64) -> u64 {
    (index as u64 & 0xffff) << 48
        | u64::from(generation) << COUNTER_BITS
        | counter & ((1 << COUNTER_BITS) - 1)
}

/// QP index, generation and the low bits of the counter.
pub fn untoken(token: u64) -> (usize, u8, u64) {
    ((token >> 48) as usize, (token >> COUNTER_BITS) as u8, token & ((1 << COUNTER_BITS) - 1))
}

/// The counter between `from` and `to` with these low bits, if there is one.
pub fn nearest(low: u64, from: u64, to: u64) -> Option<u64> {
    let span = 1 << COUNTER_BITS;
    let mut counter = from & !(span - 1) | low;
    if counter < from {
        counter += span;
    }
    (counter < to).then_some(counter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_leads_back_to_its_request() {
        for (index, generation, counter) in [(0, 0, 0), (65_535, 255, 123), (7, 3, (1 << 40) + 5)] {
            let (i, g, low) = untoken(token(index, generation, counter));
            assert_eq!((i, g), (index, generation));
            assert_eq!(nearest(low, counter.saturating_sub(10), counter + 10), Some(counter));
            assert_eq!(nearest(low, counter + 1, counter + 10), None, "retired already");
        }
    }
}
