//! Collectives of objects: blocking, or begun and waited for later.
//!
//! Each takes a number when it begins, the same on every rank, so that several may be in progress. The group's thread receives for all of
//! them, so that ranks may wait for them in different orders.

use std::time::{Duration, Instant};

use postcard_schema::Schema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::calls::taken;
use super::numbers::{Numbers, check_type, other_shape};
use super::receiving::Inbound;
use super::sending::{Outbound, Route};
use crate::error::GroupError;
use crate::group::{Group, State};
use crate::loader::Op;
use crate::mesh::{CallKind, What};
use crate::patience::deadline;

/// How long a call makes progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drive {
    Until(Instant),
    ToEnd,
}

impl Group {
    /// Gathers every rank's object on the root, by rank; other ranks get nothing. Objects may differ in shape, not in type.
    ///
    /// # Errors
    ///
    /// As [`Group::recv_obj`]. All ranks call it, as all collectives. An object that cannot be encoded is [`GroupError::InvalidArgument`],
    /// and [`GroupError::Mismatch`] for ranks that get it: it is over for all, and the next collective can begin.
    pub fn gather_obj<O: Serialize + DeserializeOwned + Schema>(
        &self,
        object: &O,
        root: usize,
    ) -> Result<Option<Vec<O>>, GroupError> {
        self.igather_obj(object, root)?.wait()
    }

    /// Begins a gather. The object may be changed at once. All ranks begin their collectives of objects in the same order, and may wait for them
    /// in any.
    ///
    /// # Errors
    ///
    /// As [`Group::isend_obj`]. A rank that has left is [`GroupError::PeerLost`] when the gather is tested or waited for, after all other
    /// sends have ended.
    pub fn igather_obj<O: Serialize + DeserializeOwned + Schema>(
        &self,
        object: &O,
        root: usize,
    ) -> Result<GatheringObjects<O>, GroupError> {
        // Before the number is taken: no other rank gets this error.
        self.rank_of(root)?;
        let route = self.object_route(What::new(CallKind::Gather).at(root));
        self.gathering(object, root, route)
    }

    fn gathering<O: Serialize + DeserializeOwned + Schema>(
        &self,
        object: &O,
        root: usize,
        route: Route,
    ) -> Result<GatheringObjects<O>, GroupError> {
        let mut gathering = GatheringObjects::new(self);
        if self.rank() == root {
            gathering.receives_all(route)?;
        }
        gathering.sends_to(object, [root], route)?;
        Ok(gathering)
    }

    /// Gathers every rank's object on every rank.
    ///
    /// # Errors
    ///
    /// As [`Group::gather_obj`].
    pub fn all_gather_obj<O: Serialize + DeserializeOwned + Schema>(
        &self,
        object: &O,
    ) -> Result<Vec<O>, GroupError> {
        self.iall_gather_obj(object)?.wait()?.ok_or_else(taken)
    }

    /// Begins a gather on every rank, as [`Group::igather_obj`].
    ///
    /// # Errors
    ///
    /// As [`Group::igather_obj`].
    pub fn iall_gather_obj<O: Serialize + DeserializeOwned + Schema>(
        &self,
        object: &O,
    ) -> Result<GatheringObjects<O>, GroupError> {
        let route = self.object_route(What::new(CallKind::AllGather));
        let mut gathering = GatheringObjects::new(self);
        gathering.receives_all(route)?;
        gathering.sends_to(object, 0..self.size(), route)?;
        Ok(gathering)
    }

    /// Copies the root's object to every rank; the objects of other ranks are not read.
    ///
    /// # Errors
    ///
    /// As [`Group::gather_obj`]. A root without an object is [`GroupError::InvalidArgument`], as an object that cannot be encoded is. If
    /// several ranks call this as the root, each gets [`GroupError::Mismatch`] for an object of another root that comes before the end of
    /// its broadcast, or of its next broadcast.
    pub fn broadcast_obj<O: Serialize + DeserializeOwned + Schema>(
        &self,
        object: Option<O>,
        root: usize,
    ) -> Result<O, GroupError> {
        self.ibroadcast_obj(object, root)?.wait()
    }

