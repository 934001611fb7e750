//! The needs of the providers of fabrics: EFA, Slingshot (cxi), verbs.
//!
//! Not tested on such hardware: the conditions come from libfabric's manual pages and from sites that run it.

use crate::doctor::finding::Finding;
use crate::doctor::machine::Machine;

pub(super) fn check(machine: &Machine) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(efa(machine));
    findings.extend(cxi(machine));
    findings.extend(monitor(machine));
    findings.extend(used(machine));
    findings
}

/// Whether the fabric that the machine has is the one in use.
fn used(machine: &Machine) -> Option<Finding> {
    let offers = machine.offers();
    if offers.is_empty() || !machine.has_fabric() {
        return None;
    }
    let kinds = [
        (
            !machine.cxi.is_empty(),
            "cxi",
            "libfabric needs the cxi provider: HPE's own build, or 1.21 and newer with libcxi; name it in IRONRAIL_LIBFABRIC, mount it and /dev/cxi* into the container",
        ),
        (
            machine.rdma.iter().any(|one| one.efa),
            "efa",
            "libfabric needs the efa provider: the EFA installer's is in /opt/amazon/efa/lib; name it in IRONRAIL_LIBFABRIC, and pass /dev/infiniband to the container",
        ),
        (
            machine.rdma.iter().any(|one| !one.efa && one.idle().is_none()),
            "verbs",
            "libfabric needs the verbs provider and rdma-core (libibverbs.so.1); pass /dev/infiniband to the container",
        ),
    ];
    let looked = "/sys/class/cxi, /sys/class/infiniband, and what libfabric offers";
    let Some((_, kind, cure)) = kinds.into_iter().find(|(there, ..)| *there) else {
        return idle(machine, looked);
    };
    if let Some(chosen) = machine.value("IRONRAIL_PROVIDER").filter(|_| !machine.may_use(kind)) {
        return Some(Finding::warn(
            "provider.fabric",
            looked,
            format!("there are NICs for {kind}, and IRONRAIL_PROVIDER={chosen} was chosen"),
            "unset IRONRAIL_PROVIDER",
        ));
    }
    let offered: Vec<_> = offers.iter().map(|offer| offer.provider.as_str()).collect();
    if offered.iter().any(|name| name.split(';').next() == Some(kind)) {
        return Some(Finding::ok("provider.fabric", looked, format!("{kind} is offered")));
    }
    let mut names = offered.clone();
    names.dedup();
    // The device files were looked at for the other kinds.
    let denied =
        machine.rdma.iter().filter(|_| kind == "verbs").find_map(|one| one.device_refused.as_ref());
    let cure = if denied.is_some() { OPENS } else { cure };
    let denied = denied.map(|why| format!(" ({why})")).unwrap_or_default();
    Some(Finding::fail(
        "provider.fabric",
        looked,
        format!(
            "there are NICs for {kind}, and libfabric does not offer it{denied}: it offers {}, and data would go by the kernel's network",
            names.join(", ")
        ),
        cure,
    ))
}

/// Without an active port, libfabric does not offer a NIC.
fn idle(machine: &Machine, looked: &str) -> Option<Finding> {
    let first = machine.rdma.first().filter(|_| machine.may_use("verbs"))?;
    let state = first.idle()?;
    Some(Finding::warn(
        "provider.fabric",
        looked,
        format!("no NIC for verbs has an active port: that of {} is {state}", first.name),
        "connect its cable, or bring the port up (InfiniBand needs a subnet manager), if the job is to use it",
    ))
}

/// The cure for device files that cannot be opened.
const OPENS: &str = "let this user read and write them (a udev rule on the host, or a group); a container also has to be given the devices, by --device, not by a mount of /dev alone";

fn efa(machine: &Machine) -> Vec<Finding> {
    let devices: Vec<_> = machine.rdma.iter().filter(|one| one.efa).collect();
    let Some(first) = devices.first().filter(|_| machine.may_use("efa")) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let looked = "/sys/class/infiniband and /dev/infiniband";
    findings.push(if let Some(why) = &first.device_refused {
        Finding::fail(
            "efa.device",
            looked,
            format!("{} is there, and its device files cannot be opened: {why}", first.name),
            OPENS,
        )
    } else if devices.iter().any(|one| one.device_file) {
        Finding::ok("efa.device", looked, format!("{} EFA devices", devices.len()))
    } else {
        Finding::fail(
            "efa.device",
            looked,
            format!("{} is there, and /dev/infiniband is empty or missing: libfabric says \"No data available\"", first.name),
            "run the container with --device /dev/infiniband (Kubernetes: the EFA device plugin), or load ib_uverbs on the host",
        )
    });
    findings.push(super::limits::locked(machine, "efa.memory", "EFA pins"));
    if let Some(version) = machine.libfabric.as_ref().and_then(|libfabric| libfabric.version) {
        let (major, minor) = version;
        findings.push(if version < (1, 22) {
            Finding::warn(
                "efa.libfabric",
                "fi_version()",
                format!("libfabric {major}.{minor}: plugins over EFA are built for 1.22 and newer, which write without emulation"),
                "install the EFA installer's libfabric, and name it in IRONRAIL_LIBFABRIC",
            )
        } else {
            Finding::ok("efa.libfabric", "fi_version()", format!("{major}.{minor}"))
        });
    }
    findings.push(huge_pages(machine));
    findings
}

