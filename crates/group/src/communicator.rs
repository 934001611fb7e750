//! A rank's connections to its neighbours in the ring.

use std::sync::Arc;
use std::time::Duration;

use crate::bootstrap::Bootstrap;
use crate::channel::{ReceiveChannel, SendChannel};
use crate::error::GroupError;
use crate::loader::{Handle, Library, ListenComm, Net, ReceiveComm, SendComm};
use crate::patience::{Patience, spins_for};

/// A rank's position in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    pub rank: usize,
    pub size: usize,
}

impl Ring {
    /// The rank that this one sends to.
    pub fn next(self) -> usize {
        (self.rank + 1) % self.size
    }

    /// The rank that this one receives from.
    pub fn previous(self) -> usize {
        (self.rank + self.size - 1) % self.size
    }
}

/// One rank of a ring: it sends to the next and receives from the previous one.
#[derive(Debug)]
pub struct Communicator {
    pub next: SendChannel,
    pub previous: ReceiveChannel,
    pub patience: Patience,
    ring: Ring,
    device: usize,
    net: Arc<Net>,
}

impl Communicator {
    /// Initialises the plugin and connects to both neighbours. All ranks call it; `wait` bounds every wait. A rank that fails gives up
    /// before it closes what it has opened.
    pub fn connect(
        library: &Arc<Library>,
        bootstrap: &mut dyn Bootstrap,
        device: Option<usize>,
        wait: Duration,
    ) -> Result<Self, GroupError> {
        let ring = Ring { rank: bootstrap.rank(), size: bootstrap.size() };
        // The same number on every rank, like NCCL's hash of the communicator.
        let communicator = bootstrap.identity();
        let net = Net::init(library, communicator)?;
        let device = net.choose_device(device, ring.rank)?;
        let (listener, handle) = net.listen(device)?;
        let handles = bootstrap.all_gather(&handle.0, wait)?;
        let target = parse_handle(&handles[ring.next()], ring.next())?;
        let mut patience = Patience::new(wait, spins_for(ring.size));
        let mut pair = Pair { ring, listener, target, send: None, receive: None };
        if let Err(why) = pair.connect(&net, device, &mut patience) {
            bootstrap.give_up(&why);
            return Err(why);
        }
        let Pair { listener, send: Some(send), receive: Some(receive), .. } = pair else {
            return Err(GroupError::Contract("connected without comms".to_owned()));
        };
        drop(listener); // As NCCL does, right after the accept.
        let tag = |rank: usize| i32::try_from(rank).unwrap_or(i32::MAX);
        let next = SendChannel::new(send, ring.next(), tag(ring.rank));
        let previous = ReceiveChannel::new(receive, ring.previous(), tag(ring.previous()));
        patience.reset();
        Ok(Self { next, previous, patience, ring, device, net })
    }

    pub fn ring(&self) -> Ring {
        self.ring
    }

    pub fn device(&self) -> usize {
        self.device
    }

    pub fn net(&self) -> &Arc<Net> {
        &self.net
    }

    /// The sends and receives that both neighbours owe, for the message of a timeout.
    pub fn awaited(next: &SendChannel, previous: &ReceiveChannel) -> String {
        let receive = (previous.outstanding() > 0)
            .then(|| format!("message {} from rank {}", previous.done(), previous.peer()));
        let send = (next.outstanding() > 0)
            .then(|| format!("rank {} to take message {}", next.peer(), next.done()));
        let waits: Vec<_> = [receive, send].into_iter().flatten().collect();
        if waits.is_empty() {
            "the plugin to take a request".to_owned()
        } else {
            waits.join(" and ")
        }
    }
}

/// The comms with both neighbours, while they are being made.
struct Pair {
    ring: Ring,
    listener: ListenComm,
    target: Handle,
    send: Option<SendComm>,
    receive: Option<ReceiveComm>,
}

impl Pair {
    /// Both in one loop, because the neighbour's accept depends on a loop like this one.
    fn connect(
        &mut self,
        net: &Arc<Net>,
        device: usize,
        patience: &mut Patience,
    ) -> Result<(), GroupError> {
        loop {
            let open = self.open();
            if self.send.is_none() {
                self.send = net.connect(device, &mut self.target)?;
            }
            if self.receive.is_none() {
                self.receive = self.listener.accept()?;
            }
            match self.open() {
                2 => return Ok(()),
                now if now > open => patience.reset(),
                _ => patience.idle(|| self.awaited())?,
            }
        }
    }

    fn open(&self) -> usize {
        usize::from(self.send.is_some()) + usize::from(self.receive.is_some())
    }

    fn awaited(&self) -> String {
        let Self { ring, send, receive, .. } = self;
        let connect = send.is_none().then(|| format!("rank {} to accept", ring.next()));
        let accept = receive.is_none().then(|| format!("rank {} to connect", ring.previous()));
        [connect, accept].into_iter().flatten().collect::<Vec<_>>().join(" and ")
    }
}

fn parse_handle(bytes: &[u8], rank: usize) -> Result<Handle, GroupError> {
    let bytes = bytes.try_into().map_err(|_| {
        GroupError::Bootstrap(format!("rank {rank} sent a handle of {} bytes", bytes.len()))
    })?;
    Ok(Handle(bytes))
}
