//! Completions: to whom each is told, in straight code where it is plain.

use std::slice;

use fabric::{Batch, Completion, CompletionError, CqPoll, FabricError, Polled};
use proto::{Arrival, Immediate, Line};

use super::nics::Nic;
use super::receiver::Receiver;
use super::slots::Slots;
use super::working::Working;
use super::{Endpoint, SenderState, enqueue, enqueue_late, remember, sender};
use crate::error::{Cause, Operation};
use crate::fault;
use crate::label::Label;
use crate::rail::Purpose;

/// Full batches read from one queue in one turn: a flood of completions must not hold the lock for ever.
const BATCHES_PER_TURN: usize = 4;

/// What is left to do for a completion that is no plain case.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rare {
    /// All.
    Other(Completion),
    /// It was the last part of a message of the sender in this slot.
    Written(u16, Line),
}

/// What plain completions of a data queue change.
pub(super) struct Taking<'endpoint> {
    pub(super) nic: usize,
    pub(super) rail: &'endpoint mut Nic,
    pub(super) senders: &'endpoint mut Slots<Box<SenderState>>,
    pub(super) receivers: &'endpoint mut Slots<Box<Receiver>>,
    pub(super) working: &'endpoint mut Working,
}

impl Taking<'_> {
    /// Takes what is plain, up to what is not: that. Straight code over what it borrows, so that all of that stays in registers,
    /// and nothing in it can panic.
    #[inline(always)]
    pub(super) fn take(&mut self, rest: &mut slice::Iter<'_, Completion>) -> Option<Rare> {
        let Self { nic, rail, senders, receivers, working } = self;
        for completion in rest.by_ref() {
            // Only this flag tells an arrival: sockets sets FI_REMOTE_CQ_DATA on our own completions too.
            if completion.is_remote_write() {
                let immediate = Immediate::from_bits(completion.immediate());
                let slot = immediate.comm().get();
                if let Some(receiver) = receivers.at_mut(slot).map(|receiver| &mut **receiver)
                    && let Some(due) = receiver.arrived_plainly(*nic, immediate)
                {
                    if !receiver.queued {
                        enqueue_late(receiver, working, slot);
                    } else if due {
                        working.wake();
                    }
                    continue;
                }
            } else if let Some(part) = rail.operations.end_whole(completion.context()) {
                rail.data.ended(part.bytes);
                if let Some(state) = senders.at_mut(part.sender)
                    && let SenderState::Connected(sender) = &mut **state
                {
                    sender.whole_written(part.line);
                    continue;
                }
                return Some(Rare::Written(part.sender, part.line));
            } else if let Some(part) = rail.operations.end_part(completion.context()) {
                rail.data.ended(part.bytes);
                if let Some(state) = senders.at_mut(part.sender)
                    && let SenderState::Connected(sender) = &mut **state
                    && !sender.part_written(part.line)
                {
                    continue;
                }
                return Some(Rare::Written(part.sender, part.line));
            }
            return Some(Rare::Other(*completion));
        }
        None
    }
}

impl Endpoint {
    /// The batch holds what a poll of a control queue has found: mostly that one write of ours has ended.
    #[inline(never)]
    pub(super) fn polled_control(&mut self, nic: usize, polled: Polled) {
        if polled.count() != Some(1) || self.take_control_plainly(nic).is_none() {
            self.polled(nic, true, polled);
        }
    }

    /// Takes the only completion of the batch, if it ends a control write of a connection that goes on. None: nothing has changed.
    #[inline(always)]
    fn take_control_plainly(&mut self, nic: usize) -> Option<()> {
        let Self { nics, senders, receivers, batch, .. } = self;
        let completion = batch.as_ref()?.first(1).first()?;
        if completion.is_remote_write() {
            return None;
        }
        let Nic { operations, lone_dones, .. } = nics.get_mut(nic)?;
        operations.end_if(completion.context(), |purpose| match *purpose {
            Purpose::Advert { receiver, generation } => {
                receivers.get_mut(receiver, generation)?.goes_on()?.advert_written();
                Some(())
            }
            Purpose::LoneDone { receiver, generation } => {
                receivers.get_mut(receiver, generation)?.goes_on()?.lone_done_written();
                *lone_dones -= 1;
                Some(())
            }
            Purpose::Bundle { sender } => match &mut **senders.at_mut(sender)? {
                SenderState::Connected(sender) if !sender.ending.closing => {
                    sender.bundle_written();
                    Some(())
                }
                _ => None,
            },
            _ => None,
        })
    }

