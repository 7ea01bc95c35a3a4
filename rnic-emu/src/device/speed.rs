//! How fast modelled time runs against the real clock.

use super::config::BadValue;

/// A speed: modelled seconds per real second, from 1/1,000,000 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed(f64);

impl Default for Speed {
    /// 1/64: two ordinary cores then keep up with a NIC of a hundred million messages a second.
    fn default() -> Self {
        Self(1.0 / 64.0)
    }
}

impl Speed {
    /// Modelled seconds per real second.
    pub fn ratio(self) -> f64 {
        self.0
    }

    /// Reads "1/64", "0.5" or "1".
    ///
    /// # Errors
    /// [`BadValue`] names what was given.
    pub fn parse(name: &str, value: &str) -> Result<Self, BadValue> {
        let number = |v: &str| v.trim().parse::<f64>().ok();
        let ratio = match value.split_once('/') {
            Some((over, under)) => number(over).zip(number(under)).map(|(o, u)| o / u),
            None => number(value),
        };
        ratio.filter(|r| (1e-6..=1.0).contains(r)).map(Self).ok_or_else(|| BadValue {
            name: name.into(),
            value: value.into(),
            wanted: "a speed such as 1/64, between 1/1000000 and 1".into(),
        })
    }

    /// Modelled picoseconds that pass in `ns` real nanoseconds.
    pub fn modelled_ps(self, ns: u64) -> u64 {
        (ns as f64 * 1000.0 * self.0) as u64
    }

    /// Real nanoseconds that `ps` modelled picoseconds take.
    pub fn real_ns(self, ps: u64) -> u64 {
        (ps as f64 / 1000.0 / self.0).ceil() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_and_decimals_are_read_and_nonsense_is_refused() {
        assert_eq!(Speed::parse("--speed", "1/64"), Ok(Speed::default()));
        assert_eq!(Speed::parse("--speed", "0.5").map(Speed::ratio), Ok(0.5));
        assert_eq!(Speed::parse("--speed", "1").map(Speed::ratio), Ok(1.0));
        for bad in ["", "fast", "0", "-1", "2", "1/0", "0/1", "1/64/2", "nan", "inf"] {
            let e = Speed::parse("--speed", bad).expect_err(bad);
            assert!(e.to_string().contains(&format!("\"{bad}\"")), "{e}");
        }
    }

    #[test]
    fn a_modelled_microsecond_takes_64_real_ones() {
        let s = Speed::default();
        assert_eq!(s.real_ns(1_000_000), 64_000);
        assert_eq!(s.modelled_ps(64_000), 1_000_000);
    }
}
