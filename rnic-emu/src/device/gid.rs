//! Addresses of the emulated devices.
//!
//! Each device has one GID, RoCE v2 with an IPv4-mapped address in 198.18.0.0/15, the range set aside for testing
//! devices: it is the same in every process of the host and can be no real host's address.

use crate::abi::ibv_gid;
use crate::stats::MAX_DEVICES;

/// The GID of device `index`: `::ffff:198.18.0.(index + 1)`.
pub fn of_device(index: usize) -> ibv_gid {
    let mut raw = [0; 16];
    raw[10] = 0xff;
    raw[11] = 0xff;
    raw[12..].copy_from_slice(&[198, 18, 0, index as u8 + 1]);
    ibv_gid { raw }
}

/// The device a GID belongs to, if it is one of ours. Which process listens there is said by the QP number.
pub fn to_device(gid: &ibv_gid) -> Option<u8> {
    (0..MAX_DEVICES).find(|i| of_device(*i) == *gid).map(|i| i as u8)
}

/// EUI-64 of device `index`, in network byte order, locally administered.
pub fn guid(index: usize) -> u64 {
    u64::from_ne_bytes([0x02, 0x0e, 0x31, 0xff, 0xfe, 0x00, 0x00, index as u8 + 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_has_its_own_address_and_is_found_by_it() {
        for i in 0..MAX_DEVICES {
            assert_eq!(to_device(&of_device(i)), Some(i as u8));
        }
        assert_eq!(to_device(&ibv_gid::default()), None);
    }
}
