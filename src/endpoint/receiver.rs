//! The receiving side of a connection: irecv, the adverts it makes, and the done it owes.

mod plain;

use std::array;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::{Delivery, FabricError, LocalBytes, MemoryKind, Post, RemoteBytes, RemoteKey, Write};
use proto::bundle::{BUNDLE_PLACE_WORDS, BUNDLE_PLACES};
use proto::limits::{MAX_DATA_RAILS, MAX_GROUP, MAX_RING};
use proto::{
    AdvertWrite, Arrival, Begun, ConnectionId, Immediate, Line, LineFormat, LineSink,
    ProtocolError, ReceiveFlow, ReceivePoll, Request, RequestMark, Window,
};

use super::eager::Inlet;
use super::fence::{Fence, Refusal};
use super::flush::Place;
use super::in_flight::InFlight;
use super::lanes::{self, ControlLane, Lane};
use super::memory::{Places, Slabs, Unit};
use super::nics::Port;
use super::operation::Purpose;
use super::pulse::{self, Pulse, Verdict};
use super::region::UserRegion;
use super::sender::repeated;
use super::working::Stay;
use super::{Ending, Look};
use crate::comm::peer::Peer;
use crate::error::{Bug, Cause, Error, Result};
use crate::handle::Name;

/// One direction of one connection, at the side that called accept.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) flow: ReceiveFlow,
    /// What adverts and lone dones are written from.
    pub(super) shadow: Unit,
    /// The same for the plain form.
    pub(super) places: Places,
    /// What each place of these advertises, kept where peers do not write: it says which memory is exposed, and where copies go.
    pub(super) lent: Lent,
    /// Where fins land, when the connection has any.
    fins: Option<Unit>,
    /// Where eager messages land, where there may be any.
    pub(super) inlet: Option<Inlet>,
    /// Where bundles land, where there may be any.
    pub(super) bundles: Option<(Places<BUNDLE_PLACE_WORDS>, Unit)>,
    /// The name of its request for line 0.
    pub(super) requests: Name,
    /// In so many turns that it waits control is looked at too. Never 0 where that is where all messages come.
    pub(super) attention: u8,
    /// The slot of the region that the last copy went to: most go to one.
    pub(super) last_region: u16,
    pub(super) lanes: Box<[Lane]>,
    lanes_in_order: bool,
    /// The NICs of the first lanes, for the plain form; none where there is no such lane.
    plain_nics: [usize; PLAIN_LANES],
    /// Adverts have room for more than two keys.
    wide: bool,
    /// All bits where there is a second lane, else none.
    second_lane: u64,
    /// Which lane each of our NICs is, as a bit.
    lane_bits: [u16; MAX_DATA_RAILS],
    control: ControlLane,
    line_bytes: u64,
    inject_lines: u32,
    pub(super) peer: Peer,
    /// The sender's name for the connection.
    pub(super) connection: ConnectionId,
    /// The request that it was made for, and the reply as it travels: it goes out again when the request comes again.
    pub(super) mark: RequestMark,
    pub(super) reply: Box<[u8]>,
    /// How often the provider could not send the reply.
    pub(super) failed_replies: u8,
    /// Whether the endpoint's list of receivers with work has this one.
    pub(super) queued: bool,
    in_flight: InFlight,
    /// Lanes that brought bytes since the last flush, as bits.
    carried: u16,
    flushing: Flushing,
    pulse: Pulse,
    /// An operation to the peer has failed: it is gone, as far as this end can see.
    pub(super) is_broken: bool,
    pub(super) ending: Ending,
    pub(super) fence: Fence,
    pub(super) refusal: Refusal,
    pub(super) failure: Option<Error>,
}

/// More lanes have longer adverts, and no plain form.
const PLAIN_LANES: usize = LineFormat::Words8.keys();
const NO_COPY: &str = "GPU memory is received where messages may come by a copy";
/// Past every NIC: no region has a key for it.
const NO_NIC: usize = usize::MAX;

/// The flushes of a connection.
#[derive(Debug, Default)]
struct Flushing {
    /// Those that have not ended.
    count: InFlight,
    /// The NICs that these read on, as bits.
    nics: u32,
    /// What the last one was of.
    last: Option<Place>,
}

