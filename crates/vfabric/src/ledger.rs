//! The rules that a provider's user must keep, and the record of those that were broken.

use std::collections::BTreeMap;
use std::fmt;

macro_rules! rules {
    ($($(#[$doc:meta])* $rule:ident = $name:literal,)*) => {
        /// A rule that was broken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Rule {
            $($(#[$doc])* $rule,)*
        }

        impl Rule {
            /// Every rule, for settings and documentation.
            pub(crate) const ALL: &[Self] = &[$(Self::$rule),*];

            /// Its name in settings and reports.
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$rule => $name,)*
                }
            }
        }
    };
}

rules! {
    /// A descriptor of a region that is bound to another endpoint, or belongs to another domain.
    WrongDescriptor = "wrong_descriptor",
    /// A key of a region that is bound to another endpoint than the target.
    WrongKey = "wrong_key",
    /// A key or descriptor that never existed.
    Unknown = "unknown",
    /// A descriptor or key of a region that is not enabled.
    NotEnabled = "not_enabled",
    /// A descriptor, key or object after its close.
    Closed = "closed",
    /// A requested key that an open region of the domain has already, or that is longer than the key size.
    KeyTwice = "key_twice",
    /// Bytes outside a region.
    Bounds = "bounds",
    /// Bytes of a region that was not registered for this use, or of an endpoint that was not opened for it.
    Rights = "rights",
    /// No descriptor where FI_MR_LOCAL asks for one.
    NoDescriptor = "no_descriptor",
    /// A buffer freed, unregistered or changed before its operation had ended.
    FreedEarly = "freed_early",
    /// More completions than the queue was opened for, or arrivals between two polls than the profile keeps.
    Overrun = "overrun",
    /// An error of an endpoint without an event queue, over which the provider aborts the process.
    NoEventQueue = "no_event_queue",
    /// Two threads at once in objects that FI_THREAD_COMPLETION or FI_THREAD_DOMAIN serialises.
    Threads = "threads",
    /// An object closed while others depend on it.
    CloseOrder = "close_order",
    /// A region bound to an endpoint that is not enabled, bound twice, or enabled before it is bound. An address inserted into an address
    /// vector without an endpoint, where that needs one.
    BindOrder = "bind_order",
    /// A peer that is not, or no longer, in the address vector.
    UnknownPeer = "unknown_peer",
    /// An operation to a peer whose address was removed after an earlier one, and inserted again, where the peer goes on counting messages.
    ForgottenPeer = "forgotten_peer",
    /// A context that is missing, in use already or was written to, where FI_CONTEXT2 is in force.
    Context = "context",
    /// More bytes than the provider can inject, or move in one operation.
    TooLong = "too_long",
    /// Arguments that no manual page permits.
    Arguments = "arguments",
    /// A call after libfabric has begun to clean up, as the process ends.
    AfterCleanup = "after_cleanup",
}

/// The broken rules, with texts for the first ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    texts: Vec<(Rule, String)>,
    counts: BTreeMap<Rule, u64>,
    tolerated: Vec<Rule>,
    tolerated_count: u64,
}

impl Ledger {
    /// Rules of `tolerated` may be broken: they are counted apart.
    pub(crate) fn new(tolerated: Vec<Rule>) -> Self {
        Self { tolerated, ..Self::default() }
    }

    /// Records a broken rule.
    pub(crate) fn record(&mut self, rule: Rule, text: impl FnOnce() -> String) {
        if self.tolerated.contains(&rule) {
            self.tolerated_count += 1;
            return;
        }
        *self.counts.entry(rule).or_default() += 1;
        if self.texts.len() < TEXTS_MAX {
            self.texts.push((rule, text()));
        }
    }

    /// How many rules were broken.
    pub(crate) fn len(&self) -> u64 {
        self.counts.values().sum()
    }

    /// How often this rule was broken.
    pub(crate) fn of(&self, rule: Rule) -> u64 {
        self.counts.get(&rule).copied().unwrap_or(0)
    }

    /// How many tolerated ones were broken.
    pub(crate) fn tolerated(&self) -> u64 {
        self.tolerated_count
    }

    /// The first broken rules, in order.
    pub(crate) fn texts(&self) -> &[(Rule, String)] {
        &self.texts
    }
}

/// The most texts that are kept: one mistake may repeat with every operation.
const TEXTS_MAX: usize = 1000;

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tolerated_rule_is_counted_apart() {
        let mut ledger = Ledger::new(vec![Rule::Closed]);
        ledger.record(Rule::Closed, || "late".into());
        ledger.record(Rule::Bounds, || "far".into());
        assert_eq!((ledger.len(), ledger.tolerated(), ledger.of(Rule::Bounds)), (1, 1, 1));
        assert_eq!(ledger.texts(), [(Rule::Bounds, "far".to_owned())]);
    }
}
