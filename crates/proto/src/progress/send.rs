//! The sending part: puts pending frames into packets, and posts packets, inside isend and in progress.

use super::super::channel::Sent;
use super::super::connection::{Connection, Submit, Urgency, Which};
use super::super::frame::{FRAME_WORDS_MAX, Frame, Refused};
use super::super::ids::{Moment, PacketNumber, Slot};
use super::super::memory::MemoryId;
use super::{ChannelId, Peer, Perform, ProgressLoop, SubmitError, Table, changed};

impl<C: Connection> ProgressLoop<C> {
    /// An isend. If the channel has posted nothing since the last poll, an inline message leaves at once, together with pending
    /// frames that join it; otherwise the next poll sends it.
    #[inline]
    pub fn submit<P: Perform<C>>(
        &mut self,
        perform: &mut P,
        slot: Slot,
        message: &C::Message,
        now: Moment,
    ) -> Result<Submit, SubmitError<C::Fault>> {
        let from = self.table.name(slot);
        let tenant = self.table.tenant(slot).ok_or(SubmitError::Unknown)?;
        let channel = tenant.channel;
        let peer = &mut self.peers[channel.0 as usize];
        if !peer.channel.may_write() || peer.channel.ending().is_begun() {
            return Err(SubmitError::Ended);
        }
        let words = peer.channel.shadow().inline_room_words();
        let submit = tenant.connection.submit(message, words, &mut peer.account, now);
        let submit = match submit {
            Ok(submit) => submit,
            Err(fault) => {
                // The frame that reports the fault to the peer must leave.
                self.table.touch(slot, &mut peer.pending, &peer.account, now);
                return Err(SubmitError::Connection(fault));
            }
        };
        let (id, frame) = match submit {
            Submit::Inline { message, frame } => (message, frame),
            other => {
                if let Submit::Parts { long: true, .. } = other {
                    self.send_due(perform, now);
                }
                let peer = &mut self.peers[channel.0 as usize];
                changed(&mut self.table, peer, perform, slot, now);
                return Ok(other);
            }
        };
        let shadow = peer.channel.shadow_mut();
        let Some(memory) = shadow.memory() else { return Err(SubmitError::Ended) };
        let payload = shadow
            .append_inline(perform.shadow(memory), &frame, Sent { from, message: id })
            .expect("the connection was given the room that there is");
        perform.copy_out(memory, payload, message);
        if !peer.posted {
            compose(&mut self.table, peer, perform, memory, now);
        }
        self.table.touch(slot, &mut peer.pending, &peer.account, now);
        Ok(Submit::Inline { message: id, frame })
    }

    /// Sends what is due on all channels.
    pub(super) fn send_due<P: Perform<C>>(&mut self, perform: &mut P, now: Moment) {
        for index in 0..self.peers.len() {
            if let Some(peer) = self.peers.due_mut(index, now) {
                send(&mut self.table, peer, perform, now);
            }
        }
    }

    /// Sends the pending frames of a connection in set-up at once: connect and accept wait for them.
    pub fn send_urgent<P: Perform<C>>(&mut self, perform: &mut P, slot: Slot, now: Moment) {
        if let Some(tenant) = self.table.tenant(slot) {
            let index = tenant.channel.0 as usize;
            send(&mut self.table, &mut self.peers[index], perform, now);
        }
    }

    /// Whether a frame that a peer waits for has not left. The endpoint's last request is not reported as done before
    /// that.
    pub fn must_send_first(&self) -> bool {
        self.peers.left_over().any(|left_over| left_over.awaited)
    }

    /// Whether all pending frames of a connection have left, and their write has completed or is acknowledged: `accept`
    /// returns the connection only then. False also for an unknown connection.
    pub fn has_left(&mut self, slot: Slot, now: Moment) -> bool {
        let Some(tenant) = self.table.tenant(slot) else { return false };
        let peer = &self.peers[tenant.channel.0 as usize];
        let urgency = tenant.connection.standing(&peer.account, now).urgency;
        let shadow = peer.channel.shadow();
        let over = |packet: PacketNumber| {
            let reached = |number: PacketNumber| number.distance(packet).cast_signed() >= 0;
            reached(shadow.acknowledged()) || reached(shadow.completed())
        };
        urgency != Urgency::Waited && tenant.newest.is_none_or(over)
    }

    /// Refuses a queued OPEN: its listener is closed, or the connection is impossible.
    pub fn refuse(&mut self, channel: ChannelId, refused: Refused) {
        if let Some(peer) = self.peers.get_mut(channel.0 as usize) {
            peer.refuse(refused);
        }
    }
}

/// Posts sealed packets, then composes and posts frames that are due, while there is room.
#[inline]
pub(super) fn send<C: Connection, P: Perform<C>>(
    table: &mut Table<C>,
    peer: &mut Peer,
    perform: &mut P,
    now: Moment,
) {
    if peer.is_content(now) {
        return;
    }
    post(perform, peer, now);
    let channel = &peer.channel;
    if !channel.may_write() {
        return;
    }
    let Some(memory) = channel.shadow().memory() else { return };
    let mut due = channel.shadow().is_open()
        || channel.ending().is_pending()
        || !peer.refusals.is_empty()
        || peer.has_rail_frames();
    if !due && peer.pending.is_due(now) {
        table.refresh(&mut peer.pending, &peer.account, now);
        due = peer.pending.is_due(now);
    }
    if due {
        compose(table, peer, perform, memory, now);
    }
}

