//! The sending side of a connection: isend, what becomes of its parts, and the fins that stand in for immediates.

mod fins;
mod plain;

use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use fabric::{Data, Delivery, FabricError, Post, RemoteBytes, RemoteKey, Write};
use proto::limits::{MAX_DATA_RAILS, MAX_GROUP, MAX_PARTS};
use proto::parts::DetachedCut;
use proto::parts::{cut, cut_unbounded, uncut};
use proto::{
    Begun, Cut, Immediate, Line, LineFormat, Message, Part, Path, ProtocolError, RailPlan,
    SendFlow, SendPoll, Submit,
};

use super::bundle::Bundler;
use super::eager::Outlet;
use super::in_flight::InFlight;
use super::lanes::{ControlLane, Lane};
use super::memory::{Places, Slabs, Unit};
use super::nics::Port;
use super::operation::Purpose;
use super::pulse::{self, Pulse, Verdict};
use super::receiver::note;
use super::region::UserRegion;
use super::{Ending, Look};
use crate::comm::peer::Peer;
use crate::error::{Bug, Cause, Error, Result};

/// One direction of one connection, at the side that called connect.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) flow: SendFlow,
    pub(super) mailbox: Unit,
    /// The same for the plain form.
    pub(super) places: Places,
    /// Where eager messages go, where there may be any.
    pub(super) outlet: Option<Outlet>,
    /// Where bundles go, where there may be any.
    pub(super) bundler: Option<Bundler>,
    /// The turn of progress in which a message was sent last, however long: the next may be held back behind it. A connection is
    /// made in turns, so none is sent in the first, which is 0.
    pub(super) sent_in: u32,
    lanes: Box<[Lane]>,
    /// Which lane the next message in the plain form takes, and that lane.
    plain_rail: u32,
    plain_lane: Lane,
    several: bool,
    /// Adverts have room for more than two keys.
    wide: bool,
    pub(super) control: ControlLane,
    /// What fins are written from; made with the first of them.
    fin_lines: Option<Unit>,
    pub(super) peer: Peer,
    plan: RailPlan,
    turn: u32,
    largest_write: u64,
    /// The longest message that is not cut.
    largest_plain: u64,
    /// Messages shorter than this are injected: the provider copies them, and the receiver's done is their only end. 0:
    /// not even empty ones are.
    inject_below: u64,
    feeds: VecDeque<Feed>,
    /// Fins whose post was refused.
    unsent_fins: VecDeque<Line>,
    /// Operations of this connection that have not completed, but for those that are counted when somebody asks
    /// ([`Purpose::Whole`]).
    pub(super) in_flight: InFlight,
    pub(super) pulse: Pulse,
    /// An operation to the peer has failed: it is gone, as far as this end can see.
    pub(super) is_broken: bool,
    /// A message found no receive since the last sweep.
    wanting: bool,
    pub(super) ending: Ending,
    /// That messages are cut to their receives is said once.
    cut_warned: bool,
    /// Set once, with the first cause.
    pub(super) failure: Option<Error>,
}

/// A message on the fin path whose parts are still being posted.
#[derive(Debug)]
struct Feed {
    line: Line,
    region: Arc<UserRegion>,
    /// Where the message begins here.
    local: u64,
    target: Target,
    parts: DetachedCut,
}

/// Where a receive begins, and the keys to reach it.
#[derive(Debug)]
struct Target {
    remote: u64,
    keys: [u64; MAX_DATA_RAILS],
}

/// What `isend` was given, checked.
#[derive(Debug)]
pub(super) struct Outgoing<'a> {
    pub(super) region: &'a Arc<UserRegion>,
    pub(super) address: u64,
    pub(super) len: usize,
    pub(super) tag: i32,
    /// The number of the turn of progress.
    pub(super) turn: u32,
}

/// What the endpoint lends a sender for the length of one call.
#[derive(Debug)]
pub(super) struct Means<'a> {
    pub(super) nics: &'a mut [Port],
    pub(super) slabs: &'a mut Slabs,
    /// The sender's own slot, which its operations name.
    pub(super) slot: u16,
}

