//! Every cause has its sentence here, as users read it.

use super::*;
use crate::error::{FabricError, Failed, Kind};
use crate::label::Label;

/// One of each cause and of each thing in it; with its code's kind, and its sentence.
fn examples() -> Vec<(Error, Kind, &'static str)> {
    let (eth0, rail) = (Label::of("eth0"), Label::of("net eth0"));
    let (device, interface, peers) = (eth0, eth0, Label::of("rank 3, process 7 on here"));
    let fault = FabricError::self_write(5);
    let failed = Failed::example(5, 104, "reset by peer");
    let (address, len) = (0x1000, 64);
    let called = |cause: Cause, kind, sentence| (cause.into(), kind, sentence);
    let sending = |cause: Cause, kind, sentence| (cause.sending(peers), kind, sentence);
    let receiving = |cause: Cause, kind, sentence| (cause.receiving(peers), kind, sentence);
    let connecting = |cause: Cause, kind, sentence| (cause.connecting(peers), kind, sentence);
    let negotiating = |cause: Cause, kind, sentence| (cause.negotiating(), kind, sentence);
    let mut all = vec![
        called(Cause::NoHandle, Kind::InvalidArgument, "NCCL passed a null handle"),
        called(
            Cause::NotOurs { expected: Noun::SendComm, found: 0 },
            Kind::InvalidArgument,
            "expected a send comm of this plugin's, got null",
        ),
        called(
            Cause::NotOurs { expected: Noun::Comm, found: 0x17 },
            Kind::InvalidArgument,
            "expected a comm of this plugin's, got 0x17",
        ),
        called(Cause::NoDevice(-1), Kind::InvalidArgument, "there is no device -1"),
        called(Cause::NegativeSize(-4), Kind::InvalidArgument, "a size of -4 bytes is negative"),
        called(Cause::NullAddress { len }, Kind::InvalidArgument, "64 bytes at a null address"),
        called(
            Cause::GroupOfVersion { count: -1, most: 8 },
            Kind::InvalidArgument,
            "a group of -1 receives, where this version of the API allows 1 to 8",
        ),
        called(
            Cause::GroupOfDevice { count: 9, most: 8 },
            Kind::InvalidArgument,
            "a group of 9 receives, where this device's properties say 8 at most",
        ),
        called(
            Cause::PartsOfDevice { count: 9 },
            Kind::InvalidArgument,
            "a device of 9 devices: it needs at least one, each only once, and no more than this version of the API has places for",
        ),
        called(
            Cause::RailsOfDevice { count: 20, most: 16 },
            Kind::InvalidArgument,
            "a device of 20 rails, and 16 are the maximum: set NCCL_NET_MERGE_LEVEL=LOC, or lower IRONRAIL_MAX_RAILS",
        ),
        called(
            Cause::MixedNetworks,
            Kind::InvalidArgument,
            "NICs on networks of two kinds do not make one device: leave them out of NCCL_NET_FORCE_MERGE, or set NCCL_NET_MERGE_LEVEL=LOC",
        ),
        called(
            Cause::OneRail,
            Kind::InvalidArgument,
            "a device has one rail with SENDRECV: leave its NICs out of NCCL_NET_FORCE_MERGE, or set NCCL_NET_MERGE_LEVEL=LOC",
        ),
        called(
            Cause::EmptyRegion,
            Kind::InvalidArgument,
            "a region of 0 bytes: there is nothing to register",
        ),
        called(
            Cause::PastAddressSpace { address: u64::MAX, len },
            Kind::InvalidArgument,
            "64 bytes at 0xffffffffffffffff end past the address space",
        ),
        called(
            Cause::MemoryKind(3),
            Kind::InvalidArgument,
            "memory of type 3, where this call allows 1 (host) or 2 (CUDA)",
        ),
        called(Cause::NoDmabuf(-1), Kind::InvalidArgument, "-1 is no DMA-BUF descriptor"),
        called(
            Cause::OutsideOfRegion { address, len },
            Kind::InvalidArgument,
            "64 bytes at 0x1000 lie outside of the registered buffer",
        ),
        called(
            Cause::FlushOutsideOfRegion { address },
            Kind::InvalidArgument,
            "a flush of a buffer at 0x1000, which lies outside of its registration",
        ),
        called(
            Cause::UsedHandle,
            Kind::InvalidArgument,
            "connect was given a handle that another connection has used: pass a fresh copy of what listen wrote",
        ),
        called(Cause::NotInitialised, Kind::InvalidUsage, "NCCL has not called init, or it failed"),
        called(
            Cause::Forked,
            Kind::InvalidUsage,
            "this process was forked after NCCL was initialised: libfabric's objects do not survive that; start workers before the first communicator, or by spawn",
        ),
        called(
            Cause::ProcessEnds,
            Kind::InvalidUsage,
            "the process ends, and libfabric with it: destroy communicators before exit(3), not in destructors of libraries",
        ),
        called(
            Cause::Panicked,
            Kind::Internal,
            "an earlier bug has left this endpoint unusable; restart the job, and report the first line",
        ),
        called(
            Cause::CannotOpen { device, interface, fault },
            Kind::System,
            "device eth0 cannot open eth0: fi_write to itself: Input/output error (-5); check that the interface is up, or leave it out by IRONRAIL_RAILS",
        ),
        called(
            Cause::CannotUse { device, interface, fault },
            Kind::System,
            "device eth0 cannot use eth0: fi_write to itself: Input/output error (-5); name working interfaces by IRONRAIL_RAILS, or another provider by IRONRAIL_PROVIDER",
        ),
        called(
            Cause::NoLandingPage(fault),
            Kind::System,
            "no memory for flushes and empty messages: fi_write to itself: Input/output error (-5)",
        ),
        called(
            Cause::NoControlMemory { device, fault },
            Kind::System,
            "no control memory for a connection on device eth0: fi_write to itself: Input/output error (-5)",
        ),
        called(
            Cause::AddressTooLong { len: 99 },
            Kind::System,
            "a provider's address of 99 bytes does not fit",
        ),
        called(
            Cause::AddressNotInHandle,
            Kind::System,
            "the provider's address does not fit into NCCL's handle",
        ),
        called(
            Cause::NoDmabufHere { device },
            Kind::InvalidArgument,
            "device eth0 registers GPU memory by its address, not by a DMA-BUF: set NCCL_DMABUF_ENABLE=0",
        ),
        called(
            Cause::HostMemoryOnly { device, because: Label::of("no CUDA driver") },
            Kind::InvalidArgument,
            "device eth0 moves host memory only (no CUDA driver): set NCCL_NET_GDR_LEVEL=LOC",
        ),
        called(
            Cause::NotRegistered { device, len, by: RegisteredBy::Host, fault },
            Kind::System,
            "registering 64 bytes on device eth0: fi_write to itself: Input/output error (-5)",
        ),
        called(
            Cause::NotRegistered { device, len, by: RegisteredBy::GpuAddress { gpu: 2 }, fault },
            Kind::System,
            "registering 64 bytes of GPU 2 by their address on device eth0: fi_write to itself: Input/output error (-5); check that nvidia-peermem is loaded, or set IRONRAIL_DEVICE_MEMORY=0",
        ),
        called(
            Cause::NotRegistered { device, len, by: RegisteredBy::GpuDmabuf { gpu: 2 }, fault },
            Kind::System,
            "registering 64 bytes of GPU 2 by a DMA-BUF on device eth0: fi_write to itself: Input/output error (-5); set NCCL_DMABUF_ENABLE=0 for another way, or IRONRAIL_DEVICE_MEMORY=0",
        ),
        called(
            Cause::NoGpuDriver { len, because: Label::of("no CUDA driver") },
            Kind::InvalidUsage,
            "64 bytes of GPU memory cannot be registered: no CUDA driver",
        ),
        called(
            Cause::NotGpuMemory { address, len, last: false },
            Kind::InvalidArgument,
            "64 bytes at 0x1000 were given as GPU memory, and the byte at 0x1000 is not: CUDA's driver has no device allocation there",
        ),
        called(
            Cause::NotGpuMemory { address, len, last: true },
            Kind::InvalidArgument,
            "64 bytes at 0x1000 were given as GPU memory, and the byte at 0x103f is not: CUDA's driver has no device allocation there",
        ),
        called(
            Cause::SpansTwoGpus { address, len, first: 0, last: 1 },
            Kind::InvalidArgument,
            "64 bytes at 0x1000 begin in memory of GPU 0 and end in memory of GPU 1: a region lies on one",
        ),
        called(
            Cause::NotClosed { device, len, fault },
            Kind::System,
            "64 bytes stay registered on device eth0: fi_write to itself: Input/output error (-5); keep the memory until the communicator is finalized",
        ),
        called(
            Cause::NoFlush { device },
            Kind::System,
            "GPU memory cannot be flushed on device eth0: its provider cannot read memory of its own endpoint; set IRONRAIL_DEVICE_MEMORY=0",
        ),
        called(Cause::FlushFailed { device }, Kind::System, "a flush on device eth0 failed"),
        called(
            Cause::FlushHangs { rail, bound_ms: 75_000 },
            Kind::System,
            "a flush on net eth0 has not ended after 75000 ms; that NIC or its provider hangs (IRONRAIL_PEER_TIMEOUT_MS sets the bound)",
        ),
        called(
            Cause::FlushNotPosted { rail: 1, fault },
            Kind::System,
            "a flush on rail 1: fi_write to itself: Input/output error (-5)",
        ),
        called(
            Cause::QueueBroken { rail, fault },
            Kind::System,
            "the completion queue of net eth0 is broken: fi_write to itself: Input/output error (-5); restart the job",
        ),
        called(
            Cause::StaysRegistered { device, peers, address, len },
            Kind::Remote,
            "64 bytes at 0x1000 stay registered on device eth0: rank 3, process 7 on here, may still use them and does not answer; keep the memory, and deregister it again later, or finalize the communicator, which ends that use (IRONRAIL_CLOSE_TIMEOUT_MS bounds the wait)",
        ),
        called(
            Cause::ConnectTimeout { device, peer: peers, seconds: 600 },
            Kind::Remote,
            "connect on device eth0: no answer of rank 3, process 7 on here in 600 s; is the peer alive, is IRONRAIL_JOB the same on all ranks, and do its interfaces reach ours? IRONRAIL_CONNECT_TIMEOUT_MS sets the bound",
        ),
        called(
            Cause::AcceptTimeout { device, seconds: 600 },
            Kind::Remote,
            "accept on device eth0: no peer connected in 600 s; is the peer alive? IRONRAIL_CONNECT_TIMEOUT_MS sets the bound",
        ),
        called(
            Cause::Unreachable(fault),
            Kind::Remote,
            "the peer cannot be reached: fi_write to itself: Input/output error (-5); check that its interfaces and ours reach each other",
        ),
        called(
            Cause::CannotReach { rail, fault },
            Kind::Remote,
            "net eth0 cannot use the peer's address: fi_write to itself: Input/output error (-5)",
        ),
        receiving(
            Cause::NoReceives { rail, fault },
            Kind::Remote,
            "receiving from rank 3, process 7 on here: no receive can be posted on net eth0: fi_write to itself: Input/output error (-5)",
        ),
        sending(
            Cause::NotPosted(fault),
            Kind::Remote,
            "sending to rank 3, process 7 on here: fi_write to itself: Input/output error (-5)",
        ),
        receiving(
            Cause::NotPosted(fault),
            Kind::Remote,
            "receiving from rank 3, process 7 on here: fi_write to itself: Input/output error (-5)",
        ),
        sending(
            Cause::Ended,
            Kind::Remote,
            "sending to rank 3, process 7 on here: the process has ended",
        ),
        sending(
            Cause::Silent { bound_ms: 15_000 },
            Kind::Remote,
            "sending to rank 3, process 7 on here: it has not answered for 15000 ms; the process is gone or stopped, or its host cannot be reached (IRONRAIL_PEER_TIMEOUT_MS sets the bound)",
        ),
        receiving(
            Cause::RefusesPosts { bound_ms: 15_000 },
            Kind::Remote,
            "receiving from rank 3, process 7 on here: its endpoint has refused every write for 15000 ms; the process is gone, or its host cannot be reached (IRONRAIL_PEER_TIMEOUT_MS sets a shorter bound)",
        ),
        receiving(
            Cause::ConnectionClosed,
            Kind::Remote,
            "receiving from rank 3, process 7 on here: the peer has closed the connection",
        ),
        connecting(
            Cause::PeerEnded,
            Kind::Remote,
            "connecting to rank 3, process 7 on here: it has closed its communicator, and accepts no connection any more",
        ),
        receiving(
            Cause::ReceiveDeregistered,
            Kind::InvalidUsage,
            "receiving from rank 3, process 7 on here: a buffer of posted receives was deregistered",
        ),
        sending(
            Cause::SendDeregistered,
            Kind::Remote,
            "sending to rank 3, process 7 on here: the buffer of a message was deregistered before it was sent",
        ),
        sending(
            Cause::TooLong { line: 4, sent: 65, posted: 64 },
            Kind::InvalidUsage,
            "sending to rank 3, process 7 on here: message 4 has 65 bytes, and its receive has room for 64",
        ),
        receiving(
            Cause::Overrun { said: 65, posted: 64 },
            Kind::Remote,
            "receiving from rank 3, process 7 on here: the peer says it wrote 65 bytes into a receive of 64",
        ),
        sending(
            Cause::Unsendable { len: 9 },
            Kind::Internal,
            "sending to rank 3, process 7 on here: a message of 9 bytes needs delivery completion, which the provider lacks",
        ),
        receiving(
            Cause::Misuse("a receive has one key for each data rail"),
            Kind::Internal,
            "receiving from rank 3, process 7 on here: a receive has one key for each data rail",
        ),
        called(
            Cause::Misuse("a connection has 1 to 16 data rails"),
            Kind::Internal,
            "a connection has 1 to 16 data rails",
        ),
        negotiating(
            Cause::Misuse("a connection has 1 to 16 data rails"),
            Kind::InvalidUsage,
            "no protocol serves both ends: a connection has 1 to 16 data rails",
        ),
        sending(
            Cause::Withdrawn,
            Kind::Remote,
            "sending to rank 3, process 7 on here: the receives were withdrawn",
        ),
        sending(
            Cause::Transport { code: 0 },
            Kind::Remote,
            "sending to rank 3, process 7 on here: the transport failed (code 0)",
        ),
        called(Cause::NoSuchRail, Kind::Remote, "the peer named a rail that does not exist"),
        called(
            Cause::NoRandom,
            Kind::System,
            "the operating system gave no random bytes for a secret",
        ),
        receiving(
            Cause::Broke("the peer sent a frame of the other direction"),
            Kind::Remote,
            "receiving from rank 3, process 7 on here: the peer sent a frame of the other direction",
        ),
        sending(
            Cause::PartsLost { rail: 1 },
            Kind::Remote,
            "sending to rank 3, process 7 on here: parts that the provider reported as written on data rail 1 have not arrived, and cannot be written again",
        ),
        receiving(
            Cause::PeerFailed { line: 4 },
            Kind::Remote,
            "receiving from rank 3, process 7 on here: the peer could not deliver message 4",
        ),
        negotiating(
            Cause::NoCommonRail,
            Kind::InvalidUsage,
            "no protocol serves both ends: no rail of the peer has the same fabric name as one of ours, or one end writes and the other sends messages: give all ranks NICs of the same networks, and the same IRONRAIL_PROTOCOL",
        ),
        negotiating(
            Cause::NoCommonControlRail {
                ours: Label::of("10.0.0.0/24"),
                theirs: Label::of("10.0.1.0/24, 10.0.2.0/24"),
            },
            Kind::InvalidUsage,
            "no protocol serves both ends: the data rails of both ends share a network, and the control rails do not: ours are on 10.0.0.0/24, the peer's on 10.0.1.0/24, 10.0.2.0/24; raise IRONRAIL_MAX_CONTROL_RAILS on all ranks, or give them the rails in one order (IRONRAIL_RAILS)",
        ),
        negotiating(
            Cause::CannotSignalEnd,
            Kind::InvalidUsage,
            "no protocol serves both ends: the provider has neither immediates nor delivery completion, so a receiver could not learn that a message has arrived",
        ),
    ];
    for kind in [Kind::System, Kind::InvalidUsage] {
        // Nothing has started this process's plugin.
        all.push(called(Cause::NotStarted(kind), kind, "the plugin did not start"));
    }
    for (noun, name) in [
        (Noun::Answer, "answer"),
        (Noun::Comm, "comm"),
        (Noun::Connection, "connection"),
        (Noun::Context, "context"),
        (Noun::DeviceIndex, "index of a device"),
        (Noun::Devices, "number of devices"),
        (Noun::Endpoint, "endpoint"),
        (Noun::Handle, "handle"),
        (Noun::ListenComm, "listen comm"),
        (Noun::MemoryHandle, "memory handle"),
        (Noun::Properties, "properties"),
        (Noun::ReceiveComm, "receive comm"),
        (Noun::Request, "request"),
        (Noun::SendComm, "send comm"),
    ] {
        let place = format!("NCCL passed a null pointer for the {name}").leak();
        all.push(called(Cause::NullPointer(noun), Kind::InvalidArgument, place));
        let stale = format!("the {name} given is not open, or was closed").leak();
        all.push(called(Cause::Stale(noun), Kind::InvalidArgument, stale));
    }
    for (list, sentence) in [
        (List::Addresses, "NCCL passed a null list of addresses"),
        (List::Devices, "NCCL passed a null list of devices"),
        (List::MemoryHandles, "NCCL passed a null list of memory handles"),
        (List::Sizes, "NCCL passed a null list of sizes"),
        (List::Tags, "NCCL passed a null list of tags"),
    ] {
        all.push(called(Cause::NoList(list), Kind::InvalidArgument, sentence));
    }
    for (table, count, sentence) in [
        (
            Table::Communicators,
            65535,
            "65535 communicators are open in this process: finalize some before opening more",
        ),
        (Table::Connections, 4096, "4096 connections are open on one endpoint"),
        (Table::Connects, 65535, "65535 connects are under way on one endpoint"),
        (Table::Peers, 4096, "one endpoint has met 4096 peers"),
        (Table::Endpoints, 4096, "4096 endpoints are open in this process"),
        (Table::Flushes, 65535, "65535 flushes are under way on one endpoint"),
        (Table::Listeners { device }, 65535, "device eth0 has 65535 open listeners: close some"),
        (Table::Regions { device }, 65535, "65535 buffers are registered on device eth0"),
    ] {
        all.push(called(Cause::Full { table, count }, Kind::System, sentence));
    }
    for (bug, sentence) in [
        (Bug::DeviceWithoutRails, "a device without rails was opened"),
        (Bug::LandingPageTooSmall, "the landing page is too small"),
        (Bug::SlotTaken, "an upcoming slot is taken"),
        (Bug::UnknownPeer, "nothing is known of a peer that was met"),
    ] {
        all.push(called(Cause::Bug(bug), Kind::Internal, sentence));
    }
    for (why, kind, sentence) in [
        (
            Refusal::Version,
            Kind::InvalidUsage,
            "the peer refused the connection: it speaks another version of the protocol; start all ranks with the same release",
        ),
        (
            Refusal::Proof,
            Kind::Remote,
            "the peer refused the connection: the handle is not of an open listener of this job; give all ranks the same IRONRAIL_JOB, and handles of this run",
        ),
        (
            Refusal::Feature,
            Kind::InvalidUsage,
            "the peer refused the connection: its provider has neither immediates nor delivery completion",
        ),
        (
            Refusal::Closed,
            Kind::Remote,
            "the peer refused the connection: it has closed the listener",
        ),
        (
            Refusal::Busy,
            Kind::Remote,
            "the peer refused the connection: too many wait for its listener",
        ),
    ] {
        all.push(called(Cause::Refused(why), kind, sentence));
    }
    for (cause, words) in [
        (ChannelCause::NoRail, "no control rail to it is left"),
        (ChannelCause::NoInbox, "its packets do not arrive by any control rail, though it answers"),
        (ChannelCause::NoMemory, "there was no memory for a new inbox or shadow"),
        (ChannelCause::Silent, "it does not answer"),
        (ChannelCause::Refused, "its endpoint refuses all messages"),
        (
            ChannelCause::DataLost { rail: 1 },
            "parts that were written to it on data rail 1 have not arrived: a connection below was lost without an error",
        ),
        (ChannelCause::RailDown { rail: 1 }, "it has lost data rail 1"),
        (ChannelCause::DataFailed { rail: 1 }, "a write on data rail 1 has failed"),
        (ChannelCause::DataRefused { rail: 1 }, "the provider refuses writes on data rail 1"),
        (ChannelCause::DataHangs { rail: 1 }, "writes on data rail 1 do not complete"),
        (ChannelCause::RailClosing { rail: 1 }, "data rail 1 is closed because of another peer"),
        (
            ChannelCause::Malformed(Malformed::Kind),
            "it sent a frame of a kind that the protocol does not have",
        ),
        (ChannelCause::Malformed(Malformed::Short), "it sent a frame that ends early"),
        (
            ChannelCause::Malformed(Malformed::Value),
            "it sent a frame with a number outside of its bounds",
        ),
        (ChannelCause::Malformed(Malformed::Reserved), "it sent a frame with undefined bits set"),
        (ChannelCause::NeverSent, "it acknowledges what was never sent"),
        (ChannelCause::AfterEnd, "it sent a frame after its last one"),
        (ChannelCause::Connection, "it broke a rule of another connection"),
        (ChannelCause::Peer, "its end of the channel has failed: its log says why"),
    ] {
        let sentence = format!("sending to rank 3, process 7 on here: {words}");
        all.push(sending(Cause::Channel(cause), Kind::Remote, sentence.leak()));
    }
    for (operation, words) in
        [(Operation::Control, "a control write"), (Operation::Data, "a write of data")]
    {
        let sentence = format!(
            "sending to rank 3, process 7 on here: {words} on net eth0 failed: Input/output error (5), provider says \"reset by peer\" (104); the peer is gone or unreachable"
        );
        let cause = Cause::Completion { operation, rail, failed };
        all.push(sending(cause, Kind::Remote, sentence.leak()));
    }
    all
}

