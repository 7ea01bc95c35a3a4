//! The verbs objects of a host, as the kernel's resource tracking tells them: those older than any recording included.

use schemars::JsonSchema;
use serde::Serialize;

use super::attributes::Attributes;
use super::nldev::attr;

/// Who made an object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct Owner {
    /// Process id in our pid namespace; `null` for the kernel's own objects.
    pub pid: Option<u32>,
    /// Command name of that process, `null` when it has just ended.
    pub comm: Option<String>,
    /// Kernel module, for the kernel's own objects.
    pub kernel: Option<String>,
}

/// A queue pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the kernel's own")]
pub struct Qp {
    pub device: String,
    pub port: Option<u32>,
    pub qpn: u32,
    /// The peer's QP number, for connected types.
    pub remote_qpn: Option<u32>,
    pub qp_type: String,
    pub state: String,
    pub path_migration: Option<String>,
    pub rq_psn: Option<u32>,
    pub sq_psn: Option<u32>,
    pub pdn: Option<u32>,
    #[serde(flatten)]
    pub owner: Owner,
}

/// A completion queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the kernel's own")]
pub struct Cq {
    pub device: String,
    pub cqn: Option<u32>,
    pub cqe: u32,
    /// References by QPs: two for a QP that uses it both ways.
    pub users: u64,
    /// How the kernel polls it; `null` for user CQs.
    pub poll_context: Option<String>,
    pub ctxn: Option<u32>,
    #[serde(flatten)]
    pub owner: Owner,
}

/// A memory region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the kernel's own")]
pub struct Mr {
    pub device: String,
    pub mrn: Option<u32>,
    pub length_bytes: u64,
    /// Shown by the kernel only with CAP_NET_ADMIN.
    pub iova: Option<u64>,
    /// Shown by the kernel only with CAP_NET_ADMIN.
    pub lkey: Option<u32>,
    /// Shown by the kernel only with CAP_NET_ADMIN.
    pub rkey: Option<u32>,
    pub pdn: Option<u32>,
    #[serde(flatten)]
    pub owner: Owner,
}

/// A protection domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the kernel's own")]
pub struct Pd {
    pub device: String,
    pub pdn: Option<u32>,
    pub users: u64,
    pub local_dma_lkey: Option<u32>,
    pub unsafe_global_rkey: Option<u32>,
    pub ctxn: Option<u32>,
    #[serde(flatten)]
    pub owner: Owner,
}

/// A connection identifier of rdma_cm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the kernel's own")]
pub struct CmId {
    pub device: String,
    pub port: Option<u32>,
    pub cm_idn: Option<u32>,
    pub qpn: Option<u32>,
    pub qp_type: Option<String>,
    pub state: String,
    pub port_space: String,
    pub source: Option<String>,
    pub destination: Option<String>,
    #[serde(flatten)]
    pub owner: Owner,
}

/// A context: one opening of the device by a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the kernel's own")]
pub struct Context {
    pub device: String,
    pub ctxn: Option<u32>,
    #[serde(flatten)]
    pub owner: Owner,
}

/// A shared receive queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the kernel's own")]
pub struct Srq {
    pub device: String,
    pub srqn: Option<u32>,
    pub srq_type: String,
    pub pdn: Option<u32>,
    pub cqn: Option<u32>,
    /// First and last number of each run of QPs that receive from it.
    pub qpns: Vec<(u32, u32)>,
    #[serde(flatten)]
    pub owner: Owner,
}

/// All objects of all devices.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are the kernel's own")]
pub struct Objects {
    pub qps: Vec<Qp>,
    pub cqs: Vec<Cq>,
    pub mrs: Vec<Mr>,
    pub pds: Vec<Pd>,
    pub cm_ids: Vec<CmId>,
    pub contexts: Vec<Context>,
    pub srqs: Vec<Srq>,
}

const QP_TYPES: [&str; 11] = [
    "SMI",
    "GSI",
    "RC",
    "UC",
    "UD",
    "RAW_IPV6",
    "RAW_ETHERTYPE",
    "UNKNOWN",
    "RAW_PACKET",
    "XRC_INI",
    "XRC_TGT",
];
const QP_STATES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
const MIGRATION: [&str; 3] = ["MIGRATED", "REARM", "ARMED"];
const POLLING: [&str; 4] = ["DIRECT", "SOFTIRQ", "WORKQUEUE", "UNBOUND_WORKQUEUE"];
const CM_STATES: [&str; 11] = [
    "IDLE",
    "ADDR_QUERY",
    "ADDR_RESOLVED",
    "ROUTE_QUERY",
    "ROUTE_RESOLVED",
    "CONNECT",
    "DISCONNECT",
    "ADDR_BOUND",
    "LISTEN",
    "DEVICE_REMOVAL",
    "DESTROYING",
];
const SRQ_TYPES: [&str; 3] = ["BASIC", "XRC", "TM"];

