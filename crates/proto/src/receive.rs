//! The receiver's flow: posted receives are advertised, messages arrive inline or in parts, and DONE returns credit.
//!
//! ```text
//!  post ──▶ advert (urgent, lazy, or never needed) ──▶ parts, FIN or INLINE ──▶ complete ──▶ poll: Done
//!    └────▶ a parked message is for it ──▶ copied ────────────────────────────────┘
//! ```
//!
//! Laws: at most [`WINDOW`] lines are posted from the oldest incomplete one on. Parts for lines that are not
//! advertised, and duplicate parts, are dropped and counted. An inline message is copied once. No advert leaves twice,
//! and none leaves for a line that the sender knows to be filled. The first cause of failure is kept.

mod adverts;
mod arrivals;
mod ending;
mod inline;
mod lost;
mod posting;
mod slot;
mod tagged;
mod traffic;
mod unreported;
mod waiting;
mod withdrawal;

use crate::line::Line;

use self::ending::Ending;
use self::lost::Lost;
use self::slot::{Slot, State};
use self::traffic::Traffic;
use self::unreported::Unreported;
use self::withdrawal::Withdrawal;
use super::account::Account;
use super::connection::{Urgency, Which};
use super::counts::Counts;
use super::fault::{Breach, Fault, Violation};
use super::frame::{Frame, Opened};
use super::ids::{Moment, Name};
use super::message::Cut;
use super::parking::ParkedList;
use super::rail_set::RailSet;
use super::sendrecv::Posted;
use super::terms::Terms;
use super::window::{WINDOW, place};

pub use arrivals::Arrival;
pub use inline::{Copy, Matched, Place};
pub use slot::Target;
pub use tagged::Tagged;

/// A receive to post.
#[derive(Clone, Copy, Debug, Default)]
pub struct Receive {
    pub target: Target,
    /// The buffer's address as the peer uses it: virtual, or an offset in its region.
    pub address: u64,
    pub len: u64,
    pub tag: i32,
    /// The buffer is host memory.
    pub host: bool,
}

/// How receives are posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Posting {
    /// Longer messages are truncated.
    pub cut: bool,
    /// Optional completion: a kernel polls the bytes itself, so the receive may be reported early.
    pub optional: bool,
}

/// The answer to [`ReceiveFlow::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivePoll {
    Pending,
    /// Returned once. The sizes can be read until the next post.
    Done {
        count: u32,
    },
    Failed(Fault),
}

/// How many parts were dropped, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Parts for lines that are not advertised, or were completed before.
    pub late: u64,
    /// Parts that had arrived already.
    pub duplicates: u64,
    /// Parts that break the protocol.
    pub violations: u64,
}

/// The receiving end of a connection, at the side that called accept.
#[derive(Debug)]
pub struct ReceiveFlow {
    terms: Terms,
    /// Lines before this one are complete.
    done: Line,
    /// Lines before this one were advertised, or need no advert.
    advertised: Line,
    /// The line that the next receive takes.
    next: Line,
    /// Lines before this one were reported by DONE.
    reported: Line,
    /// A flush of adverts has begun: adverts of lines before this one leave without another check.
    flush_to: Line,
    /// Adverts of lines before this one are not lazy.
    prompt_to: Line,
    /// Lines before this one may have no advert: the sender then learns of them only by DONE.
    omitted_to: Line,
    /// No line after this one was filled by a message without an advert.
    newest_unadvertised: Line,
    /// When the delay of lazy adverts began.
    lazy_from: Moment,
    /// When the oldest line that DONE has not covered became complete.
    unreported_since: Moment,
    unreported: Unreported,
    traffic: Traffic,
    parked: ParkedList,
    /// Lines whose messages are to be copied from parking.
    copies: u32,
    fault: Option<Fault>,
    cut: Option<Cut>,
    /// The answer to OPEN, until it has left; no other frame leaves before it.
    opened: Option<Opened>,
    ending: Ending,
    /// The peer has ended the channel: all its writes have arrived, and no frame can be sent any more.
    peer_ended: bool,
    /// Receives were withdrawn.
    withdrawal: Option<Withdrawal>,
    /// Receives posted at the provider (SENDRECV only).
    tagged: Option<Box<Posted>>,
    /// The completion queue entries of the flow's receives were returned before the receives completed.
    released_entries: bool,
    /// Parts that have arrived for this connection, per rail.
    seen: Counts,
    /// Parts that the sender has posted, by its CLOSE.
    sent: Option<Counts>,
    dropped: Dropped,
    lost: Lost,
    slots: Box<[Slot; WINDOW as usize]>,
    keys: Box<[u64]>,
}

