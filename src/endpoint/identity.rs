//! A peer's name for the log: host and process, from its HELLO, and its rank, learnt from tags.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use proto::setup::Host;

use crate::label::Label;

/// A peer's host, process and rank.
#[derive(Clone, Debug)]
pub(crate) struct PeerName {
    pub(crate) host: String,
    pub(crate) number: u32,
    /// The peer is reached through shared memory, its process id existed here when its HELLO arrived, and it is not known to be in another
    /// PID namespace. If the peer does not say its namespace, another process here may have that id, and the end of that process is taken
    /// for the peer's. The check at the HELLO makes this rare.
    is_local: bool,
    /// The rank on this channel, if a tag has shown it.
    rank: Option<i32>,
    process: Arc<Process>,
}

/// What all channels to one process share.
#[derive(Debug)]
struct Process {
    /// The PID namespace in which the process has its number, if it is known.
    namespace: Option<u64>,
    /// Host and number are not unique: the number is another process here, or another peer has the same host name and number. Then the log
    /// names the PID namespace too.
    is_ambiguous: AtomicBool,
    /// The rank, learnt from tags: NCCL passes the sender's rank as each message's tag, in every version (NCCL src/transport/net.cc:1414,
    /// 1575). A process may have several.
    rank: AtomicI64,
}

/// The processes that an endpoint is connected to. Containers on one host may have the same host name and the same process ids, so a process
/// is identified as NCCL does it, by its host, its id and its PID namespace (NCCL src/misc/utils.cc, `getPidHash`).
#[derive(Debug, Default)]
pub(crate) struct KnownProcesses {
    /// By host and number.
    known: HashMap<(String, u32), Vec<Arc<Process>>>,
}

impl KnownProcesses {
    /// The peer's name, from its HELLO (`theirs`) and ours.
    pub(crate) fn peer_name(&mut self, ours: &Host, theirs: &Host) -> PeerName {
        let (host, number) = (theirs.host.to_text(), theirs.process);
        let namespaces = ours.pid_namespace.zip(theirs.pid_namespace);
        let is_elsewhere = namespaces.is_some_and(|(ours, theirs)| ours != theirs);
        let is_near = theirs.provider.to_text() == SHARED_MEMORY && !is_elsewhere;
        let is_local = is_near && proc_status::has_our_numbers() && is_seen(number);
        let is_ambiguous = is_elsewhere && theirs.host == ours.host;
        let alike = self.known.entry((host.clone(), number)).or_default();
        let process = Process::of(alike, theirs.pid_namespace, is_ambiguous);
        PeerName { host, number, is_local, rank: None, process }
    }
}

impl Process {
    /// The process of this PID namespace, among processes with the same host name and number.
    fn of(alike: &mut Vec<Arc<Self>>, namespace: Option<u64>, is_ambiguous: bool) -> Arc<Self> {
        if let Some(known) = alike.iter().find(|process| process.namespace == namespace) {
            return Arc::clone(known);
        }
        let is_ambiguous = is_ambiguous || !alike.is_empty();
        alike.iter().for_each(|other| other.is_ambiguous.store(true, Ordering::Relaxed));
        let (is_ambiguous, rank) = (AtomicBool::new(is_ambiguous), AtomicI64::new(NONE));
        let process = Arc::new(Self { namespace, is_ambiguous, rank });
        alike.push(Arc::clone(&process));
        process
    }
}

impl PeerName {
    /// Sets the peer's rank: a receive from it has the rank as its tag.
    pub(crate) fn set_rank(&mut self, rank: i32) {
        self.rank = Some(rank);
        let rank = i64::from(rank);
        let known = self.process.rank.load(Ordering::Relaxed);
        if known != rank {
            let now = if known == NONE { rank } else { SEVERAL };
            self.process.rank.store(now, Ordering::Relaxed);
        }
    }

