//! What a rule looks at: one process or the whole host, with what is looked up once for all rules.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use crate::model::{Model, ProcessModel, Qp, Site};
use crate::report::units;
use crate::sample::{Call, Device, Facts, Port, ProcessId};

use super::finding::{Cost, Evidence};
use super::rule::Threshold;
use super::settings::Settings;
use super::traffic::{ATOMICS, READS, Traffic, of_opcodes, share, spins_per_wr};

/// The calls that register memory.
pub const REGISTRATIONS: [Call; 2] = [Call::RegMr, Call::RegDmabufMr];

/// From where on a posting thread has time to spare.
pub const SPARE: Threshold = Threshold {
    key: "max_spins_per_wr",
    value: 0.5,
    unit: "empty polls per work request, beyond one for each call to post",
    why: "an empty poll takes about as long as a post (40 against 50 ns): with one for every two requests a fourth of the time is spent waiting, and the device is what limits",
};

/// Counters of senders that met no posted receive, by device.
const RNR_EVENTS: [&str; 4] = ["rnr_nak_retry_err", "rcvd_rnr_err", "send_rnr_err", "rnr_naks_received"];

/// The wait that min_rnr_timer 0 stands for, ns.
pub const LONGEST_RNR_NS: u64 = 655_360_000;

/// The wait that a value of min_rnr_timer stands for, ns (InfiniBand specification, encoding of the RNR NAK timer): 0 is the
/// longest, from 1 on they grow by a half and a third in turn.
pub fn rnr_wait_ns(timer: u8) -> u64 {
    match timer & 31 {
        0 => LONGEST_RNR_NS,
        n @ 1..=3 => u64::from(n) * 10_000,
        n if n % 2 == 0 => 40_000 << ((n - 4) / 2),
        n => 60_000 << ((n - 5) / 2),
    }
}

/// Said of rules that judge what was asked for when queue pairs were connected.
pub const CONNECTED_BEFORE: &str =
    "the queue pairs were connected before the recording began: their timers and retry counts were not seen";

/// Share of the time in ibv_get_cq_event from where on the same holds.
const SPARE_ASLEEP: f64 = 0.3;

/// Queue pairs named in a line of evidence.
const NAMED: usize = 6;

/// Figures of the whole host. What takes a walk over all processes is worked out once, when the first rule asks.
#[derive(Clone)]
pub struct Host<'m> {
    /// Everything seen.
    pub model: &'m Model,
    /// Live QPs.
    pub qps: u64,
    /// The process that has most of them.
    pub most_qps: Option<ProcessId>,
    traffic_classes: OnceCell<BTreeMap<u8, u64>>,
    largest_region: OnceCell<u64>,
    longest_rnr_timer: OnceCell<Option<u8>>,
    pub(super) settings: &'m Settings,
    pub(super) rule: &'static str,
}

impl<'m> Host<'m> {
    pub(super) fn of(model: &'m Model, settings: &'m Settings) -> Self {
        let live = |p: &ProcessModel| p.queues.qp_population.live;
        Self {
            model,
            qps: model.processes.values().map(live).fold(0, u64::saturating_add),
            most_qps: model.processes.values().max_by_key(|p| live(p)).map(|p| p.info.id),
            traffic_classes: OnceCell::new(),
            largest_region: OnceCell::new(),
            longest_rnr_timer: OnceCell::new(),
            settings,
            rule: "",
        }
    }

    pub(super) fn for_rule(&self, rule: &'static str) -> Self {
        Self { rule, ..self.clone() }
    }

    /// The value of a threshold of the rule that is asking.
    pub fn limit(&self, threshold: &Threshold) -> f64 {
        self.settings.value(self.rule, threshold)
    }

    /// Live QPs of all processes by the traffic class they were given.
    pub fn traffic_classes(&self) -> &BTreeMap<u8, u64> {
        self.traffic_classes.get_or_init(|| {
            let mut classes = BTreeMap::new();
            let all = self.model.processes.values().flat_map(|process| process.queues.live());
            for class in all.filter_map(|qp| qp.attributes.traffic_class) {
                *classes.entry(class).or_default() += 1;
            }
            classes
        })
    }

