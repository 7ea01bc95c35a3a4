//! Times on the command line.

use std::time::Duration;

/// `1.5s`, `200ms`, `2m`, `1h`, or a number of seconds, in ns.
///
/// # Errors
/// What is wrong, for clap to print beside the value.
pub fn parse_ns(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "" | "s" => 1e9,
        "m" | "min" => 60e9,
        "h" => 3600e9,
        _ => return Err(format!("unknown unit '{unit}': use ns, us, ms, s, m or h")),
    };
    let number: f64 =
        number.parse().map_err(|_| "not a time: use a number and a unit, such as 30s".to_owned())?;
    let ns = number * scale;
    // Up to 2^53 every whole nanosecond is exact in an f64: 104 days.
    if ns < 2_f64.powi(53) { Ok(ns.round() as u64) } else { Err("too long: at most 2,500 hours".to_owned()) }
}

/// As [`parse_ns`], and longer than nothing.
///
/// # Errors
/// As [`parse_ns`].
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    match parse_ns(text)? {
        0 => Err("must be longer than nothing".to_owned()),
        ns => Ok(Duration::from_nanos(ns)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_units() {
        for (text, ns) in [
            ("0", 0),
            ("1.5s", 1_500_000_000),
            ("20ms", 20_000_000),
            ("3", 3_000_000_000),
            ("7ns", 7),
            ("2m", 120_000_000_000),
        ] {
            assert_eq!(parse_ns(text), Ok(ns), "{text}");
        }
        for wrong in ["", "s", "5x", "-1", "1e400", "nan", "99999999h", "1.2.3"] {
            assert!(parse_ns(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_duration_is_longer_than_nothing() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        for wrong in ["0", "0.1ns", "", "5x"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
