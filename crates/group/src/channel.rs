//! One end of a connection as NCCL uses it: many requests outstanding, only the oldest tested.

use std::collections::VecDeque;
use std::ops::Range;

use crate::error::GroupError;
use crate::loader::{Buffer, GROUP_MAX, ReceiveComm, Region, Request, SendComm};

/// Sends in order to one peer.
#[derive(Debug)]
pub struct SendChannel {
    outstanding: VecDeque<Request>, // Dropped before its comm's last share goes.
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

    /// Sends are numbered from 0: how many were posted.
    pub fn posted(&self) -> usize {
        self.posted
    }

    /// How many are done, in order.
    pub fn done(&self) -> usize {
        self.done
    }

    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Whether the plugin took the message; if not, come again.
    #[inline]
    pub fn send(
        &mut self,
        buffer: &Buffer,
        bytes: Range<usize>,
        region: &Region,
    ) -> Result<bool, GroupError> {
        self.send_into_group(buffer, bytes, region, 0)
    }

    /// As [`SendChannel::send`], for a place in a receive of several.
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

    /// Tests the oldest request; whether it is done.
    #[inline]
    pub fn poll(&mut self) -> Result<bool, GroupError> {
        let Some(oldest) = self.outstanding.front_mut() else {
            return Ok(false);
        };
        if oldest.test()?.is_none() {
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
    /// Messages that those stand for.
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

    /// Receives are numbered from 0: how many were posted.
    pub fn posted(&self) -> usize {
        self.posted
    }

    pub fn done(&self) -> usize {
        self.done
    }

    /// Messages that are waited for.
    pub fn outstanding(&self) -> usize {
        self.messages
    }

    /// Whether the plugin took the receive; if not, come again. It may be larger than what will come.
    #[inline]
    pub fn receive(
        &mut self,
        buffer: &mut Buffer,
        bytes: Range<usize>,
        region: &Region,
    ) -> Result<bool, GroupError> {
        self.receive_group(buffer, &[bytes], region)
    }

    /// As [`ReceiveChannel::receive`], for a message into each range, in one request. The ranges have one length.
    #[inline]
    pub fn receive_group(
        &mut self,
        buffer: &mut Buffer,
        ranges: &[Range<usize>],
        region: &Region,
    ) -> Result<bool, GroupError> {
        if self.outstanding.len() >= net_abi::MAX_REQUESTS {
            return Ok(false);
        }
        let room = ranges.first().map_or(0, ExactSizeIterator::len);
        let mut tags = [0; GROUP_MAX];
        for (place, tag) in tags.iter_mut().enumerate() {
            *tag = tag_in_group(self.tag, place);
        }
        let tags = tags.get(..ranges.len()).unwrap_or(&tags);
        let Some(request) = self.comm.irecv_group(buffer, ranges, region, tags)? else {
            return Ok(false);
        };
        self.outstanding.push_back((request, room));
        self.messages += ranges.len();
        self.posted += ranges.len();
        Ok(true)
    }

    /// Tests the oldest request; the size of its messages, which is the same for all, once they have come.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<usize>, GroupError> {
        let Some((oldest, room)) = self.outstanding.front_mut() else {
            return Ok(None);
        };
        let Some((sizes, count)) = oldest.test_each()? else {
            return Ok(None);
        };
        let len = sizes[0];
        for (place, size) in sizes.iter().take(count).enumerate() {
            let (peer, number) = (self.peer, self.done + place);
            if size > room {
                return Err(GroupError::Contract(format!(
                    "message {number} from rank {peer} is said to have {size} bytes, in a receive of {room}"
                )));
            }
            if *size != len {
                return Err(GroupError::Contract(format!(
                    "message {number} from rank {peer} is said to have {size} bytes, others of its receive {len}"
                )));
            }
        }
        self.outstanding.pop_front();
        self.messages -= count;
        self.done += count;
        Ok(Some(len))
    }
}

/// The messages of one receive differ by their tags.
#[inline]
fn tag_in_group(tag: i32, place: usize) -> i32 {
    i32::try_from(place).map_or(tag, |place| tag.wrapping_add(place))
}
