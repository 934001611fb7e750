//! What becomes of a two-sided message, as real providers have it now and then: its completion says success, and it never arrives, or
//! it arrives twice.

use super::flight::{Event, Operation, Source};
use super::post::Kind;
use super::{Engine, Outcome};
use crate::faults::Fault;

/// Decided when a message is accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fate {
    #[default]
    Arrives,
    Lost,
    /// And once more, so much later.
    Doubled(u64),
}

impl Engine {
    /// By the script, which counts messages from 1, or by chance.
    pub(super) fn fate(&mut self, kind: Kind) -> Fate {
        if kind != Kind::Send {
            return Fate::Arrives;
        }
        self.messages += 1;
        let number = self.messages;
        let scripted = self.faults.iter().find_map(|fault| match fault {
            Fault::Lose(which) if *which == number => Some(Fate::Lost),
            Fault::Double(which, later) if *which == number => Some(Fate::Doubled(*later)),
            _ => None,
        });
        let fate = scripted.unwrap_or_else(|| self.chance_of_a_message());
        match fate {
            Fate::Arrives => {}
            Fate::Lost => self.counters.count("faults.lose"),
            Fate::Doubled(_) => self.counters.count("faults.double"),
        }
        fate
    }

    fn chance_of_a_message(&mut self) -> Fate {
        if self.random.chance(self.settings.lose_permille) {
            Fate::Lost
        } else if self.random.chance(self.settings.double_permille) {
            Fate::Doubled(self.random.up_to(DOUBLE_TURNS_MAX))
        } else {
            Fate::Arrives
        }
    }

    /// Sends a second copy of what arrives now on its way, `later`.
    pub(super) fn double(&mut self, original: &Operation, later: u64) {
        let Source::Taken(bytes) = &original.source else { return };
        let copy = Operation {
            source: Source::Taken(bytes.clone()),
            print: None,
            region: None,
            held: None,
            read_device: None,
            // Its end is not reported.
            silent: true,
            signalled: false,
            reported: true,
            fate: Fate::Arrives,
            result: Outcome::Ok(()),
            ..*original
        };
        if let Some(endpoint) = self.endpoints.get_mut(copy.initiator) {
            endpoint.outstanding += 1;
        }
        self.last_operation += 1;
        let id = self.last_operation;
        self.operations.insert(id, copy);
        self.at(self.clock + later, Event::Land(id));
    }

    /// How many two-sided messages were accepted: what their faults are numbered by.
    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }
}

/// How much later a copy comes that chance has made.
const DOUBLE_TURNS_MAX: u64 = 2000;
