//! RDMA devices of this host, their ports and counters, and which process owns which object.
//!
//! The kernel tells objects over netlink ([`nldev`]), those made before any recording included, and counters through
//! sysfs ([`sysfs`]). Either may be missing or partly unreadable: what was not told is noted, and nothing else suffers.

mod attributes;
mod changes;
mod emulated;
mod emulated_counters;
mod limits;
mod nldev;
mod objects;
mod sysfs;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;

use crate::collect;
use crate::sample::{Device, Limits, Port};

pub use changes::Changes;
pub use emulated::emulated_devices_of;
pub use emulated_counters::EmulatedCounters;
pub use objects::{CmId, Context, Cq, Mr, Objects, Owner, Pd, Qp, Srq};
pub use sysfs::Unreadable;

use attributes::{Attributes, push_u32};
use nldev::{Command, Nldev, attr, entries};
use sysfs::Sysfs;

/// The schema named by every inventory this version prints.
pub const SCHEMA: &str = "rdma-devices/1";

/// All devices and objects of the host, as far as they could be read.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Inventory {
    /// Always `rdma-devices/1`.
    pub schema: String,
    /// Why there is nothing to list, where there is no RDMA subsystem at all.
    pub unavailable: Option<String>,
    /// `shared` or `exclusive`: whether a network namespace sees the devices of others.
    pub netns_mode: Option<String>,
    /// Devices.
    pub devices: Vec<ListedDevice>,
    /// Verbs objects; `null` where the kernel could not be asked.
    pub objects: Option<Objects>,
    /// Objects by owner, largest first.
    pub owners: Vec<OwnerTotals>,
    /// What could not be read, and why.
    pub notes: Vec<String>,
}

/// A device and what is known of it beyond what traces carry.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ListedDevice {
    /// As in traces.
    #[serde(flatten)]
    pub device: Device,
    /// `roce`, `ib`, `iw`, …; empty where unknown.
    pub protocol: String,
    /// Counters of the device as a whole.
    pub counters: BTreeMap<String, u64>,
    /// Objects alive by kind, as the kernel counts them.
    pub totals: BTreeMap<String, u64>,
    /// Files that could not be read.
    pub unreadable: Vec<Unreadable>,
}

/// How many objects one process, or one kernel module, owns.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "each counts the objects of its name")]
pub struct OwnerTotals {
    #[serde(flatten)]
    pub owner: Owner,
    pub qps: u64,
    pub cqs: u64,
    pub mrs: u64,
    /// Bytes of the memory regions.
    pub mr_bytes: u64,
    pub pds: u64,
    pub cm_ids: u64,
    pub contexts: u64,
    pub srqs: u64,
}

/// Reads everything; takes a few milliseconds, more where drivers are slow to tell their counters.
pub fn inventory() -> Inventory {
    inventory_below(Path::new(sysfs::CLASS))
}

/// The devices alone, as a trace's header carries them; empty where there is no RDMA subsystem.
pub fn devices() -> Vec<Device> {
    let class = Path::new(sysfs::CLASS);
    let mut nldev = sysfs::devices(class).and_then(|_| Nldev::open().ok());
    let mut devices: Vec<Device> =
        inventory_of_devices(class, &mut nldev).0.into_iter().map(|listed| listed.device).collect();
    if !devices.is_empty() {
        let mut limits = limits::limits();
        for device in &mut devices {
            device.limits = limits.remove(&device.name).unwrap_or_default();
        }
    }
    devices
}

/// Names, port states and counters alone, as a trace's samples carry them: cheap enough to be read every second.
pub fn counters() -> Vec<Device> {
    let class = Path::new(sysfs::CLASS);
    let of_device = |name: String| {
        let mut sysfs = Sysfs::new(class, &name);
        let ports = sysfs.ports().into_iter().map(|number| sysfs.port_counters(number)).collect();
        Device { name, ports, ..Device::default() }
    };
    sysfs::devices(class).unwrap_or_default().into_iter().map(of_device).collect()
}

