//! Hooks in libibverbs, and in libraries that export its names.
//!
//! `ibv_create_qp_ex`, `ibv_create_cq_ex`, `ibv_create_srq_ex` and `ibv_reg_dm_mr` are inline and go straight into the
//! provider; real providers come back through the `ibv_cmd_*` exports, where they are caught. Called from an export
//! (`ibv_create_qp` → provider → `ibv_cmd_create_qp`) those are part of the call already counted.

use probe_common::CallId::*;
use probe_common::Layout;
use probe_common::Returns::{Errno, MinusOne, Nothing, Pointer};

use super::{LibraryHook, cancellable, hook};

pub const HOOKS: &[LibraryHook] = &[
    hook("ibv_reg_mr_iova2", RegMr, Layout::RegMrIova, Pointer),
    LibraryHook { through: Some("ibv_reg_mr_iova2"), ..hook("ibv_reg_mr", RegMr, Layout::RegMr, Pointer) },
    LibraryHook {
        through: Some("ibv_reg_mr_iova2"),
        ..hook("ibv_reg_mr_iova", RegMr, Layout::RegMrIova, Pointer)
    },
    hook("ibv_reg_mr_ex", RegMr, Layout::RegMrEx, Pointer),
    hook("ibv_cmd_reg_mr", RegMr, Layout::CmdRegMr, Errno),
    hook("ibv_cmd_reg_dm_mr", RegMr, Layout::CmdRegDmMr, Errno),
    hook("ibv_reg_dmabuf_mr", RegDmabufMr, Layout::RegDmabufMr, Pointer),
    hook("ibv_rereg_mr", ReregMr, Layout::ReregMr, Errno),
    hook("ibv_dereg_mr", DeregMr, Layout::DeregMr, Errno),
    hook("ibv_create_qp", CreateQp, Layout::CreateQp, Pointer),
    hook("ibv_cmd_create_qp", CreateQp, Layout::CmdCreateQp, Errno),
    hook("ibv_cmd_create_qp_ex", CreateQp, Layout::CmdCreateQpEx, Errno),
    hook("ibv_cmd_create_qp_ex2", CreateQp, Layout::CmdCreateQpEx, Errno),
    hook("rnic_emu_create_qp_ex", CreateQp, Layout::CreateQpEx, Pointer),
    hook("ibv_destroy_qp", DestroyQp, Layout::DestroyQp, Errno),
    hook("ibv_modify_qp", ModifyQp, Layout::ModifyQp, Errno),
    hook("ibv_create_cq", CreateCq, Layout::CreateCq, Pointer),
    hook("ibv_cmd_create_cq", CreateCq, Layout::CmdCreateCq, Errno),
    hook("ibv_cmd_create_cq_ex", CreateCq, Layout::CmdCreateCqEx, Errno),
    hook("ibv_cmd_create_cq_ex2", CreateCq, Layout::CmdCreateCqEx2, Errno),
    hook("rnic_emu_create_cq_ex", CreateCq, Layout::CreateCqEx, Pointer),
    hook("ibv_resize_cq", ResizeCq, Layout::Cq, Errno),
    hook("ibv_destroy_cq", DestroyCq, Layout::Cq, Errno),
    hook("ibv_create_srq", CreateSrq, Layout::CreateSrq, Pointer),
    hook("ibv_cmd_create_srq", CreateSrq, Layout::CmdCreateSrqEx, Errno),
    hook("ibv_cmd_create_srq_ex", CreateSrq, Layout::CmdCreateSrqEx, Errno),
    hook("rnic_emu_create_srq_ex", CreateSrq, Layout::CreateSrq, Pointer),
    hook("ibv_destroy_srq", DestroySrq, Layout::Object, Errno),
    hook("ibv_alloc_pd", AllocPd, Layout::ReturnedObject, Pointer),
    hook("ibv_dealloc_pd", DeallocPd, Layout::Object, Errno),
    cancellable(hook("ibv_create_comp_channel", CreateCompChannel, Layout::ReturnedObject, Pointer)),
    cancellable(hook("ibv_destroy_comp_channel", DestroyCompChannel, Layout::Object, Errno)),
    cancellable(hook("ibv_open_device", OpenDevice, Layout::ReturnedObject, Pointer)),
    cancellable(hook("ibv_import_device", OpenDevice, Layout::ReturnedObject, Pointer)),
    cancellable(hook("ibv_close_device", CloseDevice, Layout::Object, Errno)),
    cancellable(hook("ibv_get_cq_event", GetCqEvent, Layout::GetCqEvent, MinusOne)),
    hook("ibv_ack_cq_events", AckCqEvents, Layout::AckCqEvents, Nothing),
    cancellable(hook("ibv_get_async_event", GetAsyncEvent, Layout::GetAsyncEvent, MinusOne)),
];
