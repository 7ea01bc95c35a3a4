//! Calls by the place in the program they come from, and what each place made that still lives: where leaks are.

use std::collections::HashMap;

use crate::sample::{Call, Event};

use super::room::Room;

/// Places told apart, per process; calls from further ones are summed up as of an unknown place.
const MAX_SITES: usize = 4096;

/// Frames kept of a stack.
const MAX_FRAMES: usize = 64;

/// One kind of call from one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// Which call.
    pub call: Call,
    /// Return addresses, innermost first; empty where the place is unknown.
    pub stack: Vec<u64>,
    /// Calls, failed ones included.
    pub count: u64,
    /// Those that failed.
    pub failed: u64,
    /// Bytes of those that succeeded.
    pub bytes: u64,
    /// Time inside them.
    pub total_ns: u64,
    /// Objects made here that live.
    pub live: u64,
    /// Bytes of the regions among them.
    pub live_bytes: u64,
}

/// What an object is: pointers of different kinds may be equal over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Mr,
    Qp,
    Cq,
}

/// All places of one process.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sites {
    sites: Vec<Site>,
    index: HashMap<(Call, Vec<u64>), usize>,
    /// Where each live object was made, and its bytes.
    made: HashMap<(Kind, u64), (usize, u64)>,
}

impl Sites {
    /// Takes in a call; `object` is what it made or destroyed, `bytes` its length. Returns the number of the place.
    pub(super) fn event(&mut self, event: &Event, object: u64, bytes: u64, room: &mut Room) -> Option<usize> {
        let mut number = None;
        let failed = event.errno != 0;
        let (kind, makes) = match event.call {
            Call::RegMr | Call::RegDmabufMr => (Some(Kind::Mr), true),
            Call::CreateQp => (Some(Kind::Qp), true),
            Call::CreateCq => (Some(Kind::Cq), true),
            Call::DeregMr => (Some(Kind::Mr), false),
            Call::DestroyQp => (Some(Kind::Qp), false),
            Call::DestroyCq => (Some(Kind::Cq), false),
            _ => (None, false),
        };
        if makes || failed || !event.stack.is_empty() {
            let at = self.place(event.call, &event.stack);
            number = Some(at);
            let site = &mut self.sites[at];
            site.count += 1;
            site.total_ns = site.total_ns.saturating_add(event.duration_ns);
            if failed {
                site.failed += 1;
            } else {
                site.bytes = site.bytes.saturating_add(bytes);
                if let (Some(kind), true) = (kind, makes) {
                    self.born(kind, object, at, bytes, room);
                }
            }
        }
        if let (Some(kind), false, false) = (kind, makes, failed) {
            self.died(kind, object, room);
        }
        number
    }

    fn place(&mut self, call: Call, stack: &[u64]) -> usize {
        let stack = &stack[..stack.len().min(MAX_FRAMES)];
        if let Some(at) = self.index.get(&(call, stack.to_vec())) {
            return *at;
        }
        let stack = if self.sites.len() < MAX_SITES { stack.to_vec() } else { Vec::new() };
        if let Some(at) = self.index.get(&(call, stack.clone())) {
            return *at;
        }
        let at = self.sites.len();
        self.sites.push(Site {
            call,
            stack: stack.clone(),
            count: 0,
            failed: 0,
            bytes: 0,
            total_ns: 0,
            live: 0,
            live_bytes: 0,
        });
        self.index.insert((call, stack), at);
        at
    }

    fn born(&mut self, kind: Kind, object: u64, at: usize, bytes: u64, room: &mut Room) {
        // Its pointer in use again: the end of what was there before was not seen.
        self.died(kind, object, room);
        if room.take() {
            self.made.insert((kind, object), (at, bytes));
            self.sites[at].live += 1;
            self.sites[at].live_bytes = self.sites[at].live_bytes.saturating_add(bytes);
        }
    }

