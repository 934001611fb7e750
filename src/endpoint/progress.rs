//! A turn of progress: completions are read and told to whom they concern, and what waits is tried again.

use std::slice;
use std::time::{Duration, Instant};

use fabric::{Batch, Completion, CompletionError, CqPoll, FabricError, Polled, Post};
use proto::{Arrival, Immediate, Line};

use super::nics::Nic;
use super::receiver::{Receiver, gone};
use super::slots::Slots;
use super::working::{Stay, Working};
use super::{Endpoint, SenderState, enqueue, enqueue_late, receiver, remember, sender};
use crate::error::{Error, Kind};
use crate::rail::{Letter, PartWrite, Purpose};

/// Full batches read from one queue in one turn: a flood of completions must not hold the lock for ever.
const BATCHES_PER_TURN: usize = 4;
/// So many times longer than control may data be refused: a process that is stopped takes none, and lives.
const DATA_STALL: u32 = 30;
/// Turns for data between two for control.
const CONTROL_TURNS: u32 = 16;
/// How often peers are looked after, unless the bound on their silence is short.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

/// What is left to do for a completion that is no plain case.
#[derive(Clone, Copy, Debug)]
enum Rare {
    /// All.
    Other(Completion),
    /// It was the last part of a message of the sender in this slot.
    Written(u16, Line),
}

/// What plain completions of a data queue change.
struct Taking<'endpoint> {
    nic: usize,
    rail: &'endpoint mut Nic,
    senders: &'endpoint mut Slots<Box<SenderState>>,
    receivers: &'endpoint mut Slots<Box<Receiver>>,
    working: &'endpoint mut Working,
}

