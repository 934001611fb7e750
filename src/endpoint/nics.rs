//! The NICs of one endpoint: for each a data rail, and up to the fourth a control rail, each with a completion queue
//! (docs/decisions/0007-a-queue-for-control.md).

use fabric::{FabricError, PeerAddress};

use super::messages::Messages;
use super::operation::Purpose;

/// Operations that may be in flight on one NIC. Past that `isend` answers "not now".
pub(crate) const OPERATIONS: u16 = 1024;

/// A NIC that was opened for an endpoint, and its names.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) nic: fabric::Nic,
    /// Peers' rails pair by it.
    pub(crate) fabric_name: String,
    /// For the log: provider and interface.
    pub(crate) label: String,
}

/// One NIC, and what the endpoint keeps beside it.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) nic: fabric::Nic,
    /// The buffers of two-sided messages, where there is a control rail.
    pub(super) messages: Option<Messages>,
    /// Dones that travel alone and have not completed.
    pub(super) lone_dones: u32,
    /// Our own data endpoint as a peer, for the probe and for flushes: looked up with the first.
    myself: Option<PeerAddress>,
    pub(super) fabric_name: String,
    /// For the log: provider and interface.
    pub(super) label: String,
}

impl Port {
    pub(super) fn new(opened: Opened) -> Result<Self, FabricError> {
        let Opened { mut nic, fabric_name, label } = opened;
        let messages = if nic.has_control() { Some(Messages::new(&mut nic)?) } else { None };
        Ok(Self { nic, messages, lone_dones: 0, myself: None, fabric_name, label })
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

    /// How many messages the sender in this slot has in flight that it does not count; from now on it does.
    pub(super) fn count_wholes(&mut self, of: u16) -> u32 {
        let mut count = 0;
        for token in self.nic.tokens_mut() {
            if let Some(Purpose::Whole { sender, line }) = Purpose::of(*token)
                && sender == of
            {
                *token = Purpose::Part { sender, line }.token();
                count += 1;
            }
        }
        count
    }

    /// Takes out the data that the sender in this slot waits to post: how many parts.
    pub(super) fn give_up_parts_of(&mut self, slot: u16) -> usize {
        let its = |token| Purpose::of(token).and_then(Purpose::sender_of_data) == Some(slot);
        self.nic.give_up(its).len()
    }

    /// Operations in flight that end by themselves: a posted receive waits for the peer, and is not counted.
    pub(super) fn in_flight(&self) -> usize {
        self.nic.in_flight() - self.nic.receives_in_flight()
    }

    /// Whether a message that waits does so because libfabric refuses it.
    pub(super) fn has_room_for_messages(&self) -> bool {
        self.messages.as_ref().is_some_and(Messages::has_room)
    }

    /// Whether regions are bound to the endpoint that uses them (FI_MR_ENDPOINT).
    pub(super) fn binds_regions(&self) -> bool {
        self.nic.region_mode().bind_to_endpoint
    }
}