    /// Whether the peer's process is known to have ended. Writes to shared memory succeed after their reader has ended, so `/proc` is
    /// checked for peers reached that way. For peers on other hosts, or in another PID namespace, a process id means nothing here.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_local && !is_seen(self.number)
    }

    /// Its current name, for an error.
    #[cold]
    pub(crate) fn label(&self) -> Label {
        Label::of(&self.to_string())
    }

    /// The PID namespace, if host and number do not identify the process.
    pub(crate) fn namespace(&self) -> Option<u64> {
        self.process.namespace.filter(|_| self.process.is_ambiguous.load(Ordering::Relaxed))
    }

    fn rank(&self) -> Option<i32> {
        let of_process = || i32::try_from(self.process.rank.load(Ordering::Relaxed)).ok();
        self.rank.or_else(of_process)
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rank) = self.rank() {
            write!(f, "rank {rank}, ")?;
        }
        let Self { number, host, .. } = self;
        match self.namespace() {
            Some(namespace) => {
                write!(f, "process {number} of PID namespace {namespace} on {host}")
            }
            None => write!(f, "process {number} on {host}"),
        }
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

    /// A name at an endpoint that has no other peer, and whose own PID namespace is 1.
    fn name_of(theirs: &Host) -> PeerName {
        KnownProcesses::default().peer_name(&us(), theirs)
    }

    fn us() -> Host {
        Host { pid_namespace: Some(1), ..identity(4) }
    }

    #[test]
    fn a_rank_learnt_on_one_channel_names_the_whole_process() {
        let mut known = KnownProcesses::default();
        let mut name = |number| known.peer_name(&us(), &identity(number));
        let (mut receiver, sender, other) = (name(5), name(5), name(6));
        assert_eq!(sender.to_string(), "process 5 on here");
        receiver.set_rank(3);
        receiver.set_rank(3);
        for peer in [&receiver, &sender] {
            assert_eq!(peer.to_string(), "rank 3, process 5 on here");
        }
        assert_eq!(other.to_string(), "process 6 on here");
    }

    #[test]
    fn a_process_with_several_ranks_is_named_by_the_rank_seen_on_each_channel() {
        let mut known = KnownProcesses::default();
        let mut peers = [0, 1, 2].map(|_| known.peer_name(&us(), &identity(5)));
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
    fn processes_of_one_number_in_two_pid_namespaces_share_neither_rank_nor_name() {
        let mut known = KnownProcesses::default();
        let host = Name::cut("there");
        let mut name = |namespace| {
            known.peer_name(&us(), &Host { host, pid_namespace: namespace, ..identity(5) })
        };
        let (mut first, again) = (name(Some(2)), name(Some(2)));
        first.set_rank(3);
        assert_eq!(again.to_string(), "rank 3, process 5 on there", "no other has its number");
        let (second, older) = (name(Some(3)), name(None));
        let names = [again, second, older].map(|peer| peer.to_string());
        assert_eq!(
            names,
            [
                "rank 3, process 5 of PID namespace 2 on there",
                "process 5 of PID namespace 3 on there",
                "process 5 on there"
            ]
        );
    }

    #[test]
    fn a_pid_namespace_is_named_where_the_number_means_another_process_here() {
        let named = |host: &str, namespace| {
            let host = Name::cut(host);
            name_of(&Host { host, pid_namespace: namespace, ..identity(5) }).to_string()
        };
        assert_eq!(named("here", Some(2)), "process 5 of PID namespace 2 on here");
        assert_eq!(named("here", Some(1)), "process 5 on here");
        assert_eq!(named("here", None), "process 5 on here");
        assert_eq!(named("there", Some(2)), "process 5 on there");
    }

    #[test]
    fn only_a_process_that_was_seen_here_is_known_to_have_ended() {
        let by_shared_memory = |process, pid_namespace| {
            let provider = Name::cut(SHARED_MEMORY);
            name_of(&Host { provider, pid_namespace, ..identity(process) })
        };
        // No process here has such a number.
        assert!(!by_shared_memory(u32::MAX, None).has_ended());
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat runs");
        let [unknown, ours, other] =
            [None, Some(1), Some(2)].map(|namespace| by_shared_memory(child.id(), namespace));
        let by_sockets = name_of(&identity(child.id()));
        assert!(!unknown.has_ended() && !ours.has_ended() && !other.has_ended());
        child.kill().expect("it runs");
        child.wait().expect("it was killed");
        assert!(unknown.has_ended() && ours.has_ended());
        assert!(!by_sockets.has_ended() && !other.has_ended());
    }

    #[test]
    fn each_difference_is_named_with_both_sides() {
        let ours = identity(1);
        assert!(differences(&ours, &identity(2)).is_empty(), "process ids are not compared");
        let theirs = Host { libfabric_version: 2 << 16 | 5, ..ours };
        assert_eq!(differences(&ours, &theirs), ["libfabric 2.5 where we have 1.17"]);
        let theirs = Host { provider: Name::cut("tcp"), provider_version: 118 << 16, ..ours };
        assert_eq!(differences(&ours, &theirs), ["provider tcp 118.0 where we have net 117.0"]);
    }
}
