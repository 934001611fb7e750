//! Reads the completion queues of an endpoint's NICs, and turns completions into events of the progress loop.

use proto::channel::{WriteId, Written};
use proto::flow;
use proto::{ChannelId, Epoch, Event, Generation, Immediate, Line, Moment, Slot};

use super::super::bound::{BATCHES_PER_POLL, DATA_POLLED_EVERY, EVENTS_READ_EVERY};
use super::super::letter_buffers::LetterSubject;
use super::super::nics::Port;
use super::super::purpose::Purpose;
use super::super::unposted::Trouble;
use super::{Deferred, Executor, Happened, low_byte};
use crate::error::{Cause, Operation};
use crate::fault;
use crate::label::Label;

/// A receive cannot be posted on a control rail.
#[cold]
fn not_posted((nic, label): (usize, &str), trouble: Trouble, deferred: &mut Deferred) {
    match trouble {
        Trouble::Begins(error) => {
            log::warn!(
                "no receive can be posted on the control rail {label}: {error}; trying again"
            );
        }
        Trouble::Deaf(error) => deferred.deaf.push((nic, error)),
    }
}

/// The queue that is being read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    nic: usize,
    of_control: bool,
    /// Batches left of this queue's share; 0: it was not read yet.
    batches: u32,
}

impl Executor {
    /// The next completion of this poll, which began with [`Executor::begin`].
    #[inline]
    pub(super) fn next_completion(&mut self) -> Option<Happened> {
        while self.cursor.nic < self.nics.len() {
            let Cursor { nic, of_control, batches } = self.cursor;
            if batches == 0 {
                self.poll_queue(BATCHES_PER_POLL);
                continue;
            }
            let port = &mut self.nics[nic];
            let event = if of_control { port.nic.next_control() } else { port.nic.next_data() };
            if event.is_some() {
                fault::point("completion");
            }
            match event {
                Some(event) if of_control => {
                    if let Some(event) = self.of_control(nic, event) {
                        return Some(event);
                    }
                }
                Some(event) => {
                    if let Some(event) = self.of_data(nic, event) {
                        return Some(event);
                    }
                }
                None if batches > 1 => self.poll_queue(batches - 1),
                None => self.next_queue(),
            }
        }
        None
    }

    /// Begins a poll. Data rails on which nothing can arrive, and nothing is in flight, are read only now and then: reading an empty queue
    /// costs as much as sending a short message.
    #[inline]
    pub(in crate::endpoint) fn begin(&mut self, now: Moment, awaits_parts: bool) {
        self.now = now;
        self.skipped += 1;
        self.polls_data = awaits_parts || self.skipped == DATA_POLLED_EVERY;
        if self.polls_data {
            self.skipped = 0;
        }
        self.unread += 1;
        if self.unread == EVENTS_READ_EVERY {
            self.read_events();
        }
        self.cursor = Cursor::default();
        let Self { nics, sendrecv, deferred, .. } = self;
        for (index, Port { nic, letters, label, .. }) in nics.iter_mut().enumerate() {
            let Some(letters) = letters else { continue };
            if let Some(trouble) = letters.post_receives(nic, now) {
                not_posted((index, label), trouble, deferred);
            }
            if let Some(sendrecv) = sendrecv
                && let Some(trouble) = sendrecv.post_receives(index, nic, now)
            {
                not_posted((index, label), trouble, deferred);
            }
        }
    }

    /// Reads the event queues, which would grow without bound (efa).
    #[cold]
    fn read_events(&mut self) {
        self.unread = 0;
        for (index, Port { nic, .. }) in self.nics.iter_mut().enumerate() {
            while let Some(error) = nic.endpoint_error() {
                self.deferred.nameless.push((index, None, error));
            }
        }
    }

    /// Reads a batch of the queue at the cursor, and moves on if it is empty.
    #[inline]
    fn poll_queue(&mut self, batches: u32) {
        let nic = &mut self.nics[self.cursor.nic].nic;
        if !self.cursor.of_control && !self.polls_data && nic.data_in_flight() == 0 {
            return self.next_queue();
        }
        let found = if self.cursor.of_control { nic.poll_control() } else { nic.poll_data() };
        if found.is_empty() {
            self.next_queue();
        } else {
            self.cursor.batches = if found.is_full() { batches } else { 1 };
        }
    }

    #[inline]
    fn next_queue(&mut self) {
        let Cursor { nic, of_control, .. } = self.cursor;
        let control_is_next = !of_control && self.nics[nic].nic.has_control();
        self.cursor = Cursor {
            nic: if control_is_next { nic } else { nic + 1 },
            of_control: control_is_next,
            batches: 0,
        };
    }

