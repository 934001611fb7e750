//! Why an operation was posted, and so what its completion means: a NIC gives back the 64 bits that it was posted with.

use proto::Line;

/// Why an operation was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A part of a message, posted on a data rail by the sender in this slot.
    Part { sender: u16, line: Line },
    /// The same of a message that is this one part, and needs no fin: the sender does not count it, until what is in flight is asked
    /// for ([`super::nics::Port::count_wholes`]).
    Whole { sender: u16, line: Line },
    /// Adverts, by the receiver in this slot.
    Advert { receiver: u16, generation: u16 },
    /// A done that no advert carries, by the receiver in this slot.
    LoneDone { receiver: u16, generation: u16 },
    /// The record that stands in for immediates, by the sender in this slot.
    Fin { sender: u16, line: Line },
    /// A message that was sent before its receive was known, by the sender in this slot.
    Eager { sender: u16, number: u32 },
    /// Short messages that travel together, by the sender in this slot.
    Bundle { sender: u16 },
    /// A read for the flush in this slot.
    Flush { flush: u16 },
    /// A sign of life asked for by the sender in this slot.
    SenderPulse { sender: u16 },
    /// The same by a receiver.
    ReceiverPulse { receiver: u16, generation: u16 },
    /// A two-sided message, out of this buffer.
    Message { buffer: u16 },
    /// An attempt of the device's probe.
    Probe { attempt: Attempt },
    /// A posted receive, into this buffer.
    Inbox { buffer: u16 },
}

/// One operation of an endpoint on memory of its own, which shows what its provider can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Write,
    WriteWithImmediate,
    Read,
    /// A write that completes on delivery.
    WriteToTheEnd,
}

impl Attempt {
    const ALL: [Self; 4] = [Self::Write, Self::WriteWithImmediate, Self::Read, Self::WriteToTheEnd];
}

impl Purpose {
    /// As a NIC keeps it: a kind, a slot and a number.
    #[inline(always)]
    pub(super) const fn token(self) -> u64 {
        match self {
            Self::Part { sender, line } => pack(PART, sender, line.number()),
            Self::Whole { sender, line } => pack(WHOLE, sender, line.number()),
            Self::Advert { receiver, generation } => pack(ADVERT, receiver, generation as u32),
            Self::LoneDone { receiver, generation } => pack(LONE_DONE, receiver, generation as u32),
            Self::Fin { sender, line } => pack(FIN, sender, line.number()),
            Self::Eager { sender, number } => pack(EAGER, sender, number),
            Self::Bundle { sender } => pack(BUNDLE, sender, 0),
            Self::Flush { flush } => pack(FLUSH, flush, 0),
            Self::SenderPulse { sender } => pack(SENDER_PULSE, sender, 0),
            Self::ReceiverPulse { receiver, generation } => {
                pack(RECEIVER_PULSE, receiver, generation as u32)
            }
            Self::Message { buffer } => pack(MESSAGE, buffer, 0),
            Self::Probe { attempt } => pack(PROBE, attempt as u16, 0),
            Self::Inbox { buffer } => pack(INBOX, buffer, 0),
        }
    }

    /// What [`Purpose::token`] made; none of other bits.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the fields that `pack` made")]
    pub(super) fn of(token: u64) -> Option<Self> {
        let (slot, number) = ((token >> SLOT_SHIFT) as u16, (token >> NUMBER_SHIFT) as u32);
        let (line, generation) = (Line::new(number), number as u16);
        Some(match token & KIND_MASK {
            PART => Self::Part { sender: slot, line },
            WHOLE => Self::Whole { sender: slot, line },
            ADVERT => Self::Advert { receiver: slot, generation },
            LONE_DONE => Self::LoneDone { receiver: slot, generation },
            FIN => Self::Fin { sender: slot, line },
            EAGER => Self::Eager { sender: slot, number },
            BUNDLE => Self::Bundle { sender: slot },
            FLUSH => Self::Flush { flush: slot },
            SENDER_PULSE => Self::SenderPulse { sender: slot },
            RECEIVER_PULSE => Self::ReceiverPulse { receiver: slot, generation },
            MESSAGE => Self::Message { buffer: slot },
            PROBE => Self::Probe { attempt: *Attempt::ALL.get(usize::from(slot))? },
            INBOX => Self::Inbox { buffer: slot },
            _ => return None,
        })
    }

    /// The sender whose write of data this is.
    pub(super) fn sender_of_data(self) -> Option<u16> {
        match self {
            Self::Part { sender, .. } | Self::Whole { sender, .. } => Some(sender),
            _ => None,
        }
    }
}

const KIND_MASK: u64 = 0xff;
const SLOT_SHIFT: u32 = 16;
const NUMBER_SHIFT: u32 = 32;

const PART: u64 = 1;
const WHOLE: u64 = 2;
const ADVERT: u64 = 3;
const LONE_DONE: u64 = 4;
const FIN: u64 = 5;
const EAGER: u64 = 6;
const BUNDLE: u64 = 7;
const FLUSH: u64 = 8;
const SENDER_PULSE: u64 = 9;
const RECEIVER_PULSE: u64 = 10;
const MESSAGE: u64 = 11;
const INBOX: u64 = 12;
const PROBE: u64 = 13;

#[inline(always)]
const fn pack(kind: u64, slot: u16, number: u32) -> u64 {
    kind | (slot as u64) << SLOT_SHIFT | (number as u64) << NUMBER_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_purpose_comes_back_as_it_was_posted() {
        for slot in [0, 1, u16::MAX] {
            for number in [0, 7, u16::MAX] {
                let (line, wide) = (Line::new(u32::from(number) << 16 | 3), u32::MAX);
                for purpose in [
                    Purpose::Part { sender: slot, line },
                    Purpose::Whole { sender: slot, line },
                    Purpose::Advert { receiver: slot, generation: number },
                    Purpose::LoneDone { receiver: slot, generation: number },
                    Purpose::Fin { sender: slot, line },
                    Purpose::Eager { sender: slot, number: wide },
                    Purpose::Bundle { sender: slot },
                    Purpose::Flush { flush: slot },
                    Purpose::SenderPulse { sender: slot },
                    Purpose::ReceiverPulse { receiver: slot, generation: number },
                    Purpose::Message { buffer: slot },
                    Purpose::Inbox { buffer: slot },
                ] {
                    assert_eq!(Purpose::of(purpose.token()), Some(purpose));
                }
            }
        }
        for attempt in Attempt::ALL {
            let purpose = Purpose::Probe { attempt };
            assert_eq!(Purpose::of(purpose.token()), Some(purpose));
        }
        assert_eq!((Purpose::of(0), Purpose::of(14)), (None, None));
    }
}
