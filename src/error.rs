//! The errors of calls: a cause with the ids and numbers that its sentence needs. `abi::words` has all sentences, and formats one where an
//! error leaves the plugin.
//!
//! Larger data is kept elsewhere: names by [`Label`], why the plugin did not start in the plugin, and errors that only connect has in
//! [`SetupError`].

use std::fmt;

pub(crate) use fabric::FabricError;
use fabric::{CompletionError, error_text};
pub(crate) use proto::Cause as ChannelCause;
pub(crate) use proto::frame::{Malformed, Refusal};
use proto::setup::HandleError;
use proto::{Fault, Violation};

use crate::label::Label;

/// Where the mistake is, in NCCL's terms (NCCL plugins/net/README.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The network or the operating system failed: ncclSystemError.
    System,
    /// A bug of ours: ncclInternalError.
    Internal,
    /// A wrong argument, a stale handle: ncclInvalidArgument.
    InvalidArgument,
    /// A legal call at the wrong time, or a wrong setting: ncclInvalidUsage.
    InvalidUsage,
    /// The peer is gone or broke the protocol: ncclRemoteError.
    Remote,
}

/// Why a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Error {
    pub(crate) cause: Cause,
    pub(crate) subject: Subject,
    /// Whether the sentence is in NCCL's log: a sticky error is logged once.
    pub(crate) logged: bool,
}

const EADDRNOTAVAIL: i32 = 99;

const _: () =
    assert!(size_of::<Error>() <= 32, "errors are returned by value, through every layer");

/// What an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The call itself.
    Call,
    /// A send connection to this peer.
    Sending(Label),
    /// A receive connection from this peer.
    Receiving(Label),
    /// A connect to this peer.
    Connecting(Label),
    /// The negotiation of what both ends of a connection support.
    Negotiation,
}

/// An argument or a result of NCCL's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noun {
    Answer,
    Comm,
    Connection,
    Context,
    DeviceIndex,
    Devices,
    Endpoint,
    Handle,
    ListenComm,
    MemoryHandle,
    Properties,
    ReceiveComm,
    Request,
    SendComm,
}

/// The lists of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    Addresses,
    Devices,
    MemoryHandles,
    Sizes,
    Tags,
}

/// Tables of fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    Communicators,
    Connections,
    /// Connects that have begun and have no answer yet.
    Connects,
    Endpoints,
    Flushes,
    Listeners {
        device: Label,
    },
    /// Processes to which an endpoint has a channel, ended ones too.
    Peers,
    Regions {
        device: Label,
    },
}

/// States that only a bug in Ironrail can cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    DeviceWithoutRails,
    LandingPageTooSmall,
    SlotTaken,
    UnknownPeer,
}

/// An operation that ended with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Control,
    Data,
}

/// How memory is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegisteredBy {
    Host,
    GpuAddress { gpu: i16 },
    GpuDmabuf { gpu: i16 },
}

/// libfabric's error of an operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    errno: i32,
    provider_errno: i32,
    text: Label,
}

