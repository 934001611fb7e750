//! The calls.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use ironrail_group::error::GroupError;
use ironrail_group::group::Group;
use ironrail_group::messages::{From, Tag};
use ironrail_group::objects::Origin;

use crate::book::{Book, refused};
use crate::frame::{self, Frame};
use crate::inner::Inner;
use crate::requests::{ReceivingBatch, SendingBatch};

/// Record batches between the ranks of a group. Clones share the known schemas.
///
/// A schema is sent before the first batch of it to each peer; a receive takes any schema, or a given one. Tags are separate from those of
/// the group's messages and objects. Batches are not reduced, since a column's type does not define the sum of two tables; reduce the
/// columns, which are slices, with [`Group::all_reduce`]. They are not received into older ones either: Arrow's arrays are immutable.
#[derive(Clone, Debug)]
pub struct Batches {
    inner: Arc<Inner>,
}

impl Batches {
    /// For all ranks of a group. All of them call it.
    ///
    /// # Errors
    ///
    /// Those of [`Group::split`].
    pub fn new(group: &Group) -> Result<Self, GroupError> {
        let own = |group: &Group| {
            let none =
                || GroupError::Usage("the group could not be split for record batches".to_owned());
            group.split(Some(0), 0)?.ok_or_else(none)
        };
        let (frames, book) = (own(group)?, Book::new(own(group)?));
        Ok(Self { inner: Arc::new(Inner { frames, book }) })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.inner.frames.rank()
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.inner.frames.size()
    }

    /// Sends a batch, and returns when it may be dropped. Of a slice of a batch only its rows are sent, but whole
    /// dictionaries, and all long values of columns of views.
    ///
    /// # Errors
    ///
    /// As [`Group::send_obj`]; [`GroupError::InvalidArgument`] for a schema that Arrow's IPC cannot represent.
    pub fn send(&self, batch: &RecordBatch, to: usize, tag: u32) -> Result<(), GroupError> {
        if to == self.rank() {
            let why = "a blocking send to oneself would wait for ever".to_owned();
            return Err(GroupError::InvalidArgument(why));
        }
        self.isend(batch, to, tag)?.wait()
    }

    /// Receives a batch of any schema, from a rank or any, with a tag or any.
    ///
    /// # Errors
    ///
    /// As [`Group::recv_obj`]; [`GroupError::Mismatch`] for bytes that do not decode.
    pub fn recv(
        &self,
        from: impl Into<From>,
        tag: impl Into<Tag>,
    ) -> Result<(RecordBatch, Origin), GroupError> {
        self.irecv(from, tag)?.wait()
    }

    /// Receives a batch of a given schema.
    ///
    /// # Errors
    ///
    /// As [`Batches::recv`]; [`GroupError::SchemaMismatch`] for another schema: that batch is dropped, and the next one can be received.
    pub fn recv_as(
        &self,
        schema: &SchemaRef,
        from: impl Into<From>,
        tag: impl Into<Tag>,
    ) -> Result<(RecordBatch, Origin), GroupError> {
        self.irecv_as(schema, from, tag)?.wait()
    }

    /// Begins a send; the receiver may be this rank.
    ///
    /// # Errors
    ///
    /// As [`Batches::send`].
    pub fn isend(
        &self,
        batch: &RecordBatch,
        to: usize,
        tag: u32,
    ) -> Result<SendingBatch, GroupError> {
        let frame = self.frame(batch, to..=to)?;
        Ok(SendingBatch::new(self.inner.frames.isend_obj(&frame, to, tag)?))
    }

    /// Begins a receive.
    ///
    /// # Errors
    ///
    /// [`GroupError::InvalidArgument`] for a rank that does not exist.
    pub fn irecv(
        &self,
        from: impl Into<From>,
        tag: impl Into<Tag>,
    ) -> Result<ReceivingBatch, GroupError> {
        let receiving = self.inner.frames.irecv_obj(from, tag)?;
        Ok(ReceivingBatch::new(Arc::clone(&self.inner), None, receiving))
    }

