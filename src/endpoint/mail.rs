//! Two-sided messages on their way: what waits to be said is posted, receives are kept posted, and both end.

use fabric::{FabricError, PeerAddress, Post};

use super::Endpoint;
use super::messages::INBOX_BUFFERS;
use crate::rail::{Letter, Purpose};

impl Endpoint {
    /// Posts what waits to be said.
    #[cold]
    #[inline(never)]
    pub(super) fn send_notices(&mut self) {
        let mut notices = std::mem::take(&mut self.notices);
        notices.flush(|notice| {
            let posted = self.post_message(notice.nic, notice.peer, &notice.bytes, notice.letter);
            if !matches!(posted, Ok(Post::Again)) {
                self.nics[notice.nic].peers.leave(notice.peer);
                self.posted_to(notice.nic, notice.peer, posted.is_ok());
            }
            posted
        });
        self.notices = notices;
    }

    /// A two-sided message is through, or will never be.
    pub(super) fn message_ended(&mut self, nic: usize, buffer: u16, peer: PeerAddress) {
        let nic = &mut self.nics[nic];
        if let Some(control) = &mut nic.control {
            control.messages.release(buffer);
        }
        nic.peers.leave(peer);
    }

    /// Posts a two-sided message on the control rail of `nic`. One that is under way is a user of the peer's address.
    pub(super) fn post_message(
        &mut self,
        nic: usize,
        peer: PeerAddress,
        bytes: &[u8],
        letter: Letter,
    ) -> Result<Post, FabricError> {
        let rail = &mut self.nics[nic];
        let Some(control) = &mut rail.control else {
            return Err(FabricError { call: "a message on a NIC without control rail", code: -22 });
        };
        let Some(buffer) = control.messages.write(bytes) else { return Ok(Post::Again) };
        let Some((operation, context)) =
            rail.operations.begin(Purpose::Message { buffer, peer, letter })
        else {
            control.messages.release(buffer);
            return Ok(Post::Again);
        };
        let posted = match control.messages.outbox(buffer, bytes.len()) {
            Some(local) => control.endpoint.send(local, peer, context),
            None => Err(FabricError { call: "a message outside of its buffer", code: -22 }),
        };
        if !matches!(posted, Ok(Post::Accepted)) {
            rail.operations.end_at(operation);
            control.messages.release(buffer);
        } else {
            rail.peers.hold(peer);
        }
        posted
    }

    /// Keeps receives posted for the messages that peers may send.
    pub(super) fn post_inboxes(&mut self) {
        for nic in 0..self.nics.len() {
            for buffer in 0..INBOX_BUFFERS {
                self.post_inbox(nic, buffer);
            }
        }
    }

    /// Posts what found no room before; what finds none again waits on.
    #[cold]
    pub(super) fn post_owed_inboxes(&mut self) {
        for (nic, buffer) in std::mem::take(&mut self.owed_inboxes) {
            self.post_inbox(nic, buffer);
        }
    }

    pub(super) fn post_inbox(&mut self, nic: usize, buffer: u16) {
        let rail = &mut self.nics[nic];
        let Some(control) = &mut rail.control else { return };
        let Some((operation, context)) = rail.operations.begin(Purpose::Inbox { buffer }) else {
            self.owed_inboxes.push((nic, buffer));
            return;
        };
        let posted =
            control.messages.inbox(buffer).map(|local| control.endpoint.receive(local, context));
        match posted {
            Some(Ok(Post::Accepted)) => return,
            Some(Ok(Post::Again)) => self.owed_inboxes.push((nic, buffer)),
            refused => {
                log::warn!("{}: a receive for messages was refused: {refused:?}", rail.label);
            }
        }
        rail.operations.end_at(operation);
    }
}
