//! Facts by provider, one table each: traffic classes, the longest write, arrivals between two polls, the latency of a message. The
//! options of endpoints are in the crate `fabric`, in provider.rs. docs/providers.md is made from all of these tables.

use fabric::Info;

use super::TrafficClass;
use super::config::Config;

/// An option that is not set, and why.
#[derive(Clone, Copy, Debug)]
#[cfg(test)]
pub(crate) struct LeftAlone {
    pub(crate) provider: &'static str,
    pub(crate) name: &'static str,
    pub(crate) why: &'static str,
}

#[cfg(test)]
pub(crate) const LEFT_ALONE: &[LeftAlone] = &[
    LeftAlone {
        provider: "efa",
        name: "FI_OPT_EFA_EMULATED_WRITE",
        why: "Read-only. It is read when a rail opens (below); if writes are emulated by messages, the log warns once that this is slow.",
    },
    LeftAlone {
        provider: "efa",
        name: "FI_OPT_EFA_USE_DEVICE_RDMA",
        why: "True wherever the device has it, as the requested API is 1.18 or newer; setting it contradicts a user's FI_EFA_USE_DEVICE_RDMA=0 and fails.",
    },
    LeftAlone {
        provider: "efa",
        name: "FI_OPT_EFA_RNR_RETRY",
        why: "Only messages meet a receiver that is not ready, and only set-up sends them: the provider's own back-off repeats them for as long as it takes.",
    },
    LeftAlone {
        provider: "efa",
        name: "FI_OPT_EFA_HOMOGENEOUS_PEERS",
        why: "Skips a handshake; then the target of a write must have inserted the writer's address before: rails insert peers only as these connect.",
    },
    LeftAlone {
        provider: "efa",
        name: "FI_OPT_EFA_USE_UNSOLICITED_WRITE_RECV",
        why: "True by default, as writes with immediates need: no receives are posted for them, nor required, as FI_RX_CQ_DATA is not offered.",
    },
    LeftAlone {
        provider: "efa",
        name: "fabric efa-direct",
        why: "Listed before the fabric efa of the same NIC from libfabric 2.1 on. Its completion queues refuse the plugin's format from 2.3.1 on (prov/efa/src/efa_cq.c), and nothing says what its completions prove.",
    },
    LeftAlone {
        provider: "efa",
        name: "fi_close",
        why: "Up to libfabric 2.4 the close of an endpoint waits until all that it has sent has ended, also to peers that are gone, and nothing shortens that. From 2.5 on it waits for little.",
    },
    LeftAlone {
        provider: "verbs",
        name: "fabric Ethernet-iWARP",
        why: "No immediates, and delivery complete is taken and not kept (prov/verbs/src/verbs_rma.c): the end of a message could overtake its data. tcp uses the interface.",
    },
    LeftAlone {
        provider: "cxi",
        name: "FI_CXI_RX_MATCH_MODE",
        why: "Of the whole process, which may hold MPI, too. Only set-up sends messages, a few per peer; thousands of peers with flow control need `hybrid`.",
    },
    LeftAlone {
        provider: "cxi",
        name: "FI_CXI_OPTIMIZED_MRS, FI_CXI_MR_MATCH_EVENTS, FI_CXI_PROV_KEY_CACHE",
        why: "All peers must agree in them, whatever library they come from: the site sets them.",
    },
    LeftAlone {
        provider: "verbs;ofi_rxm",
        name: "rnr_retry, min_rnr_timer",
        why: "The provider requests endless retries itself, and rxm has receives posted.",
    },
    LeftAlone {
        provider: "verbs;ofi_rxm",
        name: "FI_OFI_RXM_MSG_RX_SIZE, FI_OFI_RXM_MSG_TX_SIZE",
        why: "The queues stay the NIC's; over tcp they are cut, to save memory ([configuration.md](configuration.md)).",
    },
    LeftAlone {
        provider: "verbs;ofi_rxm",
        name: "FI_OFI_RXM_USE_SRX",
        why: "Of the whole process. Unless it is 1, each endpoint of a rail posts 128 receives of 16 KiB for each peer, 2 MiB: set it for jobs of many ranks.",
    },
    LeftAlone {
        provider: "verbs;ofi_rxm",
        name: "RDMAV_FORK_SAFE, RDMAV_HUGEPAGES_SAFE",
        why: "rdma-core's own. From Linux 5.13 and rdma-core 38 on none is needed; before, the site decides. ¹",
    },
];

