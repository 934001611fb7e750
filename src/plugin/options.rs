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
        why: "It can only be read. The plugin reads it when a rail opens ([below](#what-a-completion-proves)). If the device emulates writes by messages, the log warns once that this is slow.",
    },
    LeftAlone {
        provider: "efa",
        name: "FI_OPT_EFA_USE_DEVICE_RDMA",
        why: "It is true wherever the device has RDMA, since the plugin requests API 1.18 or newer. To set it fails if a user has FI_EFA_USE_DEVICE_RDMA=0.",
    },
    LeftAlone {
        provider: "efa",
        name: "FI_OPT_EFA_RNR_RETRY",
        why: "Only messages can find a receiver that is not ready, and only set-up sends messages. The provider's own back-off repeats them for as long as it takes.",
    },
    LeftAlone {
        provider: "efa",
        name: "FI_OPT_EFA_HOMOGENEOUS_PEERS",
        why: "It skips a handshake. Then the target of a write must have inserted the writer's address before the write arrives, and rails insert a peer only when it connects.",
    },
    LeftAlone {
        provider: "efa",
        name: "FI_OPT_EFA_USE_UNSOLICITED_WRITE_RECV",
        why: "It is true by default, and so it has to be: the plugin posts no receives for writes with immediates, and offers no FI_RX_CQ_DATA, which would require them.",
    },
    LeftAlone {
        provider: "efa",
        name: "fabric efa-direct",
        why: "From libfabric 2.1 on it is listed before the fabric efa of the same NIC. From 2.3.1 on its completion queues refuse the plugin's format (prov/efa/src/efa_cq.c), and no document says what its completions prove.",
    },
    LeftAlone {
        provider: "efa",
        name: "fi_close",
        why: "No option shortens it. Up to libfabric 2.4 the close of an endpoint waits until all its sends have ended, also those to peers that are gone. From 2.5 on it hardly waits.",
    },
    LeftAlone {
        provider: "verbs",
        name: "fabric Ethernet-iWARP",
        why: "It has no immediates, and accepts FI_DELIVERY_COMPLETE without keeping it (prov/verbs/src/verbs_rma.c), so the end of a message could overtake its data. The provider tcp uses the interface instead.",
    },
    LeftAlone {
        provider: "cxi",
        name: "FI_CXI_RX_MATCH_MODE",
        why: "It is for the whole process, which may use MPI, too. The plugin sends messages only in set-up, a few to each peer. If thousands of peers cause flow control, set it to `hybrid`.",
    },
    LeftAlone {
        provider: "cxi",
        name: "FI_CXI_OPTIMIZED_MRS, FI_CXI_MR_MATCH_EVENTS, FI_CXI_PROV_KEY_CACHE",
        why: "All processes that talk to each other need the same values, also those of other libraries. So the site sets them.",
    },
    LeftAlone {
        provider: "verbs;ofi_rxm",
        name: "rnr_retry, min_rnr_timer",
        why: "The provider requests endless retries by itself, and rxm keeps receives posted.",
    },
    LeftAlone {
        provider: "verbs;ofi_rxm",
        name: "FI_OFI_RXM_MSG_RX_SIZE, FI_OFI_RXM_MSG_TX_SIZE",
        why: "The queues stay as long as the NIC has them. Over tcp the plugin shortens them, to save memory ([configuration.md](configuration.md#variables-of-libfabric)).",
    },
    LeftAlone {
        provider: "verbs;ofi_rxm",
        name: "FI_OFI_RXM_USE_SRX",
        why: "It is for the whole process. Unless it is 1, each endpoint posts 128 receives of 16 KiB for each peer, which are 2 MiB. Set it to 1 for jobs of many ranks.",
    },
    LeftAlone {
        provider: "verbs;ofi_rxm",
        name: "RDMAV_FORK_SAFE, RDMAV_HUGEPAGES_SAFE",
        why: "They are rdma-core's own. From Linux 5.13 and rdma-core 38 on neither is needed. Before, the site decides. ¹",
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
    why: "The provider reports no limit (`max_msg_size`, `FI_OPT_MAX_RMA_SIZE`). But it cuts a longer write, and sends the immediate with each piece (prov/efa/src/rdm/efa_rdm_ope.c, efa_rdm_pke.c; 1.18 to 2.6), so that the first piece would be taken for the whole.",
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
    why: "Arrivals come through the endpoint's control event queue, which only polls empty. If it overruns, the provider ends the process (\"Control EQ drops detected\", prov/cxi/src/cxip_ctrl.c; from 2.5).",
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
                "| {provider} | `{}` | {rails}{gpu}, from {since} on | {} | {required}. {} |\n",
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

For users of a given network: what the plugin asks of libfabric there beyond what every rail needs, and why. Nothing on this page was tested on NICs: what their sources and manuals say is
checked on a virtual fabric ([vfabric.md](vfabric.md)).

The page is made from the tables and texts in `crates/fabric/src/provider.rs`, `src/plugin/options.rs` and `src/plugin/arrival.rs`; a test compares, and
`UPDATE_DOCS=1 scripts/test the_page_about` writes it.

Variables that providers read when libfabric loads are in [configuration.md](configuration.md), with what the plugin sets of them.

## Options that are set

They are set by fi_setopt (fi_endpoint(3)) before an endpoint is enabled. The versions are libfabric's. If libfabric or the provider does not know an option, or refuses it, an endpoint opens
without it where the option is *tolerated*, and does not open where it is *required*.

| provider | option | where | why | if it is refused |
|---|---|---|---|---|
";

    const PAGE_ALONE: &str = "
¹ The provider's progress runs in NCCL's threads. A kernel may wait for such a thread, and then a CUDA call in that thread that waits for the kernel never ends. A provider
that refuses the option can access GPU memory only by such calls. The plugin tries this at the start, and the log says why GPU memory is copied.

² NCCL's LL and LL128 poll flags inside the received bytes, and without this option EFA's packets overtake each other. A device that refuses the option cannot
write in order. When it is accepted, the provider has checked the device only: if `FI_OPT_EFA_EMULATED_WRITE` reads true, writes are made of messages, whose pieces may overtake each other. The plugin tries
both at the start, and in both cases sets NCCL_PROTO to Simple if it is unset. Two more cases cannot be seen in an option: if one of two hosts has no RDMA writes, or if their versions differ in unsolicited
receives of writes (prov/efa/src/rdm/efa_rdm_rma.h), writes between them are made of messages, too. There set NCCL_PROTO=Simple.

³ So what the probe has found out about the NIC, and what its completions prove, holds for peers on one host, too. If libfabric is older than 1.21, or refuses the option, such peers may use
shared memory, and completions do not count as proof of arrival ([below](#what-a-completion-proves)).

## What is not set or not used, and why

| provider | what | why |
|---|---|---|
";

    const PAGE_ARRIVAL: &str = "
¹ From Linux 5.13 and rdma-core 38 on a fork copies pinned pages. Before, RDMAV_FORK_SAFE costs a system call for each registration.

## What a completion proves

With some providers the completion of a write proves that its bytes are at the peer. If that is so at both ends, a send over several rails is done with its completions, and a receive whose
completion is optional is done early ([protocol.md](protocol.md#11-done), §11). Else a send over several rails waits for the receiver's DONE.

A provider's name is no proof, since a layer, an emulation or a shortcut through shared memory may report the completion. What counts is the wire protocol (fi_endpoint(3), `protocol`), in a
version that the source in the table covers, and the options that each data rail reports once it is open. Any other protocol or version proves nothing. At level debug the log has the row for
each rail that opens, or what is missing. [decisions/0022](decisions/0022-what-a-completion-proves.md) has the reasons.

| protocol | versions | completions prove arrival | source |
|---|---|---|---|
";

    const PAGE_INJECTED: &str = "
## Injected writes

Over `INJECTING` control rails inject writes of at most the provider's inject size, 128 bytes (FI_INJECT, fi_rma(3)): packets with a short message or an
advert, and acknowledgements. Each has its completion, like any other write. These providers then copy the bytes behind their header, and pass one buffer to the
kernel (sendto) instead of two (sendmsg): half a round trip of 8 bytes takes 0.95 of the time ([benchmarks.md](benchmarks.md#effects-of-tcp-and-of-the-provider)).

Over other providers nothing is injected: verbs sends short writes inline without the flag, cxi and rxm would copy into a buffer of their own, efa injects no writes, and shm would copy
twice.

";

    const PAGE_CLASSES: &str = "\
## Traffic classes

A communicator may have a traffic class (`ncclConfig_t.trafficClass`): the byte of the IP header, whose upper six bits are the DSCP. The plugin passes the DSCP to data rails: with tables
v11 and newer to all data rails of the communicator, with v10 to those of its connects, which carry the data, and not to those that listen.

- cxi and efa accept labels only. They get the label of the DSCP's service class (RFC 4594, RFC 8622), by the table. efa acts on `FI_TC_LOW_LATENCY` from libfabric 2.1 on, and ignores other labels.
- IGNORING accept every class and do nothing with it, up to libfabric 2.6 at least. The log warns of that.
- Over RoCE (verbs) all connections of a NIC have the class of rdma_cm instead: the byte of the IP header in `default_roce_tos` of `/sys/kernel/config/rdma_cm/DEVICE/ports/1`.

| DSCP | label |
|---|---|
";

    const PAGE_LARGEST: &str = "
## The longest write

No part of a message is longer than the provider's own limit for a write. Over these providers it is not longer than:

| provider | bytes | why |
|---|---|---|
";

    const PAGE_LATENCIES: &str = "
Control rails request `FI_TC_LOW_LATENCY`, whatever the data rails' class is, since their messages are short and everything waits for them. If a
provider refuses it, the rail opens without it, and the log has one line.

## Latency

The latency of a message that the plugin reports to NCCL, in whole microseconds. NCCL adds it to its own figures. EFA's latencies are
those that AWS's plugin reports for the instances with these devices. All other providers have 0.

| provider | PCI device | µs |
|---|---|---|
";

    const PAGE_ARRIVALS: &str = "
## Arrivals between two polls

An endpoint has receives outstanding for as many writes with immediates as a data rail's completion queue has room for (`IRONRAIL_CQ_ENTRIES`); further receives wait. Over these
providers it is no more than:

| provider | arrivals | why |
|---|---|---|
";

    const PAGE_TAIL: &str = "
The plugin does not set these variables: libfabric reads them once per process, and another library may have loaded it before. MPI may set FI_UNIVERSE_SIZE to the number of ranks. If it is too
small, so that fewer than 512 arrivals fit, writes have no immediates: each message ends with a FIN frame, and the log has a warning.

## Descriptors

The plugin passes the descriptor of its memory with each operation. By default cxi ignores it: it looks each buffer up in its own cache, and asks CUDA about GPU memory that is not there.
So before endpoints open the plugin asks each domain of cxi to use descriptors (`enable_hybrid_mr_desc` in `dom_ops_v3`, fi_cxi(7)). If that is refused, cxi looks buffers up.

## Data rails without messages

Only control rails send and receive messages. So data rails of cxi are opened without FI_MSG, FI_SEND and FI_RECV: an endpoint of cxi that can receive keeps
36 MiB of pinned buffers for messages that come before their receive (FI_CXI_OFLOW_BUF_SIZE, FI_CXI_OFLOW_BUF_MIN_POSTED). If that is refused, or with
SENDRECV, where data rails carry messages, they have all three.

## Event queues

The two endpoints of an efa NIC share an event queue (fi_eq(3)). The provider writes errors there that belong to no operation of the
plugin: errors of its handshake with a peer that has died, of a peer's write as it arrives, and of its own receives. Without such a queue it ends the process
(abort, prov/efa/src/efa_base_ep.c). One of 256 polls reads the queue, and the errors are counted as `nameless_errors` ([counters.md](counters.md)).

## Registration

The plugin offers all modes of registration but raw keys (FI_MR_LOCAL, VIRT_ADDR, ALLOCATED, PROV_KEY, ENDPOINT, HMEM), and follows those that a provider returns. cxi
binds regions to endpoints and has offsets for addresses. efa and verbs have virtual addresses and keys of their own. rxm passes the modes on to verbs and
hides them from tcp.

The plugin requests no message order, so that no provider need keep one. On cxi with immediates (FI_CXI_ENABLE_WRITEDATA) keys are not
optimized (prov/cxi/src/cxip_dom.c). So no write goes inline with its command, however short, and all writes are unrestricted, whatever order is requested.
";
}