    #[inline]
    fn of_data(&mut self, nic: usize, event: fabric::Event) -> Option<Happened> {
        match event {
            fabric::Event::Arrived { immediate, len } => self.arrived(nic, immediate, len as u64),
            fabric::Event::Ended { token, len, .. } => match Purpose::of(token)? {
                Purpose::Part { slot, generation, message, part } => {
                    let event = flow::Event::Written { message, part };
                    Some(Event::Connection { slot, generation, event })
                }
                Purpose::Receive { slot, generation, line } => {
                    let connection = self.connections.get(slot.index());
                    if let Some(peer) = connection.and_then(|(channel, _)| self.peer(*channel)) {
                        peer.receives.part(0, len as u64);
                    }
                    let event = flow::Event::Received { line, len: len as u64 };
                    Some(Event::Connection { slot, generation, event })
                }
                Purpose::Trial { channel, rail } => {
                    let channel = ChannelId(channel.into());
                    Some(Event::TrialEnded { channel, rail, well: true })
                }
                other => {
                    self.ended(other, Ok(()));
                    None
                }
            },
            fabric::Event::Failed(failed) => self.data_failed(nic, &failed),
            fabric::Event::Broken(error) => {
                self.broken(nic, error);
                None
            }
        }
    }

    #[inline]
    fn of_control(&mut self, nic: usize, event: fabric::Event) -> Option<Happened> {
        match event {
            fabric::Event::Ended { token, len, tag } => match Purpose::of(token)? {
                Purpose::PacketReceive { buffer } => self.packet_came(nic, buffer, (len, tag)),
                Purpose::Packet { channel, epoch, number } => {
                    self.wrote(nic, channel, epoch, Written::Packet(number), true)
                }
                Purpose::Cell { channel, epoch } => {
                    self.wrote(nic, channel, epoch, Written::Cell, true)
                }
                other => self.letter_moved(nic, other, len),
            },
            // Our peers write to control rails without immediates.
            fabric::Event::Arrived { .. } => None,
            fabric::Event::Failed(failed) => self.control_failed(nic, &failed),
            fabric::Event::Broken(error) => {
                self.broken(nic, error);
                None
            }
        }
    }

    #[inline]
    fn arrived(&mut self, nic: usize, bits: u64, len: u64) -> Option<Happened> {
        let immediate = Immediate::from_bits(bits);
        if let Some((channel, round)) = immediate.as_trial() {
            let channel = ChannelId(channel.into());
            let rail = self.peer(channel)?.data_rail(nic)?;
            return Some(Event::TrialArrived { channel, rail, round });
        }
        let connection = immediate.connection();
        let slot = usize::from(connection) & (Slot::COUNT - 1);
        if let Some((channel, _)) = self.connections.get(slot)
            && let Some(peer) = self.peer(*channel)
            && let Some(rail) = peer.data_rail(nic)
        {
            peer.receives.part(rail, len);
            let event = flow::Event::Arrived { rail, immediate, len };
            return Some(Event::Arrived { connection, event });
        }
        self.deferred.strays.push((nic, len, bits));
        None
    }

    #[inline]
    fn wrote(
        &mut self,
        nic: usize,
        channel: u16,
        epoch: u8,
        what: Written,
        well: bool,
    ) -> Option<Happened> {
        let channel = ChannelId(channel.into());
        let peer = self.peer(channel)?;
        // The newest epoch with this low byte that is not later than the one posted last.
        let behind = low_byte(peer.epoch.0).wrapping_sub(epoch);
        let epoch = Epoch(peer.epoch.0.wrapping_sub(behind.into()));
        let rail = peer.control_rail(nic)?;
        Some(Event::Wrote { channel, write: WriteId { epoch, what }, rail, well })
    }

    /// Ends an operation that the progress loop does not handle. An error is the error number of its completion.
    #[cold]
    fn ended(&mut self, purpose: Purpose, outcome: Result<(), i32>) {
        match purpose {
            Purpose::Flush { flush } => self.deferred.flushes.push((flush, outcome.is_ok())),
            Purpose::Probe { nic, attempt } => self.deferred.probes.push((nic, attempt, outcome)),
            _ => {}
        }
    }

    /// A letter's receive or send has ended.
    #[cold]
    fn letter_moved(&mut self, nic: usize, purpose: Purpose, len: usize) -> Option<Happened> {
        let letters = self.nics[nic].letters.as_mut()?;
        match purpose {
            Purpose::LetterSend { buffer } => {
                letters.sent(buffer);
                None
            }
            Purpose::LetterReceive { buffer } => {
                let mut bytes = self.spare.pop().unwrap_or_default();
                letters.arrived(buffer, len, &mut bytes);
                letters.ended(buffer);
                self.deferred.letters.push(bytes);
                None
            }
            _ => None,
        }
    }

