//! The rendezvous of ranks on this machine.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use ironrail_group::bootstrap::Hub;
use ironrail_group::error::GroupError;

use crate::open_files;

/// As [`hub`], after raising this process's limit of open files to the hard limit, which ranks inherit: none of these programs calls
/// select(2).
///
/// # Errors
///
/// Those of [`hub`].
pub(crate) fn meet(ranks: usize, wait: Duration) -> Result<Hub, GroupError> {
    open_files::allow_all();
    hub(ranks, wait)
}

/// Starts the rendezvous of `ranks` on the loopback interface.
///
/// # Errors
///
/// No port can be opened, or nothing can reach the port: in a container without a network the interface may be down.
pub(crate) fn hub(ranks: usize, wait: Duration) -> Result<Hub, GroupError> {
    // Connecting a datagram socket sends nothing, and fails without a route.
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|socket| socket.connect((Ipv4Addr::LOCALHOST, DISCARD)))
        .map_err(unreachable)?;
    Hub::start((Ipv4Addr::LOCALHOST, 0).into(), ranks, wait)
}

/// The port is not used.
const DISCARD: u16 = 9;

fn unreachable(error: io::Error) -> GroupError {
    let why = format!("{error}: is the loopback interface down? `ip link set lo up`, as root");
    let error = io::Error::new(error.kind(), why);
    GroupError::System { what: "reaching 127.0.0.1, where ranks meet", error }
}
