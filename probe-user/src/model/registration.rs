//! The memory regions of one process: which are live, what they cost, which were registered again and again.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::sample::RegistrationSplit;

use super::page_cost::{PageCost, pages_of};
use super::recent::RecentRanges;
use super::room::{Population, Room};

/// `IBV_ACCESS_ON_DEMAND`: nothing is pinned, so pages cost nothing at registration.
const ACCESS_ON_DEMAND: u32 = 1 << 6;

/// Deregistered regions that are remembered, per process: what a key that is refused may have named.
const ENDED_KEPT: usize = 64;

/// A region as its registration described it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Region {
    /// Protection domain, the process's own pointer.
    pub pd: u64,
    /// First byte.
    pub addr: u64,
    /// Length.
    pub length_bytes: u64,
    /// `IBV_ACCESS_*` bits.
    pub access: u32,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
    /// When its registration began.
    pub since_ns: u64,
    /// Number of the place in the program that registered it, see [`super::Sites::get`].
    pub site: Option<usize>,
}

/// A region that was deregistered.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EndedRegion {
    /// What it was.
    pub region: Region,
    /// When its deregistration began.
    pub until_ns: u64,
    /// Number of the place in the program that deregistered it.
    pub site: Option<usize>,
}

/// Registrations of one power of two of length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SizeClass {
    /// Successful registrations.
    pub count: u64,
    /// Bytes registered.
    pub bytes: u64,
    /// Time they took.
    pub total_ns: u64,
    /// The longest of them.
    pub longest_ns: u64,
}

/// Where the time of registrations went: each part with the time and number of the registrations that show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Part {
    /// Time in this part.
    pub part_ns: u64,
    /// Whole duration of the same registrations.
    pub whole_ns: u64,
    /// How many they were.
    pub registrations: u64,
}

impl Part {
    fn add(&mut self, part_ns: Option<u64>, whole_ns: u64) {
        if let Some(part_ns) = part_ns {
            self.part_ns = self.part_ns.saturating_add(part_ns);
            self.whole_ns = self.whole_ns.saturating_add(whole_ns);
            self.registrations += 1;
        }
    }

    /// Share of the whole, 0–1; `None` when no registration shows this part.
    pub fn share(&self) -> Option<f64> {
        (self.whole_ns > 0).then(|| self.part_ns as f64 / self.whole_ns as f64)
    }
}

/// The parts of [`RegistrationSplit`], summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SplitTotals {
    /// In the kernel.
    pub kernel: Part,
    /// Pinning pages, page faults included.
    pub pin: Part,
    /// Mapping for the device.
    pub dma_map: Part,
    /// The driver's own work.
    pub driver: Part,
    /// Page faults taken while pinning.
    pub page_faults: u64,
    /// Registrations that tell their page faults.
    pub page_faults_known: u64,
}

/// The range registered most often at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Alike {
    /// Its first byte.
    pub addr: u64,
    /// Its length.
    pub length_bytes: u64,
    /// Regions of it that lived at the same time.
    pub count: u64,
}

/// Counts live regions by what they have in common.
#[derive(Debug, Clone, PartialEq, Default)]
struct Counted(HashMap<(u64, u64, u64), u64>);

impl Counted {
    fn born(&mut self, group: u64, region: &Region, most: &mut Alike) {
        let count = self.0.entry((group, region.addr, region.length_bytes)).or_default();
        *count += 1;
        if *count > most.count {
            *most = Alike { addr: region.addr, length_bytes: region.length_bytes, count: *count };
        }
    }

    fn died(&mut self, group: u64, region: &Region) {
        let key = (group, region.addr, region.length_bytes);
        if let Some(count) = self.0.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&key);
            }
        }
    }
}

/// How far registrations ran at the same time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Overlap {
    /// Time during which at least one ran, as far as their returns come in order.
    pub busy_ns: u64,
    /// Their durations added up.
    pub total_ns: u64,
    /// Threads that registered, the first 64.
    pub threads: BTreeSet<u32>,
    until_ns: u64,
}

impl Overlap {
    pub(super) fn ran(&mut self, t_ns: u64, duration_ns: u64, tid: u32) {
        let end = t_ns.saturating_add(duration_ns);
        self.busy_ns = self.busy_ns.saturating_add(end.saturating_sub(t_ns.max(self.until_ns)));
        self.until_ns = self.until_ns.max(end);
        self.total_ns = self.total_ns.saturating_add(duration_ns);
        if self.threads.len() < 64 {
            self.threads.insert(tid);
        }
    }

