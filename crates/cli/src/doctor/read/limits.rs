//! The system's limits of this process.

use std::fs;
use std::path::{Path, PathBuf};

use proc_status::Status;
use rustix::fs::{Access, access, statvfs};
use rustix::process::{Resource, getrlimit};

use super::system::text;
use crate::doctor::machine::{Cgroup, Limits};

pub(super) fn read(root: &Path) -> Limits {
    let shm = root.join("dev/shm");
    let bytes = statvfs(&shm).ok();
    let refused = access(&shm, Access::WRITE_OK | Access::EXEC_OK).err();
    let pages = root.join("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    Limits {
        locked_bytes: getrlimit(Resource::Memlock).current,
        pins_any: pins_any(root),
        files: getrlimit(Resource::Nofile).current,
        processes: getrlimit(Resource::Nproc).current,
        cgroup: cgroup(root),
        shm_bytes: bytes.map(|shm| (shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize)),
        shm_refused: refused.map(|error| error.to_string()),
        huge_pages: fs::read_to_string(pages).ok().and_then(|text| text.trim().parse().ok()),
    }
}

/// Whether memory can be pinned beyond the limit. ib_umem_get() in Linux's drivers/infiniband/core/umem.c compares with the limit unless
/// capable(CAP_IPC_LOCK), which counts in the first user namespace alone; this namespace maps all ids to themselves (user_namespaces(7)).
fn pins_any(root: &Path) -> bool {
    let map = text(root, "proc/self/uid_map").unwrap_or_default();
    let is_first = map.split_whitespace().eq(["0", "0", "4294967295"]);
    let status = Status::in_file(&root.join("proc/self/status"));
    is_first && status.is_ok_and(|status| status.has_capability(CAP_IPC_LOCK))
}

/// linux/capability.h.
const CAP_IPC_LOCK: u32 = 14;

/// The cgroup that allows the fewest further processes, of that of this process and those above it, as far as they can be seen
/// (cgroups(7)).
fn cgroup(root: &Path) -> Option<Cgroup> {
    let (mount, folder) = pids(root)?;
    let of = |folder: &Path| {
        let number = |file: &str| text(folder, file)?.parse().ok();
        let (max, current) = (number("pids.max")?, number("pids.current")?);
        let shown = Path::new("/").join(folder.strip_prefix(root).unwrap_or(folder));
        Some(Cgroup { folder: shown, max, current })
    };
    let upward = folder.ancestors().take_while(|folder| folder.starts_with(&mount));
    upward.filter_map(of).min_by_key(Cgroup::left)
}

/// The mount point of the pids controller, and the folder of this process's cgroup below it.
fn pids(root: &Path) -> Option<(PathBuf, PathBuf)> {
    let mounts = text(root, "proc/self/mountinfo")?;
    // proc_pid_mountinfo(5): number, parent, device, root, place, options, and behind the dash type, source and the file system's options.
    let mounted = |is: &dyn Fn(&str, &str) -> bool| {
        mounts.lines().find_map(|line| {
            let (head, tail) = line.split_once(" - ")?;
            let mut head = head.split(' ').skip(3);
            let (top, place) = (head.next()?, head.next()?);
            let mut tail = tail.split(' ');
            let (kind, options) = (tail.next()?, tail.nth(1)?);
            is(kind, options).then_some((top, place))
        })
    };
    let of = text(root, "proc/self/cgroup")?;
    let own = |is: &dyn Fn(&str, &str) -> bool| {
        of.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            is(number, controllers).then_some(path)
        })
    };
    let has_pids = |list: &str| list.split(',').any(|one| one == "pids");
    // Version 1 of cgroups, if this controller is in it, else version 2.
    let first = own(&|_, controllers| has_pids(controllers))
        .zip(mounted(&|kind, options| kind == "cgroup" && has_pids(options)));
    let second = || own(&|number, _| number == "0").zip(mounted(&|kind, _| kind == "cgroup2"));
    let (path, (top, place)) = first.or_else(second)?;
    let mount = root.join(place.trim_start_matches('/'));
    // A path outside of the mounted tree belongs to another container.
    let below = Path::new(path).strip_prefix(top).unwrap_or_else(|_| Path::new(""));
    Some((mount.clone(), mount.join(below)))
}
