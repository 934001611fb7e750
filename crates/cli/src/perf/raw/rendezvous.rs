//! Rendezvous: a two-sided message announces the target of the next bytes, then a write with an immediate delivers them.
//!
//! This is the minimum for a plugin that must know the receiver's buffer before a long message leaves: one message one way, one write back.
//! Messages and writes have an endpoint each, as the two kinds of rail have, and share a queue and an address vector. The receiver bounds
//! what is outstanding: it announces a target again only after the previous bytes there have arrived.

use std::collections::VecDeque;
use std::sync::Arc;

use fabric::{
    Control, Data, Delivery, Event, Info, Nic, NicOptions, Pages, PeerAddress, Post, Posts, Region,
    RemoteBytes, RemoteKey, Write,
};
use ironrail_group::bootstrap::Bootstrap;
use ironrail_group::error::GroupError;
use ironrail_group::patience::{Patience, spins_for};

use super::{QUEUE_ENTRIES, Side, Waits, beyond, broken};
use crate::perf::arguments::{Options, Raw};
use crate::perf::slots::Slots;
use crate::perf::statistics::Stopwatch;

/// Two endpoints, their source and target memory, and the one peer. Rank 0 sends; in the ping-pong it sends first.
pub(super) struct Pair {
    nic: Nic,
    data: Writer,
    control: Mouth,
    raw: Raw,
    first: bool,
    bytes: usize,
    slots: Slots,
    patience: Patience,
    /// Announced targets of the peer that were not written yet.
    announced: VecDeque<RemoteBytes<Data>>,
    /// Completed writes that were not counted yet.
    ended: usize,
    /// Arrived writes of the peer that were not counted yet.
    arrived: usize,
}

struct Writer {
    source: Region<Data>,
    target: Region<Data>,
    peer: PeerAddress,
}

/// The endpoint for announcements.
struct Mouth {
    peer: PeerAddress,
    /// First the outgoing announcements, then the receive buffers.
    pages: Arc<Pages>,
    letters: Region<Control>,
    /// Announcements in flight.
    in_flight: usize,
    sent: usize,
    /// Receives to be posted.
    unposted: Vec<usize>,
}

/// Writes outstanding: more than the targets that are announced.
const WRITES: usize = 64;
/// Announcements in flight, and receives for them: one for each target that can be announced.
const LETTERS: usize = 32;
/// Writes, announcements in flight and receives.
const OPERATIONS: u16 = 128;
const _: () = assert!(OPERATIONS as usize == WRITES + 2 * LETTERS);
/// The tokens of writes and of announcements; the token of a receive is its number.
const WRITTEN: u64 = u64::MAX;
const SAID: u64 = u64::MAX - 1;
/// Address and key of a target.
const LETTER_BYTES: usize = 16;
/// A cache line for each announcement.
const LETTER_STRIDE: usize = 64;

impl Pair {
    pub(super) fn open(
        raw: &Raw,
        options: &Options,
        info: &Info,
        bootstrap: &mut dyn Bootstrap,
    ) -> Result<Self, GroupError> {
        let wait = options.timeout();
        let bytes = options.most(|bytes| Slots::of(bytes, raw.places(), 1).receive_bytes());
        let (entries, operations) = (QUEUE_ENTRIES, OPERATIONS);
        let data = info.endpoint_options::<Data>();
        let control = info.endpoint_options::<Control>();
        let rails = NicOptions {
            data: Some(&data),
            control: Some(&control),
            one_queue: true,
            entries,
            operations,
            ..NicOptions::of(info)
        };
        let mut nic = Nic::open(info, &rails).map_err(broken)?;
        let map = |bytes| {
            let pages = Pages::map(bytes).map_err(broken)?;
            pages.fill(0, pages.len(), 1); // Touches every page before the clock starts.
            Ok::<_, GroupError>(Arc::new(pages))
        };
        let mut register = || nic.register(map(bytes)?.into()).map_err(broken);
        let (source, target) = (register()?, register()?);
        let pages = map(2 * LETTERS * LETTER_STRIDE)?;
        let letters = nic.register(Arc::clone(&pages).into()).map_err(broken)?;
        let names = [nic.data_name().to_vec(), nic.control_name().to_vec()];
        let mut other = |name: &[u8]| -> Result<Vec<u8>, GroupError> {
            Ok(bootstrap.all_gather(name, wait)?.swap_remove(1 - bootstrap.rank()))
        };
        let data_peer = nic.add_peer::<Data>(&other(&names[0])?).map_err(broken)?;
        let control_peer = nic.add_peer::<Control>(&other(&names[1])?).map_err(broken)?;
        let mut pair = Self {
            nic,
            data: Writer { source, target, peer: data_peer },
            control: Mouth {
                peer: control_peer,
                pages,
                letters,
                in_flight: 0,
                sent: 0,
                unposted: (0..LETTERS).collect(),
            },
            raw: raw.clone(),
            first: bootstrap.rank() == 0,
            bytes: 0,
            slots: Slots::default(),
            patience: Patience::new(wait, spins_for(2)),
            announced: VecDeque::with_capacity(LETTERS),
            ended: 0,
            arrived: 0,
        };
        pair.control.post_rooms(&mut pair.nic)?;
        Ok(pair)
    }

