//! What was made before the recording, or without a probe that tells of it, is not known: nothing is made up of it.

use std::collections::BTreeMap;

use probe_user::doctor::{Diagnosis, Settings, Undecided, examine};
use probe_user::sample::{Call, Probe, QueueCounts, Record, Verdict};

use super::case::{Case, SECOND, busy};

/// Queue pairs that nobody saw being made, with those counts.
fn met_running(counts: QueueCounts) -> Case {
    let mut case = Case::new();
    case.sampled(10 * SECOND, counts, Vec::new());
    case
}

fn diagnosis(case: &Case) -> Diagnosis {
    examine(&case.0, &Settings::default())
}

/// Why a rule could not decide.
fn open(case: &Case, id: &str) -> Option<String> {
    let open = diagnosis(case).open;
    let found = open.into_iter().find(|open| open.rules.contains(&id))?;
    assert_eq!(found.verdict, Undecided::NotObservable);
    Some(found.why)
}

#[test]
fn a_send_queue_of_unknown_depth_is_not_said_to_have_room() {
    let (mut qp, _) = busy();
    qp.post_failed = 1000;
    qp.post_errnos = BTreeMap::from([(0, 1000)]);
    let found = met_running(qp.clone()).has("send-queue-full");
    assert!(found.evidence[0].text.ends_with("failed on QPN 17"), "an errno of 0 is none: {found:#?}");
    qp.post_errnos = BTreeMap::from([(libc::ENOMEM, 1000)]);
    let found = met_running(qp.clone()).has("send-queue-full");
    assert_eq!(found.title, "1,000 posts refused");
    let text = format!("{:?}{}", found.evidence, found.cause);
    assert!(text.contains("created before the recording began") && text.contains("three causes"), "{text}");
    assert!(!text.contains("granted"), "{text}");
    // Of one that was seen being made it is known.
    let known = Case::new().queues().counts(qp, QueueCounts::default()).has("send-queue-full");
    assert!(known.title.contains("not full"), "{known:#?}");
}

#[test]
fn timers_of_connections_older_than_the_recording_are_not_called_good() {
    let (qp, _) = busy();
    let running = met_running(qp);
    for id in ["rnr-timer-zero", "rnr-retry-zero", "ack-timeout-never", "ack-timeout-short"] {
        let why = open(&running, id);
        assert!(why.is_some_and(|why| why.contains("before the recording")), "{id}");
    }
    assert_eq!(open(&Case::new().queues(), "rnr-timer-zero"), None);
}

#[test]
fn without_a_probe_on_control_calls_their_rules_say_that_nothing_was_seen() {
    let (qp, _) = busy();
    let probe = |verdict| {
        Record::Probe(Probe {
            name: "ibv_reg_mr".into(),
            place: "/lib/libibverbs.so.1+0x10".into(),
            call: Some(Call::RegMr),
            t_ns: 1,
            late_ns: None,
            verdict,
        })
    };
    let with = |verdict| {
        let mut case = met_running(qp.clone());
        case.0.push(&probe(verdict));
        case
    };
    let denied = with(Verdict::Denied { missing: "CAP_BPF".into() });
    for id in ["registration-repeated", "mr-leak", "qp-leak"] {
        assert!(open(&denied, id).is_some_and(|why| why.contains("not observed")), "{id}");
    }
    assert_eq!(open(&with(Verdict::Live), "registration-repeated"), None);
}
