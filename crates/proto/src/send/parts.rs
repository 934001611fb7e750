//! Posting and completion of the parts of long messages.

use super::ending::Ending;
use super::record::{Path, Record, State, Writing};
use super::{Refused, SendFlow, bit_of};
use crate::account::Account;
use crate::bits::{low8, low32};
use crate::fault::Fault;
use crate::frame::FinStatus;
use crate::ids::Moment;
use crate::immediate::Immediate;
use crate::limits::{MAX_DATA_RAILS, MAX_PARTS};
use crate::line::Line;
use crate::message::{MessageId, Source};
use crate::rail_set::RailSet;
use crate::split::{Loads, PARTS_PER_RAIL, Split};
use crate::window::RECORDS;

/// One part to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartWrite {
    pub message: MessageId,
    /// Its index in its round of 64. With the message it identifies the completion.
    pub part: u8,
    pub rail: u8,
    /// The receive that it is for.
    pub line: Line,
    /// Where this part begins.
    pub source: Source,
    /// The address or offset at the peer, and the key of the region on this rail.
    pub target: u64,
    pub key: u64,
    pub len: u64,
    /// None on the FIN path: a write that completes on delivery.
    pub immediate: Option<Immediate>,
    /// The part was assigned to another rail, which is lost.
    pub moved: bool,
}

/// A part that has completed or failed.
pub(super) struct Carried {
    pub(super) rail: u8,
    pub(super) len: u64,
    pub(super) immediate: bool,
}

/// The number of words per record for the rails of its parts, four bits each, with `rails` rails; 0 for one rail. If a
/// message has more parts than fit, because of the largest write, the rails repeat.
pub(super) const fn rail_words(rails: usize) -> usize {
    if rails <= 1 { 0 } else { (rails * PARTS_PER_RAIL).div_ceil(PARTS_PER_WORD) }
}

pub(super) const PARTS_PER_WORD: usize = 16;
const _: () = assert!(rail_words(MAX_DATA_RAILS) * PARTS_PER_WORD == MAX_PARTS as usize);

impl SendFlow {
    /// Chooses the rail of each part when the message begins, by the rails' load at that time.
    #[inline]
    pub(super) fn assign_rails(
        &mut self,
        message: MessageId,
        split: Split,
        len: u64,
        loads: &mut Loads,
    ) {
        if self.rails.is_empty() {
            return;
        }
        let words = self.rail_words();
        let chosen = &mut self.rails[message.index() * words..][..words];
        if split.parts == 1 {
            chosen[0] = loads.of_one_part(len).into();
        } else {
            share(chosen, split, len, *loads);
        }
    }

    /// Words per record for the rails of its parts.
    #[inline]
    pub(super) fn rail_words(&self) -> usize {
        self.rails.len() / RECORDS
    }

    /// The rail of a part.
    #[inline]
    pub(super) fn rail(&self, at: usize, part: u8) -> u8 {
        if self.rails.is_empty() {
            return 0;
        }
        let words = self.rail_words();
        let part = usize::from(part) % (words * PARTS_PER_WORD);
        let word = self.rails[at * words + part / PARTS_PER_WORD];
        low8(word >> (4 * (part % PARTS_PER_WORD))) & 15
    }
}

impl SendFlow {
    /// Whether parts are to be posted.
    #[inline]
    pub fn has_parts(&self) -> bool {
        self.posting != 0
    }

