//! Buffers of the two-sided messages of one control rail: HELLO, QUERY, STATUS.

use std::sync::Arc;

use fabric::{Control, FabricError, Nic, Pages, PeerAddress, Post, Region};
use proto::limits::MAX_MESSAGE_BYTES;
use proto::{ChannelId, Moment};

use super::purpose::Purpose;
use super::unposted::{Trouble, Unposted};

/// Receives that are kept posted. Further letters wait in the provider.
const RECEIVES: u16 = 32;
/// Letters in flight at most; more are sent later.
const SENDS: u16 = 32;
/// Buffers of which a peer that has one gets no other. Letters to a host that hangs stay in flight, and are repeated; without a limit they
/// would leave none for the answers to living peers, which then take this rank for dead.
const SPARE: usize = SENDS as usize / 2;

/// What a letter in flight is about, for when it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LetterSubject {
    /// A channel, on this of its control rails.
    Channel { channel: ChannelId, rail: u8 },
    /// No channel: a HELLO, an answer to one, or a trial of a lost rail. Its failure has no consequence.
    Stranger,
}

/// One registration, cut into buffers: first those of the receives, then those of the sends.
#[derive(Debug)]
pub(super) struct LetterBuffers {
    region: Region<Control>,
    pages: Arc<Pages>,
    free: Vec<u16>,
    /// By buffer, the letter in flight from there, and its target.
    under_way: Box<[Option<(LetterSubject, PeerAddress)>]>,
    unposted: Unposted,
}

impl LetterBuffers {
    pub(super) fn new(nic: &mut Nic) -> Result<Self, FabricError> {
        let buffers = RECEIVES + SENDS;
        let pages = Arc::new(Pages::map(usize::from(buffers) * MAX_MESSAGE_BYTES)?);
        let region = nic.register(Arc::clone(&pages).into())?;
        Ok(Self {
            region,
            pages,
            free: (RECEIVES..buffers).rev().collect(),
            under_way: vec![None; usize::from(buffers)].into(),
            unposted: Unposted::all(RECEIVES),
        })
    }

    /// A receive has ended: the next poll posts it again.
    pub(super) fn ended(&mut self, buffer: u16) {
        self.unposted.ended(buffer);
    }

    /// As [`Unposted::post`], with fi_recv (fi_msg(3)).
    pub(super) fn post_receives(&mut self, nic: &mut Nic, now: Moment) -> Option<Trouble> {
        let Self { region, unposted, .. } = self;
        unposted.post(now, |buffer| {
            let at = usize::from(buffer) * MAX_MESSAGE_BYTES;
            let room = region.local(at, MAX_MESSAGE_BYTES).ok_or(FabricError::OUTSIDE)?;
            nic.receive(room, Purpose::LetterReceive { buffer }.token())
        })
    }

    /// As [`Unposted::stop`].
    pub(super) fn stop(&mut self) {
        self.unposted.stop();
    }

    /// Copies out what arrived in a buffer, so that nothing can change it while it is parsed.
    pub(super) fn arrived(&self, buffer: u16, len: usize, into: &mut Vec<u8>) {
        into.clear();
        into.resize(len.min(MAX_MESSAGE_BYTES), 0);
        self.pages.copy_out(usize::from(buffer) * MAX_MESSAGE_BYTES, into);
    }

    /// Posts a message. Where buffers are scarce and one to the same peer is in flight, it is dropped instead, as if it were lost on the way:
    /// letters that have no effect are repeated.
    ///
    /// # Errors
    ///
    /// What fi_send (fi_msg(3)) returned; -FI_EINVAL for a message that is too long.
    pub(super) fn send(
        &mut self,
        nic: &mut Nic,
        peer: PeerAddress,
        message: &[u8],
        about: LetterSubject,
    ) -> Result<Post, FabricError> {
        if message.len() > MAX_MESSAGE_BYTES {
            return Err(FabricError::OUTSIDE);
        }
        let is_to = |letter: &Option<(_, PeerAddress)>| letter.is_some_and(|(_, to)| to == peer);
        if self.free.len() <= SPARE && self.under_way.iter().any(is_to) {
            return Ok(Post::Accepted);
        }
        let Some(buffer) = self.free.last().copied() else { return Ok(Post::Full) };
        let at = usize::from(buffer) * MAX_MESSAGE_BYTES;
        self.pages.copy_in(at, message);
        let local = self.region.local(at, message.len()).ok_or(FabricError::OUTSIDE)?;
        let posted = nic.send(local, peer, Purpose::LetterSend { buffer }.token())?;
        if posted == Post::Accepted {
            self.free.pop();
            self.under_way[usize::from(buffer)] = Some((about, peer));
        }
        Ok(posted)
    }

    /// A letter was sent, or has failed. Returns what it was about.
    pub(super) fn sent(&mut self, buffer: u16) -> LetterSubject {
        self.free.push(buffer);
        let ended = self.under_way.get_mut(usize::from(buffer)).and_then(Option::take);
        ended.map_or(LetterSubject::Stranger, |(about, _)| about)
    }
}
