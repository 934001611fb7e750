//! Machines that are made for real: environments, limits, namespaces, libraries.

use std::fs;
use std::process::Command;

use serde_json::Value;

use super::Case;
use super::bench::{
    after, apart, compile, doctor, libfabric, loopback, namespaces, ours, path, report, scratch,
    stub,
};

pub(crate) const CASES: &[Case] = &[
    Case::new("plugin-folder-missing", || without("LD_LIBRARY_PATH")),
    Case::new("nothing-set", || without("NCCL_NET_PLUGIN")),
    Case::new("plugin-none", || with("NCCL_NET_PLUGIN", "none")),
    Case::new("plugin-commas", || with("NCCL_NET_PLUGIN", ",")),
    Case::new("plugin-empty", || with("NCCL_NET_PLUGIN", "")),
    Case::new("plugin-half-a-file-name", || with("NCCL_NET_PLUGIN", "libnccl-net-ironrail")),
    Case::new("plugin-trailing-blank", || with("NCCL_NET_PLUGIN", "ironrail ")),
    Case::new("network-quoted", || with("NCCL_NET", "\"Ironrail\"")),
    Case::new("cudart-missing", cudart_missing),
    Case::new("symbol-missing", || over_stub("symbol-missing", &["-DUNRESOLVED"])),
    Case::new("symbol-version", symbol_version),
    Case::new("other-architecture", other_architecture),
    Case::new("old-table", || over_stub("old-table", &["-DTABLE=ncclNetPlugin_v5"])),
    Case::new("plugin-crashes", || over_stub("plugin-crashes", &["-DCRASHES"])),
    Case::new("plugin-hangs", plugin_hangs),
    Case::new("no-devices", || over_stub("no-devices", &[])),
    Case::new("network-of-another", || with("NCCL_NET", "ofi")),
    Case::new("network-old-name", network_old_name),
    Case::new("network-socket", || with("NCCL_NET", "Socket")),
    Case::new("network-socket-in-file", network_socket_in_file),
    Case::new("config-file-missing", || with("NCCL_CONF_FILE", "/nowhere/nccl.conf")),
    Case::new("other-plugin-wins", other_plugin_wins),
    Case::new("old-copy-first", old_copy_first),
    Case::new("libfabric-missing", || with("IRONRAIL_LIBFABRIC", "/nowhere/libfabric.so.1")),
    Case::new("libfabric-too-old", libfabric_too_old),
    Case::new("libfabric-shadowed", libfabric_shadowed),
    Case::new("provider-filtered", || with("FI_PROVIDER", "efa")),
    Case::new("provider-not-there", || with("IRONRAIL_PROVIDER", "cxi")),
    Case::new("rail-missing", || with("IRONRAIL_RAILS", "eth77")),
    Case::new("rail-twice", || with("IRONRAIL_RAILS", "lo,127.0.0.1")),
    Case::needing(
        "only-loopback",
        || report(apart("-nm", &format!("{SYSFS}ip link set lo up"))),
        namespaces,
    ),
    Case::needing("all-interfaces-down", || report(apart("-nm", SYSFS)), namespaces),
    Case::needing("mtu-differs", mtu_differs, namespaces),
    Case::needing("one-subnet", one_subnet, namespaces),
    Case::new("few-files", || report(after("ulimit -n 128"))),
    Case::needing("small-shm", small_shm, namespaces),
    Case::needing("shm-read-only", shm_read_only, namespaces),
    Case::new("unknown-setting", || with("IRONRAIL_MAXRAILS", "2")),
    Case::new("wrong-value", || with("IRONRAIL_MAX_RAILS", "77")),
    Case::new("other-plugins-variable", || with("OFI_NCCL_PROTOCOL", "SENDRECV")),
    Case::new("nccl-misspelt", || with("NCCL_SOCKET_IFNAM", "eth0")),
    Case::new("bootstrap-interface", || with("NCCL_SOCKET_IFNAME", "eth77")),
    Case::new("wrong-data", || faulty("wrong-data", "LOOPBACK_CORRUPT", "3", &[])),
    Case::new("transfer-hangs", || {
        faulty("transfer-hangs", "LOOPBACK_STALL", "2", &["--timeout", "2"])
    }),
];