impl Sender {
    pub(super) fn new(
        flow: SendFlow,
        mailbox: Unit,
        lanes: Box<[Lane]>,
        control: ControlLane,
        plan: RailPlan,
        inject_bytes: u32,
        peer: Peer,
    ) -> Self {
        // Connections start on different rails, so that many short messages spread.
        let rails = u16::try_from(lanes.len().max(1)).unwrap_or(1);
        let turn = u32::from(flow.parameters().comm.get() % rails);
        let largest_write = flow.parameters().largest_write;
        // Where the completion is what proves the arrival, a message must have one.
        let injects = inject_bytes > 0 && !flow.parameters().sends_arrive_when_complete;
        let inject_below = if injects { u64::from(inject_bytes) + 1 } else { 0 };
        let inject_below = inject_below.min(plan.shared_from());
        let mut flow = flow;
        let largest_plain = proto::parts::aligned(largest_write).min(plan.shared_from() - 1);
        // What is injected, and what is neither that nor cut.
        flow.set_spans(inject_below.saturating_sub(1), inject_below.max(1)..largest_plain + 1);
        let wide = flow.parameters().format() == LineFormat::Words8;
        Self {
            places: mailbox.places(flow.parameters().window.lines()),
            mailbox,
            outlet: None,
            bundler: None,
            sent_in: 0,
            plain_rail: turn,
            plain_lane: lanes[turn as usize],
            several: lanes.len() > 1,
            wide,
            flow,
            lanes,
            control,
            fin_lines: None,
            peer,
            plan,
            turn,
            largest_write,
            largest_plain,
            inject_below,
            feeds: VecDeque::new(),
            unsent_fins: VecDeque::new(),
            in_flight: InFlight::default(),
            pulse: Pulse::default(),
            is_broken: false,
            wanting: false,
            ending: Ending::default(),
            cut_warned: false,
            failure: None,
        }
    }

    /// The same, with what eager messages and bundles need.
    pub(super) fn with(self, outlet: Option<Outlet>, bundler: Option<Bundler>) -> Self {
        Self { outlet, bundler, ..self }
    }

    /// Submits a message and posts its parts. `None`: not now, and nothing has changed.
    #[inline(always)]
    pub(super) fn send(
        &mut self,
        means: &mut Means<'_>,
        outgoing: &Outgoing<'_>,
    ) -> Result<Option<Line>> {
        if let Some(failure) = &mut self.failure {
            return Err(repeated(failure));
        }
        let has_room = |lane: &Lane| means.nics[lane.nic].nic.room() >= MAX_PARTS as usize;
        if !self.lanes.iter().all(has_room) {
            return Ok(None);
        }
        let Self {
            flow,
            mailbox,
            lanes,
            plan,
            turn,
            largest_write,
            inject_below,
            peer,
            cut_warned,
            sent_in,
            ..
        } = self;
        let message = match flow.submit(mailbox, outgoing.tag, outgoing.len as u64) {
            Ok(Submit::Accepted(message)) => message,
            Ok(Submit::NotYet) => {
                self.wanting = true;
                return Ok(None);
            }
            Err(cause) => return Err(self.fail_by(cause, means)),
        };
        let line = message.line;
        let follows = std::mem::replace(sent_in, outgoing.turn) == outgoing.turn;
        if message.len != outgoing.len as u64 {
            warn_of_cut(cut_warned, peer, outgoing.len, message.len);
        }
        if message.may_be_held
            && follows
            && let Ok(len) = usize::try_from(message.len)
            && let Some(bytes) = outgoing.region.host_bytes(outgoing.address, len)
        {
            self.hold(bytes, line);
            return Ok(Some(line));
        }
        if message.path == Path::Fin {
            let mut keys = [0; MAX_DATA_RAILS];
            keys[..message.keys.len()].copy_from_slice(message.keys);
            let (len, remote) = (message.len, message.address);
            self.begin_feed(means, outgoing, line, len, Target { remote, keys });
            return Ok(Some(line));
        }
        let source = Source { region: outgoing.region, address: outgoing.address };
        let (operations, carried, outcome) =
            if let Some(part) = uncut(message.len, plan, *largest_write, turn) {
                let lane = lanes[part.rail as usize];
                let target = target(message.address, message.keys[part.rail as usize], &part);
                let immediate = message.immediate(&part);
                if part.len < *inject_below
                    && inject_part(means, lane, &source, &part, target, immediate)
                {
                    flow.injected(line, part.rail);
                    return Ok(Some(line));
                }
                let immediate = Some(immediate);
                let outcome = write_part(means, lane, line, &source, &part, target, immediate);
                (1, 1 << part.rail, outcome)
            } else {
                write_parts(
                    means,
                    lanes,
                    &message,
                    &source,
                    cut(message.len, plan, *largest_write, turn),
                )
            };
        flow.posted(line, operations, carried);
        // The part that failed is not in flight, and the parts after it were not tried.
        self.in_flight.begin(operations - u32::from(outcome.is_err()));
        if let Err(error) = outcome {
            self.fail(rail_failed(&self.peer, error));
        }
        Ok(Some(line))
    }

