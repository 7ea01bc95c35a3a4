//! The kernel's pools of huge pages: how many are free, and a reservation that is given back.

use super::leftover::{self, Note};
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io};

static MAY_RESERVE: AtomicBool = AtomicBool::new(false);

/// Allows this process to add huge pages to the kernel's pools (`--reserve-hugepages`).
pub fn allow_reserving() {
    MAY_RESERVE.store(true, Ordering::Relaxed);
}

/// Whether pages may be added to the kernel's pools.
pub(super) fn may_reserve() -> bool {
    MAY_RESERVE.load(Ordering::Relaxed)
}

pub(super) const ROOT: &str = "/sys/kernel/mm/hugepages";

/// One pool, of one page size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Page size in bytes.
    pub page_size: u64,
    /// Pages in the pool.
    pub total: u64,
    /// Pages neither used nor promised to a mapping.
    pub free: u64,
    path: PathBuf,
}

impl Pool {
    /// Reads the pool of that page size; `None` where the kernel or CPU has no such pages.
    pub fn of(page_size: u64) -> Option<Pool> {
        let path = Path::new(ROOT).join(format!("hugepages-{}kB", page_size / 1024));
        let total = read(&path, "nr_hugepages").ok()?;
        let free = read(&path, "free_hugepages").ok()?;
        let promised = read(&path, "resv_hugepages").unwrap_or(0);
        Some(Pool { page_size, total, free: free.saturating_sub(promised), path })
    }
}

/// All pools of this machine, smallest page first.
pub fn pools() -> Vec<Pool> {
    let Ok(entries) = fs::read_dir(ROOT) else { return Vec::new() };
    let sizes = entries.filter_map(|entry| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok()
    });
    let mut pools: Vec<Pool> = sizes.filter_map(|kilobytes| Pool::of(kilobytes.checked_mul(1024)?)).collect();
    pools.sort_by_key(|pool| pool.page_size);
    pools
}

fn read(pool: &Path, file: &str) -> io::Result<u64> {
    let text = fs::read_to_string(pool.join(file))?;
    text.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

/// Pages to add so that `needed` are free.
fn shortage(free: u64, needed: u64) -> u64 {
    needed.saturating_sub(free)
}

/// New size of a pool when `added` pages are given back; others may have resized it meanwhile.
fn given_back(current: u64, added: u64) -> u64 {
    current.saturating_sub(added)
}

/// Pages added to a pool for this run, taken out again when dropped.
#[derive(Debug)]
pub struct Reservation {
    pool: PathBuf,
    added: u64,
    /// Goes after the pages have been given back.
    note: Option<Note>,
}

impl Reservation {
    /// Makes sure `needed` pages of that size are free, adding what is missing.
    pub fn make(page_size: u64, needed: u64) -> Result<Reservation> {
        let Some(pool) = Pool::of(page_size) else {
            bail!("this machine has no {} huge pages", size_name(page_size));
        };
        let missing = shortage(pool.free, needed);
        let mut reservation = Reservation { pool: pool.path.clone(), added: 0, note: None };
        if missing == 0 {
            return Ok(reservation);
        }
        // Written down before the pages are there: killed in between, a run leaves a note too many, not pages too many.
        reservation.note = Some(Note::write(&pool.path, missing)?);
        let file = pool.path.join("nr_hugepages");
        fs::write(&file, (pool.total + missing).to_string()).with_context(|| {
            format!("reserving {missing} huge pages through {} (needs root)", file.display())
        })?;
        // The kernel gives what it can find in one piece, and does not say when that is less than asked.
        let now = read(&pool.path, "nr_hugepages")?;
        reservation.added = now.saturating_sub(pool.total);
        if reservation.added < missing {
            bail!(
                "the kernel could free only {} of {missing} huge pages of {}; memory is too fragmented or too full \
                 (they are best reserved at boot: hugepagesz={} hugepages={needed})",
                reservation.added,
                size_name(page_size),
                size_name(page_size).replace(' ', "").replace("iB", ""),
            );
        }
        Ok(reservation)
    }

    /// Pages this reservation added.
    pub fn added(&self) -> u64 {
        self.added
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        give_back(&self.pool, self.added);
    }
}

fn give_back(pool: &Path, pages: u64) {
    if pages > 0
        && let Ok(current) = read(pool, "nr_hugepages")
    {
        // Nothing to do about a failure here: the pool's size is in plain sight for the administrator.
        let _ = fs::write(pool.join("nr_hugepages"), given_back(current, pages).to_string());
    }
}

/// Gives back what killed runs left in the pools; returns how many pages that were.
pub fn clean_up() -> u64 {
    let left = leftover::collect();
    left.iter().for_each(|left| give_back(&left.pool, left.pages));
    left.iter().map(|left| left.pages).sum()
}

fn size_name(bytes: u64) -> String {
    if bytes >= 1 << 30 { format!("{} GiB", bytes >> 30) } else { format!("{} MiB", bytes >> 20) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_pages_are_added() {
        assert_eq!(shortage(10, 4), 0);
        assert_eq!(shortage(3, 4), 1);
    }

    #[test]
    fn giving_back_keeps_what_others_added_and_never_goes_below_zero() {
        assert_eq!(given_back(12, 4), 8);
        assert_eq!(given_back(2, 4), 0);
    }

    #[test]
    fn an_unknown_page_size_has_no_pool() {
        assert_eq!(Pool::of(12_288), None);
        assert!(Reservation::make(12_288, 1).unwrap_err().to_string().contains("no 0 MiB huge pages"));
    }
}
