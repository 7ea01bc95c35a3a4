//! What registering and deregistering memory costs the program that asks for it.
//!
//! A fixed part (system call, command to the firmware) and a part per page: pinning, mapping and writing its translation.
//! The page is the one really behind the buffer, so huge pages make registration cheaper by hundreds.

use super::profile::{Key, Profile};
use super::time::{Ps, from_ns};
use super::work::Region;

/// Time `ibv_reg_mr` takes, and `ibv_dereg_mr` afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistrationCost {
    /// Pages that are pinned and translated.
    pub pages: u64,
    /// Of registering.
    pub register: Ps,
    /// Of deregistering.
    pub deregister: Ps,
}

/// Cost of registering and deregistering a region.
pub fn registration_cost(profile: &Profile, region: Region) -> RegistrationCost {
    let pages = region.bytes.div_ceil(region.page.max(1)).max(1);
    let cost = |base, page| from_ns(profile.get(base) + profile.get(page) * pages as f64);
    RegistrationCost {
        pages,
        register: cost(Key::RegBase, Key::RegPage),
        deregister: cost(Key::DeregBase, Key::DeregPage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::to_ns;

    #[test]
    fn huge_pages_cost_five_hundred_times_fewer_pages() {
        let profile = Profile::builtin("cx5-like").expect("is built in");
        let cost = |page| registration_cost(&profile, Region { bytes: 1 << 30, page });
        let (small, huge) = (cost(4096), cost(2 << 20));
        assert_eq!((small.pages, huge.pages), (262_144, 512));
        assert!(to_ns(small.register) > 50.0 * to_ns(huge.register));
        let none = registration_cost(&profile, Region { bytes: 0, page: 0 });
        assert_eq!(none.pages, 1);
    }
}
