//! The diagnosis as a person reads it.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};

use super::Diagnosis;
use super::finding::{Finding, Severity, Undecided, many};
use super::words::words_in;
use crate::report::units;

/// Columns of the names before the parts of a finding.
const LABEL: usize = 10;

/// Writes findings, worst first, then what could not be decided.
///
/// # Errors
/// Those of `out`.
pub fn write_text(
    diagnosis: &Diagnosis,
    duration_ns: u64,
    width: usize,
    out: &mut impl Write,
) -> io::Result<()> {
    let Diagnosis { findings, open, rules, processes } = diagnosis;
    let looked = format!(
        "{} asked about {} over {}",
        many(*rules as u64, "rule"),
        if *processes == 1 { "1 process".to_owned() } else { format!("{processes} processes") },
        units::duration(duration_ns)
    );
    if findings.is_empty() {
        writeln!(out, "Nothing is wrong, as far as could be seen ({looked}).")?;
    } else {
        writeln!(out, "{}, the worst first ({looked}).", many(findings.len() as u64, "finding"))?;
    }
    for (i, finding) in findings.iter().enumerate() {
        writeln!(out)?;
        one(i + 1, finding, width, out)?;
    }
    if let Some(first) = findings.first() {
        glossary(findings, width, out)?;
        writeln!(out, "\nMore on each, and its thresholds: rdma-probe doctor --explain {}", first.id)?;
    }
    if !open.is_empty() {
        writeln!(out, "\nNot decided:")?;
    }
    for open in open {
        let verdict = match open.verdict {
            Undecided::NotEnoughData => "not enough data",
            Undecided::NotObservable => "not observable here",
        };
        let text =
            format!("{verdict}{}: {} ({})", of(&open.processes, *processes), open.why, open.rules.join(", "));
        for (i, line) in wrap(&text, width.saturating_sub(4)).into_iter().enumerate() {
            writeln!(out, "{}{line}", if i == 0 { "  " } else { "    " })?;
        }
    }
    Ok(())
}

/// Which processes, where it is not all of them: a rule may be undecided for another reason in each.
fn of(pids: &[u32], looked_at: usize) -> String {
    match pids {
        _ if pids.is_empty() || pids.len() >= looked_at => String::new(),
        [one] => format!(" in process {one}"),
        several => format!(" in {} of {looked_at} processes", several.len()),
    }
}

fn one(number: usize, finding: &Finding, width: usize, out: &mut impl Write) -> io::Result<()> {
    let style = match finding.severity {
        Severity::Problem => Style::new().bold().fg_color(Some(AnsiColor::Red.into())),
        Severity::Warning => Style::new().bold().fg_color(Some(AnsiColor::Yellow.into())),
        Severity::Note => Style::new().bold(),
    };
    let dim = Style::new().dimmed();
    writeln!(
        out,
        "{style}{number}. {} {}{style:#}: {} {dim}[{}]{dim:#}",
        finding.severity.mark(),
        finding.severity.word(),
        finding.title,
        finding.id
    )?;
    let mut part = |name: &str, text: &str| -> io::Result<()> {
        for (i, line) in wrap(text, width.saturating_sub(LABEL + 4)).into_iter().enumerate() {
            let label = if i == 0 { name } else { "" };
            writeln!(out, "   {dim}{label:<LABEL$}{dim:#} {line}")?;
        }
        Ok(())
    };
    part("who", &finding.who())?;
    for (name, text) in finding.parts() {
        part(name, &text)?;
    }
    if finding.workload.is_some() {
        part("proof", &format!("rdma-probe doctor --prove {} …", finding.id))?;
    }
    Ok(())
}

/// What the words in the findings mean, each once.
fn glossary(findings: &[Finding], width: usize, out: &mut impl Write) -> io::Result<()> {
    let text: Vec<String> = findings
        .iter()
        .flat_map(|finding| finding.parts().into_iter().map(|(_, text)| text).chain([finding.title.clone()]))
        .collect();
    let words: Vec<String> =
        words_in(&text.join(" ")).iter().map(|(word, meaning)| format!("{word}: {meaning}")).collect();
    if !words.is_empty() {
        writeln!(out)?;
        for line in wrap(&format!("Words. {}.", words.join("; ")), width) {
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

/// Breaks text at spaces; a word longer than a line stays whole.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    use unicode_width::UnicodeWidthStr as _;
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let Some(line) = lines.last_mut() else { break };
        if !line.is_empty() && line.width() + 1 + word.width() > width.max(20) {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_holds_for_some_processes_says_for_which() {
        assert_eq!(of(&[7, 8], 2) + &of(&[], 2) + &of(&[7], 1), "");
        assert_eq!(of(&[7], 2), " in process 7");
        assert_eq!(of(&[7, 8], 3), " in 2 of 3 processes");
    }

    #[test]
    fn lines_break_at_spaces_and_long_words_stay_whole() {
        assert_eq!(wrap("a bb", 20), ["a bb"]);
        assert_eq!(wrap("aaaaaaaaaaaa bbbbbbbbbbbb", 20), ["aaaaaaaaaaaa", "bbbbbbbbbbbb"]);
        assert_eq!(wrap("", 20), [""]);
        assert_eq!(wrap("0123456789012345678901234567890 x", 20), ["0123456789012345678901234567890", "x"]);
    }
}