fn with(name: &str, value: &str) -> Value {
    let mut command = doctor();
    command.env(name, value);
    report(command)
}

fn without(name: &str) -> Value {
    let mut command = doctor();
    command.env_remove(name);
    report(command)
}

fn over_stub(name: &str, options: &[&str]) -> Value {
    report(named(doctor(), name, stub(name, options).to_str().unwrap()))
}

/// Another plugin, by its name and its folder.
fn named(mut command: Command, word: &str, folder: &str) -> Command {
    command.env("NCCL_NET_PLUGIN", word).env("LD_LIBRARY_PATH", folder);
    command
}

fn plugin_hangs() -> Value {
    let mut command =
        named(doctor(), "plugin-hangs", stub("plugin-hangs", &["-DHANGS"]).to_str().unwrap());
    command.args(["--timeout", "1"]);
    report(command)
}

/// A plugin that is linked with a library that is gone when it is loaded.
fn cudart_missing() -> Value {
    let folder = scratch("cudart-missing");
    let library = folder.join("libcudart.so.12");
    compile("libfabric.c", &library, &["-DNEEDED", "-Wl,-soname,libcudart.so.12"]);
    let plugin = stub("cudart-missing", &["-DNEEDS", library.to_str().unwrap()]);
    fs::remove_file(library).unwrap();
    report(named(doctor(), "cudart-missing", plugin.to_str().unwrap()))
}

/// A plugin that is linked with a libfabric newer than the loaded one.
fn symbol_version() -> Value {
    let folder = scratch("symbol-version");
    let library = folder.join("libfabric.so.1");
    for version in ["FABRIC_1.7", "FABRIC_1.3"] {
        let script = folder.join(version);
        fs::write(&script, format!("{version} {{ global: needed; local: *; }};\n")).unwrap();
        let script = format!("-Wl,--version-script={}", script.display());
        compile("libfabric.c", &library, &["-DNEEDED", "-Wl,-soname,libfabric.so.1", &script]);
        if version == "FABRIC_1.7" {
            stub("symbol-version", &["-DNEEDS", library.to_str().unwrap()]);
        }
    }
    report(named(doctor(), "symbol-version", folder.to_str().unwrap()))
}

fn other_architecture() -> Value {
    let folder = scratch("other-architecture");
    let mut bytes = fs::read(ours().join("libnccl-net-ironrail.so")).unwrap();
    // e_machine of elf.h: a processor other than this machine's.
    let other: u16 = if cfg!(target_arch = "aarch64") { 62 } else { 183 };
    bytes[18..20].copy_from_slice(&other.to_ne_bytes());
    fs::write(folder.join("libnccl-net-ironrail.so"), bytes).unwrap();
    report(named(doctor(), "ironrail", folder.to_str().unwrap()))
}

fn network_old_name() -> Value {
    let folder = loopback("network-old-name", "libnccl-net-ofi.so", "Libfabric");
    let mut command = named(doctor(), "ofi", folder.to_str().unwrap());
    command.env("NCCL_NET", "AWS Libfabric");
    report(command)
}

fn network_socket_in_file() -> Value {
    let file = scratch("network-socket-in-file").join("nccl.conf");
    fs::write(&file, "# of the site\nNCCL_NET=Socket\n").unwrap();
    let mut command = doctor();
    command.env("NCCL_CONF_FILE", file);
    report(command)
}

fn other_plugin_wins() -> Value {
    let folder = loopback("other-plugin-wins", "libnccl-net.so", "Other");
    let mut command = doctor();
    command.env_remove("NCCL_NET_PLUGIN").env("LD_LIBRARY_PATH", path(&[&folder, ours()]));
    report(command)
}

fn old_copy_first() -> Value {
    let folder = scratch("old-copy-first");
    let file = "libnccl-net-ironrail.so";
    let mut bytes = fs::read(ours().join(file)).unwrap();
    bytes.extend(b"older"); // The loader does not mind what follows the last section.
    fs::write(folder.join(file), bytes).unwrap();
    let mut command = doctor();
    command.env("LD_LIBRARY_PATH", path(&[&folder, ours()]));
    report(command)
}

