//! The program on real soft-RoCE: effects that are real there are measured, those of NICs are said not to be shown, nothing is
//! left behind.

use serde_json::Value;
use std::process::Command;

fn device() -> String {
    std::env::var("RDMA_DEV").expect("RDMA_DEV names the guest's device")
}

fn json(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_rdma-workload"))
        .args(arguments)
        .args(["--json", "--seconds", "0.5", "--pairs", "2"])
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("valid JSON")
}

/// How many objects of a kind the kernel has on the device.
fn objects(kind: &str) -> usize {
    let output = Command::new("rdma").args(["resource", "show", kind]).output().expect("the rdma tool");
    String::from_utf8_lossy(&output.stdout).lines().filter(|line| line.contains("comm rdma-workload")).count()
}

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn effects_real_on_soft_roce_are_measured_and_those_of_nics_are_not_shown() {
    for name in
        ["registration", "selective-signaling", "doorbell-batching", "hugepages", "event-vs-poll", "atomics"]
    {
        let outcome = json(&["compare", name, "--device", &device(), "--region", "16777216"]);
        assert_eq!(outcome["device"]["kind"], "soft-roce", "{name}");
        for effect in outcome["effects"].as_array().unwrap() {
            let expected = if effect["reality"] == "nic_only" { "not_shown" } else { "measured" };
            assert_eq!(effect["standing"], expected, "{name}: {effect}");
        }
        let truth = &outcome["ground_truth"];
        for (made, unmade) in [("registrations", "deregistrations"), ("qps_created", "qps_destroyed")] {
            assert_eq!(truth[made], truth[unmade], "{name}: {made}");
        }
    }
    assert_eq!((objects("qp"), objects("mr"), objects("cq")), (0, 0, 0));
}

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn an_unsignalled_failure_is_reported_and_a_uc_failure_is_not() {
    let outcome = json(&["compare", "selective-signaling", "--device", &device()]);
    let findings = outcome["findings"].as_array().unwrap();
    for beginning in ["on RC a failed unsignalled request", "on UC a remote error is never reported"] {
        let finding =
            findings.iter().find(|finding| finding["statement"].as_str().unwrap().starts_with(beginning));
        assert_eq!(finding.unwrap()["holds"], true, "{finding:?}");
    }
}

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn a_small_locked_memory_limit_is_named_with_its_fix() {
    // Root may lock what it likes: the limit is only met without that capability.
    let script = format!(
        "ulimit -l 64; exec setpriv --reuid=65534 --clear-groups --bounding-set=-ipc_lock --inh-caps=-all \
         {} compare registration --device {}",
        env!("CARGO_BIN_EXE_rdma-workload"),
        device()
    );
    let _ = Command::new("chmod").args(["a+rw", "/dev/infiniband/uverbs0"]).status();
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("ulimit -l unlimited") && said.trim().lines().count() == 1, "{said}");
}

#[test]
#[ignore = "needs soft-RoCE: cargo xtask vm test"]
fn a_port_that_is_down_is_named_with_its_fix() {
    let netdev = std::fs::read_to_string(format!("/sys/class/infiniband/{}/parent", device()));
    let netdev = netdev.expect("a soft-RoCE device has a parent").trim().to_owned();
    let link = |state: &str| {
        assert!(Command::new("ip").args(["link", "set", &netdev, state]).status().unwrap().success());
    };
    link("down");
    let output = Command::new(env!("CARGO_BIN_EXE_rdma-workload"))
        .args(["compare", "inline", "--device", &device()])
        .output()
        .unwrap();
    link("up");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("ip link set"), "{said}");
}
