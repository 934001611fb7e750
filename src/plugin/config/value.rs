//! The kinds of values that settings accept: parsing, and their descriptions.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use log::LevelFilter;

use crate::types::Protocol;

/// What a setting accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueKind {
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

/// Whether 0 is accepted below `min`, and its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Zero {
    Refused,
    Means(&'static str),
}

impl ValueKind {
    pub(super) fn parse(self, value: impl AsRef<OsStr>) -> Option<Value> {
        let text = &*value.as_ref().to_string_lossy();
        match self {
            Self::Text => Some(Value::Text(text.to_owned())),
            // A path may have any bytes.
            Self::Path => Some(Value::Path(value.as_ref().into())),
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

    /// A description of what it accepts, to follow "give".
    pub(crate) fn accepted(self) -> String {
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

/// Whether rails access GPU memory directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceMemory {
    /// Where possible.
    Auto,
    Off,
    /// Where possible, with a warning elsewhere.
    On,
}

/// A parsed value, before it becomes a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Text(String),
    Path(PathBuf),
    List(Vec<String>),
    Switch(bool),
    Number(u64),
}

const MISMATCH: &str = "the field's type fits its row's kind, as reading the defaults shows";

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
        match value {
            Value::Path(path) => Some(path).filter(|path| !path.as_os_str().is_empty()),
            _ => panic!("{MISMATCH}"),
        }
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

impl From<Value> for DeviceMemory {
    fn from(value: Value) -> Self {
        match value.text().as_str() {
            "auto" => Self::Auto,
            "0" => Self::Off,
            "1" => Self::On,
            _ => panic!("{MISMATCH}"),
        }
    }
}

impl From<Value> for Option<Protocol> {
    fn from(value: Value) -> Self {
        match value.text().as_str() {
            "auto" => None,
            "rdma" => Some(Protocol::Rdma),
            "sendrecv" => Some(Protocol::Sendrecv),
            _ => panic!("{MISMATCH}"),
        }
    }
}

impl From<Value> for LevelFilter {
    fn from(value: Value) -> Self {
        value.text().parse().expect(MISMATCH)
    }
}