impl ReceiveFlow {
    pub fn new(terms: Terms) -> Self {
        Self::starting_at(terms, Line::FIRST)
    }

    /// A flow made by `accept`: its first frame is this answer to OPEN.
    pub fn accepted(terms: Terms, opened: Opened) -> Self {
        Self { opened: Some(opened), ..Self::new(terms) }
    }

    /// A flow that starts at another line: for tests near a wrap.
    pub fn starting_at(terms: Terms, first: Line) -> Self {
        Self {
            terms,
            done: first,
            advertised: first,
            next: first,
            reported: first,
            flush_to: first,
            prompt_to: first,
            omitted_to: first,
            newest_unadvertised: first.plus(u32::MAX),
            lazy_from: Moment::default(),
            unreported_since: Moment::default(),
            unreported: Unreported::default(),
            traffic: Traffic::default(),
            parked: ParkedList::default(),
            copies: 0,
            fault: None,
            cut: None,
            opened: None,
            ending: Ending::default(),
            peer_ended: false,
            withdrawal: None,
            tagged: terms.messages.then(Box::default),
            released_entries: false,
            seen: Counts::default(),
            sent: None,
            dropped: Dropped::default(),
            lost: Lost::default(),
            slots: Box::new([Slot::FREE; WINDOW as usize]),
            keys: vec![0; WINDOW as usize * usize::from(terms.cutting.rails)].into_boxed_slice(),
        }
    }

    /// Sets how many bytes keep the rails busy while an advert travels: with more outstanding, more adverts are collected
    /// for one packet.
    pub fn set_busy_bytes(&mut self, bytes: u64) {
        self.traffic.set_busy_bytes(bytes);
    }

    #[inline]
    fn is_complete(&self, first: Line) -> bool {
        let count = u32::from(self.slot(first).count);
        let complete = |line| matches!(self.slot(line).state, State::Complete { .. });
        count > 0 && (0..count).all(|index| complete(first.plus(index)))
    }

    /// Tests the receive, or group, that begins with `first`; `Done` is returned once.
    #[inline]
    pub fn poll(&mut self, first: Line) -> ReceivePoll {
        if self.is_complete(first) {
            let count = u32::from(self.slot(first).count);
            for index in 0..count {
                let slot = &mut self.slots[place(first.plus(index))];
                if let State::Complete { size, carried } = slot.state {
                    (slot.len, slot.carried) = (size, carried);
                }
                slot.state = State::Free;
            }
            return ReceivePoll::Done { count };
        }
        if let Some(fault) = self.fault {
            return ReceivePoll::Failed(fault);
        }
        if self.nothing_comes() && self.copies == 0 {
            return ReceivePoll::Failed(Fault::Closed);
        }
        ReceivePoll::Pending
    }

    /// The size of the message in a line that was reported done.
    #[inline]
    pub fn size(&self, line: Line) -> u64 {
        self.slot(line).len
    }

    /// The rails that carried a line's message, or none if it came inline. If it has bytes, a flush reads on each of them.
    #[inline]
    pub fn carried(&self, line: Line) -> RailSet {
        self.slot(line).carried
    }

    /// Handles a frame from the sender. For an INLINE it returns the destination of the payload: copy it there, then
    /// call [`copied`](Self::copied). None: the payload is dropped.
    #[inline]
    pub fn received(
        &mut self,
        frame: &Frame,
        account: &mut Account,
        now: Moment,
    ) -> Result<Option<Place>, Breach> {
        let heard = match frame {
            Frame::Inline(inline) => {
                return self.inline(inline, account).map_err(|v| self.breach(v));
            }
            Frame::Fin(fin) => self.fin(fin, account, now),
            Frame::Withdrawn(lines) => self.withdrawn(lines),
            Frame::Close(close) => self.peer_closed(close),
            _ => Err(Violation::Direction),
        };
        self.stir();
        heard.map(|()| None).map_err(|violation| self.breach(violation))
    }