/// The longest write of a family of NICs, where libfabric says more than it writes with one immediate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LargestWrite {
    pub(crate) provider: &'static str,
    pub(crate) bytes: u64,
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "docs/providers.md is made from it, by a test")
    )]
    pub(crate) why: &'static str,
}

pub(crate) const LARGEST_WRITES: &[LargestWrite] = &[LargestWrite {
    provider: "efa",
    bytes: 1 << 30,
    why: "It says any length (`max_msg_size`, `FI_OPT_MAX_RMA_SIZE`), cuts a longer write, and sends the immediate with each piece (prov/efa/src/rdm/efa_rdm_ope.c, efa_rdm_pke.c; 1.18 to 2.6): the first piece would be taken for the whole.",
}];

/// The longest write of this NIC.
pub(super) fn largest_write(info: &Info) -> u64 {
    largest_write_for(info.family(), info.max_message())
}

fn largest_write_for(family: &str, claimed: u64) -> u64 {
    let row = LARGEST_WRITES.iter().find(|row| row.provider == family);
    row.map_or(claimed, |row| row.bytes.min(claimed))
}

/// FI_TC_LOW_LATENCY of rdma/fabric.h, the class of control rails.
pub(super) const LOW_LATENCY: u32 = 0x201;
const BEST_EFFORT: u32 = 0x200;
const BULK_DATA: u32 = 0x203;
const SCAVENGER: u32 = 0x204;
/// The flag of a class that has a DSCP in its lower bits.
const DSCP: u32 = 0x100;

/// The providers that support classes by label only. Others get the DSCP.
pub(crate) const LABELLED: &[&str] = &["cxi", "efa"];

/// The providers that accept any class and ignore it (libfabric 1.17 to 2.6; tcp leaves TCP_NODELAY off for the label of bulk data, which
/// is never set).
const IGNORING: &[&str] = &["verbs", "tcp", "net", "sockets", "shm"];

/// Whether this NIC ignores the class that is set. DSCP 0 is no class.
pub(super) fn ignores(info: &Info, class: TrafficClass) -> bool {
    class.dscp() != 0 && IGNORING.contains(&info.family())
}

/// The label for a DSCP, by its service class in RFC 4594 and RFC 8622: the first row whose DSCP is not below it.
pub(crate) const LABELS: &[(u8, u32, &str)] = &[
    (0, BEST_EFFORT, "FI_TC_BEST_EFFORT"),
    (8, SCAVENGER, "FI_TC_SCAVENGER"),
    (15, BULK_DATA, "FI_TC_BULK_DATA"),
    (17, BEST_EFFORT, "FI_TC_BEST_EFFORT"),
    (23, LOW_LATENCY, "FI_TC_LOW_LATENCY"),
    (39, BEST_EFFORT, "FI_TC_BEST_EFFORT"),
    (63, LOW_LATENCY, "FI_TC_LOW_LATENCY"),
];

/// The FI_TC_* (fi_endpoint(3)) of data rails, for a communicator's traffic class.
pub(super) fn class_of(info: &Info, class: TrafficClass) -> u32 {
    class_for(info.family(), class)
}

fn class_for(family: &str, class: TrafficClass) -> u32 {
    let dscp = class.dscp();
    if !LABELLED.contains(&family) {
        return DSCP | u32::from(dscp);
    }
    let label = LABELS.iter().find(|(last, ..)| dscp <= *last);
    label.map_or(BEST_EFFORT, |(_, label, _)| *label)
}

/// A provider's own queue for arriving writes with immediates, which is shorter than a completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivalQueue {
    pub(crate) provider: &'static str,
    /// The variable that sets its length, and the length if the variable is unset.
    pub(crate) variable: &'static str,
    pub(crate) entries: u32,
    /// The variable that bounds the queue in bytes (0: as if unset), and the bytes of an entry.
    pub(crate) most: &'static str,
    pub(crate) entry_bytes: u64,
    /// Entries for the provider's own events.
    pub(crate) kept: u32,
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "docs/providers.md is made from it, by a test")
    )]
    pub(crate) why: &'static str,
}