fn inventory_below(class: &Path) -> Inventory {
    let mut inventory = Inventory {
        schema: SCHEMA.to_owned(),
        unavailable: None,
        netns_mode: None,
        devices: Vec::new(),
        objects: None,
        owners: Vec::new(),
        notes: Vec::new(),
    };
    if sysfs::devices(class).is_none() {
        // Without this look, opening the socket might make the kernel load its RDMA modules.
        let why = format!("this kernel has no RDMA subsystem loaded (no {})", class.display());
        inventory.unavailable = Some(why);
        return inventory;
    }
    let mut nldev = match Nldev::open() {
        Ok(nldev) => Some(nldev),
        Err(error) => {
            let why = format!("objects are not listed: cannot open RDMA netlink ({error})");
            inventory.notes.push(why);
            None
        }
    };
    let (devices, indices) = inventory_of_devices(class, &mut nldev);
    inventory.devices = devices;
    if let Some(nldev) = &mut nldev {
        inventory.netns_mode = netns_mode(nldev);
        let objects = read_objects(nldev, &indices, &mut inventory.notes);
        inventory.owners = owners(&objects);
        inventory.objects = Some(objects);
    }
    if inventory.netns_mode.as_deref() == Some("exclusive") {
        let note = "network namespaces are exclusive: devices moved into others are not listed here";
        inventory.notes.push(note.to_owned());
    }
    inventory
}

/// The devices, and the kernel's index of each for further questions.
fn inventory_of_devices(class: &Path, nldev: &mut Option<Nldev>) -> (Vec<ListedDevice>, Vec<(u32, String)>) {
    let mut indices = Vec::new();
    let mut told: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    if let Some(nldev) = nldev.as_mut() {
        for payload in nldev.dump(Command::Get, None).unwrap_or_default() {
            let a = Attributes(&payload);
            if let (Some(index), Some(name)) = (a.u32(attr::DEV_INDEX), a.string(attr::DEV_NAME)) {
                indices.push((index, name.clone()));
                told.insert(name, payload);
            }
        }
    }
    let mut devices = Vec::new();
    for name in sysfs::devices(class).unwrap_or_default() {
        let mut sysfs = Sysfs::new(class, &name);
        let payload = told.remove(&name).unwrap_or_default();
        let a = Attributes(&payload);
        let index = a.u32(attr::DEV_INDEX);
        let mut ports: Vec<Port> = sysfs.ports().into_iter().map(|number| sysfs.port(number)).collect();
        let mut totals = BTreeMap::new();
        let mut driver = sysfs.driver();
        if let (Some(nldev), Some(index)) = (nldev.as_mut(), index) {
            port_netdevs(nldev, index, &mut ports);
            totals = object_totals(nldev, index);
            driver = driver.or_else(|| uverbs_driver(nldev, index));
        }
        let device = Device {
            driver: driver.unwrap_or_default(),
            node_guid: a
                .u64(attr::NODE_GUID)
                .map(guid)
                .or_else(|| sysfs.text("node_guid"))
                .unwrap_or_default(),
            firmware: a.string(attr::FW_VERSION).or_else(|| sysfs.text("fw_ver")).unwrap_or_default(),
            emulated: false,
            placement: collect::facts::placement(&class.join(&name)),
            limits: Limits::default(),
            ports,
            name,
        };
        devices.push(ListedDevice {
            device,
            protocol: a.string(attr::DEV_PROTOCOL).unwrap_or_default(),
            counters: sysfs.device_counters(),
            totals,
            unreadable: sysfs.unreadable,
        });
    }
    (devices, indices)
}

/// `0x18bb79fffe373112` as the kernel writes it: `18bb:79ff:fe37:3112`.
fn guid(guid: u64) -> String {
    format!(
        "{:04x}:{:04x}:{:04x}:{:04x}",
        guid >> 48,
        guid >> 32 & 0xffff,
        guid >> 16 & 0xffff,
        guid & 0xffff
    )
}

