//! Hooks in the kernel's RDMA core and drivers.

use probe_common::CallId::{self, *};
use probe_common::Returns::{self, KernelInt, KernelPointer, Nothing};
use probe_common::{Layout, Part};

/// A kernel function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelHook {
    /// Its name in `/proc/kallsyms`.
    pub symbol: &'static str,
    /// The call it stands for; `None` where only its time is wanted.
    pub call: Option<CallId>,
    /// What is read of it.
    pub layout: Layout,
    /// How it fails.
    pub returns: Returns,
    /// Which part of a registration's time it is.
    pub part: Part,
}

const fn counted(symbol: &'static str, call: CallId, returns: Returns, part: Part) -> KernelHook {
    KernelHook { symbol, call: Some(call), layout: Layout::Bare, returns, part }
}

const fn pin(symbol: &'static str) -> KernelHook {
    KernelHook {
        symbol,
        call: Some(KernelPin),
        layout: Layout::KernelRange,
        returns: KernelPointer,
        part: Part::Pin,
    }
}

/// Drivers' registration functions end like this (`mlx5_ib_reg_user_mr`, `rxe_reg_user_mr`): the time inside, without
/// the pinning, is the driver's own.
pub const DRIVER_SUFFIX: &str = "_reg_user_mr";

/// All kernel hooks but those of the drivers. A name that a kernel does not have is no fault: others of its call are
/// there in its place.
pub const KERNEL_HOOKS: &[KernelHook] = &[
    // Every way to pin user memory. Some call one another, depending on the kernel: the outermost counts.
    pin("ib_umem_get"),
    pin("ib_umem_get_va"),
    pin("ib_umem_get_peer"),
    pin("ib_umem_odp_get"),
    pin("ib_umem_odp_alloc_implicit"),
    pin("ib_umem_dmabuf_get"),
    pin("ib_umem_dmabuf_get_pinned"),
    pin("ib_umem_dmabuf_get_pinned_with_dma_device"),
    KernelHook {
        symbol: "ib_umem_release",
        call: Some(KernelUnpin),
        layout: Layout::KernelUmem,
        returns: Nothing,
        part: Part::None,
    },
    counted("ib_uverbs_reg_mr", KernelRegMr, KernelInt, Part::Kernel),
    counted("ib_uverbs_handler_UVERBS_METHOD_REG_MR", KernelRegMr, KernelInt, Part::Kernel),
    counted("ib_uverbs_handler_UVERBS_METHOD_REG_DMABUF_MR", KernelRegMr, KernelInt, Part::Kernel),
    counted("ib_uverbs_handler_UVERBS_METHOD_DM_MR_REG", KernelRegMr, KernelInt, Part::Kernel),
    KernelHook {
        symbol: "ib_uverbs_rereg_mr",
        call: None,
        layout: Layout::Bare,
        returns: KernelInt,
        part: Part::Kernel,
    },
    counted("ib_dereg_mr_user", KernelDeregMr, KernelInt, Part::None),
    counted("ib_create_qp_user", KernelCreateQp, KernelPointer, Part::None),
    counted("ib_destroy_qp_user", KernelDestroyQp, KernelInt, Part::None),
    counted("ib_modify_qp_with_udata", KernelModifyQp, KernelInt, Part::None),
    counted("ib_uverbs_handler_UVERBS_METHOD_CQ_CREATE", KernelCreateCq, KernelInt, Part::None),
    counted("ib_uverbs_create_cq", KernelCreateCq, KernelInt, Part::None),
    counted("ib_uverbs_ex_create_cq", KernelCreateCq, KernelInt, Part::None),
    counted("ib_destroy_cq_user", KernelDestroyCq, KernelInt, Part::None),
    // Mapping for devices without DMA hardware (soft-RoCE, siw). The generic `dma_map_sgtable` is every driver's hot
    // path, so it is left alone.
    KernelHook {
        symbol: "ib_dma_virt_map_sg",
        call: None,
        layout: Layout::Bare,
        returns: Nothing,
        part: Part::DmaMap,
    },
];