    fn announce_up_to(&mut self, asked: &mut usize, target: usize) -> Result<(), GroupError> {
        self.patience.reset();
        while *asked < target {
            if self.announce(*asked)? {
                *asked += 1;
            } else {
                self.poll()?;
                self.pace(false, "room for a message")?;
            }
        }
        Ok(())
    }

    /// Announces the target of message `number`; false if there is no room.
    fn announce(&mut self, number: usize) -> Result<bool, GroupError> {
        let offset = number % self.slots.count * self.slots.receive_stride;
        let base = self.data.target.remote_base() + offset as u64;
        let inject = !self.raw.no_inject;
        self.control.say(&mut self.nic, base, self.data.target.key().to_wire(), inject)
    }

    /// Writes message `number` to the target that was announced first; false if none is announced, or there is no room.
    fn put(&mut self, number: usize, inject: bool) -> Result<bool, GroupError> {
        let Some(remote) = self.announced.front().copied() else { return Ok(false) };
        let Writer { source, peer, .. } = &self.data;
        // In the ping-pong all messages are sent from one buffer, as with the plugin.
        let place = if self.raw.latency { 0 } else { number % self.slots.count };
        let local = source.local(place * self.slots.send_stride, self.bytes).ok_or_else(beyond)?;
        let immediate = number as u64 & u64::from(u32::MAX);
        let post = if inject {
            let bytes = source.host_bytes(local.address(), self.bytes).ok_or_else(beyond)?;
            self.nic.inject(bytes, remote, *peer, immediate)
        } else {
            let write = Write { local, remote, peer: *peer, delivery: Delivery::Default };
            self.nic.write(&write, Some(immediate), WRITTEN)
        };
        let accepted = post.map_err(broken)? == Post::Accepted;
        if accepted {
            self.announced.pop_front();
        }
        Ok(accepted)
    }
}

impl Mouth {
    /// Sends the address and the key of a target; false if there is no room.
    fn say(
        &mut self,
        nic: &mut Nic,
        address: u64,
        key: u64,
        inject: bool,
    ) -> Result<bool, GroupError> {
        if self.in_flight == LETTERS {
            return Ok(false);
        }
        let place = self.sent % LETTERS;
        let offset = place * LETTER_STRIDE;
        let mut letter = [0; LETTER_BYTES];
        letter[..8].copy_from_slice(&address.to_le_bytes());
        letter[8..].copy_from_slice(&key.to_le_bytes());
        self.pages.copy_in(offset, &letter);
        let local = self.letters.local(offset, LETTER_BYTES).ok_or_else(beyond)?;
        let inject = inject && LETTER_BYTES <= nic.inject_bytes::<Control>();
        let post = if inject {
            let bytes = self.letters.host_bytes(local.address(), LETTER_BYTES);
            nic.inject_send(bytes.ok_or_else(beyond)?, self.peer)
        } else {
            nic.send(local, self.peer, SAID)
        };
        let accepted = post.map_err(broken)? == Post::Accepted;
        self.sent += usize::from(accepted);
        self.in_flight += usize::from(accepted && !inject);
        Ok(accepted)
    }

    /// Reads the announcement in a completed receive.
    fn announcement(&mut self, room: usize) -> RemoteBytes<Data> {
        let mut letter = [0; LETTER_BYTES];
        self.pages.copy_out((LETTERS + room) * LETTER_STRIDE, &mut letter);
        self.unposted.push(room);
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| letter[at + byte]));
        RemoteBytes { address: word(0), key: RemoteKey::from_wire(word(8)) }
    }

    fn post_rooms(&mut self, nic: &mut Nic) -> Result<(), GroupError> {
        while let Some(room) = self.unposted.last() {
            let bytes = self.letters.local((LETTERS + room) * LETTER_STRIDE, LETTER_BYTES);
            let bytes = bytes.ok_or_else(beyond)?;
            let post = nic.receive(bytes, *room as u64).map_err(broken)?;
            if post != Post::Accepted {
                break;
            }
            self.unposted.pop();
        }
        Ok(())
    }
}

