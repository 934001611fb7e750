//! The calls: blocking, begun and waited for later, between two ranks and among all.

use std::time::{Duration, Instant};

use postcard_schema::Schema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::parts::spares;
use super::transfer::{Inbound, Origin, Outbound, Route};
use crate::error::GroupError;
use crate::group::{Group, State};
use crate::mesh::{Space, Wait, rest};
use crate::messages::{From, Tag};

/// Objects: self-describing messages of any type that derives serde's traits and [`Schema`].
///
/// A receive of another type than was sent says [`GroupError::SchemaMismatch`]; the message is gone, and the next one can be received.
/// Objects have tags of their own: a receive of typed elements takes none of them. A receive that was begun takes its message when it is
/// tested or waited for; of several, the first that is.
impl Group {
    /// Sends an object, and returns when it may have left.
    ///
    /// # Errors
    ///
    /// As [`Group::send`]; [`GroupError::InvalidArgument`] also for what postcard does not encode.
    pub fn send_obj<O: Serialize + Schema>(
        &self,
        object: &O,
        to: usize,
        tag: u32,
    ) -> Result<(), GroupError> {
        self.other(to)?;
        self.isend_obj(object, to, tag)?.wait()
    }

    /// Receives an object, of a rank or any, with a tag or any.
    ///
    /// # Errors
    ///
    /// As [`Group::recv`]; [`GroupError::SchemaMismatch`]; [`GroupError::Mismatch`] for bytes that no such object has.
    pub fn recv_obj<O: DeserializeOwned + Schema>(
        &self,
        from: impl Into<From>,
        tag: impl Into<Tag>,
    ) -> Result<(O, Origin), GroupError> {
        self.irecv_obj(from, tag)?.wait()
    }

    /// Receives an object in the place of another, whose long arrays' memory is used again: where it has one owner, the
    /// type and the room.
    ///
    /// # Errors
    ///
    /// As [`Group::recv_obj`]. After [`GroupError::SchemaMismatch`] the object is as it was, after another error it may be the default.
    pub fn recv_obj_into<O: Serialize + DeserializeOwned + Schema + Default>(
        &self,
        object: &mut O,
        from: impl Into<From>,
        tag: impl Into<Tag>,
    ) -> Result<Origin, GroupError> {
        let (source, tag) = (from.into().rank(), tag.into().number());
        let mut inbound = Inbound::<O>::new(self, Space::OBJECTS, source, tag)?;
        self.until(inbound.focus(), |state| inbound.find(state))?;
        inbound.offer(spares(std::mem::take(object)));
        self.until(inbound.focus(), |state| inbound.advance(state))?;
        let (came, origin) = inbound.take().ok_or_else(taken)?;
        *object = came;
        Ok(origin)
    }

    /// Begins a send. The object may be changed at once: long leaves that are being read are copied then. To this rank, too.
    ///
    /// # Errors
    ///
    /// As [`Group::send_obj`].
    pub fn isend_obj<O: Serialize + Schema>(
        &self,
        object: &O,
        to: usize,
        tag: u32,
    ) -> Result<SendingObject, GroupError> {
        let route = Route { space: Space::OBJECTS, tag };
        let outbound = Outbound::begin(self, object, to, route)?;
        Ok(SendingObject { group: self.clone(), outbound })
    }

    /// Begins a receive.
    ///
    /// # Errors
    ///
    /// [`GroupError::InvalidArgument`] for a rank that is none.
    pub fn irecv_obj<O: DeserializeOwned + Schema>(
        &self,
        from: impl Into<From>,
        tag: impl Into<Tag>,
    ) -> Result<ReceivingObject<O>, GroupError> {
        let (source, tag) = (from.into().rank(), tag.into().number());
        let inbound = Inbound::new(self, Space::OBJECTS, source, tag)?;
        Ok(ReceivingObject { group: self.clone(), inbound })
    }

    /// Sends right and receives from the left, or whichever ranks, at once.
    ///
    /// # Errors
    ///
    /// As [`Group::send_obj`] and [`Group::recv_obj`].
    pub fn sendrecv_obj<S: Serialize + Schema, R: DeserializeOwned + Schema>(
        &self,
        object: &S,
        to: usize,
        from: impl Into<From>,
        tag: u32,
    ) -> Result<(R, Origin), GroupError> {
        let sending = self.isend_obj(object, to, tag)?;
        let received = self.recv_obj(from, tag);
        sending.wait()?;
        received
    }

    /// Every rank's object on the root, by rank; nothing elsewhere. Objects may differ in shape, not in type.
    ///
    /// # Errors
    ///
    /// As [`Group::recv_obj`]. All ranks call it, as all collectives.
    pub fn gather_obj<O: Serialize + DeserializeOwned + Schema>(
        &self,
        object: &O,
        root: usize,
    ) -> Result<Option<Vec<O>>, GroupError> {
        let route = self.object_route();
        self.rank_of(root)?;
        let sending = Outbound::begin(self, object, root, route)?;
        let gathered =
            if self.rank() == root { Some(self.collect(route)) } else { None }.transpose();
        self.drive(sending)?;
        gathered
    }

    /// Every rank's object on every rank.
    ///
    /// # Errors
    ///
    /// As [`Group::gather_obj`].
    pub fn all_gather_obj<O: Serialize + DeserializeOwned + Schema>(
        &self,
        object: &O,
    ) -> Result<Vec<O>, GroupError> {
        let route = self.object_route();
        let sends: Result<Vec<_>, _> =
            (0..self.size()).map(|to| Outbound::begin(self, object, to, route)).collect();
        let gathered = self.collect(route);
        sends?.into_iter().try_for_each(|sending| self.drive(sending))?;
        gathered
    }

