//! A bound on what is remembered, whatever a trace contains.

/// Live objects (MRs, QPs, CQs, …) whose details are kept, over all processes. A leak of a million regions is still
/// told in full; a file made to exhaust memory is not.
const OBJECTS: usize = 2_000_000;

/// Bytes kept of any name or path; longer ones are cut.
const NAME_BYTES: usize = 4096;

/// How many more objects may be remembered.
#[derive(Debug, Clone, PartialEq)]
pub struct Room(usize);

impl Default for Room {
    fn default() -> Self {
        Self(OBJECTS)
    }
}

impl Room {
    /// Takes the place of one object; false when there is none.
    pub fn take(&mut self) -> bool {
        let free = self.0 > 0;
        self.0 = self.0.saturating_sub(1);
        free
    }

    /// Gives back the places of `n` objects.
    pub fn give(&mut self, n: usize) {
        self.0 = self.0.saturating_add(n);
    }
}

/// A name of bounded length.
pub fn clipped(name: &str) -> String {
    let mut end = name.len().min(NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name[..end].to_owned()
}

/// Counts objects alive and the most that ever were at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Population {
    /// Alive now, as far as the events tell.
    pub live: u64,
    /// Most alive at once.
    pub peak: u64,
}

impl Population {
    pub(super) fn born(&mut self) {
        self.live += 1;
        self.peak = self.peak.max(self.live);
    }

    pub(super) fn died(&mut self) {
        self.live = self.live.saturating_sub(1);
    }

    pub(super) fn start_window(&mut self) {
        self.peak = self.live;
    }
}