    /// The purpose of the operation that failed. All operations of the plugin have a context (fi_cq(3)): an error without one is that of a
    /// peer's write that broke off as it arrived (efa, tcp), or of the libfabric endpoint as a whole (rxm).
    #[cold]
    fn purpose_of(
        &mut self,
        nic: usize,
        operation: Operation,
        failed: &fabric::Failed,
    ) -> Option<Purpose> {
        let purpose = failed.token.and_then(Purpose::of);
        // A cancelled transfer without a context ended with the provider's connection, as at a peer's close.
        if purpose.is_none() && !failed.error.is_cancelled() {
            self.deferred.nameless.push((nic, Some(operation), failed.error.clone()));
        }
        purpose
    }

    #[cold]
    fn data_failed(&mut self, nic: usize, failed: &fabric::Failed) -> Option<Happened> {
        let purpose = self.purpose_of(nic, Operation::Data, failed)?;
        let (slot, generation, message, part) = match purpose {
            Purpose::Part { slot, generation, message, part } => (slot, generation, message, part),
            Purpose::Receive { slot, generation, line } => {
                return Some(self.receive_failed(nic, (slot, generation, line), failed));
            }
            Purpose::Trial { channel, rail } => {
                log::debug!("a trial of {} failed: {}", self.nics[nic].label, failed.error);
                let channel = ChannelId(channel.into());
                return Some(Event::TrialEnded { channel, rail, well: false });
            }
            _ => {
                self.ended(purpose, Err(failed.error.errno));
                return None;
            }
        };
        if let Some((channel, _)) = self.connections.get(slot.index()).copied() {
            self.operation_failed(channel, nic, Operation::Data, &failed.error);
        }
        let event = flow::Event::WriteFailed { message, part, code: failed.error.errno };
        Some(Event::Connection { slot, generation, event })
    }

    /// A tagged receive has ended without a message. Unless this side has cancelled it, the channel has failed: tcp cancels a receive, too,
    /// when the connection ends that fills it.
    #[cold]
    fn receive_failed(
        &mut self,
        nic: usize,
        (slot, generation, line): (Slot, Generation, Line),
        failed: &fabric::Failed,
    ) -> Happened {
        let channel = self.connections.get(slot.index()).map(|(channel, _)| *channel);
        let sendrecv = self.sendrecv.as_ref();
        let is_ours = sendrecv.is_some_and(|sendrecv| sendrecv.has_cancelled(slot, line));
        if let Some(channel) = channel.filter(|_| !(failed.error.is_cancelled() && is_ours)) {
            self.operation_failed(channel, nic, Operation::Data, &failed.error);
            self.deferred.lost.push(channel);
        }
        Event::Connection { slot, generation, event: flow::Event::ReceiveEnded { line } }
    }

    #[cold]
    fn control_failed(&mut self, nic: usize, failed: &fabric::Failed) -> Option<Happened> {
        match self.purpose_of(nic, Operation::Control, failed)? {
            Purpose::Packet { channel, epoch, number } => {
                let id = ChannelId(channel.into());
                self.operation_failed(id, nic, Operation::Control, &failed.error);
                self.wrote(nic, channel, epoch, Written::Packet(number), false)
            }
            Purpose::Cell { channel, epoch } => {
                let id = ChannelId(channel.into());
                self.operation_failed(id, nic, Operation::Control, &failed.error);
                self.wrote(nic, channel, epoch, Written::Cell, false)
            }
            Purpose::LetterSend { buffer } => {
                let about = self.nics[nic].letters.as_mut()?.sent(buffer);
                let LetterSubject::Channel { channel, rail, numbers } = about else { return None };
                self.operation_failed(channel, nic, Operation::Control, &failed.error);
                Some(Event::LetterFailed { channel, rail, numbers })
            }
            Purpose::LetterReceive { buffer } => {
                // The endpoint closes, or the provider's connection has ended while the receive was being filled.
                self.nics[nic].letters.as_mut()?.ended(buffer);
                None
            }
            Purpose::PacketReceive { buffer } => {
                self.no_packet_came(nic, buffer);
                None
            }
            other => {
                self.ended(other, Err(failed.error.errno));
                None
            }
        }
    }

    #[cold]
    fn broken(&mut self, nic: usize, fault: fabric::FabricError) {
        let rail = Label::of(&self.nics[nic].label);
        self.deferred.broken.get_or_insert(Cause::QueueBroken { rail, fault });
    }
}
