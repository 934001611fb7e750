//! Stall analysis: what a connection waits for, and, with the peer's answer, which part of the system is late.
//!
//! Called only when a wait is long: the endpoint checks periodically.

/// What a connection waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitsFor {
    /// Neither the peer nor the fabric.
    #[default]
    Nothing,
    /// A sender: a receive that the peer posts, and its advert.
    Receive,
    /// A sender: other messages of a group of receives, which its own program sends. No receive has this message's tag until then.
    Group,
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
    /// A connect waits for the peer's accept.
    Accept,
}

/// The progress of one end of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionState {
    pub waits_for: WaitsFor,
    /// NCCL has a request open here, or has a refused call to repeat.
    pub open: bool,
    /// Messages that this end has begun: sent, or receives posted. The count wraps.
    pub begun: u32,
    /// Messages that are complete, as far as this end knows. The count wraps.
    pub done: u32,
}

/// What is known of the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct There {
    /// The other end does not answer QUERY.
    pub silent: bool,
    /// NCCL has not polled there for long; the keeper answers.
    pub idle: bool,
    /// Packets that were written and that the other end has not consumed.
    pub unconsumed: u32,
    /// The other end's state of this connection.
    pub state: Option<ConnectionState>,
    /// A data rail on which the other end has completed more parts than have arrived here.
    pub missing: Option<u8>,
    /// Earlier waits on this connection ended, but late.
    pub slow: bool,
}

/// The part of the system that is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// The peer does not answer: its process is stopped or gone, or unreachable.
    Peer,
    /// NCCL at the peer has requests open, and does not poll.
    Caller,
    /// Data on a rail; None if the rail is unknown.
    Data { rail: Option<u8> },
    /// The peer reads slowly: it does not consume packets, or repeatedly posts receives late.
    Reader,
    /// Packets that the fabric does not accept: of this side (`ours`) or of the peer.
    Packets { ours: bool },
    /// The peer has posted no receive.
    Receive,
    /// This end's program has not sent the other messages of a group of receives.
    Group,
    /// The peer has posted no receive, and the credit for messages without an advert is used up.
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
            Self::Caller
                | Self::Receive
                | Self::Group
                | Self::Credit
                | Self::Send
                | Self::Accept
                | Self::Nothing
        )
    }
}

/// What is late, after this end has waited for long.
pub fn late(here: &ConnectionState, there: &There) -> Late {
    let state = there.state.unwrap_or_default();
    if there.silent {
        return Late::Peer;
    }
    // Operations in flight do not depend on NCCL's polls.
    match here.waits_for {
        WaitsFor::Data { rail: Some(rail) } => return Late::Data { rail: Some(rail) },
        WaitsFor::Group => return Late::Group,
        WaitsFor::Room if there.unconsumed > 0 => return Late::Reader,
        WaitsFor::Room => return Late::Packets { ours: true },
        WaitsFor::Message | WaitsFor::Data { rail: None } if there.missing.is_some() => {
            return Late::Data { rail: there.missing };
        }
        _ => {}
    }
    if there.idle && state.open {
        return Late::Caller;
    }
    let is_ahead = is_after(state.begun, here.begun);
    match (here.waits_for, state.waits_for) {
        (WaitsFor::Message | WaitsFor::Data { .. }, WaitsFor::Data { rail }) => Late::Data { rail },
        (WaitsFor::Data { .. }, _) => Late::Data { rail: None },
        // The frames that this end waits for are on their way from the peer.
        (WaitsFor::Receive | WaitsFor::Credit, _) if is_ahead => Late::Packets { ours: false },
        (WaitsFor::Message, WaitsFor::Room) => Late::Packets { ours: false },
        (WaitsFor::Message, WaitsFor::Receive) => Late::Packets { ours: true },
        (WaitsFor::Receive | WaitsFor::Credit, _) if there.slow => Late::Reader,
        (WaitsFor::Receive, _) => Late::Receive,
        (WaitsFor::Credit, _) => Late::Credit,
        (WaitsFor::Message, _) => Late::Send,
        (WaitsFor::Done, _) => Late::Done,
        (WaitsFor::Accept, _) => Late::Accept,
        (WaitsFor::Nothing | WaitsFor::Room | WaitsFor::Group, _) => Late::Nothing,
    }
}

fn is_after(one: u32, other: u32) -> bool {
    one.wrapping_sub(other).cast_signed() > 0
}

impl WaitsFor {
    /// Whether a program decides when the wait ends.
    pub fn is_of_program(self) -> bool {
        matches!(self, Self::Receive | Self::Group | Self::Credit | Self::Message)
    }

