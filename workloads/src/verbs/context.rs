//! Devices: listing, opening, and what a port and its GID table say.

use super::{VerbsError, check, ffi};
use std::ffi::CStr;
use std::path::Path;
use std::ptr::NonNull;
use std::rc::Rc;
use std::{fs, io};

struct List {
    devices: *mut *mut ffi::ibv_device,
    count: usize,
}

impl List {
    fn get() -> Result<List, VerbsError> {
        let mut count = 0;
        // SAFETY: `count` outlives the call; the list returned is freed by Drop.
        let devices = unsafe { ffi::ibv_get_device_list(&mut count) };
        if devices.is_null() {
            return Err(VerbsError::last("ibv_get_device_list"));
        }
        Ok(List { devices, count: usize::try_from(count).unwrap_or(0) })
    }

    fn iter(&self) -> impl Iterator<Item = *mut ffi::ibv_device> + '_ {
        // SAFETY: the library returned `count` valid entries, kept alive by `self`.
        (0..self.count).map(|at| unsafe { *self.devices.add(at) })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: obtained from ibv_get_device_list and freed once.
        unsafe { ffi::ibv_free_device_list(self.devices) };
    }
}

fn device_name(device: *mut ffi::ibv_device) -> String {
    // SAFETY: `device` comes from a live list or an open context; the name is a C string inside it.
    let name = unsafe { ffi::ibv_get_device_name(device) };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: not null, NUL-terminated by the library.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// Names of all devices libibverbs offers; empty where the kernel has no RDMA subsystem at all.
pub fn device_names() -> Result<Vec<String>, VerbsError> {
    match List::get() {
        Ok(list) => Ok(list.iter().map(device_name).collect()),
        // A kernel without ib_uverbs answers ENOSYS (or ENOENT, EPERM for its missing class directory): no devices.
        Err(error) if matches!(error.errno(), Some(libc::ENOSYS | libc::ENOENT)) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Limits and identity of a device.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Device name, such as `mlx5_0`.
    pub name: String,
    /// IEEE company id of the maker.
    pub vendor_id: u32,
    /// Maker's part number.
    pub part_id: u32,
    /// Most queue pairs.
    pub max_qp: u32,
    /// Most work requests on one queue.
    pub max_qp_wr: u32,
    /// Most completion queues.
    pub max_cq: u32,
    /// Most entries of one completion queue.
    pub max_cqe: u32,
    /// Most outstanding RDMA reads and atomics a QP may have as initiator.
    pub max_rd_atomic: u8,
    /// Whether compare-and-swap and fetch-and-add are supported.
    pub atomics: bool,
}

/// State and address of a port.
#[derive(Clone, Debug)]
pub struct Port {
    /// Port number, from 1.
    pub number: u8,
    /// Whether traffic can flow.
    pub active: bool,
    /// Path MTU as the verbs enumeration (1 = 256 … 5 = 4096 bytes).
    pub mtu: u32,
    /// Local identifier; 0 on RoCE.
    pub lid: u16,
    /// Whether addressing goes by GID (RoCE, iWARP).
    pub ethernet: bool,
    /// Index of the chosen GID.
    pub gid_index: u8,
    /// The chosen GID.
    pub gid: [u8; 16],
}

struct Inner {
    raw: NonNull<ffi::ibv_context>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once; every object made from it holds an Rc and is gone by now.
        unsafe { ffi::ibv_close_device(self.raw.as_ptr()) };
    }
}

/// An open device.
#[derive(Clone)]
pub struct Context {
    inner: Rc<Inner>,
    name: Rc<str>,
}

impl Context {
    /// Opens the device of that name; `None` when there is no such device.
    pub fn open(name: &str) -> Result<Option<Context>, VerbsError> {
        let list = match List::get() {
            Ok(list) => list,
            Err(error) if matches!(error.errno(), Some(libc::ENOSYS | libc::ENOENT)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(device) = list.iter().find(|&device| device_name(device) == name) else { return Ok(None) };
        // SAFETY: `device` is in a live list; the context keeps the device alive after the list is freed.
        let raw = NonNull::new(unsafe { ffi::ibv_open_device(device) }).ok_or_else(|| {
            let error = VerbsError::last("ibv_open_device");
            match error.errno() {
                Some(libc::EACCES | libc::EPERM) => {
                    error.hint("the user needs access to /dev/infiniband/uverbs*")
                }
                _ => error,
            }
        })?;
        Ok(Some(Context { inner: Rc::new(Inner { raw }), name: name.into() }))
    }

    /// Device name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_context {
        self.inner.raw.as_ptr()
    }

    pub(super) fn ops(&self) -> &ffi::ibv_context_ops {
        // SAFETY: the context lives as long as `self`, and providers fill its table before handing it out.
        unsafe { &self.inner.raw.as_ref().ops }
    }

    /// Queries limits and identity.
    pub fn info(&self) -> Result<DeviceInfo, VerbsError> {
        let mut attr = ffi::ibv_device_attr::default();
        // SAFETY: the context is open and `attr` is writable for its whole size.
        check("ibv_query_device", unsafe { ffi::ibv_query_device(self.raw(), &mut attr) })?;
        let count = |value: i32| u32::try_from(value).unwrap_or(0);
        Ok(DeviceInfo {
            name: self.name.to_string(),
            vendor_id: attr.vendor_id,
            part_id: attr.vendor_part_id,
            max_qp: count(attr.max_qp),
            max_qp_wr: count(attr.max_qp_wr),
            max_cq: count(attr.max_cq),
            max_cqe: count(attr.max_cqe),
            // An initiator's reads must also find room at the responder, here often the same device.
            max_rd_atomic: u8::try_from(attr.max_qp_init_rd_atom.min(attr.max_qp_rd_atom)).unwrap_or(u8::MAX),
            atomics: attr.atomic_cap != ffi::IBV_ATOMIC_NONE,
        })
    }

    /// Queries a port and picks the GID to speak from: RoCE v2 over IPv4 first, then RoCE v2, then whatever is set.
    pub fn port(&self, number: u8) -> Result<Port, VerbsError> {
        let mut attr = ffi::ibv_port_attr::default();
        // SAFETY: the exported function fills the older, shorter layout, which is a prefix of `ibv_port_attr`;
        // the rest stays zero.
        let status = unsafe { ffi::ibv_query_port(self.raw(), number, (&raw mut attr).cast()) };
        check("ibv_query_port", status)?;
        let (gid_index, gid) = self.choose_gid(number, attr.gid_tbl_len)?;
        Ok(Port {
            number,
            active: attr.state == ffi::ibv_port_state::IBV_PORT_ACTIVE,
            mtu: attr.active_mtu,
            lid: attr.lid,
            ethernet: u32::from(attr.link_layer) == ffi::IBV_LINK_LAYER_ETHERNET,
            gid_index,
            gid,
        })
    }

    fn choose_gid(&self, port: u8, length: i32) -> Result<(u8, [u8; 16]), VerbsError> {
        let mut best: Option<(u8, u8, [u8; 16])> = None;
        // Tables of thousands of entries exist, nearly all empty; 256 is what an address handle can name.
        for index in 0..u8::try_from(length.clamp(0, 255)).unwrap_or(255) {
            let mut gid = ffi::ibv_gid::default();
            // SAFETY: `gid` is writable and `index` lies within the table's length.
            if unsafe { ffi::ibv_query_gid(self.raw(), port, i32::from(index), &mut gid) } != 0 {
                continue;
            }
            // SAFETY: every bit pattern is a valid GID.
            let raw = unsafe { gid.raw };
            if raw == [0; 16] {
                continue;
            }
            let rank = gid_rank(&raw, gid_type(&self.name, port, index).as_deref());
            if best.is_none_or(|(best_rank, ..)| rank > best_rank) {
                best = Some((rank, index, raw));
            }
        }
        best.map(|(_, index, gid)| (index, gid)).ok_or_else(|| {
            VerbsError {
                call: "ibv_query_gid",
                cause: io::Error::from_raw_os_error(libc::ENOENT),
                hint: String::new(),
            }
            .hint("the port has no GID; give its network interface an IP address")
        })
    }
}

/// GID type as sysfs names it; `None` for devices without a sysfs entry, such as emulated ones.
fn gid_type(device: &str, port: u8, index: u8) -> Option<String> {
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types/{index}");
    Some(fs::read_to_string(Path::new(&path)).ok()?.trim().to_owned())
}

/// Preference among GIDs, higher is better.
fn gid_rank(gid: &[u8; 16], kind: Option<&str>) -> u8 {
    let ipv4_mapped = gid.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    let v2 = kind.is_none_or(|kind| kind.contains("v2"));
    match (v2, ipv4_mapped) {
        (true, true) => 3,
        (true, false) => 2,
        (false, true) => 1,
        (false, false) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roce_v2_over_ipv4_is_preferred_over_every_other_gid() {
        let ipv4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
        let link_local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let best = gid_rank(&ipv4, Some("RoCE v2"));
        assert!(best > gid_rank(&link_local, Some("RoCE v2")));
        assert!(best > gid_rank(&ipv4, Some("IB/RoCE v1")));
    }

    #[test]
    fn a_gid_without_a_known_type_counts_as_v2() {
        let ipv4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
        assert_eq!(gid_rank(&ipv4, None), gid_rank(&ipv4, Some("RoCE v2")));
    }
}