    /// Begins a broadcast. All ranks begin their collectives of objects in the same order, and may wait for them
    /// in any.
    ///
    /// # Errors
    ///
    /// As [`Group::igather_obj`]; [`GroupError::InvalidArgument`] where the root has no object.
    pub fn ibroadcast_obj<O: Serialize + DeserializeOwned + Schema>(
        &self,
        object: Option<O>,
        root: usize,
    ) -> Result<BroadcastingObject<O>, GroupError> {
        self.rank_of(root)?;
        let route = self.object_route(What::new(CallKind::Broadcast).at(root));
        let mut begun = BroadcastingObject::new(self, object, root, route)?;
        if self.rank() == root {
            begun.foreign.of = [self.rooted(route), Some(route)];
        }
        Ok(begun)
    }

    /// Begins a reduction of every number of an object, with the result of [`Group::all_reduce_obj`]. Rank 0 gathers the objects, reduces
    /// them in the order of ranks, and copies the result to all. [`Group::all_reduce_obj`] is faster if the reduction need not overlap with
    /// other work. All ranks begin their collectives of objects in the same order, and may wait for them
    /// in any.
    ///
    /// # Errors
    ///
    /// [`GroupError::InvalidArgument`] as [`Group::all_reduce_obj`], at once. Other errors, also that ranks reduce by different operations,
    /// come when the reduction is tested or waited for.
    pub fn iall_reduce_obj<O: Serialize + DeserializeOwned + Schema>(
        &self,
        object: &O,
        op: Op,
    ) -> Result<ReducingObject<O>, GroupError> {
        check_type::<O>()?;
        // Both numbers are taken before any error: otherwise this rank's next collective would have another number than that of the others.
        let what = What::new(CallKind::AllReduce);
        // Rank 0 says in its answer that the operations differ.
        let [first, route] = [what.by(op), what].map(|what| self.object_route(what));
        let answer = if self.rank() == 0 {
            Answering::To(route)
        } else {
            // The receive of the answer begins here, so that the answer is dropped if this reduction is.
            Answering::From(Box::new(BroadcastingObject::new(self, None, 0, route)?))
        };
        let gathering = self.gathering(object, 0, first).inspect_err(|_| {
            if self.rank() == 0 {
                // The others wait for the result.
                (1..self.size()).for_each(|to| Outbound::without(self, to, route));
            }
        })?;
        let (group, stage) = (self.clone(), Stage::Gathering(gathering));
        Ok(ReducingObject { group, op, answer: Some(answer), failed: None, stage })
    }

    /// As [`Group::iall_reduce_obj`], with the result on the root only, which alone gets the errors of types and shapes.
    ///
    /// # Errors
    ///
    /// As [`Group::iall_reduce_obj`].
    pub fn ireduce_obj<O: Serialize + DeserializeOwned + Schema>(
        &self,
        object: &O,
        op: Op,
        root: usize,
    ) -> Result<ReducingObject<O>, GroupError> {
        check_type::<O>()?;
        self.rank_of(root)?;
        let route = self.object_route(What::new(CallKind::Reduce).by(op).at(root));
        let stage = Stage::Gathering(self.gathering(object, root, route)?);
        Ok(ReducingObject { group: self.clone(), op, answer: None, failed: None, stage })
    }

