//! The receiving part of a poll: handles completions, letters and packets, then the channel's timers and end.

use super::super::bound::PACKETS_PER_POLL;
use super::super::channel::{Cause, OldInboxes, PacketReader, Sent};
use super::super::connection::{ChannelEnd, Connection};
use super::super::frame::Frame;
use super::super::ids::{Moment, Name, Slot};
use super::super::letter::{About, Body, Letter};
use super::super::memory::MemoryId;
use super::super::parking::Parking;
use super::super::polled::{Now, PolledTime};
use super::table::Table;
use super::{ChannelId, Event, LetterPost, Outcome, Peer, Perform, ProgressLoop, changed};

impl<C: Connection> ProgressLoop<C> {
    pub(super) fn happened<P: Perform<C>>(
        &mut self,
        perform: &mut P,
        event: Event<C::Event>,
        now: Now,
    ) {
        match event {
            Event::Wrote { channel, write, rail, well } => {
                let Self { peers, table, .. } = self;
                let Some(peer) = peers.get_mut(channel.0 as usize) else { return };
                if !well && peer.channel.is_late(write.epoch, rail) {
                    perform.failed_late(channel, rail);
                }
                let free = peer.channel.wrote(write, rail, well, |sent| left(table, sent));
                peer.stirred |= !well || peer.channel.is_ending();
                if let Some(memory) = free {
                    perform.release_shadow(memory);
                }
            }
            Event::Connection { slot, generation, event } => {
                self.connection_happened(perform, Name { slot, generation }, event, now);
            }
            Event::LetterFailed { channel, rail, numbers } => {
                if let Some(peer) = self.peers.get_mut(channel.0 as usize) {
                    peer.stirred = true;
                    if peer.channel.letter_failed(rail, numbers) {
                        perform.failed_late(channel, rail);
                    }
                }
            }
            Event::Letter { channel, letter, proven } => {
                self.letter(perform, channel, &letter, proven, now);
            }
            Event::TrialEnded { channel, rail, well } => {
                if let Some(peer) = self.peers.get_mut(channel.0 as usize) {
                    peer.trial_ended(rail, well, now.polled);
                }
            }
            Event::TrialArrived { channel, rail, round } => {
                self.trial_arrived(channel, rail, round, now.clock);
            }
            Event::Arrived { connection, event } => match self.table.name_of(connection) {
                Some(name) => self.connection_happened(perform, name, event, now),
                None => self.stale += 1,
            },
        }
    }

    fn connection_happened<P: Perform<C>>(
        &mut self,
        perform: &mut P,
        name: Name,
        event: C::Event,
        now: Now,
    ) {
        let slot = name.slot;
        if C::is_failure(&event) {
            self.read_before_failure(perform, name, now);
        }
        let now = now.clock;
        let Some(tenant) = self.table.named(name) else {
            self.stale += 1;
            return;
        };
        let peer = &mut self.peers[tenant.channel.0 as usize];
        if let Err(error) = tenant.connection.happened(event, &mut peer.account, now) {
            perform.violated(slot, error);
            peer.channel.fail(Cause::Connection);
        }
        changed(&mut self.table, peer, perform, slot, now);
    }

    /// A write of a connection has failed. A peer that leaves the last open rail, to close it for another channel, sends *down* before:
    /// then the channel waits for a rail, and the connection must not fail for the lack of one.
    #[cold]
    fn read_before_failure<P: Perform<C>>(&mut self, perform: &mut P, name: Name, now: Now) {
        let Some(tenant) = self.table.named(name) else { return };
        let index = tenant.channel.0 as usize;
        let Peer { channel, account, .. } = &self.peers[index];
        if channel.is_alive() && account.rails.survives() && account.loads.open_rails() == 1 {
            self.read(perform, index, now);
        }
    }

