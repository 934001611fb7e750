//! What a receiver waits for: see [`WaitsFor`].

use super::ReceiveFlow;
use super::slot::State;
use crate::stall::{ConnectionState, WaitsFor};
use crate::window::WINDOW;

impl ReceiveFlow {
    /// The receiver's progress, and what its oldest incomplete receive waits for.
    pub fn connection_state(&self) -> ConnectionState {
        let waits_for = match self.slot(self.done).state {
            // The receive's advert has not left, and the sender may need it.
            State::Posted if !self.advertised.is_after(self.done) => WaitsFor::Room,
            State::Posted => WaitsFor::Message,
            State::Filling { .. } => WaitsFor::Data { rail: None },
            State::Copying(_) | State::Free | State::Complete { .. } => WaitsFor::Nothing,
        };
        let open = self.slots.iter().any(|slot| slot.state != State::Free);
        ConnectionState { waits_for, open, begun: self.next.number(), done: self.done.number() }
    }

    /// Whether the window has room for another receive.
    pub fn has_room(&self) -> bool {
        self.next.distance(self.oldest()) < WINDOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Account;
    use crate::capabilities::ImmediateWidth;
    use crate::connection::Which;
    use crate::ids::{Moment, Name};
    use crate::immediate::Immediate;
    use crate::receive::{Posting, Receive, ReceivePoll};
    use crate::terms::Terms;

    const NOW: Moment = Moment::from_nanos(1);

    #[test]
    fn a_receiver_waits_for_room_for_its_advert_then_for_a_message_then_for_the_rest_of_it() {
        let immediates = ImmediateWidth::Eight;
        let terms = Terms { immediates, ..Terms::of_two_rails(Name::default()) };
        let (mut flow, mut account) = (ReceiveFlow::new(terms), Account::new(2));
        let said = |flow: &ReceiveFlow| {
            let ConnectionState { waits_for, open, begun, done } = flow.connection_state();
            (waits_for, open, begun, done)
        };
        assert_eq!(said(&flow), (WaitsFor::Nothing, false, 0, 0));
        let receive = Receive { len: 9, ..Receive::default() };
        let line = flow.post(&[receive], &[1, 2], Posting::default(), &account, NOW).unwrap();
        assert_eq!(said(&flow), (WaitsFor::Room, true, 1, 0));
        flow.next_frame(Which::Adverts, 100, &mut account, NOW).unwrap();
        assert_eq!(said(&flow), (WaitsFor::Message, true, 1, 0));
        for (part, waits_for, done) in
            [(0, WaitsFor::Data { rail: None }, 0), (1, WaitsFor::Nothing, 1)]
        {
            let own = flow.terms.own.in_immediate();
            let immediate = Immediate::new(own, line.unwrap(), part, part == 1, true, 0);
            flow.arrived(0, immediate, 9, &mut account, NOW);
            assert_eq!(said(&flow), (waits_for, true, 1, done), "part {part}");
        }
        assert_eq!(flow.poll(line.unwrap()), ReceivePoll::Done { count: 1 });
        assert_eq!(said(&flow), (WaitsFor::Nothing, false, 1, 1));
    }

    #[test]
    fn the_window_has_room_for_64_receives() {
        let terms = Terms::of_two_rails(Name::default());
        let (mut flow, account) = (ReceiveFlow::new(terms), Account::new(2));
        for _ in 0..64 {
            assert!(flow.has_room());
            let posted =
                flow.post(&[Receive::default()], &[1, 2], Posting::default(), &account, NOW);
            assert!(posted.unwrap().is_some());
        }
        assert!(!flow.has_room());
        let posted = flow.post(&[Receive::default()], &[1, 2], Posting::default(), &account, NOW);
        assert_eq!(posted, Ok(None));
    }
}