/// With huge pages and fork on an old kernel, the child of a data loader gets "Cannot allocate memory".
fn huge_pages(machine: &Machine) -> Finding {
    let looked = "FI_EFA_USE_HUGE_PAGE and the kernel's release";
    let set = machine.value("FI_EFA_USE_HUGE_PAGE");
    if set == Some("0") || !machine.is_older_than(5, 12) {
        return Finding::ok("efa.pages", looked, machine.kernel.clone());
    }
    Finding::warn(
        "efa.pages",
        looked,
        format!(
            "Linux {} is older than 5.12: processes that fork, as data loaders do, can run out of huge pages that EFA holds",
            machine.kernel
        ),
        "set FI_EFA_USE_HUGE_PAGE=0, or update the kernel",
    )
}

fn cxi(machine: &Machine) -> Vec<Finding> {
    if machine.cxi.is_empty() || !machine.may_use("cxi") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let looked = "/sys/class/cxi and /dev/cxi*";
    let refused = machine.cxi.iter().map(|one| one.device_refused.as_ref());
    findings.push(if let Some(why) = refused.min().flatten() {
        Finding::fail(
            "cxi.device",
            looked,
            format!("no NIC's device file can be opened: {why}"),
            OPENS,
        )
    } else if machine.cxi.iter().any(|one| one.device_file) {
        Finding::ok("cxi.device", looked, format!("{} NICs", machine.cxi.len()))
    } else {
        Finding::fail(
            "cxi.device",
            looked,
            format!("{} is there, and no /dev/cxi*", machine.cxi[0].name),
            "run the container with --device /dev/cxi0 and its siblings, or with the site's hook",
        )
    });
    findings.extend(network_id(machine));
    findings.extend(rendezvous(machine));
    findings.push(queues(machine));
    findings.push(arrivals(machine));
    findings.push(matching(machine));
    if machine.value("FI_CXI_ENABLE_WRITEDATA") == Some("0") {
        findings.push(Finding::warn(
            "cxi.writedata",
            "FI_CXI_ENABLE_WRITEDATA=0",
            "writes carry no immediates, so each message ends with a control frame of its own (FIN)",
            "unset FI_CXI_ENABLE_WRITEDATA: the plugin sets it to 1 itself",
        ));
    }
    findings
}

/// Slurm gives a job of several nodes its virtual network (VNI) by itself.
fn network_id(machine: &Machine) -> Option<Finding> {
    let in_slurm = machine.value("SLURM_JOB_ID").is_some();
    let looked = "SLINGSHOT_VNIS in the job's environment";
    if let Some(ids) = machine.value("SLINGSHOT_VNIS") {
        return Some(Finding::ok("cxi.vni", looked, ids));
    }
    in_slurm.then(|| {
        Finding::fail(
            "cxi.vni",
            looked,
            "the job has no VNI (SLINGSHOT_VNIS is unset): endpoints fail to open, with \"Function not implemented\" or VNI_NOT_FOUND; Slurm gives none to a job of one node",
            "start with srun --network=single_node_vni on one node; on several, look for no_vni among the job's options",
        )
    })
}

fn rendezvous(machine: &Machine) -> Option<Finding> {
    let protocol = machine.value("FI_CXI_RDZV_PROTO")?;
    let looked = format!("FI_CXI_RDZV_PROTO={protocol} and SLURM_NETWORK");
    let allowed =
        machine.value("SLURM_NETWORK").is_some_and(|network| network.contains("disable_rdzv_get"));
    if protocol != "alt_read" || allowed {
        return Some(Finding::ok("cxi.rendezvous", looked, "they agree"));
    }
    Some(Finding::warn(
        "cxi.rendezvous",
        looked,
        "FI_CXI_RDZV_PROTO=alt_read is set, and the job was not started with disable_rdzv_get: the NIC silently leaves alt_read unused",
        "start with srun --network=disable_rdzv_get, or unset FI_CXI_RDZV_PROTO; Ironrail's writes need no rendezvous",
    ))
}

