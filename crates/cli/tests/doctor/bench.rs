//! The parts of test machines: plugins and libraries that are built here, folders like the kernel's, and the command itself.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");

/// The command in an environment with our plugin on the loader's path, and nothing else.
pub(crate) fn doctor() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ironrail"));
    command.args(["doctor", "--json", "--timeout", "30"]);
    healthy(&mut command);
    command
}

/// The same, ended if it hangs.
pub(crate) fn bounded() -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "1", "60", env!("CARGO_BIN_EXE_ironrail")]);
    command.args(["doctor", "--json", "--timeout", "30"]);
    healthy(&mut command);
    command
}

/// A named pipe, which its readers read until this is dropped.
pub(crate) struct Pipe {
    pub(crate) path: PathBuf,
    _writer: fs::File,
}

impl Pipe {
    pub(crate) fn new(name: &str) -> Self {
        let path = scratch("pipes").join(name);
        let made = Command::new("mkfifo").arg(&path).output().expect("mkfifo(1)");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        // For reading too, so that opening does not wait for a reader.
        let writer = fs::File::options().read(true).write(true).open(&path).expect("a pipe");
        Self { path, _writer: writer }
    }
}

/// The same, started by a shell after `before`, which may change what only a process can change.
pub(crate) fn after(before: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-ec", &format!("{before}; exec \"$0\" \"$@\"")]);
    command.arg(env!("CARGO_BIN_EXE_ironrail")).args(["doctor", "--json", "--timeout", "30"]);
    healthy(&mut command);
    command
}

/// The same in its own namespaces: `kinds` are options of unshare(1).
pub(crate) fn apart(kinds: &str, before: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-r", kinds, "sh", "-ec", &format!("{before}\nexec \"$0\" \"$@\"")]);
    command.arg(env!("CARGO_BIN_EXE_ironrail")).args(["doctor", "--json", "--timeout", "30"]);
    healthy(&mut command);
    command
}

fn healthy(command: &mut Command) {
    let path = env::var_os("PATH").unwrap_or_default();
    let home = scratch("home");
    command.env_clear().env("PATH", path).env("HOME", home);
    command.env("NCCL_NET_PLUGIN", "ironrail").env("LD_LIBRARY_PATH", ours());
}

/// Why namespaces are not available.
pub(crate) fn namespaces() -> Result<(), String> {
    let tried = Command::new("unshare").args(["-rnm", "true"]).output();
    match tried {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err("namespaces (unshare -rnm)".to_owned()),
    }
}

/// The report, whatever it contains. A run without one fails the test.
pub(crate) fn report(mut command: Command) -> Value {
    let Output { status, stdout, stderr } = command.output().expect("the command starts");
    let report = serde_json::from_slice(&stdout);
    report.unwrap_or_else(|error| {
        let (said, errors) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        panic!("{status}: {error}\n{said}\n{errors}")
    })
}

/// The folder of the plugin of this tree.
pub(crate) fn ours() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let built = super::built::library("ironrail", "libnccl_net_ironrail.so");
        let folder = scratch("ours");
        fs::copy(built, folder.join("libnccl-net-ironrail.so")).expect("a copy");
        folder
    })
}