    /// The encoding in a letter: a number; and the rail + 1, or 0. The peer has nothing to do with [`WaitsFor::Group`].
    pub(crate) const fn code(self) -> (u8, u8) {
        match self {
            Self::Nothing | Self::Group => (0, 0),
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

    /// All that a letter has.
    const ALL_WAITS: [WaitsFor; 9] = [
        WaitsFor::Nothing,
        WaitsFor::Receive,
        WaitsFor::Credit,
        WaitsFor::Room,
        WaitsFor::Data { rail: None },
        WaitsFor::Data { rail: Some(3) },
        WaitsFor::Done,
        WaitsFor::Message,
        WaitsFor::Accept,
    ];

    fn here(waits_for: WaitsFor) -> ConnectionState {
        ConnectionState { waits_for, open: true, begun: 5, done: 4 }
    }

    fn says(waits_for: WaitsFor) -> There {
        let state =
            ConnectionState { waits_for, open: waits_for != WaitsFor::Nothing, begun: 5, done: 5 };
        There { state: Some(state), ..There::default() }
    }

    #[test]
    fn a_peer_that_does_not_answer_is_late_in_every_wait() {
        for waits_for in ALL_WAITS {
            let there = There { silent: true, ..says(WaitsFor::Message) };
            assert_eq!(late(&here(waits_for), &there), Late::Peer);
        }
    }

    #[test]
    fn a_sender_whose_other_messages_of_the_group_are_missing_is_late_itself_and_its_peer_knows() {
        let sender = here(WaitsFor::Group);
        let there = There { idle: true, ..says(WaitsFor::Message) };
        assert_eq!(late(&sender, &there), Late::Group);
        let (code, rail) = sender.waits_for.code();
        let at_the_peer = says(WaitsFor::of((code, rail)).unwrap());
        assert_eq!(late(&here(WaitsFor::Message), &at_the_peer), Late::Send);
    }

    #[test]
    fn a_caller_that_does_not_poll_is_late_only_if_it_has_requests_open() {
        for (waits_for, without) in [
            (WaitsFor::Receive, Late::Receive),
            (WaitsFor::Credit, Late::Credit),
            (WaitsFor::Message, Late::Send),
            (WaitsFor::Done, Late::Done),
        ] {
            let mut there = There { idle: true, ..says(WaitsFor::Nothing) };
            assert_eq!(late(&here(waits_for), &there), without);
            there.state.as_mut().unwrap().open = true;
            assert_eq!(late(&here(waits_for), &there), Late::Caller);
            there.idle = false;
            assert_eq!(late(&here(waits_for), &there), without);
        }
    }

    #[test]
    fn data_is_late_on_the_rail_that_either_end_knows_of() {
        let rail = Late::Data { rail: Some(3) };
        let ours = here(WaitsFor::Data { rail: Some(3) });
        assert_eq!(late(&ours, &There { idle: true, ..says(WaitsFor::Message) }), rail);
        let waits = [here(WaitsFor::Message), here(WaitsFor::Data { rail: None })];
        for here in waits {
            let there = There { missing: Some(3), ..says(WaitsFor::Nothing) };
            assert_eq!(late(&here, &there), rail);
            assert_eq!(late(&here, &says(WaitsFor::Data { rail: Some(3) })), rail);
        }
        assert_eq!(late(&waits[1], &says(WaitsFor::Nothing)), Late::Data { rail: None });
    }

    #[test]
    fn packets_are_late_where_they_are_unread_unsent_or_under_way() {
        let unread = There { unconsumed: 2, ..says(WaitsFor::Nothing) };
        assert_eq!(late(&here(WaitsFor::Room), &unread), Late::Reader);
        assert_eq!(
            late(&here(WaitsFor::Room), &says(WaitsFor::Nothing)),
            Late::Packets { ours: true }
        );
        let mut ahead = says(WaitsFor::Message);
        ahead.state.as_mut().unwrap().begun = 6;
        let under_way = Late::Packets { ours: false };
        assert_eq!(late(&here(WaitsFor::Receive), &ahead), under_way, "the peer has posted more");
        assert_eq!(late(&here(WaitsFor::Message), &says(WaitsFor::Room)), under_way);
    }

    #[test]
    fn a_peer_whose_receives_come_late_one_after_the_other_reads_slowly() {
        for waits_for in [WaitsFor::Receive, WaitsFor::Credit] {
            let there = There { slow: true, ..says(WaitsFor::Nothing) };
            assert_eq!(late(&here(waits_for), &there), Late::Reader);
        }
        let there = There { slow: true, ..says(WaitsFor::Nothing) };
        assert_eq!(late(&here(WaitsFor::Message), &there), Late::Send);
    }

    #[test]
    fn only_callers_are_late_if_the_protocol_and_the_fabric_are_not() {
        for (waits_for, who) in [
            (WaitsFor::Receive, Late::Receive),
            (WaitsFor::Credit, Late::Credit),
            (WaitsFor::Message, Late::Send),
            (WaitsFor::Accept, Late::Accept),
            (WaitsFor::Nothing, Late::Nothing),
        ] {
            let late = late(&here(waits_for), &says(WaitsFor::Nothing));
            assert_eq!(late, who);
            assert!(late.is_of_callers());
        }
    }

    #[test]
    fn neither_the_protocol_nor_the_fabric_is_late_if_a_caller_is() {
        let of_callers =
            [Late::Caller, Late::Receive, Late::Group, Late::Credit, Late::Send, Late::Accept];
        assert!(of_callers.into_iter().chain([Late::Nothing]).all(Late::is_of_callers));
        let others = [
            Late::Peer,
            Late::Data { rail: None },
            Late::Reader,
            Late::Packets { ours: true },
            Late::Done,
        ];
        assert!(!others.into_iter().any(Late::is_of_callers));
    }

    #[test]
    fn programs_end_waits_for_receives_and_messages() {
        let ends = [WaitsFor::Group].into_iter().chain(ALL_WAITS).filter(|it| it.is_of_program());
        assert!(ends.eq([WaitsFor::Group, WaitsFor::Receive, WaitsFor::Credit, WaitsFor::Message]));
    }

    #[test]
    fn waits_for_is_read_as_it_was_written() {
        for waits_for in ALL_WAITS {
            assert_eq!(WaitsFor::of(waits_for.code()), Some(waits_for));
        }
        let codes = (0..=u8::MAX).flat_map(|code| (0..=u8::MAX).map(move |rail| (code, rail)));
        for code in codes {
            if let Some(waits_for) = WaitsFor::of(code) {
                assert_eq!(waits_for.code(), code);
            }
        }
    }
}
