//! One-sided: writes with immediates, a window of them outstanding, or one back and forth.

use fabric::{
    Data, Delivery, Event, Info, Nic, NicOptions, Pages, PeerAddress, Post, Posts, Region,
    RemoteBytes, RemoteKey, Write,
};
use ironrail_group::bootstrap::Bootstrap;
use ironrail_group::error::GroupError;
use ironrail_group::patience::{Patience, spins_for};

use super::{QUEUE_ENTRIES, Side, Waits, beyond, broken};
use crate::perf::arguments::{Options, Raw};
use crate::perf::slots::Slots;
use crate::perf::statistics::Stopwatch;

/// An endpoint, its source and target memory, and its one peer.
pub(super) struct Rail {
    nic: Nic,
    source: Region<Data>,
    _target: Region<Data>,
    peer: PeerAddress,
    /// The base of the peer's memory.
    remote_base: u64,
    remote_key: RemoteKey<Data>,
    raw: Raw,
    first: bool,
    bytes: usize,
    slots: Slots,
    patience: Patience,
    /// Completed writes that were not counted yet.
    ended: usize,
    /// Arrived writes of the peer that were not counted yet.
    arrived: usize,
}

/// Writes that may be outstanding; at most 32 are.
const OPERATIONS: u16 = 64;
const ANSWER_BYTES: usize = 8;

impl Rail {
    pub(super) fn open(
        raw: &Raw,
        options: &Options,
        info: &Info,
        bootstrap: &mut dyn Bootstrap,
    ) -> Result<Self, GroupError> {
        let wait = options.timeout();
        let bytes = options.most(|bytes| Slots::of(bytes, raw.places(), 1).send_bytes());
        let entries = QUEUE_ENTRIES;
        let data = info.endpoint_options::<Data>();
        let rails = NicOptions {
            data: Some(&data),
            entries,
            operations: OPERATIONS,
            ..NicOptions::of(info)
        };
        let mut nic = Nic::open(info, &rails).map_err(broken)?;
        let mut register = || {
            let pages = Pages::map(bytes).map_err(broken)?;
            pages.fill(0, pages.len(), 1); // Every page is there before the clock runs.
            nic.register(pages.into()).map_err(broken)
        };
        let (source, target): (Region<Data>, Region<Data>) = (register()?, register()?);
        let mut card = target.remote_base().to_le_bytes().to_vec();
        card.extend(target.key().to_wire().to_le_bytes());
        card.extend(nic.data_name());
        let cards = bootstrap.all_gather(&card, wait)?;
        let theirs = &cards[1 - bootstrap.rank()];
        let word = |index: usize| -> Option<u64> {
            Some(u64::from_le_bytes(theirs.get(index * 8..index * 8 + 8)?.try_into().ok()?))
        };
        let (Some(remote_base), Some(key), Some(name)) = (word(0), word(1), theirs.get(16..))
        else {
            return Err(GroupError::Bootstrap("the peer sent an invalid address".to_owned()));
        };
        Ok(Self {
            peer: nic.add_peer::<Data>(name).map_err(broken)?,
            nic,
            source,
            _target: target,
            remote_base,
            remote_key: RemoteKey::from_wire(key),
            raw: raw.clone(),
            first: bootstrap.rank() == 0,
            bytes: 0,
            slots: Slots::default(),
            patience: Patience::new(wait, spins_for(2)),
            ended: 0,
            arrived: 0,
        })
    }

    fn write(&mut self, number: usize) -> Result<bool, GroupError> {
        self.write_bytes(number, self.bytes)
    }

    /// At most one acknowledgement per half window is in flight: fewer than there is room for.
    fn answer(&mut self, number: usize) -> Result<bool, GroupError> {
        self.write_bytes(number, self.bytes.min(ANSWER_BYTES))
    }

    fn write_bytes(&mut self, number: usize, bytes: usize) -> Result<bool, GroupError> {
        let offset = self.offset(number);
        // Back and forth, messages are sent from one buffer, as the plugin's are.
        let from = if self.raw.latency { 0 } else { offset };
        let (peer, delivery) = (self.peer, Delivery::Default);
        let remote = self.remote(offset);
        let local = self.source.local(from, bytes).ok_or_else(beyond)?;
        let immediate = number as u64 & u64::from(u32::MAX);
        let write = Write { local, remote, peer, delivery };
        let post = self.nic.write(&write, Some(immediate), 0);
        Ok(post.map_err(broken)? == Post::Accepted)
    }

