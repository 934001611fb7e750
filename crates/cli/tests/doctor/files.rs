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
    Case::new("cxi-no-vni", || cxi("cxi-no-vni", &[("SLURM_JOB_ID", "77")])),
    Case::new("cxi-rendezvous", || cxi("cxi-rendezvous", &[("FI_CXI_RDZV_PROTO", "alt_read")])),
    Case::new("cxi-small-queues", || {
        cxi("cxi-small-queues", &[("FI_CXI_DEFAULT_CQ_SIZE", "1024")])
    }),
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
