//! New inboxes: lending one, continuing in one that the peer has lent, and the old memory on both sides.
//!
//! The last 32 old inboxes stay in quarantine; older ones are lent again, as inboxes: a late write of an earlier epoch lacks the nonce of a
//! later one, so at worst it destroys a packet, which then counts as lost. If packets are lost in inbox after inbox and none comes, the rail gets no more of
//! them; if that is so on every living rail, a packet that counts as lost is waited for. An old shadow is kept until its writes have completed.

use std::collections::VecDeque;

use super::super::bound::{CONTROL_RAILS_MAX, INBOXES_IN_VAIN_MAX, MEMORY_AGAIN, SHADOWS_MAX};
use super::super::ids::{Epoch, Nonce, PacketNumber};
use super::super::letter::{Hello, RailNumbers};
use super::super::memory::{InboxMemory, Lease, MemoryId, Shadows};
use super::super::polled::{Now, PolledTime};
use super::{Abandoned, Cause, Channel, DueLetter, Inbox, NeverSent, Sent, State};

/// An old shadow with writes that have not completed.
#[derive(Clone, Copy, Debug)]
pub struct OldShadow {
    epoch: Epoch,
    memory: MemoryId,
    writes: u32,
}

/// Inboxes that are not read any more, when another one was lent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OldInboxes {
    /// The inbox before, which is in quarantine now.
    pub retired: Option<MemoryId>,
    /// The oldest one in quarantine, if it was full. It may be lent again.
    pub released: Option<MemoryId>,
}

/// Whether a new inbox must be lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NeedsInbox {
    No,
    /// There is no inbox yet, or its rail is lost.
    Yes,
    /// A packet up to this one counts as lost in the present inbox at the peer. The new inbox is lent on another rail if one lives, unless
    /// the packet comes before.
    Lost(PacketNumber),
}

impl NeedsInbox {
    pub(super) fn lost(&mut self, number: PacketNumber) {
        if *self != Self::Yes {
            *self = Self::Lost(number);
        }
    }

    /// Packets up to `number` have come. Returns whether that ends the need.
    #[inline]
    pub(super) fn consumed(&mut self, number: PacketNumber) -> bool {
        let ends = matches!(self, Self::Lost(last) if !last.is_after(number));
        if ends {
            *self = Self::No;
        }
        ends
    }
}

/// Since when there is no memory for a new inbox or shadow, and when to ask for an inbox again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Starved {
    since: PolledTime,
    again_at: PolledTime,
}

impl Channel {
    /// The rail on which a new inbox is to be lent.
    pub fn needs_inbox(&mut self, polled: PolledTime) -> Option<u8> {
        let starves = self.starved.is_some_and(|starved| polled < starved.again_at);
        if self.needs_inbox == NeedsInbox::No || self.state != State::Alive || starves {
            return None;
        }
        if self.inbox.as_ref().is_some_and(Inbox::has_consumed) {
            self.in_vain = [0; CONTROL_RAILS_MAX];
        }
        let present = self.inbox.as_ref().map(|inbox| inbox.lease().rail);
        // Each lost packet costs one inbox of its rail, whatever the reason.
        let has_room = |rail: &u8| self.in_vain[usize::from(*rail)] < INBOXES_IN_VAIN_MAX;
        let is_lost = matches!(self.needs_inbox, NeedsInbox::Lost(_));
        let another = |rail: &u8| is_lost && Some(*rail) != present;
        let rails = || self.living_rails().filter(has_room);
        let rail = rails().find(another).or_else(|| rails().next());
        if rail.is_none() && self.living_rail().is_some() {
            let since = *self.roomless_since.get_or_insert(polled);
            // They may have been delays that the peer took for losses, so the packet may still come.
            if !is_lost || polled.since(since) >= self.parameters.peer_timeout {
                self.fail(Cause::NoInbox);
            }
        }
        rail
    }

    /// No memory is available for a new inbox or shadow. Memory for an inbox is requested again after [`MEMORY_AGAIN`], memory for a shadow
    /// when the peer repeats its HELLO. If memory stays unavailable for too long, the channel fails; set-up has timeouts of its own.
    pub fn starves(&mut self, polled: PolledTime) {
        let since = self.starved.map_or(polled, |starved| starved.since);
        self.starved = Some(Starved { since, again_at: polled.plus(MEMORY_AGAIN) });
        let in_use = self.shadow.target().is_some();
        if in_use && polled.since(since) >= self.parameters.peer_timeout {
            self.fail(Cause::NoMemory);
        }
    }