    fn inject(&mut self, number: usize) -> Result<bool, GroupError> {
        let offset = self.offset(number);
        let (remote, peer) = (self.remote(offset), self.peer);
        let from = if self.raw.latency { 0 } else { offset };
        let address = self.source.memory().address() + from as u64;
        let local = self.source.host_bytes(address, self.bytes).ok_or_else(beyond)?;
        let immediate = number as u64 & u64::from(u32::MAX);
        let post = self.nic.inject(local, remote, peer, immediate);
        Ok(post.map_err(broken)? == Post::Accepted)
    }

    fn offset(&self, number: usize) -> usize {
        number % self.slots.count * self.slots.send_stride
    }

    fn remote(&self, offset: usize) -> RemoteBytes<Data> {
        RemoteBytes { address: self.remote_base + offset as u64, key: self.remote_key }
    }
}

impl Side for Rail {
    fn begin(&mut self, bytes: usize) {
        self.bytes = bytes;
        self.slots = Slots::of(bytes, self.raw.places(), 1);
    }

    /// Keeps `window` writes outstanding until all have completed, or are acknowledged.
    fn pour(&mut self, messages: usize, watch: &mut Stopwatch) -> Result<(), GroupError> {
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
                watch.lap();
                moved = true;
            }
            over = now;
            self.pace(moved, "a write to end")?;
        }
        Ok(())
    }

    /// Counts arrivals, and acknowledges them if that is asked for.
    fn take(&mut self, messages: usize, watch: &mut Stopwatch) -> Result<(), GroupError> {
        let (mut over, mut answered) = (0, 0);
        let answers = if self.raw.answered { self.raw.answers(messages, messages) } else { 0 };
        self.patience.reset();
        while over < messages || answered < answers {
            self.poll()?;
            let mut moved = self.arrived > 0;
            // Arrivals of the next round are left to that round.
            let now = self.arrived.min(messages - over);
            self.arrived -= now;
            for _ in 0..now {
                over += 1;
                watch.lap();
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
    fn rally(&mut self, messages: usize, watch: &mut Stopwatch) -> Result<(), GroupError> {
        let serves = self.first;
        let inject = !self.raw.no_inject && self.bytes <= self.nic.inject_bytes::<Data>();
        let (mut posted, mut over) = (0, 0);
        for number in 0..messages {
            if !serves {
                self.arrival("a write to arrive")?;
            }
            // The last one has a completion, so that it does not stay in a queue that is no longer polled.
            let inject = inject && number + 1 < messages;
            self.patience.reset();
            loop {
                over += std::mem::take(&mut self.ended);
                // There is room again when a write has completed.
                let posted_now = if inject {
                    self.inject(number)?
                } else {
                    posted - over < usize::from(OPERATIONS) && self.write(posted)?
                };
                if posted_now {
                    posted += usize::from(!inject);
                    break;
                }
                self.poll()?;
                self.pace(false, "room for a write")?;
            }
            if serves {
                self.arrival("a write to arrive")?;
            }
            watch.lap();
        }
        self.patience.reset();
        while over < posted {
            self.poll()?;
            over += std::mem::take(&mut self.ended);
            self.pace(false, "a write to end")?;
        }
        Ok(())
    }

    #[inline]
    fn waits(&mut self) -> Waits<'_> {
        let Self { nic, patience, arrived, .. } = self;
        Waits { nic, patience, arrived }
    }

    fn posts(&self) -> Posts {
        self.nic.data_posts()
    }

    #[inline]
    fn poll(&mut self) -> Result<(), GroupError> {
        if self.nic.poll_data().is_empty() {
            return Ok(());
        }
        while let Some(event) = self.nic.next_data() {
            match event {
                Event::Arrived { .. } => self.arrived += 1,
                Event::Ended { .. } => self.ended += 1,
                Event::Failed(failed) => {
                    let error = failed.error;
                    return Err(GroupError::Contract(format!("a write failed: {error}")));
                }
                Event::Broken(error) => return Err(broken(error)),
            }
        }
        Ok(())
    }
}