    /// A message could not be posted.
    pub(super) fn want(&mut self) {
        self.wanting = true;
    }

    /// Begins a message on the fin path.
    #[inline(never)]
    fn begin_feed(
        &mut self,
        means: &mut Means<'_>,
        outgoing: &Outgoing<'_>,
        line: Line,
        len: u64,
        target: Target,
    ) {
        let parts = cut_unbounded(len, &self.plan, self.largest_write, &mut self.turn).detached();
        let (mut operations, mut carried) = (0, 0);
        for part in parts.clone() {
            operations += 1;
            carried |= 1 << part.rail;
        }
        let region = Arc::clone(outgoing.region);
        self.feeds.push_back(Feed { line, region, local: outgoing.address, target, parts });
        self.flow.posted(line, operations, carried);
        self.feed(means);
    }

    /// Posts what is left of messages on the fin path, as far as there is room, and fins that were refused.
    pub(super) fn feed(&mut self, means: &mut Means<'_>) {
        while let Some(feed) = self.feeds.front_mut() {
            // Looked at before it is taken: a part that finds no room must come again.
            let Some(part) = feed.parts.peek() else {
                self.feeds.pop_front();
                continue;
            };
            let lane = self.lanes[part.rail as usize];
            let nic = &means.nics[lane.nic].nic;
            if nic.room() == 0 || !nic.is_clear_to(lane.peer) {
                break;
            }
            feed.parts.next();
            let target = target(feed.target.remote, feed.target.keys[part.rail as usize], &part);
            let source = Source { region: &feed.region, address: feed.local };
            match write_part(means, lane, feed.line, &source, &part, target, None) {
                Ok(()) => self.in_flight.begin(1),
                Err(error) => {
                    self.fail(rail_failed(&self.peer, error));
                }
            }
        }
        while let Some(line) = self.unsent_fins.pop_front() {
            if !self.write_fin(means, line) {
                self.unsent_fins.push_front(line);
                break;
            }
        }
        self.write_failed_fin(means);
    }

    /// Whether [`Sender::feed`] has something left to do.
    pub(super) fn is_feeding(&self) -> bool {
        !self.feeds.is_empty() || !self.unsent_fins.is_empty() || self.flow.failed_fin().is_some()
    }

    /// A part has completed. True: there is more to do, by [`Sender::finish`].
    #[inline(always)]
    pub(super) fn part_written(&mut self, line: Line) -> bool {
        self.operations_ended(1);
        let more = !self.flow.written_plainly(line)
            && self.flow.written(line) == proto::WriteOutcome::NeedsFin;
        more || self.ending.closing
    }

    /// A message that is one write, and was not counted, has completed.
    #[inline(always)]
    pub(super) fn whole_written(&mut self, line: Line) {
        self.flow.whole_written(line);
    }

    /// Counts what this sender, of this slot, has in flight and has not counted.
    pub(super) fn count_in_flight(&mut self, nics: &mut [Port], slot: u16) {
        let uncounted = nics.iter_mut().map(|port| port.count_wholes(slot));
        self.in_flight.begin(uncounted.sum());
    }

    /// All parts of a message have completed: its fin is written where it needs one.
    pub(super) fn finish(&mut self, means: &mut Means<'_>, line: Line) {
        if self.flow.needs_fin(line) && !self.write_fin(means, line) {
            self.unsent_fins.push_back(line);
        }
    }

    /// An operation of this connection has failed.
    #[cold]
    pub(super) fn operation_failed(&mut self, cause: Cause) {
        self.operations_ended(1);
        self.broke(cause);
    }

