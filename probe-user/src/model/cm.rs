//! Connection management through librdmacm: how long each step takes, and what was refused.
//!
//! The calls only ask; the answer comes as an event on the same `rdma_cm_id`. A step lasts from the entry of the call
//! to the return of the `rdma_get_cm_event` that brought its answer.

use std::collections::{BTreeMap, HashMap};

use crate::sample::{Call, Event, Histogram};

use super::room::Room;

/// Statuses of refusals kept apart.
const MAX_STATUSES: usize = 64;

/// `enum rdma_cm_event_type` of librdmacm.
mod event {
    pub const ADDR_RESOLVED: u32 = 0;
    pub const ADDR_ERROR: u32 = 1;
    pub const ROUTE_RESOLVED: u32 = 2;
    pub const ROUTE_ERROR: u32 = 3;
    pub const CONNECT_REQUEST: u32 = 4;
    pub const CONNECT_RESPONSE: u32 = 5;
    pub const CONNECT_ERROR: u32 = 6;
    pub const UNREACHABLE: u32 = 7;
    pub const REJECTED: u32 = 8;
    pub const ESTABLISHED: u32 = 9;
    pub const DISCONNECTED: u32 = 10;
}

/// A step of setting up a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// `rdma_resolve_addr` to its answer.
    ResolveAddr,
    /// `rdma_resolve_route` to its answer.
    ResolveRoute,
    /// `rdma_connect` to the established connection.
    Connect,
    /// `rdma_accept` to the established connection.
    Accept,
    /// `rdma_disconnect` to its event.
    Disconnect,
}

impl Step {
    /// Stable name, as reports spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ResolveAddr => "resolve_addr",
            Self::ResolveRoute => "resolve_route",
            Self::Connect => "connect",
            Self::Accept => "accept",
            Self::Disconnect => "disconnect",
        }
    }
}

/// Connection management of one process.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Cm {
    pending: HashMap<(u64, Step), u64>,
    /// How long each step took, ns, where it succeeded.
    pub steps_ns: BTreeMap<Step, Histogram>,
    /// Steps whose answer was an error, by step and status (negative errno, or the peer's reject reason).
    pub failures: BTreeMap<(Step, i32), u64>,
    /// Connections that peers asked for.
    pub requests: u64,
    /// Connections established.
    pub established: u64,
    /// Connections that ended.
    pub disconnected: u64,
}

impl Cm {
    /// Takes in a successful librdmacm call on `id`; for `rdma_get_cm_event`, with the event it brought.
    pub(super) fn event(&mut self, event: &Event, id: u64, kind: u32, status: i32, room: &mut Room) {
        let asked = match event.call {
            Call::CmResolveAddr => Step::ResolveAddr,
            Call::CmResolveRoute => Step::ResolveRoute,
            Call::CmConnect => Step::Connect,
            Call::CmAccept => Step::Accept,
            Call::CmDisconnect => Step::Disconnect,
            Call::CmGetEvent => {
                return self.answered(id, kind, status, event.t_ns.saturating_add(event.duration_ns), room);
            }
            _ => return,
        };
        if self.pending.contains_key(&(id, asked)) || room.take() {
            self.pending.insert((id, asked), event.t_ns);
        }
    }

    fn answered(&mut self, id: u64, kind: u32, status: i32, at_ns: u64, room: &mut Room) {
        let steps: &[Step] = match kind {
            event::ADDR_RESOLVED | event::ADDR_ERROR => &[Step::ResolveAddr],
            event::ROUTE_RESOLVED | event::ROUTE_ERROR => &[Step::ResolveRoute],
            event::CONNECT_REQUEST => {
                self.requests += 1;
                return;
            }
            event::ESTABLISHED | event::CONNECT_ERROR | event::UNREACHABLE | event::REJECTED => {
                &[Step::Connect, Step::Accept]
            }
            // With a QP not made by librdmacm the active side gets this instead of ESTABLISHED, and replies itself.
            event::CONNECT_RESPONSE => &[Step::Connect],
            event::DISCONNECTED => {
                self.disconnected += 1;
                &[Step::Disconnect]
            }
            _ => return,
        };
        if kind == event::ESTABLISHED {
            self.established += 1;
        }
        let failed = matches!(
            kind,
            event::ADDR_ERROR
                | event::ROUTE_ERROR
                | event::CONNECT_ERROR
                | event::UNREACHABLE
                | event::REJECTED
        );
        for step in steps {
            let Some(since) = self.pending.remove(&(id, *step)) else { continue };
            room.give(1);
            if failed {
                if self.failures.len() < MAX_STATUSES || self.failures.contains_key(&(*step, status)) {
                    *self.failures.entry((*step, status)).or_default() += 1;
                }
            } else {
                self.steps_ns.entry(*step).or_default().record(at_ns.saturating_sub(since));
            }
        }
    }

    /// The process's address space is gone (exec).
    pub(super) fn all_gone(&mut self, room: &mut Room) {
        room.give(self.pending.len());
        self.pending.clear();
    }

    /// Begins the window of interest.
    pub(super) fn start_window(&mut self) {
        *self = Self { pending: std::mem::take(&mut self.pending), ..Self::default() };
    }
}
