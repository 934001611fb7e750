//! A peer's name for the log: host and process, from its HELLO, and its rank, learnt from tags.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use proto::setup::Host;

use crate::label::Label;

/// A peer's host, process and rank.
#[derive(Clone, Debug)]
pub(crate) struct PeerName {
    pub(crate) host: String,
    pub(crate) process: u32,
    /// It is reached through shared memory, and its process id was one of those seen here when its HELLO arrived. A container that shares
    /// memory may have ids of its own (pid_namespaces(7)), of which some are seen here as well: then another process's end is taken for the
    /// peer's, which this makes rarer.
    is_local: bool,
    /// The rank on this channel, if a tag has shown it.
    rank: Option<i32>,
    /// The ranks that tags have shown for the peer's process, on any channel.
    ranks: Arc<Ranks>,
}

/// The rank of a process, learnt from tags: NCCL passes the sender's rank as each message's tag, in every version (NCCL
/// src/transport/net.cc:1414, 1575). A process may have several.
#[derive(Debug)]
struct Ranks(AtomicI64);

/// The processes that an endpoint is connected to.
#[derive(Debug, Default)]
pub(crate) struct KnownProcesses {
    known: HashMap<(String, u32), Arc<Ranks>>,
}

impl KnownProcesses {
    /// The peer's name, by its HELLO.
    pub(crate) fn peer_name(&mut self, identity: &Host) -> PeerName {
        let (host, process) = (identity.host.to_text(), identity.process);
        let new = || Arc::new(Ranks(AtomicI64::new(NONE)));
        let is_local = identity.provider.to_text() == SHARED_MEMORY && is_seen(process);
        let ranks = Arc::clone(self.known.entry((host.clone(), process)).or_insert_with(new));
        PeerName { host, process, is_local, rank: None, ranks }
    }
}

impl PeerName {
    /// A receive from the peer has its rank as the tag.
    pub(crate) fn set_rank(&mut self, rank: i32) {
        self.rank = Some(rank);
        let rank = i64::from(rank);
        let known = self.ranks.0.load(Ordering::Relaxed);
        if known != rank {
            let now = if known == NONE { rank } else { SEVERAL };
            self.ranks.0.store(now, Ordering::Relaxed);
        }
    }

    /// Whether its process is known to have ended. Writes to shared memory succeed after their reader has ended, so there `/proc` is
    /// checked. For peers on other hosts a process id means nothing here.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_local && !is_seen(self.process)
    }

    /// Its current name, for an error.
    #[cold]
    pub(crate) fn label(&self) -> Label {
        Label::of(&self.to_string())
    }

    fn rank(&self) -> Option<i32> {
        let of_process = || i32::try_from(self.ranks.0.load(Ordering::Relaxed)).ok();
        self.rank.or_else(of_process)
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rank) = self.rank() {
            write!(f, "rank {rank}, ")?;
        }
        write!(f, "process {} on {}", self.process, self.host)
    }
}

/// Whether a process has this id here.
fn is_seen(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

/// Differences of versions and providers between two ends, which should have the same.
pub(crate) fn differences(ours: &Host, theirs: &Host) -> Vec<String> {
    let version = |raw: u32| format!("{}.{}", raw >> 16, raw & 0xffff);
    let mut found = Vec::new();
    let mut compare = |what: &str, theirs: String, ours: String| {
        if theirs != ours {
            found.push(format!("{what} {theirs} where we have {ours}"));
        }
    };
    compare("libfabric", version(theirs.libfabric_version), version(ours.libfabric_version));
    let provider =
        |end: &Host| format!("{} {}", end.provider.to_text(), version(end.provider_version));
    compare("provider", provider(theirs), provider(ours));
    found
}

/// The provider whose peers are on the same host.
const SHARED_MEMORY: &str = "shm";
/// No tag has shown a rank yet.
const NONE: i64 = i64::MIN;
/// Tags have shown several ranks: none is named.
const SEVERAL: i64 = i64::MAX;

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use proto::codec::Name;

    use super::*;

    fn identity(process: u32) -> Host {
        Host {
            host: Name::cut("here"),
            process,
            provider: Name::cut("net"),
            provider_version: 117 << 16,
            libfabric_version: 1 << 16 | 17,
            ..Host::default()
        }
    }

    #[test]
    fn a_rank_learnt_on_one_channel_names_the_whole_process() {
        let mut known = KnownProcesses::default();
        let (mut receiver, sender) = (known.peer_name(&identity(5)), known.peer_name(&identity(5)));
        let other = known.peer_name(&identity(6));
        assert_eq!(sender.to_string(), "process 5 on here");
        receiver.set_rank(3);
        receiver.set_rank(3);
        for peer in [&receiver, &sender] {
            assert_eq!(peer.to_string(), "rank 3, process 5 on here");
        }
        assert_eq!(other.to_string(), "process 6 on here");
    }

    #[test]
    fn of_a_process_with_several_ranks_only_the_channel_that_received_one_has_its_name() {
        let mut known = KnownProcesses::default();
        let mut peers = [0, 1, 2].map(|_| known.peer_name(&identity(5)));
        peers[0].set_rank(3);
        peers[1].set_rank(-4);
        peers[0].set_rank(3);
        let names = peers.map(|peer| peer.to_string());
        let process = "process 5 on here";
        assert_eq!(
            names,
            [format!("rank 3, {process}"), format!("rank -4, {process}"), process.to_owned()]
        );
    }

    #[test]
    fn only_a_process_that_was_seen_here_is_known_to_have_ended() {
        let by_shared_memory = |process| {
            let provider = Name::cut(SHARED_MEMORY);
            KnownProcesses::default().peer_name(&Host { provider, ..identity(process) })
        };
        // As of another PID namespace: no process here has such a number.
        assert!(!by_shared_memory(u32::MAX).has_ended());
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat runs");
        let peer = by_shared_memory(child.id());
        let by_sockets = KnownProcesses::default().peer_name(&identity(child.id()));
        assert!(!peer.has_ended());
        child.kill().expect("it runs");
        child.wait().expect("it was killed");
        assert!(peer.has_ended() && !by_sockets.has_ended());
    }

    #[test]
    fn each_difference_is_named_with_both_sides() {
        let ours = identity(1);
        assert!(differences(&ours, &identity(2)).is_empty(), "a process differs always");
        let theirs = Host { libfabric_version: 2 << 16 | 5, ..ours };
        assert_eq!(differences(&ours, &theirs), ["libfabric 2.5 where we have 1.17"]);
        let theirs = Host { provider: Name::cut("tcp"), provider_version: 118 << 16, ..ours };
        assert_eq!(differences(&ours, &theirs), ["provider tcp 118.0 where we have net 117.0"]);
    }
}
