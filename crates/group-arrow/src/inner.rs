//! What all clones of [`Batches`](crate::Batches), and the receives that they begin, share.

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use ironrail_group::error::GroupError;
use ironrail_group::group::Group;

use crate::book::Book;
use crate::frame::{self, Frame, text};

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) frames: Group,
    pub(crate) book: Book,
}

impl Inner {
    /// The batch of a frame, once its schema has arrived.
    pub(crate) fn open(
        &self,
        frame: Frame,
        rank: usize,
        wanted: Option<&(SchemaRef, u64)>,
    ) -> Result<RecordBatch, GroupError> {
        if frame.messages.is_empty() {
            let why = format!("rank {rank} has a batch that Arrow's IPC cannot represent");
            return Err(GroupError::Mismatch { rank, why });
        }
        let described = self.book.wait(rank, frame.fingerprint)?;
        if let Some((schema, fingerprint)) = wanted
            && *fingerprint != frame.fingerprint
        {
            let (expected, got) = (text(schema), described.text());
            return Err(GroupError::SchemaMismatch { rank, expected, got });
        }
        frame::decode(frame, &described).map_err(|why| {
            let why = format!("rank {rank} sent an invalid batch: {why}");
            GroupError::Mismatch { rank, why }
        })
    }
}
