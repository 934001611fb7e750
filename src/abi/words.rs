//! All sentences for users: what was requested, what was found, what to do.
//!
//! An error is a cause with ids and numbers until it leaves the plugin: into NCCL's log at the end of a call, or to a peer that is refused.

use std::fmt::{self, Display, Formatter};

use net_abi::{PTR_CUDA, PTR_HOST};

use crate::error::{
    Bug, Cause, ChannelCause, Error, List, Malformed, Noun, Operation, Refusal, RegisteredBy,
    SetupError, Subject, Table,
};
use crate::plugin::{self, Offers, PREFIX, StartError};
use crate::types::Protocol;

impl Display for Error {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.subject {
            Subject::Call => {}
            Subject::Sending(peer) => write!(f, "sending to {peer}: ")?,
            Subject::Receiving(peer) => write!(f, "receiving from {peer}: ")?,
            Subject::Connecting(peer) => write!(f, "connecting to {peer}: ")?,
            Subject::Negotiation => f.write_str("no protocol serves both ends: ")?,
        }
        self.cause.fmt(f)
    }
}

impl Display for Cause {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NullPointer(what) => write!(f, "NCCL passed a null pointer for the {what}"),
            Self::NoHandle => f.write_str("NCCL passed a null handle"),
            Self::NoList(list) => write!(f, "NCCL passed a null list of {list}"),
            Self::NotOurs { expected, found: 0 } => {
                write!(f, "expected a {expected} of this plugin's, got null")
            }
            Self::NotOurs { expected, found } => {
                write!(f, "expected a {expected} of this plugin's, got {found:#x}")
            }
            Self::Stale(what) => write!(f, "the {what} given is not open, or was closed"),
            Self::NoDevice(index) => write!(f, "there is no device {index}"),
            Self::NegativeSize(size) => write!(f, "a size of {size} bytes is negative"),
            Self::NullAddress { len } => write!(f, "{len} bytes at a null address"),
            Self::GroupOfVersion { count, most } => write!(
                f,
                "a group of {count} receives, where this version of the API allows 1 to {most}"
            ),
            Self::GroupOfDevice { count, most } => write!(
                f,
                "a group of {count} receives, where this device's properties say {most} at most"
            ),
            Self::PartsOfDevice { count } => write!(
                f,
                "a device of {count} devices: it needs at least one, each only once, and no more than this version of the API has places for"
            ),
            Self::RailsOfDevice { count, most } => write!(
                f,
                "a device of {count} rails, and {most} are the maximum: set NCCL_NET_MERGE_LEVEL=LOC, or lower IRONRAIL_MAX_RAILS"
            ),
            Self::MixedNetworks => f.write_str(
                "NICs on networks of two kinds do not make one device: leave them out of NCCL_NET_FORCE_MERGE, or set NCCL_NET_MERGE_LEVEL=LOC",
            ),
            Self::OneRail => f.write_str(
                "a device has one rail with SENDRECV: leave its NICs out of NCCL_NET_FORCE_MERGE, or set NCCL_NET_MERGE_LEVEL=LOC",
            ),
            Self::EmptyRegion => {
                f.write_str("a region of 0 bytes: there is nothing to register")
            }
            Self::PastAddressSpace { address, len } => {
                write!(f, "{len} bytes at {address:#x} end past the address space")
            }
            Self::MemoryKind(kind) => write!(
                f,
                "memory of type {kind}, where this call allows {PTR_HOST} (host) or {PTR_CUDA} (CUDA)"
            ),
            Self::NoDmabuf(descriptor) => write!(f, "{descriptor} is no DMA-BUF descriptor"),
            Self::OutsideOfRegion { address, len } => {
                write!(f, "{len} bytes at {address:#x} lie outside of the registered buffer")
            }
            Self::FlushOutsideOfRegion { address } => write!(
                f,
                "a flush of a buffer at {address:#x}, which lies outside of its registration"
            ),
            Self::UsedHandle => f.write_str(
                "connect was given a handle that another connection has used: pass a fresh copy of what listen wrote",
            ),

