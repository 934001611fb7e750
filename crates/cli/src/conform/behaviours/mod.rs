//! The behaviours, by chapter.

pub(super) mod closing;
pub(super) mod connections;
pub(super) mod flush;
pub(super) mod gpu;
pub(super) mod groups;
pub(super) mod lines;
pub(super) mod loading;
pub(super) mod messages;
pub(super) mod mixed;
pub(super) mod properties;
pub(super) mod registration;
pub(super) mod requests;
pub(super) mod silence;
pub(super) mod threads;
mod too_long;

use std::fs;
use std::time::Duration;

use net_loader::Properties;
use net_loader::raw::{Arena, Before, Net, Receive, ReceiveComm, Region, SendComm, Wrong};

use super::case::{Case, Outcome, Stop, fail, hold, skip};
use super::link::Link;
use super::traffic::{
    Flow, GUARD_BYTES, Incoming, Manner, Message, Outgoing, arena, clear, drive, first_other_than,
    pattern,
};

/// Moves messages: in both directions between two processes, from end to end in one process. Each side waits until both are done.
pub(super) fn talk(case: &mut Case, link: &Link, messages: &[Message], manner: Manner) -> Outcome {
    talk_alone(case, link, messages, manner)?;
    case.meet("all messages are done")
}

/// As [`talk`], without waiting for the other side.
pub(super) fn talk_alone(
    case: &Case,
    link: &Link,
    messages: &[Message],
    manner: Manner,
) -> Outcome {
    talk_between(case, link, messages, manner, manner)
}

/// As [`talk`], with different manners for sends and receives.
pub(super) fn talk_between(
    case: &Case,
    link: &Link,
    messages: &[Message],
    sends: Manner,
    receives: Manner,
) -> Outcome {
    let mut out = Outgoing::new(&link.send, case.role(), messages, sends)?;
    let mut into = Incoming::new(&link.receive, case.source(), messages, receives)?;
    drive(case, "move messages", &mut [&mut out, &mut into])?;
    out.end()?;
    into.end()
}

/// As [`talk`], in windows: nothing of a window is sent before all its receives are posted, and nothing is tested before all its sends are
/// posted.
pub(super) fn talk_in_windows(
    case: &Case,
    link: &Link,
    messages: &[Message],
    manner: Manner,
) -> Outcome {
    let mut out = Outgoing::new(&link.send, case.role(), messages, manner)?;
    let mut into = Incoming::new(&link.receive, case.source(), messages, manner)?;
    into.fill(case)?;
    case.meet("a window of receives is posted")?;
    out.fill(case, || into.poll().map(drop))?;
    drive(case, "move messages", &mut [&mut out, &mut into])?;
    out.end()?;
    into.end()?;
    case.meet("all messages are done")
}

/// Moves messages beside another thread, of which `rounds` counts the rounds. Some rounds pass while a receive waits for its message:
/// while messages move, the machine may let the other thread rest.
pub(super) fn talk_beside_rounds(
    case: &Case,
    link: &Link,
    messages: &[Message],
    rounds: impl Fn() -> usize,
) -> Outcome {
    let mut out = Outgoing::new(&link.send, case.role(), messages, Manner::LIKE_NCCL)?;
    let mut into = Incoming::new(&link.receive, case.source(), messages, Manner::LIKE_NCCL)?;
    case.until("post a receive", || Ok(into.post()?.then_some(())))?;
    let enough = rounds().saturating_add(ROUNDS_BESIDE);
    case.until("poll a receive beside another thread's calls", || {
        hold!(!into.poll()?, "a receive is done without a message");
        Ok((rounds() >= enough).then_some(()))
    })?;
    case.meet("both have waited beside another thread")?;
    drive(case, "move messages", &mut [&mut out, &mut into])?;
    out.end()?;
    into.end()
}

const ROUNDS_BESIDE: usize = 5;

