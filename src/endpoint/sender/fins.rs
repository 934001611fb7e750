//! The fins that stand in for immediates: written once the parts of their messages have completed.

use fabric::{Delivery, Post, RemoteBytes, RemoteKey, Write};
use proto::{Line, LineSink};

use super::{FIN_BYTES, FIN_WORDS, Means, Sender, rail_failed};
use crate::endpoint::lanes::ControlLane;
use crate::endpoint::operation::Purpose;
use crate::endpoint::receiver::note;

impl Sender {
    /// The fin of `line` has completed.
    pub(in crate::endpoint) fn fin_written(&mut self, line: Line) {
        self.operations_ended(1);
        self.flow.fin_written(line);
    }

    /// Writes the fin of `line`; false when it must be tried again.
    pub(super) fn write_fin(&mut self, means: &mut Means<'_>, line: Line) -> bool {
        let words = self.flow.fin_words(line);
        let place = self.flow.parameters().window.place(line);
        self.write_fin_words(means, place, line, &words)
    }

    /// Tells the receiver of a message that was longer than its receive.
    pub(super) fn write_failed_fin(&mut self, means: &mut Means<'_>) {
        let Some(fin) = self.flow.failed_fin() else { return };
        let line = self.flow.submitted();
        if !self.flow.parameters().fins || self.write_fin_words(means, fin.place, line, &fin.words)
        {
            self.flow.failed_fin_posted();
        }
    }

    fn write_fin_words(
        &mut self,
        means: &mut Means<'_>,
        place: u32,
        line: Line,
        words: &[u64],
    ) -> bool {
        let ControlLane { nic, peer, target, key } = self.control;
        if self.fin_lines.is_none() {
            match means.slabs.take(means.nics, FIN_WORDS) {
                Ok(unit) => self.fin_lines = Some(unit),
                Err(error) => {
                    self.fail(rail_failed(&self.peer, error));
                    return true;
                }
            }
        }
        let unit = self.fin_lines.as_mut().expect("it was just made");
        for (index, word) in words.iter().enumerate() {
            unit.store(place, index, *word);
        }
        let Some(local) = means.slabs.local(nic, unit, place, 1) else { return false };
        let remote = RemoteBytes {
            address: target + u64::from(place) * FIN_BYTES,
            key: RemoteKey::from_wire(key),
        };
        let purpose = Purpose::Fin { sender: means.slot, line };
        let write = Write { local, remote, peer, delivery: Delivery::Default };
        let posted = means.nics[nic].nic.write_control(&write, purpose.token());
        note(&mut self.pulse, &posted);
        match posted {
            Ok(Post::Accepted) => {
                self.in_flight.begin(1);
                true
            }
            Ok(Post::Again | Post::Full) => false,
            Err(error) => {
                self.fail(rail_failed(&self.peer, error));
                true
            }
        }
    }
}
