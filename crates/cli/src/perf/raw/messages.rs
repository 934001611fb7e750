//! Two-sided: messages (fi_msg(3)), a window of them outstanding, into receives that were posted ahead.

use std::sync::Arc;

use fabric::{
    AddressVector, Batch, CompletionQueue, Contexts, Control, CqPoll, Domain, Endpoint, Fabric,
    Info, Library, Pages, PeerAddress, Post, Region,
};
use ironrail_group::bootstrap::Bootstrap;
use ironrail_group::error::GroupError;
use ironrail_group::patience::{Patience, spins_for};

use super::{QUEUE_ENTRIES, Side, broken};
use crate::perf::arguments::{Options, Raw};
use crate::perf::slots::Slots;
use crate::perf::statistics::Stopwatch;

/// An endpoint for messages, its memory, and its one peer. Rank 0 only sends, rank 1 only receives.
pub(super) struct Mail {
    endpoint: Arc<Endpoint<Control>>,
    queue: Arc<CompletionQueue>,
    memory: Region<Control>,
    contexts: Contexts,
    peer: PeerAddress,
    window: usize,
    sends: bool,
    bytes: usize,
    /// Where messages of this size are sent from.
    slots: Slots,
    /// Where they are received: the same at every size, since receives stay posted from one to the next.
    rooms: Slots,
    /// Receives that are to be posted, by the number of their context.
    unposted: Vec<usize>,
    batch: Batch,
    patience: Patience,
    /// Sends that have ended, or messages that have come, and were not yet counted.
    ended: usize,
}

/// Receives posted ahead: enough that a full window never waits for one.
const AHEAD: usize = 128;

impl Mail {
    pub(super) fn open(
        raw: &Raw,
        options: &Options,
        library: &Arc<Library>,
        info: &Info,
        bootstrap: &mut dyn Bootstrap,
    ) -> Result<Self, GroupError> {
        let wait = options.timeout();
        let fabric = Fabric::open(library, info).map_err(broken)?;
        let domain = Domain::open(&fabric, info).map_err(broken)?;
        let queue = CompletionQueue::open(&domain, QUEUE_ENTRIES).map_err(broken)?;
        let addresses = AddressVector::open(&domain).map_err(broken)?;
        let endpoint =
            Endpoint::<Control>::open(&domain, info, &queue, &addresses).map_err(broken)?;
        let rooms = Slots::of(options.last(), AHEAD, 1);
        let pages = Pages::map(rooms.count * rooms.receive_stride)
            .map_err(|error| GroupError::System { what: "mapping memory", error })?;
        pages.fill(0, pages.len(), 1); // Every page is there before the clock runs.
        let memory = Region::register_pages(&endpoint, Arc::new(pages)).map_err(broken)?;
        let names = bootstrap.all_gather(&endpoint.name().map_err(broken)?, wait)?;
        let mut mail = Self {
            peer: addresses.insert(&names[1 - bootstrap.rank()]).map_err(broken)?,
            endpoint,
            queue,
            memory,
            contexts: Contexts::new(AHEAD),
            window: raw.window,
            sends: bootstrap.rank() == 0,
            bytes: 0,
            slots: Slots::default(),
            rooms,
            unposted: (0..AHEAD).collect(),
            batch: Batch::new(),
            patience: Patience::new(wait, spins_for(2)),
            ended: 0,
        };
        if !mail.sends {
            mail.post_receives()?;
        }
        Ok(mail)
    }

    fn send(&self, number: usize) -> Result<bool, GroupError> {
        let offset = number % self.slots.count * self.slots.send_stride;
        let bytes = self.memory.local(offset, self.bytes).ok_or_else(beyond)?;
        let context = self.contexts.at(number % self.window);
        Ok(self.endpoint.send(bytes, self.peer, context).map_err(broken)? == Post::Accepted)
    }

    /// Posts again what has been filled, as far as there is room.
    fn post_receives(&mut self) -> Result<(), GroupError> {
        let Slots { count, receive_stride, .. } = self.rooms;
        while let Some(number) = self.unposted.last() {
            let room = self.memory.local(number % count * receive_stride, receive_stride);
            let context = self.contexts.at(*number);
            let post = self.endpoint.receive(room.ok_or_else(beyond)?, context).map_err(broken)?;
            if post == Post::Again {
                break;
            }
            self.unposted.pop();
        }
        Ok(())
    }
}

impl Side for Mail {
    fn begin(&mut self, bytes: usize) {
        self.bytes = bytes;
        self.slots = Slots::of(bytes, self.window, 1);
    }

    fn run(&mut self, messages: usize, watch: &mut Stopwatch) -> Result<(), GroupError> {
        let (mut posted, mut over) = (0, 0);
        self.patience.reset();
        while over < messages {
            let mut moved = false;
            while self.sends && posted < messages && posted - over < self.window {
                if !self.send(posted)? {
                    break;
                }
                posted += 1;
                moved = true;
            }
            self.poll()?;
            // What belongs to the next round stays for it.
            let now = self.ended.min(messages - over);
            self.ended -= now;
            over += now;
            (0..now).for_each(|_| watch.lap());
            if moved || now > 0 {
                self.patience.reset();
            } else {
                self.patience.idle(|| "a message".to_owned())?;
            }
        }
        Ok(())
    }

    #[inline]
    fn poll(&mut self) -> Result<(), GroupError> {
        match self.queue.read(&mut self.batch) {
            CqPoll::Empty => return Ok(()),
            CqPoll::Completions(completions) => {
                self.ended += completions.len();
                if !self.sends {
                    let places = completions.iter().map(fabric::Completion::context);
                    self.unposted.extend(places.filter_map(|place| self.contexts.index_of(place)));
                }
            }
            CqPoll::Failed(error) => {
                return Err(GroupError::Contract(format!("a message failed: {error}")));
            }
            CqPoll::Broken(error) => return Err(broken(error)),
        }
        if self.sends { Ok(()) } else { self.post_receives() }
    }
}

fn beyond() -> GroupError {
    GroupError::Usage("a message beyond its memory".to_owned())
}