    /// The next part to post. The same one is returned until [`posted`](Self::posted) is called.
    #[inline]
    pub fn next_part(&mut self, account: &Account) -> Option<PartWrite> {
        if self.posting == 0 {
            return None;
        }
        let at = self.posting.trailing_zeros() as usize % RECORDS;
        let record = self.records[at];
        let State::Writing(writing) = record.state else { return None };
        let again = if self.lost.is_some() { self.next_again(at) } else { None };
        let part = again.unwrap_or(writing.posted);
        let (offset, len) = writing.part(part, record.len);
        let (line, mut rail) = (record.line, self.rail(at, part));
        let closed = !account.loads.is_open(rail) || self.lacks_keys(rail);
        if closed {
            if account.loads.open_rails() == 0 && !self.has_peer_closed() {
                // Wait until a rail is back.
                return None;
            }
            rail = self.other_rail(at, part, len, account);
            if self.lacks_keys(rail) {
                // The receiver has closed, and waits only for parts in flight.
                self.posting &= !bit_of(MessageId(low8(at as u64)));
                self.records[at].state = State::Writing(Writing { failed: true, ..writing });
                return self.next_part(account);
            }
        }
        let advert = self.adverts.get(line);
        let immediate = match writing.path {
            Path::Fin => None,
            Path::Immediate { whole } => {
                let low = if whole || !self.carries_length() { 0 } else { low32(record.len) };
                let last = writing.is_last(part);
                let to = self.terms.peer.in_immediate();
                Some(Immediate::new(to, line, part.into(), last, whole, low))
            }
        };
        let Source { address, region } = record.source();
        Some(PartWrite {
            message: MessageId(low8(at as u64)),
            part,
            rail,
            line,
            source: Source { address: address.wrapping_add(offset), region },
            target: advert.address.wrapping_add(offset),
            key: self.adverts.key(line, rail),
            len,
            immediate,
            moved: closed || again.is_some(),
        })
    }

    /// The part that [`next_part`](Self::next_part) returned was posted.
    #[inline]
    pub fn posted(&mut self, write: &PartWrite, account: &mut Account) {
        let at = write.message.index() % RECORDS;
        let again = self.lost.is_some() && self.posted_again(at, write.part);
        let State::Writing(writing) = &mut self.records[at].state else { return };
        writing.posted += u8::from(!again);
        if writing.is_posted() && (self.lost.is_none() || self.next_again(at).is_none()) {
            self.posting &= !bit_of(write.message);
        }
        self.in_flight += 1;
        account.loads.posted(write.rail, write.len);
        account.rails.posted(write.rail, write.immediate.is_some());
        if write.immediate.is_some() {
            self.parts.add(write.rail);
        }
    }

    /// A part's write has completed.
    #[inline]
    pub fn written(&mut self, message: MessageId, part: u8, account: &mut Account, now: Moment) {
        let at = message.index() % RECORDS;
        let Some(Carried { rail, len, immediate }) = self.part_ended(at, part, true, account)
        else {
            return;
        };
        account.speeds.ended(rail, len, &mut account.loads, now);
        if immediate {
            account.counts.completed.add(rail);
        }
        let State::Writing(writing) = &mut self.records[at].state else { return };
        writing.completed |= 1 << (part % 64);
        if writing.is_complete() {
            let writing = *writing;
            self.round_ended(at, writing);
        }
        if self.lost.is_some() {
            self.post_again();
        }
    }

    /// All parts of a round have completed.
    #[inline]
    pub(super) fn round_ended(&mut self, at: usize, writing: Writing) {
        let record = &mut self.records[at];
        let bit = bit_of(MessageId(low8(at as u64)));
        if !writing.is_fin() {
            record.state = State::Landed { fin: false };
        } else if let Some(round) = writing.next_round(record.len) {
            record.state = State::Writing(round);
            if self.may_post() {
                self.posting |= bit;
            }
        } else {
            record.state = State::FinPending;
            self.fins |= bit;
        }
    }

    /// A part's write has failed. If another rail is open, the part is retransmitted there once the receiver has
    /// reported that it lacks it; otherwise the connection fails, and a FIN reports that to the receiver.
    #[cold]
    pub fn write_failed(&mut self, message: MessageId, part: u8, code: i32, account: &mut Account) {
        let at = message.index() % RECORDS;
        if self.part_ended(at, part, false, account).is_none() {
            return;
        }
        let rail = self.rail(at, part);
        account.rails.failed(rail);
        if account.survives(rail) {
            return self.part_lost(at, part);
        }
        if let State::Writing(writing) = &mut self.records[at].state {
            writing.completed |= 1 << (part % 64);
            writing.failed = true;
        }
        self.posting &= !bit_of(message);
        self.stick(Fault::Transport { code });
        if self.may_post() || matches!(self.ending, Ending::Closing { peer: false }) {
            let Record { line, len, .. } = self.records[at];
            self.refused.get_or_insert(Refused {
                line,
                len,
                status: FinStatus::Failed,
                begun: true,
                pending: true,
            });
        }
    }