    /// Lends `memory` as a new inbox.
    pub fn lend<M: InboxMemory>(
        &mut self,
        (id, memory): (MemoryId, &mut M),
        rail: u8,
        (address, key, nonce): (u64, u64, Nonce),
    ) -> OldInboxes {
        let before = self.inbox.take();
        let epoch = before.as_ref().map_or(0, |inbox| inbox.lease().epoch.0) + 1;
        let consumed = match &before {
            Some(inbox) => inbox.consumed(),
            None => self.parameters.first.plus(u32::MAX),
        };
        let lease = Lease { epoch: Epoch(epoch), nonce, rail, address, key };
        let memory = (id, memory);
        self.inbox = Some(Inbox::new(
            self.parameters.ring,
            lease,
            memory,
            consumed,
            self.shadow.acknowledged(),
        ));
        let is_lost = matches!(self.needs_inbox, NeedsInbox::Lost(_));
        self.needs_inbox = NeedsInbox::No;
        (self.starved, self.roomless_since) = (None, None);
        self.recovery.lent();
        let Some(before) = before else { return OldInboxes::default() };
        self.recovery.switched();
        if is_lost && !before.has_consumed() {
            self.in_vain[usize::from(before.lease().rail)] += 1;
        }
        self.quarantine.push_back(before.memory());
        let is_full = self.quarantine.len() > usize::from(self.parameters.quarantine);
        let released = is_full.then(|| self.quarantine.pop_front()).flatten();
        OldInboxes { retired: Some(before.memory()), released }
    }

    /// Whether a HELLO lends a newer inbox than the one in use, and the old shadow can be kept beside others. If it cannot for too long, the
    /// channel fails: writes on rails that hang and come back may never end while the peer still answers.
    pub fn would_adopt(&mut self, hello: &Hello, polled: PolledTime) -> bool {
        let known = self.shadow.target().map_or(Epoch(0), |lease| lease.epoch);
        let rail = hello.lease.rail < self.parameters.rails;
        let is_new = self.state == State::Alive && rail && hello.lease.epoch > known;
        if !is_new {
            return false;
        }
        // A completion names the low byte of its write's epoch.
        let is_ambiguous = |old: &OldShadow| hello.lease.epoch.0 - old.epoch.0 > u8::MAX.into();
        if self.old_shadows.len() < SHADOWS_MAX && !self.old_shadows.iter().any(is_ambiguous) {
            self.crowded_since = None;
            return true;
        }
        let since = *self.crowded_since.get_or_insert(polled);
        if polled.since(since) >= self.parameters.peer_timeout {
            self.fail(Cause::NoRail);
        }
        false
    }

    /// Continues in the inbox that `hello` lends, with a new shadow in `memory`. Returns the memory that is free now.
    pub fn adopt<M: Shadows>(
        &mut self,
        memories: &mut M,
        hello: &Hello,
        shadow: MemoryId,
        Now { clock: now, polled }: Now,
        left: impl FnMut(Sent),
    ) -> Option<MemoryId> {
        self.starved = None;
        let adopted = self.shadow.adopt(memories, (hello.lease, shadow), hello.consumed, left);
        let abandoned = match adopted {
            Ok(abandoned) => abandoned,
            Err(NeverSent) => {
                self.fail(Cause::NeverSent);
                return Some(shadow);
            }
        };
        self.recovery.adopted(polled);
        if abandoned.is_some() {
            self.recovery.resends(self.shadow.unacknowledged());
        }
        let Abandoned { memory, to, writes } = abandoned?;
        let cell = self.acknowledgement.moved(now);
        let writes = writes + u32::from(cell);
        if writes == 0 {
            return Some(memory);
        }
        self.old_shadows.push(OldShadow { epoch: to.epoch, memory, writes });
        None
    }

    /// A write from an old shadow has completed. Returns the shadow if that was the last one.
    pub(super) fn old_shadow_wrote(&mut self, epoch: Epoch) -> Option<MemoryId> {
        let index = self.old_shadows.iter().position(|old| old.epoch == epoch)?;
        let old = &mut self.old_shadows[index];
        old.writes -= 1;
        if old.writes > 0 {
            return None;
        }
        Some(self.old_shadows.swap_remove(index).memory)
    }

