//! The handle that `listen` returns and `connect` is given: 128 bytes that travel through NCCL's bootstrap.
//!
//! ```text
//! 0..8 magic | 8..10 version | 10 address length | 12..16 check | 16..24 listener | 24..32 nonce
//! 32..36 address format | 36..48 zero | 48..112 control address | 112..128 scratch of connect, outside the check
//! ```

use crate::codec::{Address, HandshakeError, VERSION, check_of};
use crate::limits::HANDLE_BYTES;

/// Where and how a listener is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// The listener's number at its process.
    pub listener: u64,
    /// Drawn by the listener: a request must show it, so that one for an earlier listener is told apart.
    pub nonce: u64,
    /// Of the rail on which the listener takes requests.
    pub control: Address,
    /// libfabric's name for the format of `control` (`fi_info::addr_format`).
    pub address_format: u32,
}

impl Handle {
    pub fn encode(&self) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        let address = self.control.as_bytes();
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = crate::bits::low8(address.len() as u64);
        bytes[16..24].copy_from_slice(&self.listener.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.nonce.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.address_format.to_le_bytes());
        bytes[48..48 + address.len()].copy_from_slice(address);
        let check = check_of(&bytes[..SCRATCH_AT]);
        bytes[CHECK_AT].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; HANDLE_BYTES]) -> Result<Self, HandshakeError> {
        if bytes[..8] != MAGIC {
            return Err(HandshakeError::Magic);
        }
        let mut unsealed = *bytes;
        unsealed[CHECK_AT].fill(0);
        if check_of(&unsealed[..SCRATCH_AT]).to_le_bytes() != bytes[CHECK_AT] {
            return Err(HandshakeError::Check);
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version != VERSION {
            return Err(HandshakeError::Version { theirs: version, reply: None });
        }
        let address = bytes[48..SCRATCH_AT].get(..usize::from(bytes[10]));
        Ok(Self {
            listener: u64::from_le_bytes(word(bytes, 16)),
            nonce: u64::from_le_bytes(word(bytes, 24)),
            control: address
                .and_then(Address::new)
                .ok_or(HandshakeError::Value("address length"))?,
            address_format: u32::from_le_bytes(word(bytes, 32)),
        })
    }

    /// What connect keeps in the handle between its retries; zero in a fresh one.
    pub fn scratch(bytes: &[u8; HANDLE_BYTES]) -> [u8; SCRATCH_BYTES] {
        word(bytes, SCRATCH_AT)
    }

    pub fn set_scratch(bytes: &mut [u8; HANDLE_BYTES], scratch: [u8; SCRATCH_BYTES]) {
        bytes[SCRATCH_AT..].copy_from_slice(&scratch);
    }
}

/// The bytes at the end of a handle that are connect's own.
pub const SCRATCH_BYTES: usize = 16;

const MAGIC: [u8; 8] = *b"Ironrail";
const CHECK_AT: std::ops::Range<usize> = 12..16;
const SCRATCH_AT: usize = HANDLE_BYTES - SCRATCH_BYTES;

fn word<const LEN: usize>(bytes: &[u8; HANDLE_BYTES], at: usize) -> [u8; LEN] {
    let mut word = [0; LEN];
    word.copy_from_slice(&bytes[at..at + LEN]);
    word
}