    /// The same of one that was not counted.
    #[cold]
    pub(super) fn broke(&mut self, cause: Cause) {
        self.is_broken = true;
        self.fail(cause.sending(self.peer.label()));
    }

    /// So many operations that are counted have ended, or will never be posted.
    #[inline(always)]
    pub(super) fn operations_ended(&mut self, operations: u32) {
        if !self.in_flight.end(operations) {
            self.miscounted();
        }
    }

    #[cold]
    #[inline(never)]
    fn miscounted(&mut self) {
        self.fail(Cause::Bug(Bug::Miscounted).sending(self.peer.label()));
        debug_assert!(false, "{:?}", self.failure);
    }

    /// So many parts that waited to be posted never will be.
    #[cold]
    pub(super) fn never_posted(&mut self, parts: u32) {
        self.operations_ended(parts);
    }

    /// The line that the 16 bits of a request name; none for one that is long finished.
    #[inline(always)]
    pub(super) fn line_of(&self, request: u16) -> Option<Line> {
        let newest = self.flow.submitted().number();
        // Requests lie within one ring behind the newest line, or in its group.
        let offset = i32::from(request.wrapping_sub(low16(newest)).cast_signed());
        let lines = self.flow.parameters().window.lines();
        let live = offset.cast_unsigned().wrapping_add(lines) < lines + GROUP_MAX;
        live.then(|| Line::new(newest.wrapping_add_signed(offset)))
    }

    /// Whether `line` is of a message that NCCL was not told the end of.
    pub(super) fn holds(&self, line: Line) -> bool {
        self.flow.holds(line)
    }

    /// Asks for a message: `Some(len)` once, when it is done.
    #[inline(always)]
    pub(super) fn test(&mut self, line: Line, look: Look) -> Result<Option<u64>> {
        let mut poll = self.flow.poll(line);
        if poll == SendPoll::Pending && look == Look::Memory {
            // The mailbox is read only when what it said before does not do.
            self.flow.observe(&self.mailbox);
            poll = self.flow.poll(line);
        }
        match poll {
            SendPoll::Done { len } => Ok(Some(len)),
            SendPoll::Pending => Ok(None),
            SendPoll::Failed(cause) => Err(self.sticky(cause)),
        }
    }

    /// The sign of life has completed.
    pub(super) fn pulse_written(&mut self) {
        self.operations_ended(1);
        self.pulse.beaten();
    }

    /// `elapsed` of polling has passed: looks whether the receiver is still there, if anything depends on it. True: the connection
    /// has failed, and what it waits to post is to be given up.
    pub(super) fn sweep(
        &mut self,
        means: &mut Means<'_>,
        elapsed: Duration,
        bound: Duration,
    ) -> bool {
        if self.failure.is_some() {
            // What a receiver withdraws, or a message that was too long, leaves what was begun before it.
            return matches!(self.flow.failure(), Some(ProtocolError::Transport { .. }));
        }
        let parameters = self.flow.parameters();
        let owed = !parameters.sends_arrive_when_complete
            && self.flow.submitted() != self.flow.peer_done()
            || self.flow.awaits_eager();
        let wanting = std::mem::take(&mut self.wanting);
        let waits = (owed || wanting) && !(self.ending.closing || self.ending.heard_bye);
        let (submitted, done) = (self.flow.submitted().number(), self.flow.peer_done().number());
        let mark = u64::from(submitted) << 32 | u64::from(done);
        match self.pulse.sweep(elapsed, bound, waits, mark) {
            Verdict::Fine => {}
            Verdict::Beat if pulse::has_ended(&self.peer) => {
                self.fail(Cause::Ended.sending(self.peer.label()));
            }
            Verdict::Beat => self.write_pulse(means),
            Verdict::Dead => {
                self.is_broken = true;
                self.flow.drop_held();
                self.fail(pulse::silent(bound).sending(self.peer.label()));
            }
        }
        self.failure.is_some()
    }

