//! Stock perftest under the tap, on the emulated device: what the tap counts is what perftest's arguments say.

mod fake;
mod matrix;

use matrix::{BANDWIDTH, Case, PLAIN, Setting, preload, run};

fn setting(part_id: Option<&'static str>) -> Setting<'static> {
    let tap = fake::library();
    let device = testkit::built("rnic-emu-preload", "librnic_emu.so");
    let environment = part_id.map(|id| ("RNIC_EMU_PART_ID", id)).into_iter().collect();
    Setting {
        preload: preload(&[&tap, &device]),
        environment,
        device: Vec::new(),
        server: "127.0.0.1".to_owned(),
    }
}

#[test]
fn the_classic_interface_is_counted_to_the_last_request() {
    let setting = setting(None);
    for (port, case) in (19_100..).zip(BANDWIDTH) {
        let (client, server) = run(&case, &setting, port);
        case.check_client(&client);
        case.check_server(&server);
    }
}

#[test]
fn the_extended_interface_is_counted_to_the_last_request() {
    // A part ID perftest knows makes it post through `ibv_wr_*`.
    let setting = setting(Some("4119"));
    let inline = [
        Case { inline: 64, ..PLAIN },
        Case { tool: "ib_send_bw", opcode: "send", inline: 64, size: 32, list: 4, ..PLAIN },
        Case { tool: "ib_atomic_bw", opcode: "atomic_fetch_and_add", size: 8, ..PLAIN },
    ];
    for (port, case) in
        (19_200..).zip(BANDWIDTH.into_iter().filter(|c| !c.more.contains("-c UC")).chain(inline))
    {
        let (client, server) = run(&case, &setting, port);
        case.check_client(&client);
        case.check_server(&server);
    }
}
