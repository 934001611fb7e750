//! What an operation is: what was posted, and what becomes of it.

use std::ffi::c_int;

use libfabric_sys as sys;

use super::held::Held;
use super::{Endpoint, Entry, Id, Outcome, Region};

/// An accepted operation.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(super) kind: Kind,
    pub(super) initiator: Id<Endpoint>,
    pub(super) target: Id<Endpoint>,
    /// The target as the initiator's address vector names it.
    pub(super) peer: u64,
    pub(super) context: u64,
    pub(super) local: Local,
    pub(super) remote: Remote,
    pub(super) immediate: Option<u64>,
    pub(super) tag: Option<u64>,
    pub(super) source: Source,
    /// A fingerprint of the buffer at the post.
    pub(super) print: Option<u64>,
    pub(super) region: Option<Id<Region>>,
    pub(super) signalled: bool,
    pub(super) silent: bool,
    pub(super) delivery: bool,
    /// The number of its bytes that become visible together.
    pub(super) line: u64,
    /// Whether its completion was written to the queue before its departure (Progress::Software).
    pub(super) reported: bool,
    /// Whether the user has read that completion.
    pub(super) was_read: bool,
    /// Whether its bytes have left the initiator.
    pub(super) departed: bool,
    pub(super) fails_late: bool,
    /// Whether it completes with success although its bytes never land.
    pub(super) vanishes: bool,
    /// Whether it is a message that breaks off as it arrives.
    pub(super) breaks_off: bool,
    pub(super) fate: Fate,
    /// A delay that is added to its flight time.
    pub(super) delay: u64,
    /// The id of its landed bytes that are still invisible.
    pub(super) held: Option<Id<Held>>,
    /// For a read of device memory: the device.
    pub(super) read_device: Option<c_int>,
    /// For a read: the newest landed bytes that were invisible when it read.
    pub(super) read_after: Id<Held>,
    pub(super) result: Outcome,
}

/// The bytes of an operation.
#[derive(Debug)]
pub(super) enum Source {
    /// Still in the user's memory.
    Memory,
    Taken(Vec<u8>),
}

impl Operation {
    /// The completion that the initiator reads.
    pub(super) fn entry(&self) -> Entry {
        let flags = match self.kind {
            Kind::Write => sys::FI_RMA | sys::FI_WRITE,
            Kind::Read => sys::FI_RMA | sys::FI_READ,
            Kind::Send if self.tag.is_some() => sys::FI_TAGGED | sys::FI_SEND,
            Kind::Send => sys::FI_MSG | sys::FI_SEND,
        };
        Entry::new(self.initiator, self.context, flags)
    }
}

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Write,
    Read,
    Send,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Write, Self::Read, Self::Send];

    /// The FI_ORDER_* bit that keeps an operation of this kind behind an earlier one (fi_endpoint(3), `msg_order`).
    pub(super) const fn after(self, earlier: Self) -> u64 {
        match (self, earlier) {
            (Self::Read, Self::Read) => sys::FI_ORDER_RAR,
            (Self::Read, Self::Write) => sys::FI_ORDER_RAW,
            (Self::Read, Self::Send) => sys::FI_ORDER_RAS,
            (Self::Write, Self::Read) => sys::FI_ORDER_WAR,
            (Self::Write, Self::Write) => sys::FI_ORDER_WAW,
            (Self::Write, Self::Send) => sys::FI_ORDER_WAS,
            (Self::Send, Self::Read) => sys::FI_ORDER_SAR,
            (Self::Send, Self::Write) => sys::FI_ORDER_SAW,
            (Self::Send, Self::Send) => sys::FI_ORDER_SAS,
        }
    }
}

/// Local memory of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    pub(crate) address: u64,
    pub(crate) len: u64,
    /// The descriptor; 0 for none.
    pub(crate) descriptor: u64,
    /// Added to the address to find the bytes, which differs for device memory.
    pub(crate) shift: u64,
}

impl Local {
    /// The address of the bytes.
    pub(super) fn place(&self) -> u64 {
        self.address.wrapping_add(self.shift)
    }
}

/// Remote memory of an operation, as the user named it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) key: u64,
}

/// What happens to a message; decided when it is accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fate {
    #[default]
    Arrives,
    Lost,
    /// It arrives again, this much later.
    Doubled(u64),
}
