//! The only place that sets variables: those that providers read when libfabric loads them, and NCCL's for protocols and topology.
//!
//! Providers read their variables once, and some behaviour has no other switch. A variable that is already set stays; what is set here is
//! logged once, and listed in docs/configuration.md. The one exception is a topology file in the memory of a parent process.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::path::Path;

use fabric::core_provider;
use topology::Hint;

use super::config::{Config, PROTOCOLS, TOPOLOGY_FILE};

/// A provider's variable, the value that it gets if unset, and why.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProviderVariable {
    pub(crate) name: &'static str,
    pub(crate) value: &'static str,
    /// A part of the names of the providers that read the variable; for a layered provider ([`OVER_TCP`]) the whole name; or [`ALL`].
    pub(crate) provider: &'static str,
    pub(crate) doc: &'static str,
}

pub(crate) const PROVIDER_VARIABLES: &[ProviderVariable] = &[
    ProviderVariable {
        name: "FI_CXI_ENABLE_WRITEDATA",
        value: "1",
        provider: "cxi",
        doc: "For writes with immediates, which cxi else refuses, and which it refuses in any case before libfabric 2.5.0. Where they are refused, a FIN frame ends each message.",
    },
    ProviderVariable {
        name: "FI_CXI_DISABLE_HOST_REGISTER",
        value: "1",
        provider: "cxi",
        doc: "Without it, and where GPU memory goes direct, cxi has CUDA pin each of its buffers for messages that come before their receive (cudaHostRegister): when an endpoint opens, and later whenever it needs more buffers. Later means in NCCL's threads, where a CUDA call may wait for a kernel that waits for that thread. FI_OPT_CUDA_API_PERMITTED does not forbid this call. What it costs: such messages into GPU memory, which MPI may have and the plugin has not, are copied more slowly.",
    },
    ProviderVariable {
        name: "FI_EFA_FORK_SAFE",
        value: "1",
        provider: "efa",
        doc: "Without it the provider aborts a process that forks, as data loaders do, before Linux 5.13 and rdma-core 38. There a fork copies no pinned pages.",
    },
    ProviderVariable {
        name: "FI_OFI_RXM_MSG_RX_SIZE",
        value: "128",
        provider: OVER_TCP,
        doc: "The messages for which the receive pool below rxm has room; the first connection allocates it. One connection has at most 64 outstanding. tcp's default takes more than twice the memory: fi_pingpong takes 92 MB with it and 40 MB with 128 on libfabric 1.17, and 173 and 56 MB on 2.5.1. Over verbs, which reads the same variable, it is not set: the queues stay as the NIC has them.",
    },
    ProviderVariable {
        name: "FI_OFI_RXM_MSG_TX_SIZE",
        value: "128",
        provider: OVER_TCP,
        doc: "As FI_OFI_RXM_MSG_RX_SIZE, for the send queue below rxm.",
    },
    ProviderVariable {
        name: "FI_NET_STAGING_SBUF_SIZE",
        value: "0",
        provider: "net",
        doc: "Without a staging buffer in the provider, bytes that a full socket does not take are not reported as sent. From such a buffer they leave only in a later poll, which may not come after a rank's last message.",
    },
    ProviderVariable {
        name: "FI_TCP_STAGING_SBUF_SIZE",
        value: "0",
        provider: "tcp",
        doc: "As FI_NET_STAGING_SBUF_SIZE, by the provider's name in libfabric 2.x, and below rxm.",
    },
    ProviderVariable {
        name: "FI_TCP_MAX_RX_SIZE",
        value: "128",
        provider: "tcp",
        doc: "The bytes that each of an endpoint's 1,024 descriptors has for a tagged message that comes before its receive. Since libfabric 1.20 they are 16 KiB by default, which makes 17 MiB per endpoint, cleared at its first operation. The plugin sends tagged messages with `sendrecv` only. Longer ones still arrive, in memory that is allocated for each.",
    },
    ProviderVariable {
        name: "IPATH_NO_BACKTRACE",
        value: "1",
        provider: ALL,
        doc: "Keeps libinfinipath from taking SIGINT, SIGTERM, SIGABRT, SIGSEGV, SIGBUS and SIGILL of the whole process. A libfabric with the provider psm, such as Debian 12's, loads that library, whichever provider is used. Without this variable Ctrl-C or a launcher's signal ends the process with code 1 and runs no handler, such as Python's, and a crash leaves no core file.",
    },
];