    /// Bytes of the largest region registered by any process, as far as its size class tells.
    pub fn largest_region(&self) -> u64 {
        *self.largest_region.get_or_init(|| {
            let largest =
                self.model.processes.values().filter_map(|p| p.registrations.sizes.iter().next_back());
            largest
                .map(|(class, size)| {
                    (size.bytes / size.count.max(1)).max(1_u64 << (*class).clamp(1, 62) >> 1)
                })
                .max()
                .unwrap_or(0)
        })
    }

    /// Ports with their devices.
    pub fn ports(&self) -> impl Iterator<Item = (&'m Device, &'m Port)> {
        self.model.devices.values().flat_map(|device| device.ports.iter().map(move |port| (device, port)))
    }

    /// Growth of a counter over the recording, by device and port, where it grew at all.
    pub fn grown(&self, name: &str) -> Vec<(String, u64)> {
        let before = |device: &Device, port: u32| {
            let Some(known) = self.model.header.devices.iter().find(|d| d.name == device.name) else {
                // The emulated device comes with its program, and counts from nothing.
                return device.emulated.then_some(0);
            };
            known.ports.iter().find(|p| p.number == port)?.counters.get(name).copied()
        };
        self.ports()
            .filter_map(|(device, port)| {
                let now = *port.counters.get(name)?;
                let grown = now.saturating_sub(before(device, port.number)?);
                (grown > 0).then(|| (format!("{} port {}", device.name, port.number), grown))
            })
            .collect()
    }

    /// Growth of several counters together.
    pub fn grown_in_all(&self, names: &[&str]) -> u64 {
        names.iter().flat_map(|name| self.grown(name)).map(|(_, n)| n).fold(0, u64::saturating_add)
    }

    /// Of all queue pairs that were seen being connected, the min_rnr_timer that stands for the longest wait.
    pub fn longest_rnr_timer(&self) -> Option<u8> {
        *self.longest_rnr_timer.get_or_init(|| {
            let all = self.model.processes.values().flat_map(|p| p.queues.live().chain(p.queues.ended()));
            all.filter_map(|qp| qp.attributes.min_rnr_timer).max_by_key(|timer| rnr_wait_ns(*timer))
        })
    }

    /// How long senders waited for receives at most, over all queue pairs together, ns: so many receiver-not-ready events of
    /// the longest wait there is. `None` where no queue pair asks for that wait, or none met it.
    pub fn waited_for_receives_ns(&self) -> Option<u64> {
        let events = self.grown_in_all(&RNR_EVENTS);
        let met = events > 0 && self.longest_rnr_timer() == Some(0);
        met.then(|| events.saturating_mul(LONGEST_RNR_NS))
    }

    /// Smallest and largest active MTU of the ports that are up and tell one, bytes.
    pub fn active_mtu(&self) -> Option<(u32, u32)> {
        let known = || {
            self.ports()
                .filter(|(_, port)| port.state.is_empty() || port.state == "ACTIVE")
                .map(|(_, port)| port.active_mtu_bytes)
                .filter(|mtu| *mtu > 0)
        };
        known().min().zip(known().max())
    }
}

/// What moves the data, which decides what costs something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mover {
    /// A NIC.
    Nic,
    /// The emulated device, with a NIC's timing.
    Modelled,
    /// Software in the kernel: soft-RoCE, soft-iWARP. It has no caches and no PCIe, and a post is a system call.
    Software,
    /// The emulated device without a NIC's timing: what something costs on it says little of any NIC.
    Untimed,
    /// Not known.
    Unknown,
}

/// One process.
pub struct Subject<'m> {
    /// Everything seen.
    pub model: &'m Model,
    /// The process.
    pub process: &'m ProcessModel,
    /// Its QPs, oldest first: those that live and the last that ended.
    pub qps: &'m [&'m Qp],
    /// Figures of the host.
    pub host: &'m Host<'m>,
    /// Posts and polls, where they are observed.
    pub traffic: Option<&'m Traffic<'m>>,
    pub(super) rule: &'static str,
}

impl<'m> Subject<'m> {
    /// The value of a threshold of the rule that is asking.
    pub fn limit(&self, threshold: &Threshold) -> f64 {
        self.host.settings.value(self.rule, threshold)
    }

