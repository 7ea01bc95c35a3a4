//! Attributes of the device and its port.

use super::{context::DeviceContext, gid};
use crate::abi::{consts::*, *};
use crate::stats::MAX_CQS;

/// Most work requests of one queue.
pub const MAX_WR: u32 = 32768;
/// Most scatter/gather entries of one work request.
pub const MAX_SGE: u32 = 30;
/// Most inline bytes of one work request.
pub const MAX_INLINE: u32 = 1024;
/// Most entries of a completion queue.
pub const MAX_CQE: u32 = 1 << 20;
/// Longest message.
pub const MAX_MSG: u32 = 1 << 30;
/// Most outstanding READs and atomics of one QP.
pub const MAX_RD_ATOMIC: u8 = 16;
/// Queue pairs of one process: a QP number has 16 bits for them.
pub const MAX_QP: u32 = 65_000;
/// Memory keys of one process.
pub const MAX_KEYS: u32 = 1 << 20;
/// Most shared receive queues; a limit of taste, not of structure.
const MAX_SRQ: i32 = 65_536;
/// IEEE identifier under which the device presents a part ID programs know (NVIDIA's, whose part IDs they are).
const VENDOR_KNOWN: u32 = 0x02c9;
/// Vendor of a device no program knows.
const VENDOR_OWN: u32 = 0x000e_3100;

/// Fills what `ibv_query_device` reports.
pub fn device(ctx: &DeviceContext) -> ibv_device_attr {
    // SAFETY: a struct of plain integers and byte arrays; all zeroes is a valid value.
    let mut a: ibv_device_attr = unsafe { std::mem::zeroed() };
    let version = concat!("emulated ", env!("CARGO_PKG_VERSION"));
    a.fw_ver[..version.len()].copy_from_slice(version.as_bytes());
    let part_id = ctx.process.config.part_id;
    a.node_guid = gid::guid(ctx.device);
    a.sys_image_guid = gid::guid(ctx.device);
    a.max_mr_size = 1 << 46;
    a.page_size_cap = !0xfff;
    a.vendor_id = if part_id == super::config::DEFAULT_PART_ID { VENDOR_OWN } else { VENDOR_KNOWN };
    a.vendor_part_id = part_id;
    a.max_qp = MAX_QP as i32;
    a.max_qp_wr = MAX_WR as i32;
    a.device_cap_flags = IBV_DEVICE_BAD_PKEY_CNTR
        | IBV_DEVICE_BAD_QKEY_CNTR
        | IBV_DEVICE_CURR_QP_STATE_MOD
        | IBV_DEVICE_PORT_ACTIVE_EVENT
        | IBV_DEVICE_SYS_IMAGE_GUID
        | IBV_DEVICE_RC_RNR_NAK_GEN
        | IBV_DEVICE_SRQ_RESIZE
        | IBV_DEVICE_MEM_WINDOW
        | IBV_DEVICE_MEM_MGT_EXTENSIONS
        | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    a.max_sge = MAX_SGE as i32;
    a.max_sge_rd = MAX_SGE as i32;
    a.max_cq = MAX_CQS as i32;
    a.max_cqe = MAX_CQE as i32;
    a.max_mr = MAX_KEYS as i32;
    a.max_pd = 1 << 20;
    a.max_qp_rd_atom = i32::from(MAX_RD_ATOMIC);
    a.max_res_rd_atom = i32::from(MAX_RD_ATOMIC) * MAX_QP as i32;
    a.max_qp_init_rd_atom = i32::from(MAX_RD_ATOMIC);
    a.atomic_cap = IBV_ATOMIC_HCA;
    a.max_mw = MAX_KEYS as i32;
    a.max_ah = i32::MAX;
    a.max_srq = MAX_SRQ;
    a.max_srq_wr = MAX_WR as i32;
    a.max_srq_sge = MAX_SGE as i32;
    a.max_pkeys = 1;
    a.local_ca_ack_delay = 15;
    a.phys_port_cnt = 1;
    a
}

/// Fills what `ibv_query_device_ex` adds.
pub fn device_ex(ctx: &DeviceContext) -> ibv_device_attr_ex {
    // SAFETY: as in `device`.
    let mut a: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
    a.orig_attr = device(ctx);
    // Completion timestamps are nanoseconds of the host's monotonic clock.
    a.completion_timestamp_mask = u64::MAX;
    a.hca_core_clock = 1_000_000;
    a.device_cap_flags_ex = u64::from(a.orig_attr.device_cap_flags);
    a.phys_port_cnt_ex = 1;
    a
}

/// Fills what `ibv_query_port` reports: an active 100 Gb/s Ethernet port.
pub fn port() -> ibv_port_attr {
    ibv_port_attr {
        state: IBV_PORT_ACTIVE,
        max_mtu: IBV_MTU_4096,
        active_mtu: IBV_MTU_4096,
        gid_tbl_len: 1,
        port_cap_flags: IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
        max_msg_sz: MAX_MSG,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        pkey_tbl_len: 1,
        lid: 0,
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        // 4X lanes of EDR: 100 Gb/s.
        active_width: 2,
        active_speed: 32,
        phys_state: 5,
        link_layer: IBV_LINK_LAYER_ETHERNET,
        flags: 0,
        port_cap_flags2: 0,
    }
}
