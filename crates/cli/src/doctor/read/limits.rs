//! What the system allows this process.

use std::path::Path;

use rustix::process::{Resource, getrlimit};

use crate::doctor::machine::Limits;

pub(super) fn read(root: &Path) -> Limits {
    let shm = rustix::fs::statvfs("/dev/shm").ok();
    let pages = root.join("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    Limits {
        locked_bytes: getrlimit(Resource::Memlock).current,
        files: getrlimit(Resource::Nofile).current,
        processes: getrlimit(Resource::Nproc).current,
        shm_bytes: shm.map(|shm| (shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize)),
        huge_pages: std::fs::read_to_string(pages).ok().and_then(|text| text.trim().parse().ok()),
    }
}
