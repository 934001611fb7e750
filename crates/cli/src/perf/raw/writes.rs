//! One-sided: writes with immediates, a window of them outstanding, or one back and forth.

use std::sync::Arc;

use fabric::{
    AddressVector, Batch, CompletionQueue, Contexts, CqPoll, Data, Delivery, Domain, Endpoint,
    Fabric, Info, Library, Pages, PeerAddress, Post, Posts, Region, RemoteBytes, RemoteKey,
};
use ironrail_group::bootstrap::Bootstrap;
use ironrail_group::error::GroupError;
use ironrail_group::patience::{Patience, spins_for};

use super::{QUEUE_ENTRIES, Side, broken};
use crate::perf::arguments::{Options, Raw};
use crate::perf::slots::Slots;
use crate::perf::statistics::Stopwatch;

/// An endpoint, the memory it writes from and is written to, and its one peer.
pub(super) struct Rail {
    endpoint: Arc<Endpoint<Data>>,
    queue: Arc<CompletionQueue>,
    source: Region<Data>,
    _target: Region<Data>,
    contexts: Contexts,
    peer: PeerAddress,
    /// The peer's target.
    remote_base: u64,
    remote_key: RemoteKey<Data>,
    raw: Raw,
    first: bool,
    bytes: usize,
    slots: Slots,
    batch: Batch,
    patience: Patience,
    /// Writes of ours that have ended, and writes of the peer's that have arrived, and were not yet counted.
    ended: usize,
    arrived: usize,
}

/// A write has a context while it is outstanding; 32 are the most.
const CONTEXTS: usize = 64;
const ANSWER_BYTES: usize = 8;

impl Rail {
    pub(super) fn open(
        raw: &Raw,
        options: &Options,
        library: &Arc<Library>,
        info: &Info,
        bootstrap: &mut dyn Bootstrap,
    ) -> Result<Self, GroupError> {
        let wait = options.timeout();
        let bytes = options.sizes().into_iter().map(|bytes| {
            let slots = Slots::of(bytes, raw.places(), 1);
            slots.count * slots.send_stride
        });
        let bytes = bytes.max().unwrap_or(1);
        let fabric = Fabric::open(library, info).map_err(broken)?;
        let domain = Domain::open(&fabric, info).map_err(broken)?;
        let queue = CompletionQueue::open(&domain, QUEUE_ENTRIES).map_err(broken)?;
        let addresses = AddressVector::open(&domain).map_err(broken)?;
        let endpoint = Endpoint::<Data>::open(&domain, info, &queue, &addresses).map_err(broken)?;
        let register = || {
            let pages = Pages::map(bytes)
                .map_err(|error| GroupError::System { what: "mapping memory", error })?;
            pages.fill(0, pages.len(), 1); // Every page is there before the clock runs.
            Region::register_pages(&endpoint, Arc::new(pages)).map_err(broken)
        };
        let (source, target) = (register()?, register()?);
        let mut card = target.remote_base().to_le_bytes().to_vec();
        card.extend(target.key().to_wire().to_le_bytes());
        card.extend(endpoint.name().map_err(broken)?);
        let cards = bootstrap.all_gather(&card, wait)?;
        let theirs = &cards[1 - bootstrap.rank()];
        let word = |index: usize| -> Option<u64> {
            Some(u64::from_le_bytes(theirs.get(index * 8..index * 8 + 8)?.try_into().ok()?))
        };
        let (Some(remote_base), Some(key), Some(name)) = (word(0), word(1), theirs.get(16..))
        else {
            return Err(GroupError::Bootstrap("the peer sent an address that is none".to_owned()));
        };
        Ok(Self {
            peer: addresses.insert(name).map_err(broken)?,
            endpoint,
            queue,
            source,
            _target: target,
            contexts: Contexts::new(CONTEXTS),
            remote_base,
            remote_key: RemoteKey::from_wire(key),
            raw: raw.clone(),
            first: bootstrap.rank() == 0,
            bytes: 0,
            slots: Slots::default(),
            batch: Batch::new(),
            patience: Patience::new(wait, spins_for(2)),
            ended: 0,
            arrived: 0,
        })
    }

    /// Keeps `window` writes outstanding until all have ended, or are answered.
    fn pour(&mut self, messages: usize, mut lap: impl FnMut()) -> Result<(), GroupError> {
        let window = self.raw.window;
        let (mut posted, mut over) = (0, 0);
        self.patience.reset();
        while over < messages {
            let mut moved = false;
            while posted < messages && posted - over < window && self.write(posted)? {
                posted += 1;
                moved = true;
            }
            self.poll()?;
            let ended = std::mem::take(&mut self.ended);
            let now = if self.raw.answered {
                let answers = std::mem::take(&mut self.arrived);
                (over + answers * self.raw.half_window()).min(messages)
            } else {
                over + ended
            };
            for _ in over..now {
                lap();
                moved = true;
            }
            over = now;
            self.pace(moved, "a write to end")?;
        }
        Ok(())
    }

