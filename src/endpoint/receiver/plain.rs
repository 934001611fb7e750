//! The common case of receiving: see `endpoint/plain.rs`.

use proto::limits::MAX_DATA_RAILS;
use proto::{Immediate, Line, PlainLook, PlainReceive};

use super::{NO_COPY, Receiver};
use crate::endpoint::plain::{Buffer, Looked};
use crate::endpoint::region::UserRegion;

impl Receiver {
    /// [`Receiver::receive`], where the case is the common one, and lanes are our first NICs in order and not more than two; no
    /// advert is written yet. `posted` is told the line. False: nothing has been posted.
    #[inline(always)]
    pub(in crate::endpoint) fn receive_shortly(
        &mut self,
        region: &UserRegion,
        receive: Buffer,
        cut: bool,
        posted: impl FnOnce(Line),
    ) -> bool {
        let Buffer { address, len, tag, .. } = receive;
        if !region.holds_some(address, len) {
            return false;
        }
        assert!(self.can_fill(region), "{NO_COPY}");
        let [first, second] = region.first_keys();
        let target = region.target(address);
        let words = [target, len as u64, first, second & self.second_lane];
        let lent = &mut self.lent;
        let told = |line| {
            lent.lend(line, target, first);
            posted(line);
        };
        self.flow.post_shortly(&mut self.places, words, tag, cut, told)
    }

    /// The same for other lanes.
    #[inline(always)]
    pub(in crate::endpoint) fn receive_plainly(
        &mut self,
        region: &UserRegion,
        receive: Buffer,
        cut: bool,
        posted: impl FnOnce(Line),
    ) -> bool {
        let Buffer { address, len, tag, .. } = receive;
        if !region.holds_some(address, len) {
            return false;
        }
        assert!(self.can_fill(region), "{NO_COPY}");
        let (address, len) = (region.target(address), len as u64);
        let [first, second, third, fourth] = self.plain_nics.map(|nic| region.key(nic));
        let lent = &mut self.lent;
        let posted = |line| {
            lent.lend(line, address, first);
            posted(line);
        };
        if self.wide {
            let words = [address, len, first, second, third, fourth];
            return self.flow.post_plainly(&mut self.places, words, tag, cut, posted);
        }
        self.flow.post_plainly(&mut self.places, [address, len, first, second], tag, cut, posted)
    }

    /// Whether the receive of `request` is not complete, and its parts would announce themselves.
    #[inline(always)]
    pub(in crate::endpoint) fn awaits_parts(&self, request: u16) -> bool {
        self.awaits(request) && !self.awaits_fins()
    }

    /// Reports the receive of `request`, if it is complete and alone.
    #[inline(always)]
    pub(in crate::endpoint) fn look_plainly(&mut self, request: u16) -> Looked {
        match self.flow.look_plainly(request) {
            PlainLook::Complete(done) => Looked::Done(self.reported(done)),
            // No message is expected to come in another way.
            PlainLook::Incomplete if self.attention == 0 => Looked::AwaitsParts,
            PlainLook::Incomplete | PlainLook::Other => Looked::Unknown,
        }
    }

    /// Whether there is nothing to do for the receive of `request` but to wait.
    #[inline(always)]
    pub(in crate::endpoint) fn waits_plainly(&self, request: u16) -> bool {
        self.flow.waits_plainly(request)
    }

    /// Whether [`Receiver::test_plainly`] would report the receive of `request`.
    #[inline(always)]
    pub(in crate::endpoint) fn is_complete_plainly(&self, request: u16) -> bool {
        self.flow.is_complete_plainly(request)
    }

    /// Reports the receive of `request`, if it is complete and alone.
    #[inline(always)]
    pub(in crate::endpoint) fn test_plainly(&mut self, request: u16) -> Option<u64> {
        let done = self.flow.poll_plainly(request)?;
        Some(self.reported(done))
    }

    /// The same for one that [`Receiver::look_plainly`] has found waiting for parts, under the same lock.
    #[inline(always)]
    pub(in crate::endpoint) fn look_again(&mut self, request: u16) -> Option<u64> {
        match self.flow.look_again(request) {
            PlainLook::Complete(done) => Some(self.reported(done)),
            PlainLook::Incomplete | PlainLook::Other => None,
        }
    }

    #[inline(always)]
    fn reported(&mut self, done: PlainReceive) -> u64 {
        self.carried |= done.carried;
        done.size
    }

    /// [`Receiver::arrived`], where the case is the common one, and the message complete: whether adverts may be due by that. None:
    /// ask that.
    #[inline(always)]
    pub(in crate::endpoint) fn arrived_plainly(
        &mut self,
        nic: usize,
        immediate: Immediate,
    ) -> Option<bool> {
        let bit = self.lane_bits[nic % MAX_DATA_RAILS];
        self.flow.arrived_plainly(bit, immediate)
    }
}