    #[cold]
    fn letter<P: Perform<C>>(
        &mut self,
        perform: &mut P,
        id: ChannelId,
        letter: &Letter,
        proven: bool,
        now: Now,
    ) {
        let index = id.0 as usize;
        let Some(peer) = self.peers.get_mut(index) else { return };
        if peer.forgotten || !peer.channel.believes(letter, proven) {
            self.stale += 1;
            return;
        }
        if peer.channel.failure().is_some() || peer.channel.is_over() {
            peer.forget_later(now.polled);
            if let Body::Hello(hello) = &letter.body {
                peer.channel.hello_arrived(hello);
            }
            if let Body::Hello(_) | Body::Query(_) = letter.body
                && let Some((rail, answer)) = peer.channel.last_letter(&peer.account.counts)
            {
                // If the answer is refused, the peer repeats its letter.
                perform.send(id, rail, &answer);
            }
            return;
        }
        peer.stirred = true;
        peer.channel.letter_arrived(letter, now);
        match &letter.body {
            Body::Hello(hello) => {
                let Self { peers, table, .. } = self;
                let channel = &mut peers[index].channel;
                if channel.would_adopt(hello, now.polled) {
                    // Without memory the HELLO is dropped, and the peer repeats it.
                    let Some(shadow) = perform.lend_shadow(id) else {
                        return channel.starves(now.polled);
                    };
                    let left = |sent| left(table, sent);
                    if let Some(memory) = channel.adopt(perform, hello, shadow, now, left) {
                        perform.release_shadow(memory);
                    }
                }
                channel.hello_arrived(hello);
            }
            Body::Query(query) => {
                // Packets that have landed are not lost, so they are consumed before the answer.
                self.read(perform, index, now);
                let idle = now.clock.since(self.keeper.called());
                let about = query.about.and_then(|name| self.about(id, name));
                self.peers[index].channel.query_arrived(query, about, idle);
            }
            Body::Status(status) => {
                let Self { peers, table, .. } = self;
                let Peer { channel, account, .. } = &mut peers[index];
                let survives = account.rails.survives() && account.loads.open_rails() > 1;
                let lost =
                    channel.status_arrived(status, survives, now.polled, |sent| left(table, sent));
                let peer = &mut peers[index];
                if peer.awaits_writes() || peer.lacks_rails() {
                    peer.channel.query_soon();
                }
                if let Some(rail) = lost {
                    self.rail_lost(perform, (index, rail), Cause::DataLost { rail }, now);
                }
            }
            Body::Trial(trial) => peer.channel.tried(trial, now.clock),
        }
    }

    /// The progress of a connection of this channel, which the peer's QUERY named.
    fn about(&mut self, channel: ChannelId, name: Name) -> Option<About> {
        let tenant = self.table.named(name).filter(|tenant| tenant.channel == channel)?;
        let name = tenant.connection.peer()?;
        Some(About { name, state: tenant.connection.connection_state() })
    }

    /// Reads the cell, then the packets that have arrived, up to a bound.
    #[inline]
    pub(super) fn read<P: Perform<C>>(&mut self, perform: &mut P, index: usize, now: Now) {
        let Self { peers, table, .. } = self;
        let channel = &mut peers[index].channel;
        if channel.is_over() {
            return;
        }
        let Some(memory) = channel.inbox().map(|inbox| inbox.memory()) else { return };
        channel.read_cell(perform.inbox(memory), now.polled, |sent| left(table, sent));
        for _ in 0..PACKETS_PER_POLL {
            let channel = &self.peers[index].channel;
            let Some(packet) = channel.next_packet(perform.inbox(memory)) else { return };
            self.consume(perform, index, memory, packet, now);
        }
    }

    #[inline]
    fn consume<P: Perform<C>>(
        &mut self,
        perform: &mut P,
        index: usize,
        memory: MemoryId,
        mut packet: PacketReader,
        now: Now,
    ) {
        while let Some(frame) = self.deliver(perform, index, memory, &mut packet, now.clock) {
            self.channel_frame(perform, index, &frame, now);
        }
        let Self { peers, table, .. } = self;
        let Peer { channel, account, stirred, .. } = &mut peers[index];
        let sampled =
            channel.consumed(perform.inbox(memory), &packet, now, |sent| left(table, sent));
        if let Some(round_trip) = sampled {
            account.set_round_trip(round_trip);
        }
        *stirred |= channel.must_acknowledge(now.clock) || channel.is_ending();
    }

