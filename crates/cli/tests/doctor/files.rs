//! Machines with made-up files of the kernel: NICs and GPUs that are not here.

use serde_json::Value;

use super::Case;
use super::bench::{Tree, after, doctor, report};

pub(crate) const CASES: &[Case] = &[
    Case::new("slow-link", || described(&Tree::new("slow-link").interface("eth1", 1000))),
    Case::new("far-numa", || described(&Tree::new("far-numa").mellanox(1).gpu(0))),
    Case::new("fabric-not-used", || described(&Tree::new("fabric-not-used").cxi())),
    Case::new("efa-no-device-files", || described(&Tree::new("efa-no-device-files").efa())),
    Case::new("efa-files-refused", || refused(&Tree::new("efa-files-refused").efa())),
    Case::new("verbs-files-refused", || refused(&Tree::new("verbs-files-refused").hca(0))),
    Case::new("efa-locked-memory", efa_locked_memory),
    Case::new("efa-user-namespace", || efa_container("efa-user-namespace", IPC_LOCK, "0 1000 1")),
    Case::new("efa-other-capabilities", || {
        efa_container("efa-other-capabilities", "CapEff:\t00000000a80425fb", FIRST)
    }),
    Case::new("few-processes-in-cgroup", || {
        described(cgroup(&Tree::new("few-processes-in-cgroup"), "100", "2048"))
    }),
    Case::new("few-processes-above", || {
        described(cgroup(&Tree::new("few-processes-above"), "max", "500"))
    }),
    Case::new("few-processes-cgroup-1", few_processes_cgroup_1),
    Case::new("shm-missing", || described(Tree::new("shm-missing").without_shm())),
    Case::new("shm-refused", || {
        described(Tree::new("shm-refused").without_shm().file("dev/shm", ""))
    }),
    Case::new("cxi-no-vni", || cxi("cxi-no-vni", &[("SLURM_JOB_ID", "77")])),
    Case::new("cxi-rendezvous", || cxi("cxi-rendezvous", &[("FI_CXI_RDZV_PROTO", "alt_read")])),
    Case::new("cxi-small-queues", || {
        cxi("cxi-small-queues", &[("FI_CXI_DEFAULT_CQ_SIZE", "1024")])
    }),
    Case::new("cxi-small-universe", || cxi("cxi-small-universe", &[("FI_UNIVERSE_SIZE", "8")])),
    Case::new("cxi-small-event-queue", || {
        cxi("cxi-small-event-queue", &[("FI_CXI_CTRL_RX_EQ_MAX_SIZE", "4096")])
    }),
    Case::new("cxi-fewer-than-the-job", || {
        let variables = [("FI_UNIVERSE_SIZE", "2048"), ("SLURM_NTASKS", "8192")];
        cxi("cxi-fewer-than-the-job", &variables)
    }),
    Case::new("cxi-huge-universe", || cxi("cxi-huge-universe", &[("FI_UNIVERSE_SIZE", "1000000")])),
    Case::new("cxi-hardware-matching", || {
        cxi("cxi-hardware-matching", &[("FI_CXI_RX_MATCH_MODE", "hardware")])
    }),
    Case::new("memhooks", || cxi("memhooks", &[("FI_MR_CACHE_MONITOR", "memhooks")])),
    Case::new("gpu-no-driver-library", || described(&Tree::new("gpu-no-driver-library").gpu(0))),
];

fn described(tree: &Tree) -> Value {
    report(tree.under(doctor()))
}

fn cxi(name: &str, variables: &[(&str, &str)]) -> Value {
    let tree = Tree::new(name).cxi();
    let mut command = tree.under(doctor());
    command.envs(variables.iter().copied());
    report(command)
}

/// Root may open all files: one that is a folder stands for those that a user may not open.
fn refused(tree: &Tree) -> Value {
    described(tree.file("dev/infiniband/uverbs0/folder", ""))
}

fn efa_locked_memory() -> Value {
    let tree = Tree::new("efa-locked-memory").efa();
    tree.file("dev/infiniband/uverbs0", "");
    report(tree.under(after("ulimit -l 64")))
}

/// Kubernetes's default of 8 MiB.
fn efa_container(name: &str, status: &str, map: &str) -> Value {
    let tree = Tree::new(name).efa();
    tree.file("dev/infiniband/uverbs0", "").file("proc/self/status", status);
    report(tree.file("proc/self/uid_map", map).under(after("ulimit -l 8192")))
}

/// What containers have by default, and IPC_LOCK.
const IPC_LOCK: &str = "Name:\tironrail\nCapEff:\t00000000a80465fb";
/// The map of the first user namespace.
const FIRST: &str = "         0          0 4294967295";

pub(crate) fn a_container_with_ipc_lock_needs_no_memlock() {
    let report = efa_container("efa-ipc-lock", IPC_LOCK, FIRST);
    let findings = report["findings"].as_array().unwrap();
    let memory = findings.iter().find(|finding| finding["check"] == "efa.memory").unwrap();
    assert_eq!(memory["level"], "ok", "{memory:#}");
    assert_eq!(memory["found"], "8 MiB, which IPC_LOCK lifts");
}

/// A job's cgroup, of version 2, and the one above it; 90 are in both.
fn cgroup<'a>(tree: &'a Tree, max: &str, above: &str) -> &'a Tree {
    let mount = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
    tree.file("proc/self/mountinfo", &format!("22 28 0:20 / /sys rw - sysfs sysfs rw\n{mount}"));
    tree.file("proc/self/cgroup", "0::/slurm/job_7");
    let folder = "sys/fs/cgroup/slurm";
    tree.file(&format!("{folder}/pids.max"), above).file(&format!("{folder}/pids.current"), "90");
    tree.file(&format!("{folder}/job_7/pids.max"), max);
    tree.file(&format!("{folder}/job_7/pids.current"), "90")
}

/// A container without a cgroup namespace: the path is the host's, and the mount shows what is below it.
fn few_processes_cgroup_1() -> Value {
    let tree = Tree::new("few-processes-cgroup-1");
    let mount = |name: &str| {
        format!("40 23 0:36 /docker/ab /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}\n")
    };
    tree.file("proc/self/mountinfo", &(mount("cpu") + &mount("pids")));
    tree.file("proc/self/cgroup", "9:cpu:/docker/ab\n8:pids:/docker/ab\n0::/docker/ab");
    tree.file("sys/fs/cgroup/pids/pids.max", "512");
    described(tree.file("sys/fs/cgroup/pids/pids.current", "12"))
}
