//! Buffers of the two-sided messages of one control rail: HELLO, QUERY, STATUS.

use std::sync::Arc;

use fabric::{Control, FabricError, Nic, Pages, PeerAddress, Post, Region};
use proto::letter::RailNumbers;
use proto::limits::MAX_MESSAGE_BYTES;
use proto::{ChannelId, Moment};

use super::bound::{LETTER_RECEIVES, LETTER_SENDS};
use super::purpose::Purpose;
use super::unposted::{Trouble, Unposted};

/// The number of free buffers below which a peer with a letter in flight gets no further one: letters to peers that hang are repeated.
const SPARE: usize = LETTER_SENDS as usize / 2;

/// What a letter in flight is about, for when it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LetterSubject {
    /// A channel, the index of the control rail among its own, and the rail numbers in the letter.
    Channel { channel: ChannelId, rail: u8, numbers: RailNumbers },
    /// The first HELLO of a connect. Its failure has no consequence: connect sends it again.
    Hello,
    /// A trial of a lost rail, or the answer to one. It gets no buffer where buffers are scarce: a peer may send many trials.
    Other,
}

/// The buffers of one control rail: first those of the receives, then those of the sends, which may become more.
#[derive(Debug)]
pub(super) struct LetterBuffers {
    /// The receives and the first sends, then further sends.
    blocks: Vec<Block>,
    free: Vec<u16>,
    /// By buffer: the subject of the letter in flight from it, and the letter's target.
    under_way: Vec<Option<(LetterSubject, PeerAddress)>>,
    unposted: Unposted,
}

/// One registration, cut into buffers.
#[derive(Debug)]
struct Block {
    region: Region<Control>,
    pages: Arc<Pages>,
}

impl Block {
    fn new(nic: &mut Nic, buffers: u16) -> Result<Self, FabricError> {
        let pages = Arc::new(Pages::map(usize::from(buffers) * MAX_MESSAGE_BYTES)?);
        Ok(Self { region: nic.register(Arc::clone(&pages).into())?, pages })
    }
}

impl LetterBuffers {
    pub(super) fn new(nic: &mut Nic) -> Result<Self, FabricError> {
        let buffers = LETTER_RECEIVES + LETTER_SENDS;
        Ok(Self {
            blocks: vec![Block::new(nic, buffers)?],
            free: (LETTER_RECEIVES..buffers).rev().collect(),
            under_way: vec![None; usize::from(buffers)],
            unposted: Unposted::all(LETTER_RECEIVES),
        })
    }

    /// Registers more buffers for sends.
    #[cold]
    fn grow(&mut self, nic: &mut Nic) -> Result<(), FabricError> {
        let first = u16::try_from(self.under_way.len()).unwrap_or(u16::MAX);
        // Past u16 there are no more buffer numbers.
        if let Some(end) = first.checked_add(LETTER_SENDS) {
            self.blocks.push(Block::new(nic, LETTER_SENDS)?);
            self.free.extend((first..end).rev());
            self.under_way.resize(end.into(), None);
        }
        Ok(())
    }

    /// A buffer's block, and its offset there in bytes.
    fn place(&self, buffer: u16) -> Option<(&Block, usize)> {
        let of_sends = usize::from(buffer).saturating_sub(LETTER_RECEIVES.into());
        let block = of_sends / usize::from(LETTER_SENDS);
        let first = if block == 0 {
            0
        } else {
            usize::from(LETTER_RECEIVES) + block * usize::from(LETTER_SENDS)
        };
        Some((self.blocks.get(block)?, (usize::from(buffer) - first) * MAX_MESSAGE_BYTES))
    }

    /// A receive has ended: the next poll posts it again.
    pub(super) fn ended(&mut self, buffer: u16) {
        self.unposted.ended(buffer);
    }

    /// As [`Unposted::post`], with fi_recv (fi_msg(3)).
    pub(super) fn post_receives(&mut self, nic: &mut Nic, now: Moment) -> Option<Trouble> {
        let Self { blocks, unposted, .. } = self;
        unposted.post(now, |buffer| {
            let Block { region, .. } = blocks.first().ok_or(FabricError::NO_RAIL)?;
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
        if let Some((block, at)) = self.place(buffer) {
            block.pages.copy_out(at, into);
        }
    }

    /// Whether a letter about this may get a buffer now.
    pub(super) fn has_room(&self, about: LetterSubject) -> bool {
        about != LetterSubject::Other || self.free.len() > SPARE
    }

    /// Posts a message. None: it was dropped, since buffers are scarce and another letter to the same peer is in flight. Letters without
    /// effect are repeated, so a dropped one is like one that was lost on the way.
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
    ) -> Result<Option<Post>, FabricError> {
        if message.len() > MAX_MESSAGE_BYTES {
            return Err(FabricError::OUTSIDE);
        }
        if !self.has_room(about) {
            return Ok(Some(Post::Full));
        }
        let is_to = |letter: &Option<(_, PeerAddress)>| letter.is_some_and(|(_, to)| to == peer);
        if self.free.len() <= SPARE && self.under_way.iter().any(is_to) {
            return Ok(None);
        }
        if self.free.is_empty()
            && let Err(error) = self.grow(nic)
        {
            log::debug!("no memory for more letters: {error}");
        }
        let Some(buffer) = self.free.last().copied() else { return Ok(Some(Post::Full)) };
        let (block, at) = self.place(buffer).ok_or(FabricError::OUTSIDE)?;
        block.pages.copy_in(at, message);
        let local = block.region.local(at, message.len()).ok_or(FabricError::OUTSIDE)?;
        let posted = nic.send(local, peer, Purpose::LetterSend { buffer }.token())?;
        if posted == Post::Accepted {
            self.free.pop();
            self.under_way[usize::from(buffer)] = Some((about, peer));
        }
        Ok(Some(posted))
    }

    /// A letter was sent, or has failed. Frees its buffer and returns its subject.
    pub(super) fn sent(&mut self, buffer: u16) -> LetterSubject {
        self.free.push(buffer);
        let ended = self.under_way.get_mut(usize::from(buffer)).and_then(Option::take);
        ended.map_or(LetterSubject::Other, |(about, _)| about)
    }
}