/// The memory that each line in the window lends to the sender.
#[derive(Debug)]
pub(super) struct Lent {
    window: Window,
    buffers: Box<[LentBuffer]>,
}

/// Where a receive begins, as it was advertised, and the key of its registration for the first lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LentBuffer {
    pub(super) target: u64,
    pub(super) key: u64,
}

impl Lent {
    fn new(window: Window) -> Self {
        Self { window, buffers: vec![LentBuffer::default(); window.lines() as usize].into() }
    }

    /// The buffer of a line that is in the window.
    #[inline(always)]
    pub(super) fn of(&self, line: Line) -> LentBuffer {
        self.buffers.get(self.window.place(line) as usize).copied().unwrap_or_default()
    }

    #[inline(always)]
    fn lend(&mut self, line: Line, target: u64, key: u64) {
        if let Some(place) = self.buffers.get_mut(self.window.place(line) as usize) {
            *place = LentBuffer { target, key };
        }
    }
}

/// One receive, checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming<'a> {
    pub(super) region: &'a Arc<UserRegion>,
    pub(super) address: u64,
    pub(super) len: usize,
    pub(super) tag: i32,
}

/// Where a receiver's control memory lies, and how it is reached.
#[derive(Debug)]
pub(super) struct Rings {
    /// What adverts and lone dones are written from.
    pub(super) shadow: Unit,
    /// Where fins land, when the connection has any.
    pub(super) fins: Option<Unit>,
    /// Where eager messages land, where there may be any.
    pub(super) inlet: Option<Inlet>,
    /// Where bundles land, where there may be any.
    pub(super) bundles: Option<Unit>,
    pub(super) control: ControlLane,
    /// Writes up to this are injected.
    pub(super) inject_bytes: usize,
}

/// What the endpoint lends a receiver for the length of one call.
#[derive(Debug)]
pub(super) struct Means<'a> {
    pub(super) nics: &'a mut [Port],
    pub(super) slabs: &'a Slabs,
    /// The receiver's own slot and generation, which its operations name.
    pub(super) slot: u16,
    pub(super) generation: u16,
}

impl Receiver {
    pub(super) fn new(
        mut flow: ReceiveFlow,
        rings: Rings,
        lanes: Box<[Lane]>,
        peer: Peer,
        request: &Request,
    ) -> Self {
        let format = flow.parameters().format();
        let (line_bytes, wide) = (format.bytes(), format == LineFormat::Words8);
        // The lanes are our first NICs, in order, and not more than two.
        if lanes::in_order(&lanes) && !wide && lanes.len() <= 2 {
            flow.allow_short();
        }
        let attention = u8::from(flow.parameters().path == proto::Path::Fin);
        let Rings { shadow, fins, inlet, bundles, control, inject_bytes } = rings;
        Self {
            places: shadow.places(flow.parameters().window.lines()),
            lent: Lent::new(flow.parameters().window),
            flow,
            shadow,
            fins,
            inlet,
            bundles: bundles.map(|unit| (unit.places(BUNDLE_PLACES), unit)),
            requests: Name::new(0),
            attention,
            last_region: 0,
            lanes_in_order: lanes::in_order(&lanes),
            plain_nics: array::from_fn(|index| lanes.get(index).map_or(NO_NIC, |lane| lane.nic)),
            wide,
            second_lane: if lanes.len() > 1 { u64::MAX } else { 0 },
            lane_bits: lanes::by_nic(&lanes),
            lanes,
            control,
            line_bytes: line_bytes as u64,
            inject_lines: u32::try_from(inject_bytes / line_bytes).unwrap_or(u32::MAX),
            peer,
            connection: request.connection,
            mark: request.mark(),
            reply: Box::default(),
            failed_replies: 0,
            queued: false,
            in_flight: InFlight::default(),
            carried: 0,
            flushing: Flushing::default(),
            pulse: Pulse::default(),
            is_broken: false,
            ending: Ending::default(),
            fence: Fence::None,
            refusal: Refusal::default(),
            failure: None,
        }
    }

