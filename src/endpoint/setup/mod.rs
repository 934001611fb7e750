//! Connection set-up: performs what `proto::setup` decides. Nothing here blocks.

mod accept;
mod channel;
mod connect;
mod hello;

pub(super) use accept::{Accepting, Listening};
pub(super) use connect::PendingConnect;

use log::Level;
use proto::codec::{Address, Name};
use proto::packet::Ring;
use proto::rails::Rail;
use proto::setup::{Apart, Features, Host, Offers};
use proto::{Capabilities, ChannelId, Slot};

use super::Endpoint;
use super::bound::{CONNECTIONS_MAX, REPORT_EVERY};
use super::comms::Comm;
use super::counting::CommCounters;
use super::nics::Port;
use super::seldom::Seldom;
use super::side::Side;
use crate::error::{Cause, Error, Result, Table};
use crate::label::Label;
use crate::types::{DeviceFacts, Settings};

/// No slot is free. Connect and accept wait for one, within their bound.
const ALL_OPEN: Cause = Cause::Full { table: Table::Connections, count: CONNECTIONS_MAX };

fn no_common_rail(apart: &Apart) -> Cause {
    let networks = |names: &[Name]| {
        let names: Vec<_> = names.iter().map(Name::to_text).collect();
        Label::of(&if names.is_empty() { "none".to_owned() } else { names.join(", ") })
    };
    match apart {
        Apart::Networks => Cause::NoCommonRail,
        Apart::Control { ours, theirs } => {
            Cause::NoCommonControlRail { ours: networks(ours), theirs: networks(theirs) }
        }
    }
}

/// The level of a line about a connect or accept that waits: a warning once per [`REPORT_EVERY`], since most wait for the same peer.
fn waiting_level() -> Level {
    static WARNED: Seldom = Seldom::new();
    if WARNED.may(REPORT_EVERY) { Level::Warn } else { Level::Info }
}

/// Our rails, as HELLO describes them.
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

/// This process, as HELLO describes it.
pub(super) fn host_of(device: &DeviceFacts, settings: &Settings) -> Host {
    let packed =
        |version: fabric::Version| u32::from(version.major) << 16 | u32::from(version.minor);
    Host {
        host: Name::cut(&device.host),
        process: std::process::id(),
        pid_namespace: proc_status::pid_namespace().ok(),
        provider: Name::cut(&device.provider),
        provider_version: packed(device.provider_version),
        libfabric_version: packed(device.libfabric_version),
        settings: settings.fingerprint,
    }
}

/// The size of the inboxes that we lend. Without inline messages they hold control frames only, and a short ring has room for more adverts
/// than a window has.
pub(super) fn ring_of(settings: &Settings, capabilities: &Capabilities) -> Ring {
    match settings.inline_bytes_max {
        0 => Ring::SHORT,
        _ if capabilities.messages => Ring::SENT,
        _ => Ring::LONG,
    }
}

/// The channel parameters that we propose.
pub(super) fn offers_of(settings: &Settings, capabilities: &Capabilities) -> Offers {
    Offers {
        ring: ring_of(settings, capabilities),
        inline_bytes_max: settings.inline_bytes_max,
        shared_from: settings.stripe_bytes_min as u64,
    }
}

impl Endpoint {
    /// The longest message that may come inline before its advert: 0 where a connection may receive into GPU memory, which the CPU must not
    /// copy to.
    fn inline_unadvertised(&self) -> u16 {
        if self.device.gpu_access.is_direct() { 0 } else { self.settings.inline_bytes_max }
    }

    /// The features of our side.
    fn features(&self, groups: bool) -> Features {
        Features { groups, fin_only: self.settings.force_fin && !self.executor.sends_messages() }
    }

    /// Closes a connection for which NCCL has no comm.
    fn discard(&mut self, slot: Slot, side: Side) {
        let channel = self.executor.channel_of(slot);
        let mut comm = Comm::new(side, channel, CommCounters::default());
        comm.is_closing = true;
        self.comms.put(slot, comm);
        self.closing.push(slot);
        let now = self.now();
        self.core.with(&mut self.executor, slot, now, |flow, account| flow.close(account));
    }

    /// Why a channel takes no connection: its failure, or its end.
    fn channel_failure(&mut self, channel: ChannelId) -> Error {
        self.learn_rank(channel);
        let peer = self.executor.label(channel);
        let failure = self.executor.peer_mut(channel).and_then(|peer| peer.failure.as_mut());
        let Some(failure) = failure.map(super::failures::repeated) else {
            return Cause::PeerEnded.connecting(peer);
        };
        Error { logged: failure.logged, ..failure.cause.connecting(peer) }
    }
}