pub(crate) const ARRIVAL_QUEUES: &[ArrivalQueue] = &[ArrivalQueue {
    provider: "cxi",
    variable: "FI_UNIVERSE_SIZE",
    entries: 1024,
    most: "FI_CXI_CTRL_RX_EQ_MAX_SIZE",
    entry_bytes: 64,
    kept: 64,
    why: "They come through the endpoint's control event queue, which only polls empty. Where it overruns, the process ends (\"Control EQ drops detected\", prov/cxi/src/cxip_ctrl.c; from 2.5).",
}];

/// How many writes with immediates may arrive on a rail of this NIC between two polls, if its provider keeps them in a queue of its own.
pub(super) fn arrivals_max(config: &Config, info: &Info) -> Option<u32> {
    arrivals_max_for(info.family(), |name| config.provider_variable(name))
}

fn arrivals_max_for<'a>(family: &str, value: impl Fn(&str) -> Option<&'a str>) -> Option<u32> {
    let row = ARRIVAL_QUEUES.iter().find(|row| row.provider == family)?;
    let entries = value(row.variable).map_or_else(|| row.entries.into(), size);
    let most = value(row.most).map(size).filter(|bytes| *bytes != 0);
    let entries = most.map_or(entries, |bytes| entries.min(bytes / row.entry_bytes));
    Some(u32::try_from(entries).unwrap_or(u32::MAX).saturating_sub(row.kept))
}

/// A size as libfabric reads it (strtol(3) with base 0, src/var.c): also hexadecimal and octal, up to the first other character, and 0 if
/// there is no digit.
fn size(text: &str) -> u64 {
    let text = text.trim_start();
    let text = text.strip_prefix('+').unwrap_or(text);
    let (digits, base) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.starts_with('0') => (text, 8),
        None => (text, 10),
    };
    let digits = digits.chars().map_while(|digit| digit.to_digit(base));
    digits.fold(0, |size, digit| size.saturating_mul(base.into()).saturating_add(digit.into()))
}

/// The latency of a message for NCCL's properties, in whole microseconds. NCCL adds it to its own figures, which are for InfiniBand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latency {
    pub(crate) provider: &'static str,
    /// The NIC's PCI device id, if it matters.
    pub(crate) device: Option<u16>,
    pub(crate) microseconds: u16,
}

/// The first matching row counts; 0 for all others.
pub(crate) const LATENCIES: &[Latency] = &[
    Latency { provider: "efa", device: Some(0xefa0), microseconds: 75 },
    Latency { provider: "efa", device: Some(0xefa1), microseconds: 75 },
    Latency { provider: "efa", device: None, microseconds: 35 },
];

/// The latency of a family's NIC.
pub(super) fn latency_us(family: &str, device: Option<u16>) -> u16 {
    let fits =
        |one: &&Latency| one.provider == family && (one.device.is_none() || one.device == device);
    LATENCIES.iter().find(fits).map_or(0, |one| one.microseconds)
}

#[cfg(test)]
mod tests {
    use fabric::{INJECTING, PROVIDER_OPTIONS, ProviderOption, Rails};

    use super::*;

    #[test]
    fn classes_are_labels_where_a_provider_supports_no_others() {
        let class =
            |provider: &str, dscp: u8| class_for(provider, TrafficClass::of_byte(dscp << 2));
        for (dscp, label) in [
            (0, BEST_EFFORT),
            (1, SCAVENGER),
            (8, SCAVENGER),
            (10, BULK_DATA),
            (18, LOW_LATENCY),
            (26, BEST_EFFORT),
            (46, LOW_LATENCY),
            (63, LOW_LATENCY),
        ] {
            assert_eq!(class("cxi", dscp), label, "{dscp}");
            assert_eq!(class("efa", dscp), label, "{dscp}");
            assert_eq!(class("verbs", dscp), DSCP | u32::from(dscp), "{dscp}");
        }
        assert!(LABELS.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(LABELS.last().unwrap().0, 63, "every DSCP has a label");
    }

    #[test]
    fn arrivals_over_cxi_are_bounded_by_libfabrics_variable_and_over_others_by_the_queue_alone() {
        let at = |family: &str, value: Option<&'static str>| {
            arrivals_max_for(family, |name| value.filter(|_| name == "FI_UNIVERSE_SIZE"))
        };
        assert_eq!(at("cxi", None), Some(960));
        assert_eq!(at("cxi", Some("16384")), Some(16_320));
        assert_eq!(at("cxi", Some("8")), Some(0));
        assert_eq!(at("cxi", Some("many")), Some(0), "libfabric reads 0");
        assert_eq!(at("efa", None), None);
    }

