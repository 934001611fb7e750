//! Faults of two-sided messages that real providers show occasionally: the send completes with success, and the message never arrives, or
//! arrives twice.

use super::flight::Event;
use super::operation::{Fate, Kind, Operation, Source};
use super::{Engine, Id, Outcome};
use crate::faults::Fault;

impl Engine {
    /// Decides by the script, which counts messages from 1, or by chance.
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
            Fate::Doubled(self.random.up_to(DOUBLE_DELAY_MAX))
        } else {
            Fate::Arrives
        }
    }

    /// Starts a second copy of a message that arrives now; it arrives `later`.
    pub(super) fn double(&mut self, original: &Operation, later: u64) {
        let Source::Taken(bytes) = &original.source else { return };
        let copy = Operation {
            source: Source::Taken(bytes.clone()),
            print: None,
            region: None,
            held: None,
            read_device: None,
            // The copy has no completion.
            silent: true,
            signalled: false,
            reported: true,
            fails_late: false,
            fate: Fate::Arrives,
            result: Outcome::Ok(()),
            ..*original
        };
        if let Some(endpoint) = self.endpoints.get_mut(copy.initiator) {
            endpoint.outstanding += 1;
        }
        self.last_operation += 1;
        let id = Id::of(self.last_operation);
        self.operations.insert(id, copy);
        self.at(self.clock + later, Event::Land(id));
    }

    /// The number of accepted two-sided messages, by which the script numbers their faults.
    pub(crate) fn messages(&self) -> u64 {
        self.messages
    }
}

/// The longest delay of a copy that chance makes.
const DOUBLE_DELAY_MAX: u64 = 2000;