    /// Makes progress; returns whether the operation has ended. `open`: as of [`Group::until_over`].
    fn drive_by(
        &self,
        drive: Drive,
        mut open: impl FnMut(&mut State) -> Result<Option<u64>, GroupError>,
    ) -> Result<bool, GroupError> {
        let Drive::Until(deadline) = drive else {
            return self.until_over(open).map(|()| true);
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let ready = |state: &mut State| Ok(open(state)?.is_none().then_some(()));
        Ok(self.until_within(None, left, ready)?.is_some())
    }
}

/// The methods `test` and `wait_timeout`, which call `drive`.
macro_rules! tests {
    () => {
        /// Makes progress; returns whether the collective has ended on this rank. Then `wait` returns at once.
        ///
        /// # Errors
        ///
        /// As [`Group::recv_obj`], and those of the collective.
        pub fn test(&mut self) -> Result<bool, GroupError> {
            self.wait_timeout(Duration::ZERO)
        }

        /// Waits at most `limit`. Returns whether the collective has ended on this rank.
        ///
        /// # Errors
        ///
        /// As `test`.
        pub fn wait_timeout(&mut self, limit: Duration) -> Result<bool, GroupError> {
            self.drive(Drive::Until(deadline(limit)))
        }
    };
}

/// Sends, and whether each has ended. None is dropped before all have ended: the drop of an unfinished send takes the lock.
#[derive(Debug, Default)]
pub(super) struct Sends(Vec<(Outbound, bool)>);

impl Sends {
    fn begin<O: Serialize + Schema>(
        group: &Group,
        object: &O,
        to: impl IntoIterator<Item = usize>,
        route: Route,
        failed: &mut Option<GroupError>,
    ) -> Result<Self, GroupError> {
        // All sends begin before an error is returned: each receiver gets the error of an object that cannot be encoded.
        let begin = |to| Outbound::begin(group, object, to, route);
        let begun: Vec<_> = to.into_iter().map(begin).collect();
        let mut sends = Self::default();
        for outbound in begun {
            match outbound {
                // After a rank that has left the others still wait for their objects.
                Ok(_) | Err(GroupError::PeerLost { .. }) => sends.add(outbound, failed),
                Err(error) => return Err(error),
            }
        }
        Ok(sends)
    }

    /// Adds a send that was begun; an error goes to `failed`.
    pub(super) fn add(
        &mut self,
        begun: Result<Outbound, GroupError>,
        failed: &mut Option<GroupError>,
    ) {
        match begun {
            Ok(outbound) => self.0.push((outbound, false)),
            Err(error) => drop(failed.get_or_insert(error)),
        }
    }

    /// Makes progress. The counts of moves of sends that have not ended are added to `moves`; the first error goes to `failed`.
    pub(super) fn advance(
        &mut self,
        state: &mut State,
        failed: &mut Option<GroupError>,
        mut moves: Option<u64>,
    ) -> Option<u64> {
        for (sending, over) in &mut self.0 {
            *over = *over || ended(sending.advance(state), failed);
            count(&mut moves, *over, || sending.moves(state));
        }
        moves
    }
}

/// Adds the count of moves of an operation that is not over. `all` is None while every operation is over.
pub(super) fn count(all: &mut Option<u64>, is_over: bool, moves: impl FnOnce() -> u64) {
    // Each operation adds 1 more, so that its end changes the count.
    if !is_over {
        *all = Some(all.unwrap_or(0).wrapping_add(1).wrapping_add(moves()));
    }
}

/// Whether an operation has ended; an error is the end of it.
pub(super) fn ended(advanced: Result<bool, GroupError>, failed: &mut Option<GroupError>) -> bool {
    advanced.unwrap_or_else(|error| {
        failed.get_or_insert(error);
        true
    })
}

/// The first error of several operations, when all are over.
fn whole(over: bool, failed: &mut Option<GroupError>) -> Result<bool, GroupError> {
    failed.take_if(|_| over).map_or(Ok(over), Err)
}

/// A gather of objects in progress. After a drop this rank's object is still sent, and objects that come for the gather are dropped.
#[derive(Debug)]
#[must_use = "it makes progress when tested or waited for"]
pub struct GatheringObjects<O> {
    group: Group,
    sends: Sends,
    /// By rank, if this rank gathers: the receive, and whether it has ended.
    receives: Option<Vec<(Inbound<O>, bool)>>,
    /// The first error. It is returned after all objects have been received, so that no message is left.
    failed: Option<GroupError>,
}

impl<O: Serialize + DeserializeOwned + Schema> GatheringObjects<O> {
    fn new(group: &Group) -> Self {
        Self { group: group.clone(), sends: Sends::default(), receives: None, failed: None }
    }