/// Leaves requests outstanding at both ends: messages that may be under way, and a receive without a message.
pub(super) fn begin(out: &mut Outgoing<'_>, into: &mut Incoming<'_>, steps: usize) -> Outcome {
    for _ in 0..steps {
        nudge(&mut [out, into])?;
    }
    into.post().map(drop)
}

/// A communicator from load to finalize that moves messages in windows.
pub(super) fn windows(case: &mut Case, messages: &[Message], manner: Manner) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    talk_in_windows(case, &link, messages, manner)?;
    link.close()?;
    Ok(net.finalize()?)
}

/// A communicator from load to finalize: load, connect, move, close, finalize.
pub(super) fn whole(case: &mut Case, messages: &[Message], manner: Manner) -> Outcome {
    let net = case.net()?;
    let link = Link::open(case, &net)?;
    talk(case, &link, messages, manner)?;
    case.stage("close");
    link.close()?;
    Ok(net.finalize()?)
}

/// A few messages of all kinds.
pub(super) fn few() -> Vec<Message> {
    [0, 1, 8, 4096, 70_001, 8].map(|bytes| Message::of(bytes).in_room(bytes + 100)).to_vec()
}

/// Sends one message and waits until it is done.
pub(super) fn give(case: &Case, comm: &SendComm, bytes: &[u8], tag: i32) -> Outcome {
    let memory = arena(bytes.len())?;
    memory.write(0, bytes);
    let region = comm.register(memory, 0, memory.len())?;
    let place = (memory, 0, bytes.len());
    let mut request =
        case.until("send a message", || Ok(comm.isend(place, tag, &region, Before::Null)?))?;
    case.until("wait for a send", || Ok(request.test()?.done.then_some(())))?;
    Ok(region.deregister()?)
}

/// Moves a message from a place in one region to a place in another.
pub(super) fn carry(
    case: &Case,
    link: &Link,
    (out, from): (&Region, (Arena, usize)),
    (into, to): (&Region, (Arena, usize)),
    len: usize,
) -> Outcome {
    let bytes = pattern(3, from.1 + to.1, len);
    from.0.write(from.1, &bytes);
    to.0.fill(to.1, len, 0);
    let part = Receive { arena: to.0, at: to.1, len, tag: 0, region: into };
    let mut receive =
        case.until("post a receive", || Ok(link.receive.irecv(&[part], Before::Null, true)?))?;
    let mut send = case.until("post a send", || {
        Ok(link.send.isend((from.0, from.1, len), 0, out, Before::Null)?)
    })?;
    let (mut sent, mut came) = (false, false);
    case.until("move a message", || {
        sent = sent || send.test()?.done;
        came = came || receive.test()?.done;
        Ok((sent && came).then_some(()))
    })?;
    if to.0.is_on_device() && len > 0 {
        flush(case, link, &[part])?;
    }
    hold!(to.0.read(to.1, len) == bytes, "{len} bytes from {} to {} are wrong", from.1, to.1);
    Ok(())
}