    /// Counts arrivals, and answers them if that is asked.
    fn take(&mut self, messages: usize, mut lap: impl FnMut()) -> Result<(), GroupError> {
        let (mut over, mut answered) = (0, 0);
        let answers = if self.raw.answered { self.raw.answers(messages, messages) } else { 0 };
        self.patience.reset();
        while over < messages || answered < answers {
            self.poll()?;
            let mut moved = self.arrived > 0;
            // What belongs to the next round stays for it.
            let now = self.arrived.min(messages - over);
            self.arrived -= now;
            for _ in 0..now {
                over += 1;
                lap();
            }
            let due = self.raw.answers(over, messages).min(answers);
            while answered < due && self.answer(answered)? {
                answered += 1;
                moved = true;
            }
            self.pace(moved, "a write to arrive")?;
        }
        Ok(())
    }

    /// Writes and waits for the answer, or the other way round.
    fn rally(&mut self, messages: usize, mut lap: impl FnMut()) -> Result<(), GroupError> {
        let serves = self.first;
        let inject = !self.raw.no_inject && self.bytes <= self.endpoint.inject_bytes();
        let (mut posted, mut over) = (0, 0);
        for number in 0..messages {
            if !serves {
                self.arrival()?;
            }
            // The last one tells its end, so that it is not left behind in a queue that nobody pushes any more.
            let inject = inject && number + 1 < messages;
            self.patience.reset();
            loop {
                over += std::mem::take(&mut self.ended);
                // A context is free again when its write has ended.
                let posted_now = if inject {
                    self.inject(number)?
                } else {
                    posted - over < CONTEXTS && self.write(posted)?
                };
                if posted_now {
                    posted += usize::from(!inject);
                    break;
                }
                self.poll()?;
                self.pace(false, "room for a write")?;
            }
            if serves {
                self.arrival()?;
            }
            lap();
        }
        self.patience.reset();
        while over < posted {
            self.poll()?;
            over += std::mem::take(&mut self.ended);
            self.pace(false, "a write to end")?;
        }
        Ok(())
    }

    fn arrival(&mut self) -> Result<(), GroupError> {
        self.patience.reset();
        while self.arrived == 0 {
            self.poll()?;
            self.pace(self.arrived > 0, "a write to arrive")?;
        }
        self.arrived -= 1;
        Ok(())
    }

    fn write(&self, number: usize) -> Result<bool, GroupError> {
        self.write_bytes(number, self.bytes)
    }

    /// As many answers are under way as half windows are: fewer than there are contexts.
    fn answer(&self, number: usize) -> Result<bool, GroupError> {
        self.write_bytes(number, self.bytes.min(ANSWER_BYTES))
    }

    fn write_bytes(&self, number: usize, bytes: usize) -> Result<bool, GroupError> {
        let (local, remote) = self.place(number, bytes)?;
        let context = self.contexts.at(number % CONTEXTS);
        let immediate = number as u64 & u64::from(u32::MAX);
        let post = self.endpoint.write_with_immediate(
            local,
            remote,
            self.peer,
            immediate,
            Delivery::Default,
            context,
        );
        Ok(post.map_err(broken)? == Post::Accepted)
    }

    fn inject(&self, number: usize) -> Result<bool, GroupError> {
        let (local, remote) = self.place(number, self.bytes)?;
        let local = self.source.host_bytes(local.address(), self.bytes);
        let local =
            local.ok_or_else(|| GroupError::Usage("a message beyond its memory".to_owned()))?;
        let immediate = number as u64 & u64::from(u32::MAX);
        let post = self.endpoint.inject_write_with_immediate(local, remote, self.peer, immediate);
        Ok(post.map_err(broken)? == Post::Accepted)
    }

    fn place(
        &self,
        number: usize,
        bytes: usize,
    ) -> Result<(fabric::LocalBytes<'_, Data>, RemoteBytes<Data>), GroupError> {
        let offset = number % self.slots.count * self.slots.send_stride;
        // Back and forth, messages are sent from one place, as the plugin's are.
        let local = self.source.local(if self.raw.latency { 0 } else { offset }, bytes);
        let local =
            local.ok_or_else(|| GroupError::Usage("a message beyond its memory".to_owned()))?;
        Ok((local, RemoteBytes { address: self.remote_base + offset as u64, key: self.remote_key }))
    }

    #[inline]
    fn pace(&mut self, moved: bool, what: &'static str) -> Result<(), GroupError> {
        if moved {
            self.patience.reset();
            return Ok(());
        }
        self.patience.idle(|| what.to_owned())
    }
}

impl Side for Rail {
    fn begin(&mut self, bytes: usize) {
        self.bytes = bytes;
        self.slots = Slots::of(bytes, self.raw.places(), 1);
    }

    fn posts(&self) -> Posts {
        self.endpoint.posts()
    }

    fn run(&mut self, messages: usize, watch: &mut Stopwatch) -> Result<(), GroupError> {
        match (self.raw.latency, self.first) {
            (true, _) => self.rally(messages, || watch.lap()),
            (false, true) => self.pour(messages, || watch.lap()),
            (false, false) => self.take(messages, || watch.lap()),
        }
    }

    #[inline]
    fn poll(&mut self) -> Result<(), GroupError> {
        match self.queue.read(&mut self.batch) {
            CqPoll::Empty => {}
            CqPoll::Completions(completions) => {
                let arrived =
                    completions.iter().filter(|completion| completion.is_remote_write()).count();
                self.arrived += arrived;
                self.ended += completions.len() - arrived;
            }
            CqPoll::Failed(error) => {
                return Err(GroupError::Contract(format!("a write failed: {error}")));
            }
            CqPoll::Broken(error) => return Err(broken(error)),
        }
        Ok(())
    }
}
