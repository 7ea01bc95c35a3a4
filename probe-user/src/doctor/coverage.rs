//! What a diagnosis is to cover, and the rules that do.

/// What goes wrong in programs that use RDMA, and the rules that tell it.
pub(super) const COVERED: &[(&str, &[&str])] = &[
    ("registration in the hot path", &["registration-hot"]),
    (
        "the same range registered again, per connection, or per protection domain",
        &["registration-repeated", "registration-per-connection", "registration-per-domain"],
    ),
    ("4 KiB pages under large regions", &["registration-small-pages"]),
    ("memory touched first inside registration", &["registration-first-touch"]),
    (
        "huge memory registered one piece after the other; threads that wait for each other",
        &["registration-serial", "registration-contended"],
    ),
    ("limits on locked memory and on mappings", &["memlock-limit", "memlock-near", "map-count-near"]),
    (
        "fork protection: not needed, refused on huge pages, slow to find their size",
        &["fork-protection-unneeded", "hugepages-fork-unsafe", "hugepages-safe-slow"],
    ),
    ("memory regions that are never given back, by the place that makes them", &["mr-leak"]),
    ("giving memory back that takes seconds", &["deregistration-slow"]),
    ("registrations that are refused, of GPU memory too", &["registration-failed", "gpu-memory-refused"]),
    ("on-demand paging that faults", &["odp-faults"]),
    ("the device's limits of queue pairs and regions near", &["device-limit-near"]),
    ("queue pairs that are never destroyed, or kept after an error", &["qp-leak", "qp-in-error"]),
    ("queue pairs made anew for each little work", &["qp-churn"]),
    ("queues that cannot be created", &["queue-creation-failed"]),
    ("more queue pairs than a NIC caches", &["many-qps"]),
    ("one queue pair alone on a NIC with several units or a bonded pair of ports", &["one-queue-pair"]),
    ("far more busy queue pairs than 2 to 4 per unit", &["qps-above-units"]),
    ("READs and WRITEs mixed on one queue pair under load", &["reads-and-writes-mixed"]),
    ("a completion queue per queue pair", &["cq-per-qp"]),
    ("a completion queue too small for what may complete", &["cq-too-small", "cq-overrun"]),
    ("polling where work is rare, events where it is not", &["busy-poll-idle", "events-at-high-rate"]),
    ("waiting for an event though completions are there", &["event-lost-wakeup"]),
    (
        "everything signalled, nothing, or too late",
        &["everything-signalled", "nothing-signalled", "unsignalled-run-long"],
    ),
    ("one request per post, neighbours sent apart", &["one-wr-per-post", "adjacent-wrs"]),
    ("small payloads not inlined", &["small-not-inlined"]),
    ("a full send queue, and what refuses a post otherwise", &["send-queue-full"]),
    ("atomics on one address", &["atomics-hot"]),
    ("payloads that cross cache lines", &["unaligned-payload"]),
    ("random access beyond the reach of translations", &["random-beyond-reach"]),
    ("several threads on one queue pair", &["threads-share-qp"]),
    ("the time between completion and next post", &["host-gap-dominates"]),
    (
        "RNR: timer 0, no retry, retry for ever while they grow, receives posted too late",
        &["rnr-timer-zero", "rnr-retry-zero", "receiver-not-ready", "receives-after-rtr"],
    ),
    (
        "acknowledgement timeouts at the extremes",
        &["ack-timeout-never", "ack-timeout-long", "ack-timeout-short"],
    ),
    ("max_rd_atomic 1 with READs", &["reads-one-at-a-time"]),
    ("a path MTU that is not the port's", &["path-mtu-small", "path-mtu-large"]),
    ("a GID index of the wrong type, a peer that does not resolve", &["gid-wrong-type", "peer-unresolved"]),
    ("a traffic class that some connections lack", &["traffic-class-mixed"]),
    ("state changes that are refused", &["qp-change-failed"]),
    (
        "errors traced to peer, queue pair, regions and the places that made them",
        &[
            "retry-exceeded",
            "rnr-retry-exceeded",
            "remote-access-error",
            "remote-invalid-request",
            "local-protection-error",
            "requests-flushed",
        ],
    ),
    ("connections that take long or are refused", &["connect-slow", "connect-failed"]),
    (
        "counters of loss and congestion that rise, and latency with them",
        &["packets-lost", "network-congested", "latency-with-loss"],
    ),
    (
        "the wrong NUMA node, a narrow PCIe slot, an IOMMU that translates",
        &["numa-remote", "pcie-narrow", "iommu-translates"],
    ),
    ("a data path that cannot be seen", &["data-path-unseen"]),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::rules::RULES;
    use super::*;

    #[test]
    fn every_rule_covers_something_and_everything_covered_has_its_rule() {
        let named: BTreeSet<&str> = COVERED.iter().flat_map(|(_, rules)| rules.iter().copied()).collect();
        let rules: BTreeSet<&str> = RULES.iter().map(|rule| rule.id).collect();
        assert_eq!(named, rules);
    }
}
