//! Connections for behaviours.

use net_loader::raw::{HandlePlace, ListenComm, Net, ReceiveComm, SendComm};

use super::case::{Case, Outcome, Stop, fail};

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
        Self::open_by(case, net, 0)
    }

    /// As [`Link::open`], by a device.
    pub(super) fn open_by(case: &mut Case, net: &Net, device: i32) -> Outcome<Self> {
        let (listener, handle) = net.listen(device)?;
        let theirs = trade(case, &handle)?;
        Self::finish(case, net, device, listener, theirs)
    }

    /// Opens the connections. `listener` is that of this side, `handle` that of the peer's listener.
    pub(super) fn finish(
        case: &Case,
        net: &Net,
        device: i32,
        listener: ListenComm,
        mut handle: HandlePlace,
    ) -> Outcome<Self> {
        let (mut opening, mut bare) = (Opening::default(), false);
        case.until("connect and accept", || {
            bare = !bare;
            Ok(opening.step(net, device, &mut handle, &listener, bare)?.then_some(()))
        })?;
        listener.close()?;
        opening.link()
    }

    pub(super) fn close(self) -> Outcome {
        self.send.close()?;
        Ok(self.receive.close()?)
    }
}

/// The comms of a [`Link`] that is being opened.
#[derive(Debug, Default)]
pub(super) struct Opening {
    send: Option<SendComm>,
    receive: Option<ReceiveComm>,
}

impl Opening {
    /// One attempt of connect and one of accept, of those that have given no comm yet. True: both comms are there. With `bare`, the place for a
    /// device handle is null.
    pub(super) fn step(
        &mut self,
        net: &Net,
        device: i32,
        handle: &mut HandlePlace,
        listener: &ListenComm,
        bare: bool,
    ) -> Outcome<bool> {
        self.connect(|| Ok(net.connect(device, handle, bare)?))?;
        self.accept(|| Ok(listener.accept(bare)?))
    }

    /// Connects by `call`, unless that has given a comm. True: both comms are there.
    pub(super) fn connect(
        &mut self,
        call: impl FnOnce() -> Outcome<Option<SendComm>>,
    ) -> Outcome<bool> {
        if self.send.is_none() {
            self.send = call()?;
        }
        Ok(self.is_done())
    }

    /// Accepts by `call`, unless that has given a comm. True: both comms are there.
    pub(super) fn accept(
        &mut self,
        call: impl FnOnce() -> Outcome<Option<ReceiveComm>>,
    ) -> Outcome<bool> {
        if self.receive.is_none() {
            self.receive = call()?;
        }
        Ok(self.is_done())
    }

    fn is_done(&self) -> bool {
        self.send.is_some() && self.receive.is_some()
    }

    /// Both comms.
    pub(super) fn link(self) -> Outcome<Link> {
        match self.send.zip(self.receive) {
            Some((send, receive)) => Ok(Link { send, receive }),
            None => fail("a comm is lost"),
        }
    }
}

/// Exchanges handles with the other process; in one process, returns a copy of its own handle.
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
