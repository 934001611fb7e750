//! The NICs of one endpoint: for each a data rail, and up to the fourth a control rail, each with a completion queue
//! (docs/decisions/0007-a-queue-for-control.md).

use std::fmt;

use fabric::{FabricError, PeerAddress};

use super::letter_buffers::LetterBuffers;

/// Operations that may be in flight on one NIC. Past that `isend` answers "not now".
pub(crate) const OPERATIONS: u16 = 1024;

/// Tagged receives of connections that may be posted beside them, where there are no writes. Past that they wait.
pub(crate) const RECEIVES: u16 = 4096;

/// A NIC that was opened for an endpoint, and its names.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) nic: fabric::Nic,
    /// Peers' rails pair by it.
    pub(crate) fabric_name: String,
    /// For the log: provider and interface.
    pub(crate) label: String,
    pub(crate) reopen: Reopen,
}

/// Opens the data rail of a NIC again that was closed.
pub(crate) struct Reopen(pub(crate) ReopenNic);

type ReopenNic = Box<dyn Fn(&mut fabric::Nic) -> Result<(), FabricError> + Send>;

impl fmt::Debug for Reopen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reopen")
    }
}

/// One NIC, and what the endpoint keeps beside it.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) nic: fabric::Nic,
    /// The buffers of two-sided messages, where there is a control rail.
    pub(super) letters: Option<LetterBuffers>,
    /// Our own data endpoint as a peer, for the probe and for flushes: looked up with the first.
    myself: Option<PeerAddress>,
    pub(super) fabric_name: String,
    /// For the log: provider and interface.
    pub(super) label: String,
    /// Its data rail is closed, since a peer's late writes could only be kept out so.
    pub(super) is_closed: bool,
    reopen: Reopen,
}

impl Port {
    pub(super) fn new(opened: Opened) -> Result<Self, FabricError> {
        let Opened { mut nic, fabric_name, label, reopen } = opened;
        let letters = if nic.has_control() { Some(LetterBuffers::new(&mut nic)?) } else { None };
        Ok(Self { nic, letters, myself: None, fabric_name, label, is_closed: false, reopen })
    }

    /// Opens the data rail again: another endpoint.
    pub(super) fn reopen(&mut self) -> Result<(), FabricError> {
        (self.reopen.0)(&mut self.nic)?;
        self.is_closed = false;
        if let Some(myself) = self.myself.take() {
            self.nic.leave(myself);
        }
        Ok(())
    }

    /// Our own data endpoint as a peer.
    pub(super) fn myself(&mut self) -> Result<PeerAddress, FabricError> {
        match self.myself {
            Some(myself) => Ok(myself),
            None => {
                let name = self.nic.data_name().to_vec();
                Ok(*self.myself.insert(self.nic.join(&name)?))
            }
        }
    }

    /// Operations in flight that end by themselves: a posted receive waits for the peer, and is not counted.
    pub(super) fn in_flight(&self) -> usize {
        self.nic.in_flight() - self.nic.receives_in_flight()
    }

    /// Whether the data rail can be closed while writes are in flight there.
    pub(super) fn closes_any_time(&self) -> bool {
        self.nic.closes_any_time()
    }

    /// Whether regions are bound to the endpoint that uses them (FI_MR_ENDPOINT).
    pub(super) fn binds_regions(&self) -> bool {
        self.nic.region_mode().bind_to_endpoint
    }
}
