//! The settings: one table, read once.
//!
//! - The environment is read in [`Config::read`] and nowhere else; all else here is pure.
//! - The table makes [`Config`], the sentences about wrong values and names, and docs/configuration.md.
//! - A wrong value fails the start: a job that runs on another setting than its user asked for is worse. A name that is not
//!   known is a warning, since it may belong to another version.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use log::{Level, LevelFilter};
use proto::limits::{MAX_CONTROL_RAILS, MAX_DATA_RAILS};

use crate::error::{Error, Kind as ErrorKind, Result};

/// Before each of our names.
pub(crate) const PREFIX: &str = "IRONRAIL_";

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// Without the prefix.
    pub(crate) name: &'static str,
    pub(crate) takes: Takes,
    /// As a user would write it. Empty: unset.
    pub(crate) default: &'static str,
    pub(crate) doc: &'static str,
    /// Whether peers that differ in it work worse together; such settings are in the fingerprint.
    pub(crate) shared: bool,
}

/// What a setting accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    Text,
    Path,
    /// Separated by commas.
    List,
    Switch,
    Number {
        min: u64,
        max: u64,
        zero: Zero,
    },
    /// With K, M or G for powers of 1024.
    Bytes {
        min: u64,
        max: u64,
        zero: Zero,
    },
    Milliseconds {
        min: u64,
        max: u64,
    },
    Choice(&'static [&'static str]),
}

/// Whether 0 is accepted below `min`, and what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Zero {
    Refused,
    Means(&'static str),
}

