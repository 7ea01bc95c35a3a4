//! The time window of the charts.

const SECOND: u64 = 1_000_000_000;

/// Windows to choose from, ns.
const STEPS: [u64; 8] = [
    10 * SECOND,
    30 * SECOND,
    60 * SECOND,
    120 * SECOND,
    300 * SECOND,
    900 * SECOND,
    3600 * SECOND,
    4 * 3600 * SECOND,
];

/// The chosen window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window(usize);

impl Default for Window {
    fn default() -> Self {
        Self(2)
    }
}

impl Window {
    /// Its length.
    pub fn ns(self) -> u64 {
        STEPS[self.0]
    }

    /// The next longer one; the longest stays.
    pub fn wider(self) -> Self {
        Self((self.0 + 1).min(STEPS.len() - 1))
    }

    /// The next shorter one; the shortest stays.
    pub fn narrower(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// The shortest window that shows all of a recording of `duration_ns`, so that a short trace fills its charts.
    pub fn fitting(duration_ns: u64) -> Self {
        Self(STEPS.iter().position(|step| *step >= duration_ns).unwrap_or(STEPS.len() - 1))
    }

    /// Its length in words.
    pub fn title(self) -> &'static str {
        ["10 s", "30 s", "1 min", "2 min", "5 min", "15 min", "1 h", "4 h"][self.0]
    }
}
