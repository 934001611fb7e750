//! The calls that send and receive objects between two ranks: blocking, or begun and waited for later.

use std::sync::PoisonError;
use std::time::Duration;

use postcard_schema::Schema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::parts::spares;
use super::receiving::{Inbound, Origin};
use super::sending::{Outbound, Route};
use crate::error::GroupError;
use crate::group::{Group, State};
use crate::mesh::{Space, What};
use crate::messages::{From, Tag};

/// Objects: self-describing messages of any type that derives serde's traits and [`Schema`]. The program itself depends on `postcard-schema`
/// 0.2, which the derived code names.
///
/// A receive of another type than was sent returns [`GroupError::SchemaMismatch`]; the message is dropped, and the next one can be
/// received. Objects have a tag space of their own: a receive of typed elements matches none of them. A receive in progress takes its
/// message when it is tested or waited for; of several, the first one that is.
impl Group {
    /// Sends an object, and returns when it may be changed.
    ///
    /// # Errors
    ///
    /// As [`Group::send`]; [`GroupError::InvalidArgument`] also for an object that postcard cannot encode: then nothing is sent, and the
    /// receiver takes the next object.
    pub fn send_obj<O: Serialize + Schema>(
        &self,
        object: &O,
        to: usize,
        tag: u32,
    ) -> Result<(), GroupError> {
        self.other(to)?;
        self.isend_obj(object, to, tag)?.wait()
    }

    /// Receives an object from a rank, or from any, with a tag, or with any.
    ///
    /// # Errors
    ///
    /// As [`Group::recv`]; [`GroupError::SchemaMismatch`]; [`GroupError::Mismatch`] for bytes that do not decode.
    pub fn recv_obj<O: DeserializeOwned + Schema>(
        &self,
        from: impl Into<From>,
        tag: impl Into<Tag>,
    ) -> Result<(O, Origin), GroupError> {
        self.irecv_obj(from, tag)?.wait()
    }

    /// Receives an object in place of another. The memory of its long arrays is reused, if an array has one owner, the same type and enough
    /// capacity.
    ///
    /// # Errors
    ///
    /// As [`Group::recv_obj`]. After [`GroupError::SchemaMismatch`] the object is unchanged, after another error it may be the default.
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
        let (came, origin) = inbound.take()?.ok_or_else(taken)?;
        *object = came;
        Ok(origin)
    }

    /// Begins a send. The object may be changed at once: long leaves that are being read are copied then. The receiver may be this rank.
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
    /// [`GroupError::InvalidArgument`] for a rank that does not exist.
    pub fn irecv_obj<O: DeserializeOwned + Schema>(
        &self,
        from: impl Into<From>,
        tag: impl Into<Tag>,
    ) -> Result<ReceivingObject<O>, GroupError> {
        let (source, tag) = (from.into().rank(), tag.into().number());
        let inbound = Inbound::new(self, Space::OBJECTS, source, tag)?;
        Ok(ReceivingObject { group: self.clone(), inbound })
    }

    /// Sends to one rank and receives from another at once.
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

    /// The route of the next collective of objects. Its number is the same on every rank, and `what` is if all ranks call the same
    /// collective.
    pub(super) fn object_route(&self, what: What) -> Route {
        let number = self.counts.objects.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Route { space: Space::object_collective(number), tag: what.tag() }
    }

    /// Notes the route of a broadcast of which this rank is the root. Returns the route of the last such broadcast.
    pub(super) fn rooted(&self, route: Route) -> Option<Route> {
        let mut last = self.counts.rooted.lock().unwrap_or_else(PoisonError::into_inner);
        last.replace(route.space).map(|space| Route { space, ..route })
    }

    fn drive(&self, mut outbound: Outbound) -> Result<(), GroupError> {
        self.until(outbound.focus(), |state| outbound.advance(state))
    }
}

pub(super) fn taken() -> GroupError {
    GroupError::Usage("this object was received before".to_owned())
}

/// A send of an object in progress. After a drop the object is still sent.
#[derive(Debug)]
#[must_use = "dropped, its end is not known"]
pub struct SendingObject {
    group: Group,
    outbound: Outbound,
}

impl SendingObject {
    /// Whether this is a send to this rank itself, which ends when this rank receives the object.
    pub fn is_to_itself(&self) -> bool {
        self.outbound.is_to(self.group.members[self.group.rank()])
    }

    /// Makes progress; returns whether the object has been sent.
    ///
    /// # Errors
    ///
    /// As [`Group::send_obj`].
    pub fn test(&mut self) -> Result<bool, GroupError> {
        self.wait_timeout(Duration::ZERO)
    }

    /// Waits at most `limit`. Returns whether the object has been sent.
    ///
    /// # Errors
    ///
    /// As [`Group::send_obj`].
    pub fn wait_timeout(&mut self, limit: Duration) -> Result<bool, GroupError> {
        let outbound = &mut self.outbound;
        let sent = |state: &mut State| Ok(outbound.advance(state)?.then_some(()));
        let ended = self.group.until_within(None, limit, sent);
        self.outbound.free();
        Ok(ended?.is_some())
    }

    /// Waits until the object has been sent.
    ///
    /// # Errors
    ///
    /// As [`Group::send_obj`].
    pub fn wait(self) -> Result<(), GroupError> {
        self.group.drive(self.outbound)
    }
}

/// A receive of an object in progress. After a drop a partly received message is lost.
#[derive(Debug)]
#[must_use = "a receive takes nothing unless tested or waited for"]
pub struct ReceivingObject<O> {
    group: Group,
    inbound: Inbound<O>,
}

impl<O: DeserializeOwned + Schema> ReceivingObject<O> {
    /// Makes progress; returns whether the object has been received. Then [`ReceivingObject::wait`] returns it at once.
    ///
    /// # Errors
    ///
    /// As [`Group::recv_obj`].
    pub fn test(&mut self) -> Result<bool, GroupError> {
        self.wait_timeout(Duration::ZERO)
    }

    /// Waits for the object.
    ///
    /// # Errors
    ///
    /// As [`Group::recv_obj`].
    pub fn wait(mut self) -> Result<(O, Origin), GroupError> {
        let focus = self.inbound.focus();
        let inbound = &mut self.inbound;
        self.group.until(focus, |state| inbound.advance(state))?;
        inbound.take()?.ok_or_else(taken)
    }

    /// Waits at most `limit`. Returns whether the object has been received.
    ///
    /// # Errors
    ///
    /// As [`Group::recv_obj`].
    pub fn wait_timeout(&mut self, limit: Duration) -> Result<bool, GroupError> {
        let inbound = &mut self.inbound;
        let received = |state: &mut State| Ok(inbound.advance(state)?.then_some(()));
        let is_there = self.group.until_within(None, limit, received)?.is_some();
        self.inbound.decode()?;
        Ok(is_there)
    }

    /// Takes the receive back if no message has come to it; returns whether it did. The receive then ends with an error.
    pub fn take_back(&mut self) -> bool {
        self.inbound.take_back()
    }
}
