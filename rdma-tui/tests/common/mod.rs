//! What the tests share.
#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

pub mod made;

use std::path::{Path, PathBuf};

use probe_user::sample::Record;
use probe_user::trace::{Options, Writer};
use rdma_tui::app::world::{Origin, Status, World};

/// A world after these records, as a replay of them would show it.
pub fn world(records: &[Record]) -> World {
    let mut world = World::new(Origin::Replay, "made.trace");
    records.iter().for_each(|record| world.push(record));
    world.diagnose();
    world.source.moments = Some(world.source.moment);
    world.source.status = Status::Standing;
    world
}

/// Writes records into a trace file of `folder`.
pub fn file(folder: &Path, name: &str, records: &[Record]) -> PathBuf {
    let path = folder.join(name);
    let Some(Record::Header(header)) = records.first() else { panic!("a trace begins with its header") };
    let mut writer = Writer::create(&path, header, Options::default()).unwrap();
    for record in &records[1..] {
        match record {
            Record::Footer(_) => {}
            record => writer.push(record).unwrap(),
        }
    }
    match records.last() {
        Some(Record::Footer(footer)) => _ = writer.finish(footer.clone()).unwrap(),
        _ => drop(writer),
    }
    path
}