            Self::NotInitialised => f.write_str("NCCL has not called init, or it failed"),
            Self::Forked => f.write_str(
                "this process was forked after NCCL was initialised: libfabric's objects do not survive that; \
                 start workers before the first communicator, or by spawn",
            ),
            Self::ProcessEnds => f.write_str(
                "the process ends, and libfabric with it: destroy communicators before exit(3), not in destructors of libraries",
            ),
            Self::NotStarted(_) => match plugin::start_error() {
                Some(error) => error.fmt(f),
                None => f.write_str("the plugin did not start"),
            },
            Self::Panicked => f.write_str(
                "an earlier bug has left this endpoint unusable; restart the job, and report the first line",
            ),
            Self::Full { table, count } => full(f, table, count),
            Self::Bug(bug) => f.write_str(match bug {
                Bug::DeviceWithoutRails => "a device without rails was opened",
                Bug::LandingPageTooSmall => "the landing page is too small",
                Bug::SlotTaken => "an upcoming slot is taken",
                Bug::UnknownPeer => "nothing is known of a peer that was met",
            }),

            Self::CannotOpen { device, interface, fault } => write!(
                f,
                "device {device} cannot open {interface}: {fault}; check that the interface is up, or leave it out by IRONRAIL_RAILS"
            ),
            Self::CannotUse { device, interface, fault } => write!(
                f,
                "device {device} cannot use {interface}: {fault}; name working interfaces by IRONRAIL_RAILS, or another provider by IRONRAIL_PROVIDER"
            ),
            Self::NoLandingPage(fault) => write!(f, "no memory for flushes and empty messages: {fault}"),
            Self::NoControlMemory { device, fault } => {
                write!(f, "no control memory for a connection on device {device}: {fault}")
            }
            Self::AddressTooLong { len } => {
                write!(f, "a provider's address of {len} bytes does not fit")
            }
            Self::AddressNotInHandle => {
                f.write_str("the provider's address does not fit into NCCL's handle")
            }
            Self::NoDmabufHere { device } => write!(
                f,
                "device {device} registers GPU memory by its address, not by a DMA-BUF: set NCCL_DMABUF_ENABLE=0"
            ),
            Self::HostMemoryOnly { device, because } => write!(
                f,
                "device {device} moves host memory only ({because}): set NCCL_NET_GDR_LEVEL=LOC"
            ),
            Self::NotRegistered { device, len, by: RegisteredBy::Host, fault } => {
                write!(f, "registering {len} bytes on device {device}: {fault}")
            }
            Self::NotRegistered { device, len, by: RegisteredBy::GpuAddress { gpu }, fault } => write!(
                f,
                "registering {len} bytes of GPU {gpu} by their address on device {device}: {fault}; \
                 check that nvidia-peermem is loaded, or set IRONRAIL_DEVICE_MEMORY=0"
            ),
            Self::NotRegistered { device, len, by: RegisteredBy::GpuDmabuf { gpu }, fault } => write!(
                f,
                "registering {len} bytes of GPU {gpu} by a DMA-BUF on device {device}: {fault}; \
                 set NCCL_DMABUF_ENABLE=0 for another way, or IRONRAIL_DEVICE_MEMORY=0"
            ),
            Self::NoGpuDriver { len, because } => {
                write!(f, "{len} bytes of GPU memory cannot be registered: {because}")
            }
            Self::NotGpuMemory { address, len, last } => {
                let offset = if last { (len as u64).saturating_sub(1) } else { 0 };
                let at = address.saturating_add(offset);
                write!(
                    f,
                    "{len} bytes at {address:#x} were given as GPU memory, and the byte at {at:#x} is not: \
                     CUDA's driver has no device allocation there"
                )
            }
            Self::SpansTwoGpus { address, len, first, last } => write!(
                f,
                "{len} bytes at {address:#x} begin in memory of GPU {first} and end in memory of GPU {last}: a region lies on one"
            ),
            Self::NotClosed { device, len, fault } => write!(
                f,
                "{len} bytes stay registered on device {device}: {fault}; keep the memory until the communicator is finalized"
            ),
            Self::NoFlush { device } => write!(
                f,
                "GPU memory cannot be flushed on device {device}: its provider cannot read memory of its own endpoint; set IRONRAIL_DEVICE_MEMORY=0"
            ),
            Self::FlushFailed { device } => write!(f, "a flush on device {device} failed"),
            Self::FlushHangs { rail, bound_ms } => write!(
                f,
                "a flush on {rail} has not ended after {bound_ms} ms; that NIC or its provider hangs (IRONRAIL_PEER_TIMEOUT_MS sets the bound)"
            ),
            Self::FlushNotPosted { rail, fault } => write!(f, "a flush on rail {rail}: {fault}"),
            Self::QueueBroken { rail, fault } => {
                write!(f, "the completion queue of {rail} is broken: {fault}; restart the job")
            }
            Self::StaysRegistered { device, peers, address, len } => write!(
                f,
                "{len} bytes at {address:#x} stay registered on device {device}: {peers}, may still use them and does not answer; \
                 keep the memory, and deregister it again later, or finalize the communicator, which ends that use \
                 (IRONRAIL_CLOSE_TIMEOUT_MS bounds the wait)"
            ),