    /// Counts a part as no longer in flight; None if there is no such part.
    #[inline]
    fn part_ended(
        &mut self,
        at: usize,
        part: u8,
        well: bool,
        account: &mut Account,
    ) -> Option<Carried> {
        let record = &self.records[at];
        let State::Writing(writing) = &record.state else { return None };
        if part >= writing.posted || writing.completed >> part & 1 == 1 {
            return None;
        }
        if self.lost.is_some() && self.is_lost(at, part) {
            return None;
        }
        let (_, len) = writing.part(part, record.len);
        let (rail, immediate) = (self.rail(at, part), !writing.is_fin());
        let carried = account.loads.ended(rail, len) && account.rails.ended(rail, immediate, well);
        let Some(in_flight) = self.in_flight.checked_sub(1).filter(|_| carried) else {
            self.stick(Fault::Misuse("a part has completed that was not in flight"));
            return None;
        };
        self.in_flight = in_flight;
        Some(Carried { rail, len, immediate })
    }

    /// The rails of a message's parts.
    pub(super) fn rails_of(&self, at: usize, len: u64) -> RailSet {
        let parts = self.terms.cutting.split(len).parts.min(MAX_PARTS.into());
        (0..low8(parts)).map(|part| self.rail(at, part)).collect()
    }
}

/// Assigns each part to the rail that is expected to finish it first, counting the parts before it.
fn share(chosen: &mut [u64], split: Split, len: u64, mut loads: Loads) {
    chosen.fill(0);
    let parts = split.parts.min((chosen.len() * PARTS_PER_WORD) as u64);
    let most = parts.div_ceil(u64::from(loads.open_rails().max(1))).max(PARTS_PER_RAIL as u64);
    // Other rails take the parts that a slow rail does not.
    let most = if loads.is_uneven() { parts } else { most };
    let mut given = [0_u64; MAX_DATA_RAILS];
    let places = (0..).zip((0..PARTS_PER_WORD).cycle());
    for ((index, place), at) in places.zip((0..chosen.len()).flat_map(|at| [at; PARTS_PER_WORD])) {
        if index >= parts {
            break;
        }
        let (_, bytes) = split.part(index, len);
        let rail = loads.soonest(bytes, |rail| given[rail] < most);
        given[usize::from(rail) % MAX_DATA_RAILS] += 1;
        loads.posted(rail, bytes);
        chosen[at] |= u64::from(rail) << (4 * place);
    }
}

