//! Short messages that travel several to a write: held back until the next turn of progress, written from a staging ring into the
//! ring that the receiver lent, and copied from there to where their receives begin. docs/protocol.md §11.
//!
//! The first message since a turn goes at once, as ever: one alone gains nothing by waiting.

use fabric::{Delivery, HostBytes, Post, RemoteBytes, RemoteKey, Write};
use proto::bundle::{BUNDLE_PLACE_WORDS, BUNDLE_PLACES};
use proto::handshake::Ring;
use proto::{BundleWrite, Bundled, Line, PlainMessage};

use super::copies::{Copied, PAYLOAD_WORDS};
use super::lanes::ControlLane;
use super::memory::{Places, Short, Unit};
use super::operation::Purpose;
use super::receiver::{Receiver, note};
use super::sender::{self, Sender, rail_failed};
use super::{Endpoint, SenderState, remember};

/// The ring of one connection, at either end.
pub(super) const RING_BYTES: usize = BUNDLE_PLACES as usize * BUNDLE_PLACE_WORDS * 8;

/// What a sender writes bundles from, and where to.
#[derive(Debug)]
pub(super) struct Bundler {
    pub(super) staging: Unit,
    /// The same as places.
    places: Places<BUNDLE_PLACE_WORDS>,
    target: u64,
    key: u64,
    inject_words: usize,
    /// Whether the endpoint's list of senders that hold messages has this one.
    listed: bool,
}

/// The turn of progress that was made last, and the list of senders that hold messages for the next.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    pub(super) number: u32,
    pub(super) holding: &'a mut Vec<u16>,
}

impl Bundler {
    #[inline(never)]
    fn list(&mut self, holding: &mut Vec<u16>, slot: u16) {
        self.listed = true;
        remember(holding, slot);
    }
}

impl Endpoint {
    /// Writes what senders hold back.
    #[inline(never)]
    pub(super) fn write_bundles(&mut self) {
        let Self { senders, nics, slabs, holding, .. } = self;
        holding.retain(|slot| match senders.at_mut(*slot).map(|state| &mut **state) {
            Some(SenderState::Connected(sender)) => {
                sender.write_bundles(&mut sender::Means { nics, slabs, slot: *slot })
            }
            _ => false,
        });
    }

    /// What bundles of a new connection are written from, if there may be any.
    pub(super) fn bundler(&mut self, target: u64, key: u64) -> Option<Bundler> {
        let staging = self.slabs.take_short(&mut self.nics, Short::Bundles, BUNDLE_PLACE_WORDS)?;
        let inject_words = self.capabilities.rma_inject_bytes as usize / 8;
        let places = staging.places(BUNDLE_PLACES);
        Some(Bundler { staging, places, target, key, inject_words, listed: false })
    }

    /// A ring for the bundles of a new connection, and how its sender names it. None where there are none.
    pub(super) fn lend_bundle_ring(&mut self, bundle_bytes: u32) -> Option<(Unit, Ring)> {
        // A copy into GPU memory is not ours to make.
        let copies = !self.device.gpu_access.is_direct();
        if bundle_bytes == 0 || self.settings.bundle_bytes_max == 0 || !copies {
            return None;
        }
        let unit = self.slabs.take_short(&mut self.nics, Short::Bundles, BUNDLE_PLACE_WORDS)?;
        let ring = Ring { address: self.slabs.target(&unit), keys: self.slabs.keys(&unit) };
        Some((unit, ring))
    }
}

impl Sender {
    /// Whether something was sent since the last turn of progress, and a message of `len` bytes may be held back behind it.
    #[inline(always)]
    pub(super) fn follows(&self, turn: u32, len: u64) -> bool {
        self.sent_in == turn && self.flow.bundles(len)
    }

    /// Holds back [such bytes](Self::short_bytes), if there is room: `told` is told the line.
    #[inline(always)]
    pub(super) fn hold_shortly(
        &mut self,
        holding: &mut Vec<u16>,
        slot: u16,
        bytes: HostBytes<'_>,
        tag: i32,
        told: impl FnOnce(Line),
    ) -> Option<bool> {
        let len = bytes.len() as u64;
        if !self.flow.may_hold_next(len) {
            return None;
        }
        let message = self.flow.match_filling(&self.places, tag, len, &0)?;
        if !message.copies {
            return None;
        }
        told(message.line);
        self.hold_plainly(holding, slot, &bytes, &message);
        Some(true)
    }

