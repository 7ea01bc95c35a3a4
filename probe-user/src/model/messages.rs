//! Single work requests, where a recording has them.

use crate::pairing::Paired;
use crate::sample::{Gap, Histogram, Post, PostedTo};

/// What the work requests of a process came to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Messages {
    /// Send work requests posted.
    pub sends: u64,
    /// Receives posted.
    pub receives: u64,
    /// Work requests known to be done.
    pub done: u64,
    /// Those of them that failed, flushed ones included.
    pub failed: u64,
    /// Log entries that are missing.
    pub missing: u64,
    /// From the post of a send to the return of the poll that brought its own completion.
    pub send_ns: Histogram,
    /// From the post of a receive to the return of the poll that brought its completion: how long it waited for a
    /// message.
    pub receive_ns: Histogram,
}

impl Messages {
    /// True where the recording has none of this process.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn posted(&mut self, post: &Post) {
        let count = post.wrs.len() as u64;
        match post.queue {
            PostedTo::Send => self.sends += count,
            PostedTo::Receive | PostedTo::SharedReceive => self.receives += count,
        }
    }

    pub(super) fn lost(&mut self, gap: &Gap) {
        self.missing = self.missing.saturating_add(gap.entries);
    }

    pub(super) fn paired(&mut self, one: &Paired) {
        let Some(reaped) = one.reaped else { return };
        self.done += 1;
        self.failed += u64::from(reaped.status != 0);
        if reaped.own && reaped.status == 0 {
            let latency = reaped.t_ns.saturating_sub(one.posted_ns);
            match one.queue {
                PostedTo::Send => self.send_ns.record(latency),
                PostedTo::Receive | PostedTo::SharedReceive => self.receive_ns.record(latency),
            }
        }
    }
}
