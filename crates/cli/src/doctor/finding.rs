//! A finding: what was checked, what was found, what to do.

use serde::{Deserialize, Serialize};

use super::machine::Pair;

/// The severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Level {
    /// No problem.
    #[serde(rename = "ok")]
    Ok,
    /// It works, but slower or less reliably than it could.
    #[serde(rename = "warn")]
    Warn,
    /// A job would fail, or run over sockets.
    #[serde(rename = "FAIL")]
    Fail,
}

impl Level {
    /// The word in reports.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }
}

/// The result of a check of one or several machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// Subject and check, as `plugin.found`: docs/doctor.md lists them.
    pub(crate) check: String,
    pub(crate) level: Level,
    /// What was checked.
    pub(crate) looked_at: String,
    /// What was found there.
    pub(crate) found: String,
    /// What to do; None if nothing is wrong.
    #[serde(rename = "do", skip_serializing_if = "Option::is_none", default)]
    pub(crate) cure: Option<String>,
    /// The ranks to which the finding applies, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) ranks: Vec<usize>,
    /// The messages between ranks that have failed, or have wrong bytes.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(crate) pairs: Vec<Pair>,
}

impl Finding {
    /// A finding without a problem.
    pub(crate) fn ok(check: &str, looked_at: impl Into<String>, found: impl Into<String>) -> Self {
        let (looked_at, found) = (looked_at.into(), found.into());
        let check = check.to_owned();
        let (ranks, pairs) = (Vec::new(), Vec::new());
        Self { check, level: Level::Ok, looked_at, found, cure: None, ranks, pairs }
    }

    /// A finding of something that works, but not as well as it could.
    pub(crate) fn warn(
        check: &str,
        looked_at: impl Into<String>,
        found: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        Self { level: Level::Warn, cure: Some(cure.into()), ..Self::ok(check, looked_at, found) }
    }

    /// A finding of something that does not work.
    pub(crate) fn fail(
        check: &str,
        looked_at: impl Into<String>,
        found: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        Self { level: Level::Fail, cure: Some(cure.into()), ..Self::ok(check, looked_at, found) }
    }
}
