//! What is never given back at one place of a program that gives back what it makes elsewhere.

use probe_user::doctor::Finding;
use probe_user::sample::{Call, Detail, Record, Symbol};

use super::case::{Case, SECOND};
use crate::common::{ALICE, event, mr, qp};

/// Two places of a program, by the address their calls return to; the first is inside a function of libibverbs' header.
const WRAPPER: u64 = 0x100;
const KEEPS: u64 = 0x200;
const GIVES_BACK: u64 = 0x300;

fn symbol(addr: u64, name: &str, source: &str) -> Record {
    Record::Symbol(Symbol {
        id: ALICE,
        addr,
        name: name.into(),
        source: source.into(),
        line: 7,
        ..Symbol::default()
    })
}

/// A hundred times: `make` at one place and at another, and what the second made is given back by `end`.
fn half_given_back(make: (Call, fn(u64) -> Detail), end: Call, stack_that_keeps: &[u64]) -> Case {
    let mut case = Case::new();
    case.0.push(&symbol(WRAPPER, "__ibv_reg_mr", "/usr/include/infiniband/verbs.h"));
    case.0.push(&symbol(KEEPS, "reconnect", "/src/app.c"));
    case.0.push(&symbol(GIVES_BACK, "transfer", "/src/app.c"));
    for i in 0..100 {
        let at = |n: u64| (i + 1) * SECOND / 11 + n;
        for (n, stack) in [(1, stack_that_keeps), (2, &[GIVES_BACK][..])] {
            let mut made = event(ALICE, at(n), 10, make.0, make.1(1000 * n + i));
            made.stack = stack.to_vec();
            case.0.push(&Record::Event(made));
        }
        case = case.event(at(3), 10, end, Detail::Object { object: 2000 + i });
    }
    case
}

fn says(finding: &Finding, text: &str) {
    assert!(finding.evidence.iter().any(|line| line.text.contains(text)), "{text}: {finding:#?}");
}

#[test]
fn regions_that_one_place_never_gives_back_are_a_leak_though_another_gives_back_all() {
    let region = (Call::RegMr, (|i| mr(i, i << 20, 4096)) as fn(u64) -> Detail);
    let found = half_given_back(region, Call::DeregMr, &[WRAPPER, KEEPS]).has("mr-leak");
    assert!(found.title.starts_with("100 memory regions, all made at one place"), "{found:#?}");
    assert_eq!(found.cost.memory_bytes, Some(100 * 4096));
    // The function around the call is in every program; the place is who called it.
    says(&found, "made by reconnect (app.c:7)");
    says(&found, "100 registered, 0 % of them deregistered");
}

#[test]
fn queue_pairs_that_one_place_never_destroys_are_a_leak_though_another_destroys_all() {
    let queue_pair = (Call::CreateQp, (|i| qp(i, i as u32, 128)) as fn(u64) -> Detail);
    let found = half_given_back(queue_pair, Call::DestroyQp, &[KEEPS]).has("qp-leak");
    says(&found, "made by reconnect (app.c:7)");
    says(&found, "100 created, 0 destroyed");
    // Where no stack tells the two places apart, half of them are destroyed.
    half_given_back(queue_pair, Call::DestroyQp, &[]).lacks("qp-leak");
}

#[test]
fn what_is_registered_and_given_back_again_and_again_is_no_slow_start() {
    let again = |times: u64, keep: bool| {
        (0..times).fold(Case::new(), |case, i| {
            let case = case.event(i * SECOND / 2, SECOND / 2, Call::RegMr, mr(i + 1, (i + 1) << 40, 3 << 30));
            if keep {
                case
            } else {
                case.event(i * SECOND / 2 + SECOND / 2, 5, Call::DeregMr, Detail::Object { object: i + 1 })
            }
        })
    };
    again(8, true).has("registration-serial");
    again(8, false).lacks("registration-serial");
}
