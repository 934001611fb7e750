//! The common case of sending: see `endpoint/plain.rs`.

use std::sync::Arc;

use fabric::{Data, Delivery, HostBytes, LocalBytes, Nic, Post, RemoteBytes, RemoteKey, Write};
use proto::{Line, PlainMessage};

use super::Sender;
use crate::endpoint::bundle::Turn;
use crate::endpoint::nics::Port;
use crate::endpoint::operation::Purpose;
use crate::endpoint::plain::Buffer;
use crate::endpoint::region::UserRegion;

impl Sender {
    /// The bytes of a message, if it is short and they are the host's.
    #[inline(always)]
    pub(in crate::endpoint) fn short_bytes<'a>(
        &self,
        region: &'a UserRegion,
        outgoing: Buffer,
    ) -> Option<HostBytes<'a>> {
        let Buffer { address, len, .. } = outgoing;
        if self.flow.is_short(len as u64) { region.host_bytes(address, len) } else { None }
    }

    /// [`Sender::send`] of [such bytes](Self::short_bytes), where the case is the common one: `told` is told the line. None: nothing has
    /// changed. False: the post was refused, and the line is free again.
    #[inline(always)]
    pub(in crate::endpoint) fn send_shortly(
        &mut self,
        nics: &mut [Port],
        bytes: HostBytes<'_>,
        tag: i32,
        turn: u32,
        told: impl FnOnce(Line),
    ) -> Option<bool> {
        let rail = &mut nics.get_mut(self.plain_lane.nic)?.nic;
        if !rail.is_clear_to(self.plain_lane.peer) {
            return Some(false);
        }
        let len = bytes.len() as u64;
        let message = self.flow.match_filling(&self.places, tag, len, &self.plain_rail)?;
        self.sent_in = turn;
        Some(self.inject_plainly(rail, bytes, &message, told))
    }

    /// The message is submitted and told of before it is posted, so that little has to be kept meanwhile.
    #[inline(always)]
    fn inject_plainly(
        &mut self,
        rail: &mut Nic,
        local: HostBytes<'_>,
        message: &PlainMessage,
        told: impl FnOnce(Line),
    ) -> bool {
        let peer = self.plain_lane.peer;
        let remote =
            RemoteBytes { address: message.address, key: RemoteKey::from_wire(message.key) };
        self.flow.injected_plainly(message);
        told(message.line);
        if self.several {
            self.take_next_lane();
        }
        let posted = rail.inject(local, remote, peer, message.immediate.bits());
        let posted = matches!(posted, Ok(Post::Accepted));
        if !posted {
            self.flow.take_back();
        }
        posted
    }

    /// The same for messages that are too long to be injected, and go in one write, where adverts are short.
    #[inline(always)]
    pub(in crate::endpoint) fn send_long(
        &mut self,
        nics: &mut [Port],
        slot: u16,
        region: &UserRegion,
        outgoing: Buffer,
        turn: u32,
        told: impl FnOnce(Line),
    ) -> Option<bool> {
        let len = outgoing.len as u64;
        if !self.flow.is_long(len) {
            return None;
        }
        // What is long is itself never held back, so that this may be said before it is sent.
        self.sent_in = turn;
        // On one that NCCL may not use no message is plain.
        let (places, lane) = (&self.places, &self.plain_rail);
        let message = self.flow.match_filling(places, outgoing.tag, len, lane)?;
        let rail = &mut nics.get_mut(self.plain_lane.nic)?.nic;
        let local = region.local(self.plain_lane.nic, outgoing.address, outgoing.len)?;
        Some(self.write_plainly(rail, slot, local, &message, told))
    }

    /// The same for messages that are neither, that go where adverts are long, or that are shorter than their receives.
    #[inline(always)]
    pub(in crate::endpoint) fn send_plainly(
        &mut self,
        nics: &mut [Port],
        slot: u16,
        region: &Arc<UserRegion>,
        outgoing: Buffer,
        turn: Turn<'_>,
        told: impl FnOnce(Line),
    ) -> Option<bool> {
        let Buffer { address, len, tag, .. } = outgoing;
        // What NCCL names as the region of an empty message may be of another buffer.
        if self.ending.blocked || len == 0 {
            return None;
        }
        let injects = (len as u64) < self.inject_below;
        let follows = self.may_follow(turn.number, len as u64);
        let local = if injects || follows { Some(region.host_bytes(address, len)?) } else { None };
        let (flow, places, rail) = (&mut self.flow, &self.places, &self.plain_rail);
        let message = if self.wide {
            flow.match_plainly::<_, 8>(places, tag, len as u64, rail)?
        } else {
            flow.match_plainly::<_, 6>(places, tag, len as u64, rail)?
        };
        let rail = &mut nics.get_mut(self.plain_lane.nic)?.nic;
        if let Some(local) = &local
            && follows
            && message.copies
        {
            told(message.line);
            self.hold_plainly(turn.holding, slot, local, &message);
            return Some(true);
        }
        match local.filter(|_| injects) {
            Some(_) if !rail.is_clear_to(self.plain_lane.peer) => Some(false),
            Some(local) => {
                self.sent_in = turn.number;
                Some(self.inject_plainly(rail, local, &message, told))
            }
            None if len as u64 > self.largest_plain => None,
            None => {
                let local = region.local(self.plain_lane.nic, address, len)?;
                self.sent_in = turn.number;
                Some(self.write_plainly(rail, slot, local, &message, told))
            }
        }
    }

    /// Messages in the plain form take the lanes in turn.
    #[inline(never)]
    fn take_next_lane(&mut self) {
        let next = self.plain_rail + 1;
        self.plain_rail = if (next as usize) < self.lanes.len() { next } else { 0 };
        if let Some(lane) = self.lanes.get(self.plain_rail as usize) {
            self.plain_lane = *lane;
        }
    }

    /// The same for a message that is too long to be injected.
    #[inline(always)]
    fn write_plainly(
        &mut self,
        rail: &mut Nic,
        slot: u16,
        local: LocalBytes<'_, Data>,
        message: &PlainMessage,
        told: impl FnOnce(Line),
    ) -> bool {
        let (line, peer) = (message.line, self.plain_lane.peer);
        let remote =
            RemoteBytes { address: message.address, key: RemoteKey::from_wire(message.key) };
        if rail.room() == 0 {
            return false;
        }
        self.flow.posted_plainly(message);
        told(line);
        let immediate = message.immediate.bits();
        if self.several {
            self.take_next_lane();
        }
        let write = Write { local, remote, peer, delivery: Delivery::Default };
        let token = Purpose::Whole { sender: slot, line }.token();
        let posted = matches!(rail.write(&write, Some(immediate), token), Ok(Post::Accepted));
        if !posted {
            self.flow.take_back();
        }
        posted
    }

    /// [`Sender::test`], for a message that is done.
    #[inline(always)]
    pub(in crate::endpoint) fn test_plainly(&mut self, request: u16) -> Option<u64> {
        self.flow.poll_plainly(request)
    }

    /// The same after a look into the mailbox.
    #[inline(always)]
    pub(in crate::endpoint) fn look_plainly(&mut self, request: u16) -> Option<u64> {
        self.flow.look_plainly(&self.mailbox, request)
    }

    /// Whether there is nothing to do for a message but to wait.
    #[inline(always)]
    pub(in crate::endpoint) fn waits_plainly(&self, request: u16) -> bool {
        self.flow.waits_plainly(request)
    }
}