    fn receives_all(&mut self, route: Route) -> Result<(), GroupError> {
        let receive = |rank| Ok((Inbound::of_collective(&self.group, route, rank)?, false));
        let receives: Result<_, GroupError> = (0..self.group.size()).map(receive).collect();
        self.receives = Some(receives?);
        Ok(())
    }

    fn sends_to(
        &mut self,
        object: &O,
        ranks: impl IntoIterator<Item = usize>,
        route: Route,
    ) -> Result<(), GroupError> {
        self.sends = Sends::begin(&self.group, object, ranks, route, &mut self.failed)?;
        Ok(())
    }

    fn drive(&mut self, drive: Drive) -> Result<bool, GroupError> {
        let Self { group, sends, receives, failed } = self;
        let over = group.drive_by(drive, |state| {
            let mut moves = None;
            for (inbound, over) in receives.iter_mut().flatten() {
                *over = *over || ended(inbound.advance(state), failed);
                count(&mut moves, *over, || inbound.moves(state));
            }
            Ok(sends.advance(state, failed, moves))
        })?;
        for (inbound, _) in receives.iter_mut().flatten() {
            if let Err(error) = inbound.decode() {
                failed.get_or_insert(error);
            }
        }
        whole(over, failed)
    }

    tests!();

    /// Waits for the objects, by rank. Returns None on a rank that gathers none.
    ///
    /// # Errors
    ///
    /// As [`Group::recv_obj`].
    pub fn wait(mut self) -> Result<Option<Vec<O>>, GroupError> {
        self.drive(Drive::ToEnd)?;
        self.take()
    }

    fn take(&mut self) -> Result<Option<Vec<O>>, GroupError> {
        let object = |(mut inbound, _): (Inbound<O>, bool)| {
            inbound.take()?.map(|(object, _)| object).ok_or_else(taken)
        };
        let all = self.receives.take().map(|receives| receives.into_iter().map(object).collect());
        all.transpose()
    }
}

/// A broadcast of an object in progress. After a drop on the root the object is still sent; after a drop on another rank the object that
/// comes is dropped.
#[derive(Debug)]
#[must_use = "it makes progress when tested or waited for"]
pub struct BroadcastingObject<O> {
    group: Group,
    sends: Sends,
    /// The object, on the root.
    own: Option<O>,
    /// The receive, on other ranks.
    receive: Option<Inbound<O>>,
    foreign: Foreign<O>,
    /// The first error of a send. It is returned after all sends have ended.
    failed: Option<GroupError>,
}

/// On the root: objects that come for this broadcast, which only ranks that call another collective send, or that call this one as the
/// root. An object that comes after the end of the broadcast is noticed by the next broadcast of this root.
#[derive(Debug)]
struct Foreign<O> {
    /// The root's last broadcast, and this one.
    of: [Option<Route>; 2],
    inbound: Option<Inbound<O>>,
}

impl<O: DeserializeOwned + Schema> Foreign<O> {
    /// Receives such an object, if one has come; the first error goes to `failed`. Adds the count of moves of an object on its way.
    fn advance(
        &mut self,
        group: &Group,
        state: &mut State,
        failed: &mut Option<GroupError>,
        moves: &mut Option<u64>,
    ) {
        loop {
            if self.inbound.is_none() {
                let mut routes = self.of.iter().flatten();
                self.inbound = routes.find_map(|route| Inbound::found(group, *route, state));
            }
            let Some(inbound) = &mut self.inbound else { return };
            if !ended(inbound.advance(state), failed) {
                return count(moves, false, || inbound.moves(state));
            }
            // After an error its packet may be left, to be found again. The drop of a receive without a packet takes the lock.
            let is_left = inbound.take_back();
            self.inbound = None;
            if is_left {
                return;
            }
        }
    }
}

impl<O: Serialize + DeserializeOwned + Schema> BroadcastingObject<O> {
    fn new(
        group: &Group,
        object: Option<O>,
        root: usize,
        route: Route,
    ) -> Result<Self, GroupError> {
        let (group, sends) = (group.clone(), Sends::default());
        let foreign = Foreign { of: [None; 2], inbound: None };
        let mut begun = Self { group, sends, own: None, receive: None, foreign, failed: None };
        let group = &begun.group;
        if group.rank() != root {
            begun.receive = Some(Inbound::of_collective(group, route, root)?);
            return Ok(begun);
        }
        let others = (0..group.size()).filter(|to| *to != root);
        let Some(own) = object else {
            others.for_each(|to| Outbound::without(group, to, route));
            let why = "the root of a broadcast gives the object".to_owned();
            return Err(GroupError::InvalidArgument(why));
        };
        begun.sends = Sends::begin(group, &own, others, route, &mut begun.failed)?;
        begun.own = Some(own);
        Ok(begun)
    }

