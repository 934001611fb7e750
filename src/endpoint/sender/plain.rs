//! The common case of sending: see `endpoint/plain.rs`.

use std::sync::Arc;

use fabric::{RemoteBytes, RemoteKey};
use proto::{Line, PlainMessage};

use super::Sender;
use crate::endpoint::lanes::Lane;
use crate::endpoint::nics::Nic;
use crate::endpoint::plain::Plain;
use crate::rail::{Purpose, UserRegion};

impl Sender {
    /// [`Sender::send`], where the case is the common one: `told` is told the line. None: nothing has changed. False: the
    /// post was refused, and the line is free again.
    #[inline(always)]
    pub(in crate::endpoint) fn send_plainly(
        &mut self,
        nics: &mut [Nic],
        slot: u16,
        region: &Arc<UserRegion>,
        outgoing: &Plain,
        told: impl FnOnce(Line),
    ) -> Option<bool> {
        // What NCCL names as the region of an empty message may be of another buffer.
        if self.ending.blocked || outgoing.len == 0 {
            return None;
        }
        let len = outgoing.len as u64;
        let message = if self.wide {
            self.match_wide(outgoing.tag, len)?
        } else {
            self.flow.match_plainly::<_, 6>(&self.mailbox, outgoing.tag, len, self.plain_rail)?
        };
        let Lane { nic, peer } = self.plain_lane;
        let remote =
            RemoteBytes { address: message.address, key: RemoteKey::from_wire(message.key) };
        let rail = nics.get_mut(nic)?;
        if len >= self.inject_below {
            return self.write_plainly(rail, slot, region, outgoing, &message, told);
        }
        let rail = &mut rail.data;
        let local = region.host_bytes(outgoing.address, outgoing.len)?;
        // Submitted and told of before the post, so that little has to be kept meanwhile.
        self.flow.injected_plainly(message.line, len, self.plain_bit);
        told(message.line);
        let posted = rail.inject_first(local, remote, peer, message.immediate.bits());
        if !posted {
            self.flow.take_back();
        } else if self.several {
            self.take_next_lane();
        }
        Some(posted)
    }

    #[inline(never)]
    fn match_wide(&mut self, tag: i32, len: u64) -> Option<PlainMessage> {
        self.flow.match_plainly::<_, 8>(&self.mailbox, tag, len, self.plain_rail)
    }

    /// Messages in the plain form take the lanes in turn.
    #[inline]
    fn take_next_lane(&mut self) {
        let next = self.plain_rail + 1;
        self.plain_rail = if (next as usize) < self.lanes.len() { next } else { 0 };
        self.plain_bit = 1 << self.plain_rail;
        self.plain_lane = self.lanes[self.plain_rail as usize];
    }

    /// The same for a message that is too long to be injected.
    #[inline(never)]
    fn write_plainly(
        &mut self,
        rail: &mut Nic,
        slot: u16,
        region: &Arc<UserRegion>,
        outgoing: &Plain,
        message: &PlainMessage,
        told: impl FnOnce(Line),
    ) -> Option<bool> {
        let Lane { nic, peer } = self.plain_lane;
        let (line, len) = (message.line, outgoing.len);
        if len as u64 > self.largest_plain {
            return None;
        }
        let local = region.local(nic, outgoing.address, len)?;
        let remote =
            RemoteBytes { address: message.address, key: RemoteKey::from_wire(message.key) };
        let bytes = len as u64;
        let purpose = Purpose::Part { sender: slot, line, bytes, region: region.id() };
        let operation = rail.operations.begin(purpose)?;
        self.flow.posted_plainly(line, len as u64, self.plain_bit);
        self.in_flight += 1;
        told(line);
        let context = rail.operations.context(operation);
        let immediate = message.immediate.bits();
        let posted = rail.data.write_first(local, remote, peer, immediate, context);
        if !posted {
            rail.operations.end_at(operation);
            self.in_flight -= 1;
            self.flow.take_back();
        } else if self.several {
            self.take_next_lane();
        }
        Some(posted)
    }

    /// [`Sender::test`], for a message that is done.
    #[inline(always)]
    pub(in crate::endpoint) fn test_plainly(&mut self, request: u16) -> Option<u64> {
        if self.ending.closing { None } else { self.flow.poll_plainly(request) }
    }

    /// The same after a look into the mailbox.
    #[inline(always)]
    pub(in crate::endpoint) fn look_plainly(&mut self, request: u16) -> Option<u64> {
        self.flow.look_plainly(&self.mailbox, request)
    }

    /// Whether there is nothing to do for a message but to wait.
    #[inline(always)]
    pub(in crate::endpoint) fn waits_plainly(&self, request: u16) -> bool {
        !self.ending.closing && self.flow.waits_plainly(request)
    }
}
