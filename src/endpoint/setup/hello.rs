//! HELLO and other letters: what arrives, and the first HELLO to a peer.

use fabric::{Control, Post};
use proto::setup::{FirstHello, Heard, Ignored, PeerId};
use proto::{Event, Moment};

use super::super::Endpoint;
use super::super::authentication::random_nonce;
use super::super::bound::CHANNELS_MAX;
use super::super::letter_buffers::LetterSubject;
use super::super::nics::Port;
use super::channel::is_new;
use super::no_common_rail;
use crate::error::{Cause, Error, Result, Table};

impl Endpoint {
    /// Handles a two-sided message. Its bytes may come from any process that knows the address.
    pub(in crate::endpoint) fn letter_received(&mut self, bytes: &[u8]) {
        // The first HELLO carries this end's capabilities. Until they are known letters are ignored; the peer repeats its own.
        if !self.is_probed {
            return;
        }
        match self.executor.peers.heard(bytes, &mut random_nonce) {
            Heard::Nothing(ignored) => self.count_dropped(&ignored),
            Heard::Meets { peer, letter } => {
                let channel = match self.make_channel(peer) {
                    Ok(channel) => channel,
                    // The peer repeats its HELLO, so this is retried; one line is enough.
                    Err(error) => {
                        if is_new(error.to_string()) {
                            log::warn!("device {}: no channel to a peer: {error}", self.label());
                        }
                        return;
                    }
                };
                if let Some(letter) = letter {
                    self.executor.queue(Event::Letter { channel, letter, proven: true });
                }
            }
            Heard::Letter { channel, letter, proven } => {
                self.executor.queue(Event::Letter { channel, letter, proven });
            }
        }
    }

    fn count_dropped(&mut self, why: &Ignored) {
        match why {
            Ignored::Bytes(error) => {
                self.incidents.garbage += 1;
                log::debug!("device {}: a message is dropped: {error}", self.label());
            }
            Ignored::Unproven | Ignored::Stranger => self.incidents.late_messages += 1,
            Ignored::Known => {}
            Ignored::Full => {
                let error = Error::from(Cause::Full { table: Table::Peers, count: CHANNELS_MAX });
                if is_new(error.to_string()) {
                    log::warn!("device {}: no channel to a peer: {error}", self.label());
                }
            }
            Ignored::NoRail(peer) => {
                let peers = &self.executor.peers;
                let Some(apart) = peers.apart(*peer) else { return };
                let host = peers.host(*peer);
                let name = host.map_or_else(String::new, |host| host.host.to_text());
                if is_new(format!("no rail to {name}")) {
                    log::error!(
                        "device {}, to a process on {name}: {}",
                        self.label(),
                        Error::from(no_common_rail(apart))
                    );
                }
            }
        }
    }

    /// Sends a HELLO, if one is due, to a peer of which only a handle is known. Connects do not share HELLOs: while a provider tries to
    /// reach a host that does not answer, it refuses messages to it.
    pub(in crate::endpoint) fn send_first_hello(&mut self, peer: PeerId, now: Moment) {
        let Some(hello) = self.executor.peers.hello_to(peer, now) else { return };
        let FirstHello { rail, control, bytes, .. } = hello;
        let sent = self.send_to(rail, control.as_bytes(), &bytes, LetterSubject::Hello);
        let error = match sent {
            Ok(Post::Accepted) => None,
            Ok(Post::Again | Post::Full) => {
                self.executor.peers.hello_refused(peer, now);
                return;
            }
            Err(error) => Some(error),
        };
        self.executor.peers.hello_posted(peer, now);
        self.hello_posted(peer, error);
    }

    /// Sends a letter to an address that is inserted only for this letter.
    fn send_to(
        &mut self,
        nic: usize,
        to: &[u8],
        bytes: &[u8],
        about: LetterSubject,
    ) -> Result<Post> {
        let port = self.executor.nics.get(nic).ok_or(Cause::NoSuchRail)?;
        let letters = port.letters.as_ref().ok_or(Cause::NoSuchRail)?;
        // Before the address is inserted, which may push out another one.
        if !letters.has_room(about) {
            return Ok(Post::Full);
        }
        let lane = self.lane::<Control>(nic, to)?;
        let Port { nic, letters, .. } = &mut self.executor.nics[lane.nic];
        let letters = letters.as_mut().ok_or(Cause::NoSuchRail)?;
        let posted = letters.send(nic, lane.peer, bytes, about);
        nic.remove_peer::<Control>(lane.peer);
        // A letter that was dropped is repeated later, like one that was posted.
        posted
            .map(|posted| posted.unwrap_or(Post::Accepted))
            .map_err(|error| Cause::Unreachable(error).into())
    }
}