    fn drive(&mut self, drive: Drive) -> Result<bool, GroupError> {
        let Self { group, sends, receive, foreign, failed, .. } = self;
        let over = group.drive_by(drive, |state| {
            let mut moves = None;
            foreign.advance(group, state, failed, &mut moves);
            if let Some(inbound) = receive {
                let is_over = inbound.advance(state)?;
                count(&mut moves, is_over, || inbound.moves(state));
            }
            Ok(sends.advance(state, failed, moves))
        })?;
        if let Some(inbound) = receive {
            inbound.decode()?;
        }
        whole(over, failed)
    }

    tests!();

    /// Waits for the object.
    ///
    /// # Errors
    ///
    /// As [`Group::recv_obj`].
    pub fn wait(mut self) -> Result<O, GroupError> {
        self.drive(Drive::ToEnd)?;
        let received = self.receive.as_mut().map_or(Ok(None), Inbound::take)?;
        received.map(|(object, _)| object).or(self.own).ok_or_else(taken)
    }
}

/// A reduction of objects in progress. After a drop on rank 0 the other ranks of an all-reduce get [`GroupError::Mismatch`] in place of the
/// result; after a drop on another rank its object is still sent.
#[derive(Debug)]
#[must_use = "it makes progress when tested or waited for"]
pub struct ReducingObject<O> {
    group: Group,
    op: Op,
    /// The second step of a reduction whose result goes to all ranks, until it begins.
    answer: Option<Answering<O>>,
    /// Why rank 0 has no result. The error is returned after it was sent to the other ranks.
    failed: Option<GroupError>,
    stage: Stage<O>,
}

/// The copy of the result to all ranks.
#[derive(Debug)]
enum Answering<O> {
    /// On rank 0: the route of the copy, before the result is known.
    To(Route),
    /// On another rank: the receive of the copy.
    From(Box<BroadcastingObject<Answer<O>>>),
}

/// The result that rank 0 sends, or why there is none.
type Answer<O> = Result<O, Refusal>;

#[derive(Clone, Debug, Serialize, Deserialize, Schema)]
enum Refusal {
    /// This rank's object is of another type than rank 0's.
    OtherShape(u64),
    /// This rank's part does not go with rank 0's.
    Mismatch(u64, String),
    Lost(u64, String),
    /// The operation cannot reduce the arguments of any rank.
    Invalid(String),
    Other(String),
}

impl Refusal {
    fn of(error: &GroupError) -> Self {
        match error {
            GroupError::SchemaMismatch { rank, .. } => Self::OtherShape(*rank as u64),
            GroupError::Mismatch { rank, why } => Self::Mismatch(*rank as u64, why.clone()),
            GroupError::PeerLost { rank, why } => Self::Lost(*rank as u64, why.clone()),
            GroupError::InvalidArgument(why) => Self::Invalid(why.clone()),
            other => Self::Other(other.to_string()),
        }
    }