    /// The batch holds what a poll of a data queue has found: mostly a few arrivals, and parts that have ended.
    #[inline(never)]
    pub(super) fn polled_data(&mut self, nic: usize, polled: Polled) {
        fault::point("completion");
        let Some(count) = polled.count() else { return self.polled(nic, false, polled) };
        if let Some((taken, rare)) = self.take_plainly(nic, count, 0) {
            self.take_rest(nic, count, taken, rare);
        }
        if count == Batch::CAPACITY {
            self.poll_more(nic);
        }
    }

    /// A batch was full: more may wait.
    #[inline(never)]
    fn poll_more(&mut self, nic: usize) {
        let Self { batch: Some(batch), nics, .. } = self else { return };
        let polled = nics[nic].queue.poll(batch);
        if !polled.is_empty() {
            self.polled(nic, false, polled);
        }
    }

    /// What is behind the first that is not plain, and that. The batch is away meanwhile.
    #[inline(never)]
    pub(super) fn take_rest(&mut self, nic: usize, count: usize, mut taken: usize, mut rare: Rare) {
        loop {
            let Some(batch) = self.batch.take() else { return };
            match rare {
                Rare::Written(sender, line) => self.message_written(sender, line),
                Rare::Other(completion) => self.completed(nic, &completion),
            }
            self.batch = Some(batch);
            match self.take_plainly(nic, count, taken) {
                Some(more) => (taken, rare) = more,
                None => return,
            }
        }
    }

    /// Takes what is plain, behind the first `from`, up to what is not: that, and how many are taken with it.
    #[inline(always)]
    fn take_plainly(&mut self, nic: usize, count: usize, from: usize) -> Option<(usize, Rare)> {
        let Self { nics, senders, receivers, working, batch: Some(batch), .. } = self else {
            return None;
        };
        let rail = nics.get_mut(nic)?;
        let mut rest = batch.first(count).get(from..)?.iter();
        let rare = Taking { nic, rail, senders, receivers, working }.take(&mut rest)?;
        Some((count - rest.len(), rare))
    }

    /// The batch holds what a poll has found. Others follow as long as they fill it.
    #[inline(never)]
    fn polled(&mut self, nic: usize, control: bool, mut polled: Polled) {
        let Some(mut batch) = self.batch.take() else { return };
        for more in (0..BATCHES_PER_TURN).rev() {
            let Some(queue) = self.nics[nic].queue(control) else { break };
            match queue.told(polled, &batch) {
                CqPoll::Empty => break,
                CqPoll::Completions(completions) => {
                    for completion in completions {
                        self.completed(nic, completion);
                    }
                    if completions.len() < Batch::CAPACITY {
                        break;
                    }
                }
                CqPoll::Failed(error) => self.failed(nic, &error),
                CqPoll::Broken(error) => {
                    self.queue_broken(nic, error);
                    break;
                }
            }
            match self.nics[nic].queue(control) {
                Some(queue) if more > 0 => polled = queue.poll(&mut batch),
                _ => break,
            }
        }
        self.batch = Some(batch);
    }

    #[cold]
    #[inline(never)]
    fn queue_broken(&mut self, nic: usize, error: FabricError) {
        let rail = Label::of(&self.nics[nic].label);
        self.fail_all(Cause::QueueBroken { rail, fault: error.into() }.into());
    }

    /// What is no plain case of a data queue, or comes from a control queue.
    #[inline(never)]
    fn completed(&mut self, nic: usize, completion: &Completion) {
        if completion.is_remote_write() {
            self.arrived(nic, completion);
        } else {
            self.ended(nic, completion);
        }
    }

    /// An operation of ours has ended well.
    fn ended(&mut self, nic: usize, completion: &Completion) {
        let Some(rail) = self.nics.get_mut(nic) else { return };
        let Some(purpose) = rail.operations.end(completion.context()) else {
            return self.completed_nothing(nic);
        };
        let (sender, line, bytes, whole) = match purpose {
            Purpose::Part { sender, line, bytes, .. } => (sender, line, bytes, false),
            Purpose::Whole { sender, line, bytes, .. } => (sender, line, bytes, true),
            other => return self.completed_control(nic, other, completion.len()),
        };
        rail.data.ended(bytes);
        match self.senders.at_mut(sender).map(|state| &mut **state) {
            Some(SenderState::Connected(connected)) if whole => connected.whole_written(line),
            Some(SenderState::Connected(connected)) => {
                if connected.part_written(line) {
                    self.message_written(sender, line);
                }
            }
            _ => unreachable!("a slot is kept while its operations are in flight"),
        }
    }

