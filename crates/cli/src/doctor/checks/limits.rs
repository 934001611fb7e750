//! The system's limits of a process: open files, processes, locked and shared memory.

use crate::doctor::finding::Finding;
use crate::doctor::machine::Machine;

pub(super) fn check(machine: &Machine) -> Vec<Finding> {
    let mut findings = vec![files(machine), processes(machine)];
    findings.extend(shared_memory(machine));
    if machine.rdma.iter().any(|one| !one.efa) {
        findings.push(locked(machine));
    }
    findings
}

fn files(machine: &Machine) -> Finding {
    let looked = "ulimit -n";
    match machine.limits.files {
        Some(files) if files < FILES => Finding::warn(
            "limits.files",
            looked,
            format!(
                "{files} files: each connection of NCCL's, and of tcp providers, takes one or more"
            ),
            "raise it to 65536 (`ulimit -n 65536`; LimitNOFILE= of the scheduler's service; --ulimit nofile=65536 of the container)",
        ),
        files => Finding::ok("limits.files", looked, number(files)),
    }
}

/// A thousand connections, and what else a framework opens. Debian's default is 1024.
const FILES: u64 = 1024;

fn processes(machine: &Machine) -> Finding {
    let looked = "ulimit -u";
    match machine.limits.processes {
        Some(processes) if processes < PROCESSES => Finding::warn(
            "limits.processes",
            looked,
            format!(
                "{processes} threads and processes of this user: NCCL starts several for each communicator"
            ),
            "raise it (`ulimit -u`; TasksMax= of the scheduler's service; --pids-limit of the container)",
        ),
        processes => Finding::ok("limits.processes", looked, number(processes)),
    }
}

const PROCESSES: u64 = 1024;

/// NCCL exchanges data between ranks of one machine through shared memory.
fn shared_memory(machine: &Machine) -> Option<Finding> {
    let (whole, free) = machine.limits.shm_bytes?;
    let looked = "/dev/shm";
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

fn locked(machine: &Machine) -> Finding {
    let looked = "ulimit -l";
    match machine.limits.locked_bytes {
        Some(bytes) if bytes < 1 << 30 => Finding::fail(
            "limits.locked",
            looked,
            format!("{} of memory may be locked, and RDMA NICs pin every buffer", size(bytes)),
            "set memlock to unlimited in /etc/security/limits.conf and for the scheduler's service (LimitMEMLOCK=infinity), or run the container with --ulimit memlock=-1",
        ),
        bytes => {
            Finding::ok("limits.locked", looked, bytes.map_or_else(|| "unlimited".to_owned(), size))
        }
    }
}

fn number(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
}

/// A size as `64 MiB`.
pub(super) fn size(bytes: u64) -> String {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.into_iter().find(|(unit, _)| bytes >= *unit);
    unit.map_or_else(|| format!("{bytes} bytes"), |(unit, name)| format!("{} {name}", bytes / unit))
}
