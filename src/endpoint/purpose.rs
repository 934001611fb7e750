//! The purpose of an operation: the 64 bits that it is posted with, and that its completion returns.

use proto::{Generation, Line, MessageId, PacketNumber, Slot};

/// Why an operation was posted, and what its completion is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A part of a message of the connection in this slot.
    Part { slot: Slot, generation: Generation, message: MessageId, part: u8 },
    /// A packet of a channel. The low byte of the epoch is enough: a channel has few at a time.
    Packet { channel: u16, epoch: u8, number: PacketNumber },
    /// An acknowledgement, written into a peer's cell.
    Cell { channel: u16, epoch: u8 },
    /// A letter, sent from this buffer.
    LetterSend { buffer: u16 },
    /// A receive for a letter, into this buffer.
    LetterReceive { buffer: u16 },
    /// A receive for a packet, into this buffer (SENDRECV).
    PacketReceive { buffer: u16 },
    /// A tagged receive for a connection's line (SENDRECV).
    Receive { slot: Slot, generation: Generation, line: Line },
    /// A read for the flush in this slot.
    Flush { flush: u16 },
    /// An operation of the device's probe, on this NIC.
    Probe { nic: u8, attempt: Attempt },
    /// A trial of a data rail of a channel.
    Trial { channel: u16, rail: u8 },
}

/// An operation of the probe: the endpoint accesses its own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Write,
    WriteWithImmediate,
    Read,
    /// A write with FI_DELIVERY_COMPLETE.
    WriteDeliveryComplete,
}

impl Attempt {
    /// In the order in which the probe makes them.
    pub(super) const ALL: [Self; 4] =
        [Self::Write, Self::WriteWithImmediate, Self::Read, Self::WriteDeliveryComplete];
}

impl Purpose {
    /// The 64 bits: a kind in the low byte, then a small number, a slot, and a number of 32 bits.
    #[inline]
    pub(super) const fn token(self) -> u64 {
        match self {
            Self::Part { slot, generation, message, part } => {
                let number = (message.number() as u32) << 8 | part as u32;
                pack(PART, generation.get(), slot.number(), number)
            }
            Self::Packet { channel, epoch, number } => pack(PACKET, epoch, channel, number.get()),
            Self::Cell { channel, epoch } => pack(CELL, epoch, channel, 0),
            Self::LetterSend { buffer } => pack(LETTER_SEND, 0, buffer, 0),
            Self::LetterReceive { buffer } => pack(LETTER_RECEIVE, 0, buffer, 0),
            Self::PacketReceive { buffer } => pack(PACKET_RECEIVE, 0, buffer, 0),
            Self::Receive { slot, generation, line } => {
                pack(RECEIVE, generation.get(), slot.number(), line.number())
            }
            Self::Flush { flush } => pack(FLUSH, 0, flush, 0),
            Self::Probe { nic, attempt } => pack(PROBE, nic, attempt as u16, 0),
            Self::Trial { channel, rail } => pack(TRIAL, rail, channel, 0),
        }
    }

    /// Whether it is a receive, which ends only when a peer sends.
    pub(super) fn is_receive(self) -> bool {
        matches!(
            self,
            Self::LetterReceive { .. } | Self::PacketReceive { .. } | Self::Receive { .. }
        )
    }

    /// The inverse of [`Purpose::token`]; none for other bits.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the fields that `pack` made")]
    pub(super) fn of(token: u64) -> Option<Self> {
        let (small, slot, number) =
            ((token >> 8) as u8, (token >> 16) as u16, (token >> 32) as u32);
        Some(match token & 0xff {
            PART => Self::Part {
                slot: Slot::new(usize::from(slot))?,
                generation: Generation::new(small),
                message: MessageId::new((number >> 8) as u8),
                part: number as u8,
            },
            PACKET => {
                Self::Packet { channel: slot, epoch: small, number: PacketNumber::new(number) }
            }
            CELL => Self::Cell { channel: slot, epoch: small },
            LETTER_SEND => Self::LetterSend { buffer: slot },
            LETTER_RECEIVE => Self::LetterReceive { buffer: slot },
            PACKET_RECEIVE => Self::PacketReceive { buffer: slot },
            RECEIVE => Self::Receive {
                slot: Slot::new(usize::from(slot))?,
                generation: Generation::new(small),
                line: Line::new(number),
            },
            FLUSH => Self::Flush { flush: slot },
            TRIAL => Self::Trial { channel: slot, rail: small },
            PROBE => Self::Probe { nic: small, attempt: *Attempt::ALL.get(usize::from(slot))? },
            _ => return None,
        })
    }
}

const PART: u64 = 1;
const PACKET: u64 = 2;
const CELL: u64 = 3;
const LETTER_SEND: u64 = 4;
const LETTER_RECEIVE: u64 = 5;
const FLUSH: u64 = 6;
const PROBE: u64 = 7;
const PACKET_RECEIVE: u64 = 8;
const RECEIVE: u64 = 9;
const TRIAL: u64 = 10;

#[inline]
const fn pack(kind: u64, small: u8, slot: u16, number: u32) -> u64 {
    kind | (small as u64) << 8 | (slot as u64) << 16 | (number as u64) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_purpose_comes_back_as_it_was_posted() {
        for slot in [0, 1, 0x3fff_u16] {
            for number in [0, 1, 63] {
                let epoch = number * 4;
                for purpose in [
                    Purpose::Part {
                        slot: Slot::new(usize::from(slot)).unwrap(),
                        generation: Generation::new(number),
                        message: MessageId::new(number),
                        part: 63 - number,
                    },
                    Purpose::Packet { channel: slot, epoch, number: PacketNumber::new(u32::MAX) },
                    Purpose::Cell { channel: slot, epoch },
                    Purpose::LetterSend { buffer: slot },
                    Purpose::LetterReceive { buffer: slot },
                    Purpose::PacketReceive { buffer: slot },
                    Purpose::Receive {
                        slot: Slot::new(usize::from(slot)).unwrap(),
                        generation: Generation::new(number),
                        line: Line::new(u32::MAX - u32::from(number)),
                    },
                    Purpose::Flush { flush: slot },
                    Purpose::Trial { channel: slot, rail: number },
                ] {
                    assert_eq!(Purpose::of(purpose.token()), Some(purpose));
                }
            }
        }
        for attempt in Attempt::ALL {
            let purpose = Purpose::Probe { nic: 15, attempt };
            assert_eq!(Purpose::of(purpose.token()), Some(purpose));
        }
        assert_eq!((Purpose::of(0), Purpose::of(11)), (None, None));
    }
}