    /// How many ran at the same time on average while any did; 1 when one after the other.
    pub fn parallel(&self) -> f64 {
        if self.busy_ns == 0 { 1.0 } else { self.total_ns as f64 / self.busy_ns as f64 }
    }
}

/// All regions of one process.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Registrations {
    regions: HashMap<u64, Region>,
    /// Live regions beyond what is remembered, or whose details could not be read.
    nameless: u64,
    /// How many are and were alive.
    pub population: Population,
    /// How many bytes are and were registered at once.
    pub bytes: Population64,
    /// Regions deregistered that no event had announced: older than the recording, or their event was lost.
    pub unknown_deregistered: u64,
    /// Regions found at the address of one still thought alive: its deregistration was not seen.
    pub replaced: u64,
    /// Registrations by power of two of their length (key `n`: 2ⁿ⁻¹ < length ≤ 2ⁿ).
    pub sizes: BTreeMap<u8, SizeClass>,
    /// Where the time went.
    pub split: SplitTotals,
    /// Pages of the successful, pinning registrations.
    pub pages: u64,
    /// Time those took.
    pub pages_ns: u64,
    /// Cost by number of pages, all pinning registrations.
    pub page_cost: PageCost,
    /// The same, of registrations that took no page fault: memory that was there already.
    pub page_cost_resident: PageCost,
    /// Registrations with on-demand paging, which pin nothing.
    pub on_demand: u64,
    /// Registrations of a range that had been registered before.
    pub repeated: u64,
    /// Ranges seen, for [`Registrations::repeated`].
    pub ranges: RecentRanges,
    /// The range with most live regions at the same time, in any protection domain.
    pub most_alike: Alike,
    /// The same within one protection domain.
    pub most_alike_in_a_domain: Alike,
    /// How far registrations ran at the same time.
    pub overlap: Overlap,
    ended: VecDeque<EndedRegion>,
    alike: Counted,
    alike_in_a_domain: Counted,
}

/// A sum of sizes now and at its highest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Population64 {
    /// Bytes now.
    pub live: u64,
    /// Most bytes at once.
    pub peak: u64,
}

impl Population64 {
    fn grow(&mut self, by: u64) {
        self.live = self.live.saturating_add(by);
        self.peak = self.peak.max(self.live);
    }

    fn shrink(&mut self, by: u64) {
        self.live = self.live.saturating_sub(by);
    }
}

impl Registrations {
    /// Takes in a successful registration. `mr` is 0 where the object could not be read.
    pub(super) fn registered(
        &mut self,
        mr: u64,
        region: Region,
        split: &RegistrationSplit,
        duration_ns: u64,
        room: &mut Room,
    ) {
        let length = region.length_bytes;
        let class = self.sizes.entry(class_of(length)).or_default();
        class.count += 1;
        class.bytes = class.bytes.saturating_add(length);
        class.total_ns = class.total_ns.saturating_add(duration_ns);
        class.longest_ns = class.longest_ns.max(duration_ns);

        self.split.kernel.add(split.kernel_ns, duration_ns);
        self.split.pin.add(split.pin_ns, duration_ns);
        self.split.dma_map.add(split.dma_map_ns, duration_ns);
        self.split.driver.add(split.driver_ns, duration_ns);
        if let Some(faults) = split.page_faults {
            self.split.page_faults = self.split.page_faults.saturating_add(faults.into());
            self.split.page_faults_known += 1;
        }

        if region.access & ACCESS_ON_DEMAND != 0 {
            self.on_demand += 1;
        } else {
            let pages = pages_of(region.addr, length);
            self.pages = self.pages.saturating_add(pages);
            self.pages_ns = self.pages_ns.saturating_add(duration_ns);
            self.page_cost.record(pages, duration_ns);
            if split.page_faults == Some(0) {
                self.page_cost_resident.record(pages, duration_ns);
            }
        }
        if self.ranges.note((region.addr, length)) > 0 {
            self.repeated += 1;
        }
        self.add(mr, region, room);
    }

