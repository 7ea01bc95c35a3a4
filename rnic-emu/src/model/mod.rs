//! Timing model of an RNIC: work request in, completion time and its cost out. No clock, no threads, no I/O.
//!
//! Three callers use it. The emulated device feeds it what a real program posts and shows completions when the real clock
//! has come that far ([`Model::post`], [`Model::advance`], [`Model::next_due`]). Predictions run a load in modelled time
//! ([`drive()`], and [`predict_range`] for the doubt). `emu-validate` holds the model against published curves
//! ([`validate`]).
//!
//! ```
//! use rnic_emu::model::{Model, NodeId, Profile, Region, Request, Transport};
//!
//! let mut model = Model::new(&Profile::builtin("cx5-like")?);
//! let (here, there) = (NodeId(0), NodeId(1));
//! let cq = model.create_cq(here);
//! let qp = model.create_qp(here, there, Transport::Rc, cq);
//! model.post(0, qp, &[Request { bytes: 8, inline: true, token: 7, ..Request::default() }]);
//! let mut done = Vec::new();
//! model.advance(10_000_000, &mut done);
//! assert_eq!(done[0].token, 7);
//! assert_eq!(done[0].breakdown.total(), done[0].at - done[0].posted);
//! # Ok::<(), rnic_emu::model::ProfileError>(())
//! ```

mod breakdown;
mod cache;
mod divisor;
pub mod drive;
mod fabric;
mod hw;
mod lane;
mod nic;
mod profile;
mod registration;
mod respond;
mod retire;
mod rng;
mod send;
mod sensitivity;
pub mod time;
pub mod validate;
mod wheel;
mod work;
mod wqe_store;

pub use breakdown::{Breakdown, STAGES, Stage};
pub use cache::CacheCounts;
pub use drive::{LoadSpec, Outcome, drive};
pub use fabric::{ContextMemory, Model, Totals};
pub use nic::NicCounts;
pub use profile::{Confidence, KEYS, Key, KeyDef, Param, Profile, ProfileError};
pub use registration::{RegistrationCost, registration_cost};
pub use sensitivity::{Prediction, predict_range, spread};
pub use time::Ps;
pub use work::{Completion, CqId, MrId, NodeId, Op, Place, Posted, QpId, Region, Request, Step, Transport};
