//! The handle that `listen` returns and `connect` gets: 128 bytes that NCCL's bootstrap carries.
//!
//! ```text
//! 0..8 magic | 8..10 newest version | 10 addresses | 11 oldest version | 12..16 check | 16..32 endpoint id
//! 32..36 listener | 36..40 address format | 40..56 secret | 56..112 one or two control addresses
//! 112..128 scratch of connect, outside of the check
//! addresses: bits 0 to 6 the length of each; bit 7: there are two
//! ```
//!
//! Magic, newest version and check have the same places as in version 1, so that each version recognises the other.

use std::fmt;

use crate::bits::low8;
use crate::codec::{Bounded, check_of};
use crate::limits::HANDLE_BYTES;

use super::super::ids::ListenerId;
use super::proof::{EndpointId, Secret};
use super::version::{VERSION, Versions};

/// The longest control address that a handle carries: an InfiniBand address has 48 bytes.
pub const HANDLE_ADDRESS_BYTES: usize = 48;
/// The bytes at the end of a handle in which connect keeps its state.
pub const SCRATCH_BYTES: usize = 16;

/// A listener's address, and the secret that proves possession of the handle.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    pub versions: Versions,
    pub endpoint: EndpointId,
    pub listener: ListenerId,
    pub secret: Secret,
    /// Where the endpoint receives two-sided messages.
    pub control: ControlAddresses,
    /// The format of these addresses (`fi_info::addr_format`).
    pub address_format: u32,
}

/// The addresses of one control rail of an endpoint, or of two if both fit: the NIC of one may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlAddresses {
    first: Bounded<HANDLE_ADDRESS_BYTES>,
    second: Option<Bounded<HANDLE_ADDRESS_BYTES>>,
}

impl ControlAddresses {
    /// The first of these addresses, and the second if it fits, too. `None`: there is none, or it is too long.
    pub fn new<'a>(mut addresses: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let first = Bounded::new(addresses.next()?)?;
        let len = first.as_bytes().len();
        let fits = |second: &&[u8]| second.len() == len && 2 * len <= ADDRESSES.len();
        let second = addresses.next().filter(fits).and_then(Bounded::new);
        Some(Self { first, second })
    }

    /// The number of addresses: one or two.
    pub fn count(&self) -> usize {
        1 + usize::from(self.second.is_some())
    }

    /// The address for attempt `turn`: the addresses alternate.
    pub fn at(&self, turn: usize) -> Bounded<HANDLE_ADDRESS_BYTES> {
        let second = self.second.filter(|_| turn % 2 == 1);
        second.unwrap_or(self.first)
    }
}

/// Omits the secret, with which anyone could connect.
impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("versions", &self.versions)
            .field("endpoint", &self.endpoint)
            .field("listener", &self.listener)
            .field("control", &self.control)
            .finish_non_exhaustive()
    }
}

/// Why bytes are not a handle that we can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleError {
    /// The bytes are not from this plugin: the ranks use different plugins.
    Magic,
    /// The handle was damaged in transit.
    Check,
    /// The peer speaks none of our versions. Its newest version.
    Version(u16),
    Value(&'static str),
}

impl fmt::Display for HandleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic => f.write_str(
                "the peer's handle is not of this plugin: start all ranks with the same network plugin",
            ),
            Self::Check => f.write_str("the peer's handle was damaged on its way"),
            Self::Version(theirs) => write!(
                f,
                "the peer speaks version {theirs} of the protocol and this rank version {VERSION}: start all ranks with the same release of the plugin"
            ),
            Self::Value(name) => write!(f, "the {name} in the peer's handle is not valid"),
        }
    }
}

impl std::error::Error for HandleError {}

