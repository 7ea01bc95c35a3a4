//! Notes of huge pages added to the kernel's pools, so that a run that was killed outright can be cleaned up after.

use anyhow::{Context as _, Result};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Where notes are kept: gone after a reboot, as the pages are.
const FOLDER: &str = "/run/rdma-workload";

/// A note on disk; taken away when dropped.
#[derive(Debug)]
pub struct Note(PathBuf);

impl Note {
    /// Writes down that this process has added `pages` pages to the pool in `pool`.
    pub fn write(pool: &Path, pages: u64) -> Result<Note> {
        Note::write_in(Path::new(FOLDER), pool, pages)
    }

    fn write_in(folder: &Path, pool: &Path, pages: u64) -> Result<Note> {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        let pid = std::process::id();
        // Several reservations of one process must not share a note.
        let serial = (0..u32::MAX).find_map(|serial| {
            let path = folder.join(format!("hugepages-{pid}-{serial}"));
            File::create_new(&path).ok().map(|file| (path, file))
        });
        let (path, mut file) = serial.with_context(|| format!("writing into {}", folder.display()))?;
        let note = Note(path);
        let start = started(pid).unwrap_or(0);
        writeln!(file, "{pid} {start} {pages} {}", pool.display())
            .context("writing down reserved huge pages")?;
        Ok(note)
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// What a dead process left in a pool.
#[derive(Debug, PartialEq, Eq)]
pub struct Left {
    /// Pages it had added.
    pub pages: u64,
    /// The pool's folder.
    pub pool: PathBuf,
}

/// Takes the notes of processes that are no more.
pub fn collect() -> Vec<Left> {
    collect_in(Path::new(FOLDER))
}

fn collect_in(folder: &Path) -> Vec<Left> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let text = fs::read_to_string(&path).ok()?;
            let (pid, start, left) = parse(&text)?;
            // The same number may be another process by now.
            if started(pid) == Some(start) {
                return None;
            }
            // Whoever removes the note gives the pages back: two runs starting together must not both do so.
            fs::remove_file(&path).ok()?;
            Some(left)
        })
        .collect()
}

/// `PID START PAGES POOL`; a note that is anything else is left alone.
fn parse(text: &str) -> Option<(u32, u64, Left)> {
    let mut fields = text.trim().splitn(4, ' ');
    let pid = fields.next()?.parse().ok()?;
    let start = fields.next()?.parse().ok()?;
    let pages = fields.next()?.parse().ok()?;
    let pool = PathBuf::from(fields.next()?);
    // The folder is root's, but a pool outside the kernel's own is nothing to write to.
    let kernels = pool.parent() == Some(Path::new(super::huge::ROOT)) && pool.file_name().is_some();
    kernels.then_some((pid, start, Left { pages, pool }))
}

/// Start time of a process in clock ticks since boot; `None` when there is no such process.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may contain anything, blanks and brackets included; it ends at the last bracket.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

    #[test]
    fn a_living_process_keeps_its_note_and_a_dead_ones_is_taken_once() {
        let folder = tempfile::tempdir().unwrap();
        let own = Note::write_in(folder.path(), Path::new(POOL), 3).unwrap();
        assert_eq!(collect_in(folder.path()), []);
        drop(own);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        fs::write(folder.path().join("hugepages-9-0"), format!("4194999 1 7 {POOL}\n")).unwrap();
        assert_eq!(collect_in(folder.path()), [Left { pages: 7, pool: POOL.into() }]);
        assert_eq!(collect_in(folder.path()), []);
    }

    #[test]
    fn a_reused_process_number_does_not_protect_a_dead_ones_pages() {
        let folder = tempfile::tempdir().unwrap();
        let pid = std::process::id();
        let start = started(pid).unwrap();
        fs::write(folder.path().join("hugepages-a"), format!("{pid} {} 5 {POOL}", start + 1)).unwrap();
        assert_eq!(collect_in(folder.path()).len(), 1);
    }

    #[test]
    fn notes_that_are_not_ours_are_left_alone() {
        for text in
            ["", "1 2 3", "x 1 2 /sys", "1 1 1 /etc/passwd", "1 1 1 /sys/kernel/mm/hugepages", "1 1 -1 /"]
        {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
