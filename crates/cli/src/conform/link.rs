//! Connections for behaviours.

use net_loader::raw::{HandlePlace, ListenComm, Net, ReceiveComm, SendComm};

use super::case::{Case, Outcome, Stop};

/// The comms that a process sends and receives on. Two processes have two connections, and each of them has one end of each; one process
/// has one connection, and both its ends.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) send: SendComm,
    pub(super) receive: ReceiveComm,
}

impl Link {
    /// Listens, exchanges handles with the other process if there is one, and polls connect and accept alternately.
    pub(super) fn open(case: &mut Case, net: &Net) -> Outcome<Self> {
        let (listener, handle) = net.listen(0)?;
        let theirs = trade(case, &handle)?;
        Self::finish(case, net, listener, theirs)
    }

    /// `listener` is this side's; `handle` is the one to connect to.
    pub(super) fn finish(
        case: &Case,
        net: &Net,
        listener: ListenComm,
        mut handle: HandlePlace,
    ) -> Outcome<Self> {
        let (mut send, mut receive) = (None, None);
        let mut bare = false;
        let link = case.until("connect and accept", || {
            bare = !bare;
            if send.is_none() {
                send = net.connect(0, &mut handle, bare)?;
            }
            if receive.is_none() {
                receive = listener.accept(bare)?;
            }
            if send.is_none() || receive.is_none() {
                return Ok(None);
            }
            Ok(send.take().zip(receive.take()).map(|(send, receive)| Self { send, receive }))
        })?;
        listener.close()?;
        Ok(link)
    }

    pub(super) fn close(self) -> Outcome {
        self.send.close()?;
        Ok(self.receive.close()?)
    }
}

/// Exchanges handles; in one process, returns a copy of its own.
pub(super) fn trade(case: &mut Case, handle: &HandlePlace) -> Outcome<HandlePlace> {
    if !case.is_pair() {
        return Ok(HandlePlace::of(handle.bytes()));
    }
    let theirs = case.swap("trade handles", &handle.bytes())?;
    place(&theirs)
}

pub(super) fn place(bytes: &[u8]) -> Outcome<HandlePlace> {
    let bytes = bytes.try_into().map_err(|_| Stop::Fail("conform lost a handle".to_owned()))?;
    Ok(HandlePlace::of(bytes))
}

/// Polls connect until it has a comm.
pub(super) fn connect(case: &Case, net: &Net, handle: &mut HandlePlace) -> Outcome<SendComm> {
    case.until("connect", || Ok(net.connect(0, handle, false)?))
}

/// Polls accept until it has a comm.
pub(super) fn accept(case: &Case, listener: &ListenComm) -> Outcome<ReceiveComm> {
    case.until("accept", || Ok(listener.accept(false)?))
}
