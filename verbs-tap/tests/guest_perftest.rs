//! Stock perftest under the tap, on real soft-RoCE.

mod fake;
mod matrix;

use matrix::{BANDWIDTH, Case, PLAIN, Setting, preload, run};

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run by `cargo xtask vm test`"))
}

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn perftest_on_soft_roce_is_counted_to_the_last_request() {
    let tap = fake::library();
    let setting = Setting {
        preload: preload(&[&tap]),
        environment: Vec::new(),
        device: vec!["-d".to_owned(), variable("RDMA_DEV"), "-x".to_owned(), variable("RDMA_GID_INDEX")],
        server: variable("RDMA_IP"),
    };
    // perftest takes `-I` back on models it does not know, of which soft-RoCE is one: nothing is inline.
    let inline = [
        Case { more: "-I 64", ..PLAIN },
        Case { tool: "ib_send_bw", opcode: "send", more: "-I 64", list: 4, ..PLAIN },
    ];
    // On soft-RoCE an unreliable connection of perftest's loses messages, and the server waits for them for ever.
    let cases = BANDWIDTH.into_iter().filter(|c| !c.more.contains("-c U")).chain(inline);
    for (port, case) in (19_300..).zip(cases) {
        let (client, server) = run(&case, &setting, port);
        case.check_client(&client);
        case.check_server(&server);
        println!(
            "{case:?}: {} WRs in {} posts, {} completions",
            client.reading.total.wrs, client.reading.total.post_calls, client.reading.total.cqes
        );
    }
}
