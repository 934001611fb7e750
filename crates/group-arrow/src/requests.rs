//! Sends and receives in progress.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use ironrail_group::error::GroupError;
use ironrail_group::objects::{Origin, ReceivingObject, SendingObject};
use ironrail_group::patience::deadline;

use crate::frame::Frame;
use crate::inner::Inner;

/// A send of a batch in progress. Dropped, it still sends.
#[derive(Debug)]
#[must_use = "dropped, its end is not known"]
pub struct SendingBatch(SendingObject);

impl SendingBatch {
    pub(crate) fn new(sending: SendingObject) -> Self {
        Self(sending)
    }

    /// Whether it has been sent; makes progress.
    ///
    /// # Errors
    ///
    /// As [`Batches::send`](crate::Batches::send).
    pub fn test(&mut self) -> Result<bool, GroupError> {
        self.0.test()
    }

    /// Waits until it has been sent.
    ///
    /// # Errors
    ///
    /// As [`Batches::send`](crate::Batches::send).
    pub fn wait(self) -> Result<(), GroupError> {
        self.0.wait()
    }
}

/// A receive of a batch in progress. Dropped, a partly received message is lost.
#[derive(Debug)]
#[must_use = "a receive takes nothing unless tested or waited for"]
pub struct ReceivingBatch {
    inner: Arc<Inner>,
    /// A schema and its fingerprint.
    wanted: Option<(SchemaRef, u64)>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Frame(Box<ReceivingObject<Frame>>),
    /// The frame has arrived, its schema perhaps not.
    Schema(Frame, Origin),
    Over,
}

impl ReceivingBatch {
    pub(crate) fn new(
        inner: Arc<Inner>,
        wanted: Option<(SchemaRef, u64)>,
        receiving: ReceivingObject<Frame>,
    ) -> Self {
        Self { inner, wanted, stage: Stage::Frame(Box::new(receiving)) }
    }

    /// Whether it has been received; makes progress. Then [`ReceivingBatch::wait`] returns it at once.
    ///
    /// # Errors
    ///
    /// As [`Group::recv_obj`](ironrail_group::group::Group::recv_obj).
    pub fn test(&mut self) -> Result<bool, GroupError> {
        if let Stage::Frame(receiving) = &mut self.stage {
            if !receiving.test()? {
                return Ok(false);
            }
            self.take_frame()?;
        }
        match &self.stage {
            Stage::Schema(frame, origin) => {
                let book = &self.inner.book;
                Ok(book.find(origin.source, frame.fingerprint)?.is_some())
            }
            _ => Err(over()),
        }
    }

    /// Waits for the batch.
    ///
    /// # Errors
    ///
    /// As [`Batches::recv`](crate::Batches::recv) and [`Batches::recv_as`](crate::Batches::recv_as).
    pub fn wait(mut self) -> Result<(RecordBatch, Origin), GroupError> {
        self.take_frame()?;
        let Stage::Schema(frame, origin) = self.stage else { return Err(over()) };
        Ok((self.inner.open(frame, origin.source, self.wanted.as_ref())?, origin))
    }

    /// Waits at most `limit`. Returns whether it has been received.
    ///
    /// # Errors
    ///
    /// As [`ReceivingBatch::test`].
    pub fn wait_timeout(&mut self, limit: Duration) -> Result<bool, GroupError> {
        let deadline = deadline(limit);
        if let Stage::Frame(receiving) = &mut self.stage
            && !receiving.wait_timeout(limit)?
        {
            return Ok(false);
        }
        while !self.test()? {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::yield_now();
        }
        Ok(true)
    }

    fn take_frame(&mut self) -> Result<(), GroupError> {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Frame(receiving) => {
                let (frame, origin) = receiving.wait()?;
                Stage::Schema(frame, origin)
            }
            other => other,
        };
        Ok(())
    }
}

fn over() -> GroupError {
    GroupError::Usage("this batch was received before, or failed".to_owned())
}
