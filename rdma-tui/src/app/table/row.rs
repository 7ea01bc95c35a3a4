//! Rows: what names them while figures change, and how they are found in a model.

use probe_user::doctor::Finding;
use probe_user::model::{Cq, ProcessModel, Qp, Site, SizeClass, Srq};
use probe_user::sample::{Device, Port, Probe, ProcessId};

use super::super::history::registers;
use super::super::workload::Workload;
use super::super::world::World;
use super::TableId;

/// Ranges listed per process: the hot ones are among the first few.
const RANGES_PER_PROCESS: usize = 64;

/// What names a row: the selection follows it when the order changes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the parts are what the names say")]
pub enum RowKey {
    Process(ProcessId),
    Qp(ProcessId, u64),
    Cq(ProcessId, u64),
    Srq(ProcessId, u64),
    Range { process: ProcessId, addr: u64, length_bytes: u64, uses: u64 },
    Site(ProcessId, usize),
    Size(u8),
    Finding { id: &'static str, process: Option<ProcessId> },
    Workload(usize),
    Counter { device: String, port: u32, name: String },
    Probe { name: String, place: String },
}

/// A row, found in a model.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the parts are what the names say")]
pub enum Row<'w> {
    Process(&'w ProcessModel),
    Qp(&'w ProcessModel, &'w Qp),
    Cq(&'w ProcessModel, u64, &'w Cq),
    Srq(&'w ProcessModel, u64, &'w Srq),
    Range { process: &'w ProcessModel, addr: u64, length_bytes: u64, uses: u64 },
    Site(&'w ProcessModel, &'w Site),
    Size(u8, SizeClass),
    Finding(&'w Finding),
    Workload(&'w Workload),
    Counter { device: &'w Device, port: &'w Port, name: &'w str, value: u64 },
    Probe(&'w Probe),
}

/// The rows of `table`, in no particular order.
pub fn keys(table: TableId, world: &World) -> Vec<RowKey> {
    let processes = || world.model.processes.iter();
    match table {
        // What ended without an RDMA call (a shell, a helper) is no news.
        TableId::Processes => processes()
            .filter(|(_, p)| p.used_rdma() || !p.info.exited)
            .map(|(id, _)| RowKey::Process(*id))
            .collect(),
        TableId::Registrants => processes()
            .filter(|(_, p)| {
                super::super::totals::REGISTRATIONS.iter().any(|call| p.calls.contains_key(call))
            })
            .map(|(id, _)| RowKey::Process(*id))
            .collect(),
        TableId::Ranges => processes()
            .flat_map(|(id, p)| {
                let ranges = p.registrations.ranges.most_used(RANGES_PER_PROCESS);
                ranges.into_iter().map(|(addr, length_bytes, uses)| RowKey::Range {
                    process: *id,
                    addr,
                    length_bytes,
                    uses,
                })
            })
            .collect(),
        TableId::Sites => processes()
            .flat_map(|(id, p)| {
                let registering = p.sites.numbered().filter(|(_, site)| registers(site.call));
                registering.map(|(number, _)| RowKey::Site(*id, number))
            })
            .collect(),
        TableId::Sizes => sizes(world).map(RowKey::Size).collect(),
        TableId::Qps => processes()
            .flat_map(|(id, p)| p.queues.qps().into_iter().map(|qp| RowKey::Qp(*id, qp.qp)))
            .collect(),
        TableId::Posting => processes()
            .filter(|(_, p)| p.data_path.is_observed())
            .flat_map(|(id, p)| p.queues.qps().into_iter().map(|qp| RowKey::Qp(*id, qp.qp)))
            .collect(),
        TableId::Cqs => {
            processes().flat_map(|(id, p)| p.queues.cqs().keys().map(|cq| RowKey::Cq(*id, *cq))).collect()
        }
        TableId::Srqs => {
            processes().flat_map(|(id, p)| p.queues.srqs().keys().map(|srq| RowKey::Srq(*id, *srq))).collect()
        }
        TableId::Findings => {
            world.findings().iter().map(|f| RowKey::Finding { id: f.id, process: f.process_id() }).collect()
        }
        TableId::Workloads => (0..world.workloads.list.len()).map(RowKey::Workload).collect(),
        TableId::Counters => world
            .model
            .devices
            .values()
            .flat_map(|device| {
                device.ports.iter().flat_map(move |port| {
                    port.counters.keys().map(move |name| RowKey::Counter {
                        device: device.name.clone(),
                        port: port.number,
                        name: name.clone(),
                    })
                })
            })
            .collect(),
        TableId::Probes => world
            .model
            .probes
            .keys()
            .map(|(name, place)| RowKey::Probe { name: name.clone(), place: place.clone() })
            .collect(),
    }
}

/// The row behind a key, if it is still there.
pub fn row<'w>(key: &RowKey, world: &'w World) -> Option<Row<'w>> {
    let process = |id: &ProcessId| world.model.processes.get(id);
    Some(match key {
        RowKey::Process(id) => Row::Process(process(id)?),
        RowKey::Qp(id, qp) => {
            let process = process(id)?;
            Row::Qp(process, process.queues.qp(*qp)?)
        }
        RowKey::Cq(id, cq) => {
            let process = process(id)?;
            Row::Cq(process, *cq, process.queues.cqs().get(cq)?)
        }
        RowKey::Srq(id, srq) => {
            let process = process(id)?;
            Row::Srq(process, *srq, process.queues.srqs().get(srq)?)
        }
        RowKey::Range { process: id, addr, length_bytes, uses } => {
            Row::Range { process: process(id)?, addr: *addr, length_bytes: *length_bytes, uses: *uses }
        }
        RowKey::Site(id, number) => {
            let process = process(id)?;
            Row::Site(process, process.sites.get(*number)?)
        }
        RowKey::Size(class) => Row::Size(*class, size(world, *class)),
        RowKey::Finding { id, process } => {
            Row::Finding(world.findings().iter().find(|f| f.id == *id && f.process_id() == *process)?)
        }
        RowKey::Workload(index) => Row::Workload(world.workloads.list.get(*index)?),
        RowKey::Counter { device, port, name } => {
            let device = world.model.devices.get(device)?;
            let port = device.ports.iter().find(|p| p.number == *port)?;
            let (name, value) = port.counters.get_key_value(name)?;
            Row::Counter { device, port, name, value: *value }
        }
        RowKey::Probe { name, place } => Row::Probe(world.model.probes.get(&(name.clone(), place.clone()))?),
    })
}

fn sizes(world: &World) -> impl Iterator<Item = u8> {
    let classes: std::collections::BTreeSet<u8> =
        world.model.processes.values().flat_map(|p| p.registrations.sizes.keys().copied()).collect();
    classes.into_iter()
}

/// A size class over all processes.
fn size(world: &World, class: u8) -> SizeClass {
    let mut sum = SizeClass::default();
    for one in world.model.processes.values().filter_map(|p| p.registrations.sizes.get(&class)) {
        sum.count = sum.count.saturating_add(one.count);
        sum.bytes = sum.bytes.saturating_add(one.bytes);
        sum.total_ns = sum.total_ns.saturating_add(one.total_ns);
        sum.longest_ns = sum.longest_ns.max(one.longest_ns);
    }
    sum
}
