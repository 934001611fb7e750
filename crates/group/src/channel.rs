//! One end of a connection, used as NCCL does: many requests outstanding, only the oldest tested.

use std::collections::VecDeque;
use std::iter;
use std::ops::Range;

use crate::error::GroupError;
use crate::loader::{Buffer, ReceiveComm, Region, Request, SendComm};

/// Sends in order to one peer.
#[derive(Debug)]
pub struct SendChannel {
    outstanding: VecDeque<Request>,
    comm: SendComm,
    peer: usize,
    tag: i32,
    posted: usize,
    done: usize,
}

impl SendChannel {
    pub fn new(comm: SendComm, peer: usize, tag: i32) -> Self {
        let outstanding = VecDeque::with_capacity(net_abi::MAX_REQUESTS);
        Self { outstanding, comm, peer, tag, posted: 0, done: 0 }
    }

    pub fn peer(&self) -> usize {
        self.peer
    }

    pub fn register(&self, buffer: &Buffer) -> Result<Region, GroupError> {
        self.comm.register(buffer)
    }

    /// The number of posted sends; sends are numbered from 0.
    pub fn posted(&self) -> usize {
        self.posted
    }

    /// The number of completed sends.
    pub fn done(&self) -> usize {
        self.done
    }

    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Returns whether the plugin accepted the message; if not, call again.
    #[inline]
    pub fn send(
        &mut self,
        buffer: &Buffer,
        bytes: Range<usize>,
        region: &Region,
    ) -> Result<bool, GroupError> {
        self.send_into_group(buffer, bytes, region, 0)
    }

    /// As [`SendChannel::send`], for one message of a grouped receive.
    #[inline]
    pub fn send_into_group(
        &mut self,
        buffer: &Buffer,
        bytes: Range<usize>,
        region: &Region,
        place: usize,
    ) -> Result<bool, GroupError> {
        if self.outstanding.len() >= net_abi::MAX_REQUESTS {
            return Ok(false);
        }
        let Some(request) =
            self.comm.isend(buffer, bytes, region, tag_in_group(self.tag, place))?
        else {
            return Ok(false);
        };
        self.outstanding.push_back(request);
        self.posted += 1;
        Ok(true)
    }

    /// Tests the oldest request; returns whether it is done.
    #[inline]
    pub fn poll(&mut self) -> Result<bool, GroupError> {
        let Some(oldest) = self.outstanding.front_mut() else {
            return Ok(false);
        };
        if !self.comm.test(oldest)? {
            return Ok(false);
        }
        self.outstanding.pop_front();
        self.done += 1;
        Ok(true)
    }
}

/// Receives in order from one peer.
#[derive(Debug)]
pub struct ReceiveChannel {
    outstanding: VecDeque<(Request, usize)>,
    /// The number of messages that the outstanding receives are for.
    messages: usize,
    comm: ReceiveComm,
    peer: usize,
    tag: i32,
    posted: usize,
    done: usize,
}

impl ReceiveChannel {
    pub fn new(comm: ReceiveComm, peer: usize, tag: i32) -> Self {
        let outstanding = VecDeque::with_capacity(net_abi::MAX_REQUESTS);
        Self { outstanding, messages: 0, comm, peer, tag, posted: 0, done: 0 }
    }

    pub fn peer(&self) -> usize {
        self.peer
    }

    pub fn register(&self, buffer: &Buffer) -> Result<Region, GroupError> {
        self.comm.register(buffer)
    }

    /// The number of posted receives; receives are numbered from 0.
    pub fn posted(&self) -> usize {
        self.posted
    }

    pub fn done(&self) -> usize {
        self.done
    }

    /// The number of messages still to arrive.
    pub fn outstanding(&self) -> usize {
        self.messages
    }

    /// Returns whether the plugin accepted the receive; if not, call again. It may be larger than its message.
    #[inline]
    pub fn receive(
        &mut self,
        buffer: &mut Buffer,
        bytes: Range<usize>,
        region: &Region,
    ) -> Result<bool, GroupError> {
        self.receive_group(buffer, iter::once(bytes), region)
    }

    /// As [`ReceiveChannel::receive`], for several messages in one request, one per range. The ranges have the same length.
    #[inline]
    pub fn receive_group(
        &mut self,
        buffer: &mut Buffer,
        ranges: impl Iterator<Item = Range<usize>>,
        region: &Region,
    ) -> Result<bool, GroupError> {
        if self.outstanding.len() >= net_abi::MAX_REQUESTS {
            return Ok(false);
        }
        let (mut count, mut room) = (0, 0);
        let messages = ranges.map(|range| {
            (count, room) = (count + 1, range.len());
            (range, tag_in_group(self.tag, count - 1))
        });
        let Some(request) = self.comm.irecv_group(buffer, messages, region)? else {
            return Ok(false);
        };
        self.outstanding.push_back((request, room));
        self.messages += count;
        self.posted += count;
        Ok(true)
    }

    /// Tests the oldest request. Once its messages have arrived, returns their size, which is the same for all.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<usize>, GroupError> {
        let Some((oldest, room)) = self.outstanding.front_mut() else {
            return Ok(None);
        };
        let (room, peer, mut count, mut len) = (*room, self.peer, 0, 0);
        let done = self.comm.test(oldest, |size| {
            let number = self.done + count;
            if size > room {
                return Err(GroupError::Contract(format!(
                    "message {number} from rank {peer} is reported with {size} bytes, in a receive of {room}"
                )));
            }
            if count > 0 && size != len {
                return Err(GroupError::Contract(format!(
                    "message {number} from rank {peer} is reported with {size} bytes, others of its receive with {len}"
                )));
            }
            (count, len) = (count + 1, size);
            Ok(())
        })?;
        if !done {
            return Ok(None);
        }
        self.outstanding.pop_front();
        self.messages -= count;
        self.done += count;
        Ok(Some(len))
    }
}

/// The tag of one message in a grouped receive.
#[inline]
fn tag_in_group(tag: i32, place: usize) -> i32 {
    i32::try_from(place).map_or(tag, |place| tag.wrapping_add(place))
}