fn name(names: &[&str], number: Option<u8>) -> String {
    let Some(number) = number else { return "UNKNOWN".to_owned() };
    names.get(usize::from(number)).map_or_else(|| number.to_string(), |name| (*name).to_owned())
}

fn qp_type(number: Option<u8>) -> String {
    if number == Some(0xff) { "DRIVER".to_owned() } else { name(&QP_TYPES, number) }
}

/// `enum rdma_ucm_port_space` of rdma_user_cm.h.
fn port_space(number: Option<u32>) -> String {
    match number {
        Some(0x0002) => "IPOIB".to_owned(),
        Some(0x0106) => "TCP".to_owned(),
        Some(0x0111) => "UDP".to_owned(),
        Some(0x013f) => "IB".to_owned(),
        Some(other) => format!("{other:#06x}"),
        None => "UNKNOWN".to_owned(),
    }
}

impl Owner {
    /// `comm` finds a process's command name.
    fn of(entry: Attributes<'_>, comm: &dyn Fn(u32) -> Option<String>) -> Self {
        // A pid of 0 is a process outside our pid namespace.
        let pid = entry.u32(attr::RES_PID).filter(|pid| *pid != 0);
        Self { pid, comm: pid.and_then(comm), kernel: entry.string(attr::RES_KERN_NAME) }
    }
}

/// What an entry is read with: the device it belongs to and how a pid becomes a command name.
pub struct Reading<'a> {
    /// Device name.
    pub device: &'a str,
    /// Command name of a process.
    pub comm: &'a dyn Fn(u32) -> Option<String>,
}

