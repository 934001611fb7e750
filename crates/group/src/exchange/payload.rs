//! The elements of a message under way.

use crate::group::State;
use crate::loader::{Buffer, Element, Place};

/// Memory that a send reads or a receive writes. A long vector is registered for this time where that takes less time than a copy.
#[derive(Debug)]
pub(super) enum Payload<T> {
    Vector(Vec<T>),
    Registered(Buffer),
}

impl<T: Element> Payload<T> {
    /// The elements of a message to or from `peer`, its rank in the mesh.
    pub(super) fn new(vector: Vec<T>, peer: usize, state: &mut State) -> Self {
        if !state.mesh.lends(peer, size_of_val(&vector[..])) {
            return Self::Vector(vector);
        }
        let buffer = Buffer::of(vector);
        state.mesh.add(&buffer);
        Self::Registered(buffer)
    }

    pub(super) fn place(&mut self) -> Place {
        match self {
            Self::Vector(vector) => Place::writing(vector),
            Self::Registered(buffer) => buffer.memory().place(),
        }
    }

    /// The vector, once the message has moved.
    pub(super) fn into_vec(self, state: &mut State) -> Vec<T> {
        match self {
            Self::Vector(vector) => vector,
            Self::Registered(buffer) => {
                state.mesh.remove(&buffer);
                // A peer that hangs may still write to memory whose deregistration has failed.
                buffer.into_vec().unwrap_or_else(|buffer| buffer.to_vec())
            }
        }
    }
}