    /// Begins a receive of a given schema.
    ///
    /// # Errors
    ///
    /// As [`Batches::irecv`], and [`GroupError::InvalidArgument`] for a schema that Arrow's IPC cannot represent.
    pub fn irecv_as(
        &self,
        schema: &SchemaRef,
        from: impl Into<From>,
        tag: impl Into<Tag>,
    ) -> Result<ReceivingBatch, GroupError> {
        let described = self.inner.book.describe(schema)?;
        let wanted = Some((Arc::clone(schema), described.fingerprint));
        let receiving = self.inner.frames.irecv_obj(from, tag)?;
        Ok(ReceivingBatch::new(Arc::clone(&self.inner), wanted, receiving))
    }

    /// Sends to one rank and receives from another at once.
    ///
    /// # Errors
    ///
    /// As [`Batches::send`] and [`Batches::recv`].
    pub fn sendrecv(
        &self,
        batch: &RecordBatch,
        to: usize,
        from: impl Into<From>,
        tag: u32,
    ) -> Result<(RecordBatch, Origin), GroupError> {
        let sending = self.isend(batch, to, tag)?;
        let received = self.recv(from, tag);
        sending.wait()?;
        received
    }

    /// Gathers every rank's batch on the root, by rank; other ranks get nothing. Rows and schemas may differ.
    ///
    /// # Errors
    ///
    /// As [`Batches::recv`]. All ranks call it, as all collectives. A batch with a schema that Arrow's IPC cannot represent is
    /// [`GroupError::InvalidArgument`], and [`GroupError::Mismatch`] for ranks that get it.
    pub fn gather(
        &self,
        batch: &RecordBatch,
        root: usize,
    ) -> Result<Option<Vec<RecordBatch>>, GroupError> {
        let (frame, framed) = self.part(batch, root..=root);
        let frames = self.inner.frames.gather_obj(&frame, root);
        framed?;
        frames?.map(|frames| self.open_all(frames)).transpose()
    }

    /// Gathers every rank's batch on every rank.
    ///
    /// # Errors
    ///
    /// As [`Batches::gather`].
    pub fn all_gather(&self, batch: &RecordBatch) -> Result<Vec<RecordBatch>, GroupError> {
        let (frame, framed) = self.part(batch, 0..=self.size() - 1);
        let frames = self.inner.frames.all_gather_obj(&frame);
        framed?;
        self.open_all(frames?)
    }

    /// Copies the root's batch to every rank; other ranks' is not read.
    ///
    /// # Errors
    ///
    /// As [`Batches::gather`]; [`GroupError::InvalidArgument`] where the root has none.
    pub fn broadcast(
        &self,
        batch: Option<&RecordBatch>,
        root: usize,
    ) -> Result<RecordBatch, GroupError> {
        let own = batch.filter(|_| self.rank() == root);
        let (frame, framed) = own.map(|batch| self.part(batch, 0..=self.size() - 1)).unzip();
        let frame = self.inner.frames.broadcast_obj(frame, root);
        framed.unwrap_or(Ok(()))?;
        match own {
            Some(batch) => frame.map(|_| batch.clone()),
            None => self.inner.open(frame?, root, None),
        }
    }

    /// The frame of a batch for a collective. A rank without one takes part as well, since others wait for it; its error is the caller's to
    /// return.
    fn part(
        &self,
        batch: &RecordBatch,
        to: std::ops::RangeInclusive<usize>,
    ) -> (Frame, Result<(), GroupError>) {
        match self.frame(batch, to) {
            Ok(frame) => (frame, Ok(())),
            Err(error) => (Frame::without(), Err(error)),
        }
    }

    /// The frame of a batch for these ranks, after its schema was sent to them.
    fn frame(
        &self,
        batch: &RecordBatch,
        mut to: std::ops::RangeInclusive<usize>,
    ) -> Result<Frame, GroupError> {
        let described = self.inner.book.describe(batch.schema_ref())?;
        let frame = frame::encode(batch, &described).map_err(|why| refused(&why))?;
        to.try_for_each(|to| match self.inner.book.send(&described, to) {
            // The send of the frame reports this, when all other ranks have theirs.
            Err(GroupError::PeerLost { .. }) => Ok(()),
            sent => sent,
        })?;
        Ok(frame)
    }

    fn open_all(&self, frames: Vec<Frame>) -> Result<Vec<RecordBatch>, GroupError> {
        frames
            .into_iter()
            .enumerate()
            .map(|(rank, frame)| self.inner.open(frame, rank, None))
            .collect()
    }
}