fn netns_mode(nldev: &mut Nldev) -> Option<String> {
    let payload = nldev.get(Command::SysGet, &[]).ok()??;
    let shared = Attributes(&payload).u8(attr::NETNS_MODE)? != 0;
    Some(if shared { "shared" } else { "exclusive" }.to_owned())
}

fn port_netdevs(nldev: &mut Nldev, index: u32, ports: &mut [Port]) {
    for payload in nldev.dump(Command::PortGet, Some(index)).unwrap_or_default() {
        let a = Attributes(&payload);
        let number = a.u32(attr::PORT_INDEX);
        if let Some(port) = ports.iter_mut().find(|port| Some(port.number) == number)
            && let Some(netdev) = a.string(attr::NDEV_NAME)
        {
            port.netdev = netdev;
        }
    }
}

fn object_totals(nldev: &mut Nldev, index: u32) -> BTreeMap<String, u64> {
    let mut attributes = Vec::new();
    push_u32(&mut attributes, attr::DEV_INDEX, index);
    let Ok(Some(payload)) = nldev.get(Command::ResGet, &attributes) else { return BTreeMap::new() };
    entries(&payload, attr::RES_SUMMARY)
        .into_iter()
        .filter_map(|e| Some((e.string(attr::RES_SUMMARY_ENTRY_NAME)?, e.u64(attr::RES_SUMMARY_ENTRY_CURR)?)))
        .collect()
}

/// The driver of a device without hardware, by the number its user-space library knows it by
/// (`enum rdma_driver_id` of ib_user_ioctl_verbs.h).
fn uverbs_driver(nldev: &mut Nldev, index: u32) -> Option<String> {
    let mut attributes = Vec::new();
    push_u32(&mut attributes, attr::DEV_INDEX, index);
    let kind = b"uverbs\0";
    attributes.extend((kind.len() as u16 + 4).to_ne_bytes());
    attributes.extend(attr::CHARDEV_TYPE.to_ne_bytes());
    attributes.extend(kind);
    attributes.push(0);
    let payload = nldev.get(Command::GetChardev, &attributes).ok()??;
    let driver = match Attributes(&payload).u32(attr::UVERBS_DRIVER_ID)? {
        14 => "rdma_rxe",
        18 => "siw",
        other => return Some(format!("driver {other}")),
    };
    Some(driver.to_owned())
}

