//! A connection between `connect` and OPENED: it holds its slot, sends OPEN, and becomes a sender.

use super::super::connection::{ChannelEnd, Urgency};
use super::super::fault::{Fault, Violation};
use super::super::frame::{Frame, Open, Refusal};
use super::super::ids::{Moment, Name};
use super::super::send::SendFlow;
use super::agreement::Agreement;
use super::handle::Handle;
use super::opening::{Features, Opening};
use super::proof::{Nonces, Prove};

/// The progress of a `connect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Not yet. For a closed listener the answer stays this.
    Pending,
    Opened,
    Refused(Refusal),
    Failed(Fault),
}

#[derive(Debug)]
pub struct Connecting {
    opening: Opening,
    open: Open,
    agreement: Agreement,
    fault: Option<Fault>,
    /// The caller has given up. An OPEN that has left is still answered.
    closed: bool,
}

impl Connecting {
    pub(super) fn new(
        own: Name,
        handle: &Handle,
        features: Features,
        (nonces, prove): (Nonces, &impl Prove),
        agreement: Agreement,
    ) -> Self {
        let opening = Opening::new(own, handle.listener, handle.secret, features);
        let open = opening.open(nonces, prove);
        Self { opening, open, agreement, fault: None, closed: false }
    }

    pub fn answer(&self) -> Answer {
        match (self.opening.refusal(), self.fault) {
            (Some(why), _) => Answer::Refused(why),
            (None, Some(fault)) => Answer::Failed(fault),
            (None, None) => Answer::Pending,
        }
    }

    pub(in super::super) fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// The caller gives up.
    pub(in super::super) fn close(&mut self) {
        self.closed = true;
    }

    /// The channel has failed, or the peer has ended it, so that no answer comes.
    pub(in super::super) fn ended(&mut self, how: ChannelEnd) {
        if how == ChannelEnd::Failed {
            self.fault.get_or_insert(Fault::Ended);
        }
        self.opening.lose();
    }

    /// Whether the caller has given up and no answer can come any more, so that the slot can be freed.
    pub(in super::super) fn is_over(&self) -> bool {
        self.closed && !self.opening.is_sent()
    }

    /// Whether the `connect` stays pending for ever.
    pub(in super::super) fn is_lost(&self) -> bool {
        self.opening.is_lost()
    }

    /// Whether OPEN has left without an answer.
    pub(in super::super) fn waits(&self) -> bool {
        self.opening.is_sent()
    }

    pub(in super::super) fn urgency(&self, now: Moment) -> Urgency {
        if self.closed {
            return Urgency::Nothing;
        }
        match self.opening.due() {
            None => Urgency::Nothing,
            Some(due) if due <= now => Urgency::Waited,
            Some(until) => Urgency::Lazy { until, joins: false },
        }
    }

    pub(in super::super) fn next_frame(&mut self, words: usize, now: Moment) -> Option<Frame> {
        let frame = Frame::Open(self.open);
        if self.closed || frame.words() > words || !self.opening.is_due(now) {
            return None;
        }
        self.opening.open_left();
        Some(frame)
    }

