//! sendrecv: messages to the next rank and from the previous, a window of them outstanding.

use ironrail_group::check::{self, Expected};
use ironrail_group::communicator::Communicator;
use ironrail_group::error::GroupError;
use ironrail_group::loader::{Buffer, DataType, Region};

use super::{Exchange, GUARD_BYTES, Shape, buffer};
use crate::perf::arguments::{Options, Stream};
use crate::perf::slots::Slots;
use crate::perf::statistics::Stopwatch;

pub(super) struct Streaming {
    regions: (Region, Region), // Deregistered before the buffers are freed.
    input: Buffer,
    output: Buffer,
    how: Stream,
    kind: DataType,
    /// This rank's role.
    sends: bool,
    receives: bool,
    bytes: usize,
    slots: Slots,
}

impl Streaming {
    pub(super) fn new(
        how: Stream,
        options: &Options,
        communicator: &Communicator,
    ) -> Result<Self, GroupError> {
        let rank = communicator.ring().rank;
        let slots = |bytes| Slots::of(bytes, how.window, how.recv_factor);
        let input = buffer(options.most(|bytes| slots(bytes).send_bytes()))?;
        let output = buffer(options.most(|bytes| slots(bytes).receive_bytes()) + GUARD_BYTES)?;
        let regions =
            (communicator.next.register(&input)?, communicator.previous.register(&output)?);
        Ok(Self {
            regions,
            input,
            output,
            how,
            kind: options.kind,
            sends: !how.one_way || rank.is_multiple_of(2),
            receives: !how.one_way || !rank.is_multiple_of(2),
            bytes: 0,
            slots: Slots::default(),
        })
    }

    fn stream(
        &mut self,
        communicator: &mut Communicator,
        messages: usize,
        mut lap: impl FnMut(),
    ) -> Result<(), GroupError> {
        let Communicator { next, previous, patience, .. } = communicator;
        let Stream { window, recv_factor, group, .. } = self.how;
        let Slots { count, send_stride, receive_stride } = self.slots;
        let (len, room) = (self.bytes, self.bytes * recv_factor);
        let to_send = if self.sends { messages } else { 0 };
        let to_receive = if self.receives { messages } else { 0 };
        let (sends_before, receives_before) = (next.done(), previous.done());
        let (mut sends, mut receives, mut laps) = (0, 0, 0);
        patience.reset();
        loop {
            let mut moved = false;
            let sent = next.done() - sends_before;
            let received = previous.done() - receives_before;
            // A message is over when it was received and its counterpart was sent.
            let whole = match (self.sends, self.receives) {
                (true, true) => sent.min(received),
                (true, false) => sent,
                _ => received,
            };
            while laps < whole {
                lap();
                laps += 1;
            }
            if laps == messages {
                return Ok(());
            }
            while receives < to_receive {
                let together = group.min(to_receive - receives);
                if receives - received + together > window {
                    break;
                }
                let ranges = (receives..receives + together).map(|message| {
                    let start = message % count * receive_stride;
                    start..start + room
                });
                if !previous.receive_group(&mut self.output, ranges, &self.regions.1)? {
                    break;
                }
                receives += together;
                moved = true;
            }
            while sends < to_send && sends - sent < window {
                let start = sends % count * send_stride;
                let (bytes, place) = (start..start + len, sends % group);
                if !next.send_into_group(&self.input, bytes, &self.regions.0, place)? {
                    break;
                }
                sends += 1;
                moved = true;
            }
            if let Some(came) = previous.poll()? {
                if came != len {
                    return Err(GroupError::Contract(format!(
                        "a message of {len} bytes arrived with a length of {came}"
                    )));
                }
                moved = true;
            }
            moved |= next.poll()?;
            if moved {
                patience.reset();
            } else {
                patience.idle(|| Communicator::awaited(next, previous))?;
            }
        }
    }
}

impl Exchange for Streaming {
    fn begin(&mut self, bytes: usize) -> Shape {
        let count = bytes / self.kind.bytes();
        self.bytes = count * self.kind.bytes();
        self.slots = Slots::of(self.bytes, self.how.window, self.how.recv_factor);
        Shape { bytes: self.bytes, count, bus_factor: 1.0 }
    }

    fn run(
        &mut self,
        communicator: &mut Communicator,
        iterations: usize,
        watch: &mut Stopwatch,
    ) -> Result<(), GroupError> {
        watch.start();
        self.stream(communicator, iterations, || watch.lap())
    }

    fn check(
        &mut self,
        communicator: &mut Communicator,
        iteration: usize,
    ) -> Result<u64, GroupError> {
        let ring = communicator.ring();
        let Slots { count: messages, send_stride, receive_stride } = self.slots;
        let (kind, count) = (self.kind, self.bytes / self.kind.bytes());
        // Each message has its own data, so that a misplaced one is detected.
        let number = |slot| iteration * messages + slot;
        for slot in 0..messages {
            check::fill(&mut self.input, kind, slot * send_stride, count, ring.rank, number(slot))?;
        }
        check::poison(&mut self.output)?;
        self.stream(communicator, messages, || ())?;
        let mut wrong = 0;
        if self.receives {
            let expected = Expected::Input { rank: ring.previous() };
            for slot in 0..messages {
                let start = slot * receive_stride;
                let end = start + self.bytes;
                wrong +=
                    check::count_wrong(&self.output, kind, start, count, expected, number(slot))?;
                wrong += check::count_unpoisoned(&self.output, end..start + receive_stride)?;
            }
            let behind = messages * receive_stride..self.output.len();
            wrong += check::count_unpoisoned(&self.output, behind)?;
        }
        Ok(wrong)
    }
}
