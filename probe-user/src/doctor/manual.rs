//! The manual, generated from the rules themselves.

use std::fmt::Write as _;

use super::coverage::COVERED;
use super::rule::{Rule, Shown, Threshold};
use super::rules::RULES;
use super::text::wrap;
use super::words::words_of;

/// Width of generated text.
const WIDTH: usize = 118;

/// The page of one rule, in Markdown.
pub fn page(rule: &Rule) -> String {
    let mut page = String::new();
    let _ = writeln!(page, "## {}\n\n**{}**\n", rule.id, capital(rule.title));
    let mut item = |name: &str, text: &str| {
        if text.is_empty() {
            return;
        }
        for (i, line) in wrap(&format!("- **{name}.** {text}"), WIDTH).iter().enumerate() {
            let _ = writeln!(page, "{}{line}", if i == 0 { "" } else { "  " });
        }
    };
    item("Why", rule.cause);
    item("What to do", rule.remedy);
    item("Unless", rule.unless);
    item("Looks at", &format!("{} ({}).", rule.looks_at, rule.plane.words()));
    let words: Vec<String> =
        words_of(rule).iter().map(|(word, meaning)| format!("*{word}*: {meaning}")).collect();
    if !words.is_empty() {
        item("Words", &format!("{}.", words.join("; ")));
    }
    if let Some(workload) = rule.workload {
        item("Proof", &format!("`rdma-workload compare {workload}` shows the slow and the fast way."));
    }
    match rule.shown {
        Shown::By(name) => {
            item("Shown by", &format!("`rdma-workload sick {name}`, and by its twin with `--healthy` not."));
        }
        Shown::Synthetic { why } => {
            item("Synthetic", &format!("tested on made-up observations alone: {why}."));
        }
    }
    let met: Vec<String> = rule.met.iter().map(|issue| issue_link(issue)).collect();
    item("Met in", &met.join(", "));
    item("Read", &rule.links.iter().map(|link| format!("<{link}>")).collect::<Vec<_>>().join(", "));
    if !rule.thresholds.is_empty() {
        let _ = writeln!(page, "\n| threshold | default | why |\n|---|---|---|");
        for Threshold { key, value, unit, why } in rule.thresholds {
            let _ = writeln!(page, "| `{key}` | {value} {unit} | {why} |");
        }
    }
    page
}

/// `owner/name#1` as a link.
fn issue_link(issue: &str) -> String {
    match issue.split_once('#') {
        Some((project, number)) => {
            format!("[{issue}](https://github.com/{project}/issues/{number})")
        }
        None => issue.to_owned(),
    }
}

/// Every page, with a table of contents: `docs/rules.md`.
pub fn all_pages() -> String {
    let mut text = format!(
        "# Rules\n\n\
         What `rdma-probe doctor` and the dashboard's Findings page judge by: {} rules. This page is generated from the\n\
         rules themselves; `rdma-probe doctor --explain ID` prints one. A threshold is changed in a TOML file:\n\n\
         ```toml\n\
         allow = [\"many-qps\"]          # say nothing of these\n\n\
         [registration-repeated]\n\
         min_registrations = 1000\n\
         ```\n\n\
         Findings come with a severity (*note*: worth knowing; *warning*: costs something, or will; *problem*: costs much\n\
         now, or fails) and with a confidence. Counts that were sampled lower the confidence by a step. A rule that could\n\
         not see what it needs says so instead of guessing.\n\n\
         | rule | says | looks at | shown by |\n|---|---|---|---|\n",
        RULES.len()
    );
    for rule in RULES {
        let shown = match rule.shown {
            Shown::By(name) => format!("`sick {name}`"),
            Shown::Synthetic { .. } => "*synthetic*".to_owned(),
        };
        let id = rule.id;
        let _ = writeln!(text, "| [`{id}`](#{id}) | {} | {} | {shown} |", rule.title, rule.plane.words());
    }
    text.push_str(&covered());
    for rule in RULES {
        let _ = write!(text, "\n{}", page(rule));
    }
    text
}

/// What goes wrong, which rules tell it, and what shows each: a program of the gallery or made-up observations.
fn covered() -> String {
    let mut text = String::from(
        "\n## What is covered\n\n\
         `sick`: a program of [the gallery](gallery.md) shows it. *Made*: no machine at hand can produce it; it is tested on\n\
         made-up observations.\n\n\
         | what goes wrong | told by |\n|---|---|\n",
    );
    for (what, ids) in COVERED {
        let told = ids.iter().filter_map(|id| RULES.iter().find(|rule| rule.id == *id)).map(|rule| {
            let shown = if matches!(rule.shown, Shown::By(_)) { "sick" } else { "*made*" };
            format!("[`{0}`](#{0}) ({shown})", rule.id)
        });
        let _ = writeln!(text, "| {what} | {} |", told.collect::<Vec<_>>().join(", "));
    }
    text
}

/// The text with a capital at its beginning.
fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_says_what_why_and_what_to_do_and_is_named_once() {
        let mut ids: Vec<&str> = RULES.iter().map(|rule| rule.id).collect();
        ids.sort_unstable();
        let all = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), all);
        for rule in RULES {
            for text in [rule.title, rule.looks_at, rule.cause, rule.remedy] {
                assert!(!text.is_empty(), "{}", rule.id);
            }
            assert!(rule.cause.ends_with('.') && rule.remedy.ends_with('.'), "{}", rule.id);
            assert!(rule.unless.is_empty() || rule.unless.ends_with('.'), "{}", rule.id);
            assert!(!rule.links.is_empty() || !rule.met.is_empty(), "{} cites nothing", rule.id);
            assert!(rule.thresholds.iter().all(|t| !t.why.is_empty() && !t.unit.is_empty()), "{}", rule.id);
        }
    }

    #[test]
    fn issues_become_links() {
        assert_eq!(issue_link("a/b#3"), "[a/b#3](https://github.com/a/b/issues/3)");
    }
}