    #[test]
    fn arrivals_over_cxi_are_no_more_than_the_most_bytes_of_its_queue_hold() {
        let at = |entries: &'static str, bytes: &'static str| {
            let value = |name: &str| match name {
                "FI_UNIVERSE_SIZE" => Some(entries),
                "FI_CXI_CTRL_RX_EQ_MAX_SIZE" => Some(bytes),
                _ => None,
            };
            arrivals_max_for("cxi", value)
        };
        assert_eq!(at("16384", "65536"), Some(1024 - 64));
        assert_eq!(at("1024", "67108864"), Some(1024 - 64), "the bound makes no queue longer");
        assert_eq!(at("16384", "0"), Some(16_384 - 64), "0 is the provider's own");
        assert_eq!(at("16384", "4096"), Some(0));
    }

    #[test]
    fn sizes_are_read_as_libfabric_reads_them() {
        for (text, bytes) in [
            ("65536", 65_536),
            (" +65536", 65_536),
            ("0x10000", 65_536),
            ("0200", 128),
            ("64K", 64),
            ("many", 0),
            ("", 0),
        ] {
            assert_eq!(size(text), bytes, "{text}");
        }
    }

    #[test]
    fn efa_writes_at_most_a_gibibyte_even_if_it_reports_more() {
        assert_eq!(largest_write_for("efa", u64::MAX), 1 << 30);
        assert_eq!(largest_write_for("efa", 1 << 20), 1 << 20, "unless it reports less");
        assert_eq!(largest_write_for("tcp", u64::MAX), u64::MAX);
    }

    #[test]
    fn latencies_are_whole_and_known_by_device() {
        assert_eq!(latency_us("efa", Some(0xefa1)), 75);
        assert_eq!(latency_us("efa", Some(0xefa2)), 35);
        assert_eq!(latency_us("efa", None), 35);
        assert_eq!(latency_us("tcp;ofi_rxm", None), 0);
    }

    #[test]
    fn the_page_about_providers_is_made_from_the_tables() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/providers.md");
        if super::super::config::updates_docs() {
            std::fs::write(path, page()).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == page(),
            "docs/providers.md differs from the tables: UPDATE_DOCS=1 writes it"
        );
    }

    fn page() -> String {
        let mut page = String::from(PAGE_HEAD);
        for ProviderOption { provider, rails, with_gpu_memory, option, doc } in PROVIDER_OPTIONS {
            let (provider, since) = (provider.unwrap_or("any"), option.name.since());
            let rails = if *rails == Rails::Data { "data rails" } else { "every rail" };
            let gpu = if *with_gpu_memory { " that GPU memory goes to" } else { "" };
            let required = if option.required { "required" } else { "tolerated" };
            page += &format!(
                "| {provider} | `{}` | {rails}{gpu}, from {since} | {} | {required}. {} |\n",
                doc.name, doc.why, doc.refused
            );
        }
        page += PAGE_ALONE;
        for LeftAlone { provider, name, why } in LEFT_ALONE {
            page += &format!("| {provider} | `{}` | {why} |\n", name.replace(", ", "`, `"));
        }
        page += PAGE_ARRIVAL;
        page.extend(super::super::arrival::ROWS.iter().map(super::super::arrival::Row::line));
        page += &PAGE_INJECTED.replace("INJECTING", &INJECTING.join("` and `"));
        page += &PAGE_CLASSES.replace("IGNORING", &IGNORING.join(", "));
        let mut first = 0;
        for (last, _, label) in LABELS {
            let range =
                if first == *last { format!("{last}") } else { format!("{first} to {last}") };
            page += &format!("| {range} | `{label}` |\n");
            first = last + 1;
        }
        page += PAGE_LATENCIES;
        for Latency { provider, device, microseconds } in LATENCIES {
            let device =
                device.map_or_else(|| "other".to_owned(), |device| format!("{device:#06x}"));
            page += &format!("| {provider} | {device} | {microseconds} |\n");
        }
        page += PAGE_LARGEST;
        for LargestWrite { provider, bytes, why } in LARGEST_WRITES {
            page += &format!("| {provider} | {bytes} | {why} |\n");
        }
        page += PAGE_ARRIVALS;
        for row in ARRIVAL_QUEUES {
            let ArrivalQueue { provider, variable, entries, most, entry_bytes, kept, why } = row;
            page += &format!(
                "| {provider} | `{variable}`, or {entries}; at most `{most}` / {entry_bytes}; less {kept} | {why} |\n"
            );
        }
        page += PAGE_TAIL;
        page
    }

    const PAGE_HEAD: &str = "\
# Providers

