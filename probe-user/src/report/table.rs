//! Aligned columns that give way, least important first, when the terminal is narrow.

use unicode_width::UnicodeWidthStr;

/// How a column is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A column: its title, how it is set, and its rank; the highest rank is dropped first, rank 0 never.
#[derive(Debug, Clone, Copy)]
pub struct Column(pub &'static str, pub Align, pub u8);

/// Lays `rows` out below the titles, each line at most `width` columns wide unless rank 0 alone needs more.
/// Columns that are empty in every row are left out.
pub fn render(columns: &[Column], rows: &[Vec<String>], width: usize) -> Vec<String> {
    let mut shown: Vec<usize> = (0..columns.len())
        .filter(|i| rows.iter().any(|row| row.get(*i).is_some_and(|c| !c.is_empty())))
        .collect();
    let width_of = |i: usize| {
        rows.iter()
            .filter_map(|row| row.get(i))
            .map(|c| c.width())
            .max()
            .unwrap_or(0)
            .max(columns[i].0.width())
    };
    loop {
        let total: usize = shown.iter().map(|i| width_of(*i) + 2).sum();
        if total.saturating_sub(2) <= width {
            break;
        }
        let Some(at) = (0..shown.len()).max_by_key(|at| columns[shown[*at]].2) else { break };
        if columns[shown[at]].2 == 0 {
            break;
        }
        shown.remove(at);
    }
    let line = |cell: &dyn Fn(usize) -> String| {
        let mut line = String::new();
        for (at, i) in shown.iter().enumerate() {
            let text = cell(*i);
            let pad = " ".repeat(width_of(*i).saturating_sub(text.width()));
            if at > 0 {
                line.push_str("  ");
            }
            match columns[*i].1 {
                Align::Left => line = line + &text + &pad,
                Align::Right => line = line + &pad + &text,
            }
        }
        line.trim_end().to_owned()
    };
    let title = line(&|i| columns[i].0.to_owned());
    std::iter::once(title)
        .chain(rows.iter().map(|row| line(&|i| row.get(i).cloned().unwrap_or_default())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] =
        [Column("name", Align::Left, 0), Column("n", Align::Right, 1), Column("comment", Align::Left, 2)];

    fn rows() -> Vec<Vec<String>> {
        vec![vec!["a".into(), "1".into(), "µs".into()], vec!["longer".into(), "100".into(), String::new()]]
    }

    #[test]
    fn numbers_are_right_aligned_and_lines_have_no_trailing_space() {
        assert_eq!(render(&COLUMNS, &rows(), 80), ["name      n  comment", "a         1  µs", "longer  100"]);
    }

    #[test]
    fn narrow_terminals_lose_the_least_important_columns_but_never_the_first() {
        assert_eq!(render(&COLUMNS, &rows(), 12), ["name      n", "a         1", "longer  100"]);
        assert_eq!(render(&COLUMNS, &rows(), 3), ["name", "a", "longer"]);
    }

    #[test]
    fn a_column_empty_throughout_is_left_out() {
        let rows = vec![vec!["a".into(), String::new(), "x".into()]];
        assert_eq!(render(&COLUMNS, &rows, 80), ["name  comment", "a     x"]);
    }
}
