//! A setting as a row of the table.

use super::value::ValueKind;

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// Without the prefix.
    pub(crate) name: &'static str,
    pub(crate) kind: ValueKind,
    /// As a user would write it. Empty means unset.
    pub(crate) default: &'static str,
    pub(crate) doc: &'static str,
    /// Whether it should be the same on all ranks. Such settings are in the fingerprint.
    pub(crate) shared: bool,
}

impl Setting {
    pub(crate) fn shown_default(&self) -> &'static str {
        if self.default.is_empty() { "unset" } else { self.default }
    }
}