    /// Takes in a successful change of a region (`ibv_rereg_mr`); what it leaves at 0 stays as it was.
    pub(super) fn changed(&mut self, mr: u64, new: &Region) {
        let Some(mut region) = self.regions.remove(&mr) else { return };
        self.uncount(&region);
        if new.length_bytes > 0 {
            self.bytes.shrink(region.length_bytes);
            self.bytes.grow(new.length_bytes);
            (region.addr, region.length_bytes) = (new.addr, new.length_bytes);
        }
        if new.pd > 0 {
            region.pd = new.pd;
        }
        if new.lkey > 0 {
            (region.lkey, region.rkey) = (new.lkey, new.rkey);
        }
        self.count(&region);
        self.regions.insert(mr, region);
    }

    /// Takes in a successful deregistration.
    pub(super) fn deregistered(&mut self, mr: u64, until_ns: u64, site: Option<usize>, room: &mut Room) {
        if let Some(region) = self.regions.remove(&mr) {
            // Its place in the room goes over to its memory.
            if self.ended.len() >= ENDED_KEPT && self.ended.pop_front().is_some() {
                room.give(1);
            }
            self.ended.push_back(EndedRegion { region: region.clone(), until_ns, site });
            self.uncount(&region);
            self.bytes.shrink(region.length_bytes);
            self.population.died();
        } else if self.nameless > 0 {
            self.nameless -= 1;
            self.population.died();
        } else {
            self.unknown_deregistered += 1;
        }
    }

    /// The process's address space is gone (exec): so are its regions.
    pub(super) fn all_gone(&mut self, room: &mut Room) {
        room.give(self.regions.len() + self.ended.len());
        self.regions.clear();
        self.ended.clear();
        (self.alike, self.alike_in_a_domain) = Default::default();
        self.nameless = 0;
        self.population.live = 0;
        self.bytes.live = 0;
    }

    /// Begins the window of interest: regions stay alive, totals begin at nothing.
    pub(super) fn start_window(&mut self) {
        self.population.start_window();
        self.bytes.peak = self.bytes.live;
        *self = Self {
            regions: std::mem::take(&mut self.regions),
            nameless: self.nameless,
            population: self.population,
            bytes: self.bytes,
            ranges: std::mem::take(&mut self.ranges),
            ended: std::mem::take(&mut self.ended),
            alike: std::mem::take(&mut self.alike),
            alike_in_a_domain: std::mem::take(&mut self.alike_in_a_domain),
            ..Self::default()
        };
    }

    /// Live regions by their `ibv_mr` pointer, in no order.
    pub fn regions(&self) -> &HashMap<u64, Region> {
        &self.regions
    }

    /// Deregistered regions, the last 64, in the order of their end.
    pub fn ended(&self) -> impl ExactSizeIterator<Item = &EndedRegion> + DoubleEndedIterator {
        self.ended.iter()
    }

    fn count(&mut self, region: &Region) {
        self.alike.born(0, region, &mut self.most_alike);
        self.alike_in_a_domain.born(region.pd, region, &mut self.most_alike_in_a_domain);
    }

    fn uncount(&mut self, region: &Region) {
        self.alike.died(0, region);
        self.alike_in_a_domain.died(region.pd, region);
    }

    fn add(&mut self, mr: u64, region: Region, room: &mut Room) {
        let length = region.length_bytes;
        if mr > 0
            && let Some(old) = self.regions.remove(&mr)
        {
            self.uncount(&old);
            self.count(&region);
            self.bytes.shrink(old.length_bytes);
            self.bytes.grow(length);
            self.regions.insert(mr, region);
            self.replaced += 1;
            return;
        }
        self.population.born();
        if mr > 0 && room.take() {
            self.bytes.grow(length);
            self.count(&region);
            self.regions.insert(mr, region);
        } else {
            self.nameless += 1;
        }
    }
}