/// rxm over tcp, which is used only if the user names it. rxm's variables apply to every provider below it, also to verbs.
const OVER_TCP: &str = "tcp;ofi_rxm";

/// For variables that are read when libfabric is loaded.
const ALL: &str = "all";

/// Sets the unset variables of the providers that may be chosen. Once per process, before libfabric is loaded.
pub(crate) fn set_provider_variables(config: &Config) {
    for wanted in missing(config) {
        put(wanted.name, wanted.value);
        log::info!(
            "{}={} is set for {}, since it was unset",
            wanted.name,
            wanted.value,
            wanted.provider
        );
    }
}

/// Restricts NCCL's protocols: LL and LL128 need an order of bytes that some providers do not guarantee. Once per process, during NCCL's
/// initialisation: it reads the variable afterwards (NCCL src/graph/tuning.cc:453, called from src/init.cc:1644).
pub(crate) fn set_protocols(config: &Config, protocols: Option<&'static str>) {
    let Some(protocols) = protocols else { return };
    if let Some(given) = config.protocols() {
        log::info!(
            "{PROTOCOLS}={given} stays, since it was set; the provider's order of bytes requires {protocols}"
        );
        return;
    }
    put(PROTOCOLS, protocols);
    log::info!(
        "{PROTOCOLS}={protocols} is set, since it was unset: the provider does not promise the order of bytes that the other protocols need"
    );
}

/// Gives NCCL a topology file if a device is wider than the PCIe link that NCCL would assume for it. Once per process, during NCCL's
/// initialisation: it reads the variable afterwards (NCCL src/graph/topo.cc, ncclTopoGetSystem).
pub(crate) fn set_topology_file(config: &Config, hint: Option<&Hint>) {
    let Some(hint) = hint else { return };
    if let Some(because) = obstacle(config, Path::new(NCCLS_OWN_FILE)) {
        log::info!(
            "{} devices are wider than one PCIe link, and NCCL gets no topology file: {because}; docs/topology.md has what it should say",
            hint.raised.len()
        );
        return;
    }
    match in_memory(&hint.xml) {
        Ok(path) => {
            put(TOPOLOGY_FILE, &path);
            log::info!(
                "{TOPOLOGY_FILE}={path} is set, since no file was given: {} devices are wider than one PCIe link",
                hint.raised.len()
            );
        }
        Err(error) => log::info!("{TOPOLOGY_FILE} is not set, no file in memory: {error}"),
    }
}

/// Why NCCL gets no topology file, although it would help.
fn obstacle(config: &Config, nccls_own: &Path) -> Option<String> {
    if let Some(given) = config.topology_file().filter(|given| !is_inherited(Path::new(given))) {
        return Some(format!("{TOPOLOGY_FILE}={given} was given"));
    }
    nccls_own
        .exists()
        .then(|| format!("NCCL reads {} where there is no other", nccls_own.display()))
}

/// Whether the plugin of a parent process made this file. It exists as long as that process, and describes the devices found there. A
/// forked child gets here only after execve(2): before that every call of the plugin is refused.
fn is_inherited(given: &Path) -> bool {
    match fs::read_link(given) {
        Ok(file) => file.to_string_lossy().starts_with(IN_MEMORY),
        Err(_) => given.starts_with("/proc") && !given.exists(),
    }
}

/// The beginning of the target of the link in /proc to a file of [`in_memory`] (memfd_create(2)).
const IN_MEMORY: &str = "/memfd:ironrail-topology";

