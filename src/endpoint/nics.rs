//! The NICs of one endpoint: for each a data rail, and up to the fourth a control rail, each with a completion queue
//! (docs/decisions/0007-a-queue-for-control.md).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fabric::{
    AddressVector, CompletionQueue, Control, Delivery, EndpointOption, FabricError, Info,
    LocalBytes, PeerAddress, Post, RemoteBytes,
};
use proto::capabilities::Capabilities;

use super::messages::Messages;
use crate::error::{Bug, Cause, Error, Result};
use crate::label::Label;
use crate::plugin::Config;
use crate::plugin::device::Device;
use crate::plugin::plan::RailPlan;
use crate::plugin::{TrafficClass, assumed, gpu, order};
use crate::rail::peers::Peers;
use crate::rail::{DataRail, Operations, Purpose};

/// Operations that may be in flight on one NIC. Past that `isend` answers "not now".
pub(super) const OPERATIONS: u16 = 1024;

/// One NIC's share of an endpoint. The rails close before the queue and the addresses that they are bound to, which
/// their ownership in `fabric` sees to.
#[derive(Debug)]
pub(super) struct Nic {
    pub(super) data: DataRail,
    pub(super) control: Option<ControlRail>,
    pub(super) operations: Operations,
    /// Dones that travel alone and have not completed.
    pub(super) lone_dones: u32,
    pub(super) peers: Peers,
    pub(super) queue: Arc<CompletionQueue>,
    /// Our own data endpoint as a peer, for the probe and for flushes: looked up with the first.
    myself: Option<PeerAddress>,
    /// What the peer needs to reach us here.
    pub(super) data_name: Vec<u8>,
    pub(super) fabric_name: String,
    /// For the log: provider and interface.
    pub(super) label: String,
}

/// A control rail, and the buffers of its two-sided messages.
#[derive(Debug)]
pub(super) struct ControlRail {
    pub(super) messages: Messages,
    pub(super) endpoint: Arc<fabric::Endpoint<Control>>,
    pub(super) queue: Arc<CompletionQueue>,
    pub(super) name: Vec<u8>,
}

/// Opens the NICs of `device` in a traffic class; without one where they do not take it, which the log says once.
pub(super) fn open_in_class(
    device: &'static Device,
    class: Option<TrafficClass>,
) -> Result<(Vec<Nic>, Capabilities)> {
    static WARNED: AtomicBool = AtomicBool::new(false);
    let Some(asked) = class else { return open(device, None) };
    open(device, class).or_else(|error| {
        let opened = open(device, None)?;
        if !WARNED.swap(true, Ordering::Relaxed) {
            log::warn!(
                "the traffic class that NCCL asks for (DSCP {}) is left out: {}",
                asked.dscp(),
                error
            );
        }
        Ok(opened)
    })
}

/// Opens the NICs of `device`, with what is known of them without trying.
fn open(device: &'static Device, class: Option<TrafficClass>) -> Result<(Vec<Nic>, Capabilities)> {
    let settings = &device.settings;
    let infos = device.infos(class);
    let domains = device.open_domains(&infos)?;
    let mut nics = Vec::with_capacity(domains.len());
    let rails = device.plan.rails.iter().zip(&infos);
    for (index, (domain, (plan, info))) in domains.iter().zip(rails).enumerate() {
        let with_control = index < settings.max_control_rails;
        let opened = AddressVector::open(domain)
            .and_then(|addresses| Nic::open(domain, plan, info, settings, addresses, with_control));
        let nic = opened.map_err(|error| refused(device, &plan.interface, error))?;
        nics.push(nic);
    }
    let (Some(nic), Some(info)) = (nics.first(), infos.first()) else {
        return Err(Cause::Bug(Bug::DeviceWithoutRails).into());
    };
    let known = assumed(info, nic.data.endpoint().inject_bytes());
    Ok((nics, known))
}