/// The power of two that holds `length`: the smallest `n` with `length <= 2^n`.
fn class_of(length: u64) -> u8 {
    length.checked_next_power_of_two().map_or(64, |p| p.ilog2() as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register(r: &mut Registrations, room: &mut Room, mr: u64, addr: u64, length_bytes: u64) {
        let region = Region { addr, length_bytes, ..Region::default() };
        r.registered(mr, region, &RegistrationSplit::default(), 1000, room);
    }

    #[test]
    fn live_and_peak_follow_registrations_and_deregistrations() {
        let (mut r, mut room) = (Registrations::default(), Room::default());
        register(&mut r, &mut room, 1, 0, 4096);
        register(&mut r, &mut room, 2, 8192, 4096);
        r.deregistered(1, 0, None, &mut room);
        register(&mut r, &mut room, 1, 0, 100);
        r.deregistered(2, 0, None, &mut room);
        assert_eq!(r.population, Population { live: 1, peak: 2 });
        assert_eq!(r.bytes, Population64 { live: 100, peak: 8192 });
        let mut taken = Room::default();
        (0..3).for_each(|_| assert!(taken.take(), "one lives and two are remembered"));
        assert_eq!(room, taken);
        assert_eq!(r.ended().map(|ended| ended.region.addr).collect::<Vec<_>>(), [0, 8192]);
    }

    #[test]
    fn a_region_older_than_the_recording_does_not_make_live_negative() {
        let (mut r, mut room) = (Registrations::default(), Room::default());
        r.deregistered(77, 0, None, &mut room);
        assert_eq!((r.population.live, r.unknown_deregistered), (0, 1));
        register(&mut r, &mut room, 1, 0, 4096);
        assert_eq!(r.population.live, 1);
    }

    #[test]
    fn a_reused_pointer_means_a_missed_deregistration_and_counts_once() {
        let (mut r, mut room) = (Registrations::default(), Room::default());
        register(&mut r, &mut room, 1, 0, 4096);
        register(&mut r, &mut room, 1, 0, 8192);
        assert_eq!((r.population.live, r.bytes.live, r.replaced), (1, 8192, 1));
    }

    #[test]
    fn the_same_range_again_is_a_repetition_even_after_it_was_deregistered() {
        let (mut r, mut room) = (Registrations::default(), Room::default());
        for mr in 1..=5 {
            register(&mut r, &mut room, mr, 4096, 4096);
            r.deregistered(mr, 0, None, &mut room);
        }
        register(&mut r, &mut room, 9, 4096, 8192);
        assert_eq!(r.repeated, 4);
        assert_eq!(r.ranges.most_used(1), [(4096, 4096, 5)]);
    }

    #[test]
    fn beyond_the_room_regions_are_counted_but_not_described() {
        let mut room = Room::default();
        while room.take() {}
        let mut r = Registrations::default();
        register(&mut r, &mut room, 1, 0, 4096);
        register(&mut r, &mut room, 2, 0, 4096);
        r.deregistered(1, 0, None, &mut room);
        assert_eq!((r.population, r.regions().len()), (Population { live: 1, peak: 2 }, 0));
    }

    #[test]
    fn the_most_regions_of_one_range_at_the_same_time_are_remembered() {
        let (mut r, mut room) = (Registrations::default(), Room::default());
        for mr in 1..=3 {
            register(&mut r, &mut room, mr, 4096, 4096);
        }
        r.deregistered(3, 0, None, &mut room);
        register(&mut r, &mut room, 4, 8192, 4096);
        register(&mut r, &mut room, 4, 4096, 4096);
        assert_eq!(r.most_alike, Alike { addr: 4096, length_bytes: 4096, count: 3 });
        assert_eq!(r.most_alike_in_a_domain.count, 3);
    }

    #[test]
    fn overlapping_registrations_are_told_from_those_in_a_row() {
        let mut row = Overlap::default();
        row.ran(0, 10, 1);
        row.ran(10, 10, 1);
        assert_eq!((row.parallel(), row.threads.len()), (1.0, 1));
        let mut together = Overlap::default();
        together.ran(0, 10, 1);
        together.ran(0, 10, 2);
        assert_eq!((together.parallel(), together.threads.len()), (2.0, 2));
        assert_eq!(Overlap::default().parallel(), 1.0);
    }

    #[test]
    fn size_classes_hold_lengths_up_to_their_power_of_two() {
        for (length, class) in [(0, 0), (1, 0), (2, 1), (4096, 12), (4097, 13), (1 << 63, 63), (u64::MAX, 64)]
        {
            assert_eq!(class_of(length), class, "{length}");
        }
    }

    #[test]
    fn an_implicit_on_demand_region_adds_no_pages() {
        let (mut r, mut room) = (Registrations::default(), Room::default());
        let region = Region { length_bytes: u64::MAX, access: ACCESS_ON_DEMAND, ..Region::default() };
        r.registered(1, region, &RegistrationSplit::default(), 1000, &mut room);
        assert_eq!((r.on_demand, r.pages, r.page_cost.fit()), (1, 0, None));
    }
}
