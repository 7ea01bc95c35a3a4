//! Places of one file that a program is attached to together.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Arc;

use probe_common::wire::function::Hit;

use super::point::Turn;
use crate::attach::{AttachError, FileEvent, Link, Pmu, attach_many};

/// A program, and where it goes.
#[derive(Debug, Clone)]
pub struct Group {
    /// When it is put in place.
    pub turn: Turn,
    /// The part of the functions it belongs to ([`probe_common::wire::part`]).
    pub part: usize,
    /// Its place among the programs at functions of a provider ([`probe_common::wire::function`]); `None` of one at sites of
    /// ours.
    pub function: Option<usize>,
    /// The program.
    pub program: Arc<OwnedFd>,
    /// How it is attached: with one link for all places, or place by place.
    pub way: Way,
    /// The file.
    pub file: Arc<File>,
    /// Offset and cookie of each place.
    pub places: Vec<(u64, u64)>,
    /// True for return probes.
    pub returns: bool,
}

/// How a program is attached.
#[derive(Debug, Clone)]
pub enum Way {
    /// With one link (Linux 6.6): put in place and taken away in one go.
    Many,
    /// By an event that stays and has the program: opened and closed without a wait.
    Standing(Arc<FileEvent>),
    /// With a link for each place.
    Each(Pmu),
}

/// A program, in place or not.
#[derive(Debug)]
pub struct Placed {
    /// Which, and where.
    pub group: Group,
    /// Its probes; none while it is not in place.
    pub links: Vec<Link>,
}

impl Placed {
    /// Puts it in place where it is not.
    ///
    /// # Errors
    /// As [`Group::attach`].
    pub fn put(&mut self) -> Result<(), AttachError> {
        if self.links.is_empty() {
            self.links = self.group.attach()?;
        }
        Ok(())
    }

    /// Whether anybody was ever hit by it.
    pub fn is_hit(&self, hit: &Hit) -> bool {
        self.group.function.is_none_or(|place| hit[place] != 0)
    }
}

impl Group {
    /// Puts the program in place, everywhere or nowhere.
    ///
    /// # Errors
    /// The kernel's answer about the first place that takes no probe.
    pub fn attach(&self) -> Result<Vec<Link>, AttachError> {
        // The file itself, whatever its path leads to by now.
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let program = self.program.as_fd();
        match &self.way {
            Way::Many => attach_many(program, &path, &self.places, self.returns).map(|link| vec![link]),
            Way::Standing(event) => event.open().map(|link| vec![link]),
            Way::Each(pmu) => self
                .places
                .iter()
                .map(|(offset, cookie)| pmu.attach_file(program, &path, *offset, self.returns, *cookie))
                .collect(),
        }
    }
}
