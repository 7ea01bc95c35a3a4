//! The digested probe sites of this product's libraries, found by their exported names.

use std::path::Path;

use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _};
use probe_common::counters::{place, source};

use super::point::{Point, Turn};
use crate::entry::{self, Entry, Kernel, Owner};

/// The libraries with sites: file name, prefix of the sites' names, and who counts.
const LIBRARIES: [(&str, &str, u16); 2] =
    [("libverbs_tap.so", "verbs_tap_", source::TAP), ("librnic_emu.so", "rnic_emu_", source::EMULATOR)];

/// True for a library of this product, whose functions are seen through its sites.
pub fn is_own(path: &Path) -> bool {
    library(path).is_some()
}

fn library(path: &Path) -> Option<&'static (&'static str, &'static str, u16)> {
    let name = path.file_name()?;
    LIBRARIES.iter().find(|(library, ..)| name == *library)
}

/// The sites of a library of this product, from the bytes of its file; none when it has none that can be read.
pub fn find(path: &Path, bytes: &[u8], kernel: &Kernel) -> Vec<Point> {
    let Some((_, prefix, by)) = library(path) else { return Vec::new() };
    let Ok(elf) = ElfFile64::<'_, object::Endianness>::parse(bytes) else { return Vec::new() };
    let offset_of = |address: u64| {
        elf.segments().find_map(|s| {
            let (file_offset, size) = s.file_range();
            let within = address.checked_sub(s.address())?;
            (within < size).then(|| file_offset.checked_add(within)).flatten()
        })
    };
    let mut points = Vec::new();
    for symbol in elf.dynamic_symbols().filter(|s| s.is_definition()) {
        let (turn, program, name) = match symbol.name().ok().and_then(|name| name.strip_prefix(prefix)) {
            Some("post_failed") => (Turn::First, "site_post_failed", "site post_failed"),
            Some("posted") => (Turn::Then, "site_posted", "site posted"),
            Some("polled") => (Turn::Then, "site_polled", "site polled"),
            Some("req_notify_cq") => (Turn::Then, "req_notify_enter", "site req_notify_cq"),
            _ => continue,
        };
        let Some(offset) = offset_of(symbol.address()) else { continue };
        let Some(code) = usize::try_from(offset).ok().and_then(|at| bytes.get(at..)) else { continue };
        let code = code.get(..16).unwrap_or(code);
        // Both libraries renew the pages of their sites in forked children.
        let owner = Owner::Ours { fork_handler: true };
        if let Ok(choice) = entry::choose(&Entry { code, offset, arguments: 6, owner }, kernel) {
            let cookie = place::site(*by, true);
            let class = Some(choice.class);
            let offset = offset + choice.delta;
            points.push(Point { turn, program, returns: false, offset, cookie, class, name });
        }
    }
    points.sort();
    points
}
