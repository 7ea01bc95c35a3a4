//! Tables for people: columns aligned by display width, wrapped to the terminal where a cell is prose.

/// Rows of cells under a head.
#[derive(Default)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column heads.
    pub fn new(head: &[&str]) -> Table {
        Table { head: head.iter().map(ToString::to_string).collect(), rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty, surplus ones are dropped.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Lines without trailing blanks. The last column may run on; the others are padded.
    pub fn render(&self) -> String {
        let columns = self.head.len();
        let all = || std::iter::once(&self.head).chain(&self.rows);
        let widths: Vec<usize> = (0..columns)
            .map(|at| all().filter_map(|row| row.get(at)).map(|cell| width(cell)).max().unwrap_or(0))
            .collect();
        let mut out = String::new();
        for row in all() {
            let mut line = String::new();
            for (at, column) in widths.iter().enumerate() {
                let cell = row.get(at).map_or("", String::as_str);
                line.push_str(cell);
                if at + 1 < columns {
                    line.extend(std::iter::repeat_n(' ', column - width(cell).min(*column) + 2));
                }
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

/// Display width; every character the reports use is one column wide.
fn width(text: &str) -> usize {
    text.chars().count()
}

/// Breaks prose at blanks so that no line is wider than `columns`, each but the first indented.
pub fn wrap(text: &str, columns: usize, indent: &str) -> String {
    let mut out = String::new();
    let mut line = 0;
    for word in text.split_whitespace() {
        let long = width(word);
        if line > 0 && line + 1 + long > columns {
            out.push('\n');
            out.push_str(indent);
            line = width(indent);
        } else if line > 0 {
            out.push(' ');
            line += 1;
        }
        out.push_str(word);
        line += long;
    }
    out
}

/// A rate, such as `1.23 M/s`.
pub fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate >= 1e6 => format!("{:.2} M/s", rate / 1e6),
        rate if rate >= 1e4 => format!("{:.1} k/s", rate / 1e3),
        rate => format!("{rate:.0} /s"),
    }
}

/// A duration given in nanoseconds.
pub fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

/// A count of bytes where it is a whole number of binary units, else the plain number.
pub fn quantity(value: u64, unit: &str) -> String {
    if unit != "bytes" {
        return value.to_string();
    }
    match value {
        bytes if bytes >= 1 << 30 && bytes.is_multiple_of(1 << 30) => format!("{} GiB", bytes >> 30),
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_whatever_characters_they_hold() {
        let mut table = Table::new(&["what", "time"]);
        table.row(vec!["µs".into(), "1".into()]);
        table.row(vec!["longer".into(), "2".into(), "surplus".into()]);
        table.row(vec!["alone".into()]);
        assert_eq!(table.render(), "what    time\nµs      1\nlonger  2\nalone\n");
    }

    #[test]
    fn prose_wraps_at_blanks_and_keeps_overlong_words_whole() {
        assert_eq!(wrap("one two three", 7, "  "), "one two\n  three");
        assert_eq!(wrap("incomprehensibilities a", 5, ""), "incomprehensibilities\na");
        assert_eq!(wrap("", 5, ""), "");
    }

    #[test]
    fn figures_carry_their_unit() {
        assert_eq!(rate(1_234_567.0), "1.23 M/s");
        assert_eq!(rate(0.4), "0 /s");
        assert_eq!(time(1_500.0), "1.5 µs");
        assert_eq!(quantity(65_536, "bytes"), "64 KiB");
        assert_eq!(quantity(65_537, "bytes"), "65537 B");
        assert_eq!(quantity(64, "QPs"), "64");
    }
}
