//! Stall analysis: what a connection waits for, and, with the peer's answer, which part of the system is late.
//!
//! Called only when a wait is long: the endpoint checks periodically.

/// What a connection waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Want {
    /// Neither the peer nor the fabric.
    #[default]
    Nothing,
    /// A sender: a receive that the peer posts, and its advert.
    Receive,
    /// A sender: credit for messages without an advert, all of which is in use.
    Credit,
    /// Either side: room for packets, because packets have not left, or the peer has not consumed them.
    Room,
    /// Missing parts of a message; a sender knows their rail.
    Data { rail: Option<u8> },
    /// A sender: DONE, the receiver's report that all has arrived.
    Done,
    /// A receiver: a message for a posted receive.
    Message,
    /// A connect: the peer's accept.
    Accept,
}

/// The progress of one end of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    pub want: Want,
    /// NCCL has a request open here, or was there to try again.
    pub open: bool,
    /// Messages that this end has begun: sent, or receives posted. The count wraps.
    pub begun: u32,
    /// Those of them that are complete, as far as this end knows. The count wraps.
    pub done: u32,
}

/// What is known of the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct There {
    /// It does not answer QUERY.
    pub silent: bool,
    /// NCCL has not polled there for long; its keeper answers.
    pub idle: bool,
    /// Packets that were written and that it has not consumed.
    pub unconsumed: u32,
    /// Its own view of this connection.
    pub sight: Option<Sight>,
    /// A data rail on which it has completed more parts than have arrived here.
    pub missing: Option<u8>,
    /// Earlier waits on this connection ended, but late.
    pub slow: bool,
}

/// What is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// The peer does not answer: its process is stopped or gone, or unreachable.
    Peer,
    /// NCCL at the peer has requests open, and does not poll.
    Caller,
    /// Data on a rail; None if the rail is unknown.
    Data { rail: Option<u8> },
    /// The peer reads slowly: it does not consume packets, or posts receives late again and again.
    Reader,
    /// Packets that the fabric does not accept: of this side (`ours`) or of the peer.
    Packets { ours: bool },
    /// The peer has posted no receive.
    Receive,
    /// The same, and the credit for messages without an advert is used up.
    Credit,
    /// The peer has sent nothing.
    Send,
    /// The peer has not reported the arrival of a message.
    Done,
    /// The peer's listener has not accepted.
    Accept,
    /// Nothing is known to be late.
    Nothing,
}

impl Late {
    /// Whether only NCCL is late, and neither the protocol nor the fabric.
    pub fn is_of_callers(self) -> bool {
        matches!(
            self,
            Self::Caller | Self::Receive | Self::Credit | Self::Send | Self::Accept | Self::Nothing
        )
    }
}

/// What is late, after this end has waited for long.
pub fn late(here: &Sight, there: &There) -> Late {
    let sight = there.sight.unwrap_or_default();
    if there.silent {
        return Late::Peer;
    }
    // What is in flight does not depend on NCCL's polls.
    match here.want {
        Want::Data { rail: Some(rail) } => return Late::Data { rail: Some(rail) },
        Want::Room if there.unconsumed > 0 => return Late::Reader,
        Want::Room => return Late::Packets { ours: true },
        Want::Message | Want::Data { rail: None } if there.missing.is_some() => {
            return Late::Data { rail: there.missing };
        }
        _ => {}
    }
    if there.idle && sight.open {
        return Late::Caller;
    }
    let is_ahead = is_after(sight.begun, here.begun);
    match (here.want, sight.want) {
        (Want::Message | Want::Data { .. }, Want::Data { rail }) => Late::Data { rail },
        (Want::Data { .. }, _) => Late::Data { rail: None },
        // What this end waits for is on its way from the peer.
        (Want::Receive | Want::Credit, _) if is_ahead => Late::Packets { ours: false },
        (Want::Message, Want::Room) => Late::Packets { ours: false },
        (Want::Message, Want::Receive) => Late::Packets { ours: true },
        (Want::Receive | Want::Credit, _) if there.slow => Late::Reader,
        (Want::Receive, _) => Late::Receive,
        (Want::Credit, _) => Late::Credit,
        (Want::Message, _) => Late::Send,
        (Want::Done, _) => Late::Done,
        (Want::Accept, _) => Late::Accept,
        (Want::Nothing | Want::Room, _) => Late::Nothing,
    }
}

fn is_after(one: u32, other: u32) -> bool {
    one.wrapping_sub(other).cast_signed() > 0
}

impl Want {
    /// The encoding in a letter: a number; and the rail + 1, or 0.
    pub(crate) const fn code(self) -> (u8, u8) {
        match self {
            Self::Nothing => (0, 0),
            Self::Receive => (1, 0),
            Self::Credit => (2, 0),
            Self::Room => (3, 0),
            Self::Data { rail: None } => (4, 0),
            Self::Data { rail: Some(rail) } => (4, rail.saturating_add(1)),
            Self::Done => (5, 0),
            Self::Message => (6, 0),
            Self::Accept => (7, 0),
        }
    }