/// Makes the typed [`Config`] and the table [`SETTINGS`] from the same rows.
macro_rules! settings {
    ($( $(#[doc = $doc:literal])+ $field:ident: $kind:ty = $name:literal, $takes:expr, $default:literal, shared $shared:literal; )+) => {
        /// Every setting, with its type.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct Config {
            $( $(#[doc = $doc])+ pub(crate) $field: $kind, )+
            notes: Vec<Note>,
            given: Vec<(&'static str, String)>,
            provider_variables: BTreeMap<String, String>,
        }

        pub(crate) const SETTINGS: &[Setting] = &[
            $( Setting { name: $name, takes: $takes, default: $default, doc: concat!($($doc),+), shared: $shared }, )+
        ];

        impl Config {
            fn from_texts(texts: &Texts) -> Result<Self> {
                Ok(Self {
                    $( $field: <$kind>::from(texts.parsed($name)?), )+
                    notes: Vec::new(),
                    given: Vec::new(),
                    provider_variables: BTreeMap::new(),
                })
            }
        }
    };
}

settings! {
    /// The libfabric to load: a file, or a name for the dynamic loader. Unset: `libfabric.so.1`.
    libfabric: Option<PathBuf> = "LIBFABRIC", Takes::Path, "", shared false;
    /// The provider, by libfabric's name for it: `net`, `tcp`, `tcp;ofi_rxm`, `sockets`, `shm`, `efa`, `cxi`, `verbs;ofi_rxm`. Unset: the best one found.
    provider: Option<String> = "PROVIDER", Takes::Text, "", shared true;
    /// The rails, by source address (`127.0.0.1,127.0.0.2`) or by interface (`eth0,eth1`); all of them make one device. Unset: every interface but loopback, link-local, docker and bridges, which serve when there is nothing else.
    rails: Vec<String> = "RAILS", Takes::List, "", shared false;
    /// The most data rails in one device.
    max_rails: usize = "MAX_RAILS", Takes::Number { min: 1, max: RAILS_MAX, zero: Zero::Refused }, "4", shared true;
    /// The most control rails in one device. There is one per NIC, up to this number.
    max_control_rails: usize = "MAX_CONTROL_RAILS", Takes::Number { min: 1, max: CONTROL_RAILS_MAX, zero: Zero::Refused }, "4", shared true;
    /// Never use immediates: a fin line ends each message instead.
    force_fin: bool = "FORCE_FIN", Takes::Switch, "0", shared true;
    /// The most bytes in one write. Smaller ones cut messages into more parts; for tests.
    largest_write: u64 = "LARGEST_WRITE", Takes::Bytes { min: 128, max: 1 << 40, zero: Zero::Means("what the provider allows") }, "0", shared true;
    /// A message of at least this many bytes is cut over the rails; a shorter one travels whole, on the rails in turn.
    stripe_bytes_min: usize = "STRIPE_MIN", Takes::Bytes { min: 128, max: 1 << 40, zero: Zero::Refused }, "128K", shared true;
    /// Ask for basic registration (`FI_MR_BASIC`), which gives virtual addresses and provider keys on providers that otherwise use offsets.
    basic_regions: bool = "BASIC_REGIONS", Takes::Switch, "0", shared true;
    /// How long connect and accept wait for the peer before they fail.
    connect_timeout: Duration = "CONNECT_TIMEOUT_MS", Takes::Milliseconds { min: 1, max: DAY_MS }, "600000", shared false;
    /// After how long the log says whom connect or accept is waiting for.
    connect_warn: Duration = "CONNECT_WARN_MS", Takes::Milliseconds { min: 1, max: DAY_MS }, "30000", shared false;
    /// How long an operation that was posted may stay without its completion before its connection fails.
    peer_timeout: Duration = "PEER_TIMEOUT_MS", Takes::Milliseconds { min: 1, max: DAY_MS }, "600000", shared false;
    /// How long close waits for operations in flight.
    close_timeout: Duration = "CLOSE_TIMEOUT_MS", Takes::Milliseconds { min: 0, max: DAY_MS }, "2000", shared false;
    /// Entries of each completion queue.
    cq_entries: usize = "CQ_ENTRIES", Takes::Number { min: 64, max: 1 << 20, zero: Zero::Means("16384") }, "0", shared false;
    /// How many turns of progress must find nothing before a done that is owed travels alone. 0: at once.
    lone_done_turns: u32 = "LONE_DONE_TURNS", Takes::Number { min: 0, max: 1 << 20, zero: Zero::Refused }, "128", shared false;
    /// Adverts may wait for one another, to travel in one write. Off: each goes at once.
    advert_batching: bool = "ADVERT_BATCHING", Takes::Switch, "1", shared true;
    /// Where each process writes its counters when the plugin is finalized: text, one counter per line. `%p` stands for the process id, `%h` for the host name.
    stats_file: Option<PathBuf> = "STATS_FILE", Takes::Path, "", shared false;
    /// The name of the job. Peers of a job with another name are refused.
    job: String = "JOB", Takes::Text, "", shared false;
    /// What of our log goes to NCCL's. NCCL_DEBUG filters it again.
    log_level: LevelFilter = "LOG_LEVEL", Takes::Choice(&["off", "error", "warn", "info", "debug", "trace"]), "info", shared false;
}

/// Names of aws-ofi-nccl whose meaning is equal to one of ours, and ours.
pub(crate) const ALIASES: &[(&str, &str)] = &[
    ("OFI_NCCL_MIN_STRIPE_SIZE", "STRIPE_MIN"),
    ("OFI_NCCL_FORCE_NUM_RAILS", "MAX_RAILS"),
    ("OFI_NCCL_CQ_SIZE", "CQ_ENTRIES"),
];

/// Our tests' own, which a plugin under test sees as well.
const TEST_PREFIX: &str = "TEST_";
const ALIAS_PREFIX: &str = "OFI_NCCL_";
const PROVIDER_PREFIX: &str = "FI_";
const RAILS_MAX: u64 = MAX_DATA_RAILS as u64;
const CONTROL_RAILS_MAX: u64 = MAX_CONTROL_RAILS as u64;
/// A few hundred connections with full windows; the backlog keeps what goes beyond. 64 bytes each in most providers.
const CQ_ENTRIES_DEFAULT: usize = 16_384;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// A line for the log that reading the settings gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) level: Level,
    pub(crate) text: String,
}

impl Config {
    /// Reads the environment, and logs what reading it gave. NCCL has put what /etc/nccl.conf and NCCL_CONF_FILE say there
    /// by then.
    pub(crate) fn read() -> Result<Self> {
        let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        let variables = std::env::vars_os().map(|(name, value)| (lossy(name), lossy(value)));
        let config = Self::from_variables(variables)?;
        log::set_max_level(config.log_level);
        for note in &config.notes {
            log::log!(note.level, "{}", note.text);
        }
        if !config.given.is_empty() {
            log::info!("settings: {}", config.given());
        }
        Ok(config)
    }

    /// An empty value is an unset one, as scripts write it.
    pub(crate) fn from_variables(
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self> {
        let variables: BTreeMap<String, String> =
            variables.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        let mut texts = Texts::default();
        let mut notes = Vec::new();
        for (name, value) in &variables {
            if let Some(rest) = name.strip_prefix(PREFIX) {
                match setting(rest) {
                    Some(setting) => texts.put(setting, value),
                    None if rest.starts_with(TEST_PREFIX) => {}
                    None => notes.push(Note { level: Level::Warn, text: unknown(name) }),
                }
            }
        }
        take_aliases(&variables, &mut texts, &mut notes);
        let mut config = Self::from_texts(&texts)?;
        config.notes = notes;
        config.given = texts.0.into_iter().collect();
        config.provider_variables =
            variables.into_iter().filter(|(name, _)| name.starts_with(PROVIDER_PREFIX)).collect();
        Ok(config)
    }

    /// What is to be logged about the settings, once there is a log.
    pub(crate) fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// The settings that somebody gave, by full name, in the order of the names.
    pub(crate) fn given(&self) -> String {
        self.given
            .iter()
            .map(|(name, value)| format!("{PREFIX}{name}={value}"))
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// The value of one of libfabric's own variables (FI_…).
    pub(crate) fn provider_variable(&self, name: &str) -> Option<&str> {
        self.provider_variables.get(name).map(String::as_str)
    }

    /// The size asked of each completion queue.
    pub(crate) fn cq_entries_or_default(&self) -> usize {
        if self.cq_entries == 0 { CQ_ENTRIES_DEFAULT } else { self.cq_entries }
    }

    /// Where this process writes its counters.
    pub(crate) fn stats_path(&self, process: u32, host: &str) -> Option<PathBuf> {
        let pattern = self.stats_file.as_ref()?.to_string_lossy();
        Some(pattern.replace("%p", &process.to_string()).replace("%h", host).into())
    }

    /// A byte for each setting that peers should share, in the order of the table: see [`differing`].
    pub(crate) fn fingerprint(&self) -> u64 {
        let bytes = shared().map(|setting| {
            let given = self.given.iter().find(|(name, _)| *name == setting.name);
            let text = given.map_or(setting.default, |(_, value)| value);
            let canonical = setting.takes.parse(text).map(|value| format!("{value:?}"));
            fold(canonical.unwrap_or_default().as_bytes())
        });
        bytes.fold(0, |print, byte| print << 8 | u64::from(byte))
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::from_variables([]).expect("every default is one the setting accepts, as a test shows")
    }
}

/// The full names of the settings in which two fingerprints of one version differ. One in 256 differences goes unseen.
pub(crate) fn differing(ours: u64, theirs: u64) -> Vec<String> {
    let last = shared().count() - 1;
    shared()
        .enumerate()
        .filter(|(place, _)| (ours ^ theirs) >> (8 * (last - place)) & 0xff != 0)
        .map(|(_, setting)| format!("{PREFIX}{}", setting.name))
        .collect()
}

fn shared() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(|setting| setting.shared)
}

/// FNV-1a, folded to a byte. Peers compute it on their own, so it must not change between builds.
fn fold(bytes: &[u8]) -> u8 {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.to_le_bytes().iter().fold(0, |folded, byte| folded ^ byte)
}

fn setting(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// The values given, by name without prefix.
#[derive(Debug, Default)]
struct Texts(BTreeMap<&'static str, String>);

impl Texts {
    fn put(&mut self, setting: &'static Setting, value: &str) {
        self.0.insert(setting.name, value.to_owned());
    }

    fn parsed(&self, name: &str) -> Result<Value> {
        let setting = setting(name).expect("the macro that asks made the table");
        let text = self.0.get(name).map_or(setting.default, String::as_str);
        setting.takes.parse(text).ok_or_else(|| {
            let accepted = setting.takes.accepted();
            let default = setting.shown_default();
            let sentence = format!(
                "{PREFIX}{name}={text} is not a value Ironrail can use: give {accepted}, or unset it (default: {default})"
            );
            Error::new(ErrorKind::InvalidUsage, sentence)
        })
    }
}

/// Takes the peer's names where ours were not given. What we cannot use of them is a note: it was not said to us.
fn take_aliases(variables: &BTreeMap<String, String>, texts: &mut Texts, notes: &mut Vec<Note>) {
    let mut ignored = Vec::new();
    for (name, value) in variables.iter().filter(|(name, _)| name.starts_with(ALIAS_PREFIX)) {
        let Some((_, ours)) = ALIASES.iter().find(|(alias, _)| alias == name) else {
            ignored.push(name.as_str());
            continue;
        };
        let setting = setting(ours).expect("every alias names a setting, as a test shows");
        let note = if texts.0.contains_key(ours) {
            format!("{name} is ignored: {PREFIX}{ours} is set")
        } else if setting.takes.parse(value).is_some() {
            texts.put(setting, value);
            format!("{name}={value} is taken as {PREFIX}{ours}={value}")
        } else {
            format!("{name}={value} is ignored: {PREFIX}{ours} takes {}", setting.takes.accepted())
        };
        notes.push(Note { level: Level::Info, text: note });
    }
    if !ignored.is_empty() {
        let text = format!("ignored, since no setting here means the same: {}", ignored.join(" "));
        notes.push(Note { level: Level::Info, text });
    }
}

fn unknown(name: &str) -> String {
    let rest = name.strip_prefix(PREFIX).unwrap_or(name);
    let nearest = SETTINGS.iter().map(|setting| (distance(rest, setting.name), setting.name)).min();
    match nearest {
        Some((steps, nearest)) if steps <= 2.max(rest.len() / 3) => {
            format!(
                "{name} is not a setting of Ironrail and is ignored: did you mean {PREFIX}{nearest}?"
            )
        }
        _ => format!(
            "{name} is not a setting of Ironrail and is ignored: docs/configuration.md lists them"
        ),
    }
}

/// How many letters to put in, leave out or change (Levenshtein).
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

impl Setting {
    fn shown_default(&self) -> &'static str {
        if self.default.is_empty() { "unset" } else { self.default }
    }
}

impl Takes {
    fn parse(self, text: &str) -> Option<Value> {
        match self {
            Self::Text | Self::Path => Some(Value::Text(text.to_owned())),
            Self::List => parse_list(text).map(Value::List),
            Self::Switch => match text.to_ascii_lowercase().as_str() {
                "1" | "true" | "yes" | "on" => Some(Value::Switch(true)),
                "0" | "false" | "no" | "off" => Some(Value::Switch(false)),
                _ => None,
            },
            Self::Number { min, max, zero } => within(text.parse().ok()?, min, max, zero),
            Self::Bytes { min, max, zero } => within(parse_bytes(text)?, min, max, zero),
            Self::Milliseconds { min, max } => within(text.parse().ok()?, min, max, Zero::Refused),
            Self::Choice(words) => {
                let text = text.to_ascii_lowercase();
                words.contains(&text.as_str()).then_some(Value::Text(text))
            }
        }
    }

    /// What it accepts, to stand after "give".
    fn accepted(self) -> String {
        let or_zero = |zero| match zero {
            Zero::Refused => String::new(),
            Zero::Means(what) => format!(", or 0 for {what}"),
        };
        match self {
            Self::Text => "a text".into(),
            Self::Path => "a path".into(),
            Self::List => "a list separated by commas, without empty places or repetitions".into(),
            Self::Switch => "0 or 1".into(),
            Self::Number { min, max, zero } => {
                format!("a whole number from {min} to {max}{}", or_zero(zero))
            }
            Self::Bytes { min, max, zero } => {
                format!("bytes from {} to {}{}", shown_bytes(min), shown_bytes(max), or_zero(zero))
            }
            Self::Milliseconds { min, max } => format!("milliseconds from {min} to {max}"),
            Self::Choice(words) => format!("one of {}", words.join(", ")),
        }
    }
}

fn parse_list(text: &str) -> Option<Vec<String>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let places: Vec<String> = text.split(',').map(|place| place.trim().to_owned()).collect();
    let good = |(at, place): (usize, &String)| !place.is_empty() && !places[..at].contains(place);
    places.iter().enumerate().all(good).then_some(places)
}

fn parse_bytes(text: &str) -> Option<u64> {
    let shift = match text.chars().last()?.to_ascii_uppercase() {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        _ => return text.parse().ok(),
    };
    let number: u64 = text[..text.len() - 1].parse().ok()?;
    number.checked_mul(1 << shift)
}

fn shown_bytes(bytes: u64) -> String {
    match bytes {
        0 => "0".into(),
        _ if bytes.is_multiple_of(1 << 30) => format!("{}G", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

fn within(number: u64, min: u64, max: u64, zero: Zero) -> Option<Value> {
    let is_zero = number == 0 && zero != Zero::Refused;
    (is_zero || (min..=max).contains(&number)).then_some(Value::Number(number))
}

/// A value the setting accepts, before it becomes a field.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Text(String),
    List(Vec<String>),
    Switch(bool),
    Number(u64),
}

const MISMATCH: &str = "the field's type fits what its row takes, as reading the defaults shows";

impl Value {
    fn number(self) -> u64 {
        match self {
            Self::Number(number) => number,
            _ => panic!("{MISMATCH}"),
        }
    }

    fn text(self) -> String {
        match self {
            Self::Text(text) => text,
            _ => panic!("{MISMATCH}"),
        }
    }
}

impl From<Value> for String {
    fn from(value: Value) -> Self {
        value.text()
    }
}

impl From<Value> for Option<String> {
    fn from(value: Value) -> Self {
        Some(value.text()).filter(|text| !text.is_empty())
    }
}

impl From<Value> for Option<PathBuf> {
    fn from(value: Value) -> Self {
        Option::<String>::from(value).map(PathBuf::from)
    }
}

impl From<Value> for Vec<String> {
    fn from(value: Value) -> Self {
        match value {
            Value::List(places) => places,
            _ => panic!("{MISMATCH}"),
        }
    }
}

impl From<Value> for bool {
    fn from(value: Value) -> Self {
        match value {
            Value::Switch(on) => on,
            _ => panic!("{MISMATCH}"),
        }
    }
}

impl From<Value> for u64 {
    fn from(value: Value) -> Self {
        value.number()
    }
}

impl From<Value> for u32 {
    fn from(value: Value) -> Self {
        Self::try_from(value.number()).unwrap_or(Self::MAX)
    }
}

impl From<Value> for usize {
    fn from(value: Value) -> Self {
        Self::try_from(value.number()).unwrap_or(Self::MAX)
    }
}

impl From<Value> for Duration {
    fn from(value: Value) -> Self {
        Self::from_millis(value.number())
    }
}

impl From<Value> for LevelFilter {
    fn from(value: Value) -> Self {
        value.text().parse().expect(MISMATCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::environment::WANTED;

    fn owned(variables: &[(&str, &str)]) -> Vec<(String, String)> {
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn config(variables: &[(&str, &str)]) -> Config {
        Config::from_variables(owned(variables)).unwrap()
    }

    /// The configuration with one setting given.
    fn with(name: &str, value: &str) -> Config {
        config(&[(&format!("{PREFIX}{name}"), value)])
    }

    fn refusal(name: &str, value: &str) -> String {
        Config::from_variables(owned(&[(&format!("{PREFIX}{name}"), value)])).unwrap_err().sentence
    }

    fn texts(config: &Config) -> Vec<&str> {
        config.notes().iter().map(|note| note.text.as_str()).collect()
    }

    #[test]
    fn an_empty_environment_gives_the_defaults() {
        let config = Config::default();
        assert_eq!(config.libfabric, None);
        assert_eq!(config.provider, None);
        assert!(config.rails.is_empty());
        assert_eq!((config.max_rails, config.max_control_rails), (4, 4));
        assert!(!config.force_fin && !config.basic_regions && config.advert_batching);
        assert_eq!(
            (config.largest_write, config.stripe_bytes_min, config.cq_entries),
            (0, 131_072, 0)
        );
        assert_eq!(config.connect_timeout, Duration::from_secs(600));
        assert_eq!(config.connect_warn, Duration::from_secs(30));
        assert_eq!(config.peer_timeout, Duration::from_secs(600));
        assert_eq!(config.close_timeout, Duration::from_secs(2));
        assert_eq!(config.lone_done_turns, 128);
        assert_eq!(config.stats_file, None);
        assert_eq!(config.job, "");
        assert_eq!(config.log_level, LevelFilter::Info);
        assert!(config.notes().is_empty());
        assert_eq!(config.given(), "");
    }

    #[test]
    fn each_setting_reaches_its_field() {
        assert_eq!(
            with("LIBFABRIC", "/opt/lib/libfabric.so.1").libfabric,
            Some("/opt/lib/libfabric.so.1".into())
        );
        assert_eq!(with("PROVIDER", "tcp;ofi_rxm").provider.as_deref(), Some("tcp;ofi_rxm"));
        assert_eq!(with("RAILS", "127.0.0.1, eth0").rails, ["127.0.0.1", "eth0"]);
        assert_eq!(with("MAX_RAILS", "2").max_rails, 2);
        assert_eq!(with("MAX_CONTROL_RAILS", "1").max_control_rails, 1);
        assert!(with("FORCE_FIN", "on").force_fin);
        assert_eq!(with("LARGEST_WRITE", "64k").largest_write, 65_536);
        assert_eq!(with("STRIPE_MIN", "1M").stripe_bytes_min, 1 << 20);
        assert!(with("BASIC_REGIONS", "true").basic_regions);
        assert_eq!(with("CONNECT_TIMEOUT_MS", "5000").connect_timeout, Duration::from_secs(5));
        assert_eq!(with("CONNECT_WARN_MS", "1").connect_warn, Duration::from_millis(1));
        assert_eq!(with("PEER_TIMEOUT_MS", "10").peer_timeout, Duration::from_millis(10));
        assert_eq!(with("CLOSE_TIMEOUT_MS", "0").close_timeout, Duration::ZERO);
        assert_eq!(with("CQ_ENTRIES", "4096").cq_entries_or_default(), 4096);
        assert_eq!(with("CQ_ENTRIES", "0").cq_entries_or_default(), 16_384);
        assert_eq!(with("LONE_DONE_TURNS", "0").lone_done_turns, 0);
        assert!(!with("ADVERT_BATCHING", "NO").advert_batching);
        assert_eq!(
            with("STATS_FILE", "/tmp/%h.%p").stats_path(7, "node"),
            Some("/tmp/node.7".into())
        );
        assert_eq!(with("JOB", "a job").job, "a job");
        assert_eq!(with("LOG_LEVEL", "Debug").log_level, LevelFilter::Debug);
    }

    #[test]
    fn a_wrong_value_is_refused_with_the_name_the_value_and_what_is_accepted() {
        assert_eq!(
            refusal("MAX_RAILS", "none"),
            "IRONRAIL_MAX_RAILS=none is not a value Ironrail can use: give a whole number from 1 to 16, or unset it (default: 4)"
        );
        for (name, value, accepted) in [
            ("MAX_RAILS", "0", "from 1 to 16"),
            ("MAX_CONTROL_RAILS", "5", "from 1 to 4"),
            ("FORCE_FIN", "2", "0 or 1"),
            ("LARGEST_WRITE", "127", "bytes from 128 to 1024G, or 0 for what the provider allows"),
            ("STRIPE_MIN", "0", "bytes from 128 to 1024G"),
            ("STRIPE_MIN", "99999999999G", "bytes from"),
            ("STRIPE_MIN", "é", "bytes from"),
            ("STRIPE_MIN", "K", "bytes from"),
            ("BASIC_REGIONS", "maybe", "0 or 1"),
            ("CONNECT_TIMEOUT_MS", "10 s", "milliseconds from 1"),
            ("CONNECT_WARN_MS", "-1", "milliseconds from 1"),
            ("PEER_TIMEOUT_MS", "0", "milliseconds from 1"),
            ("CLOSE_TIMEOUT_MS", "99999999999", "milliseconds from 0"),
            ("CQ_ENTRIES", "63", "from 64 to 1048576, or 0 for"),
            ("LONE_DONE_TURNS", "x", "from 0 to 1048576"),
            ("ADVERT_BATCHING", "y", "0 or 1"),
            ("RAILS", "127.0.0.1,,127.0.0.2", "a list separated by commas"),
            ("RAILS", "eth0,eth0", "without empty places or repetitions"),
            ("LOG_LEVEL", "loud", "one of off, error, warn, info, debug, trace"),
        ] {
            let sentence = refusal(name, value);
            assert!(sentence.contains(accepted), "{sentence}");
            assert!(sentence.starts_with(&format!("{PREFIX}{name}={value} ")), "{sentence}");
        }
    }

    #[test]
    fn an_empty_value_is_an_unset_one() {
        assert_eq!(with("MAX_RAILS", ""), Config::default());
    }

    #[test]
    fn an_unknown_name_is_told_its_nearest() {
        assert_eq!(
            texts(&with("MAXRAILS", "2")),
            [
                "IRONRAIL_MAXRAILS is not a setting of Ironrail and is ignored: did you mean IRONRAIL_MAX_RAILS?"
            ]
        );
        assert!(texts(&with("XYZ", "2"))[0].contains("docs/configuration.md"));
        assert_eq!(with("XYZ", "2").notes()[0].level, Level::Warn);
        assert!(with("TEST_PROFILE", "release").notes().is_empty());
    }

    #[test]
    fn the_distance_is_the_fewest_changes() {
        for (from, to, steps) in [
            ("", "", 0),
            ("", "ab", 2),
            ("kitten", "sitting", 3),
            ("RAIL", "RAILS", 1),
            ("ab", "ba", 2),
        ] {
            assert_eq!(distance(from, to), steps);
            assert_eq!(distance(to, from), steps);
        }
    }

    #[test]
    fn the_peers_names_are_taken_with_a_note_unless_ours_is_given() {
        let taken = config(&[("OFI_NCCL_FORCE_NUM_RAILS", "3"), ("OFI_NCCL_CQ_SIZE", "12288")]);
        assert_eq!((taken.max_rails, taken.cq_entries), (3, 12288));
        assert!(texts(&taken)[1].contains("taken as IRONRAIL_MAX_RAILS=3"));

        let ours = config(&[("OFI_NCCL_MIN_STRIPE_SIZE", "4096"), ("IRONRAIL_STRIPE_MIN", "8192")]);
        assert_eq!(ours.stripe_bytes_min, 8192);
        assert!(texts(&ours)[0].contains("is ignored: IRONRAIL_STRIPE_MIN is set"));

        let useless = config(&[("OFI_NCCL_FORCE_NUM_RAILS", "0"), ("OFI_NCCL_PROTOCOL", "RDMA")]);
        assert_eq!(useless.max_rails, 4);
        assert!(texts(&useless)[0].contains("OFI_NCCL_FORCE_NUM_RAILS=0 is ignored"));
        assert!(texts(&useless)[1].ends_with("OFI_NCCL_PROTOCOL"));
    }

    #[test]
    fn what_was_given_is_told_whoever_gave_it() {
        let config =
            config(&[("OFI_NCCL_CQ_SIZE", "128"), ("IRONRAIL_JOB", "seven"), ("PATH", "/bin")]);
        assert_eq!(config.given(), "IRONRAIL_CQ_ENTRIES=128 IRONRAIL_JOB=seven");
    }

    #[test]
    fn libfabrics_own_variables_are_kept() {
        let config = config(&[("FI_PROVIDER", "net"), ("HOME", "/root")]);
        assert_eq!(config.provider_variable("FI_PROVIDER"), Some("net"));
        assert_eq!(config.provider_variable("HOME"), None);
    }

    #[test]
    fn fingerprints_name_the_shared_settings_that_differ() {
        let plain = Config::default().fingerprint();
        assert!(differing(plain, plain).is_empty());
        assert_eq!(
            with("STRIPE_MIN", "131072").fingerprint(),
            plain,
            "the same value, written otherwise"
        );
        assert_eq!(with("CLOSE_TIMEOUT_MS", "1").fingerprint(), plain, "not shared");
        for (name, value) in [
            ("PROVIDER", "net"),
            ("MAX_RAILS", "2"),
            ("MAX_CONTROL_RAILS", "2"),
            ("FORCE_FIN", "1"),
            ("LARGEST_WRITE", "4K"),
            ("STRIPE_MIN", "64K"),
            ("BASIC_REGIONS", "1"),
            ("ADVERT_BATCHING", "0"),
        ] {
            assert_eq!(
                differing(plain, with(name, value).fingerprint()),
                [format!("{PREFIX}{name}")]
            );
        }
    }

    #[test]
    fn the_table_is_sound() {
        assert!(shared().count() <= 8, "the fingerprint has a byte for each");
        for (place, one) in SETTINGS.iter().enumerate() {
            assert!(
                SETTINGS[..place].iter().all(|other| other.name != one.name),
                "{} twice",
                one.name
            );
            assert!(one.takes.parse(one.default).is_some(), "{}", one.name);
            assert!(
                one.name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'),
                "{}",
                one.name
            );
        }
        for (alias, ours) in ALIASES {
            assert!(alias.starts_with(ALIAS_PREFIX) && setting(ours).is_some(), "{alias}");
        }
    }

    #[test]
    fn the_page_about_settings_is_made_from_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, page()).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == page(),
            "docs/configuration.md differs from the table: UPDATE_DOCS=1 scripts/test the_page_about"
        );
    }

    fn page() -> String {
        let mut page = String::from(PAGE_HEAD);
        page.push_str("\n| name | takes | default | |\n|---|---|---|---|\n");
        for setting in SETTINGS {
            let (name, doc, default) = (setting.name, setting.doc.trim(), setting.shown_default());
            let mark = if setting.shared { " ¹" } else { "" };
            page.push_str(&format!(
                "| `{PREFIX}{name}`{mark} | {} | {default} | {doc} |\n",
                setting.takes.accepted()
            ));
        }
        page.push_str(PAGE_ALIASES);
        for (alias, ours) in ALIASES {
            page.push_str(&format!("| `{alias}` | `{PREFIX}{ours}` |\n"));
        }
        page.push_str(PAGE_PROVIDERS);
        for wanted in WANTED {
            page.push_str(&format!(
                "| `{}` | {} | {} | {} |\n",
                wanted.name, wanted.value, wanted.provider, wanted.doc
            ));
        }
        page.push_str(PAGE_TAIL);
        page
    }

    const PAGE_HEAD: &str = "\
# Settings

Made from the table in `src/plugin/config.rs`; a test compares. To make it anew: `UPDATE_DOCS=1 scripts/test the_page_about`.

Settings are environment variables, read once per process when NCCL initialises the plugin. NCCL puts what
`/etc/nccl.conf` and the file named by `NCCL_CONF_FILE` say into the environment before, so they may stand there too. An
empty value is an unset one. A wrong value fails the start with one sentence that names the value and what is accepted; an
unknown name is one warning that names the nearest known one. Bytes may end in K, M or G, powers of 1024.
";

    const PAGE_ALIASES: &str = "
¹ Peers should agree in these. They compare them when they connect, and a difference is one warning that names it.

## Names of aws-ofi-nccl

Taken, with a note in the log, where the meaning is the same and our own name is not set:

| name | taken as |
|---|---|
";

    const PAGE_PROVIDERS: &str = "
A value of these that ours does not accept is ignored, with a note, and so is every other `OFI_NCCL_` name.
`OFI_NCCL_FORCE_NUM_RAILS` only caps here: it does not open a NIC twice.

## Variables of libfabric

Some providers can be told things only by variables, which they read when libfabric loads. These are set then, where
nobody gave them a value and the provider is not excluded by `IRONRAIL_PROVIDER`:

| name | value | provider | why |
|---|---|---|---|
";

    const PAGE_TAIL: &str = "
`FI_MR_CACHE_MONITOR` is left alone. It decides how libfabric notices that memory it has cached a registration of was
unmapped; tcp, sockets and shm pin nothing, so it says nothing there. On cxi and EFA sites choose differently
(`userfaultfd` or `kdreg2`), `memhooks` has been seen to deadlock, and none of this could be tried here: what you set stays.

`FI_PROVIDER` and `FI_TCP_IFACE` filter what libfabric shows us, before any setting above applies.
";
}
