//! The contents of stall reports and dumps. `abi::words` has the sentences.

use std::time::Duration;

pub(crate) use proto::stall::{ConnectionState, Late, WaitsFor};

use crate::label::Label;

/// The call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    Sending,
    Receiving,
    Connecting,
}

/// A stalled connection: which side is late, and the progress of both ends.
#[derive(Clone, Debug)]
pub(crate) struct Stall {
    pub(crate) device: Label,
    pub(crate) waiting: Waiting,
    /// The peer's name. None: its HELLO has not arrived.
    pub(crate) peer: Option<String>,
    pub(crate) waited: Duration,
    pub(crate) late: Late,
    pub(crate) here: ConnectionState,
    pub(crate) there: Option<ConnectionState>,
    /// The name of the late rail.
    pub(crate) rail: Option<String>,
    /// How long the peer has sent nothing.
    pub(crate) silent: Duration,
    /// How long the peer's NCCL has not polled, by the peer's STATUS.
    pub(crate) idle: Duration,
    /// Packets that the peer has not consumed.
    pub(crate) unconsumed: u32,
    /// Other connections of the endpoint that have waited as long.
    pub(crate) others: usize,
}

/// NCCL has requests open and does not poll.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uncalled {
    pub(crate) device: Label,
    pub(crate) requests: u32,
    pub(crate) waited: Duration,
}

/// The state of one connection, for a dump.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionSnapshot {
    pub(crate) slot: u16,
    pub(crate) waiting: Waiting,
    pub(crate) peer: String,
    pub(crate) is_closing: bool,
    pub(crate) requests: u32,
    pub(crate) here: ConnectionState,
    pub(crate) waited: Duration,
    /// The state of the channel: how long the peer has sent nothing, packets not consumed, and whether the channel has failed.
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
    /// How long NCCL has not polled the endpoint.
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
