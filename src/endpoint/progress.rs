//! A turn of progress: queues are read, what waits is tried again, and now and then peers are looked after.

use std::time::{Duration, Instant};

use fabric::{FabricError, Polled};

use super::completions::Taking;
use super::operation::Purpose;
use super::working::Stay;
use super::{Endpoint, SenderState, pulse, receiver, sender};
use crate::error::{Cause, Error};
use crate::label::Label;

/// So many times longer than control may data be refused: a process that is stopped takes none, and lives.
const DATA_STALL: u32 = 30;
/// Turns for data between two for control.
const CONTROL_TURNS: u32 = 16;
/// How often peers are looked after, unless the bound on their silence is short.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

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
            if !self.nics[nic].nic.is_clear() {
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
        while let Some(port) = self.nics.get_mut(nic) {
            let polled = port.nic.poll_data();
            if !polled.is_empty() {
                self.polled_data(nic, polled);
                busy = true;
            }
            if self.nics.get(nic).is_some_and(|port| !port.nic.is_clear()) {
                self.flush(nic);
                busy = true;
            }
            nic += 1;
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
        let Self { nics, senders, receivers, working, .. } = self;
        let [port] = &mut nics[..] else { return self.progress_for_data() };
        let nic = &mut port.nic;
        let polled = nic.poll_data();
        if polled.is_empty() || polled.is_full() {
            return self.turn_otherwise(polled);
        }
        let rare = Taking { index: 0, nic, senders, receivers, working }.take();
        let is_clear = nic.is_clear();
        if let Some(rare) = rare {
            self.take_rest(0, rare);
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
        if !self.nics[0].nic.is_clear() {
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
    pub(super) fn has_work(&mut self) -> bool {
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
        let rail = &mut self.nics[nic].nic;
        let polled = if control { rail.poll_control() } else { rail.poll_data() };
        if polled.is_empty() {
            return;
        }
        if control {
            self.polled_control(nic, polled);
        } else {
            self.polled_data(nic, polled);
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
    pub(super) fn feed(&mut self) {
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
        let mut failures: Vec<(u64, FabricError)> = Vec::new();
        self.nics[nic].nic.flush(|token, error| failures.push((token, error)));
        for (token, fault) in failures {
            let rail = Label::of(&self.nics[nic].label);
            self.part_given_up(token, Cause::NeverPosted { rail, fault });
        }
    }

    /// A part that was never posted, and will not be.
    fn part_given_up(&mut self, token: u64, cause: Cause) {
        if let Some(sender) = Purpose::of(token).and_then(Purpose::sender_of_data) {
            self.counters.unsent_parts += 1;
            self.sender_failed(sender, cause);
        }
    }

    /// `elapsed` of polling has passed: finds peers that are gone.
    #[cold]
    pub(super) fn sweep(&mut self, elapsed: Duration) {
        let bound = self.settings.peer_timeout;
        let data_bound = bound.saturating_mul(DATA_STALL);
        for nic in 0..self.nics.len() {
            for token in self.nics[nic].nic.tick(elapsed, data_bound) {
                let rail = Label::of(&self.nics[nic].label);
                let bound_ms = pulse::milliseconds(data_bound);
                self.part_given_up(token, Cause::NotAccepted { rail, bound_ms });
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
            self.nics[notice.nic].nic.leave(notice.peer);
        }
        for slot in failed {
            self.give_up_parts_of(slot);
        }
    }

    /// Takes out the data that a connection which has failed still waits to post: it would be tried in every turn, for as long as
    /// its peer refuses. What other connections post to the same peer is theirs to give up.
    pub(super) fn give_up_parts_of(&mut self, slot: u16) {
        let given_up = self.nics.iter_mut().map(|port| port.give_up_parts_of(slot));
        let count: usize = given_up.sum();
        self.counters.unsent_parts += count as u64;
        if let Some(SenderState::Connected(sender)) =
            self.senders.at_mut(slot).map(|state| &mut **state)
        {
            sender.never_posted(u32::try_from(count).unwrap_or(u32::MAX));
        }
        self.try_release_sender(slot);
    }

    /// Fails every connection: the first cause stays.
    #[cold]
    #[inline(never)]
    pub(super) fn fail_all(&mut self, error: Error) {
        for (slot, _) in self.senders.keys() {
            if let Some(SenderState::Connected(sender)) =
                self.senders.at_mut(slot).map(|state| &mut **state)
            {
                sender.fail(error);
            }
        }
        for (slot, _) in self.receivers.keys() {
            if let Some(receiver) = self.receivers.at_mut(slot) {
                receiver.fail(error);
            }
        }
        self.failure.get_or_insert(error);
    }
}
