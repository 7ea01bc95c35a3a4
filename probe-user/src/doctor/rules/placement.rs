//! Where the process and the device sit in the machine.

use super::super::finding::{Confidence, Severity};
use super::super::rule::{Case, Check, Plane, Rule, Shown, Verdict};
use super::super::subject::{Host, Subject};

/// Another NUMA node.
pub static NUMA: Rule = Rule {
    id: "numa-remote",
    title: "the process may run only on another NUMA node than the device's",
    looks_at: "nodes of the processors the process may run on, against the node of each device",
    plane: Plane::Surroundings,
    thresholds: &[],
    cause: "Every doorbell, completion and payload crosses the link between the sockets: latency rises by some hundred ns, and bandwidth may halve.",
    remedy: "Bind the process to the device's node: numactl --cpunodebind=N --membind=N CMD, taskset, or the launcher's binding (mpirun --map-by numa, srun --cpu-bind); the node is in /sys/class/infiniband/DEV/device/numa_node.",
    unless: "devices of several nodes are used, or the process is bound so for another device (a GPU).",
    workload: None,
    shown: Shown::Synthetic { why: "it needs a machine with two nodes and a device" },
    links: &["https://docs.kernel.org/admin-guide/mm/numa_memory_policy.html"],
    met: &["open-mpi/ompi#6888"],
    check: Check::Process(numa),
};

/// A slot or cable that gives less than the device could use.
pub static PCIE: Rule = Rule {
    id: "pcie-narrow",
    title: "the device's PCIe link is narrower or slower than it could be",
    looks_at: "PCIe lanes and speed in use against those the device has",
    plane: Plane::Device,
    thresholds: &[],
    cause: "The link was trained with fewer lanes or at a lower speed: a slot of fewer lanes, a riser, dirty contacts, or power saving. Bandwidth is bound by it.",
    remedy: "Look at `lspci -vv` (LnkSta is what it runs at, LnkCap what it could): reseat the card, move it to a slot with all lanes, or set the slot's speed in the firmware's set-up.",
    unless: "the port's own rate needs no more.",
    workload: None,
    shown: Shown::Synthetic { why: "it needs a device in such a slot" },
    links: &["https://docs.kernel.org/PCI/index.html"],
    met: &["linux-rdma/perftest#241"],
    check: Check::Host(pcie),
};

/// Translation on the way.
pub static IOMMU: Rule = Rule {
    id: "iommu-translates",
    title: "the IOMMU translates every access of the device",
    looks_at: "the type of the device's IOMMU group",
    plane: Plane::Device,
    thresholds: &[],
    cause: "Each DMA goes through the IOMMU's tables: registration maps every page there too, and transfers between NIC and GPU take the way through the processor (the root complex), slowly or not at all.",
    remedy: "Boot with iommu=pt (pass-through; intel_iommu=on or amd_iommu=on stays). Where a GPU and the NIC talk to each other, also switch ACS (which forces their traffic through the processor) off on the PCIe bridges between them.",
    unless: "the device is handed to a virtual machine, or untrusted devices share the machine.",
    workload: None,
    shown: Shown::Synthetic { why: "it needs a machine with an IOMMU" },
    links: &["https://docs.kernel.org/admin-guide/kernel-parameters.html"],
    met: &["NVIDIA/nccl#489", "NVIDIA/nccl#1737", "linux-rdma/perftest#241"],
    check: Check::Host(iommu),
};

fn numa(subject: &Subject<'_>) -> Verdict {
    let nodes = &subject.model.header.machine.nodes;
    let Some(facts) = subject.facts().filter(|_| nodes.len() > 1) else { return Verdict::Clear };
    if facts.cpu_nodes.is_empty() {
        return Verdict::Clear;
    }
    let placed: Vec<(&str, u32)> = subject
        .model
        .devices
        .values()
        .filter_map(|device| Some((device.name.as_str(), device.placement.node?)))
        .collect();
    // Which device a process uses is not known where there are several: only when it is far from all is it said.
    if placed.is_empty() || placed.iter().any(|(_, node)| facts.cpu_nodes.contains(node)) {
        return Verdict::Clear;
    }
    let devices: Vec<String> = placed.iter().map(|(name, node)| format!("{name} on node {node}")).collect();
    Case::new(Severity::Warning, Confidence::High, NUMA.title)
        .because(format!("it is bound to processors of node {}", list(&facts.cpu_nodes)))
        .because(devices.join(", "))
        .remedy(format!(
            "Bind it to the device's node: numactl --cpunodebind={0} --membind={0} CMD, or by the launcher (mpirun --map-by numa, srun --cpu-bind).",
            placed[0].1
        ))
        .found()
}

fn list(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// Bandwidth of a link, Gb/s, protocol overhead aside.
fn gbps(lanes: u32, mtps: u32) -> f64 {
    // 8b/10b coding up to generation 2, 128b/130b from 3 on.
    let coding = if mtps <= 5000 { 0.8 } else { 128.0 / 130.0 };
    f64::from(lanes) * f64::from(mtps) / 1000.0 * coding
}

fn pcie(host: &Host<'_>) -> Verdict {
    let mut case: Option<Case> = None;
    for device in host.model.devices.values() {
        let p = &device.placement;
        let (Some(lanes), Some(max_lanes)) = (p.pcie_lanes, p.pcie_max_lanes) else { continue };
        let (mtps, max_mtps) = (p.pcie_mtps.unwrap_or(0), p.pcie_max_mtps.unwrap_or(0));
        if lanes >= max_lanes && mtps >= max_mtps {
            continue;
        }
        let needed: f64 = device.ports.iter().map(|port| f64::from(port.rate_100mbps) / 10.0).sum();
        let given = gbps(lanes, mtps);
        if needed > 0.0 && given >= needed {
            continue;
        }
        let line = format!(
            "{}: {lanes} of {max_lanes} lanes at {:.1} of {:.1} GT/s: {given:.0} Gb/s for ports of {needed:.0} Gb/s",
            device.name,
            f64::from(mtps) / 1000.0,
            f64::from(max_mtps) / 1000.0
        );
        case = Some(
            case.unwrap_or_else(|| Case::new(Severity::Warning, Confidence::High, PCIE.title)).because(line),
        );
    }
    case.map_or(Verdict::Clear, Case::found)
}

fn iommu(host: &Host<'_>) -> Verdict {
    let translated: Vec<String> = host
        .model
        .devices
        .values()
        .filter(|device| device.placement.iommu.starts_with("DMA"))
        .map(|device| format!("{}: IOMMU group of type {}", device.name, device.placement.iommu))
        .collect();
    if translated.is_empty() {
        return Verdict::Clear;
    }
    let mut case = Case::new(Severity::Note, Confidence::Medium, IOMMU.title);
    for line in translated {
        case = case.because(line);
    }
    case.found()
}