    /// Writes a word of the fin ring's place for failures that no fin has: nobody reads it. What it is written from is
    /// as unread.
    fn write_pulse(&mut self, means: &mut Means<'_>) {
        let ControlLane { nic, peer, target, key } = self.control;
        let place = self.flow.parameters().window.lone_place();
        let Some(local) = means.slabs.last_word(nic, &self.mailbox, place) else { return };
        let address = target + u64::from(place + 1) * FIN_BYTES - 8;
        let remote = RemoteBytes { address, key: RemoteKey::from_wire(key) };
        let purpose = Purpose::SenderPulse { sender: means.slot };
        let write = Write { local, remote, peer, delivery: Delivery::Default };
        let posted = means.nics[nic].nic.write_control(&write, purpose.token());
        note(&mut self.pulse, &posted);
        match posted {
            Ok(Post::Accepted) => {
                self.in_flight.begin(1);
                self.pulse.beat();
            }
            Ok(Post::Again | Post::Full) => {}
            Err(error) => {
                self.fail(rail_failed(&self.peer, error));
            }
        }
    }

    /// Fails the connection; the first cause stays. What was not posted never will be.
    pub(super) fn fail(&mut self, error: Error) {
        self.flow.fail(ProtocolError::Transport { code: 0 });
        self.feeds.clear();
        self.unsent_fins.clear();
        self.failure.get_or_insert(error);
    }

    /// Whether nothing of this connection is in flight.
    pub(super) fn is_drained(&self) -> bool {
        self.in_flight.is_none() && !self.is_feeding() && !self.flow.holds_back()
    }

    /// Numbers that change with whatever the receiver does, where all that is in flight is counted.
    pub(super) fn mark(&self) -> [u32; 2] {
        [self.flow.peer_done().number(), self.in_flight.count()]
    }

    pub(super) fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    pub(super) fn control(&self) -> ControlLane {
        self.control
    }

    pub(super) fn nonce(&self) -> u64 {
        self.flow.parameters().nonce
    }

    pub(super) fn comm(&self) -> proto::CommId {
        self.flow.parameters().comm
    }

    /// The receiver has taken its receives back: nothing more is begun, and what was goes on.
    pub(super) fn withdrawn(&mut self, done: Line) {
        self.receiver_gone(done, Cause::ReceivesWithdrawn);
    }

    /// Nothing can be sent any more. What the receiver has is not lost: its completion is on its way.
    fn receiver_gone(&mut self, done: Line, why: Cause) {
        self.flow.told(done);
        // Eager messages find out which of the receiver's lines were theirs.
        self.flow.observe(&self.mailbox);
        if !self.flow.is_all_done() {
            self.flow.fail(ProtocolError::Withdrawn);
        }
        self.block();
        self.failure.get_or_insert_with(|| why.sending(self.peer.label()));
    }

    /// NCCL may post nothing here any more.
    pub(super) fn block(&mut self) {
        self.ending.blocked = true;
        self.flow.end_plainly();
    }

    /// What this end has begun: it begins nothing more.
    pub(super) fn begun(&mut self) -> Begun {
        if self.is_drained() { self.flow.begun_and_drained() } else { self.flow.begun() }
    }

    /// Whether parts that read the region are yet to be posted.
    pub(super) fn feeds_from(&self, region: &UserRegion) -> bool {
        self.feeds.iter().any(|feed| ptr::eq(&*feed.region, region))
    }

    /// The receiver has closed its end: what is not known to have arrived never will be, and nothing more can be sent.
    pub(super) fn left(&mut self, done: Line) {
        if !self.ending.closing {
            self.receiver_gone(done, Cause::ConnectionClosed);
            self.feeds.clear();
            self.unsent_fins.clear();
        }
    }

    /// Gives its units back.
    pub(super) fn release(&mut self, slabs: &mut Slabs) {
        if let Some(outlet) = self.outlet.take() {
            slabs.release(&outlet.staging);
        }
        if let Some(bundler) = self.bundler.take() {
            slabs.release(&bundler.staging);
        }
        slabs.release(&self.mailbox);
        if let Some(unit) = self.fin_lines.take() {
            slabs.release(&unit);
        }
    }

    #[cold]
    fn fail_by(&mut self, cause: ProtocolError, means: &mut Means<'_>) -> Error {
        self.write_failed_fin(means);
        self.sticky(cause)
    }