/// An empty folder of this process.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(TEMPORARY).join(format!("doctor-{}", process::id())).join(name);
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Compiles a shared library from a file of tests/doctor/plugins, or from a path.
pub(crate) fn compile(source: &str, output: &Path, options: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/doctor/plugins");
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let built = Command::new(&compiler)
        .args(["-std=gnu11", "-O1", "-shared", "-fPIC", "-w", "-o"])
        .arg(output)
        .arg(folder.join(source))
        .args(options)
        .arg("-lpthread")
        .output()
        .expect("a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// A folder with a stub named `libnccl-net-NAME.so`.
pub(crate) fn stub(name: &str, options: &[&str]) -> PathBuf {
    let folder = scratch(name);
    compile("stub.c", &folder.join(format!("libnccl-net-{name}.so")), options);
    folder
}

/// A folder with the socket plugin of the group's tests as `file`, whose network is named `network`.
pub(crate) fn loopback(folder: &str, file: &str, network: &str) -> PathBuf {
    let folder = scratch(folder);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../group/tests/plugins/loopback.c");
    let text = fs::read_to_string(source).expect("the source");
    let renamed = folder.join("renamed.c");
    fs::write(&renamed, text.replace("\"Loopback\"", &format!("\"{network}\""))).expect("a file");
    compile(&renamed.to_string_lossy(), &folder.join(file), &[]);
    folder
}

/// A folder with a libfabric.so.1 that has this version and no provider.
pub(crate) fn libfabric(folder: &str, major: u32, minor: u32) -> PathBuf {
    let folder = scratch(folder);
    let versions = folder.join("versions");
    let text = "FABRIC_1.0 { global: fi_version; fi_strerror; local: *; };\n\
                FABRIC_1.1 { global: fi_fabric; } FABRIC_1.0;\n\
                FABRIC_1.3 { global: fi_getinfo; fi_dupinfo; fi_freeinfo; } FABRIC_1.1;\n";
    fs::write(&versions, text).expect("a file");
    let options = [
        format!("-DMAJOR={major}"),
        format!("-DMINOR={minor}"),
        "-Wl,-soname,libfabric.so.1".to_owned(),
        format!("-Wl,--version-script={}", versions.display()),
    ];
    compile("libfabric.c", &folder.join("libfabric.so.1"), &options.each_ref().map(String::as_str));
    folder
}

/// Folders in the order in which the loader searches them.
pub(crate) fn path(folders: &[&Path]) -> String {
    let folders: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
    folders.join(":")
}

/// A folder in place of /sys, /proc and /dev, with an interface that is up.
pub(crate) struct Tree(PathBuf);

impl Tree {
    pub(crate) fn new(name: &str) -> Self {
        let tree = Self(scratch(name));
        tree.file("proc/sys/kernel/hostname", "node7");
        tree.file("proc/sys/kernel/osrelease", "6.1.0-test");
        tree.file("sys/class/net/lo/flags", "0x9").file("sys/class/net/lo/type", "772");
        tree.file("sys/class/net/lo/operstate", "unknown");
        fs::create_dir_all(tree.0.join("dev/shm")).expect("a folder");
        tree.file("addresses", "lo 127.0.0.1/8\neth0 192.0.2.2/24\n");
        tree.interface("eth0", 25_000)
    }

    pub(crate) fn file(&self, path: &str, text: &str) -> &Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("it is below the root")).expect("a folder");
        fs::write(path, format!("{text}\n")).expect("a file");
        self
    }

    /// Without its /dev/shm.
    pub(crate) fn without_shm(&self) -> &Self {
        fs::remove_dir(self.0.join("dev/shm")).expect("it is empty");
        self
    }

    /// An interface; all have the same model.
    pub(crate) fn interface(self, name: &str, speed_mbps: u32) -> Self {
        let home = format!("sys/class/net/{name}");
        self.file(&format!("{home}/flags"), "0x1003").file(&format!("{home}/type"), "1");
        self.file(&format!("{home}/operstate"), "up").file(&format!("{home}/mtu"), "1500");
        self.file(&format!("{home}/speed"), &speed_mbps.to_string());
        self.device(&home, "0x15b3", "0x1017", "0x020000", 0);
        self
    }

    /// A device on the PCI bus behind `home`.
    fn device(&self, home: &str, vendor: &str, model: &str, class: &str, numa: i32) {
        let number = fs::read_dir(self.0.join("sys/bus/pci/devices")).map_or(0, Iterator::count);
        let real = format!("sys/bus/pci/devices/0000:{number:02x}:00.0");
        self.file(&format!("{real}/vendor"), vendor).file(&format!("{real}/device"), model);
        self.file(&format!("{real}/class"), class)
            .file(&format!("{real}/numa_node"), &numa.to_string());
        if !home.is_empty() {
            fs::create_dir_all(self.0.join(home)).expect("a folder");
            symlink(self.0.join(real), self.0.join(home).join("device")).expect("a link");
        }
    }

    /// A GPU on a NUMA node.
    pub(crate) fn gpu(self, numa: i32) -> Self {
        self.device("", "0x10de", "0x2330", "0x030200", numa);
        self.file("sys/module/nvidia/version", "470.82.01");
        self
    }

    pub(crate) fn efa(self) -> Self {
        self.device("sys/class/infiniband/efa_0", "0x1d0f", "0xefa2", "0x020000", 0);
        self.file("sys/class/infiniband/efa_0/ports/1/state", "4: ACTIVE");
        self
    }

    pub(crate) fn mellanox(self, numa: i32) -> Self {
        let tree = self.hca(numa);
        tree.file("dev/infiniband/uverbs0", "");
        tree
    }

    /// The same without its device file.
    pub(crate) fn hca(self, numa: i32) -> Self {
        self.device("sys/class/infiniband/mlx5_0", "0x15b3", "0x1021", "0x020700", numa);
        self.file("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
        self
    }

    pub(crate) fn cxi(self) -> Self {
        self.device("sys/class/cxi/cxi0", "0x17db", "0x0501", "0x020000", 0);
        self.file("dev/cxi0", "");
        self
    }

    /// Makes a command read this folder.
    pub(crate) fn under(&self, mut command: Command) -> Command {
        command.arg("--root").arg(&self.0);
        command
    }
}
