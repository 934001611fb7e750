//! The read that makes received bytes visible: once per data rail that brought some, from memory of the endpoint's own.
//!
//! A NIC's read of its own host's memory passes the same path as the writes before it, and pushes them ahead. The page it
//! reads belongs to the endpoint, since regions may be bound to the rails that use them.

use fabric::{FabricError, Post, RemoteBytes, RemoteKey};

use super::Endpoint;
use super::nics::Nic;
use crate::error::{Error, Kind, Result};
use crate::handle::{Handle, HandleKind};
use crate::plugin::Poll;
use crate::rail::{Purpose, UserRegion};

/// What one read takes: a cache line.
const READ_BYTES: usize = 64;

/// A flush under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flush {
    /// NICs whose read was refused so far, as bits.
    unposted: u32,
    /// Reads that have not completed.
    in_flight: u32,
    failed: bool,
}

impl Flush {
    pub(super) fn completed(&mut self, well: bool) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.failed |= !well;
    }
}

impl Endpoint {
    /// Reads once on each rail that brought bytes to `comm` since its last flush. `None`: there is nothing to wait for.
    pub(crate) fn iflush(&mut self, comm: Handle) -> Result<Option<Handle>> {
        let receiver = super::open_receiver(
            self.receivers.get_mut(comm.slot(), comm.generation()),
            "receive comm",
        )?;
        let unposted = receiver.take_carried();
        if unposted == 0 || !self.capabilities.self_read {
            return Ok(None);
        }
        let mut generation = 0;
        let slot = self.flushes.insert_with(|_, current| {
            generation = current;
            Flush { unposted, ..Flush::default() }
        });
        let full = || Error::new(Kind::System, "65535 flushes are under way on one endpoint");
        let slot = slot.ok_or_else(full)?;
        self.post_flush(slot)?;
        Ok(Some(Handle::new(HandleKind::FlushRequest, self.number, generation, slot, 0)))
    }

    pub(super) fn test_flush(&mut self, request: Handle) -> Result<Poll> {
        let (slot, generation) = (request.slot(), request.generation());
        let unposted =
            self.flushes.get(slot, generation).ok_or_else(|| Error::stale("request"))?.unposted;
        if unposted != 0 {
            self.post_flush(slot)?;
        }
        let flush = *self.flushes.get(slot, generation).ok_or_else(|| Error::stale("request"))?;
        if flush.unposted != 0 || flush.in_flight != 0 {
            return Ok(Poll::Pending);
        }
        self.flushes.remove(slot, generation);
        if flush.failed {
            return Err(Error::new(
                Kind::System,
                format!("a flush on device {} failed", self.label()),
            ));
        }
        Ok(Poll::Done { sizes: 0 })
    }

    /// Posts the reads that are yet to be posted. One that is refused waits for the next test, and none is made twice.
    fn post_flush(&mut self, slot: u16) -> Result<()> {
        let Self { flushes, nics, landing, .. } = self;
        let Some(flush) = flushes.at_mut(slot) else { return Ok(()) };
        for (index, nic) in nics.iter_mut().enumerate() {
            if flush.unposted >> index & 1 == 1
                && read(nic, index, slot, landing)? == Post::Accepted
            {
                flush.unposted &= !(1 << index);
                flush.in_flight += 1;
            }
        }
        Ok(())
    }
}

/// Posts the read of one NIC, numbered `index`.
fn read(nic: &mut Nic, index: usize, flush: u16, landing: &UserRegion) -> Result<Post> {
    let failed =
        |error: FabricError| Error::new(Kind::System, format!("a flush on rail {index}: {error}"));
    let myself = match nic.myself {
        Some(myself) => myself,
        None => *nic.myself.insert(nic.peers.join(&nic.data_name).map_err(failed)?),
    };
    let page = landing.address();
    let local = landing.local(index, page + READ_BYTES as u64, READ_BYTES);
    let local = local.ok_or_else(|| Error::new(Kind::Internal, "the landing page is too small"))?;
    let key = RemoteKey::from_wire(landing.key(index));
    let remote = RemoteBytes { address: landing.target(page), key };
    let Some(operation) = nic.operations.begin(Purpose::Flush { flush }) else {
        return Ok(Post::Again);
    };
    let posted = nic.data.endpoint().read(local, remote, myself, nic.operations.context(operation));
    if !matches!(posted, Ok(Post::Accepted)) {
        nic.operations.end_at(operation);
    }
    posted.map_err(failed)
}
