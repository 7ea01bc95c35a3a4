//! Figures of the whole host: sums over its processes, with the same accessors the report uses.

use std::collections::BTreeMap;

use probe_user::model::Model;
use probe_user::report::{Latency, latency};
use probe_user::sample::{Call, CallCount, Device, Histogram, Verdict};

/// The calls that register memory.
pub const REGISTRATIONS: [Call; 2] = [Call::RegMr, Call::RegDmabufMr];

/// Sums over all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Registrations, failed ones included.
    pub registrations: CallCount,
    /// Deregistrations.
    pub deregistrations: CallCount,
    /// Control-path calls of any kind, the kernel's own not counted twice.
    pub calls: u64,
    /// Live QPs.
    pub qps: u64,
    /// Live CQs.
    pub cqs: u64,
    /// Live MRs.
    pub mrs: u64,
    /// Bytes registered now.
    pub mr_bytes: u64,
    /// Processes that have not ended.
    pub alive: u64,
}

/// Whether a call is the kernel's side of another.
pub fn is_kernel(call: Call) -> bool {
    use Call::*;
    matches!(
        call,
        KernelPin
            | KernelUnpin
            | KernelRegMr
            | KernelDeregMr
            | KernelCreateQp
            | KernelDestroyQp
            | KernelModifyQp
            | KernelCreateCq
            | KernelDestroyCq
    )
}

/// Adds up what `model` tells of all processes.
pub fn of(model: &Model) -> Totals {
    let mut totals = Totals::default();
    for process in model.processes.values() {
        totals.registrations = add(totals.registrations, process.counts(&REGISTRATIONS));
        totals.deregistrations = add(totals.deregistrations, process.count(Call::DeregMr));
        totals.calls += process
            .calls
            .iter()
            .filter(|(call, _)| !is_kernel(**call))
            .map(|(_, stats)| stats.count().entered)
            .fold(0, u64::saturating_add);
        totals.qps += process.queues.qp_population.live;
        totals.cqs += process.queues.cq_population.live;
        totals.mrs += process.registrations.population.live;
        totals.mr_bytes = totals.mr_bytes.saturating_add(process.registrations.bytes.live);
        totals.alive += u64::from(!process.info.exited);
    }
    totals
}

fn add(a: CallCount, b: CallCount) -> CallCount {
    CallCount {
        entered: a.entered.saturating_add(b.entered),
        returned: a.returned.saturating_add(b.returned),
        failed: a.failed.saturating_add(b.failed),
        bytes: a.bytes.saturating_add(b.bytes),
        total_ns: a.total_ns.saturating_add(b.total_ns),
    }
}

/// Everything that was missed, as one number.
pub fn lost(model: &Model) -> u64 {
    let lost = model.lost();
    lost.ring_events
        .saturating_add(lost.unpaired)
        .saturating_add(lost.kernel_returns)
        .saturating_add(lost.uncounted)
}

/// Latencies of all registrations of the host, ns.
pub fn registration_latency(model: &Model) -> Histogram {
    let mut all = Histogram::default();
    for process in model.processes.values() {
        all.merge(&process.latency(&REGISTRATIONS));
    }
    all
}

/// Their quantiles.
pub fn registration_quantiles(model: &Model) -> Latency {
    let longest = model.processes.values().filter_map(|p| p.longest_ns(&REGISTRATIONS)).max();
    latency(&registration_latency(model), longest)
}

/// Failed registrations by errno.
pub fn registration_errnos(model: &Model) -> BTreeMap<i32, u64> {
    let mut all = BTreeMap::new();
    for process in model.processes.values() {
        for (errno, n) in process.errnos(&REGISTRATIONS) {
            *all.entry(errno).or_default() += n;
        }
    }
    all
}

/// Bytes received and sent by a device's ports since it started; `None` where it has no such counters.
///
/// `port_rcv_data` and `port_xmit_data` count units of four bytes (InfiniBand specification, PortCountersExtended).
pub fn device_bytes(device: &Device) -> Option<(u64, u64)> {
    let mut sum = None;
    for port in &device.ports {
        if let (Some(rx), Some(tx)) =
            (port.counters.get("port_rcv_data"), port.counters.get("port_xmit_data"))
        {
            let (all_rx, all_tx) = sum.unwrap_or((0_u64, 0_u64));
            sum = Some((
                all_rx.saturating_add(rx.saturating_mul(4)),
                all_tx.saturating_add(tx.saturating_mul(4)),
            ));
        }
    }
    sum
}

/// The same over all devices.
pub fn port_bytes(model: &Model) -> Option<(u64, u64)> {
    model
        .devices
        .values()
        .filter_map(device_bytes)
        .reduce(|a, b| (a.0.saturating_add(b.0), a.1.saturating_add(b.1)))
}

/// How many probes ended in each verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verdicts {
    /// Attached, every hit seen.
    pub live: usize,
    /// Attached, some hits looked at.
    pub sampled: usize,
    /// No such hook here.
    pub not_here: usize,
    /// Not allowed.
    pub denied: usize,
    /// Defects.
    pub broken: usize,
    /// Verdicts of a newer version.
    pub unknown: usize,
}

/// Counts the probes' verdicts.
pub fn verdicts(model: &Model) -> Verdicts {
    let mut counts = Verdicts::default();
    for probe in model.probes.values() {
        let count = match probe.verdict {
            Verdict::Live => &mut counts.live,
            Verdict::Sampled { .. } => &mut counts.sampled,
            Verdict::NotHere { .. } => &mut counts.not_here,
            Verdict::Denied { .. } => &mut counts.denied,
            Verdict::Broken { .. } => &mut counts.broken,
            Verdict::Unknown => &mut counts.unknown,
        };
        *count += 1;
    }
    counts
}
