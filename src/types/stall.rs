//! What a stall report and a dump say of an endpoint. `abi::words` has the sentences.

use std::time::Duration;

pub(crate) use proto::stall::{ConnectionState, Late, WaitsFor};

use crate::label::Label;

/// What waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    Sending,
    Receiving,
    Connecting,
}

/// One connection has waited for long: which side is late, and how far both ends are.
#[derive(Clone, Debug)]
pub(crate) struct Stall {
    pub(crate) device: Label,
    pub(crate) waiting: Waiting,
    /// None: it has not answered yet.
    pub(crate) peer: Option<String>,
    pub(crate) waited: Duration,
    pub(crate) late: Late,
    pub(crate) here: ConnectionState,
    pub(crate) there: Option<ConnectionState>,
    /// The name of the late rail.
    pub(crate) rail: Option<String>,
    /// How long nothing was heard of the peer.
    pub(crate) silent: Duration,
    /// How long the peer's NCCL has not polled, as the peer said.
    pub(crate) idle: Duration,
    /// Packets that the peer has not consumed.
    pub(crate) unconsumed: u32,
    /// Other connections of the endpoint that have waited as long.
    pub(crate) others: usize,
}

/// NCCL has requests open, and does not poll.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uncalled {
    pub(crate) device: Label,
    pub(crate) requests: u32,
    pub(crate) waited: Duration,
}

/// Everything that a dump says of one connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionSnapshot {
    pub(crate) slot: u16,
    pub(crate) waiting: Waiting,
    pub(crate) peer: String,
    pub(crate) is_closing: bool,
    pub(crate) requests: u32,
    pub(crate) here: ConnectionState,
    pub(crate) waited: Duration,
    /// Of the channel: how long nothing was heard, packets unconsumed, and whether it lives.
    pub(crate) silent: Duration,
    pub(crate) unconsumed: u32,
    pub(crate) failed: bool,
}

/// The state of one endpoint, for a dump.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) number: u16,
    pub(crate) device: Label,
    pub(crate) requests: u32,
    /// How long NCCL has not polled it.
    pub(crate) uncalled: Duration,
    pub(crate) listeners: usize,
    pub(crate) connects: usize,
    pub(crate) failed: bool,
    pub(crate) rails: Vec<RailSnapshot>,
    pub(crate) connections: Vec<ConnectionSnapshot>,
}

/// One NIC of an endpoint.
#[derive(Clone, Debug)]
pub(crate) struct RailSnapshot {
    pub(crate) name: String,
    pub(crate) in_flight: usize,
    pub(crate) bytes: u64,
    pub(crate) refused: u64,
}