    /// How long the process was seen at work, ns: from its first call to its last sign of life, within the recording. At
    /// least a second where the recording is as long: a burst of set-up is no rate.
    pub fn busy_ns(&self) -> u64 {
        let recorded = self.model.duration_ns().max(1);
        let (first, last) = self.process.active_ns;
        let begin = first.max(self.model.window_start_ns.unwrap_or(0));
        last.saturating_sub(begin).max(1_000_000_000).min(recorded)
    }

    /// The same in seconds, never 0.
    pub fn seconds(&self) -> f64 {
        self.busy_ns() as f64 / 1e9
    }

    /// So many over that time, per second.
    pub fn per_second(&self, n: u64) -> f64 {
        n as f64 / self.seconds()
    }

    /// How many times slower than the NIC it models the emulated device runs; 1 of anything else. What a program does in
    /// step with it is so much rarer by the clock.
    pub fn slow_motion(&self) -> f64 {
        if self.mover() != Mover::Modelled {
            return 1.0;
        }
        // The device's own default.
        let speed = self.variable("RNIC_EMU_SPEED").unwrap_or("1/64");
        let (part, whole) = speed.split_once('/').unwrap_or((speed, "1"));
        let ratio = whole.trim().parse::<f64>().ok().zip(part.trim().parse::<f64>().ok());
        ratio.map_or(1.0, |(whole, part)| whole / part).clamp(1.0, 1e6)
    }

    /// The rates of a process in slow motion, as a caveat.
    pub fn slowly(&self) -> Option<Evidence> {
        let slower = self.slow_motion();
        (slower > 1.0).then(|| Evidence {
            text: format!("the emulated device runs {slower:.0} times slower than the NIC it models: rates are judged as they would be there"),
            qpns: Vec::new(),
        })
    }

    /// Registrations that succeeded.
    pub fn registrations(&self) -> u64 {
        REGISTRATIONS.iter().map(|call| self.process.succeeded_calls(*call)).sum()
    }

    /// Whether it has reliable queue pairs, and none of them was seen being connected.
    pub fn connected_before(&self) -> bool {
        let unseen = |qp: &&Qp| qp.transitions.is_empty() && qp.created_ns.is_none();
        !self.qps.is_empty() && self.qps.iter().all(unseen)
    }

    /// Whether any live probe counts `call`: without one, none seen is not none made.
    pub fn sees(&self, call: Call) -> bool {
        use crate::sample::Verdict;
        self.process.calls.contains_key(&call)
            || self.model.probes.values().any(|probe| {
                probe.call == Some(call) && matches!(probe.verdict, Verdict::Live | Verdict::Sampled { .. })
            })
    }

    /// Time spent, as a share of one core over the time the process was at work, and in words.
    pub fn time_cost(&self, total_ns: u64) -> Cost {
        let over = self.busy_ns();
        let share = total_ns as f64 / over as f64;
        Cost {
            cpu_share: Some(share),
            text: format!(
                "{} in {}: {} of a core",
                units::duration(total_ns),
                units::duration(over),
                units::percent(share)
            ),
            ..Cost::default()
        }
    }

    /// The QPs for which something holds: how many, and the first of them as evidence.
    pub fn those(&self, holds: impl Fn(&Qp) -> bool) -> Option<(u64, Evidence)> {
        let mut found = 0;
        let mut first: Vec<&Qp> = Vec::new();
        for qp in self.qps.iter().filter(|qp| holds(qp)) {
            found += 1;
            if first.len() < NAMED {
                first.push(qp);
            }
        }
        (found > 0).then(|| (found, named(&first, found)))
    }

    /// The places in the program that made most of the objects alive by these calls, where stacks were taken.
    pub fn made_at(&self, calls: &[Call]) -> Option<Evidence> {
        self.places("those alive were made by", calls, |site| site.live)
    }

    /// The places in the program that made most of these calls, where stacks were taken.
    pub fn called_from(&self, calls: &[Call]) -> Option<Evidence> {
        self.places("called by", calls, |site| site.count)
    }

    /// The places in the program whose calls failed most often, where stacks were taken.
    pub fn failed_at(&self, calls: &[Call]) -> Option<Evidence> {
        self.places("the calls that fail are made by", calls, |site| site.failed)
    }

