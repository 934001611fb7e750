//! Two-sided: messages (fi_msg(3)) into receives that were posted ahead, a window of them outstanding.
//!
//! A message is outstanding until the peer has received it, as with the plugin: the receiver acknowledges every half window, so that the
//! sender never stalls. With --unanswered it is outstanding until the local send completes. Back and forth, the message that arrives is the
//! acknowledgement, and a receive is posted again before the next message is sent.

use fabric::{Control, Event, Info, Nic, NicOptions, Pages, PeerAddress, Post, Posts, Region};
use ironrail_group::bootstrap::Bootstrap;
use ironrail_group::error::GroupError;
use ironrail_group::patience::{Patience, spins_for};

use super::{QUEUE_ENTRIES, Side, Waits, beyond, broken};
use crate::perf::arguments::{Options, Raw};
use crate::perf::slots::Slots;
use crate::perf::statistics::Stopwatch;

/// An endpoint for messages, its memory, and its one peer. Rank 0 sends, rank 1 receives and acknowledges; back and forth, rank 0 begins.
pub(super) struct Mail {
    nic: Nic,
    source: Region<Control>,
    target: Region<Control>,
    peer: PeerAddress,
    raw: Raw,
    first: bool,
    bytes: usize,
    /// The send buffers for this size.
    slots: Slots,
    /// The receive buffers: the same at every size, since receives stay posted from one to the next.
    rooms: Slots,
    /// Receives to be posted, by their tokens.
    unposted: Vec<usize>,
    patience: Patience,
    /// Sends that have not completed.
    in_flight: usize,
    /// Received messages that were not counted yet.
    arrived: usize,
}

/// Receives posted ahead, one way: enough that a full window always finds one.
const AHEAD: usize = 128;
const ANSWER_BYTES: usize = 1;
/// The token of sends; the token of a receive is its number.
const SENT: u64 = u64::MAX;

impl Mail {
    pub(super) fn open(
        raw: &Raw,
        options: &Options,
        info: &Info,
        bootstrap: &mut dyn Bootstrap,
    ) -> Result<Self, GroupError> {
        let wait = options.timeout();
        let operations = u16::try_from(raw.window + AHEAD)
            .map_err(|_| GroupError::Usage(format!("a window of {}", raw.window)))?;
        let entries = QUEUE_ENTRIES;
        let control = info.endpoint_options::<Control>();
        let rails =
            NicOptions { control: Some(&control), entries, operations, ..NicOptions::of(info) };
        let mut nic = Nic::open(info, &rails).map_err(broken)?;
        let first = bootstrap.rank() == 0;
        let received = if first && !raw.latency { ANSWER_BYTES } else { options.last() };
        let ahead = if raw.latency { raw.ahead() } else { AHEAD };
        let rooms = Slots::of(received, ahead, 1);
        let source = options.most(|bytes| source(raw, first, bytes).send_bytes());
        let names = bootstrap.all_gather(nic.control_name(), wait)?;
        let peer = nic.add_peer::<Control>(&names[1 - bootstrap.rank()]).map_err(broken)?;
        let mut register = |bytes: usize| {
            let pages = Pages::map(bytes).map_err(broken)?;
            pages.fill(0, pages.len(), 1); // Every page is there before the clock runs.
            nic.register(pages.into()).map_err(broken)
        };
        let mut mail = Self {
            peer,
            source: register(source)?,
            target: register(rooms.receive_bytes())?,
            nic,
            raw: raw.clone(),
            first,
            bytes: 0,
            slots: Slots::default(),
            rooms,
            unposted: (0..ahead).collect(),
            patience: Patience::new(wait, spins_for(2)),
            in_flight: 0,
            arrived: 0,
        };
        mail.post_receives()?;
        Ok(mail)
    }

    fn inject(&mut self) -> Result<bool, GroupError> {
        let address = self.source.memory().address();
        let bytes = self.source.host_bytes(address, self.bytes).ok_or_else(beyond)?;
        let posted = self.nic.inject_send(bytes, self.peer).map_err(broken)?;
        Ok(posted == Post::Accepted)
    }

    fn send(&mut self, number: usize) -> Result<bool, GroupError> {
        if self.in_flight == self.raw.window {
            return Ok(false);
        }
        let bytes = if self.first || self.raw.latency { self.bytes } else { ANSWER_BYTES };
        let offset = number % self.slots.count * self.slots.send_stride;
        let bytes = self.source.local(offset, bytes).ok_or_else(beyond)?;
        let posted = self.nic.send(bytes, self.peer, SENT).map_err(broken)?;
        self.in_flight += usize::from(posted == Post::Accepted);
        Ok(posted == Post::Accepted)
    }

