//! What happens to work requests between post and completion.
//!
//! [`requester`] takes requests off the send queues in order and decides when each may go: ordering, fence, READ depth,
//! RNR and retry waits, and, through [`pacing`], the time a modelled NIC would take. [`local`] executes them against a
//! QP of this process, [`remote`] writes them to another process' ring; [`responder`] is the receiving half of both.
//! [`answers`] takes what comes back, [`retire`] completes requests in order, fails them and flushes queues.

pub mod answers;
pub mod intervals;
pub mod local;
pub mod local_ops;
pub mod pacing;
pub mod remote;
pub mod requester;
pub mod responder;
pub mod retire;
pub mod timers;