    /// The error for what the flow failed of; the transport's cause was kept when it came.
    #[cold]
    pub(super) fn sticky(&mut self, cause: ProtocolError) -> Error {
        let peer = &self.peer;
        let failure = self.failure.get_or_insert_with(|| Cause::from(cause).sending(peer.label()));
        repeated(failure)
    }
}

/// Lines of one group.
const GROUP_MAX: u32 = 8;
const _: () = assert!(GROUP_MAX as usize == MAX_GROUP);
/// Fin rings and what they are written from: a cache line per place.
const FIN_WORDS: usize = proto::wire::FIN_PLACE_BYTES / 8;
const FIN_BYTES: u64 = proto::wire::FIN_PLACE_BYTES as u64;

struct Source<'a> {
    region: &'a Arc<UserRegion>,
    address: u64,
}

#[inline]
fn target(receive: u64, key: u64, part: &Part) -> RemoteBytes<Data> {
    RemoteBytes { address: receive.wrapping_add(part.offset), key: RemoteKey::from_wire(key) }
}

/// The receiver's table is one of v6 to v8, and NCCL once relied on this.
#[cold]
fn warn_of_cut(warned: &mut bool, peer: &Peer, sent: usize, posted: u64) {
    if !std::mem::replace(warned, true) {
        log::warn!(
            "sending to {peer}: a message of {sent} bytes was cut to its receive of {posted}; do all ranks call with the same sizes?"
        );
    }
}

/// Posts a short message that the provider copies. False: it is to be posted the other way, where a post that is refused
/// can wait.
#[inline(always)]
fn inject_part(
    means: &mut Means<'_>,
    lane: Lane,
    source: &Source<'_>,
    part: &Part,
    remote: RemoteBytes<Data>,
    immediate: Immediate,
) -> bool {
    let Ok(len) = usize::try_from(part.len) else { return false };
    let Some(local) = source.region.host_bytes(source.address, len) else { return false };
    let posted = means.nics[lane.nic].nic.inject(local, remote, lane.peer, immediate.bits());
    matches!(posted, Ok(Post::Accepted))
}

/// Posts the parts of a message that is cut: how many, on which rails as bits, and how it went.
#[inline(never)]
fn write_parts(
    means: &mut Means<'_>,
    lanes: &[Lane],
    message: &Message<'_>,
    source: &Source<'_>,
    parts: Cut<'_>,
) -> (u32, u16, std::result::Result<(), FabricError>) {
    let (mut operations, mut carried) = (0, 0);
    for part in parts {
        let rail = part.rail as usize;
        let target = target(message.address, message.keys[rail], &part);
        let immediate = Some(message.immediate(&part));
        operations += 1;
        carried |= 1 << part.rail;
        let posted = write_part(means, lanes[rail], message.line, source, &part, target, immediate);
        if posted.is_err() {
            return (operations, carried, posted);
        }
    }
    (operations, carried, Ok(()))
}

#[inline]
fn write_part(
    means: &mut Means<'_>,
    lane: Lane,
    line: Line,
    source: &Source<'_>,
    part: &Part,
    remote: RemoteBytes<Data>,
    immediate: Option<Immediate>,
) -> std::result::Result<(), FabricError> {
    let len = usize::try_from(part.len).map_err(|_| FabricError::OUTSIDE)?;
    let address = source.address + part.offset;
    let local = source.region.local(lane.nic, address, len).ok_or(FabricError::OUTSIDE)?;
    // Without an immediate, a fin follows once all parts are there.
    let delivery = if immediate.is_some() { Delivery::Default } else { Delivery::Complete };
    let write = Write { local, remote, peer: lane.peer, delivery };
    let token = Purpose::Part { sender: means.slot, line }.token();
    means.nics[lane.nic].nic.write_in_order(&write, immediate.map(Immediate::bits), token)
}

#[cold]
pub(super) fn rail_failed(peer: &Peer, error: FabricError) -> Error {
    Cause::NotPosted(error).sending(peer.label())
}

/// The first cause again: it is logged the first time only.
#[cold]
pub(super) fn repeated(failure: &mut Error) -> Error {
    Error { logged: std::mem::replace(&mut failure.logged, true), ..*failure }
}

#[expect(clippy::cast_possible_truncation, reason = "requests carry the low half")]
pub(super) fn low16(number: u32) -> u16 {
    number as u16
}