    /// Posts completed receives again, as far as there is room.
    fn post_receives(&mut self) -> Result<(), GroupError> {
        let Slots { count, receive_stride, .. } = self.rooms;
        while let Some(number) = self.unposted.last() {
            let room = self.target.local(number % count * receive_stride, receive_stride);
            let room = room.ok_or_else(beyond)?;
            let post = self.nic.receive(room, *number as u64).map_err(broken)?;
            if post != Post::Accepted {
                break;
            }
            self.unposted.pop();
        }
        Ok(())
    }
}

/// The send buffers of a rank for messages of this size.
fn source(raw: &Raw, first: bool, bytes: usize) -> Slots {
    match (raw.latency, first) {
        // From one buffer, as with the plugin.
        (true, _) => Slots::of(bytes, 1, 1),
        (false, true) => Slots::of(bytes, raw.window, 1),
        (false, false) => Slots::of(ANSWER_BYTES, raw.window, 1),
    }
}

impl Side for Mail {
    fn begin(&mut self, bytes: usize) {
        self.bytes = bytes;
        self.slots = source(&self.raw, self.first, bytes);
    }

    fn pour(&mut self, messages: usize, watch: &mut Stopwatch) -> Result<(), GroupError> {
        let (mut posted, mut over) = (0, 0);
        self.patience.reset();
        while over < messages || self.in_flight > 0 {
            let mut moved = false;
            while posted < messages && posted - over < self.raw.window && self.send(posted)? {
                posted += 1;
                moved = true;
            }
            self.poll()?;
            let now = if self.raw.unanswered {
                posted - self.in_flight
            } else {
                let answers = std::mem::take(&mut self.arrived);
                (over + answers * self.raw.half_window()).min(messages)
            };
            (over..now).for_each(|_| watch.lap());
            moved |= now > over;
            over = now;
            self.pace(moved, "a message")?;
        }
        Ok(())
    }

    fn take(&mut self, messages: usize, watch: &mut Stopwatch) -> Result<(), GroupError> {
        let (mut over, mut answered) = (0, 0);
        let answers = if self.raw.unanswered { 0 } else { self.raw.answers(messages, messages) };
        self.patience.reset();
        while over < messages || answered < answers || self.in_flight > 0 {
            self.poll()?;
            // Messages of the next round are left to that round.
            let now = self.arrived.min(messages - over);
            self.arrived -= now;
            over += now;
            (0..now).for_each(|_| watch.lap());
            let mut moved = now > 0;
            let due = self.raw.answers(over, messages).min(answers);
            while answered < due && self.send(answered)? {
                answered += 1;
                moved = true;
            }
            self.pace(moved, "a message")?;
        }
        Ok(())
    }

    /// Sends and waits for the answer, or the other way round.
    fn rally(&mut self, messages: usize, watch: &mut Stopwatch) -> Result<(), GroupError> {
        let inject = !self.raw.no_inject && self.bytes <= self.nic.inject_bytes::<Control>();
        for number in 0..messages {
            if !self.first {
                self.arrival("a message")?;
            }
            self.patience.reset();
            // The last one has a completion, so that it does not stay in a queue that is no longer polled.
            let inject = inject && number + 1 < messages;
            while !(if inject { self.inject()? } else { self.send(number)? }) {
                self.poll()?;
                self.pace(false, "a message")?;
            }
            if self.first {
                self.arrival("a message")?;
            }
            watch.lap();
        }
        self.patience.reset();
        while self.in_flight > 0 {
            self.poll()?;
            self.pace(false, "a message")?;
        }
        Ok(())
    }

    #[inline]
    fn waits(&mut self) -> Waits<'_> {
        let Self { nic, patience, arrived, .. } = self;
        Waits { nic, patience, arrived }
    }

    fn posts(&self) -> Posts {
        self.nic.control_posts()
    }

    #[inline]
    fn poll(&mut self) -> Result<(), GroupError> {
        // A receive may have been refused.
        if self.nic.poll_control().is_empty() && self.unposted.is_empty() {
            return Ok(());
        }
        while let Some(event) = self.nic.next_control() {
            match event {
                Event::Ended { token: SENT, .. } => self.in_flight -= 1,
                Event::Ended { token, .. } => {
                    self.arrived += 1;
                    self.unposted.extend(usize::try_from(token));
                }
                Event::Arrived { .. } => {}
                Event::Failed(failed) => {
                    let error = failed.error;
                    return Err(GroupError::Contract(format!("a message failed: {error}")));
                }
                Event::Broken(error) => return Err(broken(error)),
            }
        }
        self.post_receives()
    }
}
