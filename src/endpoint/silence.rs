//! What is said before the caller may fall silent: it may never be heard of again once its last receive is reported, and
//! nobody may wait for us then.
//!
//! ```text
//!  complete ──▶ every done that is owed is posted ──▶ none is in flight ──▶ one more look at the queues ──▶ reported
//! ```
//!
//! Only our own provider is waited for, never the peer: a write that has completed is the kernel's or the NIC's, or lies in
//! a queue of the provider's that the next look pushes.

use std::time::Instant;

use super::{Endpoint, Look, enqueue, open_receiver, receiver};
use crate::error::{Cause, Noun, Result};
use crate::handle::Handle;
use crate::types::Poll;

impl Endpoint {
    /// Asks for the endpoint's only outstanding receive.
    #[inline(never)]
    pub(super) fn test_last_receive(
        &mut self,
        request: Handle,
        sizes: &mut [usize; 8],
        look: Look,
    ) -> Result<Poll> {
        let (slot, generation) = (request.slot(), request.generation());
        let receiver = open_receiver(self.receivers.get_mut(slot, generation), Noun::Request)?;
        let line = receiver.line_of(request.line()).ok_or(Cause::Stale(Noun::Request))?;
        if !receiver.is_complete(line) {
            receiver.read_fins(look);
            if receiver.has_copies(look) {
                self.take_copies(slot);
                return self.test_last_receive(request, sizes, Look::Known);
            }
            enqueue(receiver, &mut self.working, slot);
            if !receiver.is_complete(line) {
                if !receiver.holds(line) {
                    return Err(Cause::Stale(Noun::Request).into());
                }
                return receiver.verdict().map(|()| Poll::Pending);
            }
        }
        if !self.dones_have_left(slot) {
            return Ok(Poll::Pending);
        }
        let receiver = open_receiver(self.receivers.get_mut(slot, generation), Noun::Request)?;
        let count = receiver.report(line, sizes);
        self.outstanding -= 1;
        enqueue(receiver, &mut self.working, slot);
        Ok(Poll::Done { sizes: count })
    }

    /// Nothing is outstanding, though no last receive was reported: some were given up.
    pub(super) fn tell_if_idle(&mut self) {
        if self.outstanding == 0 {
            self.departing = None;
            self.tell_all(None);
        }
    }

    /// Writes every done that is owed, of the receiver in `last` too. False: one could not be written yet.
    fn tell_all(&mut self, last: Option<u16>) -> bool {
        let Self { receivers, nics, slabs, working, .. } = self;
        if let Some(last) = last
            && let Some(receiver) = receivers.at_mut(last)
            && !receiver.queued
        {
            enqueue(receiver, working, last);
        }
        let mut told = true;
        for slot in working.slots() {
            let generation = receivers.generation(*slot);
            if let Some(receiver) = receivers.at_mut(*slot) {
                let mut means = receiver::Means { nics, slabs, slot: *slot, generation };
                told &= receiver.write_lone_done(&mut means, true);
            }
        }
        told
    }

    /// Whether no done is owed or in our provider's hands any more, or they have been waited for long enough.
    pub(super) fn dones_have_left(&mut self, last: u16) -> bool {
        let told = self.tell_all(Some(last));
        let left = self.look_at_control();
        if told && left {
            self.departing = None;
            // Tells of nothing: it pushes what was reported complete out of a queue of the provider's own.
            self.look_at_control();
            return true;
        }
        if left {
            // Refused: that has a bound of its own, past which the connection fails.
            return false;
        }
        // Past the bound nobody waits again before these dones have ended.
        let since = *self.departing.get_or_insert_with(Instant::now);
        since.elapsed() >= self.settings.close_timeout
    }

    /// Reads the queues of control rails. True: no done that travels alone is in flight.
    fn look_at_control(&mut self) -> bool {
        let mut left = true;
        for nic in 0..self.nics.len() {
            self.poll(nic, true);
            // What one queue tells says nothing of the others' rails.
            left &= self.nics[nic].lone_dones == 0;
        }
        left
    }
}
