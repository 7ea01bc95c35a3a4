//! Netlink attributes: finding and reading those of interest, skipping the rest.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use netlink_packet_core::NlasIterator;

/// A run of attributes, as a message or a nested attribute holds it. A malformed tail ends it.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a>(pub &'a [u8]);

impl<'a> Attributes<'a> {
    /// All attributes: type (flags taken off) and value.
    pub fn iter(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        const HEADER: usize = 4;
        NlasIterator::new(self.0).map_while(Result::ok).map(|nla| {
            let kind = nla.kind();
            // `NlaBuffer::value` borrows the buffer object instead of the bytes; the whole is as long as checked.
            let whole = nla.into_inner();
            let length = usize::from(u16::from_ne_bytes([whole[0], whole[1]]));
            (kind, &whole[HEADER..length])
        })
    }

    /// Every attribute of type `kind`.
    pub fn all(self, kind: u16) -> impl Iterator<Item = Attributes<'a>> {
        self.iter().filter(move |(k, _)| *k == kind).map(|(_, value)| Attributes(value))
    }

    /// The first attribute of type `kind`.
    pub fn get(self, kind: u16) -> Option<&'a [u8]> {
        self.iter().find(|(k, _)| *k == kind).map(|(_, value)| value)
    }

    /// An 8-bit value.
    pub fn u8(self, kind: u16) -> Option<u8> {
        self.get(kind)?.first().copied()
    }

    /// A 32-bit value.
    pub fn u32(self, kind: u16) -> Option<u32> {
        Some(u32::from_ne_bytes(self.get(kind)?.get(..4)?.try_into().ok()?))
    }

    /// A 64-bit value.
    pub fn u64(self, kind: u16) -> Option<u64> {
        Some(u64::from_ne_bytes(self.get(kind)?.get(..8)?.try_into().ok()?))
    }

    /// A string, its terminating NUL taken off.
    pub fn string(self, kind: u16) -> Option<String> {
        let value = self.get(kind)?;
        let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
        Some(String::from_utf8_lossy(&value[..end]).into_owned())
    }

    /// A `sockaddr_storage` of IPv4 or IPv6; `None` for other families (an IB address has no such form).
    pub fn socket_address(self, kind: u16) -> Option<SocketAddr> {
        let value = self.get(kind)?;
        let family = u16::from_ne_bytes(value.get(..2)?.try_into().ok()?);
        let port = u16::from_be_bytes(value.get(2..4)?.try_into().ok()?);
        match i32::from(family) {
            libc::AF_INET => {
                let ip: [u8; 4] = value.get(4..8)?.try_into().ok()?;
                Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(ip)), port))
            }
            libc::AF_INET6 => {
                let ip: [u8; 16] = value.get(8..24)?.try_into().ok()?;
                let scope = u32::from_ne_bytes(value.get(24..28)?.try_into().ok()?);
                Some(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope)))
            }
            _ => None,
        }
    }
}

/// Appends an attribute with a 32-bit value, as requests need it.
pub fn push_u32(message: &mut Vec<u8>, kind: u16, value: u32) {
    message.extend(8_u16.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value.to_ne_bytes());
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One attribute, padded.
    pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend((value.len() as u16 + 4).to_ne_bytes());
        out.extend(kind.to_ne_bytes());
        out.extend(value);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    }

    #[test]
    fn values_are_read_by_type_whatever_their_order_and_flags() {
        let bytes = [
            attribute(9, &7_u64.to_ne_bytes()),
            attribute(2 | 0x8000, &attribute(3, &[5])),
            attribute(4, b"rxe0\0"),
            attribute(5, &1_u32.to_ne_bytes()),
        ]
        .concat();
        let a = Attributes(&bytes);
        assert_eq!((a.u64(9), a.u32(5), a.string(4).as_deref()), (Some(7), Some(1), Some("rxe0")));
        assert_eq!(a.all(2).next().unwrap().u8(3), Some(5));
        assert_eq!((a.u32(99), a.u64(5), a.u8(77)), (None, None, None));
    }

    #[test]
    fn addresses_are_those_of_the_internet_families() {
        let mut v4 = vec![2, 0, 0x1c, 0x06, 198, 51, 100, 1];
        v4.resize(128, 0);
        let bytes = attribute(1, &v4);
        assert_eq!(Attributes(&bytes).socket_address(1).unwrap().to_string(), "198.51.100.1:7174");
        let mut v6 = vec![10, 0, 0, 80, 0, 0, 0, 0];
        v6.extend([0; 15]);
        v6.push(1);
        v6.resize(128, 0);
        let bytes = attribute(1, &v6);
        assert_eq!(Attributes(&bytes).socket_address(1).unwrap().to_string(), "[::1]:80");
        let bytes = attribute(1, &[27, 0, 0, 80, 0, 0, 0, 0]);
        assert_eq!(Attributes(&bytes).socket_address(1), None);
    }

    proptest! {
        #[test]
        fn any_bytes_end_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let a = Attributes(&bytes);
            for (kind, value) in a.iter() {
                let _ = (a.u64(kind), a.string(kind), a.socket_address(kind), Attributes(value).iter().count());
            }
        }
    }
}