    fn error(self) -> GroupError {
        let rank = |rank: u64| usize::try_from(rank).unwrap_or_default();
        match self {
            Self::OtherShape(culprit) => other_shape(rank(culprit)),
            Self::Mismatch(culprit, why) => GroupError::Mismatch { rank: rank(culprit), why },
            Self::Lost(culprit, why) => GroupError::PeerLost { rank: rank(culprit), why },
            Self::Invalid(why) => GroupError::InvalidArgument(why),
            Self::Other(why) => {
                let why = format!("rank 0 has no result of a reduction: {why}");
                GroupError::Mismatch { rank: 0, why }
            }
        }
    }
}

#[derive(Debug)]
enum Stage<O> {
    Gathering(GatheringObjects<O>),
    Answering(Box<BroadcastingObject<Answer<O>>>),
    Done(Option<O>),
    /// An error was returned.
    Over,
}

impl<O: Serialize + DeserializeOwned + Schema> ReducingObject<O> {
    /// Whether all ranks wait for a result from this rank. They get [`GroupError::Mismatch`] if the reduction is dropped now.
    pub fn is_awaited(&self) -> bool {
        matches!(self.answer, Some(Answering::To(_)))
    }

    fn drive(&mut self, drive: Drive) -> Result<bool, GroupError> {
        loop {
            match &mut self.stage {
                Stage::Gathering(gathering) => {
                    let over = gathering.drive(drive);
                    if let Ok(false) = over {
                        return Ok(false);
                    }
                    let gathered = over.and_then(|_| gathering.take());
                    self.stage = Stage::Over;
                    self.stage = self.reduced(gathered)?;
                }
                Stage::Answering(answering) => {
                    if !answering.drive(drive)? {
                        return Ok(false);
                    }
                    let Stage::Answering(answering) =
                        std::mem::replace(&mut self.stage, Stage::Over)
                    else {
                        return Err(taken());
                    };
                    let answer = answering.wait()?;
                    if let Some(error) = self.failed.take() {
                        return Err(error);
                    }
                    self.stage = Stage::Done(Some(answer.map_err(Refusal::error)?));
                }
                Stage::Done(_) => return Ok(true),
                Stage::Over => return Err(taken()),
            }
        }
    }

    /// Reduces the gathered objects, and begins the copy of the result.
    fn reduced(
        &mut self,
        gathered: Result<Option<Vec<O>>, GroupError>,
    ) -> Result<Stage<O>, GroupError> {
        let result = gathered.and_then(|all| all.map(|all| self.fold(&all)).transpose());
        let Some(answering) = self.answer.take() else { return result.map(Stage::Done) };
        // The other ranks wait for the answer, also if there is no result.
        let answer = match result {
            Ok(result) => result.map(Ok),
            Err(error) => {
                let refusal = Refusal::of(&error);
                self.failed = Some(error);
                Some(Err(refusal))
            }
        };
        Ok(Stage::Answering(match answering {
            Answering::From(answering) => answering,
            Answering::To(route) => {
                Box::new(BroadcastingObject::new(&self.group, answer, 0, route)?)
            }
        }))
    }

    /// Reduces the objects of all ranks.
    fn fold(&self, all: &[O]) -> Result<O, GroupError> {
        let mut ranks = all.iter().enumerate();
        let Some((_, first)) = ranks.next() else { return Err(taken()) };
        let mut whole = Numbers::of(first)?;
        whole.check(self.op)?;
        for (rank, object) in ranks {
            let numbers = Numbers::of(object)?;
            if numbers.shape() != whole.shape() {
                return Err(other_shape(rank));
            }
            whole.reduce(numbers, self.op);
        }
        whole.divide(self.op, all.len());
        whole.build()
    }

    tests!();

    /// Waits for the result; None on a rank that is not the root.
    ///
    /// # Errors
    ///
    /// As [`Group::all_reduce_obj`].
    pub fn wait(mut self) -> Result<Option<O>, GroupError> {
        self.drive(Drive::ToEnd)?;
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Done(result) => Ok(result),
            _ => Err(taken()),
        }
    }
}

