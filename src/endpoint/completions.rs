//! Completions: to whom each is told, in straight code where it is plain.

use fabric::{Event, FabricError, Failed, Nic, Polled};
use proto::{Arrival, Immediate, Line};

use super::nics::Port;
use super::operation::Purpose;
use super::receiver::Receiver;
use super::slots::Slots;
use super::working::Working;
use super::{Endpoint, SenderState, enqueue, enqueue_late, remember, sender};
use crate::error::{Cause, Operation};
use crate::fault;
use crate::label::Label;

/// Looks into one queue in one turn, while each brings as much as it can: a flood of completions must not hold the lock for ever.
const BATCHES_PER_TURN: usize = 4;

/// What is left to do for a completion that is no plain case.
#[derive(Debug)]
pub(super) enum Rare {
    /// All.
    Other(Event),
    /// It was the last part of a message of the sender in this slot.
    Written(u16, Line),
}

/// What plain completions of a data queue change.
pub(super) struct Taking<'endpoint> {
    pub(super) index: usize,
    pub(super) nic: &'endpoint mut Nic,
    pub(super) senders: &'endpoint mut Slots<Box<SenderState>>,
    pub(super) receivers: &'endpoint mut Slots<Box<Receiver>>,
    pub(super) working: &'endpoint mut Working,
}

impl Taking<'_> {
    /// Takes what is plain, up to what is not: that. Straight code over what it borrows, so that all of that stays in registers,
    /// and nothing in it can panic.
    #[inline(always)]
    pub(super) fn take(&mut self) -> Option<Rare> {
        let Self { index, nic, senders, receivers, working } = self;
        while let Some(event) = nic.next_data() {
            match event {
                Event::Arrived { immediate, .. } => {
                    let immediate = Immediate::from_bits(immediate);
                    let slot = immediate.comm().get();
                    if let Some(receiver) = receivers.at_mut(slot).map(|receiver| &mut **receiver)
                        && let Some(due) = receiver.arrived_plainly(*index, immediate)
                    {
                        if !receiver.queued {
                            enqueue_late(receiver, working, slot);
                        } else if due {
                            working.wake();
                        }
                        continue;
                    }
                }
                Event::Ended { token, .. } => match Purpose::of(token) {
                    Some(Purpose::Whole { sender, line }) => {
                        if let Some(state) = senders.at_mut(sender)
                            && let SenderState::Connected(sender) = &mut **state
                        {
                            sender.whole_written(line);
                            continue;
                        }
                        return Some(Rare::Written(sender, line));
                    }
                    Some(Purpose::Part { sender, line }) => {
                        if let Some(state) = senders.at_mut(sender)
                            && let SenderState::Connected(sender) = &mut **state
                            && !sender.part_written(line)
                        {
                            continue;
                        }
                        return Some(Rare::Written(sender, line));
                    }
                    _ => {}
                },
                Event::Failed(_) | Event::Broken(_) => {}
            }
            return Some(Rare::Other(event));
        }
        None
    }
}

impl Endpoint {
    /// There is something in a control queue: mostly that one write of ours has ended.
    #[inline(never)]
    pub(super) fn polled_control(&mut self, nic: usize, mut polled: Polled) {
        for more in (0..BATCHES_PER_TURN).rev() {
            while let Some(event) = self.take_control_plainly(nic) {
                self.happened(nic, event);
            }
            let Some(port) = self.nics.get_mut(nic).filter(|_| more > 0 && polled.is_full()) else {
                return;
            };
            polled = port.nic.poll_control();
        }
    }

    /// Takes the ends of control writes of connections that go on, up to what is none.
    #[inline(always)]
    fn take_control_plainly(&mut self, nic: usize) -> Option<Event> {
        let Self { nics, senders, receivers, .. } = self;
        let Port { nic, lone_dones, .. } = nics.get_mut(nic)?;
        while let Some(event) = nic.next_control() {
            let Event::Ended { token, .. } = event else { return Some(event) };
            let plain = match Purpose::of(token) {
                Some(Purpose::Advert { receiver, generation }) => {
                    let receiver = receivers.get_mut(receiver, generation);
                    receiver.and_then(|it| it.goes_on()).map(Receiver::advert_written)
                }
                Some(Purpose::LoneDone { receiver, generation }) => {
                    let receiver = receivers.get_mut(receiver, generation);
                    receiver.and_then(|it| it.goes_on()).map(|receiver| {
                        receiver.lone_done_written();
                        *lone_dones -= 1;
                    })
                }
                Some(Purpose::Bundle { sender }) => {
                    match senders.at_mut(sender).map(|state| &mut **state) {
                        Some(SenderState::Connected(sender)) if !sender.ending.closing => {
                            sender.bundle_written();
                            Some(())
                        }
                        _ => None,
                    }
                }
                _ => None,
            };
            if plain.is_none() {
                return Some(event);
            }
        }
        None
    }