            Self::ConnectTimeout { device, peer, seconds } => write!(
                f,
                "connect on device {device}: no answer of {peer} in {seconds} s; is the peer alive, is IRONRAIL_JOB the same on all ranks, and do its interfaces reach ours? \
                 IRONRAIL_CONNECT_TIMEOUT_MS sets the bound"
            ),
            Self::AcceptTimeout { device, seconds } => write!(
                f,
                "accept on device {device}: no peer connected in {seconds} s; is the peer alive? \
                 IRONRAIL_CONNECT_TIMEOUT_MS sets the bound"
            ),
            Self::Unreachable(fault) => write!(
                f,
                "the peer cannot be reached: {fault}; check that its interfaces and ours reach each other"
            ),
            Self::CannotReach { rail, fault } => {
                write!(f, "{rail} cannot use the peer's address: {fault}")
            }
            Self::NoReceives { rail, fault } => {
                write!(f, "no receive can be posted on {rail}: {fault}")
            }
            Self::NoSuchRail => f.write_str("the peer named a rail that does not exist"),
            Self::NotPosted(fault) => fault.fmt(f),
            Self::Completion { operation, rail, failed } => write!(
                f,
                "{operation} on {rail} failed: {failed}; the peer is gone or unreachable"
            ),
            Self::Ended => f.write_str("the process has ended"),
            Self::Silent { bound_ms } => write!(
                f,
                "it has not answered for {bound_ms} ms; the process is gone or stopped, or its host cannot be reached \
                 (IRONRAIL_PEER_TIMEOUT_MS sets the bound)"
            ),
            Self::RefusesPosts { bound_ms } => write!(
                f,
                "its endpoint has refused every write for {bound_ms} ms; the process is gone, or its host cannot be reached \
                 (IRONRAIL_PEER_TIMEOUT_MS sets a shorter bound)"
            ),
            Self::ConnectionClosed => f.write_str("the peer has closed the connection"),
            Self::PeerEnded => {
                f.write_str("it has closed its communicator, and accepts no connection any more")
            }
            Self::ReceiveDeregistered => {
                f.write_str("a buffer of posted receives was deregistered")
            }
            Self::SendDeregistered => {
                f.write_str("the buffer of a message was deregistered before it was sent")
            }