For users of a given network: what the plugin asks of libfabric there, and why. First the options that are set for each provider, beyond what
every rail needs. Made from the tables and texts in `crates/fabric/src/provider.rs`, `src/plugin/options.rs` and `src/plugin/arrival.rs`; a test compares, and
`UPDATE_DOCS=1 scripts/test the_page_about` writes it. Untested on the NICs themselves: what their sources and manuals say is checked on a virtual
fabric ([vfabric.md](vfabric.md)).

Variables that providers read when libfabric loads are in [configuration.md](configuration.md), with what the plugin sets of them.

## Options that are set

Before an endpoint is enabled. *Tolerated*: where libfabric or the provider does not know it, or refuses it, the endpoint opens without.
*Required*: it does not open.

| provider | option | when | why | a refusal means |
|---|---|---|---|---|
";

    const PAGE_ALONE: &str = "
¹ The provider's progress runs in NCCL's threads, for one of which kernels wait: a call of CUDA's that waits for a kernel there never ends. A provider
that refuses the option can access GPU memory only by such calls. This is tried at the start: the device then has host memory only for NCCL, and the log
says why.

² NCCL's LL and LL128 poll flags inside the received bytes, and EFA's packets overtake each other without this option. A device that refuses it cannot
write in order, and one that takes it and reports `FI_OPT_EFA_EMULATED_WRITE` asks the device alone: its writes are made of messages. Both are tried at
the start: NCCL_PROTO is set to Simple where it is unset. Between two hosts of which one has no RDMA writes, or whose versions differ in unsolicited
receives of writes (prov/efa/src/rdm/efa_rdm_rma.h), writes are made of messages, too, and no option says so: there set NCCL_PROTO=Simple.

³ Peers on one host then go through the device like all others: what the probe has found out of it, and what its completions prove, holds for them too. A
refusal means that libfabric is older than 1.21, and peers on one host may go through shared memory. Then completions do not count as proof of arrival
(below).

## What is not set or not used, and why

| provider | what | why |
|---|---|---|
";

    const PAGE_ARRIVAL: &str = "
¹ From Linux 5.13 and rdma-core 38 on a fork copies pinned pages. Before, RDMAV_FORK_SAFE costs a call for each registration.

## What a completion proves

