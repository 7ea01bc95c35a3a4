//! What is said of rules that cannot know, of samples, and the order of findings.

use probe_user::doctor::{Settings, Undecided, examine};
use probe_user::sample::{
    Call, Counting, Detail, Device, Observed, ObservedBy, QpAttributes, QueueCounts, Record, Sample,
};

use super::case::{Case, SECOND, busy, nic, with_nic};
use crate::common::{ALICE, mr};

#[test]
fn a_busy_and_healthy_process_has_no_finding() {
    let (qp, cq) = busy();
    let findings = with_nic(nic(&[])).counts(qp, cq).findings();
    assert!(findings.is_empty(), "{findings:#?}");
}

#[test]
fn a_data_path_that_cannot_be_seen_is_said_so() {
    let nothing = Observed { why: "work requests are written without a call".into(), ..Observed::default() };
    let rts = QpAttributes { to: Some("RTS".into()), ..QpAttributes::default() };
    let none = QueueCounts::default();
    let found = Case::new().queues().rtr(rts.clone()).observed(none.clone(), none.clone(), nothing);
    // `rtr` sets its own state; go on to RTS.
    let ready = QpAttributes { qp: 10, qpn: 17, ..rts };
    found.event(6, 1, Call::ModifyQp, Detail::ModifyQp(ready)).has("data-path-unseen");
    Case::new().queues().lacks("data-path-unseen");
}

#[test]
fn on_the_emulated_device_without_timing_what_a_nic_would_save_ranks_behind_what_is_wrong() {
    let (qp, cq) = busy();
    let mut qp = QueueCounts { signalled: qp.wrs, post_calls: qp.wrs, ..qp };
    qp.detail.as_mut().unwrap().unaligned_64 = Some(qp.wrs);
    let device = Device { name: "emu0".into(), driver: "rnic-emu".into(), emulated: true, ..nic(&[]) };
    let mut model = with_nic(device).counts(qp, cq).0;
    model.push(&Record::Sample(Sample { t_ns: 10 * SECOND, ..Sample::default() }));
    let diagnosis = examine(&model, &Settings::default());
    let ids: Vec<_> = diagnosis.findings.iter().map(|f| f.id).collect();
    assert_eq!(ids, ["unaligned-payload", "everything-signalled", "one-wr-per-post"]);
    let open: Vec<_> = diagnosis.open.iter().flat_map(|open| open.rules.clone()).collect();
    for id in ["small-not-inlined", "one-queue-pair", "random-beyond-reach"] {
        assert!(open.contains(&id), "{id} says nothing of what it cannot see: {open:?}");
    }
}

#[test]
fn what_was_sampled_lowers_the_confidence_and_says_so() {
    let (mut qp, cq) = busy();
    qp.signalled = qp.wrs;
    let sampled =
        Observed { by: ObservedBy::Function, counting: Counting::Ratios, share: 0.1, ..Observed::default() };
    let whole = Case::new().queues().counts(qp.clone(), cq.clone()).has("everything-signalled");
    let part = Case::new().queues().observed(qp, cq, sampled).has("everything-signalled");
    assert!(part.confidence < whole.confidence);
    assert_eq!(part.cost.cpu_share, None, "ratios tell no rate");
}

#[test]
fn rules_on_posts_say_that_posts_were_not_seen() {
    let mut model = Case::new().queues().0;
    model.push(&Record::Sample(Sample { t_ns: 10 * SECOND, ..Sample::default() }));
    let open = examine(&model, &Settings::default()).open;
    let unseen = open.iter().find(|o| o.rules.contains(&"one-wr-per-post")).unwrap();
    assert_eq!(
        (unseen.verdict, unseen.processes.as_slice()),
        (Undecided::NotObservable, [ALICE.pid].as_slice())
    );
}

#[test]
fn several_faults_are_all_named_the_dearest_first() {
    let (mut qp, cq) = busy();
    qp.signalled = qp.wrs;
    qp.post_calls = qp.wrs;
    let mut case = with_nic(Device { driver: "rdma_rxe".into(), ..nic(&[]) }).counts(qp, cq);
    for i in 0..1000 {
        case = case.event(SECOND + i * 1_000_000, 500_000, Call::RegMr, mr(1, 4096, 4096)).event(
            SECOND + i * 1_000_000 + 500_000,
            100_000,
            Call::DeregMr,
            mr(1, 4096, 4096),
        );
    }
    let found: Vec<_> = case.findings().iter().map(|f| f.id).collect();
    assert_eq!(found[..3], ["registration-repeated", "one-wr-per-post", "everything-signalled"], "{found:?}");
}

#[test]
fn a_process_that_posts_nothing_is_not_said_to_hide_its_posts() {
    let silent = |device: Device| {
        let nothing = Observed { why: probe_user::sample::NO_POST_SEEN.into(), ..Observed::default() };
        let rts = QpAttributes { qp: 10, qpn: 17, to: Some("RTS".into()), ..QpAttributes::default() };
        let none = QueueCounts::default();
        with_nic(device).event(6, 1, Call::ModifyQp, Detail::ModifyQp(rts)).observed(
            none.clone(),
            none,
            nothing,
        )
    };
    let found = silent(nic(&[])).has("data-path-unseen");
    assert!(found.title.contains("was seen"), "{found:#?}");
    // Every post on the emulated device is seen.
    let emulated = Device { name: "emu0".into(), driver: "rnic-emu".into(), emulated: true, ..nic(&[]) };
    silent(emulated).lacks("data-path-unseen");
}
