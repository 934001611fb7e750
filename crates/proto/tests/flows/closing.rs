//! Ends: closes by either side at any time, withdrawn receives, messages that are too long, writes that fail.

use std::time::Duration;

use proto::Fault;

use crate::pair::{Pair, Receiving, Sending};

/// What ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    SenderCloses,
    ReceiverCloses,
    BothClose,
    Withdraw,
    WriteFails,
}

impl Pair {
    /// Both sides close at last, whatever happened before, and everything lands and completes.
    pub(crate) fn close_to_rest(&mut self) -> bool {
        for round in 0..400 {
            self.now = self.now.plus(Duration::from_micros(100));
            if round == 5 {
                self.sender.close();
                let account = &mut self.accounts[1];
                self.receiver.close(account);
            }
            // A side that has closed posts no more parts.
            while self.sender.next_part(&self.accounts[0]).is_some() {
                self.post_part();
            }
            (0..4).for_each(|_| self.use_provider());
            self.pull_sender();
            self.pull_receiver();
            while !(self.frames[0].is_empty() && self.frames[1].is_empty()) {
                self.deliver(0);
                self.deliver(1);
            }
            while !self.wire.is_empty() {
                self.land();
                self.complete();
                self.guard();
            }
            while !self.left.is_empty() {
                self.packet_left();
            }
            self.poll();
            self.guard();
            if self.sender.is_over() && self.receiver.is_over() {
                assert!(self.provider_is_empty(), "the tags are free for others");
                return true;
            }
        }
        false
    }

    /// From now on nothing may land in memory that the receiver reports as no longer exposed.
    pub(crate) fn guard(&mut self) {
        if self.receiver.fault().is_some() && self.receiver.exposed() == 0 {
            for buffer in &mut self.receives {
                buffer.closed = true;
            }
        }
    }

    pub(crate) fn end(&mut self, how: End) {
        if matches!(how, End::SenderCloses | End::BothClose) {
            self.sender.close();
        }
        if matches!(how, End::ReceiverCloses | End::BothClose) {
            self.receiver.close(&mut self.accounts[1]);
        }
        if how == End::Withdraw {
            self.receiver.withdraw();
        }
        if how == End::WriteFails
            && let Some(at) = (0..self.wire.len()).find(|at| !self.wire[*at].completed)
        {
            self.wire[at].completed = true;
            let write = self.wire[at].write;
            self.sender.write_failed(write.message, write.part, 5, &mut self.accounts[0]);
            self.sender.write_failed(write.message, write.part, 6, &mut self.accounts[0]);
            assert_eq!(
                self.sender.fault(),
                Some(Fault::Transport { code: 5 }),
                "the first cause is kept"
            );
            self.forget_ended();
        }
    }

    /// What was reported before the end stays valid; everything else is an error on both ends, or complete.
    pub(crate) fn check_ended(&self) {
        assert_eq!(self.sender.in_flight(), 0);
        assert_eq!(
            self.accounts[0].sent, 0,
            "the credit of a connection is returned when it is over"
        );
        assert_eq!(self.accounts[1].parking.cost(), 0);
        assert_eq!(self.accounts[1].unreported, 0);
        assert!((0..16).all(|rail| self.accounts[0].loads.queued(rail) == 0));
        let open = |buffer: &&crate::pair::Buffer| buffer.state == Receiving::Waiting;
        // Receives that were never posted have no state.
        let never = self.receives.len() - self.posted_count();
        assert_eq!(self.receives.iter().filter(open).count(), never);
        for send in &self.sends {
            assert!(!matches!(send.state, Sending::Under(_)), "every send has an end");
        }
    }

    fn posted_count(&self) -> usize {
        self.program.groups[..self.next_group].iter().map(Vec::len).sum()
    }
}
