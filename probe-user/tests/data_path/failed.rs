//! Requests of `fails.c`, which fail in known ways: what is told of each must be what the program says of itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::Told;

/// Its cases. A provider of software may not know one.
pub const CASES: [&str; 11] =
    ["rkey", "beyond", "gone", "lkey", "length", "rnr", "retry", "atomic", "list", "unsignalled", "refused"];

/// Compiles `fails.c`.
pub fn fails(folder: &Path) -> PathBuf {
    let program = folder.join("fails");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/fails.c");
    let compiled = Command::new("cc")
        .args(["-O2", "-fno-omit-frame-pointer", "-o"])
        .arg(&program)
        .arg(source)
        .arg("-libverbs")
        .status();
    assert!(compiled.expect("a C compiler").success(), "fails.c does not compile");
    program
}

/// Compares the first request of each failure with what the program says of it. `has_caller`: functions of a provider are
/// probed, at whose return the caller of a refused post is known.
pub fn check_failed(told: &Told, cases: &[&str], has_caller: bool) {
    told.assert_nothing_is_lost();
    let lines: Vec<Value> =
        told.printed.lines().map(|line| serde_json::from_str(line).expect("what it did")).collect();
    assert_eq!(lines.len(), cases.len(), "{}", told.printed);
    for did in lines {
        let counted = told.of(did["pid"].as_u64().expect("a pid"));
        let failures = counted.0["data_path"]["failures"].as_array().expect("a list");
        let is_it =
            |f: &&Value| f["number"] == did["qpn"] && f["what"] == did["what"] && f["code"] == did["code"];
        let failure = failures.iter().find(is_it).unwrap_or_else(|| panic!("{did}: {failures:#?}"));
        let first = &failure["first"];
        assert_eq!((&failure["count"], &first["wr_id"]), (&Value::from(1), &did["wr_id"]), "{failure}");
        // Of an unsignalled one, what is told is of the signalled one after it.
        let unsignalled = did["case"] == "unsignalled";
        let request = if unsignalled { &first["next"] } else { &first["request"] };
        for field in ["opcode", "bytes", "addr", "lkey", "remote_addr", "rkey"] {
            assert_eq!(request[field], did[field], "{field} of {did}: {first}");
        }
        let is_post = did["what"] == "post";
        let known = if unsignalled { "before" } else { "exactly" };
        assert_eq!(first["known"], known, "{did}: {first}");
        if unsignalled || is_post {
            assert_eq!(first["before"], did["before"], "{did}: {first}");
        }
        let stack = first["stack"].as_array().map_or(0, Vec::len);
        assert_eq!(stack > 0, is_post && has_caller, "{did}: {first}");
        // What fails comes before what is flushed behind it.
        let of_qp: Vec<_> = failures.iter().filter(|f| f["number"] == did["qpn"]).collect();
        assert_eq!(of_qp.first().expect("one")["code"], did["code"], "{of_qp:#?}");
        println!("{did}: {first}");
    }
}