#[test]
fn every_error_has_the_sentence_and_the_code_that_users_know() {
    for (error, kind, sentence) in examples() {
        assert_eq!((error.to_string().as_str(), error.kind()), (sentence, kind), "{error:?}");
    }
}

#[test]
fn every_cause_and_every_thing_in_one_is_an_example() {
    let shown: String = examples().iter().map(|(error, ..)| format!("{error:?}\n")).collect();
    let source = include_str!("../../error.rs");
    for name in ["Cause", "Noun", "List", "Table", "Bug", "Operation", "RegisteredBy", "Subject"] {
        let variants = variants(source, name);
        assert!(variants.len() > 1, "{name}: {variants:?}");
        for variant in variants {
            let found = shown.match_indices(&variant).any(|(at, _)| {
                let (before, after) = (&shown[..at], &shown[at + variant.len()..]);
                !before.ends_with(char::is_alphanumeric)
                    && !after.starts_with(char::is_alphanumeric)
            });
            assert!(found, "{name}::{variant} has no example");
        }
    }
}

/// The names in the block of an enum, one a line at its first level.
fn variants(source: &str, name: &str) -> Vec<String> {
    let (_, rest) = source.split_once(&format!("enum {name} {{\n")).expect("the enum is there");
    let (block, _) = rest.split_once("\n}\n").expect("the block ends");
    let lines = block.lines().filter_map(|line| line.strip_prefix("    "));
    let names = lines.filter(|line| line.starts_with(char::is_uppercase));
    names.map(|line| line.chars().take_while(|c| c.is_alphanumeric()).collect()).collect()
}

#[test]
fn no_sentence_is_more_than_one_line() {
    for (error, ..) in examples() {
        let sentence = error.to_string();
        assert!(!sentence.contains('\n') && !sentence.contains("  "), "{sentence}");
    }
}