impl Taking<'_> {
    /// Takes what is plain, up to what is not: that. Straight code over what it borrows, so that all of that stays in registers,
    /// and nothing in it can panic.
    #[inline(always)]
    fn take(&mut self, rest: &mut slice::Iter<'_, Completion>) -> Option<Rare> {
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
    /// Every call that answers "not yet", and every `test`, has made one of these, or one for data.
    #[inline(never)]
    pub(super) fn progress(&mut self) {
        if !self.holding.is_empty() {
            self.write_bundles();
        }
        for nic in 0..self.nics.len() {
            self.poll(nic, false);
            self.poll(nic, true);
            if !self.nics[nic].data.is_clear() {
                self.flush(nic);
            }
        }
        self.watch.turn();
        if self.has_work() {
            self.work();
        }
        if self.has_chores() {
            self.do_chores();
        }
        if self.watch.is_due() {
            self.look_at_the_clock();
        }
    }

    /// A turn for who waits for data and, if so, for `control`: else only now and then is it a full one. What comes on control
    /// queues, adverts and dones, is waited for by senders, and they look themselves. False: nothing has happened.
    #[inline(always)]
    pub(super) fn progress_for(&mut self, control: bool) -> bool {
        if control || self.is_due_in_full() {
            self.progress();
            return true;
        }
        if !self.holding.is_empty() {
            self.write_bundles();
        }
        let (mut busy, mut nic) = (false, 0);
        while let Self { batch: Some(batch), nics, .. } = self
            && let Some(rail) = nics.get(nic)
        {
            let polled = rail.queue.poll(batch);
            if !polled.is_empty() {
                self.polled_data(nic, polled);
                busy = true;
            }
            if self.nics.get(nic).is_some_and(|rail| !rail.data.is_clear()) {
                self.flush(nic);
                busy = true;
            }
            nic += 1;
        }
        if self.batch.is_none() {
            self.fail_broken();
        }
        self.watch.turn();
        self.walk_if_awake() || busy
    }

    /// Whether even a turn for data is to be a full one.
    #[inline(always)]
    fn is_due_in_full(&self) -> bool {
        self.watch.is_each(CONTROL_TURNS)
    }

    /// A turn for data, in straight code where there is one NIC: what is plain is taken here, without a call.
    #[inline(always)]
    pub(super) fn progress_for_parts(&mut self) -> bool {
        if self.is_due_in_full() || !self.holding.is_empty() {
            return self.progress_for_data();
        }
        let Self { nics, senders, receivers, working, batch: Some(batch), .. } = self else {
            return self.progress_for_data();
        };
        let [rail] = &mut nics[..] else { return self.progress_for_data() };
        let polled = rail.queue.poll(batch);
        let Some(count) = polled.few() else { return self.turn_otherwise(polled) };
        let mut rest = batch.first(count).iter();
        let rare = Taking { nic: 0, rail, senders, receivers, working }.take(&mut rest);
        let is_clear = rail.data.is_clear();
        if let Some(rare) = rare {
            let taken = count - rest.len();
            self.take_rest(0, count, taken, rare);
        }
        if !is_clear {
            self.flush(0);
        }
        self.watch.turn();
        self.walk_if_awake();
        true
    }

    /// What is left of a turn for data of the only NIC, whose queue had nothing, or more than a few.
    #[inline(always)]
    fn turn_otherwise(&mut self, polled: Polled) -> bool {
        let mut busy = !polled.is_empty();
        if busy {
            self.polled_data(0, polled);
        }
        if !self.nics[0].data.is_clear() {
            self.flush(0);
            busy = true;
        }
        self.watch.turn();
        self.walk_if_awake() || busy
    }

    #[inline(never)]
    fn progress_for_data(&mut self) -> bool {
        self.progress_for(false)
    }

    /// Writes adverts and dones that something has made due since the last walk. Whether there may have been any.
    #[inline(always)]
    pub(super) fn walk_if_awake(&mut self) -> bool {
        let awake = self.working.awake;
        if awake {
            self.walk();
        }
        awake
    }

    #[inline(never)]
    fn walk(&mut self) {
        if self.has_work() {
            self.work();
        }
    }

    /// Whether anything is due for a receiver on the list.
    #[inline(always)]
    fn has_work(&mut self) -> bool {
        let Self { working, receivers, watch, .. } = self;
        let rests = |slot, turns| {
            receivers.at_mut(slot).is_some_and(|receiver: &mut _| receiver.rests(turns))
        };
        !working.all_rest(watch.number(), rests)
    }

    #[inline(always)]
    fn has_chores(&self) -> bool {
        !(self.feeding.is_empty() && self.notices.is_empty() && self.owed_inboxes.is_empty())
    }

    #[inline(never)]
    fn do_chores(&mut self) {
        if !self.feeding.is_empty() {
            self.feed();
        }
        if !self.notices.is_empty() {
            self.send_notices();
        }
        if !self.owed_inboxes.is_empty() {
            self.post_owed_inboxes();
        }
    }

    #[cold]
    #[inline(never)]
    fn look_at_the_clock(&mut self) {
        if self.left {
            self.fail_left();
        }
        let interval = (self.settings.peer_timeout / 16).min(SWEEP_INTERVAL);
        if let Some(elapsed) = self.watch.tick(Instant::now(), interval) {
            self.sweep(elapsed);
        }
    }

    /// Mostly a queue is empty, and that is all there is to a poll.
    #[inline(always)]
    pub(super) fn poll(&mut self, nic: usize, control: bool) {
        let Self { batch: Some(batch), nics, .. } = self else { return self.fail_broken() };
        let Some(queue) = nics[nic].queue(control) else { return };
        let polled = queue.poll(batch);
        if polled.is_empty() {
            return;
        }
        if control {
            self.polled_control(nic, polled);
        } else {
            self.polled_data(nic, polled);
        }
    }

    /// The batch holds what a poll of a control queue has found: mostly that one write of ours has ended.
    #[inline(never)]
    fn polled_control(&mut self, nic: usize, polled: Polled) {
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
    fn polled_data(&mut self, nic: usize, polled: Polled) {
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

    /// What is behind the first that is not plain, and that. The batch is away meanwhile: see [`Endpoint::fail_broken`].
    #[inline(never)]
    fn take_rest(&mut self, nic: usize, count: usize, mut taken: usize, mut rare: Rare) {
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
        let label = &self.nics[nic].label;
        let sentence =
            format!("the completion queue of {label} is broken: {error}; restart the job");
        self.fail_all(&Error::new(Kind::System, sentence));
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
            _ => debug_assert!(false, "a slot is kept while its operations are in flight"),
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
    fn arrived(&mut self, nic: usize, completion: &Completion) {
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
        self.counters.stray_immediates += 1;
        let slot = immediate.comm().get();
        if let Some(receiver) = self.receivers.at_mut(slot)
            && let Arrival::Complete(_) = receiver.arrived(nic, immediate, len)
        {
            self.try_release_receiver(slot);
        }
    }

    /// Tries adverts and dones that wait; what has had none for a while leaves the list.
    #[inline(never)]
    fn work(&mut self) {
        let Self { receivers, nics, slabs, working, .. } = self;
        let mut closing = false;
        working.retain(|slot| {
            let generation = receivers.generation(slot);
            let Some(receiver) = receivers.at_mut(slot) else { return Stay::Leaves };
            let stay = receiver.turn(&mut receiver::Means { nics, slabs, slot, generation });
            receiver.queued = stay != Stay::Leaves;
            closing |= receiver.ending.closing && stay == Stay::Leaves;
            stay
        });
        if closing {
            self.release_receivers();
        }
    }

    #[cold]
    #[inline(never)]
    fn release_receivers(&mut self) {
        for (slot, _) in self.receivers.keys() {
            self.try_release_receiver(slot);
        }
    }

    /// Posts parts and fins that found no room.
    #[inline(never)]
    fn feed(&mut self) {
        let Self { senders, nics, slabs, feeding, .. } = self;
        feeding.retain(|slot| {
            let mut means = sender::Means { nics, slabs, slot: *slot };
            match senders.at_mut(*slot).map(|state| &mut **state) {
                Some(SenderState::Connected(sender)) => {
                    sender.feed(&mut means);
                    sender.is_feeding()
                }
                _ => false,
            }
        });
    }

    /// Tries the posts that a data rail refused.
    #[cold]
    #[inline(never)]
    fn flush(&mut self, nic: usize) {
        let mut failures = Vec::new();
        let rail = &mut self.nics[nic];
        rail.data.flush(nic, |write, error| failures.push((write, error)));
        for (write, error) in failures {
            let sentence =
                format!("{}: {error}; the peer is gone or unreachable", self.nics[nic].label);
            self.part_given_up(nic, &write, Error::new(Kind::Remote, sentence));
        }
    }

    /// A part that was never posted, and will not be.
    fn part_given_up(&mut self, nic: usize, write: &PartWrite, error: Error) {
        if let Some(Purpose::Part { sender, .. }) =
            self.nics[nic].operations.end_at(write.operation)
        {
            self.counters.unsent_parts += 1;
            self.sender_failed(sender, error);
        }
    }

    /// `elapsed` of polling has passed: finds peers that are gone.
    #[cold]
    fn sweep(&mut self, elapsed: Duration) {
        let bound = self.settings.peer_timeout;
        let data_bound = bound.saturating_mul(DATA_STALL);
        for nic in 0..self.nics.len() {
            for write in self.nics[nic].data.tick(elapsed, data_bound) {
                let sentence =
                    format!("a write of data on {}: {}", self.nics[nic].label, gone(data_bound));
                self.part_given_up(nic, &write, Error::new(Kind::Remote, sentence));
            }
        }
        let Self { senders, receivers, nics, slabs, .. } = self;
        let mut failed = Vec::new();
        for (slot, _, state) in senders.iter_mut() {
            if let SenderState::Connected(sender) = &mut **state
                && sender.sweep(&mut sender::Means { nics, slabs, slot }, elapsed, bound)
            {
                failed.push(slot);
            }
        }
        let mut closing = false;
        for (slot, generation, receiver) in receivers.iter_mut() {
            let mut means = receiver::Means { nics, slabs, slot, generation };
            receiver.sweep(&mut means, elapsed, bound);
            closing |= receiver.ending.closing && receiver.is_eager_due();
        }
        if closing {
            self.release_receivers();
        }
        for notice in self.notices.sweep(elapsed, bound) {
            self.counters.unsent_notices += 1;
            self.nics[notice.nic].peers.leave(notice.peer);
        }
        for slot in failed {
            self.give_up_parts_of(slot);
        }
    }

    /// Takes out the data that a connection which has failed still waits to post: it would be tried in every turn, for as long as
    /// its peer refuses. What other connections post to the same peer is theirs to give up.
    pub(super) fn give_up_parts_of(&mut self, slot: u16) {
        let mut count = 0;
        for Nic { data, operations, .. } in &mut self.nics {
            for write in data.give_up_sender(operations, slot) {
                operations.end_at(write.operation);
                count += 1;
            }
        }
        self.counters.unsent_parts += u64::from(count);
        if let Some(SenderState::Connected(sender)) =
            self.senders.at_mut(slot).map(|state| &mut **state)
        {
            sender.never_posted(count);
        }
        self.try_release_sender(slot);
    }

    /// An operation has completed with an error.
    #[cold]
    #[inline(never)]
    fn failed(&mut self, nic: usize, error: &CompletionError) {
        let label = self.nics[nic].label.clone();
        let Some(purpose) = self.nics[nic].operations.end(error.context) else {
            log::debug!("{label}: an error of nothing in flight: {error}");
            return;
        };
        let is_lone_done = matches!(purpose, Purpose::LoneDone { .. });
        let remote = |what: &str| {
            Error::new(
                Kind::Remote,
                format!("{what} on {label} failed: {error}; the peer is gone or unreachable"),
            )
        };
        match purpose {
            Purpose::Part { sender, .. } => self.sender_failed(sender, remote("a write of data")),
            Purpose::Whole { sender, .. } => {
                self.uncounted_failed(sender, &remote("a write of data"));
            }
            Purpose::Fin { sender, .. } => self.sender_failed(sender, remote("a write of a fin")),
            Purpose::Eager { sender, .. } => {
                self.sender_failed(sender, remote("a write of a short message"));
            }
            Purpose::Bundle { sender } => {
                if let Some(SenderState::Connected(connected)) =
                    self.senders.at_mut(sender).map(|state| &mut **state)
                {
                    connected.bundle_failed();
                }
                self.sender_failed(sender, remote("a write of short messages"));
            }
            Purpose::SenderPulse { sender } => {
                self.sender_failed(sender, remote("a sign of life"));
            }
            Purpose::Advert { receiver, generation }
            | Purpose::LoneDone { receiver, generation }
            | Purpose::ReceiverPulse { receiver, generation } => {
                if is_lone_done {
                    self.nics[nic].lone_dones -= 1;
                }
                if let Some(entry) = self.receivers.get_mut(receiver, generation) {
                    entry.operation_failed(&remote("a control write"));
                    self.try_release_receiver(receiver);
                }
            }
            Purpose::Flush { flush, .. } => {
                log::warn!("{label}: a flush failed: {error}");
                if let Some(flush) = self.flushes.at_mut(flush) {
                    flush.completed(false);
                }
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
    fn uncounted_failed(&mut self, slot: u16, error: &Error) {
        if let Some(SenderState::Connected(sender)) =
            self.senders.at_mut(slot).map(|state| &mut **state)
        {
            sender.broke(error);
        }
        self.give_up_parts_of(slot);
    }

    fn sender_failed(&mut self, slot: u16, error: Error) {
        if let Some(SenderState::Connected(sender)) =
            self.senders.at_mut(slot).map(|state| &mut **state)
        {
            sender.operation_failed(&error);
        }
        self.give_up_parts_of(slot);
    }

    /// A turn that a panic ended did not give its batch back: nothing here can be relied on.
    #[cold]
    fn fail_broken(&mut self) {
        let sentence = "an earlier bug has left this endpoint unusable; restart the job, and report the first line";
        self.fail_all(&Error::new(Kind::Internal, sentence));
    }

    /// Fails every connection: the first cause stays.
    #[cold]
    #[inline(never)]
    fn fail_all(&mut self, error: &Error) {
        for (slot, _) in self.senders.keys() {
            if let Some(SenderState::Connected(sender)) =
                self.senders.at_mut(slot).map(|state| &mut **state)
            {
                sender.fail(error.clone());
            }
        }
        for (slot, _) in self.receivers.keys() {
            if let Some(receiver) = self.receivers.at_mut(slot) {
                receiver.fail(error.clone());
            }
        }
        self.failure.get_or_insert_with(|| error.clone());
    }

    /// Posts what waits to be said.
    #[cold]
    #[inline(never)]
    pub(super) fn send_notices(&mut self) {
        let mut notices = std::mem::take(&mut self.notices);
        notices.flush(|notice| {
            let posted = self.post_message(notice.nic, notice.peer, &notice.bytes, notice.letter);
            if !matches!(posted, Ok(Post::Again)) {
                self.nics[notice.nic].peers.leave(notice.peer);
                self.posted_to(notice.nic, notice.peer, posted.is_ok());
            }
            posted
        });
        self.notices = notices;
    }

    /// A two-sided message is through, or will never be.
    fn message_ended(&mut self, nic: usize, buffer: u16, peer: fabric::PeerAddress) {
        let nic = &mut self.nics[nic];
        if let Some(control) = &mut nic.control {
            control.messages.release(buffer);
        }
        nic.peers.leave(peer);
    }

    /// Posts a two-sided message on the control rail of `nic`. One that is under way is a user of the peer's address.
    pub(super) fn post_message(
        &mut self,
        nic: usize,
        peer: fabric::PeerAddress,
        bytes: &[u8],
        letter: Letter,
    ) -> Result<Post, FabricError> {
        let rail = &mut self.nics[nic];
        let Some(control) = &mut rail.control else {
            return Err(FabricError { call: "a message on a NIC without control rail", code: -22 });
        };
        let Some(buffer) = control.messages.write(bytes) else { return Ok(Post::Again) };
        let Some((operation, context)) =
            rail.operations.begin(Purpose::Message { buffer, peer, letter })
        else {
            control.messages.release(buffer);
            return Ok(Post::Again);
        };
        let posted = match control.messages.outbox(buffer, bytes.len()) {
            Some(local) => control.endpoint.send(local, peer, context),
            None => Err(FabricError { call: "a message outside of its buffer", code: -22 }),
        };
        if !matches!(posted, Ok(Post::Accepted)) {
            rail.operations.end_at(operation);
            control.messages.release(buffer);
        } else {
            rail.peers.hold(peer);
        }
        posted
    }

    /// Keeps receives posted for the messages that peers may send.
    pub(super) fn post_inboxes(&mut self) {
        for nic in 0..self.nics.len() {
            for buffer in 0..super::messages::INBOX_BUFFERS {
                self.post_inbox(nic, buffer);
            }
        }
    }

    /// Posts what found no room before; what finds none again waits on.
    #[cold]
    fn post_owed_inboxes(&mut self) {
        for (nic, buffer) in std::mem::take(&mut self.owed_inboxes) {
            self.post_inbox(nic, buffer);
        }
    }

    fn post_inbox(&mut self, nic: usize, buffer: u16) {
        let rail = &mut self.nics[nic];
        let Some(control) = &mut rail.control else { return };
        let Some((operation, context)) = rail.operations.begin(Purpose::Inbox { buffer }) else {
            self.owed_inboxes.push((nic, buffer));
            return;
        };
        let posted =
            control.messages.inbox(buffer).map(|local| control.endpoint.receive(local, context));
        match posted {
            Some(Ok(Post::Accepted)) => return,
            Some(Ok(Post::Again)) => self.owed_inboxes.push((nic, buffer)),
            refused => {
                log::warn!("{}: a receive for messages was refused: {refused:?}", rail.label);
            }
        }
        rail.operations.end_at(operation);
    }
}