    /// It is what `comm` names.
    pub(super) fn named(self, comm: Name) -> Self {
        Self { requests: comm.request(0), ..self }
    }

    /// Posts a group of receives and writes the adverts that are due. `None`: the window has no room.
    #[inline(always)]
    pub(super) fn receive(
        &mut self,
        means: &mut Means<'_>,
        group: &[Incoming<'_>],
        cut: bool,
    ) -> Result<Option<Line>> {
        if let Some(failure) = &mut self.failure {
            return Err(repeated(failure));
        }
        assert!(group.iter().all(|one| self.can_fill(one.region)), "{NO_COPY}");
        let posted = if let ([only], true) = (group, self.lanes_in_order) {
            let receive = described(only, only.region.keys(self.lanes.len()));
            self.flow.post(&mut self.shadow, &[receive], cut)
        } else {
            self.post_sorted(group, cut)
        };
        let line = match posted {
            Ok(line) => line,
            Err(cause) => return Err(self.sticky(cause)),
        };
        if let Some(line) = line {
            self.lend(line, group);
            if self.flow.is_urgent() {
                self.write_adverts(means);
            }
        }
        Ok(line)
    }

    /// Notes what the lines from `first` on lend.
    #[inline(always)]
    fn lend(&mut self, first: Line, group: &[Incoming<'_>]) {
        let Some(lane) = self.lanes.first() else { return };
        for (index, one) in (0..).zip(group) {
            let (target, key) = (one.region.target(one.address), one.region.key(lane.nic));
            self.lent.lend(first.plus(index), target, key);
        }
    }

    /// Whether whatever may come for a receive can be put there: a copy of ours reaches no GPU, and where there may be receives of
    /// its memory, no ring is lent.
    fn can_fill(&self, region: &UserRegion) -> bool {
        region.memory().kind() == MemoryKind::Host || !self.copies()
    }

    /// Whether the sender is dry: see [`ReceiveFlow::is_urgent`].
    #[inline(always)]
    pub(super) fn is_urgent(&self) -> bool {
        self.flow.is_urgent()
    }

    /// Whether messages come by the fin path.
    #[inline]
    pub(super) fn awaits_fins(&self) -> bool {
        self.flow.parameters().path == proto::Path::Fin
    }

    /// Whether the receive of `request` is not complete.
    #[inline]
    pub(super) fn awaits(&self, request: u16) -> bool {
        self.flow.awaits(request)
    }

    /// The general case: groups, and lanes that are not our NICs in order.
    #[inline(never)]
    fn post_sorted(
        &mut self,
        group: &[Incoming<'_>],
        cut: bool,
    ) -> std::result::Result<Option<Line>, ProtocolError> {
        let mut keys = [[0; MAX_DATA_RAILS]; MAX_GROUP];
        for (keys, incoming) in keys.iter_mut().zip(group) {
            for (key, lane) in keys.iter_mut().zip(&self.lanes) {
                *key = incoming.region.key(lane.nic);
            }
        }
        let count = group.len().min(MAX_GROUP);
        let receives: [_; MAX_GROUP] = array::from_fn(|index| {
            let index = index.min(count.saturating_sub(1));
            described(&group[index], &keys[index][..self.lanes.len()])
        });
        self.flow.post(&mut self.shadow, &receives[..count], cut)
    }

    /// Writes the adverts that are due, until none is or a post is refused: the next turn tries again.
    #[inline(always)]
    pub(super) fn write_adverts(&mut self, means: &mut Means<'_>) {
        while let Some(write) = self.flow.next_write(&mut self.shadow) {
            match self.write_advert(means, write) {
                Ok(Post::Accepted) => self.flow.wrote(write),
                Ok(Post::Again | Post::Full) => break,
                Err(error) => {
                    self.post_failed(error);
                    break;
                }
            }
        }
    }

    #[inline(always)]
    fn write_advert(
        &mut self,
        means: &mut Means<'_>,
        write: AdvertWrite,
    ) -> std::result::Result<Post, FabricError> {
        let remote = self.remote(write.place);
        if write.count <= self.inject_lines {
            let local = means.slabs.host_bytes(&self.shadow, write.place, write.count);
            let local = local.ok_or(FabricError::OUTSIDE)?;
            let nic = &mut means.nics[self.control.nic].nic;
            let posted = nic.inject_control(local, remote, self.control.peer);
            note(&mut self.pulse, &posted);
            return posted;
        }
        let local = means.slabs.local(self.control.nic, &self.shadow, write.place, write.count);
        let purpose = Purpose::Advert { receiver: means.slot, generation: means.generation };
        self.write_completing(means, local.ok_or(FabricError::OUTSIDE)?, remote, purpose)
    }

    /// Writes the done that no advert carries, if it is owed and due. False: it is owed, and could not be written.
    pub(super) fn write_lone_done(&mut self, means: &mut Means<'_>, urgent: bool) -> bool {
        // Nobody is told any more on a connection that has failed, and nothing waits for it.
        if self.failure.is_some() {
            return true;
        }
        let Some(lone) = self.flow.lone_done(urgent) else {
            return !(urgent && self.flow.owes_done());
        };
        let place = self.flow.parameters().window.lone_place();
        self.shadow.store_words(place, 0, lone.words);
        let Some(local) = means.slabs.local(self.control.nic, &self.shadow, place, 1) else {
            return true;
        };
        let purpose = Purpose::LoneDone { receiver: means.slot, generation: means.generation };
        let remote = self.remote(place);
        match self.write_completing(means, local, remote, purpose) {
            Ok(Post::Accepted) => {
                self.flow.lone_done_posted(lone);
                means.nics[self.control.nic].lone_dones += 1;
                true
            }
            Ok(Post::Again | Post::Full) => false,
            Err(error) => {
                self.post_failed(error);
                true
            }
        }
    }

    #[inline(always)]
    fn write_completing(
        &mut self,
        means: &mut Means<'_>,
        local: LocalBytes<'_, fabric::Control>,
        remote: RemoteBytes<fabric::Control>,
        purpose: Purpose,
    ) -> std::result::Result<Post, FabricError> {
        let write = Write { local, remote, peer: self.control.peer, delivery: Delivery::Default };
        let posted = means.nics[self.control.nic].nic.write_control(&write, purpose.token());
        note(&mut self.pulse, &posted);
        self.in_flight.begin(u32::from(matches!(posted, Ok(Post::Accepted))));
        posted
    }

    #[inline]
    fn remote(&self, place: u32) -> RemoteBytes<fabric::Control> {
        let address = self.control.target + u64::from(place) * self.line_bytes;
        RemoteBytes { address, key: RemoteKey::from_wire(self.control.key) }
    }

    /// A part has arrived on our NIC `nic`.
    pub(super) fn arrived(&mut self, nic: usize, immediate: Immediate, len: u64) -> Arrival {
        let lane = self.lane_bits.get(nic).map_or(0, |bit| bit.trailing_zeros());
        self.flow.arrived(lane, immediate, len)
    }

    #[inline(always)]
    fn operation_ended(&mut self) {
        if !self.in_flight.end(1) {
            self.miscounted();
        }
    }

    #[cold]
    #[inline(never)]
    fn miscounted(&mut self) {
        self.fail(Cause::Bug(Bug::Miscounted).receiving(self.peer.label()));
        debug_assert!(false, "{:?}", self.failure);
    }

    /// An advert, or several, have completed.
    pub(super) fn advert_written(&mut self) {
        self.operation_ended();
    }

    /// The lone done has completed.
    pub(super) fn lone_done_written(&mut self) {
        self.operation_ended();
        self.flow.lone_done_written();
    }

    /// The receiver, unless somebody waits for it to drain.
    #[inline]
    pub(super) fn goes_on(&mut self) -> Option<&mut Self> {
        if self.is_ending() { None } else { Some(self) }
    }

    /// Whether somebody waits for it to drain: it is closed, or takes its receives back.
    #[inline]
    pub(super) fn is_ending(&self) -> bool {
        self.ending.closing || self.fence != Fence::None
    }

    /// The sign of life has completed.
    pub(super) fn pulse_written(&mut self) {
        self.operation_ended();
        self.pulse.beaten();
    }

    /// `elapsed` of polling has passed: looks whether the sender is still there, if anything depends on it.
    pub(super) fn sweep(&mut self, means: &mut Means<'_>, elapsed: Duration, bound: Duration) {
        if self.failure.is_some() {
            return;
        }
        self.learn_rank();
        let waits = self.awaits_more() && !(self.ending.closing || self.ending.heard_bye);
        let (done, next) = (self.flow.done().number(), self.flow.next().number());
        let mark = u64::from(done) << 32 | u64::from(next);
        match self.pulse.sweep(elapsed, bound, waits, mark) {
            Verdict::Fine => {}
            Verdict::Beat if pulse::has_ended(&self.peer) => {
                self.fail(Cause::Ended.receiving(self.peer.label()));
            }
            Verdict::Beat => self.write_pulse(means),
            Verdict::Dead => {
                self.is_broken = true;
                self.fail(pulse::silent(bound).receiving(self.peer.label()));
            }
        }
    }

    /// Whose message is waited for: the advert has its tag, and the tag is the sender's rank.
    pub(super) fn learn_rank(&mut self) {
        if let Some(rank) = self.flow.awaited_tag() {
            self.peer.sends_as(rank);
        }
    }

    /// Writes a word of the lone done's place that no lone done has: nobody reads it.
    #[cold]
    fn write_pulse(&mut self, means: &mut Means<'_>) {
        let place = self.flow.parameters().window.lone_place();
        let Some(local) = means.slabs.last_word(self.control.nic, &self.shadow, place) else {
            return;
        };
        let mut remote = self.remote(place);
        remote.address += self.line_bytes - 8;
        let purpose = Purpose::ReceiverPulse { receiver: means.slot, generation: means.generation };
        match self.write_completing(means, local, remote, purpose) {
            Ok(Post::Accepted) => self.pulse.beat(),
            Ok(Post::Again | Post::Full) => {}
            Err(error) => self.post_failed(error),
        }
    }

    /// A control write of this connection cannot be posted, and never will be.
    #[cold]
    #[inline(never)]
    fn post_failed(&mut self, error: FabricError) {
        self.learn_rank();
        self.fail(Cause::NotPosted(error).receiving(self.peer.label()));
    }

    /// An operation of this connection has failed.
    #[cold]
    pub(super) fn operation_failed(&mut self, cause: Cause) {
        self.operation_ended();
        self.is_broken = true;
        self.learn_rank();
        self.fail(cause.receiving(self.peer.label()));
    }

    /// A turn of progress: what waits is tried, and a done that nothing carried for long goes alone.
    #[inline]
    pub(super) fn turn(&mut self, means: &mut Means<'_>) -> Stay {
        if self.failure.is_none() && !self.ending.closing {
            self.write_adverts(means);
        }
        self.flow.idle_turn();
        if self.flow.owes_done() {
            self.write_lone_done(means, false);
        }
        if self.has_work() {
            Stay::Works
        } else if self.failure.is_some() || self.ending.closing || self.flow.is_idle() {
            Stay::Leaves
        } else {
            Stay::Rests
        }
    }

    /// So many turns in which nothing is due: see [`ReceiveFlow::rests`].
    #[inline(always)]
    pub(super) fn rests(&mut self, turns: u32) -> bool {
        self.flow.rests(turns)
    }

    /// Whether adverts wait or a done is owed. An end that is closed advertises nothing more.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.failure.is_none()
            && (self.flow.has_unsent() && !self.ending.closing || self.flow.owes_done())
    }

    /// The line that the 16 bits of a request name; none for one that is long finished.
    #[inline(always)]
    pub(super) fn line_of(&self, request: u16) -> Option<Line> {
        let next = self.flow.next().number();
        // Requests lie within one ring behind the next line.
        let behind = next.wrapping_sub(u32::from(request)) & 0xffff;
        let live = behind.wrapping_sub(1) < MAX_RING;
        live.then(|| Line::new(next.wrapping_sub(behind)))
    }

    /// Whether `line` begins a receive, or a group, that NCCL was not told the end of.
    pub(super) fn holds(&self, line: Line) -> bool {
        self.flow.holds(line)
    }

    /// The advert of the newest receive waits for no other, if that receive may be told early. False: it may not.
    #[cold]
    pub(super) fn hasten(&mut self) -> bool {
        let may = self.flow.parameters().sends_arrive_when_complete;
        if may {
            self.flow.hasten();
        }
        may
    }

    /// Reports the receive of `line` though its bytes are not there: once its advert has left us.
    #[cold]
    pub(super) fn end_early(&mut self, line: Line) -> bool {
        // Adverts that were not injected are in flight as long as anything is.
        self.in_flight.is_none() && self.flow.poll_early(line)
    }

    /// Takes what fins have come, for a connection that has any. True: there were some.
    #[inline]
    pub(super) fn read_fins(&mut self, look: Look) -> bool {
        match &self.fins {
            Some(fins) if look == Look::Memory && self.flow.has_fin(fins) => {
                self.flow.read_fins(fins);
                true
            }
            _ => false,
        }
    }

    /// Whether the group that began with `first` has all its bytes.
    #[inline(always)]
    pub(super) fn is_complete(&self, first: Line) -> bool {
        self.flow.is_complete(first)
    }

    /// Reports the complete group that began with `first`, once: how many sizes it has.
    #[inline(always)]
    pub(super) fn report(&mut self, first: Line, sizes: &mut [usize; 8]) -> u32 {
        let ReceivePoll::Done { count } = self.flow.poll(first) else { return 0 };
        for (index, size) in (0..count).zip(sizes.iter_mut()) {
            self.carried |= self.flow.carried(first.plus(index));
            *size = usize::try_from(self.flow.size(first.plus(index))).unwrap_or(usize::MAX);
        }
        count
    }

    /// Whether the connection still works.
    #[inline]
    pub(super) fn verdict(&mut self) -> Result<()> {
        match self.flow.failure() {
            None => Ok(()),
            Some(cause) => Err(self.sticky(cause)),
        }
    }

    /// The NICs that a flush of memory at `place` reads on, as bits: those that brought bytes since the last flush. The next
    /// flush begins anew.
    ///
    /// What a flush takes is of receives that were reported before it, whosever they are. So while that one has not ended another
    /// one reads there too; and behind a flush of another place nobody knows what it has taken of this one, and all are read.
    pub(super) fn nics_to_flush(&mut self, place: Place) -> u32 {
        let carried = std::mem::take(&mut self.carried);
        let brought = |lane: &usize| carried >> lane & 1 == 1;
        let nic = |lane: usize| 1 << self.lanes[lane].nic;
        let last = self.flushing.last.replace(place);
        let other = last.is_some_and(|last| last != place || last == Place::Several);
        if other {
            return (0..self.lanes.len()).fold(0, |nics, lane| nics | nic(lane));
        }
        (0..self.lanes.len())
            .filter(brought)
            .fold(self.flushing.nics, |nics, lane| nics | nic(lane))
    }

    /// A flush reads on these NICs.
    pub(super) fn flush_begins(&mut self, nics: u32) {
        self.flushing.count.begin(1);
        self.flushing.nics |= nics;
    }

    /// A flush has ended.
    pub(super) fn flush_ends(&mut self) {
        if !self.flushing.count.end(1) {
            self.miscounted();
        }
        if self.flushing.count.is_none() {
            self.flushing.nics = 0;
        }
    }

    /// Requests that were posted and not yet reported done.
    pub(super) fn outstanding(&self) -> u32 {
        self.flow.outstanding()
    }

    /// Lines before this one are complete.
    pub(super) fn done(&self) -> Line {
        self.flow.done()
    }

    /// Whether a receive is posted whose bytes have not come.
    fn awaits_more(&self) -> bool {
        self.flow.awaits_more()
    }

    /// Whether the sender may still write to receives that were posted with this registration.
    pub(super) fn exposes(&self, region: &UserRegion) -> bool {
        // Every registration that is open has a key of its own.
        let Some(lane) = self.lanes.first() else { return false };
        let key = region.key(lane.nic);
        self.flow.exposed().any(|line| self.lent.of(line).key == key)
    }

    /// Whether the sender may still write to any memory of ours.
    pub(super) fn exposes_any(&self) -> bool {
        self.flow.exposed().next().is_some()
    }

    /// Fails the connection, whose sender has closed it, once all that it has begun is here: what is still posted, or will be,
    /// gets nothing. False: ask again later.
    pub(super) fn fail_if_left(&mut self) -> bool {
        if self.ending.closing || self.failure.is_some() {
            return true;
        }
        // What came eagerly may be for receives that are yet to be posted.
        let expects = self.exposes_any() || self.flow.is_eager_due() || self.flow.keeps_eager();
        if !expects {
            self.learn_rank();
            self.fail(Cause::ConnectionClosed.receiving(self.peer.label()));
        }
        !expects
    }

    /// The first cause again, for whoever asks once more.
    #[cold]
    pub(super) fn failed(&mut self) -> Option<Error> {
        self.failure.as_mut().map(repeated)
    }

    /// Takes back the receives that are posted. What has arrived is told to the sender before it is asked.
    pub(super) fn withdraw(&mut self, means: &mut Means<'_>, until: Instant) {
        if self.fence != Fence::None {
            return;
        }
        self.write_lone_done(means, true);
        self.fence = Fence::Due { until };
        self.learn_rank();
        self.flow.withdraw();
        let peer = &self.peer;
        self.failure.get_or_insert_with(|| Cause::ReceiveDeregistered.receiving(peer.label()));
    }

    /// The sender begins nothing more, and has begun these lines.
    pub(super) fn fenced(&mut self, begun: Begun) {
        self.flow.fenced(begun);
        self.read_every_fin();
    }

    /// If the connection has failed, and NCCL is told so, its receives are not outstanding any longer: how many those were.
    pub(super) fn abandon(&mut self) -> u32 {
        let first = self.failure.is_some() && !std::mem::replace(&mut self.ending.blocked, true);
        if first { self.outstanding() } else { 0 }
    }

    /// Takes what fins have come, once the sender begins nothing more.
    pub(super) fn read_every_fin(&mut self) {
        if let Some(fins) = &self.fins {
            self.flow.read_every_fin(fins);
        }
    }

    /// Fails the connection; the first cause stays.
    pub(super) fn fail(&mut self, error: Error) {
        self.flow.fail(ProtocolError::Transport { code: 0 });
        self.failure.get_or_insert(error);
    }

    /// Whether nothing of this connection is in flight.
    pub(super) fn is_drained(&self) -> bool {
        self.in_flight.is_none()
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

    pub(super) fn counters(&self) -> proto::receive::ReceiveCounters {
        self.flow.counters()
    }

    /// Gives its units back.
    pub(super) fn release(&mut self, slabs: &mut Slabs) {
        if let Some(inlet) = self.inlet.take() {
            slabs.release(&inlet.ring);
        }
        slabs.release(&self.shadow);
        let bundles = self.bundles.take().map(|(_, unit)| unit);
        for unit in [self.fins.take(), bundles].into_iter().flatten() {
            slabs.release(&unit);
        }
    }

    #[cold]
    fn sticky(&mut self, cause: ProtocolError) -> Error {
        self.learn_rank();
        let peer = &self.peer;
        let failure =
            self.failure.get_or_insert_with(|| Cause::from(cause).receiving(peer.label()));
        repeated(failure)
    }
}

#[inline(always)]
fn described<'a>(incoming: &Incoming<'_>, keys: &'a [u64]) -> proto::Receive<'a> {
    let address = incoming.region.target(incoming.address);
    proto::Receive { address, len: incoming.len as u64, tag: incoming.tag, keys }
}

/// What a post says of the peer; one that is not even possible says nothing.
#[inline]
pub(super) fn note(pulse: &mut Pulse, posted: &std::result::Result<Post, FabricError>) {
    match posted {
        Ok(Post::Accepted) => pulse.accepted(),
        Ok(Post::Again) => pulse.refused(),
        // No room of ours says nothing of the peer.
        Ok(Post::Full) | Err(_) => {}
    }
}