    /// Whether a channel that has ended only answers its peer and can give up its memory: no write of ours reads a shadow.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Failed(_) | State::Over)
            && self.old_shadows.is_empty()
            && !self.shadow.is_writing()
            && !self.acknowledgement.is_writing()
    }

    /// Gives up the memory of a channel that is [idle](Self::is_idle): all its inboxes, and its shadow.
    pub fn give_up(&mut self) -> (VecDeque<MemoryId>, Option<MemoryId>) {
        let mut inboxes = std::mem::take(&mut self.quarantine);
        inboxes.extend(self.inbox.take().map(|inbox| inbox.memory()));
        (inboxes, self.shadow.give_up())
    }

    /// Whether the failure of a write into this inbox of the peer comes late: the rail was lost since, and is back. After the return such
    /// an inbox may still be written into, until the peer has replaced it; those failures count as late, too.
    pub fn is_late(&self, epoch: Epoch, rail: u8) -> bool {
        !self.is_lost(rail) && epoch <= self.lost_in[usize::from(rail) % CONTROL_RAILS_MAX]
    }

    /// A letter with these numbers of the rails has failed on a control rail. Returns whether that comes late: the rail was lost since,
    /// and is back.
    pub fn letter_failed(&mut self, rail: u8, numbers: RailNumbers) -> bool {
        let late = !self.is_lost(rail) && self.rail_numbers().of(rail) != numbers.of(rail);
        if !late {
            self.rail_lost(rail);
        }
        late
    }

    /// The numbers of the control rails that a letter would carry now.
    pub fn rail_numbers(&self) -> RailNumbers {
        self.rails.numbers()
    }

    /// This side has lost a control rail.
    pub fn rail_lost(&mut self, rail: u8) {
        if self.rails.lose(rail) {
            self.without_rail(rail);
        }
    }

    /// A control rail was lost; it may be back already. After the peer's END an unreachable peer is no error.
    pub(super) fn without_rail(&mut self, rail: u8) {
        // A channel that is over still answers QUERY, by another rail.
        if self.state == State::Over {
            return;
        }
        if let Some(target) = self.shadow.target() {
            self.lost_in[usize::from(rail) % CONTROL_RAILS_MAX] = target.epoch;
        }
        if self.living_rail().is_none() {
            if self.ending.has_peer_said() {
                self.ending.lose_peer();
            } else {
                self.fail(Cause::NoRail);
            }
            return;
        }
        if self.inbox.as_ref().is_some_and(|inbox| inbox.lease().rail == rail) {
            self.needs_inbox = NeedsInbox::Yes;
        }
        self.recovery.query_now();
    }

    /// The rail of letters and of new inboxes: the present inbox's, if it lives.
    pub(super) fn living_rail(&self) -> Option<u8> {
        self.living_rails().next()
    }

    /// The rail of the next letter, if that is `letter`.
    pub(super) fn letter_rail(&self, letter: DueLetter) -> Option<u8> {
        let lives = |rail| !self.is_lost(rail);
        self.recovery.route(letter).rail(self.inbox_rail(), self.parameters.rails, lives)
    }

    /// Whether no other control rail lives.
    pub(super) fn is_only_living_rail(&self, rail: u8) -> bool {
        self.living_rails().all(|living| living == rail)
    }

    /// The rail of the present inbox, or of the first one.
    pub(super) fn inbox_rail(&self) -> u8 {
        self.inbox.as_ref().map_or(self.parameters.rail, |inbox| inbox.lease().rail)
    }

    /// All living rails, starting with the present inbox's.
    fn living_rails(&self) -> impl Iterator<Item = u8> {
        let first = self.inbox_rail();
        let rails = self.parameters.rails;
        let all = (0..rails).map(move |step| (first + step) % rails);
        all.filter(|rail| !self.is_lost(*rail))
    }

    /// The last packet that was consumed, in any inbox.
    pub(super) fn consumed_last(&self) -> PacketNumber {
        match &self.inbox {
            Some(inbox) => inbox.consumed(),
            None => self.parameters.first.plus(u32::MAX),
        }
    }
}