/// The cause of an [`Error`], by where it arises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    // NCCL's arguments.
    NullPointer(Noun),
    NoHandle,
    NoList(List),
    NotOurs {
        expected: Noun,
        found: u64,
    },
    Stale(Noun),
    NoDevice(i64),
    NegativeSize(i32),
    NullAddress {
        len: usize,
    },
    GroupOfVersion {
        count: i32,
        most: usize,
    },
    GroupOfDevice {
        count: usize,
        most: usize,
    },
    /// The list of devices to merge is empty or too long, or names a device twice.
    PartsOfDevice {
        count: usize,
    },
    RailsOfDevice {
        count: usize,
        most: usize,
    },
    MixedNetworks,
    /// A device that uses SENDRECV has one rail.
    OneRail,
    EmptyRegion,
    PastAddressSpace {
        address: u64,
        len: usize,
    },
    MemoryKind(i32),
    NoDmabuf(i32),
    OutsideOfRegion {
        address: u64,
        len: usize,
    },
    FlushOutsideOfRegion {
        address: u64,
    },
    UsedHandle,

    // The process.
    NotInitialised,
    Forked,
    ProcessEnds,
    /// The plugin keeps the reason.
    NotStarted(Kind),
    Panicked,
    Full {
        table: Table,
        count: u32,
    },
    Bug(Bug),

    // Devices and their memory.
    CannotOpen {
        device: Label,
        interface: Label,
        fault: FabricError,
    },
    CannotUse {
        device: Label,
        interface: Label,
        fault: FabricError,
    },
    NoLandingPage(FabricError),
    NoControlMemory {
        device: Label,
        fault: FabricError,
    },
    AddressTooLong {
        len: usize,
    },
    AddressNotInHandle,
    NoRandom,
    NoDmabufHere {
        device: Label,
    },
    HostMemoryOnly {
        device: Label,
        because: Label,
    },
    NotRegistered {
        device: Label,
        len: usize,
        by: RegisteredBy,
        fault: FabricError,
    },
    NoGpuDriver {
        len: usize,
        because: Label,
    },
    /// The first byte, or the last, is not in GPU memory.
    NotGpuMemory {
        address: u64,
        len: usize,
        last: bool,
    },
    SpansTwoGpus {
        address: u64,
        len: usize,
        first: i16,
        last: i16,
    },
    /// libfabric refused to close a region.
    NotClosed {
        device: Label,
        len: usize,
        fault: FabricError,
    },
    NoFlush {
        device: Label,
    },
    FlushFailed {
        device: Label,
    },
    /// A read of a flush has not ended within the bound.
    FlushHangs {
        rail: Label,
        bound_ms: u32,
    },
    FlushNotPosted {
        rail: u8,
        fault: FabricError,
    },
    QueueBroken {
        rail: Label,
        fault: FabricError,
    },
    StaysRegistered {
        device: Label,
        peers: Label,
        address: u64,
        len: usize,
    },

    // Connections.
    ConnectTimeout {
        device: Label,
        peer: Label,
        seconds: u64,
    },
    AcceptTimeout {
        device: Label,
        seconds: u64,
    },
    Unreachable(FabricError),
    CannotReach {
        rail: Label,
        fault: FabricError,
    },
    /// No receive can be posted on a control rail.
    NoReceives {
        rail: Label,
        fault: FabricError,
    },
    /// The peer named a rail that does not exist.
    NoSuchRail,
    NotPosted(FabricError),
    Completion {
        operation: Operation,
        rail: Label,
        failed: Failed,
    },
    Ended,
    /// The peer does not answer keepalive queries.
    Silent {
        bound_ms: u32,
    },
    /// The provider refuses every post to the peer.
    RefusesPosts {
        bound_ms: u32,
    },
    ConnectionClosed,
    /// The peer has ended its endpoint.
    PeerEnded,
    ReceiveDeregistered,
    SendDeregistered,

    // The protocol.
    TooLong {
        line: u32,
        sent: u64,
        posted: u64,
    },
    Overrun {
        said: u64,
        posted: u64,
    },
    Unsendable {
        len: u64,
    },
    Misuse(&'static str),
    Withdrawn,
    Transport {
        code: i32,
    },
    /// The peer sent a frame that breaks a rule of the protocol.
    Broke(&'static str),
    /// The channel to the peer has failed.
    Channel(ChannelCause),
    /// Parts whose writes completed have not arrived, and their message was reported as sent.
    PartsLost {
        rail: u8,
    },
    PeerFailed {
        line: u32,
    },
    /// The peer's listener refused the connection.
    Refused(Refusal),
    NoCommonRail,
    /// The ends have data rails in common, but no control rail. The networks of each end's control rails.
    NoCommonControlRail {
        ours: Label,
        theirs: Label,
    },
    /// Neither immediates nor delivery completion: the end of a message could not be signalled.
    CannotSignalEnd,
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Cause {
    pub(crate) fn sending(self, peer: Label) -> Error {
        Error { subject: Subject::Sending(peer), ..self.into() }
    }

    pub(crate) fn receiving(self, peer: Label) -> Error {
        Error { subject: Subject::Receiving(peer), ..self.into() }
    }

    pub(crate) fn connecting(self, peer: Label) -> Error {
        Error { subject: Subject::Connecting(peer), ..self.into() }
    }

    /// An error of the negotiation between the ends of a connection.
    pub(crate) fn negotiating(self) -> Error {
        Error { subject: Subject::Negotiation, ..self.into() }
    }

    /// Whether an endpoint could not be opened for lack of resources: process ids of a NIC (cxi), open files, ports, memory. Returns the
    /// device, and libfabric's error.
    pub(crate) fn lacks_resources(self) -> Option<(Label, FabricError)> {
        const ENOMEM: i32 = 12;
        const ENFILE: i32 = 23;
        const EMFILE: i32 = 24;
        const ENOSPC: i32 = 28;
        const EADDRINUSE: i32 = 98;
        let (Self::CannotOpen { device, fault, .. } | Self::CannotUse { device, fault, .. }) = self
        else {
            return None;
        };
        let full =
            matches!(fault.errno(), ENOMEM | ENFILE | EMFILE | ENOSPC | EADDRINUSE | EADDRNOTAVAIL);
        full.then_some((device, fault))
    }

    /// Whether an endpoint could not be opened because of one rail, so that the others may work without it. A lack of resources affects all
    /// rails alike. An address that cannot be bound counts as concerning one rail: its ports are in use, or the address is gone, and only
    /// opening another rail shows which.
    pub(crate) fn concerns_one_rail(self) -> bool {
        match self {
            Self::CannotOpen { fault, .. } | Self::CannotUse { fault, .. } => {
                fault.errno() == EADDRNOTAVAIL || self.lacks_resources().is_none()
            }
            _ => false,
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::NullPointer(_)
            | Self::NoHandle
            | Self::NoList(_)
            | Self::NotOurs { .. }
            | Self::Stale(_)
            | Self::NoDevice(_)
            | Self::NegativeSize(_)
            | Self::NullAddress { .. }
            | Self::GroupOfVersion { .. }
            | Self::GroupOfDevice { .. }
            | Self::PartsOfDevice { .. }
            | Self::RailsOfDevice { .. }
            | Self::MixedNetworks
            | Self::OneRail
            | Self::EmptyRegion
            | Self::PastAddressSpace { .. }
            | Self::MemoryKind(_)
            | Self::NoDmabuf(_)
            | Self::OutsideOfRegion { .. }
            | Self::FlushOutsideOfRegion { .. }
            | Self::UsedHandle
            | Self::NoDmabufHere { .. }
            | Self::HostMemoryOnly { .. }
            | Self::NotGpuMemory { .. }
            | Self::SpansTwoGpus { .. } => Kind::InvalidArgument,

            Self::NotInitialised
            | Self::Forked
            | Self::ProcessEnds
            | Self::NoGpuDriver { .. }
            | Self::ReceiveDeregistered
            | Self::NoCommonRail
            | Self::NoCommonControlRail { .. }
            | Self::CannotSignalEnd
            | Self::Refused(Refusal::Version | Refusal::Feature)
            | Self::TooLong { .. } => Kind::InvalidUsage,

            Self::NotStarted(kind) => kind,

            Self::Panicked | Self::Bug(_) | Self::Unsendable { .. } | Self::Misuse(_) => {
                Kind::Internal
            }

            Self::Full { .. }
            | Self::CannotOpen { .. }
            | Self::CannotUse { .. }
            | Self::NoLandingPage(_)
            | Self::NoControlMemory { .. }
            | Self::AddressTooLong { .. }
            | Self::AddressNotInHandle
            | Self::NoRandom
            | Self::NotRegistered { .. }
            | Self::NotClosed { .. }
            | Self::NoFlush { .. }
            | Self::FlushFailed { .. }
            | Self::FlushHangs { .. }
            | Self::FlushNotPosted { .. }
            | Self::QueueBroken { .. } => Kind::System,

            Self::StaysRegistered { .. }
            | Self::ConnectTimeout { .. }
            | Self::AcceptTimeout { .. }
            | Self::Unreachable(_)
            | Self::CannotReach { .. }
            | Self::NoReceives { .. }
            | Self::NoSuchRail
            | Self::NotPosted(_)
            | Self::Completion { .. }
            | Self::Ended
            | Self::Silent { .. }
            | Self::RefusesPosts { .. }
            | Self::ConnectionClosed
            | Self::PeerEnded
            | Self::SendDeregistered
            | Self::Overrun { .. }
            | Self::Withdrawn
            | Self::Transport { .. }
            | Self::Broke(_)
            | Self::Channel(_)
            | Self::PartsLost { .. }
            | Self::PeerFailed { .. }
            | Self::Refused(Refusal::Proof | Refusal::Closed | Refusal::Busy) => Kind::Remote,
        }
    }
}

impl Error {
    pub(crate) fn kind(&self) -> Kind {
        match self.subject {
            // Settings and providers are the users' choice.
            Subject::Negotiation => Kind::InvalidUsage,
            Subject::Call
            | Subject::Sending(_)
            | Subject::Receiving(_)
            | Subject::Connecting(_) => self.cause.kind(),
        }
    }
}

impl Error {
    /// An error that is already logged.
    pub(crate) const fn logged(cause: Cause) -> Self {
        Self { cause, subject: Subject::Call, logged: true }
    }
}

impl From<Cause> for Error {
    fn from(cause: Cause) -> Self {
        Self { cause, subject: Subject::Call, logged: false }
    }
}

impl From<Fault> for Cause {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::TooLong { line, sent, posted } => {
                Self::TooLong { line: line.number(), sent, posted }
            }
            Fault::Unsendable { len } => Self::Unsendable { len },
            Fault::Violation(Violation::Size { said, posted }) => Self::Overrun { said, posted },
            Fault::Violation(violation) => Self::Broke(violation.text()),
            Fault::Withdrawn => Self::Withdrawn,
            // The channel's own cause of its end takes precedence where it is known.
            Fault::Closed | Fault::Ended => Self::ConnectionClosed,
            Fault::Transport { code } => Self::Transport { code },
            Fault::PartsLost { rail } => Self::PartsLost { rail },
            Fault::PeerFailed { line } => Self::PeerFailed { line: line.number() },
            Fault::Misuse(what) => Self::Misuse(what),
        }
    }
}