impl Handle {
    pub fn encode(&self) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        let ControlAddresses { first, second } = &self.control;
        let len = first.as_bytes().len();
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.versions.newest.to_le_bytes());
        bytes[10] = low8(len as u64);
        bytes[11] = low8(self.versions.oldest.into());
        bytes[16..32].copy_from_slice(&self.endpoint.0);
        bytes[32..36].copy_from_slice(&self.listener.0.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.address_format.to_le_bytes());
        bytes[40..56].copy_from_slice(&self.secret.0);
        let places = bytes[ADDRESSES].split_at_mut(len);
        places.0.copy_from_slice(first.as_bytes());
        if let Some(second) = second {
            places.1[..len].copy_from_slice(second.as_bytes());
            bytes[10] |= TWO_ADDRESSES;
        }
        let check = check_of(&bytes[..SCRATCH_AT]);
        bytes[CHECK_AT].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; HANDLE_BYTES]) -> Result<Self, HandleError> {
        if bytes[..8] != MAGIC {
            return Err(HandleError::Magic);
        }
        let mut unsealed = *bytes;
        unsealed[CHECK_AT].fill(0);
        if check_of(&unsealed[..SCRATCH_AT]).to_le_bytes() != bytes[CHECK_AT] {
            return Err(HandleError::Check);
        }
        let newest = u16::from_le_bytes(array(bytes, 8));
        // Version 1 has zero at the place of the oldest version.
        let versions = Versions { oldest: u16::from(bytes[11]), newest };
        if versions.oldest == 0 || versions.common(Versions::OURS).is_none() {
            return Err(HandleError::Version(newest));
        }
        let len = usize::from(bytes[10] & !TWO_ADDRESSES);
        let count = if bytes[10] & TWO_ADDRESSES == 0 { 1 } else { 2 };
        let addresses = bytes[ADDRESSES].chunks_exact(len.max(1)).take(count);
        let control = ControlAddresses::new(addresses);
        let control = control.filter(|found| len > 0 && found.count() == count);
        Ok(Self {
            versions,
            endpoint: EndpointId(array(bytes, 16)),
            listener: ListenerId(u32::from_le_bytes(array(bytes, 32))),
            secret: Secret(array(bytes, 40)),
            control: control.ok_or(HandleError::Value("address"))?,
            address_format: u32::from_le_bytes(array(bytes, 36)),
        })
    }

    /// The state that connect keeps in the handle between its calls; zero in a new handle.
    pub fn scratch(bytes: &[u8; HANDLE_BYTES]) -> [u8; SCRATCH_BYTES] {
        array(bytes, SCRATCH_AT)
    }

    pub fn set_scratch(bytes: &mut [u8; HANDLE_BYTES], scratch: [u8; SCRATCH_BYTES]) {
        bytes[SCRATCH_AT..].copy_from_slice(&scratch);
    }
}

const MAGIC: [u8; 8] = *b"Ironrail";
const CHECK_AT: std::ops::Range<usize> = 12..16;
const ADDRESSES: std::ops::Range<usize> = 56..SCRATCH_AT;
/// The bit for two addresses, in the byte of the addresses' length.
const TWO_ADDRESSES: u8 = 0x80;
const SCRATCH_AT: usize = HANDLE_BYTES - SCRATCH_BYTES;