Where the completion of a write proves that its bytes are at the peer, a send over several rails is reported with it, and a receive of optional completion early
([protocol.md](protocol.md#11-done), §11). Elsewhere a send waits for the receiver's DONE. No provider is trusted by its name, since a layer, an
emulation or a shortcut through shared memory may complete for it: what counts is the wire protocol in a version that a source covers, and the options that
each data rail reports once it is open. Anything else proves nothing. At debug level the log has the row for each rail that opens, or what it
lacks. Both ends must have the proof. Why so:
[decisions/0022](decisions/0022-what-a-completion-proves.md).

| protocol | versions | completions prove arrival | source |
|---|---|---|---|
";

    const PAGE_INJECTED: &str = "
## Injected writes

Over `INJECTING` control rails inject writes of at most the provider's inject size, 128 bytes (FI_INJECT, fi_rma(3)): packets with a short message or an
advert, and acknowledgements. Each has its completion, like any other write. These providers then copy the bytes behind their header, and pass one buffer to the
kernel (sendto) instead of two (sendmsg): half a round trip of 8 bytes takes 4 % less ([benchmarks.md](benchmarks.md)).
Not over others: verbs sends short writes inline without the flag, cxi and rxm would copy into a buffer of their own, efa injects no writes, and shm would copy
twice.

";

    const PAGE_CLASSES: &str = "\
## Traffic classes

A communicator's class (`ncclConfig_t.trafficClass`: the byte of IP's header) goes to the data rails as a DSCP, its upper six bits: with tables
v11 and newer to all of the communicator's, with v10 to those of its connects, which carry the data; the rails that listen have none. cxi and efa take labels only, and get
the one of the service class (RFC 4594, RFC 8622); efa acts on `FI_TC_LOW_LATENCY` from libfabric 2.1 on, and ignores others. IGNORING take
every class and do nothing with it, up to libfabric 2.6 at least; the log warns of that. Over RoCE the class is there what rdma_cm gives
to all connections of a NIC: `default_roce_tos` in `/sys/kernel/config/rdma_cm/DEVICE/ports/1`, the byte of the IP header:

| DSCP | label |
|---|---|
";

    const PAGE_LARGEST: &str = "
## The longest write

No part of a message is longer than what a provider says that it writes at once, and over these no longer than:

| provider | bytes | why |
|---|---|---|
";

    const PAGE_LATENCIES: &str = "
Control rails request `FI_TC_LOW_LATENCY`, whatever the data rails' class is: their messages are short, and latency-critical. A class that a
provider refuses is one line in the log, and the rail opens without.

## Latency

The latency of a message for NCCL, in microseconds; NCCL adds it to its own figures, and truncates it. Of all others 0. EFA's are
those that AWS's plugin gives for the instances with these devices.

| provider | PCI device | µs |
|---|---|---|
";

    const PAGE_ARRIVALS: &str = "
## Arrivals between two polls

Receives are posted for as many writes with immediates as the completion queue has room for (`IRONRAIL_CQ_ENTRIES`); further ones wait. Over these
providers for no more than:

| provider | arrivals | why |
|---|---|---|
";

    const PAGE_TAIL: &str = "
The variables are libfabric's, which reads them once per process, and other libraries may have loaded libfabric before: the plugin leaves them as they
are. MPI may set FI_UNIVERSE_SIZE to the number of ranks. With fewer than 512 arrivals no writes have immediates: each message ends with a FIN frame, and
the log has a warning.

## Descriptors

Each operation has the descriptor of its memory. cxi ignores it, looks each buffer up in its own cache and asks CUDA about GPU memory that is not there,
unless the domain asks otherwise: by `enable_hybrid_mr_desc` of its domain operations (`dom_ops_v3`, fi_cxi(7)), before endpoints open. Where that is
refused, it looks them up.

## Data rails without messages

Only control rails send and receive messages, so data rails of cxi are opened without (no FI_MSG, FI_SEND, FI_RECV): an endpoint that can receive keeps
36 MiB of pinned buffers for messages that come before their receive (FI_CXI_OFLOW_BUF_SIZE, FI_CXI_OFLOW_BUF_MIN_POSTED). Where that is refused they
have all. With SENDRECV they carry the messages.

## Event queues

Endpoints of efa have an event queue (fi_eq(3)), one for the two of a NIC. The provider writes errors there that belong to no operation of the
user's: of its handshake with a peer that has died, of a peer's write as it arrives, of its own receives. Without such a queue it ends the process
(abort, prov/efa/src/efa_base_ep.c). The queue is read in one of 256 polls, and its errors are counted (`nameless_errors`).

## Registration

All modes but raw keys are offered (FI_MR_LOCAL, VIRT_ADDR, ALLOCATED, PROV_KEY, ENDPOINT, HMEM), and those that a provider returns are followed: cxi
binds regions to endpoints and has offsets for addresses, efa and verbs have virtual addresses and keys of their own, rxm passes the modes on to verbs and
hides them from tcp. No message order is requested, so that no provider need keep one. On cxi with immediates (FI_CXI_ENABLE_WRITEDATA) keys are not
optimized (prov/cxi/src/cxip_dom.c): no write goes inline with its command, short ones neither, and all are unrestricted, whatever order is requested.
";
}
