//! Rules on the ports, the device and where the process runs; latency that rises with loss.

use probe_user::doctor::Severity;
use probe_user::sample::{
    Device, Facts, Header, Histogram, Machine, Opcode, Placement, QueueCounts, QueueDetail, ReapLatency,
};

use super::case::{Case, SECOND, nic, with_nic};
use crate::common::header;

#[test]
fn a_device_nearly_full() {
    let device = |max_qp| {
        let mut device = nic(&[]);
        device.limits.max_qp = Some(max_qp);
        with_nic(device)
    };
    device(1).has("device-limit-near");
    device(100_000).lacks("device-limit-near");
}

#[test]
fn counters_of_the_ports_that_grow() {
    let grows =
        |name: &'static str, by: u64| with_nic(nic(&[(name, 7)])).devices(vec![nic(&[(name, 7 + by)])]);
    let found = grows("out_of_sequence", 500).has("packets-lost");
    assert!(found.process.is_none() && found.evidence[0].text.contains("+500"), "{found:#?}");
    grows("out_of_sequence", 1).lacks("packets-lost");
    grows("np_cnp_sent", 100_000).has("network-congested");
    grows("np_cnp_sent", 10).lacks("network-congested");
    grows("rnr_nak_retry_err", 5000).has("receiver-not-ready");
    grows("rnr_nak_retry_err", 5).lacks("receiver-not-ready");
}

#[test]
fn placement_of_process_and_device() {
    let on = |cpu_nodes: Vec<u32>| {
        let mut device = nic(&[]);
        device.placement.node = Some(1);
        let machine = Machine { nodes: vec![0, 1], ..Machine::default() };
        Case::with(Header { devices: vec![device], machine, ..header() })
            .queues()
            .facts(Facts { cpu_nodes, ..Facts::default() })
    };
    assert!(on(vec![0]).has("numa-remote").remedy.contains("--cpunodebind=1"));
    on(vec![0, 1]).lacks("numa-remote");
    let slot = |lanes| {
        let placement = Placement {
            pcie_lanes: Some(lanes),
            pcie_max_lanes: Some(16),
            pcie_mtps: Some(8000),
            pcie_max_mtps: Some(8000),
            ..Placement::default()
        };
        with_nic(Device { placement, ..nic(&[]) })
    };
    slot(8).has("pcie-narrow");
    slot(16).lacks("pcie-narrow");
    let through = |iommu: &str| {
        let placement = Placement { iommu: iommu.into(), ..Placement::default() };
        with_nic(Device { placement, ..nic(&[]) })
    };
    through("DMA-FQ").has("iommu-translates");
    through("identity").lacks("iommu-translates");
}

/// Thirteen samples, a second apart: in every fourth one the counter grows, and in the next latencies are `slow_ns`, as of
/// what was lost at its end; else 3 µs.
fn with_loss(counter: &'static str, slow_ns: u64) -> Case {
    let mut case = with_nic(nic(&[(counter, 0)]));
    let (mut latency_ns, mut wrs) = (Histogram::default(), 0);
    for second in 1..=13 {
        let late = second % 4 == 1 && second > 1;
        (0..1000).for_each(|_| latency_ns.record(if late { slow_ns } else { 3000 }));
        wrs += 1000;
        let latency =
            ReapLatency { opcode: Opcode::RdmaWrite, size_class: 8, latency_ns: latency_ns.clone() };
        let detail = QueueDetail { post_to_reap_ns: vec![latency], ..QueueDetail::default() };
        let counts =
            QueueCounts { wrs, post_calls: wrs, detail: Some(Box::new(detail)), ..QueueCounts::default() };
        case.sampled(second * SECOND, counts, vec![nic(&[(counter, second / 4 * 500)])]);
    }
    case
}

#[test]
fn latency_that_rises_with_the_counters_of_loss_and_only_with_those() {
    let found = with_loss("out_of_sequence", 40_000_000).has("latency-with-loss");
    assert_eq!(found.severity, Severity::Problem);
    let text: String = found.evidence.iter().map(|line| line.text.as_str()).collect();
    assert!(text.contains("counters grew in 3 of 13 samples"), "{found:#?}");
    assert!(text.contains("QPN 17") && text.contains("out_of_sequence +1,500"), "{found:#?}");
    assert!(found.cost.us_per_message.is_some_and(|us| us > 15_000.0), "{found:#?}");
    assert_eq!(with_loss("np_cnp_sent", 60_000).has("latency-with-loss").severity, Severity::Warning);
    // Counters that grow and latency that stays, and the other way round.
    with_loss("out_of_sequence", 3100).lacks("latency-with-loss");
    with_loss("rx_write_requests", 40_000_000).lacks("latency-with-loss");
}

#[test]
fn what_a_port_waits_is_told_in_ticks_and_not_in_marked_packets() {
    let waits =
        |ticks: u64| with_nic(nic(&[("port_xmit_wait", 0)])).devices(vec![nic(&[("port_xmit_wait", ticks)])]);
    waits(1_000_000).lacks("network-congested");
    assert!(waits(1_000_000_000).has("network-congested").title.contains("cannot"));
}