fn array<const LEN: usize>(bytes: &[u8; HANDLE_BYTES], at: usize) -> [u8; LEN] {
    let mut array = [0; LEN];
    array.copy_from_slice(&bytes[at..at + LEN]);
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A handle with addresses of these lengths.
    fn handle(addresses: &[usize]) -> Handle {
        let bytes = [[5; HANDLE_ADDRESS_BYTES], [6; HANDLE_ADDRESS_BYTES]];
        let addresses = addresses.iter().zip(&bytes).map(|(len, bytes)| &bytes[..*len]);
        Handle {
            versions: Versions::OURS,
            endpoint: EndpointId([7; 16]),
            listener: ListenerId(0x0102_0304),
            secret: Secret([9; 16]),
            control: ControlAddresses::new(addresses).unwrap(),
            address_format: 3,
        }
    }

    #[test]
    fn a_handle_decodes_to_what_it_was_made_of() {
        for len in 1..=HANDLE_ADDRESS_BYTES {
            for addresses in [&[len][..], &[len, len]] {
                let handle = handle(addresses);
                assert_eq!(Handle::decode(&handle.encode()), Ok(handle));
            }
        }
        assert_eq!(ControlAddresses::new([&[0; 49][..]].into_iter()), None);
    }

    #[test]
    fn a_second_address_is_kept_if_both_fit() {
        let kept = |addresses: &[usize]| {
            let found = Handle::decode(&handle(addresses).encode()).unwrap().control;
            (0..4).map(|turn| found.at(turn).as_bytes()[0]).collect::<Vec<_>>()
        };
        assert_eq!(kept(&[28, 28]), [5, 6, 5, 6]);
        assert_eq!(kept(&[29, 29]), [5; 4]);
        assert_eq!(kept(&[16, 28]), [5; 4], "addresses of one fabric have the same length");
        assert_eq!(kept(&[16]), [5; 4]);
    }

    #[test]
    fn lengths_that_no_addresses_have_are_refused() {
        for lengths in [0, 49, 127, TWO_ADDRESSES, TWO_ADDRESSES | 29, 0xFF] {
            let mut bytes = handle(&[16]).encode();
            bytes[10] = lengths;
            bytes[CHECK_AT].fill(0);
            let fits = check_of(&bytes[..SCRATCH_AT]);
            bytes[CHECK_AT].copy_from_slice(&fits.to_le_bytes());
            assert_eq!(Handle::decode(&bytes), Err(HandleError::Value("address")), "{lengths:#x}");
        }
    }

    #[test]
    fn every_bit_outside_of_the_scratch_is_guarded() {
        let bytes = handle(&[16, 16]).encode();
        for bit in 0..SCRATCH_AT * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(Handle::decode(&changed).is_err(), "bit {bit}");
        }
        assert_eq!(Handle::scratch(&bytes), [0; SCRATCH_BYTES]);
        let mut scratched = bytes;
        Handle::set_scratch(&mut scratched, [1; SCRATCH_BYTES]);
        assert_eq!(Handle::scratch(&scratched), [1; SCRATCH_BYTES]);
        assert_eq!(Handle::decode(&scratched), Handle::decode(&bytes));
    }

    #[test]
    fn handles_of_version_1_and_2_recognise_each_other() {
        // A handle of version 1: magic, version at 8, the check over all but the scratch.
        let mut old = [0; HANDLE_BYTES];
        old[..8].copy_from_slice(b"Ironrail");
        old[8..10].copy_from_slice(&1_u16.to_le_bytes());
        old[10] = 16;
        let check = check_of(&old[..SCRATCH_AT]);
        old[CHECK_AT].copy_from_slice(&check.to_le_bytes());
        assert_eq!(Handle::decode(&old), Err(HandleError::Version(1)));
        let new = handle(&[16, 16]).encode();
        assert_eq!((&new[..8], &new[8..10]), (&b"Ironrail"[..], &2_u16.to_le_bytes()[..]));
    }

    /// Of a later release, or of no release at all.
    #[test]
    fn a_handle_whose_versions_are_not_ours_is_refused_and_one_that_has_ours_is_not() {
        for (oldest, newest, is_ours) in [(2, 2, true), (1, 9, true), (3, 9, false), (0, 2, false)]
        {
            let versions = Versions { oldest, newest };
            let handle = Handle { versions, ..handle(&[16]) };
            let expected = if is_ours { Ok(handle) } else { Err(HandleError::Version(newest)) };
            assert_eq!(Handle::decode(&handle.encode()), expected, "{oldest} to {newest}");
        }
    }

    #[test]
    fn a_handle_does_not_print_its_secret() {
        let text = format!("{:?}", handle(&[4]));
        assert!(!text.contains("9, 9") && !text.contains("secret"), "{text}");
    }
}
