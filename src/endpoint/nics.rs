//! The NICs of one endpoint: each has a data rail, the first ones (`MAX_CONTROL_RAILS` at most) also a control rail, each rail with its own
//! completion queue (docs/decisions/0007-a-queue-for-control.md).

use std::fmt;

use fabric::{Data, FabricError, PeerAddress};

use super::letter_buffers::LetterBuffers;

/// A NIC that was opened for an endpoint.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) nic: fabric::Nic,
    /// The name of the fabric, by which rails of two peers are paired.
    pub(crate) fabric_name: String,
    /// For the log: provider and interface.
    pub(crate) label: String,
    pub(crate) reopen: Reopen,
}

/// Opens a NIC's data rail again after it was closed.
pub(crate) struct Reopen(pub(crate) ReopenNic);

type ReopenNic = Box<dyn Fn(&mut fabric::Nic) -> Result<(), FabricError> + Send>;

impl fmt::Debug for Reopen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reopen")
    }
}

/// One NIC of an endpoint, and the endpoint's state for it.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) nic: fabric::Nic,
    /// The buffers of two-sided messages, where there is a control rail.
    pub(super) letters: Option<LetterBuffers>,
    /// The address of our own data endpoint, for the probe and for flushes; inserted at the first use.
    myself: Option<PeerAddress>,
    pub(super) fabric_name: String,
    /// For the log: provider and interface.
    pub(super) label: String,
    /// The last attempt to open the data rail again has failed.
    pub(super) has_not_reopened: bool,
    reopen: Reopen,
}

impl Port {
    pub(super) fn new(opened: Opened) -> Result<Self, FabricError> {
        let Opened { mut nic, fabric_name, label, reopen } = opened;
        let letters = if nic.has_control() { Some(LetterBuffers::new(&mut nic)?) } else { None };
        Ok(Self { nic, letters, myself: None, fabric_name, label, has_not_reopened: false, reopen })
    }

    /// Opens the data rail again, with a new libfabric endpoint.
    pub(super) fn reopen(&mut self) -> Result<(), FabricError> {
        (self.reopen.0)(&mut self.nic)?;
        self.has_not_reopened = false;
        if let Some(myself) = self.myself.take() {
            self.nic.remove_peer::<Data>(myself);
        }
        Ok(())
    }

    /// The address of our own data endpoint.
    pub(super) fn myself(&mut self) -> Result<PeerAddress, FabricError> {
        match self.myself {
            Some(myself) => Ok(myself),
            None => {
                let name = self.nic.data_name().to_vec();
                Ok(*self.myself.insert(self.nic.add_peer::<Data>(&name)?))
            }
        }
    }

    /// Whether the data rail was closed, which is the only way to stop a peer's late writes, or its close has failed.
    pub(super) fn is_closed(&self) -> bool {
        !self.nic.has_data()
    }

    /// Operations in flight, not counting posted receives, which end only when the peer sends.
    pub(super) fn in_flight(&self) -> usize {
        self.nic.in_flight() - self.nic.receives_in_flight()
    }

    /// Whether the data rail can be closed while writes are in flight there.
    pub(super) fn closes_with_operations(&self) -> bool {
        self.nic.closes_with_operations()
    }

    /// Whether regions are bound to the endpoint that uses them (FI_MR_ENDPOINT).
    pub(super) fn binds_regions(&self) -> bool {
        self.nic.region_mode().bind_to_endpoint
    }
}
