//! The JSON Schemas in `docs/schemas` are those of the code, and what is written keeps to them.

use std::path::{Path, PathBuf};

use probe_user::devices::{Inventory, inventory};
use probe_user::doctor::{Document, Settings, examine};
use probe_user::model::Model;
use probe_user::report::{Diff, Filter, Groups, Report, build, by_call, by_cq, by_peer, by_qp, diff};
use probe_user::sample::Record;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::common::every_kind_of_record;

fn schema<T: JsonSchema>(id: &str) -> Value {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut schema = generator.into_root_schema_for::<T>();
    schema.insert("$id".to_owned(), id.into());
    schema.to_value()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schemas")
}

fn schemas() -> [(&'static str, Value); 6] {
    [
        ("rdma-doctor-1.json", schema::<Document>("rdma-doctor/1")),
        ("rdma-groups-1.json", schema::<Groups>("rdma-groups/1")),
        ("rdma-diff-1.json", schema::<Diff>("rdma-diff/1")),
        ("rdma-trace-1.json", schema::<Record>("rdma-trace/1")),
        ("rdma-report-1.json", schema::<Report>("rdma-report/1")),
        ("rdma-devices-1.json", schema::<Inventory>("rdma-devices/1")),
    ]
}

/// The schema of that file.
pub fn schema_of(name: &str) -> Value {
    schemas().into_iter().find(|(n, _)| *n == name).unwrap().1
}

#[test]
fn the_schemas_in_the_repository_are_those_of_the_code() {
    for (name, schema) in schemas() {
        let path = folder().join(name);
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if std::env::var_os("UPDATE_SCHEMAS").is_some() {
            std::fs::create_dir_all(folder()).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == text,
            "{name} differs from the code: run the tests once with UPDATE_SCHEMAS=1 and look at what changed"
        );
    }
}

/// Fails with what is wrong and where, so that the message tells what to mend.
pub fn assert_valid(schema: &Value, instance: &Value) {
    let validator = jsonschema::validator_for(schema).unwrap();
    let errors: Vec<_> =
        validator.iter_errors(instance).map(|e| format!("{}: {e}", e.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}\n{instance:#}");
}

#[test]
fn every_kind_of_record_keeps_to_the_trace_schema() {
    let schema = &schema_of("rdma-trace-1.json");
    for record in every_kind_of_record() {
        assert_valid(schema, &serde_json::to_value(&record).unwrap());
    }
}

#[test]
fn the_trace_schema_refuses_what_no_trace_holds() {
    let validator = jsonschema::validator_for(&schema_of("rdma-trace-1.json")).unwrap();
    for wrong in [
        r#"{"kind":"event","t_ns":-1,"duration_ns":1,"pid":1,"start_ns":1,"tid":1,"call":"reg_mr"}"#,
        r#"{"kind":"event","t_ns":1,"duration_ns":1,"pid":1,"start_ns":1,"tid":1,"call":"unknown"}"#,
        r#"{"kind":"sample","t_ns":"now"}"#,
        r#"{"kind":"probe","name":"x","t_ns":1,"verdict":"lively"}"#,
    ] {
        assert!(!validator.is_valid(&serde_json::from_str(wrong).unwrap()), "{wrong}");
    }
}

#[test]
fn reports_and_inventories_keep_to_their_schemas() {
    let mut model = Model::new();
    every_kind_of_record().iter().for_each(|record| model.push(record));
    let report = build(&model, None, &Filter::default());
    assert!(!report.processes.is_empty());
    assert_valid(&schema_of("rdma-report-1.json"), &serde_json::to_value(&report).unwrap());
    let filter = Filter::default();
    let groups = [by_call, by_peer, by_qp, by_cq].map(|by| by(&model, &filter));
    for groups in groups {
        assert_valid(&schema_of("rdma-groups-1.json"), &serde_json::to_value(groups).unwrap());
    }
    assert_valid(&schema_of("rdma-diff-1.json"), &serde_json::to_value(diff(&model, &model)).unwrap());
    assert_valid(&schema_of("rdma-devices-1.json"), &serde_json::to_value(inventory()).unwrap());
}

#[test]
fn the_format_document_names_every_key_of_a_trace() {
    let document = std::fs::read_to_string(folder().join("../trace-format.md")).unwrap();
    let mut keys = std::collections::BTreeSet::new();
    fn collect(value: &Value, keys: &mut std::collections::BTreeSet<String>) {
        match value {
            Value::Object(object) => object.iter().for_each(|(key, value)| {
                if key == "properties" {
                    keys.extend(value.as_object().unwrap().keys().cloned());
                }
                collect(value, keys);
            }),
            Value::Array(array) => array.iter().for_each(|value| collect(value, keys)),
            _ => {}
        }
    }
    collect(&schema_of("rdma-trace-1.json"), &mut keys);
    assert!(keys.len() > 50, "{keys:?}");
    let missing: Vec<_> = keys.iter().filter(|key| !document.contains(&format!("`{key}`"))).collect();
    assert!(missing.is_empty(), "docs/trace-format.md does not name {missing:?}");
}

#[test]
fn a_diagnosis_keeps_to_its_schema() {
    let mut model = Model::new();
    every_kind_of_record().iter().for_each(|record| model.push(record));
    let document = Document::new(examine(&model, &Settings::default()), model.duration_ns());
    assert!(!document.findings.is_empty(), "a failed registration is a finding");
    assert_valid(&schema_of("rdma-doctor-1.json"), &serde_json::to_value(&document).unwrap());
}