    /// The places with most of something: `called by a (300), b (2)`.
    fn places(&self, what: &str, calls: &[Call], of: impl Fn(&Site) -> u64) -> Option<Evidence> {
        let id = self.process.info.id;
        let mut places: BTreeMap<String, u64> = BTreeMap::new();
        for site in self.process.sites.iter().filter(|site| calls.contains(&site.call) && of(site) > 0) {
            let Some(caller) = crate::report::caller(self.model, id, &site.stack) else { continue };
            *places.entry(caller).or_default() += of(site);
        }
        let mut places: Vec<(String, u64)> = places.into_iter().collect();
        places.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        let named: Vec<String> =
            places.iter().take(3).map(|(place, n)| format!("{place} ({})", units::count(*n))).collect();
        (!named.is_empty())
            .then(|| Evidence { text: format!("{what} {}", named.join(", ")), qpns: Vec::new() })
    }

    /// How many of these moments lie in each quarter of the time the process was at work; `None` when that is shorter
    /// than half a second.
    pub fn quarters(&self, moments: impl Iterator<Item = u64>) -> Option<[u64; 4]> {
        let (first, last) = self.process.active_ns;
        let start = first.max(self.model.window_start_ns.unwrap_or(0));
        let length = last.saturating_sub(start);
        if length < 500_000_000 {
            return None;
        }
        let mut quarters = [0; 4];
        for moment in moments {
            let quarter = moment.saturating_sub(start) / (length / 4);
            quarters[(quarter as usize).min(3)] += 1;
        }
        Some(quarters)
    }

    /// Share of READs and atomics among the work requests, and their number; `None` where posts are not observed.
    pub fn reads_share(&self) -> Option<(f64, u64)> {
        let all = &self.traffic?.all;
        let reads = of_opcodes(all, &READS).saturating_add(of_opcodes(all, &ATOMICS));
        Some((share(reads, all.wrs), all.wrs))
    }

    /// Whether the threads of the process have time to spare while work is under way: they poll in vain between posts, or
    /// sleep until an event comes. What posting costs the processor then costs no throughput.
    pub fn waits_for_device(&self) -> bool {
        let Some(traffic) = self.traffic.filter(|_| !self.is_software()) else {
            // Where software moves the data, processors limit in any case.
            return false;
        };
        spins_per_wr(&traffic.all) >= self.limit(&SPARE) || self.waits_for_events()
    }

    /// Requests of the process under way at a time, by Little's law: their rate times the time from post to reap (median);
    /// `None` where one of them is not known.
    pub fn under_way(&self) -> Option<f64> {
        let traffic = self.traffic.filter(|traffic| traffic.has_rates())?;
        let reap_ns = traffic.post_to_reap()?.quantile(0.5)?;
        Some(self.per_second(traffic.all.wrs) * reap_ns as f64 / 1e9)
    }

    /// Whether the threads of the process sleep until an event comes: waking up then takes most of a message's time. They
    /// sleep in `ibv_get_cq_event`, or in `poll` and its like and take the event afterwards. One event for ten completions
    /// is enough: at 5 µs or more each, it costs a message more than what is saved by posting it otherwise.
    pub fn waits_for_events(&self) -> bool {
        let events = self.process.count(Call::GetCqEvent);
        let taken = events.returned.saturating_sub(events.failed);
        let cqes = self.traffic.and_then(|traffic| traffic.all.all_cqes()).unwrap_or(0);
        events.total_ns as f64 >= SPARE_ASLEEP * self.busy_ns() as f64
            || cqes > 0 && taken.saturating_mul(10) >= cqes
    }

    /// What moves the process's data.
    pub fn mover(&self) -> Mover {
        let preloaded = self.variable("LD_PRELOAD").is_some_and(|value| value.contains("librnic_emu"));
        if preloaded {
            return if self.variable("RNIC_EMU_PROFILE").is_some() {
                Mover::Modelled
            } else {
                Mover::Untimed
            };
        }
        let devices = || self.model.devices.values();
        if devices().next().is_none() {
            return Mover::Unknown;
        }
        let emulated = |device: &Device| device.emulated || device.driver == "rnic-emu";
        let software =
            |device: &Device| emulated(device) || matches!(device.driver.as_str(), "rdma_rxe" | "siw");
        if devices().all(emulated) {
            Mover::Untimed
        } else if devices().all(software) {
            Mover::Software
        } else {
            Mover::Nic
        }
    }

