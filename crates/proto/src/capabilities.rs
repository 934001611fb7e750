//! The capabilities of a provider, as the probe found them. Peers exchange theirs at connect and use those that both have.

use crate::codec::{HandshakeError, Reader, Writer};
use crate::limits::PART_ALIGN;

/// How many bytes of an immediate (remote CQ data) arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum ImmediateWidth {
    #[default]
    None = 0,
    Four = 4,
    Eight = 8,
}

/// The results of the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    pub immediate: ImmediateWidth,
    /// The completion of an arrival has the true length (`fi_cq_data_entry::len`).
    pub true_lengths: bool,
    /// A rail can read its own process's memory, as a flush does.
    pub self_read: bool,
    /// The completion of a write proves that its bytes are at the peer.
    pub proves_arrival: bool,
    /// FI_DELIVERY_COMPLETE is honoured when requested.
    pub delivery_complete: bool,
    /// Peers address our memory by virtual address, not by offset (FI_MR_VIRT_ADDR).
    pub virtual_addresses: bool,
    /// There is no RMA: everything is sent in tagged messages (SENDRECV).
    pub messages: bool,
    /// This side reports when parts have arrived, if the peer needs that.
    pub arrival_times: bool,
    /// The longest write, in bytes.
    pub largest_write: u64,
}

impl Capabilities {
    /// The capabilities that both ends have. Whether memory is addressed by virtual address needs no agreement: the owner of the
    /// memory sends the address to use.
    #[must_use]
    pub fn agree(&self, peer: &Self) -> Self {
        Self {
            immediate: self.immediate.min(peer.immediate),
            true_lengths: self.true_lengths && peer.true_lengths,
            self_read: self.self_read && peer.self_read,
            proves_arrival: self.proves_arrival && peer.proves_arrival,
            delivery_complete: self.delivery_complete && peer.delivery_complete,
            virtual_addresses: self.virtual_addresses && peer.virtual_addresses,
            messages: self.messages && peer.messages,
            arrival_times: self.arrival_times && peer.arrival_times,
            largest_write: self.largest_write.min(peer.largest_write),
        }
    }

    pub fn encode(&self, writer: &mut Writer) {
        writer.field(WIDTH, &[self.immediate as u8]);
        writer.field(FLAGS, &self.flags().to_le_bytes());
        writer.field(LARGEST, &self.largest_write.to_le_bytes());
    }

    /// Decodes the capabilities. Unknown flags, of a later version, are ignored: this side lacks those capabilities.
    pub fn decode(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let (mut width, mut flags, mut largest) = (None, None, None);
        for field in Reader::new(bytes) {
            let field = field?;
            match field.kind {
                WIDTH => field.once(&mut width, |field| match field.u8()? {
                    0 => Ok(ImmediateWidth::None),
                    4 => Ok(ImmediateWidth::Four),
                    8 => Ok(ImmediateWidth::Eight),
                    _ => Err(HandshakeError::Value("immediate width")),
                })?,
                FLAGS => field.once(&mut flags, |field| field.u32())?,
                LARGEST => field.once(&mut largest, |field| field.u64())?,
                _ => {}
            }
        }
        let flags = flags.ok_or(HandshakeError::Missing("capability flags"))?;
        let largest_write = largest.ok_or(HandshakeError::Missing("largest write"))?;
        if largest_write < PART_ALIGN {
            return Err(HandshakeError::Value("largest write"));
        }
        Ok(Self {
            immediate: width.ok_or(HandshakeError::Missing("immediate width"))?,
            true_lengths: flags & TRUE_LENGTHS != 0,
            self_read: flags & SELF_READ != 0,
            proves_arrival: flags & PROVES_ARRIVAL != 0,
            delivery_complete: flags & DELIVERY_COMPLETE != 0,
            virtual_addresses: flags & VIRTUAL_ADDRESSES != 0,
            messages: flags & MESSAGES != 0,
            arrival_times: flags & ARRIVAL_TIMES != 0,
            largest_write,
        })
    }

    fn flags(&self) -> u32 {
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        flag(self.true_lengths, TRUE_LENGTHS)
            | flag(self.self_read, SELF_READ)
            | flag(self.proves_arrival, PROVES_ARRIVAL)
            | flag(self.delivery_complete, DELIVERY_COMPLETE)
            | flag(self.virtual_addresses, VIRTUAL_ADDRESSES)
            | flag(self.messages, MESSAGES)
            | flag(self.arrival_times, ARRIVAL_TIMES)
    }
}

const WIDTH: u16 = 1;
const FLAGS: u16 = 2;
const LARGEST: u16 = 4;

const TRUE_LENGTHS: u32 = 1;
const SELF_READ: u32 = 1 << 1;
const PROVES_ARRIVAL: u32 = 1 << 2;
const DELIVERY_COMPLETE: u32 = 1 << 3;
const VIRTUAL_ADDRESSES: u32 = 1 << 4;
const MESSAGES: u32 = 1 << 5;
const ARRIVAL_TIMES: u32 = 1 << 6;

#[cfg(test)]
mod tests {
    use super::*;

    fn every() -> impl Iterator<Item = Capabilities> {
        use ImmediateWidth::{Eight, Four, None};
        (0..128_u32).flat_map(|flags| {
            [None, Four, Eight].map(|immediate| Capabilities {
                immediate,
                true_lengths: flags & 1 != 0,
                self_read: flags & 2 != 0,
                proves_arrival: flags & 4 != 0,
                delivery_complete: flags & 8 != 0,
                virtual_addresses: flags & 16 != 0,
                messages: flags & 32 != 0,
                arrival_times: flags & 64 != 0,
                largest_write: u64::from(flags) << 40 | 128,
            })
        })
    }

    #[test]
    fn capabilities_survive_the_wire() {
        for capabilities in every() {
            let mut writer = Writer::default();
            capabilities.encode(&mut writer);
            assert_eq!(Capabilities::decode(writer.bytes()), Ok(capabilities));
        }
    }

    /// 3 was the length of writes that are injected.
    #[test]
    fn a_field_that_is_not_known_is_skipped() {
        let capabilities = every().last().unwrap();
        let mut writer = Writer::default();
        capabilities.encode(&mut writer);
        for kind in [0, 3, u16::MAX] {
            writer.field(kind, &[7; 4]);
        }
        assert_eq!(Capabilities::decode(writer.bytes()), Ok(capabilities));
    }

    #[test]
    fn agreement_is_symmetric_and_has_no_capability_that_an_end_lacks() {
        for ours in every() {
            for theirs in every() {
                let agreed = ours.agree(&theirs);
                assert_eq!(agreed, theirs.agree(&ours));
                assert_eq!(agreed.agree(&ours), agreed);
                assert!(agreed.immediate <= ours.immediate);
                assert!(agreed.largest_write <= ours.largest_write);
                assert_eq!(agreed.flags() & !ours.flags(), 0);
            }
        }
    }

    #[test]
    fn a_largest_write_that_cannot_hold_an_aligned_part_is_refused() {
        let mut capabilities = every().next().unwrap();
        capabilities.largest_write = 127;
        let mut writer = Writer::default();
        capabilities.encode(&mut writer);
        assert_eq!(
            Capabilities::decode(writer.bytes()),
            Err(HandshakeError::Value("largest write"))
        );
    }
}
