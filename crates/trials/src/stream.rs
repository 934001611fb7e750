//! What a rank does in the pattern of NCCL's proxies: many messages outstanding, both ways, each checked when it has arrived.
//!
//! The first element of a message says whether it is the last one. Rank 0 ends when its standard input has, rank 1 after rank 0's last.

use std::sync::Arc;
use std::time::Duration;

use ironrail_group::bootstrap::Bootstrap;
use ironrail_group::communicator::Communicator;
use ironrail_group::error::GroupError;
use ironrail_group::loader::{Buffer, Library, Region};
use ironrail_group::start::Start;

use crate::Outcome;
use crate::lap::{Lap, check, fill, now_micros, pattern};
use crate::say;

/// Messages each way at a time: as many as a connection can have outstanding.
const WINDOW: usize = 32;

/// Moves messages of `bytes` bytes until rank 0 ends. Each that arrives is a line.
pub(crate) fn run(
    library: &Arc<Library>,
    start: &Start,
    bytes: usize,
    wait: Duration,
    wants_end: impl Fn() -> bool,
) -> Outcome<()> {
    let (mut place, _hub) = start.join(wait)?;
    let first = place.rank() == 0;
    let mut ring = Communicator::connect(library, &mut place, None, wait)?;
    let mut sends = Slots::new(bytes, |buffer| ring.next.register(buffer))?;
    let mut receives = Slots::new(bytes, |buffer| ring.previous.register(buffer))?;
    let (mut filled, mut said, mut heard) = (None, false, false);
    while !heard || !said || ring.next.outstanding() > 0 {
        let mut moved = false;
        while !heard && ring.previous.posted() < ring.previous.done() + WINDOW {
            let (buffer, region) = receives.of(ring.previous.posted());
            if !ring.previous.receive(buffer, 0..bytes, region)? {
                break;
            }
            moved = true;
        }
        if !said && ring.next.outstanding() < WINDOW {
            let number = ring.next.posted();
            let (buffer, region) = sends.of(number);
            let last = match filled {
                Some(last) => last,
                None => {
                    let last = if first { wants_end() } else { heard };
                    fill(buffer.slice_mut(0..bytes)?, lap_of(number), last);
                    last
                }
            };
            let sent = ring.next.send(buffer, 0..bytes, region)?;
            filled = (!sent).then_some(last);
            said = sent && last;
            moved |= sent;
        }
        moved |= ring.next.poll()?;
        if ring.previous.poll()?.is_some() {
            let number = ring.previous.done() - 1;
            let (buffer, _) = receives.of(number);
            let expected = |at| pattern(at, lap_of(number));
            let (wrong, last) = check(buffer.slice(0..bytes)?, expected);
            say(Lap { at_micros: now_micros(), wrong, groups: 1 }.line());
            (heard, moved) = (last, true);
        }
        if moved {
            ring.patience.reset();
        } else {
            ring.patience.idle(|| "the other rank's messages".to_owned())?;
        }
    }
    Ok(())
}

/// One direction's buffers, used in turns.
struct Slots(Vec<(Buffer, Region)>);

impl Slots {
    fn new(
        bytes: usize,
        register: impl Fn(&Buffer) -> Result<Region, GroupError>,
    ) -> Result<Self, GroupError> {
        let slot = |_| {
            let buffer = Buffer::new(bytes)?;
            let region = register(&buffer)?;
            Ok((buffer, region))
        };
        Ok(Self((0..WINDOW).map(slot).collect::<Result<_, GroupError>>()?))
    }

    fn of(&mut self, message: usize) -> &mut (Buffer, Region) {
        &mut self.0[message % WINDOW]
    }
}

fn lap_of(number: usize) -> u32 {
    u32::try_from(number % (1 << 30)).unwrap_or_default()
}