    /// Passes the frames of a packet to their connections, up to the first frame for the channel, which is returned.
    #[inline]
    fn deliver<P: Perform<C>>(
        &mut self,
        perform: &mut P,
        index: usize,
        memory: MemoryId,
        packet: &mut PacketReader,
        now: Moment,
    ) -> Option<Frame> {
        let Self { peers, table, stale, .. } = self;
        let peer = &mut peers[index];
        // A packet often has many frames for one connection. Its pending frames and actions are checked after the last of them.
        let mut current: Option<Slot> = None;
        let end = loop {
            // By reference: the type has the size of the longest frame, and most frames are short.
            let next = packet.next_frame(perform.inbox(memory));
            let (frame, payload) = match &next {
                Ok(Some((frame, payload))) => (frame, *payload),
                Ok(None) => break None,
                Err(malformed) => {
                    peer.channel.fail(Cause::Malformed(*malformed));
                    break None;
                }
            };
            if peer.channel.ending().has_peer_said() {
                peer.channel.fail(Cause::AfterEnd);
                continue;
            }
            let Some(to) = frame.to() else { break Some(*frame) };
            if let Some(before) = current.take_if(|before| *before != to.slot) {
                changed(table, peer, perform, before, now);
            }
            let Some(tenant) = table.named(to).filter(|tenant| tenant.channel == peer.id) else {
                *stale += 1;
                continue;
            };
            current = Some(to.slot);
            match tenant.connection.received(frame, &mut peer.account, now) {
                Ok(None) => {}
                Ok(Some(place)) => {
                    perform.copy_in(memory, payload, to.slot, &place, &mut peer.account);
                    tenant.connection.copied(place, &mut peer.account, now);
                }
                Err(error) => {
                    perform.violated(to.slot, error);
                    peer.channel.fail(Cause::Connection);
                }
            }
        };
        if let Some(last) = current {
            changed(table, peer, perform, last, now);
        }
        end
    }

    /// Handles a frame that is for no connection.
    #[cold]
    fn channel_frame<P: Perform<C>>(
        &mut self,
        perform: &mut P,
        index: usize,
        frame: &Frame,
        now: Now,
    ) {
        let peer = &mut self.peers[index];
        peer.stirred = true;
        match frame {
            Frame::Open(open) => {
                if let Some(refused) = perform.open_requested(peer.id, open) {
                    peer.refuse(refused);
                }
            }
            Frame::Rail(note) => self.rail_note(perform, index, note, now),
            Frame::Offer(offer) => self.offered(index, offer, now),
            Frame::Arrived(arrived) => peer.account.arrived(arrived, now.clock),
            Frame::End => {
                peer.channel.ending_mut().peer_said();
                // The peer handles no frames after its END, so this side ends too.
                peer.channel.ending_mut().begin();
                self.report_end(index, now.clock);
            }
            // For a connection: handled by its flow.
            Frame::Opened(_)
            | Frame::Refused(_)
            | Frame::Advert(_)
            | Frame::Inline(_)
            | Frame::Done { .. }
            | Frame::Fin(_)
            | Frame::Withdraw(_)
            | Frame::Withdrawn(_)
            | Frame::Close(_) => {}
        }
    }

    /// After the peer's END: reports it to the connections once no part can arrive any more.
    pub(super) fn report_end(&mut self, index: usize, now: Moment) {
        let peer = &mut self.peers[index];
        if peer.channel.ending().has_peer_said() && !peer.end_reported && peer.is_fenced() {
            peer.end_reported = true;
            self.report_to_connections(index, ChannelEnd::ByPeer, now);
        }
    }

    /// Advances the channel itself: its cell, its inboxes, its letters, its end. To be called after pending frames were composed: a packet
    /// carries the acknowledgement, so that the cell is not written.
    pub(super) fn settle<P: Perform<C>>(&mut self, perform: &mut P, index: usize, now: Now) {
        let peer = &mut self.peers[index];
        if !peer.channel.is_alive() {
            self.ended(perform, index, now);
            return self.forget(perform, index, now.polled);
        }
        peer.channel.rested(self.polled.before());
        if let Some(post) = peer.channel.cell_post(perform, now.clock) {
            match perform.post(peer.id, &post) {
                true => peer.channel.posted(&post, now.clock),
                false => peer.stirred = true,
            }
        }
        if let Some(rail) = peer.channel.needs_inbox(now.polled) {
            lend(perform, peer, rail, now.polled);
        }
        if let Some(news) = peer.channel.rail_news() {
            perform.control_rails(peer.id, news);
        }
        if peer.is_fenced() && peer.channel.has_ended(now.polled) {
            return self.over(perform, index, now);
        }
        if let Some((rail, letter)) = peer.channel.next_trial(now.clock) {
            // A trial that is refused counts as failed.
            perform.send(peer.id, rail, &letter);
        }
        let waits = peer.waits();
        let Some(due) = peer.channel.next_letter(&peer.account.counts, waits, now.polled) else {
            return;
        };
        match perform.send(peer.id, due.rail, &due.letter) {
            LetterPost::Posted => peer.channel.letter_posted(&due, now.polled),
            LetterPost::Dropped => peer.channel.letter_dropped(&due, now.polled),
            LetterPost::Refused => {
                peer.channel.letter_refused(&due, now.polled);
                peer.stirred = true;
            }
        }
    }

