//! Which programs at functions of a provider were ever hit. Nobody pays for the probes of others: where nothing of them
//! counts for a while, they can stay in place.

use aya_ebpf::macros::map;
use aya_ebpf::maps::Array;
use probe_common::wire::function::Hit;

/// One entry.
#[map]
static HIT: Array<Hit> = Array::with_max_entries(1, 0);

/// The program at this place of [`probe_common::wire::function::NAMES`] was hit.
#[inline(always)]
pub fn hit(place: usize) {
    let Some(hit) = HIT.get_ptr_mut(0) else { return };
    // SAFETY: a live map value, and a place within it. All write the same, and read first: processors share the line.
    unsafe {
        let hit = hit.cast::<u8>().add(place);
        if hit.read_volatile() == 0 {
            hit.write_volatile(1);
        }
    }
}
