//! The address of a function on the PCI bus.

use std::fmt;
use std::str::FromStr;

/// `domain:bus:device.function` in hexadecimal, as in the names of sysfs directories. Domains behind Intel's VMD are wider than 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// The domain, called segment in ACPI.
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The device, up to 31.
    pub device: u8,
    /// The function, up to 7.
    pub function: u8,
}

impl PciAddress {
    /// Whether both are functions of one card, which has a single link.
    pub fn same_card(self, other: Self) -> bool {
        (self.domain, self.bus, self.device) == (other.domain, other.bus, other.device)
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// Not of the form `0000:00:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAnAddress;

impl FromStr for PciAddress {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        let parse = || {
            let (rest, function) = text.rsplit_once('.')?;
            let mut parts = rest.split(':');
            let domain = u32::from_str_radix(parts.next()?, 16).ok()?;
            let bus = u8::from_str_radix(parts.next()?, 16).ok()?;
            let device = u8::from_str_radix(parts.next()?, 16).ok()?;
            let function = u8::from_str_radix(function, 16).ok()?;
            let whole = parts.next().is_none() && device < 32 && function < 8;
            whole.then_some(Self { domain, bus, device, function })
        };
        parse().ok_or(NotAnAddress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_the_kernel_writes_it() {
        for text in ["0000:4f:00.0", "0009:01:00.0", "10000:e1:1f.7"] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), text);
        }
        for text in
            ["", "pci0000:4f", "4f:00.0", "0000:4f:20.0", "0000:4f:00.8", "0:0:0:0.0", "0000:4f:00"]
        {
            assert_eq!(text.parse::<PciAddress>(), Err(NotAnAddress), "{text}");
        }
    }

    #[test]
    fn functions_of_one_card_share_its_link() {
        let parse = |text: &str| text.parse::<PciAddress>().unwrap();
        assert!(parse("0000:29:00.0").same_card(parse("0000:29:00.1")));
        assert!(!parse("0000:29:00.0").same_card(parse("0000:2a:00.0")));
    }
}