fn queues(machine: &Machine) -> Finding {
    let name = "FI_CXI_DEFAULT_CQ_SIZE";
    match machine.value(name).map(|value| (value, value.parse::<u64>())) {
        Some((value, Ok(size))) if size < CQ_ENTRIES => Finding::warn(
            "cxi.queues",
            format!("{name}={value}"),
            format!(
                "{name}={value} is small for collectives over many peers: \"Cassini Event Queue overflow\" ends the job"
            ),
            format!(
                "set {name}=131072, as sites do, or unset it: Ironrail asks for its own size (IRONRAIL_CQ_ENTRIES)"
            ),
        ),
        _ => Finding::ok("cxi.queues", name, machine.value(name).unwrap_or("unset")),
    }
}

const CQ_ENTRIES: u64 = 16_384;

/// cxi sizes by these variables a queue of each endpoint for the events of control messages and of writes with immediates from peers
/// (prov/cxi/src/cxip_ctrl.c).
fn arrivals(machine: &Machine) -> Finding {
    let (name, looked) = ("cxi.universe", "FI_UNIVERSE_SIZE and FI_CXI_CTRL_RX_EQ_MAX_SIZE");
    // libfabric reads a value that is no number as 0.
    let number =
        |name: &str| machine.value(name).map(|value| value.parse::<u64>().unwrap_or_default());
    let universe = number("FI_UNIVERSE_SIZE");
    let most = number("FI_CXI_CTRL_RX_EQ_MAX_SIZE").filter(|bytes| *bytes != 0);
    let entries = universe.unwrap_or(UNIVERSE).min(most.unwrap_or(EQ_BYTES) / ENTRY_BYTES);
    let ranks = number("SLURM_NTASKS").unwrap_or(0);
    let good = ranks.max(UNIVERSE_GOOD);
    if entries < ENTRIES_MIN {
        return Finding::warn(
            name,
            looked,
            format!(
                "they leave room for {entries} events of peers, and writes with immediates need {ENTRIES_MIN}: writes carry none, so each message ends with a control frame of its own (FIN)"
            ),
            format!(
                "set FI_UNIVERSE_SIZE={good} on every rank, and unset FI_CXI_CTRL_RX_EQ_MAX_SIZE"
            ),
        );
    }
    if let Some(universe) = universe.filter(|universe| *universe < ranks) {
        return Finding::warn(
            name,
            "FI_UNIVERSE_SIZE and SLURM_NTASKS",
            format!(
                "FI_UNIVERSE_SIZE={universe}, and the job has {ranks} processes: the queue for control messages of peers is sized for fewer, and those that find no room are sent again"
            ),
            format!("set FI_UNIVERSE_SIZE={good} on every rank, or more"),
        );
    }
    let bytes = entries * ENTRY_BYTES;
    if bytes > PINNED_MAX {
        return Finding::warn(
            name,
            looked,
            format!(
                "each endpoint pins {} MiB for events of peers, and each communicator has two for each NIC",
                bytes >> 20
            ),
            format!("set FI_UNIVERSE_SIZE={good} on every rank"),
        );
    }
    let said = universe.map_or_else(|| "unset".to_owned(), |size| size.to_string());
    Finding::ok(name, looked, format!("{said}: room for {entries} events of peers"))
}

/// libfabric's default of FI_UNIVERSE_SIZE, and a value that is enough for Ironrail.
const UNIVERSE: u64 = 1024;
const UNIVERSE_GOOD: u64 = 4096;
/// The default of FI_CXI_CTRL_RX_EQ_MAX_SIZE, and the bytes of an event.
const EQ_BYTES: u64 = 64 << 20;
const ENTRY_BYTES: u64 = 64;
/// The number of events below which Ironrail writes without immediates: its least budget of arrivals, and its reserve for the provider.
const ENTRIES_MIN: u64 = 512 + 64;
const PINNED_MAX: u64 = 16 << 20;

fn matching(machine: &Machine) -> Finding {
    let name = "FI_CXI_RX_MATCH_MODE";
    match machine.value(name) {
        Some("hardware") => Finding::warn(
            "cxi.matching",
            format!("{name}=hardware"),
            "hardware matching ends the job when its entries run out: \"failure to append LE\"",
            format!("set {name}=hybrid, or software, on every rank"),
        ),
        value => Finding::ok("cxi.matching", name, value.unwrap_or("unset")),
    }
}

/// How libfabric detects that cached memory was unmapped.
fn monitor(machine: &Machine) -> Option<Finding> {
    let value = machine.value("FI_MR_CACHE_MONITOR")?;
    let looked = format!("FI_MR_CACHE_MONITOR={value}");
    if value == "memhooks" && machine.has_fabric() {
        return Some(Finding::warn(
            "memory.monitor",
            looked,
            "memhooks patches the allocator, and is known to deadlock together with plugins",
            "set FI_MR_CACHE_MONITOR=userfaultfd, or kdreg2 where the site has it",
        ));
    }
    Some(Finding::ok("memory.monitor", looked, "no problem with it is known"))
}
