//! Rules on registration and memory.

use std::collections::BTreeMap;

use probe_user::sample::{Call, Detail, Facts, Header, RegistrationSplit};

use super::case::{Case, SECOND, nic, region};
use crate::common::{header, mr};

#[test]
fn memory_touched_first_inside_registration() {
    let touched = |faults| {
        let split = RegistrationSplit { page_faults: Some(faults), ..RegistrationSplit::default() };
        Case::new().event(10, 50_000_000, Call::RegMr, region(128 << 20, split))
    };
    touched(32_768).has("registration-first-touch");
    touched(64).lacks("registration-first-touch");
}

#[test]
fn huge_memory_registered_one_piece_after_the_other() {
    let pieces = |start: fn(u64) -> u64| {
        (0..4).fold(Case::new(), |case, i| {
            case.event(start(i), SECOND, Call::RegMr, mr(i + 1, (i + 1) << 40, 8 << 30))
        })
    };
    let found = pieces(|i| i * SECOND).has("registration-serial");
    assert!(found.cost.cpu_share.unwrap() > 0.3, "{found:#?}");
    pieces(|i| i).lacks("registration-serial");
}

#[test]
fn registering_threads_that_wait_for_each_other() {
    let threads = |stretch: u64| {
        (0..400).fold(Case::new(), |case, i| {
            let duration = if i % 8 == 0 { 10_000 } else { 10_000 * stretch };
            case.event(i * 2000, duration, Call::RegMr, mr(i + 1, (i + 1) << 20, 4096))
        })
    };
    threads(8).has("registration-contended");
    threads(1).lacks("registration-contended");
}

#[test]
fn on_demand_paging_that_faults() {
    let on_demand = |faults: u64| {
        let mut case = Case::with(Header { devices: vec![nic(&[("page_faults", 10)])], ..header() });
        case = case.event(
            10,
            5,
            Call::RegMr,
            Detail::Mr {
                mr: 1,
                pd: 1,
                addr: 0,
                length_bytes: 1 << 30,
                access: 1 << 6,
                lkey: 1,
                rkey: 1,
                split: RegistrationSplit::default(),
            },
        );
        case.devices(vec![nic(&[("page_faults", 10 + faults)])])
    };
    on_demand(5000).has("odp-faults");
    on_demand(5).lacks("odp-faults");
}

#[test]
fn the_limit_on_locked_memory_is_told_from_other_wants_of_memory() {
    let limited = |may_lock_more| Facts {
        memlock_limit_bytes: Some(65_536),
        may_lock_more: Some(may_lock_more),
        ..Facts::default()
    };
    let failed = || Case::new().failed(Call::RegMr, libc::ENOMEM, mr(0, 1, 1 << 20));
    let found = failed().facts(limited(false)).findings();
    assert_eq!((found[0].id, found.len()), ("memlock-limit", 1));
    assert!(found[0].title.contains("64 KiB"), "{}", found[0].title);
    let found = failed().facts(limited(true)).findings();
    assert_eq!((found[0].id, found.len()), ("registration-failed", 1));
}

#[test]
fn huge_pages_under_fork_protection_and_gpu_memory_have_rules_of_their_own() {
    let refused = || Case::new().failed(Call::RegMr, libc::EINVAL, mr(0, 1, 1 << 20));
    let fork = Facts {
        hugetlb_bytes: Some(1 << 30),
        environment: BTreeMap::from([("RDMAV_FORK_SAFE".into(), "1".into())]),
        ..Facts::default()
    };
    let found = refused().facts(fork).findings();
    assert_eq!(found[0].id, "hugepages-fork-unsafe");
    assert!(!found.iter().any(|f| f.id == "registration-failed"));
    let gpu = Facts { gpus: vec!["/dev/nvidia0".into()], ..Facts::default() };
    assert_eq!(refused().facts(gpu).findings()[0].id, "gpu-memory-refused");
    assert_eq!(refused().findings()[0].id, "registration-failed");
}

#[test]
fn giving_memory_back_for_seconds() {
    let gives = |ns| {
        Case::new().event(1, 10, Call::RegMr, mr(1, 0, 1 << 30)).event(
            SECOND,
            ns,
            Call::DeregMr,
            mr(1, 0, 1 << 30),
        )
    };
    gives(3 * SECOND).has("deregistration-slow");
    gives(1_000_000).lacks("deregistration-slow");
}