impl Side for Pair {
    fn begin(&mut self, bytes: usize) {
        self.bytes = bytes;
        self.slots = Slots::of(bytes, self.raw.places(), 1);
    }

    /// Writes to announced targets until all writes have completed.
    fn pour(&mut self, messages: usize, watch: &mut Stopwatch) -> Result<(), GroupError> {
        let (mut posted, mut over) = (0, 0);
        self.patience.reset();
        while over < messages {
            let mut moved = false;
            while posted < messages && posted - over < WRITES && self.put(posted, false)? {
                posted += 1;
                moved = true;
            }
            self.poll()?;
            for _ in 0..std::mem::take(&mut self.ended) {
                over += 1;
                watch.lap();
                moved = true;
            }
            self.pace(moved, "a write to end, or a place to be announced")?;
        }
        Ok(())
    }

    /// Announces a window of targets, each again when its bytes have arrived.
    fn take(&mut self, messages: usize, watch: &mut Stopwatch) -> Result<(), GroupError> {
        let (mut asked, mut over) = (0, 0);
        self.patience.reset();
        while over < messages {
            let mut moved = false;
            while asked < messages && asked - over < self.raw.window && self.announce(asked)? {
                asked += 1;
                moved = true;
            }
            self.poll()?;
            for _ in 0..std::mem::take(&mut self.arrived) {
                over += 1;
                watch.lap();
                moved = true;
            }
            self.pace(moved, "a write to arrive")?;
        }
        Ok(())
    }

    /// The ping-pong: writes and waits for the answer, or the reverse. Targets are announced when `pingpong` would post receives.
    fn rally(&mut self, messages: usize, watch: &mut Stopwatch) -> Result<(), GroupError> {
        let inject = !self.raw.no_inject && self.bytes <= self.nic.inject_bytes::<Data>();
        let ahead = self.raw.ahead();
        let (mut asked, mut waited_for, mut ended) = (0, 0, 0);
        for number in 0..messages {
            self.announce_up_to(&mut asked, (number + ahead).min(messages))?;
            if !self.first {
                self.arrival("a write to arrive")?;
                self.announce_up_to(&mut asked, (number + 1 + ahead).min(messages))?;
            }
            // The last write has a completion to wait for: an injected one could stay in a provider that is no longer polled.
            let inject = inject && number + 1 < messages;
            self.patience.reset();
            loop {
                ended += std::mem::take(&mut self.ended);
                if waited_for - ended < WRITES && self.put(number, inject)? {
                    waited_for += usize::from(!inject);
                    break;
                }
                self.poll()?;
                self.pace(false, "a place to be announced")?;
            }
            if self.first {
                self.arrival("a write to arrive")?;
            }
            watch.lap();
        }
        self.patience.reset();
        while ended < waited_for {
            self.poll()?;
            ended += std::mem::take(&mut self.ended);
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
        let mut posts = self.nic.data_posts();
        posts += self.nic.control_posts();
        posts
    }

    #[inline]
    fn poll(&mut self) -> Result<(), GroupError> {
        // A receive may have been refused.
        if self.nic.poll_data().is_empty() && self.control.unposted.is_empty() {
            return Ok(());
        }
        while let Some(event) = self.nic.next_data() {
            match event {
                Event::Arrived { .. } => self.arrived += 1,
                Event::Ended { token: WRITTEN, .. } => self.ended += 1,
                Event::Ended { token: SAID, .. } => self.control.in_flight -= 1,
                Event::Ended { token, .. } => {
                    let room = usize::try_from(token).ok().filter(|room| *room < LETTERS);
                    self.announced.push_back(self.control.announcement(room.ok_or_else(stray)?));
                }
                Event::Failed(failed) => {
                    let why = format!("a write or a message failed: {}", failed.error);
                    return Err(GroupError::Contract(why));
                }
                Event::Broken(error) => return Err(broken(error)),
            }
        }
        self.control.post_rooms(&mut self.nic)
    }
}

fn stray() -> GroupError {
    GroupError::Contract("an operation ended that was never posted".to_owned())
}
