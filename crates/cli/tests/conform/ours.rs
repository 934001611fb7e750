//! Ironrail, by its newest table and by v8: over a real provider, and over every profile of the virtual fabric.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::OnceLock;

use super::{OF_GPUS, TEMPORARY, built, conform, ended, give_gpus, ids, set};

fn ironrail() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built::library("ironrail", "libnccl_net_ironrail.so"))
}

/// A folder with the virtual fabric only, for FI_PROVIDER_PATH.
fn vfabric() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(TEMPORARY).join(format!("conform-vfabric-{}", process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let name = "libvfabric_fi.so";
        std::fs::copy(built::library("vfabric", name), folder.join(name)).unwrap();
        folder
    })
}

/// What a skip may be due to: memory and devices that the test machine lacks, and what the table lacks.
const LACKING: [&str; 11] = [
    "ptrSupport has no CUDA bit",
    "not asked for: --large",
    "there is one device",
    "the table has no setNetAttr",
    "regIsGlobal is 0",
    "and newer",
    "and older",
    "NCCL uses LL128 into a GPU's memory only",
    "NCCL uses no LL",
    "NCCL uses no LL128",
    "by --threads both sides are one process, which does not end",
];

/// All behaviours pass but the `known` ones, and nothing is skipped that could be tested here.
pub(crate) fn holds(arguments: &str, table: u32, environment: &[(&str, &str)], known: &[&str]) {
    let mut command =
        conform(&format!("--jobs 4 --timeout 60 --idle 6 --abi {table} {arguments} --net"));
    command.arg(ironrail()).envs(environment.iter().copied());
    let (_, lines, errors) = ended(command);
    let failed: BTreeSet<String> = ids(&lines, "FAIL").difference(&set(known)).cloned().collect();
    assert!(failed.is_empty(), "{failed:?}\n{lines}{errors}");
    let no_groups = |line: &str| table < 9 && line.ends_with("maxRecvs is 1: no grouped receives");
    let no_gpu = |line: &str| line.contains(": no GPU: ");
    let listed = |line: &str| LACKING.iter().any(|why| line.ends_with(why));
    let lacks = |line: &&str| listed(line) || no_gpu(line) || no_groups(line);
    let skips = lines.lines().filter(|line| line.starts_with("skip"));
    let needless: Vec<&str> = skips.filter(|line| !lacks(line)).collect();
    assert!(needless.is_empty(), "{needless:?}");
    let enough = if arguments.contains("--except") && table == 8 { 55 } else { 90 };
    assert!(ids(&lines, "pass").len() >= enough, "{lines}{errors}");
}

/// Loopback only, and deaths are reported within the test's time.
pub(crate) const LOOPBACK: [(&str, &str); 2] =
    [("IRONRAIL_RAILS", "127.0.0.1"), ("IRONRAIL_PEER_TIMEOUT_MS", "4000")];

/// What libfabric leaks for each closed endpoint or domain: `net` of 1.17 leaks 4 KiB. The virtual fabric keeps closed objects, to detect
/// their use.
const KEPT_BELOW: &str = "memory-is-flat";

#[test]
fn ironrail_passes_by_its_newest_table() {
    holds("", 12, &LOOPBACK, &[KEPT_BELOW]);
}

#[test]
fn ironrail_keeps_no_memory_of_communicators_where_the_provider_keeps_none() {
    for (provider, table) in [("tcp;ofi_rxm", 12), ("sockets", 8)] {
        let only = format!("--abi {table} --timeout 240 --only memory-is-flat --net");
        let mut command = conform(&only);
        command.arg(ironrail()).envs(LOOPBACK).env("IRONRAIL_PROVIDER", provider);
        let (code, lines, errors) = ended(command);
        assert_eq!(code, 0, "{provider}: {lines}{errors}");
    }
}

#[test]
fn a_comm_between_two_threads_of_a_process_closes_over_shm() {
    // Up to v10 each thread has an endpoint of its own, which maps the other's memory.
    for table in [8, 12] {
        let arguments = format!("--abi {table} --only threads-hand-comms-over --net");
        let mut command = conform(&arguments);
        command.arg(ironrail()).env("IRONRAIL_PROVIDER", "shm");
        let (_, lines, errors) = ended(command);
        let passed = ids(&lines, "pass");
        assert!(passed.contains("threads-hand-comms-over"), "{table}: {lines}{errors}");
    }
}

