//! Hooks in librdmacm.

use probe_common::CallId::*;
use probe_common::Layout;
use probe_common::Returns::MinusOne;

use super::{LibraryHook, hook};

pub const HOOKS: &[LibraryHook] = &[
    hook("rdma_resolve_addr", CmResolveAddr, Layout::Cm, MinusOne),
    hook("rdma_resolve_route", CmResolveRoute, Layout::Cm, MinusOne),
    hook("rdma_connect", CmConnect, Layout::Cm, MinusOne),
    hook("rdma_accept", CmAccept, Layout::Cm, MinusOne),
    hook("rdma_reject", CmReject, Layout::Cm, MinusOne),
    hook("rdma_disconnect", CmDisconnect, Layout::Cm, MinusOne),
    hook("rdma_get_cm_event", CmGetEvent, Layout::GetCmEvent, MinusOne),
];
