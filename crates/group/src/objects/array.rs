//! Arrays of `ndarray`: contiguous views are sent without a copy, others are packed.

use ndarray::{ArrayD, ArrayView, ArrayViewMut, Dimension, IxDyn};
use postcard_schema::Schema;
use postcard_schema::schema::{DataModelType, NamedType};
use serde::{Deserialize, Serialize};

use super::Leaf;
use super::numbers::SHAPE;
use crate::error::GroupError;
use crate::group::Group;
use crate::loader::{Element, Op};
use crate::messages::{From, Received, Tag};

/// An array of any shape within an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(bound = "T: Element")]
pub struct Tensor<T: Element> {
    shape: Shape,
    elements: Leaf<T>,
}

/// The number of elements along each axis. Reductions leave these numbers as they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Shape(Vec<u64>);

impl Schema for Shape {
    const SCHEMA: &'static NamedType =
        &NamedType { name: SHAPE, ty: &DataModelType::NewtypeStruct(<Vec<u64>>::SCHEMA) };
}

impl<T: Element> Tensor<T> {
    /// Copies a view in row-major order.
    pub fn new<D: Dimension>(view: &ArrayView<'_, T, D>) -> Self {
        let shape = view.shape().iter().map(|len| *len as u64).collect();
        Self { shape: Shape(shape), elements: view.iter().copied().collect::<Vec<_>>().into() }
    }

    /// The array; no element is copied if this tensor is the only owner of the elements.
    ///
    /// # Errors
    ///
    /// [`GroupError::InvalidArgument`]: a peer sent a number of elements that does not fit its shape.
    pub fn into_array(self) -> Result<ArrayD<T>, GroupError> {
        let wrong =
            || GroupError::InvalidArgument("an array that does not match its shape".to_owned());
        let shape: Result<Vec<_>, _> = self.shape.0.into_iter().map(usize::try_from).collect();
        let shape = shape.map_err(|_| wrong())?;
        ArrayD::from_shape_vec(IxDyn(&shape), self.elements.into_vec()).map_err(|_| wrong())
    }
}

impl Group {
    /// Sends a view's elements in row-major order, as [`Group::send`] would.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn send_array<T: Element, D: Dimension>(
        &self,
        view: &ArrayView<'_, T, D>,
        to: usize,
        tag: u32,
    ) -> Result<(), GroupError> {
        match view.as_slice() {
            Some(elements) => self.send(elements, to, tag),
            None => self.send(&view.iter().copied().collect::<Vec<_>>(), to, tag),
        }
    }

    /// Receives into a view as many elements as it has.
    ///
    /// # Errors
    ///
    /// As [`Group::recv`]; [`GroupError::Mismatch`] where fewer elements came: a contiguous view has received them then.
    pub fn recv_array<T: Element, D: Dimension>(
        &self,
        view: &mut ArrayViewMut<'_, T, D>,
        from: impl Into<From>,
        tag: impl Into<Tag>,
    ) -> Result<Received, GroupError> {
        let (room, from, tag) = (view.len(), from.into(), tag.into());
        packed(view, |elements| whole(self.recv(elements, from, tag)?, room))
    }

    /// Reduces a view's elements with all ranks' in place, as [`Group::all_reduce`] would. Views may have different strides.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn all_reduce_array<T: Element, D: Dimension>(
        &self,
        view: &mut ArrayViewMut<'_, T, D>,
        op: Op,
    ) -> Result<(), GroupError> {
        packed(view, |elements| self.all_reduce(elements, op))
    }

    /// As [`Group::all_reduce_array`], with the result on the root only; the elements of other ranks are unchanged.
    ///
    /// # Errors
    ///
    /// As [`Group::reduce_in_place`].
    pub fn reduce_array<T: Element, D: Dimension>(
        &self,
        view: &mut ArrayViewMut<'_, T, D>,
        op: Op,
        root: usize,
    ) -> Result<(), GroupError> {
        packed(view, |elements| self.reduce_in_place(elements, op, root))
    }

    /// Copies the root's elements into every rank's view.
    ///
    /// # Errors
    ///
    /// As [`Group::broadcast`].
    pub fn broadcast_array<T: Element, D: Dimension>(
        &self,
        view: &mut ArrayViewMut<'_, T, D>,
        root: usize,
    ) -> Result<(), GroupError> {
        packed(view, |elements| self.broadcast(elements, root))
    }
}

/// Runs a call with a view's elements in row-major order: in place where they are contiguous, otherwise with a copy, which is written back
/// unless the call fails.
fn packed<T: Element, D: Dimension, R>(
    view: &mut ArrayViewMut<'_, T, D>,
    call: impl FnOnce(&mut [T]) -> Result<R, GroupError>,
) -> Result<R, GroupError> {
    if let Some(elements) = view.as_slice_mut() {
        return call(elements);
    }
    let mut packed: Vec<T> = view.iter().copied().collect();
    let done = call(&mut packed)?;
    view.iter_mut().zip(packed).for_each(|(element, new)| *element = new);
    Ok(done)
}

fn whole(received: Received, room: usize) -> Result<Received, GroupError> {
    let Received { source: rank, count, .. } = received;
    if count == room {
        return Ok(received);
    }
    let why = format!("rank {rank} sent {count} elements to an array of {room}");
    Err(GroupError::Mismatch { rank, why })
}
