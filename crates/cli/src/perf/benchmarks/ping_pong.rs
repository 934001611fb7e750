//! pingpong: one message back and forth, or a group of them, with receives posted ahead or late, and sends tested lazily, as NCCL's proxies
//! do.

use std::time::Instant;

use ironrail_group::check::{self, Expected};
use ironrail_group::communicator::Communicator;
use ironrail_group::error::GroupError;
use ironrail_group::loader::{Buffer, DataType, Region};

use super::{Exchange, GUARD_BYTES, Shape, buffer};
use crate::perf::arguments::{Options, PingPong};
use crate::perf::slots::Slots;
use crate::perf::statistics::Stopwatch;

pub(super) struct Rally {
    regions: (Region, Region), // Deregistered before the buffers are freed.
    input: Buffer,
    output: Buffer,
    how: PingPong,
    kind: DataType,
    bytes: usize,
    slots: Slots,
}

/// Sends outstanding when the oldest is waited for, like NCCL_STEPS.
const SENDS_MAX: usize = 8;

/// Polls of a receive per poll of a send: a plugin may move a long message only while its send is tested, and of a short one the round
/// trip is measured.
const SEND_TURN: u64 = 64;

impl Rally {
    pub(super) fn new(
        how: PingPong,
        options: &Options,
        communicator: &Communicator,
    ) -> Result<Self, GroupError> {
        let send = options.most(|bytes| how.group * places(how, bytes).send_stride);
        let receive = options.most(|bytes| places(how, bytes).receive_bytes());
        let input = buffer(send)?;
        let output = buffer(receive + GUARD_BYTES)?;
        let regions =
            (communicator.next.register(&input)?, communicator.previous.register(&output)?);
        let slots = Slots::default();
        Ok(Self { regions, input, output, how, kind: options.kind, bytes: 0, slots })
    }

    fn rally(
        &mut self,
        communicator: &mut Communicator,
        messages: usize,
        mut lap: impl FnMut(),
    ) -> Result<(), GroupError> {
        let serves = communicator.ring().rank == 0;
        let mut receives = 0;
        for number in 0..messages {
            self.post_ahead(communicator, number, messages, &mut receives)?;
            if serves {
                self.send(communicator)?;
                self.post_late(communicator, number, &mut receives)?;
                self.receive(communicator)?;
                lap();
            } else {
                self.post_late(communicator, number, &mut receives)?;
                self.receive(communicator)?;
                // Receives of later messages are posted before the answer that triggers these messages.
                self.post_ahead(communicator, number + 1, messages, &mut receives)?;
                self.send(communicator)?;
                lap();
            }
        }
        let Communicator { next, previous, patience, .. } = communicator;
        patience.reset();
        while next.outstanding() > 0 {
            if !next.poll()? {
                patience.idle(|| Communicator::awaited(next, previous))?;
            }
        }
        Ok(())
    }

    /// Posts a batch of receives when `ahead` has room for one; message `number` is the next to arrive.
    fn post_ahead(
        &mut self,
        communicator: &mut Communicator,
        number: usize,
        messages: usize,
        receives: &mut usize,
    ) -> Result<(), GroupError> {
        let outstanding = *receives - number;
        if self.how.late().is_some() || outstanding + self.how.batch() > self.how.ahead {
            return Ok(());
        }
        let target = (number + self.how.ahead).min(messages);
        self.post_up_to(communicator, target, receives)
    }

    /// Posts the receive of message `number`, the next one, if none is posted ahead.
    fn post_late(
        &mut self,
        communicator: &mut Communicator,
        number: usize,
        receives: &mut usize,
    ) -> Result<(), GroupError> {
        let Some(late) = self.how.late() else { return Ok(()) };
        let since = Instant::now();
        while since.elapsed() < late {
            let _ = communicator.next.poll()?;
        }
        self.post_up_to(communicator, number + 1, receives)
    }