    #[cold]
    fn ended<P: Perform<C>>(&mut self, perform: &mut P, index: usize, now: Now) {
        let Some(cause) = self.peers[index].channel.is_failing() else { return };
        // Packets that have landed are still handled. One poll consumes as many as a peer may have unacknowledged.
        self.read(perform, index, now);
        let peer = &mut self.peers[index];
        peer.channel.failed();
        peer.reported = true;
        peer.forget_later(now.polled);
        if let Some((rail, letter)) = peer.channel.last_letter(&peer.account.counts) {
            perform.send(peer.id, rail, &letter);
        }
        let id = peer.id;
        self.report_to_connections(index, ChannelEnd::Failed, now.clock);
        perform.ended(id, Outcome::Failed(cause));
    }

    #[cold]
    fn over<P: Perform<C>>(&mut self, perform: &mut P, index: usize, now: Now) {
        if !self.peers[index].channel.is_settled() {
            self.report_to_connections(index, ChannelEnd::Failed, now.clock);
        }
        let peer = &mut self.peers[index];
        peer.reported = true;
        peer.forget_later(now.polled);
        if let Some(memory) = peer.channel.over() {
            perform.retire_inbox(memory);
        }
        perform.ended(peer.id, Outcome::Over);
    }

    /// Forgets a channel that has ended, once its connections are closed or gone, and its peer has been silent for the peer timeout: then
    /// the peer has timed out too, and needs no answer any more.
    #[cold]
    fn forget<P: Perform<C>>(&mut self, perform: &mut P, index: usize, polled: PolledTime) {
        let peer = &mut self.peers[index];
        let is_needed = polled < peer.forget_at || !self.table.is_closed(peer.id);
        if is_needed || peer.forgotten || !peer.channel.is_idle() {
            return;
        }
        peer.forgotten = true;
        peer.account.parking = Parking::none();
        let (inboxes, shadow) = peer.channel.give_up();
        for memory in inboxes {
            perform.release_inbox(memory);
        }
        if let Some(memory) = shadow {
            perform.release_shadow(memory);
        }
        perform.forgotten(peer.id);
    }

    fn report_to_connections(&mut self, index: usize, how: ChannelEnd, now: Moment) {
        let Self { peers, table, .. } = self;
        let Peer { id, account, pending, .. } = &mut peers[index];
        let mut at = 0;
        while let Some(slot) = table.next_of(*id, at) {
            at = slot.index() + 1;
            if let Some(tenant) = table.tenant(slot) {
                tenant.connection.ended(how);
                if table.touch(slot, pending, account, now) {
                    table.act_later(slot);
                }
            }
        }
        // Connections whose frames cannot leave any more leave the list.
        table.refresh(pending, account, now);
    }
}

/// An inline message needs no retransmission any more. [`Table::touch`] is not needed: neither the connection's pending
/// frames nor what it waits for change.
#[inline]
fn left<C: Connection>(table: &mut Table<C>, sent: Sent) {
    if let Some(tenant) = table.named(sent.from) {
        tenant.connection.inline_left(sent.message);
    }
}

#[cold]
fn lend<C: Connection, P: Perform<C>>(
    perform: &mut P,
    peer: &mut Peer,
    rail: u8,
    polled: PolledTime,
) {
    let Some(lent) = perform.lend_inbox(peer.id, rail) else {
        return peer.channel.starves(polled);
    };
    let memory = (lent.memory, perform.inbox(lent.memory));
    let OldInboxes { retired, released } =
        peer.channel.lend(memory, rail, (lent.address, lent.key, lent.nonce));
    if let Some(memory) = retired {
        perform.retire_inbox(memory);
    }
    if let Some(memory) = released {
        perform.release_inbox(memory);
    }
}
