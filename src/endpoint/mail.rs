//! Two-sided messages on their way: what waits to be said is posted, receives are kept posted, and both end.

use fabric::{FabricError, PeerAddress, Post};

use super::Endpoint;
use super::messages::{INBOX_BUFFERS, Letter};
use super::nics::Port;
use super::operation::Purpose;

impl Endpoint {
    /// Posts what waits to be said.
    #[cold]
    #[inline(never)]
    pub(super) fn send_notices(&mut self) {
        let mut notices = std::mem::take(&mut self.notices);
        notices.flush(|notice| {
            let posted = self.post_message(notice.nic, notice.peer, &notice.bytes, notice.letter);
            if !matches!(posted, Ok(Post::Again | Post::Full)) {
                self.nics[notice.nic].nic.leave(notice.peer);
                self.posted_to(notice.nic, notice.peer, posted.is_ok());
            }
            posted
        });
        self.notices = notices;
    }

    /// A two-sided message is through, well or not.
    pub(super) fn message_ended(&mut self, nic: usize, buffer: u16, well: bool) {
        let messages = self.nics[nic].messages.as_mut();
        let Some((peer, letter)) = messages.and_then(|messages| messages.release(buffer)) else {
            return;
        };
        if !well {
            self.undelivered(nic, peer);
        }
        self.letter_ended(nic, peer, letter, well);
        self.nics[nic].nic.leave(peer);
    }

    /// Posts a two-sided message on the control rail of `nic`. One that is under way is a user of the peer's address.
    pub(super) fn post_message(
        &mut self,
        nic: usize,
        peer: PeerAddress,
        bytes: &[u8],
        letter: Letter,
    ) -> Result<Post, FabricError> {
        let Port { nic, messages, .. } = &mut self.nics[nic];
        let Some(messages) = messages else { return Err(FabricError::NO_RAIL) };
        let Some(buffer) = messages.write(bytes, peer, letter) else { return Ok(Post::Full) };
        let posted = match messages.outbox(buffer, bytes.len()) {
            Some(local) => nic.send(local, peer, Purpose::Message { buffer }.token()),
            None => Err(FabricError::OUTSIDE),
        };
        match posted {
            Ok(Post::Accepted) => nic.hold(peer),
            _ => drop(messages.release(buffer)),
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
        let Port { nic: rail, messages: Some(messages), label, .. } = &mut self.nics[nic] else {
            return;
        };
        let Some(local) = messages.inbox(buffer) else { return };
        match rail.receive(local, Purpose::Inbox { buffer }.token()) {
            Ok(Post::Accepted) => {}
            Ok(Post::Again | Post::Full) => self.owed_inboxes.push((nic, buffer)),
            refused => log::warn!("{label}: a receive for messages was refused: {refused:?}"),
        }
    }
}
