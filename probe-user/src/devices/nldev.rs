//! The kernel's RDMA device interface over netlink, as `linux/rdma_netlink.h` lays it down.

use std::io;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer};
use netlink_sys::{Socket, SocketAddr};

use super::attributes::{Attributes, push_u32};

const NETLINK_RDMA: isize = 20;
const CLIENT_NLDEV: u16 = 5;
const HEADER_BYTES: usize = 16;

/// Longest answer waited for, in messages: a kernel that never ends a dump must not hold us.
const MAX_DATAGRAMS: usize = 1 << 16;

/// `enum rdma_nldev_command`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Command {
    Get = 1,
    PortGet = 5,
    SysGet = 6,
    ResGet = 9,
    ResQpGet = 10,
    ResCmIdGet = 11,
    ResCqGet = 12,
    ResMrGet = 13,
    ResPdGet = 14,
    GetChardev = 15,
    ResCtxGet = 22,
    ResSrqGet = 23,
}

/// `enum rdma_nldev_attr`, those of interest, without the common prefix.
pub mod attr {
    pub const DEV_INDEX: u16 = 1;
    pub const DEV_NAME: u16 = 2;
    pub const PORT_INDEX: u16 = 3;
    pub const FW_VERSION: u16 = 5;
    pub const NODE_GUID: u16 = 6;
    pub const RES_SUMMARY: u16 = 15;
    pub const RES_SUMMARY_ENTRY_NAME: u16 = 17;
    pub const RES_SUMMARY_ENTRY_CURR: u16 = 18;
    pub const RES_QP: u16 = 19;
    pub const RES_LQPN: u16 = 21;
    pub const RES_RQPN: u16 = 22;
    pub const RES_RQ_PSN: u16 = 23;
    pub const RES_SQ_PSN: u16 = 24;
    pub const RES_PATH_MIG_STATE: u16 = 25;
    pub const RES_TYPE: u16 = 26;
    pub const RES_STATE: u16 = 27;
    pub const RES_PID: u16 = 28;
    pub const RES_KERN_NAME: u16 = 29;
    pub const RES_CM_ID: u16 = 30;
    pub const RES_PS: u16 = 32;
    pub const RES_SRC_ADDR: u16 = 33;
    pub const RES_DST_ADDR: u16 = 34;
    pub const RES_CQ: u16 = 35;
    pub const RES_CQE: u16 = 37;
    pub const RES_USECNT: u16 = 38;
    pub const RES_POLL_CTX: u16 = 39;
    pub const RES_MR: u16 = 40;
    pub const RES_RKEY: u16 = 42;
    pub const RES_LKEY: u16 = 43;
    pub const RES_IOVA: u16 = 44;
    pub const RES_MRLEN: u16 = 45;
    pub const RES_PD: u16 = 46;
    pub const RES_LOCAL_DMA_LKEY: u16 = 48;
    pub const RES_UNSAFE_GLOBAL_RKEY: u16 = 49;
    pub const NDEV_NAME: u16 = 51;
    pub const RES_PDN: u16 = 60;
    pub const RES_CQN: u16 = 61;
    pub const RES_MRN: u16 = 62;
    pub const RES_CM_IDN: u16 = 63;
    pub const RES_CTXN: u16 = 64;
    pub const NETNS_MODE: u16 = 66;
    pub const DEV_PROTOCOL: u16 = 67;
    pub const CHARDEV_TYPE: u16 = 69;
    pub const UVERBS_DRIVER_ID: u16 = 73;
    pub const RES_CTX: u16 = 86;
    pub const RES_SRQ: u16 = 88;
    pub const RES_SRQN: u16 = 90;
    pub const MIN_RANGE: u16 = 91;
    pub const MAX_RANGE: u16 = 92;
}

/// A conversation with the kernel.
pub struct Nldev {
    socket: Socket,
    sequence: u32,
}

impl std::fmt::Debug for Nldev {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nldev").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl Nldev {
    /// Opens the conversation.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` where the kernel has no RDMA subsystem, `EPERM` where a sandbox forbids netlink.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_RDMA)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Asks for everything of a kind, of one device or of all, and returns the payload of each message of the answer.
    ///
    /// # Errors
    /// What the kernel answers: `EINVAL`/`EOPNOTSUPP` where it does not know the command, `ENODEV` where the device
    /// has gone.
    pub fn dump(&mut self, command: Command, device: Option<u32>) -> io::Result<Vec<Vec<u8>>> {
        let mut attributes = Vec::new();
        if let Some(device) = device {
            push_u32(&mut attributes, attr::DEV_INDEX, device);
        }
        self.ask(command, NLM_F_REQUEST | NLM_F_ACK | NLM_F_DUMP, &attributes)
    }