impl From<&CompletionError> for Failed {
    fn from(error: &CompletionError) -> Self {
        let CompletionError { errno, provider_errno, text, .. } = error;
        Self { errno: *errno, provider_errno: *provider_errno, text: Label::of(text) }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { errno, provider_errno, text } = self;
        write!(f, "{} ({errno}), provider says {text:?} ({provider_errno})", error_text(*errno))
    }
}

/// The errors of connect: an error that all calls may have, or a handle that cannot be parsed. Not on the fast path, so the size does not
/// matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SetupError {
    General(Error),
    /// The handle that NCCL passed is not usable.
    Handle(HandleError),
}

impl SetupError {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::General(error) => error.kind(),
            Self::Handle(HandleError::Version(_)) => Kind::InvalidUsage,
            Self::Handle(HandleError::Magic | HandleError::Check | HandleError::Value(_)) => {
                Kind::InvalidArgument
            }
        }
    }
}

impl From<Error> for SetupError {
    fn from(error: Error) -> Self {
        Self::General(error)
    }
}

impl From<Cause> for SetupError {
    fn from(cause: Cause) -> Self {
        Self::General(cause.into())
    }
}

#[cfg(test)]
mod tests {
    use proto::Line;

    use super::*;

    impl Failed {
        pub(crate) fn example(errno: i32, provider_errno: i32, text: &str) -> Self {
            Self { errno, provider_errno, text: Label::of(text) }
        }
    }