            Self::TooLong { line, sent, posted } => write!(
                f,
                "message {line} has {sent} bytes, and its receive has room for {posted}"
            ),
            Self::Overrun { said, posted } => {
                write!(f, "the peer says it wrote {said} bytes into a receive of {posted}")
            }
            Self::Unsendable { len } => write!(
                f,
                "a message of {len} bytes needs delivery completion, which the provider lacks"
            ),
            Self::Misuse(what) => f.write_str(what),
            Self::Withdrawn => f.write_str("the receives were withdrawn"),
            Self::Transport { code } => write!(f, "the transport failed (code {code})"),
            Self::Broke(what) => f.write_str(what),
            Self::Channel(cause) => channel(f, cause),
            Self::PartsLost { rail } => write!(
                f,
                "parts that the provider reported as written on data rail {rail} have not arrived, and cannot be written again"
            ),
            Self::PeerFailed { line } => {
                write!(f, "the peer could not deliver message {line}")
            }
            Self::Refused(why) => f.write_str(match why {
                Refusal::Version => {
                    "the peer refused the connection: it speaks another version of the protocol; start all ranks with the same release"
                }
                Refusal::Proof => {
                    "the peer refused the connection: the handle is not of an open listener of this job; give all ranks the same IRONRAIL_JOB, and handles of this run"
                }
                Refusal::Feature => {
                    "the peer refused the connection: its provider has neither immediates nor delivery completion"
                }
                Refusal::Closed => "the peer refused the connection: it has closed the listener",
                Refusal::Busy => "the peer refused the connection: too many wait for its listener",
            }),
            Self::NoCommonRail => f.write_str(
                "no rail of the peer has the same fabric name as one of ours, or one end writes and the other sends messages: give all ranks NICs of the same networks, and the same IRONRAIL_PROTOCOL",
            ),
            Self::NoCommonControlRail { ours, theirs } => write!(
                f,
                "the data rails of both ends share a network, and the control rails do not: ours are on {ours}, the peer's on {theirs}; raise IRONRAIL_MAX_CONTROL_RAILS on all ranks, or give them the rails in one order (IRONRAIL_RAILS)"
            ),
            Self::CannotSignalEnd => f.write_str(
                "the provider has neither immediates nor delivery completion, so a receiver could not learn that a message has arrived",
            ),
            Self::NoRandom => {
                f.write_str("the operating system gave no random bytes for a secret")
            }
        }
    }
}

fn full(f: &mut Formatter<'_>, table: Table, count: u32) -> fmt::Result {
    match table {
        Table::Communicators => write!(
            f,
            "{count} communicators are open in this process: finalize some before opening more"
        ),
        Table::Connections => write!(f, "{count} connections are open on one endpoint"),
        Table::Connects => write!(f, "{count} connects are under way on one endpoint"),
        Table::Endpoints => write!(f, "{count} endpoints are open in this process"),
        Table::Flushes => write!(f, "{count} flushes are under way on one endpoint"),
        Table::Listeners { device } => {
            write!(f, "device {device} has {count} open listeners: close some")
        }
        Table::Peers => write!(f, "one endpoint has met {count} peers"),
        Table::Regions { device } => {
            write!(f, "{count} buffers are registered on device {device}")
        }
    }
}

/// Why a channel has failed.
fn channel(f: &mut Formatter<'_>, cause: ChannelCause) -> fmt::Result {
    match cause {
        ChannelCause::NoRail => f.write_str("no control rail to it is left"),
        ChannelCause::NoInbox => {
            f.write_str("its packets do not arrive by any control rail, though it answers")
        }
        ChannelCause::NoMemory => f.write_str("there was no memory for a new inbox or shadow"),
        ChannelCause::Silent => f.write_str("it does not answer"),
        ChannelCause::Refused => f.write_str("its endpoint refuses all messages"),
        ChannelCause::DataLost { rail } => write!(
            f,
            "parts that were written to it on data rail {rail} have not arrived: a connection below was lost without an error"
        ),
        ChannelCause::RailDown { rail } => write!(f, "it has lost data rail {rail}"),
        ChannelCause::DataFailed { rail } => write!(f, "a write on data rail {rail} has failed"),
        ChannelCause::DataRefused { rail } => {
            write!(f, "the provider refuses writes on data rail {rail}")
        }
        ChannelCause::DataHangs { rail } => {
            write!(f, "writes on data rail {rail} do not complete")
        }
        ChannelCause::RailClosing { rail } => {
            write!(f, "data rail {rail} is closed because of another peer")
        }
        ChannelCause::Malformed(malformed) => f.write_str(match malformed {
            Malformed::Kind => "it sent a frame of a kind that the protocol does not have",
            Malformed::Short => "it sent a frame that ends early",
            Malformed::Value => "it sent a frame with a number outside of its bounds",
            Malformed::Reserved => "it sent a frame with undefined bits set",
        }),
        ChannelCause::NeverSent => f.write_str("it acknowledges what was never sent"),
        ChannelCause::AfterEnd => f.write_str("it sent a frame after its last one"),
        ChannelCause::Connection => f.write_str("it broke a rule of another connection"),
        ChannelCause::Peer => f.write_str("its end of the channel has failed: its log says why"),
    }
}