    #[cold]
    fn breach(&mut self, violation: Violation) -> Breach {
        self.stick(Fault::Violation(violation));
        Breach(violation)
    }

    /// Whether frames are pending, and how urgent they are.
    #[inline]
    pub fn urgency(&self, account: &Account, now: Moment) -> Urgency {
        if self.opened.is_some() {
            return Urgency::Waited;
        }
        if self.has_rail_notes() {
            return Urgency::Waited;
        }
        // A side that closes has failed.
        if self.fault.is_some() || self.peer_ended {
            return self.end_urgency();
        }
        self.advert_urgency(account, now).and(self.done_urgency(account, now))
    }

    /// The next frame, if it has at most `words` words.
    #[inline]
    pub fn next_frame(
        &mut self,
        which: Which,
        words: usize,
        account: &mut Account,
        now: Moment,
    ) -> Option<Frame> {
        if self.opened.is_some() || self.peer_ended {
            return self.next_opened(words);
        }
        match which {
            Which::Adverts => self.next_advert(words, account, now),
            Which::Others if words == 0 => None,
            Which::Others if self.has_rail_notes() => self.next_rail_note(words),
            Which::Others => self.next_end(words).or_else(|| self.next_done(account)),
        }
    }

    #[cold]
    fn next_opened(&mut self, words: usize) -> Option<Frame> {
        let frame = Frame::Opened(self.opened?);
        if frame.words() > words {
            return None;
        }
        self.opened = None;
        Some(frame)
    }

    /// Records a failure. The first cause is kept.
    #[cold]
    fn stick(&mut self, cause: Fault) -> Fault {
        if self.fault.is_none() {
            // No advert leaves after a failure, except those that explain it.
            self.flush_to = self.advertised;
        }
        *self.fault.get_or_insert(cause)
    }

