//! The common case of receiving: see `endpoint/plain.rs`.

use proto::{Immediate, Line};

use super::Receiver;
use crate::endpoint::plain::Plain;
use crate::rail::UserRegion;

impl Receiver {
    /// [`Receiver::receive`], where the case is the common one; no advert is written yet. None: nothing has been posted.
    #[inline(always)]
    pub(in crate::endpoint) fn receive_plainly(
        &mut self,
        region: &UserRegion,
        receive: &Plain,
        cut: bool,
    ) -> Option<Line> {
        if self.ending.blocked || receive.len == 0 || !region.holds(receive.address, receive.len) {
            return None;
        }
        if self.wide {
            return self.receive_wide(region, receive, cut);
        }
        let (address, len) = (region.target(receive.address), receive.len as u64);
        let [first, second, ..] = self.plain_nics;
        let words = [address, len, region.key(first), region.key(second)];
        self.flow.post_plainly(&mut self.shadow, words, receive.tag, cut)
    }

    #[inline(never)]
    fn receive_wide(&mut self, region: &UserRegion, receive: &Plain, cut: bool) -> Option<Line> {
        let (address, len) = (region.target(receive.address), receive.len as u64);
        let [first, second, third, fourth] = self.plain_nics.map(|nic| region.key(nic));
        let words = [address, len, first, second, third, fourth];
        self.flow.post_plainly(&mut self.shadow, words, receive.tag, cut)
    }

    /// Whether there is nothing to do for the receive of `request` but to wait.
    #[inline(always)]
    pub(in crate::endpoint) fn waits_plainly(&self, request: u16) -> bool {
        !self.ending.blocked && self.flow.waits_plainly(request)
    }

    /// Reports the receive of `request`, if it is complete and alone.
    #[inline(always)]
    pub(in crate::endpoint) fn test_plainly(&mut self, request: u16) -> Option<u64> {
        if self.ending.blocked {
            return None;
        }
        let done = self.flow.poll_plainly(request)?;
        self.carried |= done.carried;
        Some(done.size)
    }

    /// [`Receiver::arrived`], where the case is the common one, and the message complete. False: ask that.
    #[inline(always)]
    pub(in crate::endpoint) fn arrived_plainly(
        &mut self,
        nic: usize,
        immediate: Immediate,
    ) -> bool {
        let Some(bit) = self.lane_bits.get(nic) else { return false };
        !self.ending.closing && self.flow.arrived_plainly(*bit, immediate)
    }
}
