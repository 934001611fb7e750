//! A send larger than its receive.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use net_loader::raw::{self, Arena, Before, Receive, Region, Request, Tested, Wrong};

use super::super::case::{Case, Outcome, fail, hold};
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
    talk(case, &good, &few(), Manner::LIKE_NCCL)?;
    case.stage("close the one that erred");
    bad.close()?;
    talk(case, &good, &few(), Manner::LIKE_NCCL)?;
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

/// Sends more than the receive has room for. Returns once both ends have completed or failed, and no byte was written outside of the
/// receive.
fn attempt(case: &Case, link: &Link, bytes: usize, room: usize) -> Outcome {
    let sent = pattern(5, bytes, bytes);
    let memory = arena(2 * bytes + room + 4 * GUARD_BYTES)?;
    let from = room + bytes + 2 * GUARD_BYTES;
    memory.write(from, &sent);
    clear(memory, GUARD_BYTES, room);
    memory.fill(GUARD_BYTES + room, bytes + GUARD_BYTES, GUARD);
    let out = link.send.register(memory, from, bytes)?;
    // The region is larger than the receive, as in NCCL.
    let into = link.receive.register(memory, 0, from)?;
    let warnings = raw::warnings();
    let part = Receive { arena: memory, at: GUARD_BYTES, len: room, tag: 0, region: &into };
    let mut receive =
        case.until("post a receive", || Ok(link.receive.irecv(&[part], Before::Null, true)?))?;
    let mut ends = Ends::default();
    let mut send: Option<Request> = None;
    let mut step = |ends: &mut Ends| {
        if ends.sent == End::Open {
            ends.sent = match &mut send {
                Some(request) => End::of(request.test()),
                None => match link.send.isend((memory, from, bytes), 0, &out, Before::Null) {
                    Ok(request) => {
                        send = request;
                        End::Open
                    }
                    Err(_) => End::Erred,
                },
            };
        }
        if ends.received == End::Open {
            ends.received = End::of(receive.test());
        }
    };
    let begun = Instant::now();
    case.stage(&format!("wait for both ends of {bytes} bytes sent into {room}"));
    while !ends.are_over() && begun.elapsed() < HEARD_BY_BOTH {
        step(&mut ends);
        thread::yield_now();
    }
    // Late writes may still land.
    thread::sleep(Duration::from_millis(20));
    let around = memory.read(0, from);
    let outside = around[..GUARD_BYTES].iter().chain(&around[GUARD_BYTES + room..]);
    let written = outside.filter(|byte| **byte != GUARD).count();
    hold!(written == 0, "{written} bytes are written past a receive of {room} bytes");
    ends.judge(bytes, room, raw::warnings() > warnings)?;
    if ends.received == End::Erred && ends.sent != End::Erred {
        let open = send.filter(|_| ends.sent == End::Open);
        later_sends_err(case, link, (memory, from), &out, open)?;
    }
    out.deregister()?;
    Ok(into.deregister()?)
}

/// A send may complete, or stay open, before the receiver has detected that the message is too long. The connection has failed then, and the
/// open send or later ones must report that: otherwise the sender's communicator would wait forever.
fn later_sends_err(
    case: &Case,
    link: &Link,
    (memory, from): (Arena, usize),
    out: &Region,
    open: Option<Request>,
) -> Outcome {
    case.stage("send on after a message that was too long");
    let begun = Instant::now();
    let mut requests: VecDeque<Request> = open.into_iter().collect();
    while begun.elapsed() < HEARD_BY_BOTH {
        if requests.len() < SENDS_MAX {
            match link.send.isend((memory, from, 1), 0, out, Before::Null) {
                Ok(posted) => requests.extend(posted),
                Err(_) => return Ok(()),
            }
        }
        // In NCCL's order: the oldest first.
        match requests.front_mut().map_or(End::Open, |oldest| End::of(oldest.test())) {
            End::Erred => return Ok(()),
            End::Done(_) => drop(requests.pop_front()),
            End::Open => {}
        }
        thread::yield_now();
    }
    fail("the receiver's end is an error, and the sender's gets none")
}

/// Sends that are open at once: one behind that of the message that was too long.
const SENDS_MAX: usize = 2;

/// The result of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    #[default]
    Open,
    /// The size from `test`.
    Done(i32),
    Erred,
}

impl End {
    fn of(tested: Result<Tested, Wrong>) -> Self {
        match tested {
            Ok(tested) if tested.done => Self::Done(tested.sizes[0]),
            Ok(_) => Self::Open,
            Err(_) => Self::Erred,
        }
    }
}

#[derive(Debug, Default)]
struct Ends {
    sent: End,
    received: End,
}

impl Ends {
    fn are_over(&self) -> bool {
        // If the receiver refused the message, the sender may learn of it only with its next message.
        self.received != End::Open && (self.sent != End::Open || self.received == End::Erred)
    }

    /// Fails unless both ends have an error, or the message is truncated and done at both ends, with a warning.
    fn judge(&self, bytes: usize, room: usize, warned: bool) -> Outcome {
        let what = format!("{bytes} bytes are sent into {room}");
        let size = match (self.received, self.sent) {
            (End::Erred, _) => return Ok(()),
            (End::Open, End::Erred) => {
                return fail(format_args!(
                    "{what}: an error at the sender's end, and the receiver's waits on"
                ));
            }
            (End::Open, _) => return fail(format_args!("{what}: the receive has no end")),
            (End::Done(size), End::Done(_)) => size,
            (End::Done(_), End::Erred) => {
                return fail(format_args!(
                    "{what}: an error at the sender's end, and the receiver's is done"
                ));
            }
            (End::Done(_), End::Open) => {
                return fail(format_args!(
                    "{what}: done at the receiver's end, and the sender's waits on"
                ));
            }
        };
        let fits = usize::try_from(size).is_ok_and(|size| size <= room);
        hold!(fits, "test reports {size} bytes in a receive of {room}");
        hold!(
            warned,
            "{bytes} bytes are truncated to {size} without an error and without a warning"
        );
        Ok(())
    }
}

const GUARD: u8 = 0xee;
/// The time in which both ends learn of a failure: both are polled all the time.
const HEARD_BY_BOTH: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(sent: End, received: End, warned: bool) -> bool {
        Ends { sent, received }.judge(100, 60, warned).is_ok()
    }

    #[test]
    fn an_error_at_one_end_alone_is_not_enough() {
        assert!(judged(End::Erred, End::Erred, false));
        // `later_sends_err` decides in this case.
        assert!(judged(End::Done(100), End::Erred, false));
        assert!(!judged(End::Erred, End::Open, true));
        assert!(!judged(End::Erred, End::Done(60), true));
    }

    #[test]
    fn a_cut_message_is_done_at_both_ends_with_a_warning() {
        assert!(judged(End::Done(100), End::Done(60), true));
        assert!(!judged(End::Done(100), End::Done(60), false));
        assert!(!judged(End::Done(100), End::Done(100), true));
        assert!(!judged(End::Open, End::Done(60), true));
        assert!(!judged(End::Done(100), End::Open, true));
    }
}
