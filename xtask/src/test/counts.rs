//! Reading what cargo's test runner printed.

use std::iter::Sum;
use std::ops::Add;

/// Tests that were run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Succeeded.
    pub passed: u64,
    /// Failed.
    pub failed: u64,
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { passed: self.passed + other.passed, failed: self.failed + other.failed }
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Self::add)
    }
}

/// The sum over all lines `test result: ok. 3 passed; 1 failed; …`.
pub fn count(output: &str) -> Counts {
    output.lines().filter_map(result_line).sum()
}

fn result_line(line: &str) -> Option<Counts> {
    let rest = line.trim().strip_prefix("test result: ")?;
    let (_, numbers) = rest.split_once(". ")?;
    let number = |label: &str| {
        let part = numbers.split("; ").find_map(|part| part.trim().strip_suffix(label))?;
        part.trim().parse().ok()
    };
    Some(Counts { passed: number(" passed")?, failed: number(" failed")? })
}

/// What of a failed step's output is worth reading: without the tests that passed, and not more than `limit` lines.
pub fn telling(output: &str, limit: usize) -> Vec<&str> {
    let dull = |line: &&str| {
        let line = line.trim();
        line.is_empty()
            || (line.starts_with("test ") && (line.ends_with("... ok") || line.contains("... ignored")))
            || (line.starts_with("test result: ok"))
            || (line.starts_with("running ") && (line.ends_with(" tests") || line.ends_with(" test")))
            || ["Compiling ", "Checking ", "Running ", "Finished ", "Doc-tests "]
                .iter()
                .any(|w| line.starts_with(w))
    };
    let mut lines: Vec<&str> = output.lines().filter(|line| !dull(line)).collect();
    let over = lines.len().saturating_sub(limit);
    lines.drain(..over);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
running 2 tests
test a::works ... ok
test a::breaks ... FAILED

failures:

---- a::breaks stdout ----
left: 1

test result: FAILED. 1 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.00s
running 1 test
test b ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn results_of_several_binaries_are_added_up() {
        assert_eq!(count(OUTPUT), Counts { passed: 2, failed: 1 });
    }

    #[test]
    fn lines_that_only_look_like_results_do_not_count() {
        assert_eq!(count("test result: odd\nresult: ok. 1 passed; 0 failed\n"), Counts::default());
    }

    #[test]
    fn passed_tests_are_left_out_and_the_last_lines_kept() {
        let lines = telling(OUTPUT, 100);
        assert!(lines.contains(&"test a::breaks ... FAILED") && !lines.contains(&"test b ... ok"));
        assert_eq!(telling("1\n2\n3\n", 2), ["2", "3"]);
    }
}