    /// The root's object on every rank; what others give is not read.
    ///
    /// # Errors
    ///
    /// As [`Group::gather_obj`]; [`GroupError::InvalidArgument`] where the root gives none.
    pub fn broadcast_obj<O: Serialize + DeserializeOwned + Schema>(
        &self,
        object: Option<O>,
        root: usize,
    ) -> Result<O, GroupError> {
        let route = self.object_route();
        self.rank_of(root)?;
        if self.rank() != root {
            return self.drive_in(Inbound::new(self, route.space, Some(root), None)?);
        }
        let object = object.ok_or_else(|| {
            GroupError::InvalidArgument("the root of a broadcast gives the object".to_owned())
        })?;
        let others = (0..self.size()).filter(|to| *to != root);
        let sends: Result<Vec<_>, _> =
            others.map(|to| Outbound::begin(self, &object, to, route)).collect();
        sends?.into_iter().try_for_each(|sending| self.drive(sending))?;
        Ok(object)
    }

    /// A number that the next collective of objects has on every rank.
    fn object_route(&self) -> Route {
        let number = self.objects.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Route { space: Space::object_collective(number), tag: 0 }
    }

    fn collect<O: DeserializeOwned + Schema>(&self, route: Route) -> Result<Vec<O>, GroupError> {
        let receives: Result<Vec<_>, _> = (0..self.size())
            .map(|rank| Inbound::new(self, route.space, Some(rank), None))
            .collect();
        // The first error is returned after all have been received, so that no message is left behind.
        let mut first = Ok(Vec::new());
        for inbound in receives? {
            let came = self.drive_in(inbound);
            first = first.and_then(|mut objects| {
                came.map(|object| {
                    objects.push(object);
                    objects
                })
            });
        }
        first
    }

    fn drive(&self, mut outbound: Outbound) -> Result<(), GroupError> {
        self.until(None, |state| outbound.advance(state))
    }

    fn drive_in<O: DeserializeOwned + Schema>(
        &self,
        mut inbound: Inbound<O>,
    ) -> Result<O, GroupError> {
        self.until(None, |state| inbound.advance(state))?;
        inbound.take().map(|(object, _)| object).ok_or_else(taken)
    }

    /// Makes progress until `ready`.
    pub(super) fn until(
        &self,
        focus: Option<usize>,
        mut ready: impl FnMut(&mut State) -> Result<bool, GroupError>,
    ) -> Result<(), GroupError> {
        let mut wait = Wait::default();
        loop {
            let mut state = self.shared.lock();
            match ready(&mut state) {
                Ok(false) => {}
                ended => {
                    state.mesh.ends(&mut wait)?;
                    return ended.map(drop);
                }
            }
            let idle = state.mesh.step(focus, &mut wait)?;
            let pace = state.mesh.pace();
            drop(state);
            if let Some(idle) = idle {
                rest(pace, idle);
            }
        }
    }
}

fn taken() -> GroupError {
    GroupError::Usage("this object was received before".to_owned())
}

/// A send of an object that goes on. Dropped, it still goes.
#[derive(Debug)]
#[must_use = "dropped, its end is not known"]
pub struct SendingObject {
    group: Group,
    outbound: Outbound,
}

impl SendingObject {
    /// Whether it has left; makes progress.
    ///
    /// # Errors
    ///
    /// As [`Group::send_obj`].
    pub fn test(&mut self) -> Result<bool, GroupError> {
        let mut state = self.group.shared.lock();
        state.mesh.poll(None)?;
        self.outbound.advance(&mut state)
    }

    /// Waits until it has left.
    ///
    /// # Errors
    ///
    /// As [`Group::send_obj`].
    pub fn wait(self) -> Result<(), GroupError> {
        self.group.drive(self.outbound)
    }
}

/// A receive of an object that goes on. Dropped, a message that it has begun to receive is lost.
#[derive(Debug)]
#[must_use = "a receive takes nothing unless tested or waited for"]
pub struct ReceivingObject<O> {
    group: Group,
    inbound: Inbound<O>,
}

impl<O: DeserializeOwned + Schema> ReceivingObject<O> {
    /// Whether it is here; makes progress. Then [`ReceivingObject::wait`] gives it at once.
    ///
    /// # Errors
    ///
    /// As [`Group::recv_obj`].
    pub fn test(&mut self) -> Result<bool, GroupError> {
        let mut state = self.group.shared.lock();
        state.mesh.poll(None)?;
        self.inbound.advance(&mut state)
    }

    /// Waits for it.
    ///
    /// # Errors
    ///
    /// As [`Group::recv_obj`].
    pub fn wait(mut self) -> Result<(O, Origin), GroupError> {
        let focus = self.inbound.focus();
        let inbound = &mut self.inbound;
        self.group.until(focus, |state| inbound.advance(state))?;
        inbound.take().ok_or_else(taken)
    }

    /// Waits no longer than `limit`. Whether it is here.
    ///
    /// # Errors
    ///
    /// As [`Group::recv_obj`].
    pub fn wait_timeout(&mut self, limit: Duration) -> Result<bool, GroupError> {
        let deadline = Instant::now() + limit;
        let pace = self.group.shared.lock().mesh.pace();
        while !self.test()? {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            rest(pace, Duration::ZERO);
        }
        Ok(true)
    }
}