    /// None if there is no such code.
    pub(crate) const fn of(code: (u8, u8)) -> Option<Self> {
        Some(match code {
            (0, 0) => Self::Nothing,
            (1, 0) => Self::Receive,
            (2, 0) => Self::Credit,
            (3, 0) => Self::Room,
            (4, 0) => Self::Data { rail: None },
            (4, rail) => Self::Data { rail: Some(rail - 1) },
            (5, 0) => Self::Done,
            (6, 0) => Self::Message,
            (7, 0) => Self::Accept,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTS: [Want; 9] = [
        Want::Nothing,
        Want::Receive,
        Want::Credit,
        Want::Room,
        Want::Data { rail: None },
        Want::Data { rail: Some(3) },
        Want::Done,
        Want::Message,
        Want::Accept,
    ];

    fn here(want: Want) -> Sight {
        Sight { want, open: true, begun: 5, done: 4 }
    }

    fn says(want: Want) -> There {
        let sight = Sight { want, open: want != Want::Nothing, begun: 5, done: 5 };
        There { sight: Some(sight), ..There::default() }
    }

    #[test]
    fn a_peer_that_does_not_answer_is_late_whatever_is_waited_for() {
        for want in WANTS {
            let there = There { silent: true, ..says(Want::Message) };
            assert_eq!(late(&here(want), &there), Late::Peer);
        }
    }

    #[test]
    fn a_caller_that_does_not_poll_is_late_only_where_it_has_something_to_poll() {
        for (want, without) in [
            (Want::Receive, Late::Receive),
            (Want::Credit, Late::Credit),
            (Want::Message, Late::Send),
            (Want::Done, Late::Done),
        ] {
            let mut there = There { idle: true, ..says(Want::Nothing) };
            assert_eq!(late(&here(want), &there), without);
            there.sight.as_mut().unwrap().open = true;
            assert_eq!(late(&here(want), &there), Late::Caller);
            there.idle = false;
            assert_eq!(late(&here(want), &there), without);
        }
    }

    #[test]
    fn data_is_late_on_the_rail_that_either_end_knows_of() {
        let rail = Late::Data { rail: Some(3) };
        let ours = here(Want::Data { rail: Some(3) });
        assert_eq!(late(&ours, &There { idle: true, ..says(Want::Message) }), rail);
        let waits = [here(Want::Message), here(Want::Data { rail: None })];
        for here in waits {
            let there = There { missing: Some(3), ..says(Want::Nothing) };
            assert_eq!(late(&here, &there), rail);
            assert_eq!(late(&here, &says(Want::Data { rail: Some(3) })), rail);
        }
        assert_eq!(late(&waits[1], &says(Want::Nothing)), Late::Data { rail: None });
    }

    #[test]
    fn packets_are_late_where_they_are_unread_unsent_or_under_way() {
        let unread = There { unconsumed: 2, ..says(Want::Nothing) };
        assert_eq!(late(&here(Want::Room), &unread), Late::Reader);
        assert_eq!(late(&here(Want::Room), &says(Want::Nothing)), Late::Packets { ours: true });
        let mut ahead = says(Want::Message);
        ahead.sight.as_mut().unwrap().begun = 6;
        let under_way = Late::Packets { ours: false };
        assert_eq!(late(&here(Want::Receive), &ahead), under_way, "it has posted more");
        assert_eq!(late(&here(Want::Message), &says(Want::Room)), under_way);
    }

    #[test]
    fn a_peer_whose_receives_come_late_one_after_the_other_reads_slowly() {
        for want in [Want::Receive, Want::Credit] {
            let there = There { slow: true, ..says(Want::Nothing) };
            assert_eq!(late(&here(want), &there), Late::Reader);
        }
        let there = There { slow: true, ..says(Want::Nothing) };
        assert_eq!(late(&here(Want::Message), &there), Late::Send);
    }

    #[test]
    fn only_callers_are_late_where_the_protocol_has_done_its_part() {
        for (want, who) in [
            (Want::Receive, Late::Receive),
            (Want::Credit, Late::Credit),
            (Want::Message, Late::Send),
            (Want::Accept, Late::Accept),
            (Want::Nothing, Late::Nothing),
        ] {
            let late = late(&here(want), &says(Want::Nothing));
            assert_eq!(late, who);
            assert!(late.is_of_callers());
        }
    }

    #[test]
    fn a_want_is_read_as_it_was_written() {
        for want in WANTS {
            assert_eq!(Want::of(want.code()), Some(want));
        }
        let codes = (0..=u8::MAX).flat_map(|code| (0..=u8::MAX).map(move |rail| (code, rail)));
        for code in codes {
            if let Some(want) = Want::of(code) {
                assert_eq!(want.code(), code);
            }
        }
    }
}