impl<O> Drop for ReducingObject<O> {
    fn drop(&mut self) {
        if let Some(Answering::To(route)) = self.answer {
            // The others wait for the result.
            (1..self.group.size()).for_each(|to| Outbound::without(&self.group, to, route));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::leaf::Leaf;
    use super::*;
    use crate::loader::Complex64;
    use crate::support::{WAIT, library, ranks};

    /// Rank `dropping` begins a collective and drops it, before the other rank begins or after. On the other rank the collective must end.
    fn drop_one<R>(
        group: &Group,
        dropping: usize,
        begin: impl Fn() -> R,
        wait: impl Fn(R) -> Result<(), GroupError>,
    ) {
        for before in [true, false] {
            if group.rank() == dropping {
                let begun = begin();
                if !before {
                    group.meet(&[]).unwrap();
                }
                drop(begun);
                if before {
                    group.meet(&[]).unwrap();
                }
            } else if before {
                group.meet(&[]).unwrap();
                wait(begin()).unwrap();
            } else {
                let begun = begin();
                group.meet(&[]).unwrap();
                wait(begun).unwrap();
            }
        }
    }

    #[test]
    fn a_collective_of_objects_that_is_dropped_leaves_no_sender_waiting() {
        ranks(&library(), 2, |group| {
            // More than sockets buffer, and a packet that is long itself.
            let object = (vec![7_u8; 1 << 20], Leaf::from(vec![1.0_f64; 4 << 20]));
            let own = |root: usize| (group.rank() == root).then(|| object.clone());
            let gather = || group.igather_obj(&object, 0).unwrap();
            drop_one(&group, 0, gather, |begun| begun.wait().map(drop));
            let all_gather = || group.iall_gather_obj(&object).unwrap();
            drop_one(&group, 0, all_gather, |begun| begun.wait().map(drop));
            let broadcast = || group.ibroadcast_obj(own(0), 0).unwrap();
            drop_one(&group, 1, broadcast, |begun| begun.wait().map(drop));
            let numbers = &object.1;
            let reduce = || group.ireduce_obj(numbers, Op::Sum, 0).unwrap();
            drop_one(&group, 0, reduce, |begun| begun.wait().map(drop));
            let all_reduce = || group.iall_reduce_obj(numbers, Op::Sum).unwrap();
            drop_one(&group, 1, all_reduce, |begun| begun.wait().map(drop));
            group.barrier().unwrap();
            assert_eq!(group.shared.lock().mesh.cancellations(), 0);
        });
    }

    #[test]
    fn a_reduction_that_rank_0_drops_is_a_mismatch_of_the_others_at_once() {
        ranks(&library(), 3, |group| {
            // More than sockets buffer.
            let numbers = Leaf::from(vec![1.0_f64; 4 << 20]);
            for before in [true, false] {
                let begun = group.iall_reduce_obj(&numbers, Op::Sum).unwrap();
                if !before {
                    group.meet(&[]).unwrap();
                }
                if group.rank() == 0 {
                    drop(begun);
                } else {
                    let ended = begun.wait();
                    let is_refused = matches!(ended, Err(GroupError::Mismatch { rank: 0, .. }));
                    assert!(is_refused, "{:?}", ended.map(drop));
                }
                if before {
                    group.meet(&[]).unwrap();
                }
            }
            assert_eq!(group.all_reduce_obj(&7_u64, Op::Sum).unwrap(), 21);
            assert_eq!(group.shared.lock().mesh.cancellations(), 0);
        });
    }

    #[test]
    fn collectives_of_objects_may_be_waited_for_in_another_order_on_each_rank() {
        ranks(&library(), 2, |group| {
            // More than sockets buffer.
            let numbers = Leaf::from(vec![group.rank() as f64; 4 << 20]);
            let sum =
                |came: Option<Leaf<f64>>| assert!(came.unwrap().iter().all(|sum| *sum == 1.0));
            let two = || [(); 2].map(|()| group.iall_reduce_obj(&numbers, Op::Sum).unwrap());
            let [first, second] = two();
            // Rank 0 reduces when it waits, and then until the other has received the result.
            if group.rank() == 0 {
                [first, second].into_iter().for_each(|begun| sum(begun.wait().unwrap()));
            } else {
                [second, first].into_iter().for_each(|begun| sum(begun.wait().unwrap()));
            }
            let own = (group.rank() == 0).then(|| numbers.clone());
            let (copy, [reduced, dropped]) = (group.ibroadcast_obj(own, 0).unwrap(), two());
            if group.rank() == 0 {
                copy.wait().unwrap();
                sum(reduced.wait().unwrap());
            } else {
                sum(reduced.wait().unwrap());
                assert!(copy.wait().unwrap().iter().all(|number| *number == 0.0));
            }
            drop(dropped);
            assert!(group.shared.lock().receives.is_empty());
            group.barrier().unwrap();
        });
    }

    #[test]
    fn ranks_that_each_broadcast_an_object_as_the_root_notice_it() {
        fn notices<O: std::fmt::Debug>(group: &Group, ended: &Result<O, GroupError>) -> bool {
            let own = group.rank();
            match ended {
                Ok(_) => false,
                Err(GroupError::Mismatch { rank, why }) => {
                    assert!(*rank != own, "{why}");
                    why.contains(&format!("rank {own} broadcast with root {own}"))
                }
                other => panic!("{other:?}"),
            }
        }
        ranks(&library(), 3, |group| {
            let own = group.rank();
            // Each root waits until the others have received the long array.
            let long = Leaf::from(vec![own as f64; 4 << 20]);
            assert!(notices(&group, &group.broadcast_obj(Some(long), own)));
            group.barrier().unwrap();
            // The first broadcast may have ended before the object of another rank comes, which has come after the barrier.
            let first = group.broadcast_obj(Some(own as u64), own);
            group.barrier().unwrap();
            let second = group.broadcast_obj(Some(own as u64), own);
            assert!(notices(&group, &first) || notices(&group, &second), "{first:?}, {second:?}");
            group.barrier().unwrap();
            assert_eq!(group.shared.lock().mesh.cancellations(), 0);
            // An object that came last is noticed by this broadcast, after its object was sent to all.
            let next = group.broadcast_obj((own == 0).then_some(7_u64), 0);
            assert!(own == 0 || next.is_ok_and(|object| object == 7));
        });
    }

    #[test]
    fn a_root_with_an_object_of_another_root_waiting_gets_the_failure_of_its_group() {
        ranks(&library(), 2, |group| {
            let own = group.rank();
            let mut begun = group.ibroadcast_obj(Some(own as u64), own).unwrap();
            let end = Instant::now() + WAIT;
            loop {
                let mut state = group.shared.lock();
                if state.mesh.unexpected() > 0 {
                    break;
                }
                assert!(Instant::now() < end, "no object comes");
                state.mesh.poll(None).unwrap();
            }
            // The other rank may abort meanwhile.
            let _met = group.meet(&[]);
            group.abort();
            for ended in [begun.test().map(drop), begun.wait().map(drop)] {
                assert!(matches!(ended, Err(GroupError::Aborted { .. })), "{ended:?}");
            }
        });
    }

    #[test]
    fn a_reduction_that_was_begun_refuses_an_operation_that_its_numbers_do_not_have() {
        ranks(&library(), 2, |group| {
            let refused = |ended: Result<Option<_>, GroupError>| {
                assert!(matches!(ended, Err(GroupError::InvalidArgument(_))), "{ended:?}");
            };
            // Arrays within the encoding, beside it in the packet, and in a message of their own.
            for count in [2, 200, 20_000] {
                let numbers = Leaf::from(vec![Complex64 { re: 1.0, im: 2.0 }; count]);
                for op in [Op::Min, Op::Max] {
                    refused(group.iall_reduce_obj(&numbers, op).unwrap().wait());
                    let ended = group.ireduce_obj(&numbers, op, 1).unwrap().wait();
                    if group.rank() == 1 {
                        refused(ended)
                    } else {
                        assert_eq!(ended.unwrap(), None)
                    }
                }
            }
        });
    }
}
