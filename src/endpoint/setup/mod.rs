//! How connections come about: what `proto::setup` says, done. Nothing here blocks.

mod accept;
mod connect;
mod hello;

pub(super) use accept::Listening;
pub(super) use connect::PendingConnect;

use proto::codec::{Address, Name};
use proto::packet::Ring;
use proto::rails::Rail;
use proto::setup::{Features, Host, Offers};
use proto::{Capabilities, ChannelId};

use super::Endpoint;
use super::memory::SENT_RING;
use super::nics::Port;
use crate::error::{Bug, Cause, Error, Result};
use crate::types::{DeviceFacts, Settings};

/// The control rail on which endpoints meet.
const SETUP_RAIL: usize = 0;

/// Our rails, as peers are told of them.
pub(super) fn rails_of(nics: &[Port]) -> Result<Vec<Rail>> {
    let address = |name: &[u8]| Address::new(name).ok_or(Cause::AddressTooLong { len: name.len() });
    let rails = (0..).zip(nics).map(|(index, port)| {
        let control = port.nic.has_control();
        let control = control.then(|| address(port.nic.control_name())).transpose()?;
        Ok(Rail {
            fabric: Name::cut(&port.fabric_name),
            nic: index,
            data: address(port.nic.data_name())?,
            control,
        })
    });
    rails.collect()
}

/// What peers are told of this process.
pub(super) fn host_of(device: &DeviceFacts, settings: &Settings) -> Host {
    let packed =
        |version: fabric::Version| u32::from(version.major) << 16 | u32::from(version.minor);
    Host {
        host: Name::cut(&device.host),
        process: std::process::id(),
        provider: Name::cut(&device.provider),
        provider_version: packed(device.provider_version),
        libfabric_version: packed(device.libfabric_version),
        settings: settings.fingerprint,
    }
}

/// The inboxes that we lend. Where no message comes inline they hold adverts, and a short one has room for more than a window of them.
pub(super) fn ring_of(settings: &Settings, capabilities: &Capabilities) -> Ring {
    match settings.inline_bytes_max {
        0 => Ring::SHORT,
        _ if capabilities.messages => SENT_RING,
        _ => Ring::LONG,
    }
}

/// What we would like channels to be like.
pub(super) fn offers_of(settings: &Settings, capabilities: &Capabilities) -> Offers {
    Offers {
        ring: ring_of(settings, capabilities),
        inline_bytes_max: settings.inline_bytes_max,
        shared_from: settings.stripe_bytes_min as u64,
    }
}

impl Endpoint {
    /// The longest message that may come inline without an advert: none where a connection may receive into GPU memory, which no copy
    /// of ours reaches.
    fn inline_unadvertised(&self) -> u16 {
        if self.device.gpu_access.is_direct() { 0 } else { self.settings.inline_bytes_max }
    }

    /// How our side can send and receive.
    fn features(&self, groups: bool) -> Features {
        Features { groups, fin_only: self.settings.force_fin && self.executor.sendrecv.is_none() }
    }

    /// Why a channel cannot go on, for a call of set-up.
    fn channel_failure(&mut self, channel: ChannelId) -> Error {
        match self.executor.peer_mut(channel).and_then(|peer| peer.failure.as_mut()) {
            Some(failure) => super::failures::repeated(failure),
            None => Cause::Bug(Bug::SlotTaken).into(),
        }
    }
}
