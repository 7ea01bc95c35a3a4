//! Exports that take a context or an object made from one.

use crate::dispatch::{exports, null, owns};
use emu::abi::*;
use emu::control as c;
use emu::device::context::DeviceContext;
use libc::{ENOSYS, c_int, c_uint, c_void};

/// Whether an asynchronous event is about an object of ours.
///
/// # Safety
/// A fetched event.
unsafe fn owns_event(event: *mut ibv_async_event) -> bool {
    // SAFETY: the caller's promise. Events about ports carry a number, not an object; we raise none of those.
    unsafe {
        !matches!(c::events::subject((*event).event_type), c::events::Subject::Port)
            && owns((*event).element as *const c_void)
    }
}

/// Whether a descriptor is the `cmd_fd` of an emulated device.
fn owns_fd(fd: c_int) -> bool {
    let wanted = format!("/memfd:{}", emu::stats::FILE_NAME);
    std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|l| l.to_string_lossy().starts_with(&wanted))
}

exports! {
    /// Shares a device by its descriptor: not an emulated one.
    fn ibv_import_device(fd: c_int) -> *mut ibv_context where owns_fd(fd), else null() => not_supported();
    /// Closes a device.
    fn ibv_close_device(context: *mut ibv_context) -> c_int where owns_context(context), else ENOSYS
        => DeviceContext::close(context);
    /// Waits for an asynchronous event.
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int
        where owns_context(context), else -1 => c::events::get_async_event(context, event);
    /// Acknowledges one.
    fn ibv_ack_async_event(event: *mut ibv_async_event) where owns_event(event)
        => c::events::ack_async_event(event);
    /// Device attributes.
    fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int
        where owns_context(context), else ENOSYS => c::query::query_device(context, attr);
    /// Port attributes, in the struct of old headers, which is shorter.
    fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int
        where owns_context(context), else ENOSYS => c::query::query_port(context, port, attr, COMPAT_PORT_ATTR_LEN);
    /// A GID.
    fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int
        where owns_context(context), else -1 => c::query::query_gid(context, port, index, gid);
    /// A GID with its type.
    fn _ibv_query_gid_ex(
        context: *mut ibv_context, port: u32, index: u32, entry: *mut ibv_gid_entry, flags: u32, size: usize
    ) -> c_int where owns_context(context), else ENOSYS
        => c::query::query_gid_ex(context, port, index, entry, flags, size);
    /// All GIDs.
    fn _ibv_query_gid_table(
        context: *mut ibv_context, entries: *mut ibv_gid_entry, max: usize, flags: u32, size: usize
    ) -> isize where owns_context(context), else -(ENOSYS as isize)
        => c::query::query_gid_table(context, entries, max, flags, size);
    /// The type of a GID, as sysfs names it.
    fn ibv_query_gid_type(context: *mut ibv_context, port: u8, index: c_uint, kind: *mut c_uint) -> c_int
        where owns_context(context), else -1 => c::query::query_gid_type(port, index, kind);
    /// A partition key.
    fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut u16) -> c_int
        where owns_context(context), else -1 => c::query::query_pkey(port, index, pkey);
    /// The index of a partition key.
    fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int
        where owns_context(context), else -1 => if port == 1 && pkey == 0xffff { 0 } else { -1 };

    /// A protection domain.
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd where owns_context(context), else null()
        => c::pd::alloc_pd(context);
    /// Frees one.
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int where owns(pd), else ENOSYS => c::pd::dealloc_pd(pd);

    /// Registers memory; every other registration comes here, as in libibverbs.
    fn ibv_reg_mr_iova2(pd: *mut ibv_pd, addr: *mut c_void, len: usize, iova: u64, access: c_uint) -> *mut ibv_mr
        where owns(pd), else null() => c::mr::reg_mr(pd, addr, len, iova, access);
    /// Registers memory under its own addresses.
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, len: usize, access: c_int) -> *mut ibv_mr
        where owns(pd), else null() => ibv_reg_mr_iova2(pd, addr, len, addr as u64, access as c_uint);
    /// Registers memory under addresses of the program's choice.
    fn ibv_reg_mr_iova(pd: *mut ibv_pd, addr: *mut c_void, len: usize, iova: u64, access: c_int) -> *mut ibv_mr
        where owns(pd), else null() => ibv_reg_mr_iova2(pd, addr, len, iova, access as c_uint);
    /// Registers a dmabuf: not on an emulated device.
    fn ibv_reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, len: usize, iova: u64, fd: c_int, access: c_int) -> *mut ibv_mr
        where owns(pd), else null() => not_supported();
    /// Changes a registration.
    fn ibv_rereg_mr(mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, len: usize, access: c_int)
        -> c_int where owns(mr), else -1 => c::mr::rereg_mr(mr, flags, pd, addr, len, access);
    /// Ends a registration.
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int where owns(mr), else ENOSYS => c::mr::dereg_mr(mr);

    /// A completion channel.
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel
        where owns_context(context), else null() => c::events::create_channel(context);
    /// Destroys one.
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int where owns(channel), else ENOSYS
        => c::events::destroy_channel(channel);
    /// Waits for a completion event.
    fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int
        where owns(channel), else -1 => c::events::get_cq_event(channel, cq, cq_context);
    /// Acknowledges completion events.
    fn ibv_ack_cq_events(cq: *mut ibv_cq, n: c_uint) where owns(cq) => c::events::ack_cq_events(cq, n);
    /// A completion queue.
    fn ibv_create_cq(
        context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, vector: c_int
    ) -> *mut ibv_cq where owns_context(context), else null()
        => c::cq::create_cq(context, cqe, cq_context, channel, vector);
    /// Changes its size.
    fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int where owns(cq), else ENOSYS => c::cq::resize_cq(cq, cqe);
    /// Destroys one.
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int where owns(cq), else ENOSYS => c::cq::destroy_cq(cq);

    /// A shared receive queue.
    fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq where owns(pd), else null()
        => c::srq::create_srq(pd, init);
    /// Changes its attributes.
    fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int
        where owns(srq), else ENOSYS => c::srq::modify_srq(srq, attr, mask);
    /// Its attributes.
    fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int where owns(srq), else ENOSYS
        => c::srq::query_srq(srq, attr);
    /// Destroys one.
    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int where owns(srq), else ENOSYS => c::srq::destroy_srq(srq);

    /// A queue pair.
    fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp where owns(pd), else null()
        => c::qp::create_qp(pd, init);
    /// Its extended posting table.
    fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex where owns(qp), else null() => c::qp::to_qp_ex(qp);
    /// Changes its state and attributes.
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int where owns(qp), else ENOSYS
        => c::qp::modify_qp(qp, attr, mask);
    /// Its state and attributes.
    fn ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) -> c_int
        where owns(qp), else ENOSYS => c::qp::query_qp(qp, attr, mask, init);
    /// Destroys one.
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int where owns(qp), else ENOSYS => c::qp::destroy_qp(qp);
    /// Whether data arrives in order of address: the emulated device delivers it so.
    fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, opcode: c_uint, flags: u32) -> c_int where owns(qp), else 0
        => c_int::from(flags == 0);
    /// Enhanced connection establishment: no options.
    fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int where owns(qp), else ENOSYS => {
        ece.write(ibv_ece::default());
        0
    };
    /// Enhanced connection establishment: none to set.
    fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int where owns(qp), else ENOSYS
        => if (*ece).vendor_id == 0 { 0 } else { libc::EOPNOTSUPP };

    /// An address handle.
    fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah where owns(pd), else null()
        => c::ah::create_ah(pd, attr);
    /// The address of a datagram's sender.
    fn ibv_init_ah_from_wc(
        context: *mut ibv_context, port: u8, wc: *mut ibv_wc, grh: *mut ibv_grh, attr: *mut ibv_ah_attr
    ) -> c_int where owns_context(context), else -1 => c::ah::init_ah_from_wc(context, port, wc, grh, attr);
    /// An address handle for a datagram's sender.
    fn ibv_create_ah_from_wc(pd: *mut ibv_pd, wc: *mut ibv_wc, grh: *mut ibv_grh, port: u8) -> *mut ibv_ah
        where owns(pd), else null() => {
            let mut attr = ibv_ah_attr::default();
            match c::ah::init_ah_from_wc((*pd).context, port, wc, grh, &mut attr) {
                0 => ibv_create_ah(pd, &mut attr),
                _ => std::ptr::null_mut(),
            }
        };
    /// Destroys an address handle.
    fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int where owns(ah), else ENOSYS => c::ah::destroy_ah(ah);
    /// Joins a multicast group: not on an emulated device.
    fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int where owns(qp), else ENOSYS
        => libc::EOPNOTSUPP;
    /// Leaves one.
    fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int where owns(qp), else ENOSYS
        => libc::EOPNOTSUPP;
    /// The Ethernet address behind a GID: emulated devices have none.
    fn ibv_resolve_eth_l2_from_gid(
        context: *mut ibv_context, attr: *mut ibv_ah_attr, mac: *mut u8, vid: *mut u16
    ) -> c_int where owns_context(context), else ENOSYS => libc::EOPNOTSUPP;
    /// Shares a protection domain by handle: not on an emulated device.
    fn ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd where owns_context(context), else null()
        => not_supported();
    /// Gives a shared one back: there are none.
    fn ibv_unimport_pd(pd: *mut ibv_pd) where owns(pd) => nothing_shared();
    /// Shares a memory region by handle: not on an emulated device.
    fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr where owns(pd), else null() => not_supported();
    /// Gives a shared one back: there are none.
    fn ibv_unimport_mr(mr: *mut ibv_mr) where owns(mr) => nothing_shared();
    /// Shares device memory by handle: not on an emulated device.
    fn ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut c_void where owns_context(context), else null()
        => not_supported();
}

/// # Safety
/// A live context of any provider, or null.
unsafe fn owns_context(context: *mut ibv_context) -> bool {
    // SAFETY: the caller's promise.
    unsafe { DeviceContext::is_ours(context) }
}

fn not_supported<T>() -> *mut T {
    emu::control::set_errno(libc::EOPNOTSUPP);
    std::ptr::null_mut()
}

/// Giving back what an emulated device never shares.
fn nothing_shared() {}