/// Makes received bytes visible to a GPU.
pub(super) fn flush(case: &Case, link: &Link, parts: &[Receive<'_>]) -> Outcome {
    let Some(mut request) = link.receive.iflush(parts, Before::Stale)? else { return Ok(()) };
    case.until("wait for a flush", || Ok(request.test_over(true, true)?.done.then_some(())))
}

/// Receives one message.
pub(super) fn take(case: &Case, comm: &ReceiveComm, room: usize, tag: i32) -> Outcome<Vec<u8>> {
    let memory = arena(room + 2 * GUARD_BYTES)?;
    clear(memory, GUARD_BYTES, room);
    let region = comm.register(memory, 0, memory.len())?;
    let part = Receive { arena: memory, at: GUARD_BYTES, len: room, tag, region: &region };
    let mut request =
        case.until("post a receive", || Ok(comm.irecv(&[part], Before::Null, true)?))?;
    let tested = case.until("wait for a message", || {
        let tested = request.test()?;
        Ok(tested.done.then_some(tested))
    })?;
    region.deregister()?;
    let len = usize::try_from(tested.sizes[0]).ok().filter(|len| *len <= room);
    let len = len.ok_or_else(|| {
        Stop::Fail(format!("test says {} bytes in a receive of {room}", tested.sizes[0]))
    })?;
    Ok(memory.read(GUARD_BYTES, len))
}

/// Moves one message, identified by a number, from end to end of a link in one process.
pub(super) fn pass(case: &Case, send: &SendComm, receive: &ReceiveComm, number: usize) -> Outcome {
    let message = [Message::of(1000).in_room(1500)];
    let mut out = Outgoing::new(send, number, &message, Manner::LIKE_NCCL)?;
    let mut into = Incoming::new(receive, number, &message, Manner::LIKE_NCCL)?;
    drive(case, "pass a message", &mut [&mut out, &mut into])?;
    out.end()?;
    into.end()
}

/// Deregisters memory whose peer is silent. Returns whether it succeeded: ncclRemoteError is allowed there, and NCCL deregisters nothing
/// after it (NCCL src/transport/net.cc:1196-1300). What is not deregistered now must be unused once the communicator has ended, so the
/// caller watches the memory. Where the peer calls the plugin, `deregister` must succeed.
pub(super) fn give_back_beside_silence(region: Region) -> Outcome<bool> {
    match region.deregister() {
        Ok(()) => Ok(true),
        Err(Wrong::Code { code, .. }) if code.0 == REMOTE_ERROR => Ok(false),
        Err(wrong) => Err(wrong.into()),
    }
}

/// ncclRemoteError.
const REMOTE_ERROR: i32 = 6;

/// Fails if the memory changes within a certain time. Calls `step` meanwhile, so that late writes make progress.
pub(super) fn watch(
    case: &Case,
    memory: Arena,
    since: &str,
    step: impl FnMut() -> Outcome,
) -> Outcome {
    memory.fill(0, memory.len(), WATCHED);
    case.stage("watch the memory");
    case.during(WATCH, step)?;
    let bytes = memory.read(0, memory.len());
    match first_other_than(&bytes, WATCHED) {
        None => Ok(()),
        Some(at) => fail(format_args!("byte {at} was written after {since}")),
    }
}

const WATCHED: u8 = 0x77;
const WATCH: Duration = Duration::from_millis(300);

/// The content of a message that identifies its connection.
pub(super) fn named(number: usize) -> Vec<u8> {
    pattern(100 + number, 0, 256)
}

pub(super) fn properties(net: &Net) -> Outcome<Vec<Properties>> {
    (0..net.devices()?).map(|device| Ok(net.properties(device)?)).collect()
}

/// maxRecvs; skips if it is 1.
pub(super) fn group_most(net: &Net) -> Outcome<usize> {
    let most = net.properties(0)?.group_max;
    match usize::try_from(most) {
        Ok(most) if most > 1 => Ok(most.min(PROXY_MAX_SUBS)),
        _ => skip(NO_GROUPS),
    }
}

/// Why groups are skipped. Up to v8 plugins set maxRecvs to 1 for speed, so there it is no deficiency.
pub(super) const NO_GROUPS: &str = "maxRecvs is 1: no grouped receives";
pub(super) const GROUPS_EXPECTED_SINCE: u32 = 9;

/// The most receives in a group of NCCL (NCCL src/include/proxy.h:58).
const PROXY_MAX_SUBS: usize = 64;

/// Makes progress on flows for a while, whether they finish or not.
pub(super) fn nudge(flows: &mut [&mut dyn Flow]) -> Outcome {
    for flow in flows.iter_mut().filter(|flow| !flow.is_finished()) {
        flow.step()?;
    }
    Ok(())
}

/// The number of open descriptors and of threads of this process.
pub(super) fn holdings() -> Outcome<(usize, usize)> {
    let count = |path: &str| -> Outcome<usize> { Ok(fs::read_dir(path)?.count()) };
    Ok((count("/proc/self/fd")?, count("/proc/self/task")?))
}
