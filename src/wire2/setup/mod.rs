//! How connections come about: HELLO between endpoints, OPEN and OPENED on their channel. Nothing here blocks.
//!
//! ```text
//!  connect   the handle ─▶ HELLO ─▶ the peer's HELLO: rails pair, a channel is made ─▶ OPEN ─▶ OPENED: the comm
//!  accept    HELLO that one of our listeners proves: a channel is made ─▶ OPEN ─▶ OPENED has left: the comm
//! ```

mod accept;
mod connect;
mod hello;

pub(super) use accept::Listening;
pub(super) use connect::PendingConnect;

use proto::codec::{Address, Name};
use proto::rails::Rail;
use proto::wire2::setup::{Features, Host};

use super::Endpoint;
use super::nics::Port;
use crate::error::{Cause, Result};
use crate::types::{Device, Settings};

/// The control rail on which endpoints meet.
const FRONT_DOOR: usize = 0;

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
pub(super) fn host_of(device: &Device, settings: &Settings) -> Host {
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

impl Endpoint {
    /// The longest message that may come inline to a receive of the host's.
    pub(super) fn inline_host(&self) -> u16 {
        self.settings.inline_bytes_max
    }

    /// The same without an advert: none where a connection may receive into GPU memory, which no copy of ours reaches.
    pub(super) fn inline_unadvertised(&self) -> u16 {
        if self.device.gpu_access.is_direct() { 0 } else { self.inline_host() }
    }

    /// How our side can send and receive.
    fn features(&self, groups: bool) -> Features {
        Features { groups, fin_only: self.settings.force_fin }
    }
}