    #[test]
    fn a_flows_fault_keeps_its_sentence() {
        let line = Line::new(4);
        let violations = [
            Violation::AdvertLine,
            Violation::Group,
            Violation::Keys,
            Violation::Done,
            Violation::Inline,
            Violation::Credit,
            Violation::Fin,
            Violation::Size { said: 65, posted: 64 },
            Violation::Ending,
            Violation::Opened,
            Violation::Direction,
        ];
        for violation in violations {
            assert_eq!(
                Error::from(Cause::from(Fault::Violation(violation))).to_string(),
                violation.to_string()
            );
        }
        for (fault, sentence) in [
            (
                Fault::TooLong { line, sent: 65, posted: 64 },
                "message 4 has 65 bytes, and its receive has room for 64",
            ),
            (
                Fault::Unsendable { len: 9 },
                "a message of 9 bytes needs delivery completion, which the provider lacks",
            ),
            (Fault::Withdrawn, "the receives were withdrawn"),
            (Fault::Closed, "the peer has closed the connection"),
            (Fault::Transport { code: 7 }, "the transport failed (code 7)"),
            (
                Fault::PartsLost { rail: 1 },
                "parts that the provider reported as written on data rail 1 have not arrived, and cannot be written again",
            ),
            (Fault::PeerFailed { line }, "the peer could not deliver message 4"),
            (
                Fault::Misuse("a receive has one key for each data rail"),
                "a receive has one key for each data rail",
            ),
        ] {
            assert_eq!(Error::from(Cause::from(fault)).to_string(), sentence);
        }
    }

    #[test]
    fn libfabrics_error_keeps_its_sentence() {
        let error =
            CompletionError { errno: 5, provider_errno: 104, text: "reset by \"peer\"".into() };
        assert_eq!(Failed::from(&error).to_string(), error.to_string());
    }

    #[test]
    fn each_error_that_only_connect_has_has_the_sentence_and_the_code_that_users_know() {
        for (error, kind, sentence) in [
            (Cause::Ended.into(), Kind::Remote, "the process has ended"),
            (
                SetupError::Handle(HandleError::Magic),
                Kind::InvalidArgument,
                "connect was given a handle that is not usable: the peer's handle is not of this plugin: start all ranks with the same network plugin",
            ),
            (
                SetupError::Handle(HandleError::Check),
                Kind::InvalidArgument,
                "connect was given a handle that is not usable: the peer's handle was damaged on its way",
            ),
            (
                SetupError::Handle(HandleError::Value("secret")),
                Kind::InvalidArgument,
                "connect was given a handle that is not usable: the secret in the peer's handle is not valid",
            ),
            (
                SetupError::Handle(HandleError::Version(9)),
                Kind::InvalidUsage,
                "connect was given a handle that is not usable: the peer speaks version 9 of the protocol and this rank version 2: start all ranks with the same release of the plugin",
            ),
        ] {
            assert_eq!((error.to_string().as_str(), error.kind()), (sentence, kind), "{error:?}");
        }
    }
}