/// The rail and the length of each part of a message, as it would be sent now.
#[cfg(test)]
pub(crate) fn share_out(rails: usize, len: u64, loads: Loads) -> Vec<(u8, u64)> {
    let split = crate::split::Cutting::new(rails, 1, 1 << 30).unwrap().split(len);
    let mut chosen = vec![0; rail_words(rails)];
    share(&mut chosen, split, len, loads);
    let rail = |part: usize| chosen[part / PARTS_PER_WORD] >> (4 * (part % PARTS_PER_WORD)) & 15;
    (0..split.parts).zip(0..).map(|(part, at)| (low8(rail(at)), split.part(part, len).1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::ImmediateWidth;
    use crate::frame::{Advert, Frame, Lines};
    use crate::ids::Name;
    use crate::send::{Outgoing, SendPoll};
    use crate::split::Cutting;
    use crate::terms::Terms;

    #[test]
    fn no_rail_carries_more_than_four_parts_of_a_message_even_if_others_are_loaded() {
        for rails in 2..=16 {
            for busy in 0..rails {
                let mut loads = Loads::equal(rails);
                (0..rails)
                    .filter(|rail| *rail != busy)
                    .for_each(|rail| loads.posted(rail, 1 << 40));
                let parts = u64::from(rails) * PARTS_PER_RAIL as u64;
                let mut chosen = [0; 4];
                let chosen = &mut chosen[..rail_words(usize::from(rails))];
                share(chosen, Split { step: 1 << 20, parts }, parts << 20, loads);
                let mut given = [0; MAX_DATA_RAILS];
                for part in 0..usize::try_from(parts).unwrap() {
                    let rail = chosen[part / PARTS_PER_WORD] >> (4 * (part % PARTS_PER_WORD)) & 15;
                    given[usize::try_from(rail).unwrap()] += 1;
                }
                assert!(given[..usize::from(rails)].iter().all(|count| *count == 4), "{given:?}");
            }
        }
    }

    /// Of the message whose write fails, one part has completed and one is not posted.
    #[test]
    fn a_failed_write_ends_its_message_and_drops_no_part_of_another() {
        let cutting = Cutting::new(2, 1 << 20, 1 << 16).unwrap();
        let immediates = ImmediateWidth::Eight;
        let terms = Terms { cutting, immediates, ..Terms::of_two_rails(Name::default()) };
        let (mut flow, mut account) = (SendFlow::new(terms), Account::new(2));
        for (line, parts) in [(0, 1), (1, 4), (2, 1)] {
            let advert = Advert::of_line(terms.peer, Line::new(line), parts << 16, &[0, 0]);
            flow.received(&Frame::Advert(advert), &mut account).unwrap();
            let (len, source) = (parts << 16, Source::default());
            flow.submit(&Outgoing { tag: 0, len, source, host: false }, 0, &mut account).unwrap();
        }
        let next = |flow: &mut SendFlow, account: &mut Account| {
            let write = flow.next_part(account).unwrap();
            flow.posted(&write, account);
            write
        };
        let [first, early, done, failed] = [(); 4].map(|()| next(&mut flow, &mut account));
        assert_eq!((early.part, done.part, failed.part), (0, 1, 2));
        // The second completion of the same part is ignored.
        for (write, in_flight) in [(done, 3), (done, 3), (early, 2)] {
            flow.written(write.message, write.part, &mut account, Moment::default());
            assert_eq!((flow.in_flight(), flow.fault()), (in_flight, None));
        }
        let lines = Lines { to: terms.peer, first: Line::FIRST, set: 0b111 };
        flow.received(&Frame::Withdraw(lines), &mut account).unwrap();
        flow.write_failed(failed.message, failed.part, 5, &mut account);
        assert!(flow.unfinished().eq([first.message]));
        let other = next(&mut flow, &mut account);
        assert_eq!((other.line, flow.has_parts()), (Line::new(2), false));
        assert_eq!(flow.poll(failed.message), SendPoll::Failed(Fault::Withdrawn));
        for write in [first, other] {
            assert_eq!(flow.poll(write.message), SendPoll::Pending);
        }
    }

    #[test]
    fn an_immediate_has_a_length_only_where_eight_bytes_travel_and_the_receive_is_not_filled() {
        use ImmediateWidth::{Eight, Four};
        for (immediates, len, length) in
            [(Eight, 700, 700), (Eight, 1000, 0), (Four, 700, 0), (Four, 1000, 0)]
        {
            let terms = Terms::of_two_rails(Name::default());
            let terms = Terms { immediates, true_lengths: true, ..terms };
            let (mut flow, mut account) = (SendFlow::new(terms), Account::new(2));
            let advert = Advert::of_line(terms.peer, Line::FIRST, 1000, &[0, 0]);
            flow.received(&Frame::Advert(advert), &mut account).unwrap();
            let source = Source::default();
            flow.submit(&Outgoing { tag: 0, len, source, host: false }, 0, &mut account).unwrap();
            let immediate = flow.next_part(&account).unwrap().immediate.unwrap();
            assert_eq!(immediate.length(), length, "{len} of 1000 bytes, {immediates:?}");
        }
    }
}
