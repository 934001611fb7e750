//! How a pair of comms is opened: each end listens, mails its listener's handle, and connects by the handle that the other end mails.

use super::Shared;
use super::connector::Connecting;
use crate::error::GroupError;
use crate::loader::{Handle, ListenComm, ReceiveComm, SendComm};

/// The stage of a pair of comms.
#[derive(Debug, Default)]
pub(super) enum Opening {
    #[default]
    Closed,
    /// A handle was sent to the peer, which answers with one of its own.
    Requested {
        listener: ListenComm,
        /// The connect to the peer, from when its handle has come until its letter says that it has sent nothing.
        connecting: Option<Connecting>,
    },
    Open,
}

impl Opening {
    pub(super) fn is_closed(&self) -> bool {
        matches!(self, Self::Closed)
    }

    pub(super) fn is_requested(&self) -> bool {
        matches!(self, Self::Requested { .. })
    }

    /// Whether nothing ever comes from a peer that has left and whose letters are read. A peer that has mailed its handle, and not that it
    /// has sent nothing, has connected: its messages wait at the listener until the accept.
    pub(super) fn is_in_vain(&self) -> bool {
        matches!(self, Self::Closed | Self::Requested { connecting: None, .. })
    }

    /// Listens on a device, and mails `head` and then the handle to a rank, unless that was done before.
    #[inline]
    pub(super) fn request(
        &mut self,
        rank: usize,
        device: usize,
        head: &[u8],
        shared: &mut Shared<'_>,
    ) -> Result<(), GroupError> {
        if self.is_closed() { self.listen(rank, device, head, shared) } else { Ok(()) }
    }

    #[cold]
    fn listen(
        &mut self,
        rank: usize,
        device: usize,
        head: &[u8],
        shared: &mut Shared<'_>,
    ) -> Result<(), GroupError> {
        let (listener, handle) = shared.net.listen(device)?;
        let letter = [head, &handle.0].concat();
        shared.place.mail(rank, &letter)?;
        *self = Self::Requested { listener, connecting: None };
        Ok(())
    }

    /// The peer's handle has come: begins the connect.
    pub(super) fn invited(&mut self, device: usize, handle: Handle, shared: &Shared<'_>) {
        if let Self::Requested { connecting, .. } = self {
            *connecting = Some(shared.connector.begin(shared.net, device, Box::new(handle)));
        }
    }

    /// The peer leaves, and its letter says that it has sent nothing by this pair.
    pub(super) fn taken_back(&mut self) {
        if let Self::Requested { connecting, .. } = self {
            *connecting = None;
        }
    }

    /// The ends that were opened since the last call. `has` says which were open before: to the peer, and from it. After an error of the
    /// connect the other end may still open.
    pub(super) fn brought(
        &mut self,
        has: (bool, bool),
    ) -> Result<(Option<SendComm>, Option<ReceiveComm>), GroupError> {
        let Self::Requested { listener, connecting } = self else { return Ok((None, None)) };
        let send = connecting.as_ref().map_or(Ok(None), Connecting::take)?;
        let accepted = if has.1 { Ok(None) } else { listener.accept() };
        let receive = accepted.inspect_err(|_| *self = Self::Closed)?;
        if (has.0 || send.is_some()) && (has.1 || receive.is_some()) {
            // The listener closes right after the accept, as NCCL does.
            *self = Self::Open;
        }
        Ok((send, receive))
    }
}
