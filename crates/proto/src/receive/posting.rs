//! Posting of receives, and the completion queue entries that they take.

use super::slot::{Slot, State};
use super::{Posting, Receive, ReceiveFlow};
use crate::account::Account;
use crate::bits::count32;
use crate::budget;
use crate::fault::Fault;
use crate::ids::Moment;
use crate::limits::MAX_GROUP;
use crate::line::Line;
use crate::rail_set::RailSet;
use crate::window::{WINDOW, place};

impl ReceiveFlow {
    /// Posts a receive, or a group of them, and returns its first line; None while the window is full. `keys` has those of
    /// each receive in turn, one for each data rail. Call [`next_copy`](Self::next_copy) afterwards.
    #[inline]
    pub fn post(
        &mut self,
        receives: &[Receive],
        keys: &[u64],
        how: Posting,
        account: &Account,
        now: Moment,
    ) -> Result<Option<Line>, Fault> {
        if let Some(fault) = self.takes_no_more() {
            return Err(fault);
        }
        self.check_post(receives, keys)?;
        let (first, count) = (self.next, count32(receives.len()));
        let free = |index| matches!(self.slots[place(first.plus(index))].state, State::Free);
        if count > WINDOW - first.distance(self.oldest()) || !(0..count).all(free) {
            return Ok(None);
        }
        if self.next == self.advertised {
            self.lazy_from = now;
        }
        let optional = how.optional && count == 1 && self.may_report_early();
        let rails = usize::from(self.terms.cutting.rails);
        let mut rest = keys;
        for (index, receive) in (0..).zip(receives) {
            let (its, others) = rest.split_at(rails);
            rest = others;
            let place = (index, crate::bits::low8(count.into()));
            self.post_line(receive, its, place, how.cut, optional);
        }
        if !self.parked.is_empty() {
            self.match_parked(first, &account.parking);
        }
        Ok(Some(first))
    }

    fn check_post(&self, receives: &[Receive], keys: &[u64]) -> Result<(), Fault> {
        let most = if self.terms.grouped { MAX_GROUP } else { 1 };
        if receives.is_empty() || receives.len() > most {
            return Err(Fault::Misuse("a group of receives is longer than was agreed"));
        }
        if keys.len() != receives.len() * usize::from(self.terms.cutting.rails) {
            return Err(Fault::Misuse("a receive has one key for each data rail"));
        }
        Ok(())
    }

    /// Why every [`post`](Self::post) fails: the flow has failed, or the sender has closed. To be checked before completion
    /// queue entries are taken: receives that were reported early may never return theirs.
    pub fn takes_no_more(&self) -> Option<Fault> {
        let closed = self.sent.is_some() && self.parked.is_empty();
        self.fault.or_else(|| closed.then_some(Fault::Closed))
    }

    #[inline]
    fn post_line(
        &mut self,
        receive: &Receive,
        keys: &[u64],
        (index, count): (u8, u8),
        cut: bool,
        optional: bool,
    ) {
        let line = self.next;
        let &Receive { target, address, len, tag, host } = receive;
        self.slots[place(line)] = Slot {
            state: State::Posted,
            target,
            address,
            len,
            tag,
            carried: RailSet::NONE,
            cost: 0,
            index,
            count,
            cut,
            // Not for an optional receive, since NCCL may make no further call in which it could be copied; nor for a receive that is
            // posted at the provider, which must fill it.
            host: host && !optional && !self.terms.messages,
            optional,
            early: false,
        };
        let rails = keys.len();
        for (kept, key) in self.keys[place(line) * rails..].iter_mut().zip(keys) {
            *kept = *key;
        }
        self.next = line.plus(1);
        // Long messages into receives that are posted ahead should be written, not copied. That needs their adverts.
        let written = self.traffic.is_long() && line != self.done;
        let lazy = host && !optional && self.traffic.comes_inline(len) && !written;
        if !lazy {
            self.prompt_to = self.next;
        }
        if optional {
            self.flush_to = self.next;
        }
    }

    /// The most entries of one completion queue that a receive of `len` bytes can take.
    pub fn entries(&self, len: u64) -> u32 {
        budget::entries(&self.terms.cutting, len)
    }

    /// Returns the completion queue entries of all incomplete receives, once the flow has failed: nothing more is
    /// posted, and receives that still complete do not return their entries again. 0 with SENDRECV, where the provider
    /// holds the receives until they are cancelled.
    #[cold]
    pub fn release_entries(&mut self) -> u32 {
        if self.tagged.is_some() {
            return 0;
        }
        let held = self.entries_held();
        self.released_entries = true;
        held
    }

    /// The completion queue entries of all incomplete receives.
    pub fn entries_held(&self) -> u32 {
        if self.released_entries {
            return 0;
        }
        let open = (0..self.next.distance(self.done)).map(|ahead| self.slot(self.done.plus(ahead)));
        open.filter(|slot| slot.is_open()).map(|slot| self.entries(slot.len)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Urgency;
    use crate::frame::{Frame, Inline};
    use crate::ids::Name;
    use crate::terms::{InlineLimits, Terms};

    /// A packet cannot be copied there.
    #[test]
    fn the_advert_of_gpu_memory_waits_for_no_inline_message() {
        for host in [true, false] {
            let inline = InlineLimits { unadvertised: 512, host: 512 };
            let terms = Terms { inline, ..Terms::of_two_rails(Name::default()) };
            let (mut flow, mut account) = (ReceiveFlow::new(terms), Account::new(2));
            let post = |flow: &mut ReceiveFlow, account: &Account, host, now| {
                let receive = Receive { len: 8, host, ..Receive::default() };
                let posted = flow.post(&[receive], &[1, 2], Posting::default(), account, now);
                posted.unwrap().unwrap()
            };
            let early = Moment::from_nanos(1);
            let line = post(&mut flow, &account, true, early);
            let to = Name::default();
            let inline = Inline { to, line, advertised: false, tag: 0, base: line, len: 8 };
            let place = flow.received(&Frame::Inline(inline), &mut account, early).unwrap();
            flow.copied(place.unwrap(), &mut account, early);
            // The wait begins when the receive is posted, not with the message before it.
            let now = early.plus(10 * account.lazy_wait);
            post(&mut flow, &account, host, now);
            let until = now.plus(account.lazy_wait);
            let lazy = Urgency::Lazy { until, joins: false };
            let expected = if host { lazy } else { Urgency::Urgent };
            assert_eq!(flow.advert_urgency(&account, now), expected, "host memory: {host}");
        }
    }

    /// They should be written, not copied.
    #[test]
    fn the_advert_of_a_receive_that_is_posted_ahead_of_long_messages_is_not_lazy() {
        for (size, prompt) in [(3072, false), (3073, true)] {
            let terms = Terms::of_two_rails(Name::default());
            let (mut flow, account) = (ReceiveFlow::new(terms), Account::new(2));
            flow.traffic.came_inline(4000);
            flow.traffic.completed(size);
            for ahead in [false, true] {
                let receive = Receive { len: 4000, host: true, ..Receive::default() };
                let now = Moment::default();
                flow.post(&[receive], &[1, 2], Posting::default(), &account, now).unwrap();
                assert_eq!(flow.prompt_to == flow.next, prompt && ahead, "{size} bytes");
            }
        }
    }
}
