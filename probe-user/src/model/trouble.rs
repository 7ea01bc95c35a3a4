//! Samples in which counters of loss or congestion grew: what is slow in them, or right after, and fast in others is slow
//! because of the network.
//!
//! No history is kept: latencies of these samples are added up apart ([`super::Tally::troubled`]), and
//! those of the others are the difference to all.

use std::collections::BTreeMap;

use crate::sample::{Device, Histogram};

/// Counters of packets that were lost, damaged or sent again.
pub const LOSS_COUNTERS: [&str; 14] = [
    "out_of_sequence",
    "packet_seq_err",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "symbol_error",
    "port_rcv_errors",
    "port_xmit_discards",
    "rx_icrc_encapsulated",
    "retry_exceeded_err",
    "rcvd_seq_err",
    "out_of_seq_request",
    "retransmits",
];

/// What is sent again after an ACK timeout or a gap, by the emulated device and by soft-RoCE: a packet need not be lost for
/// that, it is enough that a peer was away.
pub const SENT_AGAIN: [&str; 2] = ["retries", "completer_retry_err"];

/// Counters of packets that tell of congestion.
pub const CONGESTION_COUNTERS: [&str; 3] = ["np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets"];

/// Signs of congestion a second from where on they are more than congestion control feeling its way.
pub const CONGESTED_PER_SECOND: f64 = 100.0;

/// How many samples were troubled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Trouble {
    /// Intervals from sample to sample.
    pub intervals: u64,
    /// Those in which counters of loss or congestion grew.
    pub grew: u64,
    /// These and the ones right after: what was lost at the end of one is reaped in the next.
    pub troubled: u64,
    /// Time in those.
    pub troubled_ns: u64,
    /// Whether counters grew in the interval before, and in this one, which ends at `until_ns`.
    before: bool,
    now: bool,
    until_ns: u64,
}

impl Trouble {
    /// Takes in an interval, or another part of it; whether it is a troubled one.
    pub(super) fn passed(&mut self, (from_ns, to_ns): (u64, u64), grew: bool) -> bool {
        if self.intervals == 0 || to_ns > self.until_ns {
            (self.before, self.now, self.until_ns) = (self.now, false, to_ns);
            self.intervals += 1;
            if self.before {
                self.add(to_ns.saturating_sub(from_ns));
            }
        }
        if grew && !self.now {
            self.now = true;
            self.grew += 1;
            if !self.before {
                self.add(to_ns.saturating_sub(from_ns));
            }
        }
        self.now || self.before
    }

    fn add(&mut self, length_ns: u64) {
        self.troubled += 1;
        self.troubled_ns = self.troubled_ns.saturating_add(length_ns);
    }
}

/// What a queue did in troubled samples.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Troubled {
    /// From post to reap.
    pub latency_ns: Histogram,
    /// Send work requests.
    pub wrs: u64,
}

/// Whether counters of loss or congestion grew from what is known of the devices to what a sample tells. A counter that
/// is told for the first time says nothing, unless the emulated device has it, which counts from nothing.
pub(super) fn grew(known: &BTreeMap<String, Device>, told: &[Device], interval_ns: u64) -> bool {
    let (mut loss, mut congestion) = (0_u64, 0_u64);
    for device in told {
        let before = known.get(&device.name);
        for port in &device.ports {
            let of_port =
                before.and_then(|device| device.ports.iter().find(|known| known.number == port.number));
            let growth = |name: &str| {
                let now = *port.counters.get(name)?;
                let first = device.emulated.then_some(0);
                let earlier = of_port.and_then(|port| port.counters.get(name).copied()).or(first)?;
                Some(now.saturating_sub(earlier))
            };
            let sum =
                |names: &[&str]| names.iter().filter_map(|name| growth(name)).fold(0, u64::saturating_add);
            loss = loss.saturating_add(sum(&LOSS_COUNTERS)).saturating_add(sum(&SENT_AGAIN));
            congestion = congestion.saturating_add(sum(&CONGESTION_COUNTERS));
        }
    }
    loss > 0 || congestion as f64 * 1e9 > CONGESTED_PER_SECOND * interval_ns.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Port;

    fn device(counters: &[(&str, u64)]) -> Device {
        let counters = counters.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        let port = Port { number: 1, counters, ..Port::default() };
        Device { name: "mlx5_0".into(), ports: vec![port], ..Device::default() }
    }

    fn grows(before: &[(&str, u64)], after: &[(&str, u64)]) -> bool {
        let known = BTreeMap::from([("mlx5_0".to_owned(), device(before))]);
        grew(&known, &[device(after)], 1_000_000_000)
    }

    #[test]
    fn an_interval_is_troubled_with_the_one_after_it_and_counts_once_whatever_its_parts() {
        let mut trouble = Trouble::default();
        let passed: Vec<bool> = [(10, false), (20, true), (20, false), (30, false), (40, false)]
            .into_iter()
            .map(|(to, grew)| trouble.passed((to - 10, to), grew))
            .collect();
        assert_eq!(passed, [false, true, true, true, false]);
        assert_eq!((trouble.intervals, trouble.grew, trouble.troubled, trouble.troubled_ns), (4, 1, 2, 20));
    }

    #[test]
    fn one_lost_packet_is_trouble_and_a_few_signs_of_congestion_are_not() {
        assert!(grows(&[("out_of_sequence", 7)], &[("out_of_sequence", 8)]));
        assert!(!grows(&[("out_of_sequence", 7)], &[("out_of_sequence", 7)]));
        assert!(!grows(&[("np_cnp_sent", 0)], &[("np_cnp_sent", 99)]));
        assert!(grows(&[("np_cnp_sent", 0)], &[("np_cnp_sent", 500)]));
        assert!(!grows(&[("port_xmit_data", 0)], &[("port_xmit_data", 5_000_000)]));
    }

    #[test]
    fn a_counter_told_for_the_first_time_or_set_back_has_not_grown() {
        assert!(!grows(&[], &[("out_of_sequence", 800)]));
        assert!(!grows(&[("out_of_sequence", 800)], &[("out_of_sequence", 3)]));
        assert!(!grew(&BTreeMap::new(), &[device(&[("out_of_sequence", 800)])], 1));
        let emulated = Device { emulated: true, ..device(&[(SENT_AGAIN[0], 3)]) };
        assert!(grew(&BTreeMap::new(), &[emulated], 1));
    }
}
