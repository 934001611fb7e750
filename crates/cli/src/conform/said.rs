//! The answers of a worker to the supervisor.

use serde::{Deserialize, Serialize};

/// The result of a behaviour, as one process saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Pass,
    Fail(String),
    Skip(String),
    /// The other process has ended, and reports the reason.
    Left,
}

/// What a worker reports at its end. Only the end of its process closes the plugin's objects, so the other process sees a failure later
/// than this report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TimedVerdict {
    pub(super) verdict: Verdict,
    /// Nanoseconds since 1970, to order the reports of two processes.
    pub(super) at: u64,
}

/// What a plugin's file contains.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Contents {
    pub(super) name: String,
    pub(super) path: String,
    pub(super) tables: Vec<u32>,
}

/// An answer of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Said {
    /// The current step.
    Stage(String),
    Verdict(TimedVerdict),
    Contents(Contents),
}
