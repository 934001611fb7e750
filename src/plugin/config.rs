//! The settings: one table, read once.
//!
//! - The environment is read in [`Config::read`] and nowhere else; all other functions here are pure.
//! - The table makes [`Config`], the sentences about wrong values and names, and docs/configuration.md.
//! - A wrong value fails the start, since a job that runs with another setting than its user has set is worse. An unknown name is a
//!   warning, since it may belong to another version.

mod explain;
pub(super) mod setting;
mod value;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use log::{Level, LevelFilter};
use proto::budget::CAPACITY_MIN;
use proto::limits::{FINGERPRINT_BYTES, MAX_CONTROL_RAILS, MAX_DATA_RAILS};

use super::failure::StartError;
use super::hash::fnv1a;
use crate::endpoint::bound::OPERATIONS_MAX;
use crate::types::{Protocol, Settings};
pub(super) use explain::settings;
use setting::Setting;
use value::Value;
pub(crate) use value::{DeviceMemory, ValueKind, Zero};

/// The prefix of all names.
pub(crate) const PREFIX: &str = "IRONRAIL_";

/// Makes the typed [`Config`] and the table [`SETTINGS`] from the same rows.
macro_rules! settings {
    ($( $(#[doc = $doc:literal])+ $field:ident: $kind:ty = $name:literal, $kind_of:expr, $default:literal, shared $shared:literal; )+) => {
        /// Every setting, with its type.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct Config {
            $( $(#[doc = $doc])+ pub(crate) $field: $kind, )+
            notes: Vec<Note>,
            given: Vec<(&'static str, String)>,
            provider_variables: BTreeMap<String, String>,
            protocols: Option<String>,
            topology_file: Option<String>,
            fingerprint: Fingerprint,
        }

        pub(crate) const SETTINGS: &[Setting] = &[
            $( Setting { name: $name, kind: $kind_of, default: $default, doc: concat!($($doc),+), shared: $shared }, )+
        ];

        impl Config {
            fn from_texts(texts: &Texts) -> Result<Self, StartError> {
                Ok(Self {
                    $( $field: <$kind>::from(texts.parsed($name)?), )+
                    notes: Vec::new(),
                    given: Vec::new(),
                    provider_variables: BTreeMap::new(),
                    protocols: None,
                    topology_file: None,
                    fingerprint: [0; FINGERPRINT_BYTES],
                })
            }
        }
    };
}

settings! {
    /// The libfabric that the plugin loads: a file, or a name that the dynamic loader searches. If it cannot be loaded, the start fails, and no other one is tried. Unset: `libfabric.so.1`.
    libfabric: Option<PathBuf> = "LIBFABRIC", ValueKind::Path, "", shared false;
    /// The provider of the rails, by libfabric's name: `net`, `tcp`, `tcp;ofi_rxm`, `sockets`, `shm`, `efa`, `cxi`, `verbs;ofi_rxm`. If libfabric does not offer it, the start fails. Unset: the first that is offered of cxi, efa, verbs;ofi_rxm, tcp, net, tcp;ofi_rxm and sockets, or the one that `FI_PROVIDER` names.
    provider: Option<String> = "PROVIDER", ValueKind::Text, "", shared true;
    /// How messages are transferred. `rdma`: by one-sided writes. `sendrecv`: by tagged messages, with one rail per device, and GPU memory copied through host memory. `auto`: `rdma` if the provider has one-sided operations (FI_RMA), else `sendrecv`.
    protocol: Option<Protocol> = "PROTOCOL", ValueKind::Choice(&["auto", "rdma", "sendrecv"]), "auto", shared true;
    /// The rails, one for each NIC or interface, by its source address (`127.0.0.1,127.0.0.2`) or its name (`eth0,eth1`, `mlx5_0`). All of them make one device. A name that the provider does not have fails the start. Unset: all NICs of the provider that have a link, grouped into devices by their place in the machine; of interfaces the ordinary ones, and only if there are none bridges, link-local addresses, loopback, or bridges of containers (docker).
    rails: Vec<String> = "RAILS", ValueKind::List, "", shared false;
    /// The most data rails in one device. Further NICs make further devices; further interfaces, and further names in `IRONRAIL_RAILS`, are not used. With `sendrecv` a device has one data rail.
    max_rails: usize = "MAX_RAILS", ValueKind::Number { min: 1, max: RAILS_MAX, zero: Zero::Refused }, "4", shared true;
    /// The most control rails in one device. Each NIC of the device has one, up to this number.
    max_control_rails: usize = "MAX_CONTROL_RAILS", ValueKind::Number { min: 1, max: CONTROL_RAILS_MAX, zero: Zero::Refused }, "4", shared true;
    /// Whether messages end by a FIN frame, and their writes carry no immediates (remote CQ data, FI_REMOTE_CQ_DATA). `1` at one end counts for both ends. A lost rail does not come back then.
    force_fin: bool = "FORCE_FIN", ValueKind::Switch, "0", shared true;
    /// Whether connections survive the loss of a data rail. `1`: its messages go by the others. `0`: its first failure is an error on both ends.
    failover: bool = "FAILOVER", ValueKind::Switch, "1", shared true;
    /// The most bytes in one write. With less than the provider allows, messages are cut into more parts. For tests.
    largest_write: u64 = "LARGEST_WRITE", ValueKind::Bytes { min: 128, max: 1 << 40, zero: Zero::Means("what the provider allows") }, "0", shared true;
    /// A message of at least this many bytes is striped over the data rails of its device. A shorter one is sent whole: by the rails in turn, or, if they differ in speed, by the rail that is expected to be done first. The smaller value of the two ends counts.
    stripe_bytes_min: usize = "STRIPE_MIN", ValueKind::Bytes { min: 128, max: 1 << 40, zero: Zero::Refused }, "128K", shared true;
    /// Whether the plugin asks libfabric for basic registration (`FI_MR_BASIC`), which gives virtual addresses and keys that the provider chooses, also on providers that otherwise use offsets. If no provider offers it, the start fails.
    basic_regions: bool = "BASIC_REGIONS", ValueKind::Switch, "0", shared true;
    /// Whether NICs read and write GPU memory themselves (GPUDirect RDMA). `auto`: they do if there is a CUDA driver, and if the provider can do it (FI_HMEM) without CUDA calls; else NCCL copies through host memory. `1`: the same, with a warning if NCCL copies. `0`: NCCL copies.
    device_memory: DeviceMemory = "DEVICE_MEMORY", ValueKind::Choice(&["auto", "0", "1"]), "auto", shared false;
    /// How long connect waits for an answer of the peer, and accept for a peer, before the call fails.
    connect_timeout: Duration = "CONNECT_TIMEOUT_MS", ValueKind::Milliseconds { min: 1, max: DAY_MS }, "600000", shared false;
    /// How long connect and accept wait before a log line says so. The first such line in a minute is a warning, others are of level info. The line of a connect names the peer, or, before the peer's first answer, its address.
    connect_warn: Duration = "CONNECT_WARN_MS", ValueKind::Milliseconds { min: 1, max: DAY_MS }, "30000", shared false;
    /// How long a peer may leave keepalive queries unanswered before its connections fail. A peer whose program is late does not time out: its plugin answers within about a second. Below 5000 a peer on a busy host may be taken for dead. Three more bounds follow from it. Connections to a peer fail if the provider refuses every post to it for this time, or for 15 s if that is shorter. A flush fails after this time. A write by the last rail fails after half of it, or after 8 s if that is shorter.
    peer_timeout: Duration = "PEER_TIMEOUT_MS", ValueKind::Milliseconds { min: 1, max: DAY_MS }, "75000", shared false;
    /// How long deregMr and close wait for peers that do not answer, and for the last DONE to be sent. After the first wait that times out, later ones are shorter, so that all waits of a communicator on one device take little more than this together. Memory that a silent peer may still write stays registered, and its deregMr is an error.
    close_timeout: Duration = "CLOSE_TIMEOUT_MS", ValueKind::Milliseconds { min: 0, max: DAY_MS }, "1500", shared false;
    /// How long a request may wait, while NCCL polls, before a warning reports it: which side is late, with what, and the progress of both ends. At most one warning a minute. 0: no reports.
    stall_report: Duration = "STALL_REPORT_MS", ValueKind::Milliseconds { min: 0, max: DAY_MS }, "30000", shared false;
    /// The file that triggers dumps: when it appears or changes, each process writes a dump of all its connections (JSON) beside it, to `NAME.HOST.PROCESS.json`, where NAME is the file's name. Each process checks the file every 2 s. Unset: no dumps.
    dump_trigger: Option<PathBuf> = "DUMP_TRIGGER", ValueKind::Path, "", shared false;
    /// The entries of each data rail's completion queue. An endpoint has as many receives outstanding as fit; beyond that irecv returns NULL, and NCCL tries again. 16384 are enough for a few hundred connections with full windows.
    cq_entries: usize = "CQ_ENTRIES", ValueKind::Number { min: CQ_ENTRIES_MIN, max: 1 << 20, zero: Zero::Means("16384") }, "0", shared false;
    /// The longest message that is sent inline (eager): in a control packet, and also before its receive is known. Values above 4096 mean 4096. A message of more than 3 KiB is written, not sent inline, while receives are posted ahead. Where GPU memory goes direct, a message is inline only if its receive is known to be in host memory. The smaller value of the two ends counts.
    inline_bytes_max: u64 = "INLINE_MAX_SIZE", ValueKind::Bytes { min: 1, max: 1 << 40, zero: Zero::Means("never") }, "4K", shared true;
    /// Whether each process publishes its counters, for `ironrail top` and `ironrail stats`, in a page of shared memory (in `/dev/shm`) that only its user can read.
    stats_page: bool = "STATS_PAGE", ValueKind::Switch, "1", shared false;
    /// The file to which each process writes its counters (JSON) when one of its endpoints closes, and as it ends by exit(3). `%p` stands for the process id, `%h` for the host name. Without them the processes of a job replace each other's file. Unset: no file.
    stats_file: Option<PathBuf> = "STATS_FILE", ValueKind::Path, "", shared false;
    /// The name of the job. Peers with another name, or with none, get no answer, and their connect times out: so set the same name on all ranks.
    job: String = "JOB", ValueKind::Text, "", shared false;
    /// The least severe level of lines that are passed to NCCL's log. NCCL_DEBUG filters them again. An optimised build has no lines of level trace.
    log_level: LevelFilter = "LOG_LEVEL", ValueKind::Choice(&["off", "error", "warn", "info", "debug", "trace"]), "info", shared false;
}

/// Settings of aws-ofi-nccl that have the same meaning as one of ours.
pub(crate) const ALIASES: &[(&str, &str)] = &[
    ("OFI_NCCL_MIN_STRIPE_SIZE", "STRIPE_MIN"),
    ("OFI_NCCL_FORCE_NUM_RAILS", "MAX_RAILS"),
    ("OFI_NCCL_CQ_SIZE", "CQ_ENTRIES"),
    ("OFI_NCCL_EAGER_MAX_SIZE", "INLINE_MAX_SIZE"),
];

/// NCCL's variable for the protocols that its kernels may use (NCCL src/graph/tuning.cc:453).
pub(crate) const PROTOCOLS: &str = "NCCL_PROTO";
/// NCCL's variable for a topology file, which supplements sysfs (NCCL src/graph/topo.cc, ncclTopoGetSystem).
pub(crate) const TOPOLOGY_FILE: &str = "NCCL_TOPO_FILE";
/// Prefixes of variables that only Ironrail's own tests read. The plugin sees them in a test's environment, and does not warn of them.
const OTHERS: &[&str] = &["TEST_", "GROUP_TEST_"];
/// The group library's variables, which are there as well.
const GROUP: &[&str] = &["GROUP_COORDINATOR", "GROUP_TOKEN"];
const ALIAS_PREFIX: &str = "OFI_NCCL_";
/// Prefixes of libfabric's variables, and of those of a library that it loads.
const PROVIDER_PREFIXES: &[&str] = &["FI_", "IPATH_"];
const RAILS_MAX: u64 = MAX_DATA_RAILS as u64;
const CONTROL_RAILS_MAX: u64 = MAX_CONTROL_RAILS as u64;
/// Enough for a few hundred connections with full windows; past that irecv returns NULL. Most providers use 64 bytes for an entry.
const CQ_ENTRIES_DEFAULT: usize = 16_384;
/// An entry for each operation that an endpoint may have in flight on a NIC, and for each arrival of the smallest budget: with fewer
/// entries a queue could overrun.
const CQ_ENTRIES_MIN: u64 = OPERATIONS_MAX as u64 + CAPACITY_MIN as u64;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// A line for the log about the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) level: Level,
    pub(crate) text: String,
}

impl Config {
    /// Reads the environment, and logs the notes about it. NCCL has set the variables of its files by then: the one that NCCL_CONF_FILE names,
    /// or else ~/.nccl.conf, and /etc/nccl.conf (NCCL src/misc/param.cc, initEnvFunc).
    pub(crate) fn read() -> Result<Self, StartError> {
        let config = Self::from_variables(variables())?;
        log::set_max_level(config.log_level);
        for note in &config.notes {
            log::log!(note.level, "{}", note.text);
        }
        if !config.given.is_empty() {
            log::info!("settings: {}", config.given());
        }
        Ok(config)
    }

    /// The configuration of these variables. An empty value counts as unset: some scripts clear variables by setting them empty.
    pub(crate) fn from_variables<V: Into<OsString>>(
        variables: impl IntoIterator<Item = (String, V)>,
    ) -> Result<Self, StartError> {
        let variables = variables.into_iter().map(|(name, value)| (name, value.into()));
        let variables: BTreeMap<String, OsString> =
            variables.filter(|(_, value)| !value.is_empty()).collect();
        let mut texts = Texts::default();
        let mut notes = Vec::new();
        for (name, value) in &variables {
            if let Some(rest) = name.strip_prefix(PREFIX) {
                match setting(rest) {
                    Some(setting) => texts.put(setting, value),
                    None if OTHERS.iter().any(|prefix| rest.starts_with(prefix)) => {}
                    None if GROUP.contains(&rest) => {}
                    None => notes.push(Note { level: Level::Warn, text: unknown(name) }),
                }
            }
        }
        apply_aliases(&variables, &mut texts, &mut notes);
        let mut config = Self::from_texts(&texts)?;
        config.notes = notes;
        config.given = texts.0.into_iter().map(|(name, value)| (name, shown(&value))).collect();
        config.protocols = variables.get(PROTOCOLS).map(shown);
        config.topology_file = variables.get(TOPOLOGY_FILE).map(shown);
        config.fingerprint = config.print();
        let is_providers =
            |name: &str| PROVIDER_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        let providers = variables.into_iter().filter(|(name, _)| is_providers(name));
        config.provider_variables = providers.map(|(name, value)| (name, shown(&value))).collect();
        Ok(config)
    }

    #[cfg(test)]
    /// The notes about the settings.
    pub(crate) fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// The settings that were given, by full name, in the order of the names.
    pub(crate) fn given(&self) -> String {
        self.given
            .iter()
            .map(|(name, value)| format!("{PREFIX}{name}={value}"))
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// The value of a variable of libfabric's (FI_…), or of a library that it loads.
    pub(crate) fn provider_variable(&self, name: &str) -> Option<&str> {
        self.provider_variables.get(name).map(String::as_str)
    }

    /// The user's NCCL_PROTO.
    pub(crate) fn protocols(&self) -> Option<&str> {
        self.protocols.as_deref()
    }

    /// The user's NCCL_TOPO_FILE.
    pub(crate) fn topology_file(&self) -> Option<&str> {
        self.topology_file.as_deref()
    }

    /// The size of each completion queue.
    pub(crate) fn cq_entries_or_default(&self) -> usize {
        if self.cq_entries == 0 { CQ_ENTRIES_DEFAULT } else { self.cq_entries }
    }

    /// Where this process writes its counters.
    pub(crate) fn stats_path(&self, process: u32, host: &str) -> Option<PathBuf> {
        let mut rest = self.stats_file.as_ref()?.as_os_str().as_bytes();
        let mut path = Vec::with_capacity(rest.len());
        loop {
            rest = match rest {
                [b'%', b'p', after @ ..] => {
                    path.extend(process.to_string().bytes());
                    after
                }
                [b'%', b'h', after @ ..] => {
                    path.extend(host.bytes());
                    after
                }
                [byte, after @ ..] => {
                    path.push(*byte);
                    after
                }
                [] => break,
            };
        }
        Some(OsString::from_vec(path).into())
    }

    /// The settings that endpoints use.
    pub(crate) fn of_endpoints(&self) -> Settings {
        Settings {
            force_fin: self.force_fin,
            failover: self.failover,
            largest_write: self.largest_write,
            stripe_bytes_min: self.stripe_bytes_min,
            connect_timeout: self.connect_timeout,
            connect_warn: self.connect_warn,
            peer_timeout: self.peer_timeout,
            close_timeout: self.close_timeout,
            stall_report: self.stall_report,
            inline_bytes_max: u16::try_from(self.inline_bytes_max.min(4096)).unwrap_or(4096),
            cq_entries: self.cq_entries_or_default(),
            job: self.job.clone(),
            fingerprint: self.fingerprint,
            shared: shared().map(|setting| format!("{PREFIX}{}", setting.name)).collect(),
        }
    }

    /// One byte for each setting that should be the same on all ranks, in the order of the table.
    fn print(&self) -> Fingerprint {
        let mut print = [0; FINGERPRINT_BYTES];
        for (byte, setting) in print.iter_mut().zip(shared()) {
            let given = self.given.iter().find(|(name, _)| *name == setting.name);
            let text = given.map_or(setting.default, |(_, value)| value);
            let canonical = setting.kind.parse(text).map(|value| format!("{value:?}"));
            *byte = fold(canonical.unwrap_or_default().as_bytes());
        }
        print
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::from_variables::<String>([])
            .expect("the setting accepts its default, as a test shows")
    }
}

/// The environment.
fn variables() -> impl Iterator<Item = (String, OsString)> {
    std::env::vars_os().map(|(name, value)| (shown(&name), value))
}

/// A value as text, with invalid UTF-8 replaced. Only paths are used with their original bytes.
fn shown(value: &OsString) -> String {
    value.to_string_lossy().into_owned()
}

type Fingerprint = [u8; FINGERPRINT_BYTES];

fn shared() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(|setting| setting.shared)
}

/// FNV-1a, folded to a byte. Peers compute it on their own, so it must not change between builds.
fn fold(bytes: &[u8]) -> u8 {
    let hash = fnv1a(bytes.iter().copied());
    hash.to_le_bytes().iter().fold(0, |folded, byte| folded ^ byte)
}

fn setting(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// The values given, by name without prefix.
#[derive(Debug, Default)]
struct Texts(BTreeMap<&'static str, OsString>);

impl Texts {
    fn put(&mut self, setting: &'static Setting, value: impl AsRef<OsStr>) {
        self.0.insert(setting.name, value.as_ref().to_owned());
    }

    fn parsed(&self, name: &str) -> Result<Value, StartError> {
        let setting = setting(name).expect("the same macro made the table");
        let value = self.0.get(name).map_or_else(|| setting.default.as_ref(), OsString::as_os_str);
        let refused =
            || StartError::Setting { setting, given: value.to_string_lossy().into_owned() };
        setting.kind.parse(value).ok_or_else(refused)
    }
}

/// Applies aws-ofi-nccl's settings where ours are not given. A value that cannot be used is only noted: it was not meant for this plugin.
fn apply_aliases(variables: &BTreeMap<String, OsString>, texts: &mut Texts, notes: &mut Vec<Note>) {
    let mut ignored = Vec::new();
    for (name, value) in variables.iter().filter(|(name, _)| name.starts_with(ALIAS_PREFIX)) {
        let Some((_, ours)) = ALIASES.iter().find(|(alias, _)| alias == name) else {
            ignored.push(name.as_str());
            continue;
        };
        let setting = setting(ours).expect("every alias names a setting, as a test shows");
        let value = &value.to_string_lossy();
        let value = of_alias(setting, value);
        let note = if texts.0.contains_key(ours) {
            format!("{name} is ignored: {PREFIX}{ours} is set")
        } else if setting.kind.parse(value).is_some() {
            texts.put(setting, value);
            format!("{name}={value} is used as {PREFIX}{ours}={value}")
        } else {
            format!("{name}={value} is ignored: {PREFIX}{ours} takes {}", setting.kind.accepted())
        };
        notes.push(Note { level: Level::Info, text: note });
    }
    if !ignored.is_empty() {
        let text = format!("ignored, since no setting has the same meaning: {}", ignored.join(" "));
        notes.push(Note { level: Level::Info, text });
    }
}

/// The value of an alias for our setting: in aws-ofi-nccl -1 turns inline messages off.
fn of_alias<'a>(setting: &Setting, value: &'a str) -> &'a str {
    if value == "-1" && setting.name == "INLINE_MAX_SIZE" { "0" } else { value }
}

fn unknown(name: &str) -> String {
    let rest = name.strip_prefix(PREFIX).unwrap_or(name);
    let names = SETTINGS.iter().map(|setting| setting.name).chain(GROUP.iter().copied());
    let nearest = names.map(|name| (distance(rest, name), name)).min();
    match nearest {
        // A short name is two changes away from many others, so its length bounds the distance too.
        Some((steps, nearest)) if steps <= 2.max(rest.len() / 3).min(rest.len() / 2) => {
            format!(
                "{name} is not a setting of Ironrail and is ignored: did you mean {PREFIX}{nearest}?"
            )
        }
        _ => format!(
            "{name} is not a setting of Ironrail and is ignored: `ironrail explain` lists them"
        ),
    }
}

/// The Levenshtein distance of two names.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (above, letter) in from.chars().enumerate() {
        let mut corner = row[0];
        row[0] = above + 1;
        for (place, other) in to.iter().enumerate() {
            let change = corner + usize::from(letter != *other);
            corner = row[place + 1];
            row[place + 1] = change.min(corner + 1).min(row[place] + 1);
        }
    }
    row[to.len()]
}

/// Whether the test that compares docs/configuration.md writes the page instead.
#[cfg(test)]
pub(super) fn updates_docs() -> bool {
    std::env::var_os("UPDATE_DOCS").is_some()
}

#[cfg(test)]
mod tests;
