//! The system's limits of a process: open files, processes, locked and shared memory.

use crate::doctor::finding::Finding;
use crate::doctor::machine::{FABRICS, Machine, Rdma};

pub(super) fn check(machine: &Machine) -> Vec<Finding> {
    let mut findings = vec![files(machine), processes(machine)];
    findings.extend(shared_memory(machine));
    let is_used = |one: &Rdma| !one.efa && one.idle().is_none();
    if machine.may_use("verbs") && machine.rdma.iter().any(is_used) {
        findings.push(locked(machine, "limits.locked", "RDMA NICs pin"));
    }
    findings
}

fn files(machine: &Machine) -> Finding {
    let looked = "ulimit -n";
    let (least, takes) = if goes_by_sockets(machine) {
        (FILES_OF_SOCKETS, "over tcp a peer of 4 rails takes about 8 sockets")
    } else {
        (FILES, "each connection of NCCL's, and of tcp providers, takes one or more")
    };
    match machine.limits.files {
        Some(files) if files < least => Finding::warn(
            "limits.files",
            looked,
            format!("{files} files: {takes}"),
            "raise it to 65536 (`ulimit -n 65536`; LimitNOFILE= of the scheduler's service; --ulimit nofile=65536 of the container)",
        ),
        files => Finding::ok("limits.files", looked, number(files)),
    }
}

/// Enough open files for a thousand connections and the files of a framework. Debian's default is 1024.
const FILES: u64 = 1024;
/// Enough open files for a thousand peers of four data rails and four control rails, twice.
const FILES_OF_SOCKETS: u64 = 16 << 10;

/// Whether the provider that the plugin takes is one of software, with sockets of its own for each peer and rail.
fn goes_by_sockets(machine: &Machine) -> bool {
    let offers = machine.chosen_offers();
    !offers.is_empty() && !offers.iter().any(|offer| FABRICS.iter().any(|name| offer.is_of(name)))
}

fn processes(machine: &Machine) -> Finding {
    let (check, looked) = ("limits.processes", "ulimit -u, and pids.max of the cgroups");
    let cgroup = machine.limits.cgroup.as_ref();
    if let Some(cgroup) = cgroup.filter(|cgroup| cgroup.left() < PROCESSES) {
        let (left, max, folder) = (cgroup.left(), cgroup.max, cgroup.folder.display());
        return Finding::warn(
            check,
            looked,
            format!(
                "{left} more threads and processes of {max} in {folder}: NCCL starts several for each communicator, and libraries one for each core"
            ),
            "raise its pids.max (--pids-limit of the container; podPidsLimit of Kubernetes's kubelet; TasksMax= of the scheduler's service)",
        );
    }
    match machine.limits.processes {
        Some(processes) if processes < PROCESSES => Finding::warn(
            check,
            looked,
            format!(
                "{processes} threads and processes of this user: NCCL starts several for each communicator"
            ),
            "raise it (`ulimit -u`; LimitNPROC= of the scheduler's service; --ulimit nproc=65536 of the container)",
        ),
        processes => {
            let left = cgroup.map(|cgroup| format!(", {} more in its cgroup", cgroup.left()));
            Finding::ok(check, looked, number(processes) + &left.unwrap_or_default())
        }
    }
}

const PROCESSES: u64 = 1024;

/// NCCL exchanges data between ranks of one machine through shared memory.
fn shared_memory(machine: &Machine) -> Option<Finding> {
    let looked = "/dev/shm";
    if let Some(why) = &machine.limits.shm_refused {
        return Some(Finding::fail(
            "limits.shm",
            looked,
            format!(
                "nothing can be made in it ({why}): NCCL's ranks on one machine end with \"unhandled system error\""
            ),
            "mount a tmpfs there that this user may write (mode 1777): --shm-size 8g of the container without --read-only, an emptyDir with medium Memory in Kubernetes",
        ));
    }
    let (whole, free) = machine.limits.shm_bytes?;
    let found = format!("{}, {} free", size(whole), size(free));
    Some(if free < SHM_BYTES {
        Finding::warn(
            "limits.shm",
            looked,
            format!(
                "{found}: NCCL's ranks on one machine run out, with \"unhandled system error\""
            ),
            "run the container with --shm-size 8g, or with --ipc host; remove what dead jobs have left there",
        )
    } else {
        Finding::ok("limits.shm", looked, found)
    })
}

/// A container's default of 64 MiB is too small for two ranks of many channels.
const SHM_BYTES: u64 = 256 << 20;

/// NICs pin memory, and a small limit makes that fail.
pub(super) fn locked(machine: &Machine, check: &str, pins: &str) -> Finding {
    let looked = "ulimit -l, and the capability IPC_LOCK";
    let Some(bytes) = machine.limits.locked_bytes else {
        return Finding::ok(check, looked, "unlimited");
    };
    let limit = size(bytes);
    if machine.limits.pins_any {
        return Finding::ok(check, looked, format!("{limit}, which IPC_LOCK lifts"));
    }
    if bytes >= LOCKED_BYTES {
        return Finding::ok(check, looked, limit);
    }
    Finding::fail(
        check,
        looked,
        format!("{limit} of memory may be locked, and {pins} every buffer"),
        "set memlock to unlimited in /etc/security/limits.conf and for the scheduler's service (LimitMEMLOCK=infinity), or run the container with --ulimit memlock=-1, or with the capability IPC_LOCK, which has no effect in a user namespace of its own",
    )
}

/// One GiB: the memory that a job with few peers registers.
const LOCKED_BYTES: u64 = 1 << 30;

fn number(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
}

/// A size as text, for instance `64 MiB`.
pub(super) fn size(bytes: u64) -> String {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.into_iter().find(|(unit, _)| bytes >= *unit);
    unit.map_or_else(|| format!("{bytes} bytes"), |(unit, name)| format!("{} {name}", bytes / unit))
}