    fn died(&mut self, kind: Kind, object: u64, room: &mut Room) {
        if let Some((at, bytes)) = self.made.remove(&(kind, object)) {
            room.give(1);
            let site = &mut self.sites[at];
            site.live = site.live.saturating_sub(1);
            site.live_bytes = site.live_bytes.saturating_sub(bytes);
        }
    }

    /// The process's address space is gone.
    pub(super) fn all_gone(&mut self, room: &mut Room) {
        room.give(self.made.len());
        self.made.clear();
        for site in &mut self.sites {
            (site.live, site.live_bytes) = (0, 0);
        }
    }

    /// Begins the window of interest: what lives stays, totals begin at nothing.
    pub(super) fn start_window(&mut self) {
        for site in &mut self.sites {
            (site.count, site.failed, site.bytes, site.total_ns) = (0, 0, 0, 0);
        }
    }

    /// Every place that made a call or has something alive.
    pub fn iter(&self) -> impl Iterator<Item = &Site> {
        self.numbered().map(|(_, site)| site)
    }

    /// The same with the number that a place keeps for as long as its process is told of.
    pub fn numbered(&self) -> impl Iterator<Item = (usize, &Site)> {
        self.sites.iter().enumerate().filter(|(_, site)| site.count > 0 || site.live > 0)
    }

    /// The place of that number.
    pub fn get(&self, number: usize) -> Option<&Site> {
        self.sites.get(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Detail, ProcessId};

    fn event(call: Call, stack: &[u64], errno: i32) -> Event {
        Event {
            t_ns: 1,
            duration_ns: 10,
            id: ProcessId::default(),
            tid: 1,
            call,
            errno,
            detail: Detail::None,
            stack: stack.to_vec(),
        }
    }

    #[test]
    fn a_place_that_registers_without_deregistering_is_left_with_what_lives() {
        let (mut sites, mut room) = (Sites::default(), Room::default());
        for object in 1..=3 {
            sites.event(&event(Call::RegMr, &[1, 2], 0), object, 4096, &mut room);
            sites.event(&event(Call::RegMr, &[7], 0), object + 100, 64, &mut room);
        }
        sites.event(&event(Call::DeregMr, &[], 0), 2, 0, &mut room);
        for object in 101..=103 {
            sites.event(&event(Call::DeregMr, &[], 0), object, 0, &mut room);
        }
        let all: Vec<_> = sites.iter().collect();
        assert_eq!((all[0].count, all[0].live, all[0].live_bytes), (3, 2, 8192));
        assert_eq!((all[1].count, all[1].live, all[1].live_bytes), (3, 0, 0));
    }

    #[test]
    fn failures_count_without_leaving_anything_alive() {
        let (mut sites, mut room) = (Sites::default(), Room::default());
        sites.event(&event(Call::RegMr, &[1], 12), 0, 4096, &mut room);
        let site = sites.iter().next().unwrap();
        assert_eq!((site.count, site.failed, site.bytes, site.live), (1, 1, 0, 0));
    }

    #[test]
    fn more_places_than_are_told_apart_are_one_unknown_place() {
        let (mut sites, mut room) = (Sites::default(), Room::default());
        for address in 0..MAX_SITES as u64 + 50 {
            sites.event(&event(Call::CreateQp, &[address + 1], 0), address + 1, 0, &mut room);
        }
        assert_eq!(sites.iter().map(|s| s.count).sum::<u64>(), MAX_SITES as u64 + 50);
        let unknown: Vec<_> = sites.iter().filter(|s| s.stack.is_empty()).collect();
        assert_eq!((unknown.len(), unknown[0].count, unknown[0].live), (1, 50, 50));
    }

    #[test]
    fn a_window_keeps_what_lives_and_forgets_what_was_counted() {
        let (mut sites, mut room) = (Sites::default(), Room::default());
        sites.event(&event(Call::RegMr, &[1], 0), 5, 4096, &mut room);
        sites.start_window();
        let site = sites.iter().next().unwrap();
        assert_eq!((site.count, site.live, site.live_bytes), (0, 1, 4096));
    }
}