    /// Fails the flow because of a bug of the caller. The first cause is kept.
    #[cold]
    pub fn fail(&mut self, what: &'static str) {
        self.stick(Fault::Misuse(what));
    }

    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// The sender's name for this connection.
    pub fn peer(&self) -> Name {
        self.terms.peer
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// Lines before this one are complete.
    pub fn done(&self) -> Line {
        self.done
    }

    /// The line that the next receive takes.
    pub fn next(&self) -> Line {
        self.next
    }

    /// Whether a receive is incomplete and may still be filled, or the peer's CLOSE is expected.
    #[inline]
    pub fn waits(&self) -> bool {
        (self.done != self.next || self.has_closed()) && !self.nothing_comes()
    }

    /// Whether the sender may be writing: a line is advertised and incomplete.
    #[inline]
    pub fn awaits_parts(&self) -> bool {
        self.open_lines() > 0
    }

    /// The first message without an advert that was truncated to its receive. If there is an advert, the sender truncates the
    /// message and reports that.
    #[inline]
    pub const fn cut(&self) -> Option<Cut> {
        self.cut
    }

    /// The tag of the oldest incomplete receive.
    pub fn awaited_tag(&self) -> Option<i32> {
        (self.done != self.next).then(|| self.slot(self.done).tag)
    }

    /// All memory of the flow.
    pub fn memory_bytes(&self) -> usize {
        let tagged = if self.tagged.is_some() { size_of::<Posted>() } else { 0 };
        size_of::<Self>() + size_of_val(&*self.slots) + size_of_val(&*self.keys) + tagged
    }

    /// The oldest line whose place is in use: the line is incomplete, or its advert has not left.
    #[inline]
    fn oldest(&self) -> Line {
        if self.done.is_after(self.advertised) { self.advertised } else { self.done }
    }

    #[inline]
    fn slot(&self, line: Line) -> &Slot {
        &self.slots[place(line)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::ImmediateWidth;
    use crate::connection::ChannelEnd;
    use crate::frame::{Close, Keys};
    use crate::immediate::Immediate;
    use crate::terms::InlineLimits;

    const NOW: Moment = Moment::from_nanos(1);

    fn terms() -> Terms {
        let inline = InlineLimits { unadvertised: 512, host: 512 };
        let immediates = ImmediateWidth::Eight;
        Terms { inline, immediates, ..Terms::of_two_rails(Name::default()) }
    }

    fn flow() -> (ReceiveFlow, Account) {
        (ReceiveFlow::new(terms()), Account::new(2))
    }

    fn post(flow: &mut ReceiveFlow, account: &Account) -> Line {
        let receive = Receive { len: 1000, ..Receive::default() };
        flow.post(&[receive], &[1, 2], Posting::default(), account, NOW).unwrap().unwrap()
    }

    /// The sender has closed, and has posted this many parts on each rail.
    fn closed_after(parts: &[u64]) -> Frame {
        let parts = Keys::new(parts).unwrap();
        Frame::Close(Close { to: Name::default(), lines: Line::FIRST, parts })
    }

    fn write(flow: &mut ReceiveFlow, account: &mut Account, line: Line) {
        let own = flow.terms.own.in_immediate();
        flow.arrived(0, Immediate::new(own, line, 0, true, true, 0), 1000, account, NOW);
    }

    #[test]
    fn each_frame_leaves_if_a_packet_has_just_the_room_for_it() {
        let opened = Opened {
            to: Name::default(),
            from: Name::default(),
            features: 0,
            inline_bytes_max: 0,
            window: 0,
            group_max: 0,
        };
        type Frames = fn(&mut ReceiveFlow, &mut Account);
        let cases: [(Which, Frames); 4] = [
            (Which::Adverts, |flow, account| _ = post(flow, account)),
            (Which::Others, |flow, _| flow.withdraw()),
            (Which::Others, ReceiveFlow::close),
            (Which::Others, |flow, _| flow.rail_fenced(0)),
        ];
        for (case, (which, prepare)) in cases.into_iter().enumerate() {
            for accepted in [false, true] {
                let mut account = Account::new(2);
                let (mut flow, which) = if accepted {
                    (ReceiveFlow::accepted(terms(), opened), Which::Others)
                } else {
                    (ReceiveFlow::new(terms()), which)
                };
                prepare(&mut flow, &mut account);
                let next = |words| flow.next_frame(which, words, &mut account, NOW);
                let (words, frame) =
                    (0..9).zip((0..9).map(next)).find(|(_, frame)| frame.is_some()).unwrap();
                let frame = frame.unwrap();
                assert_eq!(words, frame.words(), "{case}: {frame:?}");
                assert_eq!(accepted, matches!(frame, Frame::Opened(_)), "{frame:?}");
            }
        }
    }

    #[test]
    fn a_receiver_waits_while_a_receive_is_open_and_after_its_close_for_that_of_the_sender() {
        let (mut flow, mut account) = flow();
        assert_eq!((flow.waits(), flow.poll(flow.next)), (false, ReceivePoll::Pending));
        let line = post(&mut flow, &account);
        assert!(flow.waits());
        assert!(flow.next_frame(Which::Adverts, 100, &mut account, NOW).is_some());
        write(&mut flow, &mut account, line);
        assert!(!flow.waits());
        post(&mut flow, &account);
        flow.close(&mut account);
        while flow.next_frame(Which::Others, 100, &mut account, NOW).is_some() {}
        assert!(flow.waits() && flow.has_closed());
        flow.received(&closed_after(&[1, 0]), &mut account, NOW).unwrap();
        assert!(!flow.waits() && flow.is_over());
    }

    /// It may also close before the channel ends: then its CLOSE cannot leave.
    #[test]
    fn a_receiver_whose_channel_has_ended_has_closed_once_it_closes() {
        for closes_first in [true, false] {
            let (mut flow, mut account) = flow();
            post(&mut flow, &account);
            assert!(!flow.has_closed());
            if closes_first {
                flow.close(&mut account);
                assert!(!flow.has_closed(), "CLOSE has not left");
                flow.ended(ChannelEnd::ByPeer);
            } else {
                flow.received(&closed_after(&[0, 0]), &mut account, NOW).unwrap();
                flow.ended(ChannelEnd::ByPeer);
                assert!(!flow.has_closed());
                assert_eq!((flow.fault(), flow.urgency(&account, NOW)), (None, Urgency::Nothing));
                assert_eq!(flow.next_frame(Which::Adverts, 100, &mut account, NOW), None);
                flow.close(&mut account);
            }
            assert!(flow.has_closed() && flow.is_over());
        }
    }
}