    /// Whether the next message may be held back: something was sent since the last turn of progress, and there is room.
    #[inline(always)]
    pub(super) fn may_follow(&mut self, turn: u32, len: u64) -> bool {
        self.follows(turn, len) && self.flow.may_hold_next(len)
    }

    /// Holds back a message in the plain form.
    #[inline(always)]
    pub(super) fn hold_plainly(
        &mut self,
        holding: &mut Vec<u16>,
        slot: u16,
        bytes: &HostBytes<'_>,
        message: &PlainMessage,
    ) {
        let Some(bundler) = &mut self.bundler else { return };
        self.flow.hold_plainly(&mut bundler.places, message, bytes.words());
        if !bundler.listed {
            bundler.list(holding, slot);
        }
    }

    /// The same for one that was submitted.
    pub(super) fn hold(&mut self, bytes: HostBytes<'_>, line: Line) {
        let Some(bundler) = &mut self.bundler else { return };
        let payload = bytes.words();
        self.flow.hold(&mut bundler.places, line, bytes.len() as u64, payload);
        bundler.listed = true;
    }

    /// Whether messages wait for the next turn.
    #[inline]
    pub(super) fn holds_back(&self) -> bool {
        self.flow.holds_back()
    }

    /// Writes what is held back. False: nothing is any more.
    fn write_bundles(&mut self, means: &mut sender::Means<'_>) -> bool {
        while let Some(write) = self.flow.next_bundle() {
            if !self.write_bundle(means, write) {
                break;
            }
        }
        let stays = self.flow.holds_back();
        if let Some(bundler) = &mut self.bundler {
            bundler.listed = stays;
        }
        stays
    }

    /// False: it was refused, and is to be tried again.
    fn write_bundle(&mut self, means: &mut sender::Means<'_>, write: BundleWrite) -> bool {
        let Some(bundler) = &self.bundler else { return false };
        let ControlLane { nic, peer, .. } = self.control;
        let address = bundler.target + u64::from(write.place) * (BUNDLE_PLACE_WORDS as u64 * 8);
        let remote = RemoteBytes { address, key: RemoteKey::from_wire(bundler.key) };
        let rail = &mut means.nics[nic].nic;
        let completes = write.words > bundler.inject_words;
        let posted = if completes {
            let local = means.slabs.local_words(nic, &bundler.staging, write.place, write.words);
            let Some(local) = local else { return false };
            let purpose = Purpose::Bundle { sender: means.slot };
            let write = Write { local, remote, peer, delivery: Delivery::Default };
            let posted = rail.write_control(&write, purpose.token());
            self.in_flight.begin(u32::from(matches!(posted, Ok(Post::Accepted))));
            posted
        } else {
            let local = means.slabs.host_words(&bundler.staging, write.place, write.words);
            let Some(local) = local else { return false };
            rail.inject_control(local, remote, peer)
        };
        note(&mut self.pulse, &posted);
        match posted {
            Ok(Post::Accepted) => {
                self.flow.bundle_posted(write, completes);
                true
            }
            Ok(Post::Again | Post::Full) => false,
            Err(error) => {
                self.flow.drop_held();
                self.fail(rail_failed(&self.peer, error));
                false
            }
        }
    }

    /// The write of a bundle has completed.
    pub(super) fn bundle_written(&mut self) {
        self.operations_ended(1);
        self.flow.bundle_written();
    }

    /// The write of a bundle has failed: neither can what waits be written there.
    #[cold]
    pub(super) fn bundle_failed(&mut self) {
        self.flow.bundle_written();
        self.flow.drop_held();
    }
}

impl Receiver {
    /// Whether a message has come in a bundle.
    #[inline(always)]
    pub(super) fn has_bundled(&self) -> bool {
        self.bundles.as_ref().is_some_and(|(ring, _)| self.flow.has_bundled(ring))
    }

    /// Whether messages are taken behind one that is missing: it may never come.
    #[inline]
    pub(super) fn takes_every(&self) -> bool {
        self.failure.is_some() || self.ending.heard_bye || self.is_ending()
    }

    /// The next message that came so, for a receive that is posted.
    pub(super) fn next_bundled(&mut self) -> Option<Copied> {
        let (ring, _) = self.bundles.as_ref()?;
        let every = self.takes_every();
        let Bundled { line, len, payload } = self.flow.next_bundled(ring, every)?;
        let mut words = [0; PAYLOAD_WORDS];
        words[..payload.len()].copy_from_slice(&payload);
        Some(self.copied(line, len, words))
    }
}
