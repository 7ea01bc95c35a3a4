//! Figures as a person reads them.

/// A duration: three significant digits and the unit that keeps them short.
pub fn duration(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..999_500 => format!("{} µs", three_digits(ns as f64 / 1e3)),
        999_500..999_500_000 => format!("{} ms", three_digits(ns as f64 / 1e6)),
        999_500_000..60_000_000_000 => format!("{} s", three_digits(ns as f64 / 1e9)),
        _ => {
            let s = ns / 1_000_000_000;
            match (s / 3600, s / 60 % 60, s % 60) {
                (0, m, s) => format!("{m} min {s} s"),
                (h, m, _) => format!("{h} h {m} min"),
            }
        }
    }
}

/// A size in binary units: whole where it is whole, else three significant digits.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let exponent = (n.max(1).ilog2() / 10).min(UNITS.len() as u32 - 1);
    let unit = 1_u64 << (10 * exponent);
    if n.is_multiple_of(unit) {
        format!("{} {}", count(n / unit), UNITS[exponent as usize])
    } else {
        format!("{} {}", three_digits(n as f64 / unit as f64), UNITS[exponent as usize])
    }
}

/// A count with its thousands set apart.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A share (0–1) as a percentage.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        p if p > 0.0 && p < 1.0 => "<1 %".to_owned(),
        // Not all, and never to be taken for it.
        p if p > 99.0 && p < 100.0 => ">99 %".to_owned(),
        p => format!("{p:.0} %"),
    }
}

fn three_digits(x: f64) -> String {
    match x {
        _ if x < 9.995 => format!("{x:.2}"),
        _ if x < 99.95 => format!("{x:.1}"),
        _ => format!("{x:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_keep_three_digits_and_change_unit_when_rounding_reaches_the_next() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1000, "1.00 µs"),
            (9_994, "9.99 µs"),
            (9_996, "10.0 µs"),
            (123_456, "123 µs"),
            (999_499, "999 µs"),
            (999_500, "1.00 ms"),
            (59_999_000_000, "60.0 s"),
            (61_000_000_000, "1 min 1 s"),
            (7_260_000_000_000, "2 h 1 min"),
            (u64::MAX, "5124095 h 34 min"),
        ] {
            assert_eq!(duration(ns), text, "{ns}");
        }
    }

    #[test]
    fn sizes_are_whole_where_they_are_whole() {
        for (n, text) in [
            (0, "0 B"),
            (1023, "1,023 B"),
            (4096, "4 KiB"),
            (4097, "4.00 KiB"),
            (1 << 20, "1 MiB"),
            (3 << 19, "1.50 MiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(bytes(n), text, "{n}");
        }
    }

    #[test]
    fn counts_and_shares_read_well() {
        assert_eq!(count(0), "0");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(percent(0.004), "<1 %");
        assert_eq!(percent(0.0), "0 %");
        assert_eq!(
            (percent(0.9999).as_str(), percent(1.0).as_str(), percent(0.99).as_str()),
            (">99 %", "100 %", "99 %")
        );
        assert_eq!(percent(0.975), "98 %");
    }
}