    /// All parts of a message have completed, and there is more to do: its fin, or the end of its sender.
    #[inline(never)]
    fn message_written(&mut self, slot: u16, line: Line) {
        let Self { senders, nics, slabs, feeding, .. } = self;
        let Some(SenderState::Connected(sender)) = senders.at_mut(slot).map(|state| &mut **state)
        else {
            return;
        };
        sender.finish(&mut sender::Means { nics, slabs, slot }, line);
        if sender.is_feeding() {
            remember(feeding, slot);
        }
        if sender.ending.closing {
            self.try_release_sender(slot);
        }
    }

    #[cold]
    #[inline(never)]
    fn completed_nothing(&self, nic: usize) {
        log::debug!("{}: a completion of nothing in flight", self.nics[nic].label);
    }

    /// Apart from parts, so that those take few instructions.
    #[inline(never)]
    fn completed_control(&mut self, nic: usize, purpose: Purpose, len: usize) {
        match purpose {
            Purpose::Advert { receiver, generation } => {
                if let Some(entry) = self.receivers.get_mut(receiver, generation) {
                    entry.advert_written();
                    if entry.is_ending() {
                        self.try_release_receiver(receiver);
                    }
                }
            }
            Purpose::LoneDone { receiver, generation } => {
                self.nics[nic].lone_dones -= 1;
                if let Some(entry) = self.receivers.get_mut(receiver, generation) {
                    entry.lone_done_written();
                    if entry.is_ending() {
                        self.try_release_receiver(receiver);
                    }
                }
            }
            Purpose::Fin { sender, line } => {
                if let Some(SenderState::Connected(connected)) =
                    self.senders.at_mut(sender).map(|state| &mut **state)
                {
                    connected.fin_written(line);
                }
                self.try_release_sender(sender);
            }
            Purpose::Bundle { sender } => {
                if let Some(SenderState::Connected(connected)) =
                    self.senders.at_mut(sender).map(|state| &mut **state)
                {
                    connected.bundle_written();
                }
                self.try_release_sender(sender);
            }
            Purpose::Eager { sender, number } => {
                if let Some(SenderState::Connected(connected)) =
                    self.senders.at_mut(sender).map(|state| &mut **state)
                {
                    connected.eager_written(number);
                }
                self.try_release_sender(sender);
            }
            other => self.completed_rarely(nic, other, len),
        }
    }

    #[inline(never)]
    fn completed_rarely(&mut self, nic: usize, purpose: Purpose, len: usize) {
        match purpose {
            Purpose::Flush { flush, .. } => {
                if let Some(flush) = self.flushes.at_mut(flush) {
                    flush.completed(true);
                }
            }
            Purpose::SenderPulse { sender } => {
                if let Some(SenderState::Connected(connected)) =
                    self.senders.at_mut(sender).map(|state| &mut **state)
                {
                    connected.pulse_written();
                }
                self.try_release_sender(sender);
            }
            Purpose::ReceiverPulse { receiver, generation } => {
                if let Some(entry) = self.receivers.get_mut(receiver, generation) {
                    entry.pulse_written();
                    self.try_release_receiver(receiver);
                }
            }
            Purpose::Message { buffer, peer, letter } => {
                self.letter_ended(nic, peer, letter, true);
                self.message_ended(nic, buffer, peer);
            }
            Purpose::Inbox { buffer } => {
                let bytes = self.nics[nic]
                    .control
                    .as_ref()
                    .map(|control| control.messages.arrived(buffer, len));
                self.post_inbox(nic, buffer);
                self.heard(nic, &bytes.unwrap_or_default());
            }
            Purpose::Probe { attempt } => self.probe_ended(attempt, true),
            Purpose::Part { .. }
            | Purpose::Whole { .. }
            | Purpose::Advert { .. }
            | Purpose::LoneDone { .. }
            | Purpose::Eager { .. }
            | Purpose::Bundle { .. }
            | Purpose::Fin { .. } => {}
        }
    }

