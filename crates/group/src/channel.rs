//! One end of a connection as NCCL uses it: many requests outstanding, only the oldest tested.

use std::collections::VecDeque;
use std::ops::Range;

use crate::error::GroupError;
use crate::loader::{Buffer, ReceiveComm, Region, Request, SendComm};

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
        if self.outstanding.len() >= net_abi::MAX_REQUESTS {
            return Ok(false);
        }
        let Some(request) = self.comm.isend(buffer, bytes, region, self.tag)? else {
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
    comm: ReceiveComm,
    peer: usize,
    tag: i32,
    posted: usize,
    done: usize,
}

impl ReceiveChannel {
    pub fn new(comm: ReceiveComm, peer: usize, tag: i32) -> Self {
        let outstanding = VecDeque::with_capacity(net_abi::MAX_REQUESTS);
        Self { outstanding, comm, peer, tag, posted: 0, done: 0 }
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

    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Whether the plugin took the receive; if not, come again. It may be larger than what will come.
    #[inline]
    pub fn receive(
        &mut self,
        buffer: &mut Buffer,
        bytes: Range<usize>,
        region: &Region,
    ) -> Result<bool, GroupError> {
        if self.outstanding.len() >= net_abi::MAX_REQUESTS {
            return Ok(false);
        }
        let room = bytes.len();
        let Some(request) = self.comm.irecv(buffer, bytes, region, self.tag)? else {
            return Ok(false);
        };
        self.outstanding.push_back((request, room));
        self.posted += 1;
        Ok(true)
    }

    /// Tests the oldest request; the size of its message, once that has come.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<usize>, GroupError> {
        let Some((oldest, room)) = self.outstanding.front_mut() else {
            return Ok(None);
        };
        let Some(len) = oldest.test()? else {
            return Ok(None);
        };
        if len > *room {
            let (peer, number) = (self.peer, self.done);
            return Err(GroupError::Contract(format!(
                "message {number} from rank {peer} is said to have {len} bytes, in a receive of {room}"
            )));
        }
        self.outstanding.pop_front();
        self.done += 1;
        Ok(Some(len))
    }
}
