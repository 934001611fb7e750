//! Which communicator owns which object, on an endpoint that several share because a NIC has no more endpoints.
//!
//! A communicator that is finalized closes what it has left open, and nothing of the others.

use std::collections::HashMap;

use super::Endpoint;
use crate::error::Result;
use crate::token::{Token, TokenKind};

/// A communicator, by a number that no other of the process has had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Communicator(pub(crate) u32);

/// The communicators of one endpoint.
#[derive(Debug, Default)]
pub(super) struct Communicators {
    /// The one whose call this is.
    calling: Communicator,
    /// The one that it was opened for: what is not listed is this one's, so an endpoint that is not shared lists nothing.
    first: Communicator,
    of_others: HashMap<Token, Communicator>,
}

impl Communicators {
    /// The caller has made this.
    pub(super) fn made(&mut self, token: Token) {
        if self.calling != self.first {
            self.of_others.insert(token, self.calling);
        }
    }

    /// It is closed.
    pub(super) fn closed(&mut self, token: Token) {
        self.of_others.remove(&token);
    }

    fn of(&self, token: Token) -> Communicator {
        self.of_others.get(&token).copied().unwrap_or(self.first)
    }
}

impl Endpoint {
    /// It was opened for this communicator.
    pub(crate) fn belongs_to(&mut self, communicator: Communicator) {
        self.communicators.first = communicator;
    }

    /// This communicator calls.
    pub(crate) fn called_by(&mut self, communicator: Communicator) {
        self.communicators.calling = communicator;
    }

    /// What came of `parent` is of the same communicator.
    pub(crate) fn inherits(&mut self, parent: Token, child: Token) {
        self.communicators.calling = self.communicators.of(parent);
        self.communicators.made(child);
    }

    /// A communicator leaves, while others stay: what it has left open is closed. The answer names its registrations, which are to be
    /// given back like any.
    pub(crate) fn leaves(&mut self, communicator: Communicator) -> Vec<Token> {
        let named = |kind, (slot, generation)| Token::new(kind, self.number, generation, slot, 0);
        let listeners =
            self.listeners.keys().into_iter().map(|key| named(TokenKind::Listener, key));
        let connects = self.connects.keys().into_iter().map(|key| named(TokenKind::Connect, key));
        let regions = self.hands.regions.keys();
        let regions = regions.into_iter().map(|key| named(TokenKind::Region, key));
        let all = listeners.chain(connects).chain(self.open_comms()).chain(regions);
        let its: Vec<_> =
            all.filter(|token| self.communicators.of(*token) == communicator).collect();
        let (regions, others): (Vec<_>, Vec<_>) =
            its.into_iter().partition(|token| token.is(TokenKind::Region));
        for token in others {
            // What is closed already, and drains, says so.
            if let Err(error) = self.close_left(token) {
                log::debug!("device {}: at the end of a communicator: {error}", self.label());
            }
        }
        regions
    }

    fn close_left(&mut self, token: Token) -> Result<()> {
        if token.is(TokenKind::Listener) {
            return self.close_listen(token);
        }
        if token.is(TokenKind::Receiver) {
            return self.close_receive(token);
        }
        if token.is(TokenKind::Connect) {
            // What a panic has left is asked for nothing more.
            self.check_intact()?;
            self.abandon_connect((token.slot(), token.generation()));
            return Ok(());
        }
        self.close_send(token)
    }
}