fn read_objects(nldev: &mut Nldev, devices: &[(u32, String)], notes: &mut Vec<String>) -> Objects {
    let mut objects = Objects::default();
    let names = std::cell::RefCell::new(BTreeMap::<u32, Option<String>>::new());
    let comm = |pid: u32| names.borrow_mut().entry(pid).or_insert_with(|| comm(pid)).clone();
    for (index, device) in devices {
        let reading = objects::Reading { device, comm: &comm };
        let mut of = |command: Command, table: u16, take: &mut dyn FnMut(Attributes<'_>)| match nldev
            .dump(command, Some(*index))
        {
            Ok(payloads) => {
                payloads.iter().flat_map(|payload| entries(payload, table)).for_each(take);
            }
            Err(error) if unknown_to_kernel(&error) => {
                notes.push(format!("{device}: this kernel does not list {}", kind(table)));
            }
            Err(error) => notes.push(format!("{device}: cannot list {} ({error})", kind(table))),
        };
        of(Command::ResQpGet, attr::RES_QP, &mut |e| objects.qps.extend(reading.qp(e)));
        of(Command::ResCqGet, attr::RES_CQ, &mut |e| objects.cqs.extend(reading.cq(e)));
        of(Command::ResMrGet, attr::RES_MR, &mut |e| objects.mrs.extend(reading.mr(e)));
        of(Command::ResPdGet, attr::RES_PD, &mut |e| objects.pds.extend(reading.pd(e)));
        of(Command::ResCmIdGet, attr::RES_CM_ID, &mut |e| objects.cm_ids.extend(reading.cm_id(e)));
        of(Command::ResCtxGet, attr::RES_CTX, &mut |e| objects.contexts.extend(reading.context(e)));
        of(Command::ResSrqGet, attr::RES_SRQ, &mut |e| objects.srqs.extend(reading.srq(e)));
    }
    objects
}

/// Kernels before 5.13 have no contexts and SRQs in their lists.
fn unknown_to_kernel(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

fn kind(table: u16) -> &'static str {
    match table {
        attr::RES_QP => "QPs",
        attr::RES_CQ => "CQs",
        attr::RES_MR => "MRs",
        attr::RES_PD => "PDs",
        attr::RES_CM_ID => "connection identifiers",
        attr::RES_CTX => "contexts",
        _ => "SRQs",
    }
}

fn comm(pid: u32) -> Option<String> {
    Some(std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

fn owners(objects: &Objects) -> Vec<OwnerTotals> {
    type Key = (Option<u32>, Option<String>);
    let mut totals: BTreeMap<Key, OwnerTotals> = BTreeMap::new();
    let mut count = |owner: &Owner, add: &dyn Fn(&mut OwnerTotals)| {
        let entry = totals.entry((owner.pid, owner.kernel.clone())).or_default();
        entry.owner = owner.clone();
        add(entry);
    };
    objects.qps.iter().for_each(|o| count(&o.owner, &|t| t.qps += 1));
    objects.cqs.iter().for_each(|o| count(&o.owner, &|t| t.cqs += 1));
    for mr in &objects.mrs {
        count(&mr.owner, &|t| {
            t.mrs += 1;
            t.mr_bytes = t.mr_bytes.saturating_add(mr.length_bytes);
        });
    }
    objects.pds.iter().for_each(|o| count(&o.owner, &|t| t.pds += 1));
    objects.cm_ids.iter().for_each(|o| count(&o.owner, &|t| t.cm_ids += 1));
    objects.contexts.iter().for_each(|o| count(&o.owner, &|t| t.contexts += 1));
    objects.srqs.iter().for_each(|o| count(&o.owner, &|t| t.srqs += 1));
    let mut totals: Vec<_> = totals.into_values().collect();
    totals.sort_by_key(|t| std::cmp::Reverse((t.qps, t.mr_bytes, t.mrs, t.contexts)));
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_subsystem_the_inventory_says_so_and_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let inventory = inventory_below(&folder.path().join("infiniband"));
        assert!(inventory.unavailable.as_deref().unwrap().contains("no RDMA subsystem"));
        assert_eq!((inventory.devices.len(), inventory.objects), (0, None));
    }

    #[test]
    fn owners_add_up_their_objects_and_the_largest_comes_first() {
        let owner = |pid| Owner { pid: Some(pid), ..Owner::default() };
        let mr = |pid, length_bytes| Mr {
            device: "d".into(),
            mrn: None,
            length_bytes,
            iova: None,
            lkey: None,
            rkey: None,
            pdn: None,
            owner: owner(pid),
        };
        let objects = Objects { mrs: vec![mr(1, 10), mr(2, 1000), mr(1, 20)], ..Objects::default() };
        let totals = owners(&objects);
        assert_eq!((totals[0].owner.pid, totals[0].mr_bytes), (Some(2), 1000));
        assert_eq!((totals[1].owner.pid, totals[1].mrs, totals[1].mr_bytes), (Some(1), 2, 30));
    }

    #[test]
    fn a_guid_is_written_as_the_kernel_writes_it() {
        assert_eq!(guid(0x18bb_79ff_fe37_3112), "18bb:79ff:fe37:3112");
        assert_eq!(guid(1), "0000:0000:0000:0001");
    }
}
