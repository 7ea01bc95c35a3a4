//! Hooks in librdmacm.

use probe_common::CallId::*;
use probe_common::Layout;
use probe_common::Returns::MinusOne;

use super::{LibraryHook, cancellable, hook};

pub const HOOKS: &[LibraryHook] = &[
    cancellable(hook("rdma_resolve_addr", CmResolveAddr, Layout::Cm, MinusOne)),
    cancellable(hook("rdma_resolve_route", CmResolveRoute, Layout::Cm, MinusOne)),
    cancellable(hook("rdma_connect", CmConnect, Layout::Cm, MinusOne)),
    cancellable(hook("rdma_accept", CmAccept, Layout::Cm, MinusOne)),
    cancellable(hook("rdma_reject", CmReject, Layout::Cm, MinusOne)),
    cancellable(hook("rdma_disconnect", CmDisconnect, Layout::Cm, MinusOne)),
    cancellable(hook("rdma_get_cm_event", CmGetEvent, Layout::GetCmEvent, MinusOne)),
];