    fn post_up_to(
        &mut self,
        communicator: &mut Communicator,
        target: usize,
        receives: &mut usize,
    ) -> Result<(), GroupError> {
        let Communicator { next, previous, patience, .. } = communicator;
        let room = self.bytes * self.how.recv_factor;
        patience.reset();
        while *receives < target {
            let Slots { count, receive_stride, .. } = self.slots;
            let first = *receives * self.how.group;
            let ranges = (first..first + self.how.group).map(|message| {
                let start = message % count * receive_stride;
                start..start + room
            });
            if previous.receive_group(&mut self.output, ranges, &self.regions.1)? {
                *receives += 1;
            } else {
                // The plugin has no free request: only a test frees one.
                let _ = next.poll()?;
                patience.idle(|| Communicator::awaited(next, previous))?;
            }
        }
        Ok(())
    }

    fn send(&self, communicator: &mut Communicator) -> Result<(), GroupError> {
        let Communicator { next, previous, patience, .. } = communicator;
        patience.reset();
        for place in 0..self.how.group {
            let start = place * self.slots.send_stride;
            let bytes = start..start + self.bytes;
            while !next.send_into_group(&self.input, bytes.clone(), &self.regions.0, place)? {
                let _ = next.poll()?;
                patience.idle(|| Communicator::awaited(next, previous))?;
            }
            // After the post, so that the test takes place while the message is on its way.
            while next.outstanding() >= SENDS_MAX {
                if !next.poll()? {
                    patience.idle(|| Communicator::awaited(next, previous))?;
                }
            }
        }
        Ok(())
    }

    fn receive(&self, communicator: &mut Communicator) -> Result<(), GroupError> {
        let Communicator { next, previous, patience, .. } = communicator;
        patience.reset();
        for polls in 1_u64.. {
            match previous.poll()? {
                Some(came) if came == self.bytes => return Ok(()),
                Some(came) => {
                    let len = self.bytes;
                    let why = format!("a message of {len} bytes arrived with a length of {came}");
                    return Err(GroupError::Contract(why));
                }
                None => patience.idle(|| Communicator::awaited(next, previous))?,
            }
            if polls.is_multiple_of(SEND_TURN) {
                let _ = next.poll()?;
            }
        }
        Ok(())
    }
}

/// Buffers for all messages that may be outstanding, and at least for those of one receive.
fn places(how: PingPong, bytes: usize) -> Slots {
    let slots = Slots::of(bytes, how.ahead * how.group, how.recv_factor);
    Slots { count: slots.count.max(how.group), ..slots }
}

impl Exchange for Rally {
    fn begin(&mut self, bytes: usize) -> Shape {
        let count = bytes / self.kind.bytes();
        self.bytes = count * self.kind.bytes();
        self.slots = places(self.how, self.bytes);
        let messages = u32::try_from(self.how.group).map_or(1.0, f64::from);
        Shape { bytes: self.bytes, count, bus_factor: messages }
    }

    fn run(
        &mut self,
        communicator: &mut Communicator,
        iterations: usize,
        watch: &mut Stopwatch,
    ) -> Result<(), GroupError> {
        watch.start();
        self.rally(communicator, iterations, || watch.lap())
    }

    fn check(
        &mut self,
        communicator: &mut Communicator,
        iteration: usize,
    ) -> Result<u64, GroupError> {
        let ring = communicator.ring();
        let (kind, count) = (self.kind, self.bytes / self.kind.bytes());
        let Slots { send_stride, receive_stride, .. } = self.slots;
        // Each message has its own data, so that a misplaced one is detected.
        let group = self.how.group;
        let number = |place| iteration * group + place;
        for place in 0..group {
            let start = place * send_stride;
            check::fill(&mut self.input, kind, start, count, ring.rank, number(place))?;
        }
        check::poison(&mut self.output)?;
        self.rally(communicator, 1, || ())?;
        let expected = Expected::Input { rank: ring.previous() };
        let (mut wrong, mut end) = (0, 0);
        for place in 0..group {
            let start = place * receive_stride;
            wrong += check::count_unpoisoned(&self.output, end..start)?;
            wrong += check::count_wrong(&self.output, kind, start, count, expected, number(place))?;
            end = start + self.bytes;
        }
        Ok(wrong + check::count_unpoisoned(&self.output, end..self.output.len())?)
    }

    fn laps_are_round_trips(&self) -> bool {
        true
    }
}