    /// Handles the answer. For OPENED, returns the sender that this connection becomes.
    pub(in super::super) fn received(
        &mut self,
        frame: &Frame,
        now: Moment,
    ) -> Result<Option<SendFlow>, Violation> {
        match frame {
            Frame::Opened(opened) if self.opening.opened(opened) => {
                let agreed = Features::from_bits(opened.features);
                let names = (opened.to, opened.from);
                let terms = self.agreement.terms(names, agreed, opened.inline_bytes_max);
                let mut flow = SendFlow::new(terms.ok_or(Violation::Opened)?);
                if self.closed {
                    flow.close();
                }
                Ok(Some(flow))
            }
            Frame::Refused(refused) if self.opening.refused(refused, now) => Ok(None),
            Frame::Opened(_) | Frame::Refused(_) => Err(Violation::Opened),
            _ => Err(Violation::Direction),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::handle::ControlAddresses;
    use super::super::opening::{BUSY_WAIT, opened};
    use super::super::pairing::{Pairing, RailPair};
    use super::super::proof::{EndpointId, Mixing, Secret};
    use super::super::version::Versions;
    use super::*;
    use crate::capabilities::{Capabilities, ImmediateWidth};
    use crate::frame::{Opened, Refused};
    use crate::ids::{Generation, ListenerId, Slot};
    use crate::packet::Ring;

    const NOW: Moment = Moment::from_nanos(1_000_000);

    fn name(slot: usize) -> Name {
        Name { slot: Slot::new(slot).unwrap(), generation: Generation::new(1) }
    }

    fn connecting() -> Connecting {
        let handle = Handle {
            versions: Versions::OURS,
            endpoint: EndpointId([7; 16]),
            listener: ListenerId(4),
            secret: Secret([9; 16]),
            control: ControlAddresses::new([&[5; 16][..]].into_iter()).unwrap(),
            address_format: 3,
        };
        let capabilities = Capabilities {
            immediate: ImmediateWidth::Four,
            true_lengths: false,
            self_read: false,
            proves_arrival: false,
            delivery_complete: true,
            virtual_addresses: false,
            messages: false,
            arrival_times: false,
            largest_write: 1 << 30,
        };
        let pairs = vec![RailPair { ours: 0, theirs: 0 }];
        let rails = Pairing { data: pairs.clone(), control: pairs };
        let (ring, inline_bytes_max, shared_from) = (Ring::LONG, 512, 1 << 16);
        let agreement = Agreement { rails, capabilities, ring, inline_bytes_max, shared_from };
        let nonces = Nonces { prover: 1, verifier: 2 };
        Connecting::new(name(3), &handle, Features::default(), (nonces, &Mixing), agreement)
    }

    /// Its OPEN has left.
    fn asked() -> Connecting {
        let mut connecting = connecting();
        assert!(matches!(connecting.next_frame(16, NOW), Some(Frame::Open(_))));
        connecting
    }

    fn answer() -> Frame {
        Frame::Opened(opened(&connecting().open, name(8), Features::default(), 512))
    }

    fn refusal(why: Refusal) -> Frame {
        Frame::Refused(Refused { to: name(3), why, detail: 0 })
    }

    fn hears(connecting: &mut Connecting, frame: &Frame) -> Result<bool, Violation> {
        connecting.received(frame, NOW).map(|flow| flow.is_some())
    }

    #[test]
    fn an_open_leaves_once_into_a_packet_that_has_room_for_it() {
        let mut connecting = connecting();
        let words = Frame::Open(connecting.open).words();
        assert_eq!(connecting.urgency(NOW), Urgency::Waited);
        assert!(connecting.next_frame(words - 1, NOW).is_none());
        assert!(!connecting.waits());
        assert!(connecting.next_frame(words, NOW).is_some() && connecting.waits());
        assert!(connecting.next_frame(words, NOW).is_none());
        assert_eq!(connecting.urgency(NOW), Urgency::Nothing);
        assert_eq!(hears(&mut connecting, &refusal(Refusal::Busy)), Ok(false));
        let until = NOW.plus(BUSY_WAIT);
        let (early, lazy) = (until.before(BUSY_WAIT / 2), Urgency::Lazy { until, joins: false });
        assert_eq!([early, until].map(|now| connecting.urgency(now)), [lazy, Urgency::Waited]);
        assert!(connecting.next_frame(words, early).is_none() && !connecting.waits());
        assert!(connecting.next_frame(words, until).is_some() && connecting.waits());
    }

    #[test]
    fn an_answer_that_was_not_asked_for_or_offers_more_is_a_violation_and_changes_nothing() {
        let wrong = Violation::Opened;
        let mut early = connecting();
        for answer in [answer(), refusal(Refusal::Proof), refusal(Refusal::Closed)] {
            assert_eq!(hears(&mut early, &answer), Err(wrong), "no OPEN has left");
        }
        assert!(early.next_frame(16, NOW).is_some(), "it still leaves");
        let mut asked = asked();
        let Frame::Opened(right) = answer() else { panic!() };
        let Frame::Refused(refused) = refusal(Refusal::Proof) else { panic!() };
        for answer in [
            Frame::Opened(Opened { to: name(4), ..right }),
            Frame::Opened(Opened { features: 1, group_max: 8, ..right }),
            Frame::Opened(Opened { window: right.window - 1, ..right }),
            Frame::Refused(Refused { to: name(4), ..refused }),
        ] {
            assert_eq!(hears(&mut asked, &answer), Err(wrong), "{answer:?}");
        }
        assert_eq!(hears(&mut asked, &Frame::End), Err(Violation::Direction));
        assert_eq!(asked.answer(), Answer::Pending);
        assert_eq!(hears(&mut asked, &answer()), Ok(true));
        assert_eq!(hears(&mut asked, &answer()), Err(wrong), "twice");
    }

    #[test]
    fn a_refusal_ends_a_connect_but_one_by_a_closed_listener_leaves_it_pending() {
        let mut refused = asked();
        assert_eq!(hears(&mut refused, &refusal(Refusal::Proof)), Ok(false));
        assert_eq!(refused.answer(), Answer::Refused(Refusal::Proof));
        assert_eq!(hears(&mut refused, &refusal(Refusal::Busy)), Err(Violation::Opened), "twice");
        let mut late = asked();
        assert_eq!(hears(&mut late, &refusal(Refusal::Closed)), Ok(false));
        assert_eq!((late.answer(), late.is_lost()), (Answer::Pending, true));
        assert_eq!((refused.is_lost(), asked().is_lost()), (false, false));
    }

    /// Otherwise the next connection in the slot would get the answer.
    #[test]
    fn a_connect_that_was_given_up_keeps_its_slot_until_its_open_is_answered() {
        assert!(!connecting().is_over() && !asked().is_over());
        let mut early = connecting();
        early.close();
        assert!(early.is_over() && early.next_frame(16, NOW).is_none());
        assert_eq!(early.urgency(NOW), Urgency::Nothing);
        for ends in [
            (|late| assert_eq!(hears(late, &refusal(Refusal::Proof)), Ok(false))) as fn(&mut _),
            |late| assert_eq!(hears(late, &refusal(Refusal::Busy)), Ok(false)),
            |late: &mut Connecting| late.ended(ChannelEnd::ByPeer),
            |late: &mut Connecting| late.ended(ChannelEnd::Failed),
        ] {
            let mut late = asked();
            late.close();
            assert!(!late.is_over());
            ends(&mut late);
            assert!(late.is_over());
            assert!(late.next_frame(16, NOW.plus(BUSY_WAIT)).is_none(), "not again");
        }
        let mut accepted = asked();
        accepted.close();
        let sender = accepted.received(&answer(), NOW).unwrap().unwrap();
        let closed = matches!(sender.fault(), Some(Fault::Misuse(_)));
        assert!(closed, "the peer has to learn that it is closed");
    }

    #[test]
    fn a_connect_fails_with_its_channel_and_stays_pending_if_the_peer_ends_it() {
        for (how, fault) in [(ChannelEnd::Failed, Some(Fault::Ended)), (ChannelEnd::ByPeer, None)] {
            for mut connecting in [connecting(), asked()] {
                connecting.ended(how);
                assert_eq!(connecting.fault(), fault);
                let expected = fault.map_or(Answer::Pending, Answer::Failed);
                assert_eq!((connecting.answer(), connecting.is_lost()), (expected, true));
                assert!(!connecting.waits() && connecting.next_frame(16, NOW).is_none());
            }
        }
    }
}
