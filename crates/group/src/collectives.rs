//! Runs a [`Plan`] over a communicator: one loop for every collective, no allocation in it.

use std::ops::Range;

use crate::communicator::Communicator;
use crate::error::{GroupError, MemoryError};
use crate::loader::{Buffer, DataType, Element, Op, Region};
use crate::plan::{Place, Plan, Receive, Then};
use crate::with_element;

/// The buffers of a collective, registered where they are used.
#[derive(Debug)]
pub struct Workspace {
    regions: Regions, // Deregistered before the buffers are freed.
    pub input: Buffer,
    pub output: Buffer,
    staging: Buffer,
}

#[derive(Debug)]
struct Regions {
    input: Region,
    output_send: Region,
    output_receive: Region,
    staging_send: Region,
    staging_receive: Region,
}

impl Workspace {
    /// Buffers of these sizes; zero is fine.
    pub fn new(
        communicator: &Communicator,
        input_bytes: usize,
        output_bytes: usize,
        staging_bytes: usize,
    ) -> Result<Self, GroupError> {
        let input = Buffer::new(input_bytes)?;
        let output = Buffer::new(output_bytes)?;
        let staging = Buffer::new(staging_bytes)?;
        let (next, previous) = (&communicator.next, &communicator.previous);
        let regions = Regions {
            input: next.register(&input)?,
            output_send: next.register(&output)?,
            output_receive: previous.register(&output)?,
            staging_send: next.register(&staging)?,
            staging_receive: previous.register(&staging)?,
        };
        Ok(Self { regions, input, output, staging })
    }
}

/// How many requests are outstanding in each direction, as with NCCL_STEPS.
pub const WINDOW: usize = 8;

/// Runs this rank's part. Elements are of type `kind` and reduced by `op`, which the type must support; a plan that only moves bytes
/// takes any. `window` must not be above the plan's slots.
pub fn run(
    communicator: &mut Communicator,
    workspace: &mut Workspace,
    plan: &Plan,
    (kind, op): (DataType, Op),
    window: usize,
) -> Result<(), GroupError> {
    if !kind.supports(op) {
        return Err(GroupError::Usage(format!("elements of type {kind} have no {op}")));
    }
    let ranks = communicator.ring().size;
    let Communicator { next, previous, patience, .. } = communicator;
    let Workspace { input, output, staging, regions } = workspace;
    if let Some((from, to)) = &plan.copy {
        let to = *to..*to + from.len();
        output.slice_mut::<u8>(to)?.copy_from_slice(input.slice::<u8>(from.clone())?);
    }
    let (sends_before, receives_before) = (next.done(), previous.done());
    let (mut posted_sends, mut posted_receives) = (0, 0);
    patience.reset();
    loop {
        let mut moved = false;
        let sent = next.done() - sends_before;
        let worked_up = previous.done() - receives_before;
        if sent == plan.sends.len() && worked_up == plan.receives.len() {
            return Ok(());
        }
        while let Some(receive) = plan.receives.get(posted_receives) {
            if posted_receives - worked_up >= window || sent < receive.after_sends {
                break;
            }
            let (buffer, region) = match receive.to {
                Place::Output => (&mut *output, &regions.output_receive),
                _ => (&mut *staging, &regions.staging_receive),
            };
            if !previous.receive(buffer, receive.bytes.clone(), region)? {
                break;
            }
            posted_receives += 1;
            moved = true;
        }
        if let Some(len) = previous.poll()? {
            let receive = &plan.receives[worked_up];
            if len != receive.bytes.len() {
                return Err(GroupError::Contract(format!(
                    "rank {} sent {} bytes, the plugin brought {len}",
                    previous.peer(),
                    receive.bytes.len()
                )));
            }
            finish(receive, (kind, op, ranks), input, output, staging)?;
            moved = true;
        }
        let worked_up = previous.done() - receives_before;
        while let Some(send) = plan.sends.get(posted_sends) {
            if posted_sends - sent >= window || worked_up < send.after_receives {
                break;
            }
            let (buffer, region) = match send.from {
                Place::Input => (&*input, &regions.input),
                Place::Output => (&*output, &regions.output_send),
                Place::Staging => (&*staging, &regions.staging_send),
            };
            if !next.send(buffer, send.bytes.clone(), region)? {
                break;
            }
            posted_sends += 1;
            moved = true;
        }
        moved |= next.poll()?;
        if moved {
            patience.reset();
        } else {
            patience.idle(|| Communicator::whom(next, previous))?;
        }
    }
}

/// What is to be done with a message that has come.
fn finish(
    receive: &Receive,
    (kind, op, ranks): (DataType, Op, usize),
    input: &Buffer,
    output: &mut Buffer,
    staging: &mut Buffer,
) -> Result<(), MemoryError> {
    let work = Reduction { op, ranks, slot: receive.bytes.clone(), then: receive.then };
    with_element!(kind, T => work.run::<T>(input, output, staging))
}

struct Reduction {
    op: Op,
    ranks: usize,
    slot: Range<usize>,
    then: Then,
}

impl Reduction {
    fn run<T: Element>(
        self,
        input: &Buffer,
        output: &mut Buffer,
        staging: &mut Buffer,
    ) -> Result<(), MemoryError> {
        let len = self.slot.len();
        match self.then {
            Then::Nothing => {}
            Then::AddInput { input: from } => {
                let slot = staging.slice_mut::<T>(self.slot)?;
                T::reduce(self.op, slot, input.slice(from..from + len)?);
            }
            Then::Finish { input: from, output: to } => {
                let whole = output.slice_mut::<T>(to..to + len)?;
                let (partial, own) = (staging.slice(self.slot)?, input.slice(from..from + len)?);
                T::reduce_into(self.op, whole, partial, own);
                // The one place where a chunk becomes whole.
                if self.op == Op::Avg {
                    T::divide(whole, u32::try_from(self.ranks).unwrap_or(u32::MAX));
                }
            }
        }
        Ok(())
    }
}