    /// A part has arrived.
    #[inline(never)]
    pub(super) fn arrived(&mut self, nic: usize, completion: &Completion) {
        let immediate = Immediate::from_bits(completion.immediate());
        let slot = immediate.comm().get();
        let Self { receivers, working, .. } = self;
        match receivers.at_mut(slot) {
            Some(receiver) if !receiver.ending.closing => {
                if let Arrival::Complete(_) =
                    receiver.arrived(nic, immediate, completion.len() as u64)
                {
                    enqueue(receiver, working, slot);
                }
            }
            _ => self.arrived_late(nic, immediate, completion.len() as u64),
        }
    }

    /// For a connection that is closed, or never was: counted. One that takes its receives back waits for what was begun.
    #[cold]
    #[inline(never)]
    fn arrived_late(&mut self, nic: usize, immediate: Immediate, len: u64) {
        if self.probe_arrived(len, immediate.bits()) {
            return;
        }
        self.counters.stray_immediates += 1;
        let slot = immediate.comm().get();
        if let Some(receiver) = self.receivers.at_mut(slot)
            && let Arrival::Complete(_) = receiver.arrived(nic, immediate, len)
        {
            self.try_release_receiver(slot);
        }
    }

    /// An operation has completed with an error.
    #[cold]
    #[inline(never)]
    pub(super) fn failed(&mut self, nic: usize, error: &CompletionError) {
        let label = self.nics[nic].label.clone();
        let Some(purpose) = self.nics[nic].operations.end(error.context) else {
            log::debug!("{label}: an error of nothing in flight: {error}");
            return;
        };
        let is_lone_done = matches!(purpose, Purpose::LoneDone { .. });
        let cause = |operation| {
            let (rail, failed) = (Label::of(&label), error.into());
            Cause::Completion { operation, rail, failed }
        };
        match purpose {
            Purpose::Part { sender, .. } => self.sender_failed(sender, cause(Operation::Data)),
            Purpose::Whole { sender, .. } => self.uncounted_failed(sender, cause(Operation::Data)),
            Purpose::Fin { sender, .. } => self.sender_failed(sender, cause(Operation::Fin)),
            Purpose::Eager { sender, .. } => {
                self.sender_failed(sender, cause(Operation::ShortMessage));
            }
            Purpose::Bundle { sender } => {
                if let Some(SenderState::Connected(connected)) =
                    self.senders.at_mut(sender).map(|state| &mut **state)
                {
                    connected.bundle_failed();
                }
                self.sender_failed(sender, cause(Operation::ShortMessages));
            }
            Purpose::SenderPulse { sender } => {
                self.sender_failed(sender, cause(Operation::SenderPulse));
            }
            Purpose::Advert { receiver, generation }
            | Purpose::LoneDone { receiver, generation }
            | Purpose::ReceiverPulse { receiver, generation } => {
                if is_lone_done {
                    self.nics[nic].lone_dones -= 1;
                }
                if let Some(entry) = self.receivers.get_mut(receiver, generation) {
                    entry.operation_failed(cause(Operation::Control));
                    self.try_release_receiver(receiver);
                }
            }
            Purpose::Flush { flush, .. } => {
                log::warn!("{label}: a flush failed: {error}");
                if let Some(flush) = self.flushes.at_mut(flush) {
                    flush.completed(false);
                }
            }
            Purpose::Probe { attempt } => {
                log::debug!("{label}: {attempt:?}, an attempt of the probe, failed: {error}");
                self.probe_ended(attempt, false);
            }
            Purpose::Message { buffer, peer, letter } => {
                log::debug!("{label}: a message was not delivered: {error}");
                self.undelivered(nic, peer);
                self.letter_ended(nic, peer, letter, false);
                self.message_ended(nic, buffer, peer);
            }
            Purpose::Inbox { buffer } => {
                if error.is_cancelled() {
                    return;
                }
                // A message longer than any of ours, for one: nothing that we wait for.
                self.counters.garbage += 1;
                self.post_inbox(nic, buffer);
            }
        }
    }

    /// [`Endpoint::sender_failed`] by an operation that the sender has not counted.
    #[cold]
    fn uncounted_failed(&mut self, slot: u16, cause: Cause) {
        if let Some(SenderState::Connected(sender)) =
            self.senders.at_mut(slot).map(|state| &mut **state)
        {
            sender.broke(cause);
        }
        self.give_up_parts_of(slot);
    }

    pub(super) fn sender_failed(&mut self, slot: u16, cause: Cause) {
        if let Some(SenderState::Connected(sender)) =
            self.senders.at_mut(slot).map(|state| &mut **state)
        {
            sender.operation_failed(cause);
        }
        self.give_up_parts_of(slot);
    }
}
