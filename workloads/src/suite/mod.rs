//! The reference workloads, one file each. Adding one means adding its file and its line in [`ALL`].

mod about;
mod access_pattern;
mod alignment;
mod atomics;
mod contiguous;
mod doorbell_batching;
mod event_vs_poll;
mod hugepages;
mod inline;
mod lock;
mod multi_qp;
mod registering;
mod registration;
mod selective_signaling;
mod shared_cq;
mod traffic;

pub use about::{About, Comparison, Finding, Reality, Sweep, Timing, Trial, Variant, Workload};
pub use lock::Lock;
pub use traffic::Traffic;

use crate::error::usage;
use anyhow::Result;

/// Every workload, in the order of the claims table.
pub const ALL: &[&dyn Workload] = &[
    &registration::Registration,
    &hugepages::HugePages,
    &contiguous::Contiguous,
    &multi_qp::MultiQp,
    &shared_cq::SharedCq,
    &selective_signaling::SelectiveSignaling,
    &doorbell_batching::DoorbellBatching,
    &inline::Inline,
    &atomics::Atomics,
    &alignment::Alignment,
    &access_pattern::AccessPattern,
    &event_vs_poll::EventVsPoll,
];

/// The workload of that name.
pub fn find(name: &str) -> Result<&'static dyn Workload> {
    ALL.iter().copied().find(|workload| workload.about().name == name).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|workload| workload.about().name).collect();
        usage(format!("unknown workload {name:?}; there are {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_and_variants_are_unique_and_comparisons_name_variants_that_exist() {
        let mut names = BTreeSet::new();
        for workload in ALL {
            let about = workload.about();
            assert!(names.insert(about.name), "{} twice", about.name);
            let keys: BTreeSet<_> = about.variants.iter().map(|variant| variant.key).collect();
            assert_eq!(keys.len(), about.variants.len(), "{}", about.name);
            assert!(!about.comparisons.is_empty(), "{}", about.name);
            for comparison in about.comparisons {
                assert!(keys.contains(comparison.baseline), "{}: {}", about.name, comparison.baseline);
                assert!(keys.contains(comparison.optimised), "{}: {}", about.name, comparison.optimised);
                assert_ne!(comparison.baseline, comparison.optimised);
            }
            if let Some(sweep) = &about.sweep {
                assert!(sweep.values.is_sorted() && sweep.values.contains(&sweep.usual), "{}", about.name);
                assert!(sweep.variants.iter().all(|key| keys.contains(key)), "{}", about.name);
            }
        }
    }

    #[test]
    fn an_unknown_workload_is_answered_with_the_known_ones() {
        let error = find("teleport").err().unwrap();
        assert_eq!(crate::error::exit_status(&error), 2);
        assert!(error.to_string().contains("\"teleport\"") && error.to_string().contains("registration"));
    }
}