/// Behaviours that do not depend on the table: they run with the newest only. Each has a comma before it.
pub(crate) fn alike_by_any_table() -> String {
    let chapters = [
        "message-",
        "receive-",
        "tags-",
        "early-",
        "short-",
        "group",
        "every-mixture",
        "mixtures-",
        "order-",
        "rotated-",
        "singles-",
        "transfer-",
        "window-",
        "gpu-",
        "properties-",
    ];
    let (_, list, _) = ended(conform("--list"));
    let ids = list.lines().filter_map(|line| line.split_once(": "));
    let alike = ids.filter(|(id, _)| chapters.iter().any(|chapter| id.starts_with(chapter)));
    alike.map(|(id, _)| format!(",{id}")).collect()
}

/// Two rails of a profile, with both sides in one process, since the virtual fabric does not reach further. Each process reports the
/// fabric's rules that it broke, whether or not a behaviour failed by it.
pub(crate) fn profile(profile: &str, table: u32, library: Option<&Path>) {
    let folder = vfabric().to_str().unwrap();
    let own = format!("conform-rules-{profile}-{table}-{}", process::id());
    let reports = Path::new(TEMPORARY).join(own);
    let _ = std::fs::remove_dir_all(&reports);
    std::fs::create_dir_all(&reports).unwrap();
    let report = format!("{}/%p", reports.display());
    let mut environment = vec![
        ("VFABRIC_REPORT", &*report),
        ("FI_PROVIDER_PATH", folder),
        ("FI_PROVIDER", "vfabric"),
        ("VFABRIC_PROFILE", profile),
        ("VFABRIC_NICS", "2"),
        ("IRONRAIL_RAILS", "vnic0,vnic1"),
    ];
    environment.extend(library.map(|file| ("IRONRAIL_LIBFABRIC", file.to_str().unwrap())));
    let alike = if table == 8 { alike_by_any_table() } else { String::new() };
    let arguments = format!("--threads --except {KEPT_BELOW}{alike}");
    holds(&arguments, table, &environment, &[]);
    no_rule_is_broken(&reports, if table == 8 { 50 } else { 80 });
    std::fs::remove_dir_all(&reports).unwrap();
}

/// Each process that opened the virtual fabric wrote a report. No rule may be broken, not even by a key used after its region was closed:
/// in conform a sender keeps calling the plugin while its receiver deregisters and closes, so adverts are withdrawn in time.
fn no_rule_is_broken(reports: &Path, least: usize) {
    let mut count = 0;
    for entry in std::fs::read_dir(reports).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let behaviour = text.split_whitespace().skip_while(|word| *word != "--worker").nth(1);
        let broken: Vec<&str> =
            text.lines().filter(|line| line.starts_with("violation ")).collect();
        assert!(text.contains("\nviolations ") && broken.is_empty(), "{behaviour:?}: {broken:#?}");
        count += 1;
    }
    assert!(count >= least, "{count} reports");
}

// More profiles, and v8, run in tests/second_libfabric.rs: 1.17 with its verbs reads the kernel's symbols as it loads, for 0.2 s of each process.

#[test]
fn it_passes_over_the_profile_of_tcp() {
    profile("tcp", 12, None);
}

// ---- without one-sided writes --------------------------------------------------------------------------------------

/// Behaviours that show each way of a message, and each end, within a minute.
const OF_MESSAGES: &str = "message-of-no-bytes,message-sizes-around-powers,message-of-four-mib-and-three,receive-larger-than-its-message,\
    nothing-lands-after-done,window-of-thirty-two-large,too-long-send-is-contained,request-null-when-not-now,group-sizes-are-reported-each,\
    groups-in-a-window-of-eight,early-sends-fill-the-queue,every-mixture-over-two-groups,rotated-tags-fill-the-queue,register-during-traffic,\
    deregistered-memory-is-left-alone,close-with-requests-in-flight,close-in-any-order,\
    abandoned-connect-is-harmless,silence-after-large-sends,idle-peer-is-alive";

