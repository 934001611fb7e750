//! Messages that came into a ring of ours, eagerly or in a bundle, and are copied from there to where their receives begin.
//!
//! A receiver looks into its rings when a receive of the connection was asked for in vain, and when the connection ends.

use std::sync::Arc;

use proto::bundle::PAYLOAD_WORDS as BUNDLE_WORDS;
use proto::eager::{EAGER_PLACE_WORDS, FIRST_PAYLOAD};
use proto::{Line, ProtocolError};

use super::fence::Leaving;
use super::receiver::{LentBuffer, Receiver};
use super::region::UserRegion;
use super::slots::Slots;
use super::{Endpoint, Look, enqueue};
use crate::error::Cause;

/// Words of a message, at most.
pub(super) const PAYLOAD_WORDS: usize = EAGER_PLACE_WORDS - FIRST_PAYLOAD;
const _: () = assert!(BUNDLE_WORDS <= PAYLOAD_WORDS);
/// So many turns behind a message that was copied is another looked for as often as data are.
const COPIES_ATTENTION: u8 = u8::MAX;

/// A message to be copied.
#[derive(Debug)]
pub(super) struct Copied {
    line: Line,
    len: u64,
    /// Its bytes, the lowest of each word first.
    payload: [u64; PAYLOAD_WORDS],
    /// Where the receive begins, as it was advertised.
    target: u64,
    key: u64,
    nic: usize,
}

impl Endpoint {
    /// Copies the messages that have come to the receives that they are for.
    #[inline(never)]
    pub(super) fn take_copies(&mut self, slot: u16) {
        let Self { receivers, regions, working, counters, .. } = self;
        let Some(receiver) = receivers.at_mut(slot) else { return };
        let taken = receiver.take_bundled(regions);
        counters.bundled_receives += u64::from(taken);
        if taken == 0 || receiver.takes_every() || receiver.has_copies(Look::Memory) {
            return self.take_copies_to(slot, None);
        }
        enqueue(receiver, working, slot);
    }

    /// The same while a registration is being given back, which no handle names any more.
    pub(super) fn take_copies_to(&mut self, slot: u16, going: Option<&Arc<UserRegion>>) {
        let Self { receivers, regions, leaving, working, counters, .. } = self;
        let Some(receiver) = receivers.at_mut(slot) else { return };
        loop {
            let bundled = receiver.next_bundled();
            let count = match &bundled {
                Some(_) => &mut counters.bundled_receives,
                None => &mut counters.eager_receives,
            };
            let Some(copied) = bundled.or_else(|| receiver.next_eager()) else { break };
            let Copied { line, len, payload, target, key, nic } = copied;
            let is_its = |region: &UserRegion| region.key(nic) == key;
            let found = receiver.region_by(regions, is_its).map(|region| &**region);
            // One that is deregistered is waited for, for this.
            let found = found.or_else(|| {
                let going = going.map(|region| &**region).into_iter();
                let mut awaited = going.chain(leaving.iter().filter_map(Leaving::awaited));
                awaited.find(|region| is_its(region))
            });
            let bytes = usize::try_from(len).unwrap_or(usize::MAX);
            if len == 0 || found.is_some_and(|region| region.store(target, payload, bytes)) {
                receiver.flow.copied(line, len);
                *count += 1;
            } else {
                receiver.fail_unregistered();
                receiver.flow.lose(line);
            }
        }
        enqueue(receiver, working, slot);
    }
}

impl Receiver {
    /// Whether a look for messages to be copied is worth while.
    #[inline(always)]
    pub(super) fn has_copies(&self, look: Look) -> bool {
        look == Look::Memory && self.has_bundled() || self.has_eager(look)
    }

    /// Whether control is to be looked at in this turn, too, since messages to be copied came of late: others come there.
    #[inline(always)]
    pub(super) fn awaits_copies(&mut self) -> bool {
        let awaits = self.attention > 0;
        if awaits {
            self.attention -= 1;
        }
        awaits
    }

    /// Whether messages may come so at all.
    pub(super) fn copies(&self) -> bool {
        self.bundles.is_some() || self.inlet.is_some()
    }

    /// The common case of what follows: short messages, in order, for buffers of one registration. How many.
    #[inline(never)]
    fn take_bundled(&mut self, regions: &Slots<Arc<UserRegion>>) -> u32 {
        let Some((ring, _)) = &self.bundles else { return 0 };
        let last = regions.get(self.last_region, regions.generation(self.last_region));
        let (Some(region), Some(lane)) = (last, self.lanes.first()) else { return 0 };
        let (lent, key) = (&self.lent, region.key(lane.nic));
        let taken = self.flow.take_bundled(ring, |line, len, [first, second]| {
            let bytes = usize::try_from(len).unwrap_or(usize::MAX);
            let buffer = lent.of(line);
            buffer.key == key && region.store(buffer.target, [first, second], bytes)
        });
        if taken > 0 {
            self.attention = COPIES_ATTENTION;
        }
        taken
    }

    /// A message for a receive that is posted.
    pub(super) fn copied(&mut self, line: Line, len: u64, payload: [u64; PAYLOAD_WORDS]) -> Copied {
        self.attention = COPIES_ATTENTION;
        let LentBuffer { target, key } = self.lent.of(line);
        let nic = self.lanes.first().map_or(0, |lane| lane.nic);
        Copied { line, len, payload, target, key, nic }
    }

    /// The registration that `is_its` says is a receive's: tried first where the last one was.
    fn region_by<'a>(
        &mut self,
        regions: &'a Slots<Arc<UserRegion>>,
        is_its: impl Fn(&UserRegion) -> bool,
    ) -> Option<&'a Arc<UserRegion>> {
        let last = regions.get(self.last_region, regions.generation(self.last_region));
        if let Some(region) = last.filter(|region| is_its(region)) {
            return Some(region);
        }
        let (slot, region) = regions.entries().find(|(_, region)| is_its(region))?;
        self.last_region = slot;
        Some(region)
    }

    /// A message has come for a receive whose buffer is not registered any more.
    #[cold]
    fn fail_unregistered(&mut self) {
        self.flow.fail(ProtocolError::Transport { code: 0 });
        let peer = &self.peer;
        self.failure.get_or_insert_with(|| Cause::ReceiveDeregistered.receiving(peer.label()));
    }
}