fn libfabric_too_old() -> Value {
    let folder = libfabric("libfabric-too-old", 1, 11);
    let mut command = doctor();
    command.env("LD_LIBRARY_PATH", path(&[ours(), &folder]));
    report(command)
}

/// The loader takes the system's libfabric, or the first one on its path; a newer one comes later.
fn libfabric_shadowed() -> Value {
    let (first, second) =
        (libfabric("libfabric-first", 1, 20), libfabric("libfabric-second", 9, 9));
    let mut command = doctor();
    command.env("LD_LIBRARY_PATH", path(&[ours(), &first, &second]));
    report(command)
}

/// /sys shows the namespace in which it was mounted.
const SYSFS: &str = "mount -t sysfs sysfs /sys\n";

/// Two connected interfaces, up, with these MTUs and addresses.
fn pair(mtus: [u32; 2], addresses: [&str; 2]) -> Command {
    let mut script =
        SYSFS.to_owned() + "ip link set lo up; ip link add rail0 type veth peer name rail1\n";
    for (name, (mtu, address)) in ["rail0", "rail1"].iter().zip(mtus.iter().zip(addresses)) {
        script += &format!("ip link set {name} mtu {mtu} up; ip addr add {address} dev {name}\n");
    }
    apart("-nm", &script)
}

fn mtu_differs() -> Value {
    report(pair([1500, 9000], ["10.1.0.1/24", "10.2.0.1/24"]))
}

fn one_subnet() -> Value {
    report(pair([1500, 1500], ["10.1.0.1/24", "10.1.0.2/24"]))
}

fn small_shm() -> Value {
    report(apart("-m", "mount -t tmpfs -o size=64m tmpfs /dev/shm"))
}

fn shm_read_only() -> Value {
    report(apart("-m", "mount -t tmpfs -o ro,size=1g tmpfs /dev/shm"))
}

/// The socket plugin with a fault.
fn faulty(name: &str, fault: &str, number: &str, more: &[&str]) -> Value {
    let folder = loopback(name, "libnccl-net-faulty.so", "Faulty");
    let mut command = named(doctor(), "faulty", folder.to_str().unwrap());
    command.env(fault, number).args(more);
    report(command)
}

/// The judgement of the socket plugin's messages to itself, with so many devices and this fault.
fn over_devices(name: &str, count: usize, fault: &str, number: &str) -> (Value, String) {
    let folder = loopback(name, "libnccl-net-other.so", "Other");
    let mut command = named(doctor(), "other", folder.to_str().unwrap());
    command.env("LOOPBACK_DEVICES", count.to_string()).env(fault, number);
    let report = report({
        command.args(["--timeout", "1"]);
        command
    });
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["check"] == "transfer.loopback");
    let found = found.unwrap_or_else(|| panic!("{report:#}"));
    (found["level"].clone(), found["found"].as_str().unwrap().to_owned())
}

pub(crate) fn each_device_moves_bytes_to_itself_and_one_that_does_not_is_named() {
    let (level, found) = over_devices("devices-right", 3, "LOOPBACK_DEAD", "3");
    assert_eq!(level, "ok", "{found}");
    assert!(found.ends_with(" by lo0, lo1, lo2, all right"), "{found}");

    let (level, found) = over_devices("devices-broken", 3, "LOOPBACK_DEAD", "1");
    assert_eq!(level, "FAIL", "{found}");
    assert!(found.starts_with("device 1 (lo1): "), "{found}");
    assert!(found.ends_with("; messages by lo0, lo2 arrive"), "{found}");

    // Of six messages of a device that are long enough.
    let (level, found) = over_devices("devices-wrong", 3, "LOOPBACK_CORRUPT", "7");
    assert_eq!(level, "FAIL", "{found}");
    assert!(found.ends_with(" bytes are wrong by lo1, lo2"), "{found}");
}

pub(crate) fn devices_that_fail_do_not_take_longer_than_three_of_them() {
    let (level, found) = over_devices("devices-stalled", 9, "LOOPBACK_STALL", "1");
    assert_eq!(level, "FAIL", "{found}");
    assert!(found.contains("device 2 (lo2): "), "{found}");
    assert!(found.ends_with("; device 3 and later ones were not tried"), "{found}");
}
