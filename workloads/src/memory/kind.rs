//! The kinds of memory a workload can be asked to use.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a buffer's pages come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryKind {
    /// Plain `malloc`, whatever alignment it gives.
    Malloc,
    /// Page-aligned 4 KiB pages, huge pages switched off for the range.
    #[value(alias = "4k")]
    Aligned,
    /// Transparent huge pages asked for with `madvise`.
    Thp,
    /// 2 MiB pages from the hugetlb pool.
    #[value(name = "huge-2m", alias = "2m")]
    #[serde(rename = "huge-2m")]
    Huge2M,
    /// 1 GiB pages from the hugetlb pool.
    #[value(name = "huge-1g", alias = "1g")]
    #[serde(rename = "huge-1g")]
    Huge1G,
}

impl MemoryKind {
    /// Page size asked for, in bytes.
    pub fn page_size(self) -> usize {
        match self {
            MemoryKind::Malloc | MemoryKind::Aligned => 4096,
            MemoryKind::Thp | MemoryKind::Huge2M => 2 << 20,
            MemoryKind::Huge1G => 1 << 30,
        }
    }

    /// The next best kind when this one cannot be had.
    pub fn fallback(self) -> Option<MemoryKind> {
        match self {
            MemoryKind::Huge1G => Some(MemoryKind::Huge2M),
            MemoryKind::Huge2M => Some(MemoryKind::Thp),
            MemoryKind::Thp => Some(MemoryKind::Aligned),
            MemoryKind::Aligned | MemoryKind::Malloc => None,
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemoryKind::Malloc => "malloc",
            MemoryKind::Aligned => "4 KiB pages",
            MemoryKind::Thp => "transparent huge pages",
            MemoryKind::Huge2M => "2 MiB huge pages",
            MemoryKind::Huge1G => "1 GiB huge pages",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_falls_back_to_ordinary_pages_in_the_end() {
        for start in MemoryKind::value_variants() {
            let mut kind = *start;
            let mut steps = 0;
            while let Some(next) = kind.fallback() {
                assert!(next.page_size() <= kind.page_size());
                kind = next;
                steps += 1;
            }
            assert!(steps < 4 && kind.page_size() == 4096);
        }
    }
}