    /// Whether there is no NIC, not even a modelled one.
    pub fn is_software(&self) -> bool {
        matches!(self.mover(), Mover::Software | Mover::Untimed)
    }

    /// So many over the time at work, per second of the device's own time: in slow motion more than by the clock.
    pub fn per_device_second(&self, n: u64) -> f64 {
        self.per_second(n) * self.slow_motion()
    }

    /// The QP with that number, the youngest of them.
    pub fn qp_of(&self, qpn: u32) -> Option<&'m Qp> {
        self.qps.iter().rev().copied().find(|qp| qp.qpn == qpn)
    }

    /// The QP behind a pointer, the youngest of them.
    pub fn qp_at(&self, pointer: u64) -> Option<&'m Qp> {
        let queues = &self.process.queues;
        queues.qp(pointer).or_else(|| self.qps.iter().rev().copied().find(|qp| qp.qp == pointer))
    }

    /// The process's surroundings, where they were read.
    pub fn facts(&self) -> Option<&'m Facts> {
        self.process.facts.as_ref()
    }

    /// A variable of its environment that decides how verbs behave.
    pub fn variable(&self, name: &str) -> Option<&'m str> {
        self.facts()?.environment.get(name).map(String::as_str)
    }

    /// Whether the program asked for fork protection through its environment.
    pub fn fork_safe(&self) -> bool {
        ["RDMAV_FORK_SAFE", "IBV_FORK_SAFE"].iter().any(|name| self.variable(name).is_some())
    }

    /// Where QPs are connected to, those of one peer together: peer (GID, or LID) to number of QPs.
    pub fn peers(&self) -> BTreeMap<String, u64> {
        let mut peers: BTreeMap<String, u64> = BTreeMap::new();
        for qp in self.qps {
            if let Some(peer) = peer_of(qp) {
                *peers.entry(peer).or_default() += 1;
            }
        }
        peers
    }
}

/// Whether control calls of the process were, or would have been, seen: without, none seen is not none made.
pub fn sees_calls(model: &Model, process: &ProcessModel) -> bool {
    use crate::sample::Verdict;
    let live = |verdict: &Verdict| matches!(verdict, Verdict::Live | Verdict::Sampled { .. });
    // A trace that tells of no probe at all, of none that failed either, was not made by recording here.
    !process.calls.is_empty()
        || model.probes.is_empty()
        || model.probes.values().any(|probe| probe.call.is_some() && live(&probe.verdict))
}

/// The peer of a QP, without its number there.
pub fn peer_of(qp: &Qp) -> Option<String> {
    let attributes = &qp.attributes;
    let gid = attributes.dgid.as_deref().filter(|gid| !gid.is_empty() && *gid != "::");
    gid.map(str::to_owned).or_else(|| attributes.dlid.filter(|lid| *lid != 0).map(|lid| format!("LID {lid}")))
}

/// `QPN 17 → 18 at fe80::1, …`
fn named(first: &[&Qp], all: u64) -> Evidence {
    let one = |qp: &&Qp| match (qp.attributes.dest_qpn, peer_of(qp)) {
        (Some(there), Some(peer)) if all <= 3 => format!("{} (to {there} at {peer})", qp.qpn),
        _ => qp.qpn.to_string(),
    };
    let mut text = format!("QPN {}", first.iter().map(one).collect::<Vec<_>>().join(", "));
    if all > first.len() as u64 {
        text.push_str(&format!(" and {} more", units::count(all - first.len() as u64)));
    }
    Evidence { text, qpns: first.iter().map(|qp| qp.qpn).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_of_a_receiver_that_is_not_ready_are_those_of_the_specification() {
        let ms: Vec<f64> =
            [0, 1, 3, 4, 5, 6, 7, 8, 12, 13, 14, 30, 31].map(|n| rnr_wait_ns(n) as f64 / 1e6).to_vec();
        assert_eq!(ms, [655.36, 0.01, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.64, 0.96, 1.28, 327.68, 491.52]);
    }
}
