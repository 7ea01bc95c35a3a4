//! What a model says, for a person (text) and for a program (JSON). Both come from the same [`Report`].

mod build;
mod by;
mod by_queue;
mod diff;
mod document;
mod names;
mod requests;
mod sites;
pub mod table;
mod text;
pub mod units;

pub use build::{Filter, build, latency, unavailable};
pub use by::{GROUPS_SCHEMA, Groups, OfCall, OfPeer, by_call, by_peer, write_groups};
pub use by_queue::{OfCq, OfQp, by_cq, by_qp};
pub use diff::{DIFF_SCHEMA, Diff, Metric, Outcome, diff};
pub use document::*;
pub use names::{errno, known_wc_status, wc_status};
pub use requests::{failed_request, refused_request};
pub use sites::{OfSite, by_site, caller, callers, frame};
pub use text::{Layout, write as write_text};