#[test]
fn it_passes_by_messages_alone_over_every_software_provider() {
    for provider in ["net", "tcp;ofi_rxm", "udp;ofi_rxd", "shm"] {
        let mut only: String = OF_MESSAGES.split_whitespace().collect();
        // Over datagrams only silence reveals a death.
        if provider != "udp;ofi_rxd" {
            only += ",close-after-death";
        }
        let arguments = format!("--jobs 4 --timeout 60 --idle 3 --no-skip --only {only} --net");
        let mut command = conform(&arguments);
        command.arg(ironrail()).env("IRONRAIL_PROVIDER", provider);
        command.env("IRONRAIL_PROTOCOL", "sendrecv").env("IRONRAIL_PEER_TIMEOUT_MS", "4000");
        if provider != "shm" {
            command.env("IRONRAIL_RAILS", "127.0.0.1");
        }
        let (code, lines, errors) = ended(command);
        assert_eq!(code, 0, "{provider}: {lines}{errors}");
    }
}

// ---- the memory of GPUs ------------------------------------------------------------------------------------------

/// Calls of the driver that the plugin may make in NCCL's threads: none of them waits for a kernel.
const PATIENT: [&str; 4] =
    ["cuInit", "cuDeviceGetCount", "cuPointerGetAttributes", "cuDeviceGetAttribute"];

/// All behaviours about GPUs pass over two rails of a profile that supports their memory; without `dmabuf`, by address only. No rule of the
/// fabric is broken, and the plugin makes none of the driver's calls that may wait.
pub(crate) fn on_gpus(profile: &str, table: u32, library: Option<&Path>, dmabuf: bool) {
    let of_all = if dmabuf { "dmabuf" } else { "address" };
    let own = format!("conform-gpus-{profile}-{table}-{of_all}-{}", process::id());
    let reports = Path::new(TEMPORARY).join(own);
    let _ = std::fs::remove_dir_all(&reports);
    std::fs::create_dir_all(&reports).unwrap();
    let mut expected = set(&OF_GPUS);
    if table < 9 {
        expected.remove("gpu-memory-in-groups");
    }
    if !dmabuf {
        expected.remove("gpu-dmabuf-registers");
    }
    let only = expected.iter().cloned().collect::<Vec<_>>().join(",");
    let mut command = conform(&format!(
        "--threads --no-skip --jobs 2 --timeout 60 --abi {table} --only {only} --net"
    ));
    command.arg(ironrail()).envs([
        ("VFABRIC_HMEM", "1"),
        ("VFABRIC_REPORT", &*format!("{}/fabric-%p", reports.display())),
        ("STANDIN_CUDA_REPORT", &*format!("{}/driver-%p", reports.display())),
        ("FI_PROVIDER_PATH", vfabric().to_str().unwrap()),
        ("FI_PROVIDER", "vfabric"),
        ("VFABRIC_PROFILE", profile),
        ("VFABRIC_NICS", "2"),
        ("IRONRAIL_RAILS", "vnic0,vnic1"),
    ]);
    if let Some(library) = library {
        command.env("IRONRAIL_LIBFABRIC", library);
    }
    give_gpus(&mut command);
    let (code, lines, errors) = ended(command);
    assert_eq!(code, 0, "{lines}{errors}");
    assert_eq!(ids(&lines, "pass"), expected, "{lines}");
    let texts = std::fs::read_dir(&reports).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let is_fabric = path.file_name().unwrap().to_str().unwrap().starts_with("fabric");
        (is_fabric, std::fs::read_to_string(path).unwrap())
    });
    let (mut fabrics, mut asked) = (0, 0);
    for (is_fabric, text) in texts {
        if is_fabric {
            fabrics += 1;
            let broken: Vec<&str> =
                text.lines().filter(|line| line.starts_with("violation ")).collect();
            assert!(text.contains("\nviolations ") && broken.is_empty(), "{broken:#?}");
            continue;
        }
        for line in text.lines().filter(|line| line.starts_with("libnccl_net_ironrail.so ")) {
            let call = line.split_whitespace().nth(1).unwrap();
            assert!(PATIENT.contains(&call), "the plugin calls {call}");
            asked += usize::from(call == "cuPointerGetAttributes");
        }
    }
    // Each process has opened the fabric, and asked for the kind of memory.
    assert!(fabrics == expected.len() && asked == expected.len(), "{fabrics} {asked}");
    std::fs::remove_dir_all(&reports).unwrap();
}

// Dmabufs depend on the provider and on libfabric: 1.17 has none, and tests/second_libfabric.rs has 2.5.1.
#[test]
fn gpu_memory_over_the_adversary() {
    on_gpus("adversary", 12, None, false);
}