/// Each reads one entry of the table of its name; `None` when the entry has no identity.
impl Reading<'_> {
    pub fn qp(&self, e: Attributes<'_>) -> Option<Qp> {
        Some(Qp {
            device: self.device.to_owned(),
            port: e.u32(attr::PORT_INDEX),
            qpn: e.u32(attr::RES_LQPN)?,
            remote_qpn: e.u32(attr::RES_RQPN),
            qp_type: qp_type(e.u8(attr::RES_TYPE)),
            state: name(&QP_STATES, e.u8(attr::RES_STATE)),
            path_migration: e.u8(attr::RES_PATH_MIG_STATE).map(|n| name(&MIGRATION, Some(n))),
            rq_psn: e.u32(attr::RES_RQ_PSN),
            sq_psn: e.u32(attr::RES_SQ_PSN),
            pdn: e.u32(attr::RES_PDN),
            owner: Owner::of(e, self.comm),
        })
    }

    pub fn cq(&self, e: Attributes<'_>) -> Option<Cq> {
        Some(Cq {
            device: self.device.to_owned(),
            cqn: e.u32(attr::RES_CQN),
            cqe: e.u32(attr::RES_CQE)?,
            users: e.u64(attr::RES_USECNT).unwrap_or(0),
            poll_context: e.u8(attr::RES_POLL_CTX).map(|n| name(&POLLING, Some(n))),
            ctxn: e.u32(attr::RES_CTXN),
            owner: Owner::of(e, self.comm),
        })
    }

    pub fn mr(&self, e: Attributes<'_>) -> Option<Mr> {
        Some(Mr {
            device: self.device.to_owned(),
            mrn: e.u32(attr::RES_MRN),
            length_bytes: e.u64(attr::RES_MRLEN)?,
            iova: e.u64(attr::RES_IOVA),
            lkey: e.u32(attr::RES_LKEY),
            rkey: e.u32(attr::RES_RKEY),
            pdn: e.u32(attr::RES_PDN),
            owner: Owner::of(e, self.comm),
        })
    }

    pub fn pd(&self, e: Attributes<'_>) -> Option<Pd> {
        Some(Pd {
            device: self.device.to_owned(),
            pdn: e.u32(attr::RES_PDN),
            users: e.u64(attr::RES_USECNT)?,
            local_dma_lkey: e.u32(attr::RES_LOCAL_DMA_LKEY),
            unsafe_global_rkey: e.u32(attr::RES_UNSAFE_GLOBAL_RKEY),
            ctxn: e.u32(attr::RES_CTXN),
            owner: Owner::of(e, self.comm),
        })
    }

    pub fn cm_id(&self, e: Attributes<'_>) -> Option<CmId> {
        Some(CmId {
            device: self.device.to_owned(),
            port: e.u32(attr::PORT_INDEX),
            cm_idn: e.u32(attr::RES_CM_IDN),
            qpn: e.u32(attr::RES_LQPN),
            qp_type: e.u8(attr::RES_TYPE).map(|n| qp_type(Some(n))),
            state: name(&CM_STATES, Some(e.u8(attr::RES_STATE)?)),
            port_space: port_space(e.u32(attr::RES_PS)),
            source: e.socket_address(attr::RES_SRC_ADDR).map(|a| a.to_string()),
            destination: e.socket_address(attr::RES_DST_ADDR).map(|a| a.to_string()),
            owner: Owner::of(e, self.comm),
        })
    }

    pub fn context(&self, e: Attributes<'_>) -> Option<Context> {
        Some(Context {
            device: self.device.to_owned(),
            ctxn: Some(e.u32(attr::RES_CTXN)?),
            owner: Owner::of(e, self.comm),
        })
    }

    pub fn srq(&self, e: Attributes<'_>) -> Option<Srq> {
        let qpns = e
            .all(attr::RES_QP)
            .flat_map(|table| table.iter().map(|(_, entry)| Attributes(entry)).collect::<Vec<_>>())
            .filter_map(|qp| match qp.u32(attr::RES_LQPN) {
                Some(qpn) => Some((qpn, qpn)),
                None => Some((qp.u32(attr::MIN_RANGE)?, qp.u32(attr::MAX_RANGE)?)),
            })
            .collect();
        Some(Srq {
            device: self.device.to_owned(),
            srqn: Some(e.u32(attr::RES_SRQN)?),
            srq_type: name(&SRQ_TYPES, e.u8(attr::RES_TYPE)),
            pdn: e.u32(attr::RES_PDN),
            cqn: e.u32(attr::RES_CQN),
            qpns,
            owner: Owner::of(e, self.comm),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::attributes::tests::attribute;
    use super::*;

    fn read<T>(bytes: &[u8], read: impl Fn(&Reading<'_>, Attributes<'_>) -> Option<T>) -> Option<T> {
        let comm = |pid| (pid == 160).then(|| "ib_write_bw".to_owned());
        read(&Reading { device: "rxe0", comm: &comm }, Attributes(bytes))
    }

    #[test]
    fn a_qp_entry_names_its_owner_and_state() {
        let bytes = [
            attribute(attr::RES_LQPN, &17_u32.to_ne_bytes()),
            attribute(attr::RES_RQPN, &19_u32.to_ne_bytes()),
            attribute(attr::RES_TYPE, &[2]),
            attribute(attr::RES_STATE, &[3]),
            attribute(attr::RES_PID, &160_u32.to_ne_bytes()),
        ]
        .concat();
        let qp = read(&bytes, |r, e| r.qp(e)).unwrap();
        assert_eq!(
            (qp.qpn, qp.remote_qpn, qp.qp_type.as_str(), qp.state.as_str()),
            (17, Some(19), "RC", "RTS")
        );
        assert_eq!((qp.owner.pid, qp.owner.comm.as_deref()), (Some(160), Some("ib_write_bw")));
    }

    #[test]
    fn the_kernels_objects_have_a_module_and_no_pid_and_vanished_processes_no_name() {
        let kernel = [
            attribute(attr::RES_CQE, &1023_u32.to_ne_bytes()),
            attribute(attr::RES_POLL_CTX, &[2]),
            attribute(attr::RES_KERN_NAME, b"ib_core\0"),
        ]
        .concat();
        let cq = read(&kernel, |r, e| r.cq(e)).unwrap();
        assert_eq!((cq.owner.pid, cq.owner.kernel.as_deref()), (None, Some("ib_core")));
        assert_eq!(cq.poll_context.as_deref(), Some("WORKQUEUE"));
        let gone = [
            attribute(attr::RES_MRLEN, &4096_u64.to_ne_bytes()),
            attribute(attr::RES_PID, &9_u32.to_ne_bytes()),
        ]
        .concat();
        let mr = read(&gone, |r, e| r.mr(e)).unwrap();
        assert_eq!((mr.owner.pid, mr.owner.comm, mr.lkey), (Some(9), None, None));
    }

    #[test]
    fn an_srq_lists_its_qps_singly_and_in_runs() {
        let qp = |attributes: &[u8]| attribute(20, attributes);
        let run = [
            attribute(attr::MIN_RANGE, &21_u32.to_ne_bytes()),
            attribute(attr::MAX_RANGE, &36_u32.to_ne_bytes()),
        ]
        .concat();
        let table = [qp(&attribute(attr::RES_LQPN, &9_u32.to_ne_bytes())), qp(&run)].concat();
        let bytes =
            [attribute(attr::RES_SRQN, &1_u32.to_ne_bytes()), attribute(attr::RES_QP, &table)].concat();
        assert_eq!(read(&bytes, |r, e| r.srq(e)).unwrap().qpns, [(9, 9), (21, 36)]);
    }

    #[test]
    fn unknown_numbers_stay_visible_and_entries_without_identity_are_left_out() {
        assert_eq!(
            (qp_type(Some(0xff)), qp_type(Some(99)), qp_type(None)),
            ("DRIVER".into(), "99".into(), "UNKNOWN".into())
        );
        assert_eq!(port_space(Some(0x106)), "TCP");
        assert_eq!(read(&[], |r, e| r.qp(e)), None);
        assert_eq!(read(&[], |r, e| r.context(e)), None);
    }
}
