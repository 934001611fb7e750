//! A send larger than its receive.

use std::time::Duration;

use ironrail_group::loader::raw::{self, Before, Receive, Request};

use super::super::case::{Case, Outcome, Stop, fail, hold};
use super::super::link::Link;
use super::super::traffic::{GUARD_BYTES, Manner, arena, clear, pattern};
use super::{few, talk};

pub(super) fn contained(case: &mut Case) -> Outcome {
    for (bytes, room) in [(9, 8), (4000, 1000), (300_000, 100), (1 << 20, (1 << 20) - 1), (64, 0)] {
        overlong(case, bytes, room)?;
    }
    Ok(())
}

pub(super) fn others(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let (bad, good) = (Link::open(case, &net)?, Link::open(case, &net)?);
    attempt(case, &bad, 4000, 1000)?;
    talk(case, &good, &few(), Manner::PLAIN)?;
    case.stage("close the one that erred");
    bad.close()?;
    talk(case, &good, &few(), Manner::PLAIN)?;
    good.close()?;
    Ok(net.finalize()?)
}

fn overlong(case: &mut Case, bytes: usize, room: usize) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    attempt(case, &link, bytes, room)?;
    case.stage("close");
    link.close()?;
    Ok(net.finalize()?)
}

/// Sends too much; comes back when an end has erred or both are done, and nothing was written where it must not be.
fn attempt(case: &Case, link: &Link, bytes: usize, room: usize) -> Outcome {
    let sent = pattern(5, bytes, bytes);
    let memory = arena(2 * bytes + room + 4 * GUARD_BYTES)?;
    let from = room + bytes + 2 * GUARD_BYTES;
    memory.write(from, &sent);
    clear(memory, GUARD_BYTES, room);
    memory.fill(GUARD_BYTES + room, bytes + GUARD_BYTES, GUARD);
    let out = link.send.register(memory, from, bytes)?;
    // The region is larger than the receive, as NCCL's are.
    let into = link.receive.register(memory, 0, from)?;
    let warnings = raw::warnings();
    let part = Receive { arena: memory, at: GUARD_BYTES, len: room, tag: 0, region: &into };
    let mut receive =
        case.until("post a receive", || Ok(link.receive.irecv(&[part], Before::Null, true)?))?;
    let mut ends = Ends::default();
    let mut send: Option<Request> = None;
    case.until(&format!("wait for the end of {bytes} bytes sent into {room}"), || {
        if send.is_none() && !ends.sender_erred {
            match link.send.isend((memory, from, bytes), 0, &out, Before::Null) {
                Ok(request) => send = request,
                Err(_) => ends.sender_erred = true,
            }
        }
        if let Some(request) = &mut send
            && !ends.sent
            && !ends.sender_erred
        {
            match request.test() {
                Ok(tested) => ends.sent = tested.done,
                Err(_) => ends.sender_erred = true,
            }
        }
        if ends.told.is_none() && !ends.receiver_erred {
            match receive.test() {
                Ok(tested) => ends.told = tested.done.then_some(tested.sizes[0]),
                Err(_) => ends.receiver_erred = true,
            }
        }
        let over = ends.sender_erred || ends.receiver_erred || (ends.sent && ends.told.is_some());
        Ok(over.then_some(()))
    })?;
    // What is on its way may still land.
    std::thread::sleep(Duration::from_millis(20));
    let around = memory.read(0, from);
    let outside = around[..GUARD_BYTES].iter().chain(&around[GUARD_BYTES + room..]);
    let written = outside.filter(|byte| **byte != GUARD).count();
    hold!(written == 0, "{written} bytes are written past a receive of {room} bytes");
    ends.judge(bytes, room, raw::warnings() > warnings)?;
    out.deregister()?;
    Ok(into.deregister()?)
}

#[derive(Debug, Default)]
struct Ends {
    sent: bool,
    sender_erred: bool,
    /// The size the receiver was told.
    told: Option<i32>,
    receiver_erred: bool,
}

impl Ends {
    fn judge(&self, bytes: usize, room: usize, warned: bool) -> Outcome {
        if self.sender_erred || self.receiver_erred {
            return Ok(());
        }
        let told = self.told.ok_or_else(|| Stop::Fail("the receive has no end".to_owned()))?;
        let fits = usize::try_from(told).is_ok_and(|told| told <= room);
        hold!(fits, "test tells {told} bytes in a receive of {room}");
        if warned {
            return Ok(());
        }
        fail(format_args!("{bytes} bytes are cut to {told} without an error and without a warning"))
    }
}

const GUARD: u8 = 0xee;
