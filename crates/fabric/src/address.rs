//! Addresses of endpoints as people read them.

use std::net::{IpAddr, Ipv6Addr};

use libfabric_sys::{FI_SOCKADDR, FI_SOCKADDR_IN, FI_SOCKADDR_IN6};

/// The address in a sockaddr of this `format` (`addr_format` of fi_getinfo(3)); None for other formats. The bytes may come from the wire.
pub fn ip_address(format: u32, bytes: &[u8]) -> Option<IpAddr> {
    let family = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
    match (format, family) {
        (FI_SOCKADDR | FI_SOCKADDR_IN, AF_INET) => {
            let octets: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
            Some(octets.into())
        }
        (FI_SOCKADDR | FI_SOCKADDR_IN6, AF_INET6) => {
            let octets: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

/// The IP address as text; for other formats the address's own text (shm), or hexadecimal digits.
pub fn shown_address(format: u32, bytes: &[u8]) -> String {
    if let Some(address) = ip_address(format, bytes) {
        return address.to_string();
    }
    let text = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    if text.iter().all(u8::is_ascii_graphic) {
        return text.iter().copied().map(char::from).collect();
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// From sys/socket.h.
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_from_sockaddrs() {
        let v4 = [2, 0, 0, 0, 192, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(ip_address(FI_SOCKADDR_IN, &v4), Some([192, 0, 2, 7].into()));
        assert_eq!(shown_address(FI_SOCKADDR_IN, &v4), "192.0.2.7");
        let mut v6 = [0; 28];
        v6[0] = 10;
        v6[23] = 1;
        assert_eq!(ip_address(FI_SOCKADDR_IN6, &v6), Some(Ipv6Addr::LOCALHOST.into()));
        assert_eq!(ip_address(FI_SOCKADDR_IN6, &v6[..20]), None);
        assert_eq!(ip_address(FI_SOCKADDR_IN, &v6), None, "the family is not the format's");
        assert_eq!(ip_address(FI_SOCKADDR_IN, &[]), None);
    }

    #[test]
    fn addresses_that_are_no_sockaddrs_are_shown_as_text_or_digits() {
        assert_eq!(shown_address(0, b"fi_shm://7\0"), "fi_shm://7");
        assert_eq!(shown_address(FI_SOCKADDR_IN, &[1, 0xab]), "01ab");
        assert_eq!(shown_address(0, &[]), "");
    }
}