/// The file that NCCL reads by default: on virtual machines whose host describes them.
const NCCLS_OWN_FILE: &str = "/var/run/nvidia-topologyd/virtualTopology.xml";

/// Makes a file with this text in memory, and returns its path, which is valid as long as the process. The path names this process: child
/// processes inherit the variable, and may have closed the descriptor, or have another file there. The descriptor is not close-on-exec,
/// since execve(2) keeps the process and its variables. NCCL ignores a file that it cannot open.
#[allow(
    unsafe_code,
    reason = "a file in memory is made by no safe call, and this module alone makes one"
)]
fn in_memory(text: &str) -> io::Result<String> {
    // Files in memory count too; see the function.
    if fabric::file_bytes_max() < text.len() as u64 {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    // SAFETY: the name is a C string.
    let descriptor =
        unsafe { libc::memfd_create(c"ironrail-topology".as_ptr(), libc::MFD_ALLOW_SEALING) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and owned here alone.
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    file.write_all(text.as_bytes())?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
    // SAFETY: the descriptor is open. On a kernel without seals the file is used unsealed.
    let _sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    // If /proc is not mounted, NCCL could not open the file either.
    if fs::read_to_string(&path)? != text {
        return Err(io::Error::other("its value is not the one that was written"));
    }
    let _kept_open = file.into_raw_fd();
    Ok(path)
}

/// Whether the plugin sets this variable: it is unset, and a provider that may be used reads it.
pub(super) fn sets(config: &Config, wanted: &ProviderVariable) -> bool {
    missing(config).any(|one| one.name == wanted.name)
}

/// The unset variables of the providers that IRONRAIL_PROVIDER allows.
fn missing(config: &Config) -> impl Iterator<Item = &'static ProviderVariable> {
    PROVIDER_VARIABLES.iter().filter(|wanted| {
        let open = match wanted.provider {
            ALL => true,
            OVER_TCP => names_tcp(config),
            part => config.provider.as_ref().is_none_or(|name| name.contains(part)),
        };
        open && config.provider_variable(wanted.name).is_none()
    })
}

/// Whether the user names tcp, or a provider layered on it. libfabric 1.17 offers `tcp` in its layered form only.
fn names_tcp(config: &Config) -> bool {
    let named = config.provider.as_deref().or_else(|| config.provider_variable("FI_PROVIDER"));
    named.is_some_and(|name| matches!(core_provider(name), "tcp" | "net"))
}

#[allow(
    unsafe_code,
    reason = "the environment can be changed in no other way, and this is the one place that does"
)]
fn put(name: &str, value: &str) {
    // SAFETY: no thread of ours reads the environment meanwhile. A library cannot exclude that another thread of the process calls
    // getenv(3). So variables are set once, only if they are missing or inherited, and while NCCL initialises, where NCCL itself calls
    // setenv(3) for its configuration file. Values that getenv(3) has returned stay valid: glibc never frees them.
    unsafe { std::env::set_var(name, value) };
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn missing_with(variables: &[(&str, &str)]) -> Vec<&'static str> {
        let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let config = Config::from_variables(owned).unwrap();
        missing(&config).map(|wanted| wanted.name).collect()
    }

    #[test]
    fn every_provider_that_may_be_chosen_gets_its_variables() {
        assert_eq!(
            missing_with(&[("IRONRAIL_PROVIDER", "cxi")]),
            ["FI_CXI_ENABLE_WRITEDATA", "FI_CXI_DISABLE_HOST_REGISTER", "IPATH_NO_BACKTRACE"]
        );
        assert_eq!(
            missing_with(&[("IRONRAIL_PROVIDER", "tcp;ofi_rxm")]),
            [
                "FI_OFI_RXM_MSG_RX_SIZE",
                "FI_OFI_RXM_MSG_TX_SIZE",
                "FI_TCP_STAGING_SBUF_SIZE",
                "FI_TCP_MAX_RX_SIZE",
                "IPATH_NO_BACKTRACE"
            ]
        );
        assert_eq!(missing_with(&[("IRONRAIL_PROVIDER", "shm")]), ["IPATH_NO_BACKTRACE"]);
    }

    #[test]
    fn the_pools_of_rxm_are_reduced_only_over_tcp() {
        let cut = |variables: &[(&str, &str)]| {
            let names = missing_with(variables);
            names.iter().filter(|name| name.starts_with("FI_OFI_RXM_")).count() == 2
        };
        for name in ["tcp;ofi_rxm", "tcp", "net;ofi_rxm"] {
            assert!(cut(&[("IRONRAIL_PROVIDER", name)]), "{name}");
            assert!(cut(&[("FI_PROVIDER", name)]), "{name}");
            let other = [("IRONRAIL_PROVIDER", "verbs;ofi_rxm"), ("FI_PROVIDER", name)];
            assert!(!cut(&other), "the plugin's own setting decides");
        }
        assert!(!cut(&[]), "verbs may be chosen");
        for name in ["verbs;ofi_rxm", "verbs", "cxi", "ofi_rxm"] {
            assert!(!cut(&[("IRONRAIL_PROVIDER", name)]), "{name}");
            assert!(!cut(&[("FI_PROVIDER", name)]), "{name}");
        }
    }

    #[test]
    fn a_file_in_memory_is_read_by_its_path_and_cannot_be_written_any_more() {
        let path = in_memory("<system/>\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "<system/>\n");
        let again = fs::OpenOptions::new().append(true).open(&path);
        assert!(again.and_then(|mut file| file.write_all(b"more")).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "<system/>\n");
    }

    #[test]
    fn a_child_reads_the_file_in_memory_though_its_descriptor_is_another_file() {
        let path = in_memory("<system/>\n").unwrap();
        let descriptor = path.rsplit('/').next().unwrap();
        // bash, since some shells take only one digit for a descriptor.
        let line = format!("exec {descriptor}</dev/null; cat {path}");
        let read = Command::new("bash").args(["-c", &line]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&read.stdout), "<system/>\n", "{read:?}");
    }

    /// The test's own process stands for the parent.
    #[test]
    fn a_file_in_memory_that_was_inherited_gives_way_to_one_of_this_process() {
        let with = |given: &str| {
            let given = (TOPOLOGY_FILE.to_owned(), given.to_owned());
            Config::from_variables([given]).unwrap()
        };
        let nowhere = Path::new("/proc/self/nothing");
        assert_eq!(obstacle(&with(&in_memory("<system/>\n").unwrap()), nowhere), None);
        // The parent has ended. No process has this id: they are below 2^22.
        assert_eq!(obstacle(&with("/proc/4194305/fd/7"), nowhere), None);
        // A user may also give such a path.
        let file = File::open("/dev/null").unwrap();
        let given = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        assert!(obstacle(&with(&given), nowhere).is_some());
    }

    #[test]
    fn a_users_topology_file_stays_and_so_does_the_one_that_nccl_reads_by_itself() {
        let given = (TOPOLOGY_FILE.to_owned(), "/etc/mine.xml".to_owned());
        let given = Config::from_variables([given]).unwrap();
        let (there, nowhere) = (Path::new("/proc/self/stat"), Path::new("/proc/self/nothing"));
        assert!(obstacle(&given, nowhere).is_some_and(|because| because.contains("/etc/mine.xml")));
        let none = Config::default();
        assert!(obstacle(&none, there).is_some_and(|because| because.contains("/proc/self/stat")));
        assert_eq!(obstacle(&none, nowhere), None);
    }

    #[test]
    fn a_users_value_stays() {
        for wanted in PROVIDER_VARIABLES {
            let provider = ("IRONRAIL_PROVIDER", wanted.provider);
            assert!(missing_with(&[provider]).contains(&wanted.name));
            assert!(!missing_with(&[provider, (wanted.name, "7")]).contains(&wanted.name));
        }
    }
}