    /// Asks one question that has one answer; `attributes` are its parameters.
    ///
    /// # Errors
    /// As [`Nldev::dump`].
    pub fn get(&mut self, command: Command, attributes: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(self.ask(command, NLM_F_REQUEST | NLM_F_ACK, attributes)?.into_iter().next())
    }

    fn ask(&mut self, command: Command, flags: u16, attributes: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.sequence += 1;
        let request = request(command, flags, self.sequence, attributes);
        self.socket.send(&request, 0)?;
        let mut answers = Vec::new();
        for _ in 0..MAX_DATAGRAMS {
            let (datagram, from) = self.socket.recv_from_full()?;
            // Only the kernel (port 0) answers us; anything else was sent by another process.
            if from.port_number() == 0 && take(&datagram, self.sequence, &mut answers)? {
                return Ok(answers);
            }
        }
        Err(io::Error::other("the kernel's answer has no end"))
    }
}

fn request(command: Command, flags: u16, sequence: u32, attributes: &[u8]) -> Vec<u8> {
    let mut message = vec![0; HEADER_BYTES];
    message.extend(attributes);
    let length = message.len() as u32;
    let mut header = NetlinkBuffer::new(&mut message);
    header.set_length(length);
    header.set_message_type(CLIENT_NLDEV << 10 | command as u16);
    header.set_flags(flags);
    header.set_sequence_number(sequence);
    message
}

/// Takes the messages of one datagram; true when the answer is complete.
fn take(mut datagram: &[u8], sequence: u32, answers: &mut Vec<Vec<u8>>) -> io::Result<bool> {
    while !datagram.is_empty() {
        let malformed = |_| io::Error::new(io::ErrorKind::InvalidData, "malformed netlink message");
        let message = NetlinkBuffer::new_checked(datagram).map_err(malformed)?;
        let payload = message.payload();
        if message.sequence_number() == sequence {
            match message.message_type() {
                NLMSG_DONE => return Ok(true),
                NLMSG_ERROR => {
                    let code = payload.get(..4).and_then(|b| b.try_into().ok()).map_or(0, i32::from_ne_bytes);
                    return if code == 0 { Ok(true) } else { Err(io::Error::from_raw_os_error(-code)) };
                }
                _ => answers.push(payload.to_vec()),
            }
        }
        let length = (message.length() as usize).next_multiple_of(4);
        datagram = datagram.get(length..).unwrap_or_default();
    }
    Ok(false)
}

/// The device a message speaks of, and its entries: `table` holds them as nested attributes.
pub fn entries(payload: &[u8], table: u16) -> Vec<Attributes<'_>> {
    Attributes(payload)
        .all(table)
        .flat_map(|table| table.iter().map(|(_, entry)| Attributes(entry)).collect::<Vec<_>>())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes.extend(payload);
        let length = bytes.len() as u32;
        let mut header = NetlinkBuffer::new(&mut bytes);
        header.set_length(length);
        header.set_message_type(kind);
        header.set_sequence_number(sequence);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn an_answer_ends_with_done_and_skips_what_belongs_to_another_question() {
        let datagram =
            [message(0x1401, 7, b"one!"), message(0x1401, 6, b"old"), message(NLMSG_DONE, 7, &[0; 4])]
                .concat();
        let mut answers = Vec::new();
        assert!(take(&datagram, 7, &mut answers).unwrap());
        assert_eq!(answers, [b"one!"]);
    }

    #[test]
    fn an_error_is_the_kernels_errno_and_an_acknowledgement_is_none() {
        let error = message(NLMSG_ERROR, 1, &(-95_i32).to_ne_bytes());
        assert_eq!(take(&error, 1, &mut Vec::new()).unwrap_err().raw_os_error(), Some(95));
        let ack = message(NLMSG_ERROR, 1, &0_i32.to_ne_bytes());
        assert!(take(&ack, 1, &mut Vec::new()).unwrap());
    }

    #[test]
    fn malformed_datagrams_are_errors() {
        for bytes in [&[1, 2, 3][..], &[0xff; 16], &[8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]] {
            assert!(take(bytes, 1, &mut Vec::new()).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_request_names_client_command_and_device() {
        let mut attributes = Vec::new();
        push_u32(&mut attributes, attr::DEV_INDEX, 3);
        let bytes = request(Command::ResQpGet, NLM_F_REQUEST | NLM_F_DUMP, 9, &attributes);
        let header = NetlinkBuffer::new_checked(&bytes[..]).unwrap();
        assert_eq!((header.length(), header.message_type(), header.sequence_number()), (24, 5 << 10 | 10, 9));
        assert_eq!(Attributes(&bytes[16..]).u32(attr::DEV_INDEX), Some(3));
    }
}