    /// There is something in a data queue: mostly a few arrivals, and parts that have ended.
    #[inline(never)]
    pub(super) fn polled_data(&mut self, nic: usize, polled: Polled) {
        fault::point("completion");
        if let Some(rare) = self.take_plainly(nic) {
            self.take_rest(nic, rare);
        }
        if polled.is_full() {
            self.poll_more(nic);
        }
    }

    /// A look has brought as much as it can: more may wait.
    #[inline(never)]
    pub(super) fn poll_more(&mut self, nic: usize) {
        for _ in 1..BATCHES_PER_TURN {
            let Some(port) = self.nics.get_mut(nic) else { return };
            let polled = port.nic.poll_data();
            if let Some(rare) = self.take_plainly(nic) {
                self.take_rest(nic, rare);
            }
            if !polled.is_full() {
                return;
            }
        }
    }

    /// What is behind the first that is not plain, and that.
    #[inline(never)]
    pub(super) fn take_rest(&mut self, nic: usize, mut rare: Rare) {
        loop {
            match rare {
                Rare::Written(sender, line) => self.message_written(sender, line),
                Rare::Other(event) => self.happened(nic, event),
            }
            match self.take_plainly(nic) {
                Some(more) => rare = more,
                None => return,
            }
        }
    }

    /// Takes what is plain, up to what is not: that.
    #[inline(always)]
    fn take_plainly(&mut self, nic: usize) -> Option<Rare> {
        let Self { nics, senders, receivers, working, .. } = self;
        let Port { nic: of, .. } = nics.get_mut(nic)?;
        Taking { index: nic, nic: of, senders, receivers, working }.take()
    }

    /// What is no plain case.
    #[inline(never)]
    fn happened(&mut self, nic: usize, event: Event) {
        match event {
            Event::Arrived { immediate, len } => self.arrived(nic, immediate, len as u64),
            Event::Ended { token, len } => self.ended(nic, token, len),
            Event::Failed(failed) => self.failed(nic, &failed),
            Event::Broken(error) => self.queue_broken(nic, error),
        }
    }

    #[cold]
    #[inline(never)]
    fn queue_broken(&mut self, nic: usize, error: FabricError) {
        let rail = Label::of(&self.nics[nic].label);
        self.fail_all(Cause::QueueBroken { rail, fault: error }.into());
    }

    /// An operation of ours has ended well.
    fn ended(&mut self, nic: usize, token: u64, len: usize) {
        let (sender, line, whole) = match Purpose::of(token) {
            Some(Purpose::Part { sender, line }) => (sender, line, false),
            Some(Purpose::Whole { sender, line }) => (sender, line, true),
            Some(other) => return self.completed_control(nic, other, len),
            None => return debug_assert!(false, "a token of no purpose"),
        };
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
            Purpose::Flush { flush } => {
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
            Purpose::Message { buffer } => self.message_ended(nic, buffer, true),
            Purpose::Inbox { buffer } => {
                let messages = self.nics[nic].messages.as_ref();
                let bytes = messages.map(|messages| messages.arrived(buffer, len));
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
    fn arrived(&mut self, nic: usize, immediate: u64, len: u64) {
        let immediate = Immediate::from_bits(immediate);
        let slot = immediate.comm().get();
        let Self { receivers, working, .. } = self;
        match receivers.at_mut(slot) {
            Some(receiver) if !receiver.ending.closing => {
                if let Arrival::Complete(_) = receiver.arrived(nic, immediate, len) {
                    enqueue(receiver, working, slot);
                }
            }
            _ => self.arrived_late(nic, immediate, len),
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
    fn failed(&mut self, nic: usize, failed: &Failed) {
        let (label, error) = (self.nics[nic].label.clone(), &failed.error);
        let Some(purpose) = failed.token.and_then(Purpose::of) else {
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
            Purpose::Flush { flush } => {
                log::warn!("{label}: a flush failed: {error}");
                if let Some(flush) = self.flushes.at_mut(flush) {
                    flush.completed(false);
                }
            }
            Purpose::Probe { attempt } => {
                log::debug!("{label}: {attempt:?}, an attempt of the probe, failed: {error}");
                self.probe_ended(attempt, false);
            }
            Purpose::Message { buffer } => {
                log::debug!("{label}: a message was not delivered: {error}");
                self.message_ended(nic, buffer, false);
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