impl Display for Noun {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Answer => "answer",
            Self::Comm => "comm",
            Self::Connection => "connection",
            Self::Context => "context",
            Self::DeviceIndex => "index of a device",
            Self::Devices => "number of devices",
            Self::Endpoint => "endpoint",
            Self::Handle => "handle",
            Self::ListenComm => "listen comm",
            Self::MemoryHandle => "memory handle",
            Self::Properties => "properties",
            Self::ReceiveComm => "receive comm",
            Self::Request => "request",
            Self::SendComm => "send comm",
        })
    }
}

impl Display for List {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Addresses => "addresses",
            Self::Devices => "devices",
            Self::MemoryHandles => "memory handles",
            Self::Sizes => "sizes",
            Self::Tags => "tags",
        })
    }
}

impl Display for Operation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Control => "a control write",
            Self::Data => "a write of data",
        })
    }
}

impl Display for SetupError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::General(error) => error.fmt(f),
            Self::Handle(error) => {
                write!(f, "connect was given a handle that is not usable: {error}")
            }
        }
    }
}

impl Display for StartError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting { setting, given } => write!(
                f,
                "{PREFIX}{}={given} is not a value Ironrail can use: give {}, or unset it (default: {})",
                setting.name,
                setting.kind.accepted(),
                setting.shown_default()
            ),
            Self::NoLibrary { attempts, named } => {
                let next = if *named {
                    "correct IRONRAIL_LIBFABRIC, or unset it for libfabric.so.1"
                } else {
                    "install it (Debian: libfabric1), add its directory to LD_LIBRARY_PATH, or name the file in IRONRAIL_LIBFABRIC"
                };
                let reasons = attempts.iter().map(|attempt| {
                    let (name, reason) = (attempt.candidate.to_string_lossy(), &attempt.reason);
                    // The loader's message mostly begins with the name.
                    if reason.contains(&*name) {
                        reason.clone()
                    } else {
                        format!("{name}: {reason}")
                    }
                });
                let reasons = reasons.collect::<Vec<_>>().join("; ");
                write!(f, "no libfabric 1.17 or newer could be loaded ({reasons}): {next}")
            }
            Self::NoAnswer { version, fault } => write!(
                f,
                "fi_getinfo of libfabric {version} failed ({fault}): run fi_info to see why"
            ),
            Self::NoSuchProvider { wanted, refusal, version, offers } => {
                let why = refusal.map_or_else(String::new, |why| format!(" ({why})"));
                write!(
                    f,
                    "IRONRAIL_PROVIDER={wanted} is not available{why}: libfabric {version} offers {offers}; name one of these, or unset it"
                )
            }
            Self::NoProvider { version, offers } => write!(
                f,
                "no provider can serve: libfabric {version} offers {offers}; check that a network interface is up, \
                 and that FI_PROVIDER does not hide it, or name a provider in IRONRAIL_PROVIDER"
            ),
            Self::NoSuchRail { rail, provider, there } => write!(
                f,
                "IRONRAIL_RAILS names {rail}, which {provider} does not have: it has {}; name some of these, or unset it",
                there.join(", ")
            ),
            Self::RailTwice { names: [one, other], provider } => write!(
                f,
                "IRONRAIL_RAILS names {one} and {other}, which {provider} has as one rail: name it once"
            ),
            Self::Panicked => f.write_str(
                "an earlier bug has kept Ironrail from starting; restart the job, and report the first line",
            ),
        }
    }
}

impl Display for Offers {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { providers, protocol, basic_regions } = self;
        if providers.is_empty() {
            f.write_str(match protocol {
                Some(Protocol::Rdma) => "nothing with reliable datagrams and one-sided access",
                Some(Protocol::Sendrecv) => "nothing with reliable datagrams and tagged messages",
                None => "nothing with reliable datagrams and one-sided access or tagged messages",
            })?;
        }
        f.write_str(&providers.join(", "))?;
        f.write_str(if *basic_regions { " with IRONRAIL_BASIC_REGIONS=1" } else { "" })
    }
}

mod stall;
#[cfg(test)]
mod tests;
