//! Every workload on the emulated device: verdicts, ground truth, nothing left behind.

use crate::kit::json;
use serde_json::Value;

const QUICK: [&str; 6] = ["--seconds", "0.1", "--pairs", "2", "--draws", "2"];

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} is missing in {value}"))
}

#[test]
fn every_workload_has_a_verdict_and_the_emulated_device_proves_no_claim_about_nics() {
    let mut arguments = vec!["compare", "all", "--json", "--device", "emu0"];
    arguments.extend(QUICK);
    let outcomes = json(&arguments);
    let outcomes = outcomes.as_array().unwrap();
    let names: Vec<_> = outcomes.iter().map(|outcome| outcome["name"].as_str().unwrap()).collect();
    let expected = [
        "registration",
        "hugepages",
        "contiguous",
        "multi-qp",
        "shared-cq",
        "selective-signaling",
        "doorbell-batching",
        "inline",
        "atomics",
        "alignment",
        "access-pattern",
        "event-vs-poll",
    ];
    assert_eq!(names, expected);
    for outcome in outcomes {
        let name = &outcome["name"];
        assert_eq!(outcome["device"]["kind"], "emulated", "{name}");
        assert_eq!(outcome["device"]["profile"], "cx5-like", "{name}");
        for side in ["baseline", "optimised"] {
            assert!(outcome[side]["ops_per_s"].as_f64().unwrap() > 0.0, "{name}");
        }
        for key in ["median", "low", "high"] {
            assert!(outcome["ratio"][key].as_f64().unwrap() > 0.0, "{name}");
        }
        for effect in outcome["effects"].as_array().unwrap() {
            let verdict = effect["verdict"].as_str().unwrap();
            match (effect["reality"].as_str().unwrap(), effect["standing"].as_str().unwrap()) {
                ("host", "measured") => assert!(verdict.contains("measured for real"), "{name}: {verdict}"),
                (_, "modelled") => assert!(verdict.starts_with("the model predicts"), "{name}: {verdict}"),
                (_, "not_shown") => assert!(verdict.contains("does not cover"), "{name}: {verdict}"),
                other => panic!("{name}: {other:?} {verdict}"),
            }
        }
        for variant in outcome["variants"].as_object().unwrap().values() {
            assert!(variant["clock"].as_str().unwrap().contains("emulated device"), "{name}: {variant}");
        }
        for finding in outcome["findings"].as_array().unwrap() {
            assert_ne!(finding["holds"], false, "{name}: {finding}");
        }
        let truth = &outcome["ground_truth"];
        for (made, unmade) in [
            ("registrations", "deregistrations"),
            ("qps_created", "qps_destroyed"),
            ("cqs_created", "cqs_destroyed"),
        ] {
            assert_eq!(number(truth, made), number(truth, unmade), "{name}: {made}");
        }
    }
}

#[test]
fn ground_truth_follows_from_the_variant() {
    for (variant, signaled_share, wrs_per_post) in [
        ("all", 1.0, 1.0),
        ("one-in-n", 1.0 / 16.0, 1.0),
        ("list-all", 1.0, 16.0),
        ("list-last", 1.0 / 16.0, 16.0),
    ] {
        let mut arguments = vec![
            "run",
            "selective-signaling",
            "--variant",
            variant,
            "--values",
            "16",
            "--json",
            "--device",
            "emu0",
        ];
        arguments.extend(QUICK);
        let measured = json(&arguments);
        let truth = &measured["ground_truth"];
        let (wrs, signaled) = (number(truth, "wrs") as f64, number(truth, "signaled") as f64);
        assert!(wrs > 1000.0, "{variant}");
        // One request per run may be added to flush a tail of unsignalled ones.
        assert!((signaled / wrs - signaled_share).abs() < 0.01, "{variant}: {signaled} of {wrs}");
        assert!((wrs / number(truth, "post_calls") as f64 - wrs_per_post).abs() < 0.1, "{variant}");
        assert_eq!(number(truth, "cqes"), number(truth, "signaled"), "{variant}");
        assert_eq!(number(truth, "cqe_errors"), 0, "{variant}");
        assert_eq!(number(truth, "bytes"), 64 * number(truth, "wrs"), "{variant}");
        assert_eq!(number(truth, "inline"), 0, "{variant}");
    }
}

#[test]
fn a_pool_registers_once_and_per_operation_registers_each_time() {
    let count = |variant: &str| {
        let mut arguments = vec![
            "run",
            "registration",
            "--variant",
            variant,
            "--values",
            "4096",
            "--json",
            "--device",
            "emu0",
        ];
        arguments.extend(QUICK);
        let truth = json(&arguments)["ground_truth"].clone();
        (number(&truth, "registrations"), number(&truth, "wrs"))
    };
    let (registrations, wrs) = count("per-op");
    // Two regions of the endpoint besides.
    assert_eq!(registrations, wrs + 2);
    assert_eq!(count("pool").0, 2);
    assert_eq!(count("cache").0, 2 + 16);
}

#[test]
fn a_sweep_is_drawn_and_points_beyond_the_device_are_skipped_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("inline.svg");
    let mut arguments =
        vec!["run", "inline", "--json", "--device", "emu0", "--values", "32,100000", "--plot"];
    arguments.push(plot.to_str().unwrap());
    arguments.extend(QUICK);
    let measured = json(&arguments);
    let points = measured["points"].as_array().unwrap();
    let inline = |value: u64| {
        points.iter().find(|point| point["key"] == "inline" && point["value"] == value).unwrap().clone()
    };
    assert!(inline(32)["ops_per_s"].as_f64().unwrap() > 0.0);
    assert!(inline(32)["modelled"]["ops_per_s"].as_f64().unwrap() > 0.0);
    assert!(inline(100_000)["skipped"].as_str().unwrap().contains("ibv_create_qp"));
    let svg = std::fs::read_to_string(plot).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("modelled time"));
}

#[test]
fn each_comparison_runs_on_a_device_timed_as_it_needs() {
    let mut arguments = vec!["compare", "doorbell-batching", "--json", "--device", "emu0"];
    arguments.extend(QUICK);
    let outcome = json(&arguments);
    let clock = |variant: &str| outcome["variants"][variant]["clock"].as_str().unwrap().to_owned();
    assert!(clock("single").contains("paced as a cx5-like NIC at 1/64"), "{}", clock("single"));
    assert!(clock("single-paced").contains("untimed"), "{}", clock("single-paced"));
    arguments.extend(["--speed", "1/8"]);
    let outcome = json(&arguments);
    for variant in outcome["variants"].as_object().unwrap().values() {
        assert!(variant["clock"].as_str().unwrap().contains("1/8"), "{variant}");
    }
}

#[test]
fn the_articles_rows_come_out_of_its_profile() {
    let mut arguments = vec!["compare", "multi-qp", "--profile", "article", "--json", "--device", "emu0"];
    arguments.extend(QUICK);
    let outcome = json(&arguments);
    assert_eq!(outcome["device"]["profile"], "article");
    let rows: Vec<_> = outcome["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["statement"].as_str().unwrap().starts_with("article"))
        .collect();
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|row| row["holds"] == true), "{rows:?}");
}

#[test]
fn the_list_names_every_workload_with_its_claim() {
    let list = json(&["list", "--json"]);
    assert_eq!(list.as_array().unwrap().len(), 12);
    assert!(list.as_array().unwrap().iter().all(|about| !about["claim"].as_str().unwrap().is_empty()));
}