/// Composes pending frames into packets, which it seals and posts, until no frame is pending or there is no room.
fn compose<C: Connection, P: Perform<C>>(
    table: &mut Table<C>,
    peer: &mut Peer,
    perform: &mut P,
    memory: MemoryId,
    now: Moment,
) {
    loop {
        say_refusals(perform, peer, memory);
        peer.say_rails(perform, memory);
        // END follows the last pending frame, so all of them leave first.
        if peer.pending.joins(now) || peer.channel.ending().is_pending() {
            for which in [Which::Adverts, Which::Others] {
                collect(perform, table, peer, memory, which, now);
            }
            table.refresh(&mut peer.pending, &peer.account, now);
        }
        say_arrivals(perform, peer, memory, now);
        let said = peer.pending.is_empty() && peer.refusals.is_empty() && !peer.has_rail_frames();
        if peer.channel.ending().is_pending() && said && may_end(table, peer) {
            say_end(perform, table, peer, memory);
        }
        if !peer.channel.shadow().is_open() {
            return;
        }
        peer.channel.seal(perform.shadow(memory));
        post(perform, peer, now);
        let more = peer.pending.joins(now)
            || !peer.refusals.is_empty()
            || peer.has_rail_frames()
            || peer.channel.ending().is_pending();
        if !more {
            return;
        }
    }
}

/// Appends the pending frames of one kind, connection by connection, while there is room.
fn collect<C: Connection, P: Perform<C>>(
    perform: &mut P,
    table: &mut Table<C>,
    peer: &mut Peer,
    memory: MemoryId,
    which: Which,
    now: Moment,
) {
    let mut at = peer.pending.first();
    while let Some(slot) = at {
        at = table.next_pending(slot);
        let Some(tenant) = table.tenant(slot) else { continue };
        loop {
            let words = peer.channel.shadow().room_words();
            let account = &mut peer.account;
            let Some(frame) = tenant.connection.next_frame(which, words, account, now) else {
                break;
            };
            let fits = peer.channel.shadow_mut().append(perform.shadow(memory), &frame);
            assert!(
                fits,
                "a connection returned a frame that is longer than the room that it was given"
            );
            tenant.newest = Some(peer.channel.shadow().next());
        }
    }
}

/// Appends pending REFUSED frames while there is room.
fn say_refusals<C: Connection, P: Perform<C>>(perform: &mut P, peer: &mut Peer, memory: MemoryId) {
    while let Some(refused) = peer.refusals.front() {
        let frame = Frame::Refused(*refused);
        if !peer.channel.shadow_mut().append(perform.shadow(memory), &frame) {
            return;
        }
        peer.refusals.pop_front();
    }
}

/// Appends ARRIVED to an open packet, if ARRIVED is due and fits. No packet leaves only for ARRIVED.
#[inline]
fn say_arrivals<C: Connection, P: Perform<C>>(
    perform: &mut P,
    peer: &mut Peer,
    memory: MemoryId,
    now: Moment,
) {
    let Peer { channel, account, .. } = peer;
    let fits = channel.shadow().is_open() && channel.shadow().room_words() >= FRAME_WORDS_MAX;
    if !fits {
        return;
    }
    if let Some(arrived) = account.arrival_times.report(now) {
        channel.shadow_mut().append(perform.shadow(memory), &Frame::Arrived(arrived));
    }
}

/// Whether END may be sent: nothing of ours may arrive after it. So no write may be in flight, and the peer must have
/// confirmed all parts. Nor may a write just have failed: if that fails the channel, the peer must not take it for a
/// regular end.
fn may_end<C: Connection>(table: &Table<C>, peer: &mut Peer) -> bool {
    !peer.account.rails.has_failures()
        && table.is_quiet(peer.id)
        && peer.channel.confirms(&peer.account.counts)
}

fn say_end<C: Connection, P: Perform<C>>(
    perform: &mut P,
    table: &mut Table<C>,
    peer: &mut Peer,
    memory: MemoryId,
) {
    let shadow = peer.channel.shadow_mut();
    if !shadow.append(perform.shadow(memory), &Frame::End) {
        return;
    }
    let packet = shadow.next();
    peer.channel.ending_mut().said(packet);
    let mut from = 0;
    while let Some(slot) = table.next_of(peer.id, from) {
        from = slot.index() + 1;
        if let Some(tenant) = table.tenant(slot) {
            tenant.connection.end_said();
        }
    }
}

/// Posts sealed packets until one is refused.
#[inline]
fn post<C: Connection, P: Perform<C>>(perform: &mut P, peer: &mut Peer, now: Moment) {
    let mut left = false;
    while let Some(post) = peer.channel.next_post() {
        if !perform.post(peer.id, &post) {
            break;
        }
        peer.channel.posted(&post, now);
        left = true;
    }
    peer.posted |= left;
    if left && let Some(memory) = peer.channel.shadow().memory() {
        peer.channel.shadow().prefetch(perform.shadow(memory));
    }
}
