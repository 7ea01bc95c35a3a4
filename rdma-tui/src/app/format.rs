//! Figures for people: short, with their unit, and never more digits than they are worth.

/// What a number counts, which decides how it is written and read in a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    Count,
    /// Things per second.
    PerSecond,
    /// Bytes, in binary multiples.
    Bytes,
    /// Bytes per second, in decimal multiples as networks count.
    BytesPerSecond,
    /// Nanoseconds.
    Nanoseconds,
    /// A share, 0–1, written in per cent.
    Share,
    /// A ratio, such as QPs per CQ.
    Ratio,
    /// A number that names something (pid, QPN): never abbreviated.
    Id,
    /// An address: hexadecimal.
    Address,
}

/// Writes `value` in its unit.
pub fn number(value: f64, unit: Unit) -> String {
    if !value.is_finite() {
        return "?".to_owned();
    }
    // The sum of no figures is -0.0, which is nobody's idea of nothing.
    let value = value + 0.0;
    match unit {
        Unit::Count => count(value),
        Unit::PerSecond => format!("{}/s", count(value)),
        Unit::Bytes => scaled(value, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"]),
        Unit::BytesPerSecond => scaled(value, 1000.0, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]),
        Unit::Nanoseconds => duration(value),
        Unit::Share => share(value),
        Unit::Ratio => three_digits(value),
        Unit::Id => format!("{value:.0}"),
        Unit::Address => format!("0x{:x}", value as u64),
    }
}

/// A count: exact below ten thousand, then 12.3k, 4.56M.
pub fn count(value: f64) -> String {
    if value.abs() < 10_000.0 {
        return if value.fract() == 0.0 { format!("{value:.0}") } else { three_digits(value) };
    }
    let mut value = value;
    let mut suffix = "";
    for next in ["k", "M", "G", "T", "P", "E"] {
        if value.abs() < 999.5 {
            break;
        }
        value /= 1000.0;
        suffix = next;
    }
    format!("{}{suffix}", three_digits(value))
}

/// A duration given in ns: 870 ns, 12.3 µs, 4.56 ms, 1.2 s, 3 min 20 s.
pub fn duration(ns: f64) -> String {
    if ns.abs() < 999.5 {
        format!("{} ns", three_digits(ns))
    } else if ns.abs() < 999.5e3 {
        format!("{} µs", three_digits(ns / 1e3))
    } else if ns.abs() < 999.5e6 {
        format!("{} ms", three_digits(ns / 1e6))
    } else if ns.abs() < 60e9 {
        format!("{} s", three_digits(ns / 1e9))
    } else if ns.abs() < 3600e9 {
        let seconds = (ns / 1e9).round() as i64;
        format!("{} min {:02} s", seconds / 60, seconds % 60)
    } else {
        let minutes = (ns / 60e9).round() as i64;
        format!("{} h {:02} min", minutes / 60, minutes % 60)
    }
}

/// A share, 0–1, in per cent; a share that is not quite all or nothing never reads as such.
pub fn share(value: f64) -> String {
    let percent = value * 100.0;
    if percent > 0.0 && percent < 0.1 {
        "<0.1%".to_owned()
    } else if percent > 99.9 && percent < 100.0 {
        ">99.9%".to_owned()
    } else if percent >= 10.0 || percent == 0.0 {
        format!("{percent:.0}%")
    } else {
        format!("{percent:.1}%")
    }
}

fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut unit = units[0];
    for next in &units[1..] {
        if value.abs() < 999.5 {
            break;
        }
        value /= step;
        unit = next;
    }
    format!("{} {unit}", three_digits(value))
}

/// At most three significant digits, without trailing zeros after the point.
fn three_digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// So many of something that is named in the singular.
pub fn many(n: u64, thing: &str) -> String {
    format!("{} {thing}{}", count(n as f64), if n == 1 { "" } else { "s" })
}

/// Cuts `text` to `width` columns, marking the cut.
pub fn clip(text: &str, width: usize, mark: &str) -> String {
    use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};
    if text.width() <= width {
        return text.to_owned();
    }
    let room = width.saturating_sub(mark.width());
    let mut used = 0;
    let mut clipped = String::new();
    for c in text.chars() {
        let w = c.width().unwrap_or(0);
        if used + w > room {
            break;
        }
        used += w;
        clipped.push(c);
    }
    if width >= mark.width() {
        clipped.push_str(mark);
    }
    clipped
}

/// A name from someone else's memory, made harmless for a terminal: control characters become `?`.
pub fn harmless(text: &str) -> std::borrow::Cow<'_, str> {
    if text.chars().any(char::is_control) {
        text.chars().map(|c| if c.is_control() { '?' } else { c }).collect::<String>().into()
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_carry_three_digits_and_their_unit() {
        for (value, unit, text) in [
            (0.0, Unit::Count, "0"),
            (std::iter::empty::<f64>().sum(), Unit::PerSecond, "0/s"),
            (9_999.0, Unit::Count, "9999"),
            (12_345.0, Unit::Count, "12.3k"),
            (999_999.0, Unit::Count, "1M"),
            (1.25e9, Unit::PerSecond, "1.25G/s"),
            (0.5, Unit::PerSecond, "0.5/s"),
            (1023.0, Unit::Bytes, "1 KiB"),
            (65_536.0, Unit::Bytes, "64 KiB"),
            (1.5e9, Unit::BytesPerSecond, "1.5 GB/s"),
            (870.0, Unit::Nanoseconds, "870 ns"),
            (12_345.0, Unit::Nanoseconds, "12.3 µs"),
            (999_600.0, Unit::Nanoseconds, "1 ms"),
            (200e9, Unit::Nanoseconds, "3 min 20 s"),
            (7_260e9, Unit::Nanoseconds, "2 h 01 min"),
            (4_294_967_295.0, Unit::Id, "4294967295"),
            (4096.0, Unit::Address, "0x1000"),
            (f64::NAN, Unit::Count, "?"),
        ] {
            assert_eq!(number(value, unit), text, "{value} {unit:?}");
        }
    }

    #[test]
    fn almost_all_is_not_all() {
        for (value, text) in
            [(0.0, "0%"), (0.0004, "<0.1%"), (0.042, "4.2%"), (0.5, "50%"), (0.9995, ">99.9%"), (1.0, "100%")]
        {
            assert_eq!(share(value), text);
        }
    }

    #[test]
    fn clipping_counts_columns_and_marks_the_cut() {
        assert_eq!(clip("rdma-server", 6, "…"), "rdma-…");
        assert_eq!(clip("日本語", 4, "…"), "日…");
        assert_eq!(clip("abc", 3, "…"), "abc");
        assert_eq!(clip("abc", 0, "…"), "");
    }

    #[test]
    fn escape_sequences_in_names_stay_text() {
        assert_eq!(harmless("a\x1b[2Jb"), "a?[2Jb");
        assert_eq!(harmless("plain"), "plain");
    }
}
