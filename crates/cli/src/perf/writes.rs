//! Writes per message: the posts of all ranks, from whichever source counts them, over the messages delivered.

use serde::{Deserialize, Serialize};
use serde_json::{Map, json};

/// Accepted posts by kind. Receives are not counted: they send nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Posts {
    pub(super) writes: u64,
    pub(super) injected_writes: u64,
    pub(super) sends: u64,
    pub(super) injected_sends: u64,
    pub(super) reads: u64,
}

impl Posts {
    /// Adds `count` of a kind; false for an unknown name.
    pub(super) fn add(&mut self, kind: &str, count: u64) -> bool {
        let place = match kind {
            "writes" => &mut self.writes,
            "injected_writes" => &mut self.injected_writes,
            "sends" => &mut self.sends,
            "injected_sends" => &mut self.injected_sends,
            "reads" => &mut self.reads,
            _ => return false,
        };
        *place += count;
        true
    }

    /// The number of posts that send bytes.
    pub(super) fn outgoing(&self) -> u64 {
        self.writes + self.injected_writes + self.sends + self.injected_sends
    }
}

/// The source of the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counter {
    Plugin,
    /// The virtual fabric, which counts for any plugin.
    Fabric,
    /// This command, the user of bare libfabric.
    Raw,
}

impl Counter {
    fn name(self) -> &'static str {
        match self {
            Self::Plugin => "plugin",
            Self::Fabric => "vfabric",
            Self::Raw => "raw",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Plugin => "by the plugin's counters",
            Self::Fabric => "by the virtual fabric's ledger",
            Self::Raw => "by this command's own",
        }
    }
}

/// The posts of all ranks, by purpose as far as that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ledger {
    pub(super) by: Counter,
    pub(super) sides: Vec<(&'static str, Posts)>,
}

impl Ledger {
    pub(super) fn outgoing(&self) -> u64 {
        self.sides.iter().map(|(_, posts)| posts.outgoing()).sum()
    }

    /// A line below the table.
    pub(super) fn line(&self, messages: u64) -> String {
        let all = self.outgoing();
        let sides = self.sides.iter().map(|(side, posts)| {
            let Posts { writes, injected_writes, sends, injected_sends, .. } = posts;
            let kinds = [
                (*writes, "writes"),
                (*injected_writes, "injected writes"),
                (*sends, "sends"),
                (*injected_sends, "injected sends"),
            ];
            let kinds = kinds.iter().filter(|(count, _)| *count > 0);
            let kinds: Vec<_> = kinds.map(|(count, kind)| format!("{count} {kind}")).collect();
            let each = per_message(posts.outgoing(), messages);
            if kinds.is_empty() {
                format!("{side} {each:.3}")
            } else {
                format!("{side} {each:.3} ({})", kinds.join(", "))
            }
        });
        format!(
            "# Writes per message   : {:.3} {}, {all} for {messages} messages: {}",
            per_message(all, messages),
            self.by.words(),
            sides.collect::<Vec<_>>().join(", ")
        )
    }

    pub(super) fn json(&self, messages: u64) -> serde_json::Value {
        let sides: Map<_, _> =
            self.sides.iter().map(|(side, posts)| ((*side).to_owned(), json!(posts))).collect();
        json!({
            "by": self.by.name(), "messages": messages, "posts": sides, "outgoing": self.outgoing(),
            "per_message": per_message(self.outgoing(), messages),
        })
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn per_message(posts: u64, messages: u64) -> f64 {
    if messages == 0 { 0.0 } else { posts as f64 / messages as f64 }
}

/// The line for a plugin that writes no counts of its posts.
pub(super) const UNKNOWN: &str = "# Writes per message   : unknown: the plugin writes no counters of its posts to the file of IRONRAIL_STATS_FILE";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_sends_and_injects_count_and_reads_do_not() {
        let mut data = Posts::default();
        for (kind, count) in [("writes", 1), ("injected_writes", 20), ("sends", 300)] {
            assert!(data.add(kind, count));
        }
        assert!(data.add("injected_sends", 4000) && data.add("reads", 50_000));
        assert!(!data.add("receives", 7));
        assert_eq!(data.outgoing(), 4321);
        let control = Posts { sends: 679, ..Posts::default() };
        let sides = vec![("data", data), ("control", control)];
        let ledger = Ledger { by: Counter::Plugin, sides };
        let line = ledger.line(1000);
        assert!(
            line.contains(": 5.000 by the plugin's counters, 5000 for 1000 messages"),
            "{line}"
        );
        assert!(line.contains("data 4.321 (1 writes, 20 injected writes, 300 sends"), "{line}");
        assert!(line.ends_with("control 0.679 (679 sends)"), "{line}");
        let json = ledger.json(1000);
        assert_eq!(
            (&json["per_message"], &json["posts"]["data"]["reads"]),
            (&json!(5.0), &json!(50_000))
        );
        assert_eq!(ledger.json(0)["per_message"], 0.0);
    }
}