impl Nic {
    /// Posts a control write that completes. None: as many operations as there may be are in flight, and nothing was posted.
    #[inline]
    pub(super) fn write_control(
        &mut self,
        purpose: Purpose,
        local: LocalBytes<'_, Control>,
        remote: RemoteBytes<Control>,
        peer: PeerAddress,
    ) -> Option<std::result::Result<Post, FabricError>> {
        let (operation, context) = self.operations.begin(purpose)?;
        let control = self.control().expect("control lanes lie on control rails");
        let posted = control.write(local, remote, peer, Delivery::Default, context);
        if !matches!(posted, Ok(Post::Accepted)) {
            self.operations.end_at(operation);
        }
        Some(posted)
    }

    /// Our own data endpoint as a peer.
    pub(super) fn myself(&mut self) -> std::result::Result<PeerAddress, FabricError> {
        match self.myself {
            Some(myself) => Ok(myself),
            None => Ok(*self.myself.insert(self.peers.join(&self.data_name)?)),
        }
    }

    /// Whether a message that waits does so because libfabric refuses it.
    pub(super) fn has_room_for_messages(&self) -> bool {
        self.control.as_ref().is_some_and(|control| control.messages.has_room())
    }

    fn open(
        domain: &Arc<fabric::Domain>,
        plan: &RailPlan,
        info: &Info,
        settings: &Config,
        addresses: Arc<AddressVector>,
        with_control: bool,
    ) -> std::result::Result<Self, FabricError> {
        let version = domain.fabric().library().version();
        let no_cuda = gpu::options(info, version);
        let options = [order::options(info.provider()), no_cuda].concat();
        let entries = settings.cq_entries_or_default();
        let queue = CompletionQueue::open(domain, entries)?;
        let data = fabric::Endpoint::open_with(domain, info, &queue, &addresses, &options)?;
        let control = with_control
            .then(|| ControlRail::open(domain, info, entries, &addresses, no_cuda))
            .transpose()?;
        let data_name = data.name()?;
        Ok(Self {
            data: DataRail::new(data, OPERATIONS),
            control,
            operations: Operations::new(OPERATIONS),
            lone_dones: 0,
            peers: Peers::new(addresses),
            queue,
            data_name,
            fabric_name: plan.fabric_name.clone(),
            myself: None,
            label: format!("{} {}", info.provider(), plan.interface),
        })
    }

    /// Whether regions are bound to the endpoint that uses them (FI_MR_ENDPOINT).
    pub(super) fn binds_regions(&self) -> bool {
        self.data.endpoint().domain().region_mode().bind_to_endpoint
    }

    /// The queue of the data rail, or of the control rail if there is one.
    #[inline]
    pub(super) fn queue(&self, control: bool) -> Option<&CompletionQueue> {
        if control { self.control.as_ref().map(|rail| &*rail.queue) } else { Some(&self.queue) }
    }

    /// The control rail's endpoint, if this NIC has one.
    #[inline]
    pub(super) fn control(&self) -> Option<&Arc<fabric::Endpoint<Control>>> {
        self.control.as_ref().map(|control| &control.endpoint)
    }
}

impl ControlRail {
    fn open(
        domain: &Arc<fabric::Domain>,
        info: &Info,
        entries: usize,
        addresses: &Arc<AddressVector>,
        options: &[EndpointOption],
    ) -> std::result::Result<Self, FabricError> {
        let queue = CompletionQueue::open(domain, entries)?;
        let endpoint = fabric::Endpoint::open_with(domain, info, &queue, addresses, options)?;
        Ok(Self { messages: Messages::new(&endpoint)?, name: endpoint.name()?, endpoint, queue })
    }
}

pub(super) fn refused(device: &Device, interface: &str, error: FabricError) -> Error {
    let (device, interface) = (device.label(), Label::of(interface));
    Cause::CannotUse { device, interface, fault: error.into() }.into()
}
