//! How a group is made: the settings of each rank, and the facts that all ranks exchange first.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use proc_status::Status;

use super::progress::{BRISK, CALM, Mover, Wakers};
use super::{Group, Presence, Shared, State, locked};
use crate::bootstrap::{Bootstrap, Hub, Remote};
use crate::collective::Work;
use crate::devices::DeviceMatrix;
use crate::error::GroupError;
use crate::loader::{Library, Net, forks};
use crate::mesh::{Connector, Mesh, Pace, Setup};
use crate::objects::Schemas;
use crate::tuning::Tuning;

/// How a group is made.
#[derive(Clone, Debug)]
pub struct Builder {
    library: Arc<Library>,
    device: Option<usize>,
    timeout: Duration,
    joining: Option<Duration>,
    progress_thread: bool,
    tuning: Tuning,
    matrix: Option<DeviceMatrix>,
    features: u32,
}

impl Builder {
    /// A group over an open plugin.
    pub fn new(library: &Arc<Library>) -> Self {
        Self {
            library: Arc::clone(library),
            device: None,
            timeout: TIMEOUT,
            joining: None,
            progress_thread: false,
            tuning: Tuning::default(),
            matrix: None,
            features: 0,
        }
    }

    /// The plugin's device. Default: the rank, modulo the number of devices.
    #[must_use]
    pub fn device(mut self, device: Option<usize>) -> Self {
        self.device = device;
        self
    }

    /// The time without progress after which a call gives up. Default: 60 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long the other ranks may take to come. Default: [`Builder::timeout`].
    #[must_use]
    pub fn joining(mut self, joining: Duration) -> Self {
        self.joining = Some(joining);
        self
    }

    /// Whether the thread that makes progress between calls polls every 50 µs while anything moves, so that others need not wait for this
    /// rank's next call. Default: it polls every 2 ms, so that no peer waits forever.
    #[must_use]
    pub fn progress_thread(mut self, wanted: bool) -> Self {
        self.progress_thread = wanted;
        self
    }

    /// The table of algorithms. All ranks use rank 0's.
    #[must_use]
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// The device for each peer, by name; [`Builder::device`] then counts for the connection of this rank to itself only. Default: one for
    /// all.
    #[must_use]
    pub fn matrix(mut self, matrix: Option<DeviceMatrix>) -> Self {
        self.matrix = matrix;
        self
    }

    /// Bits with a meaning for the program, and none for this library: [`Group::features`] returns them on all ranks. Default: 0.
    #[must_use]
    pub fn features(mut self, features: u32) -> Self {
        self.features = features;
        self
    }

    /// Joins the group that meets at `place`. All its ranks call it. It makes no connections: each is made when it is first used.
    ///
    /// # Errors
    ///
    /// Errors of the rendezvous ([`GroupError::Bootstrap`], [`GroupError::Timeout`] with the ranks that did not come) and of the plugin,
    /// and [`GroupError::Usage`] for a device that does not exist.
    pub fn join(self, place: Remote) -> Result<Group, GroupError> {
        self.join_with(place, None)
    }

    /// As [`Builder::join`], in the process that holds the rendezvous, which is kept until every rank has left, or for [`Builder::timeout`]
    /// after this rank has.
    ///
    /// # Errors
    ///
    /// As [`Builder::join`].
    pub fn join_with(self, mut place: Remote, hub: Option<Hub>) -> Result<Group, GroupError> {
        let (rank, size) = (place.rank(), place.size());
        let started = self.start(&mut place, hub.is_some());
        let connector = Arc::<Connector>::default();
        let (net, device, devices, agreement) = match started {
            Ok(started) => started,
            Err(why) => {
                place.give_up(&why);
                drop(place);
                linger(hub);
                return Err(why);
            }
        };
        let Agreement { tuning, pace, hub: hub_rank, features, stages_parts } = agreement;
        let aborted = Arc::<AtomicBool>::default();
        let setup = Setup {
            net: Arc::clone(&net),
            devices,
            place,
            connector: Arc::clone(&connector),
            timeout: self.timeout,
            pace,
            hub: hub_rank,
            aborted: Arc::clone(&aborted),
            stages_parts,
        };
        let state = State {
            mesh: Mesh::new(setup),
            work: Work::default(),
            blocks: Vec::new(),
            kept: Vec::new(),
            receives: Vec::new(),
            schemas: Schemas::default(),
        };
        let wakers = Arc::<Wakers>::default();
        let state = Arc::new(Mutex::new(state));
        let moving = if self.progress_thread { BRISK } else { CALM };
        let mover = match Mover::start(&state, connector, &wakers, moving) {
            Ok(mover) => mover,
            Err(why) => {
                locked(&state).mesh.place().give_up(&why);
                drop(state);
                linger(hub);
                return Err(why);
            }
        };
        let scopes = AtomicU32::new(1);
        let (timeout, forks) = (self.timeout, forks());
        let shared = Shared {
            presence: Mutex::new(Presence::Here { mover, hub }),
            has_left: Condvar::new(),
            state,
            wakers,
            tuning,
            features,
            aborted,
            scopes,
            timeout,
            device,
            net,
            forks,
        };
        let shared = Arc::new(shared);
        Ok(Group::new(shared, 0, (0..size).collect(), rank))
    }

    fn start(
        &self,
        place: &mut Remote,
        has_hub: bool,
    ) -> Result<(Arc<Net>, usize, Vec<usize>, Agreement), GroupError> {
        let net = Net::init(&self.library, place.identity())?;
        let device = net.choose_device(self.device, place.rank())?;
        let by_peer = match &self.matrix {
            None => vec![device; place.size()],
            Some(matrix) if matrix.size() != place.size() => {
                let (rows, size) = (matrix.size(), place.size());
                return Err(GroupError::Usage(format!(
                    "a device matrix of {rows} rows for {size} ranks"
                )));
            }
            Some(matrix) => {
                let name = |device| Ok(net.properties(device)?.name);
                let names: Result<Vec<_>, GroupError> = (0..net.devices()?).map(name).collect();
                matrix.devices(place.rank(), &names?)?
            }
        };
        let mut speed = 0;
        for device in by_peer.iter().collect::<BTreeSet<_>>() {
            speed = speed.max(net.properties(*device)?.speed_mbps);
        }
        let own = RankFacts {
            speed,
            hub: has_hub,
            features: self.features,
            host: host(),
            cpus: cpus(),
            tuning: (place.rank() == 0).then_some(&self.tuning),
        };
        let within = self.joining.unwrap_or(self.timeout);
        let all = place.all_gather(own.to_text().as_bytes(), within)?;
        let texts: Vec<_> = all.iter().map(|text| String::from_utf8_lossy(text)).collect();
        Ok((net, device, by_peer, Agreement::of(&texts, place.rank())?))
    }
}

/// Keeps the hub for a while: this process may end with its error, and the others learn the cause from its hub.
fn linger(hub: Option<Hub>) {
    if let Some(hub) = hub {
        hub.wait_for_all_to_leave(LINGER);
    }
}

/// How long a rendezvous in a process that cannot join still answers.
const LINGER: Duration = Duration::from_secs(2);
/// Default of [`Builder::timeout`].
const TIMEOUT: Duration = Duration::from_secs(60);

/// The first message between ranks, as lines.
struct RankFacts<'a> {
    /// That of its fastest device, in Mb/s.
    speed: i32,
    hub: bool,
    features: u32,
    host: String,
    cpus: String,
    /// Set only by rank 0: the table that all use.
    tuning: Option<&'a Tuning>,
}

impl RankFacts<'_> {
    fn to_text(&self) -> String {
        let Self { speed, hub, features, host, cpus, tuning } = self;
        let tuning = tuning.map_or_else(String::new, Tuning::to_string);
        let hub = u8::from(*hub);
        format!("{VERSION}\n{hub}\n{features}\n{host}\n{cpus}\n{speed}\n{tuning}")
    }
}

/// What a rank derives from the facts of all ranks.
struct Agreement {
    tuning: Tuning,
    pace: Pace,
    /// The rank whose process holds the rendezvous, if any.
    hub: Option<usize>,
    /// The features of each rank.
    features: Vec<u32>,
    /// As in [`Setup`].
    stages_parts: bool,
}

impl Agreement {
    fn of(texts: &[impl AsRef<str>], rank: usize) -> Result<Self, GroupError> {
        let (mut all_facts, mut all_features, mut fastest) = (Vec::new(), Vec::new(), 0);
        for (other, text) in texts.iter().enumerate() {
            let fields: Vec<_> = text.as_ref().splitn(7, '\n').collect();
            let [VERSION, hub, features, host, cpus, speed, tuning] = fields[..] else {
                let theirs = fields.first().copied().unwrap_or_default();
                return Err(GroupError::Bootstrap(format!(
                    "rank {other} says {theirs:?}, rank {rank} {VERSION:?}: two versions of this library"
                )));
            };
            all_facts.push((hub == "1", host, cpus, tuning));
            fastest = fastest.max(speed.parse().unwrap_or(i32::MAX));
            all_features.push(features.parse().unwrap_or(0));
        }
        let own = all_facts.get(rank).map_or("", |facts| facts.1);
        let near: Vec<_> = all_facts.iter().filter(|facts| facts.1 == own).collect();
        let masks = near.iter().map(|facts| facts.2);
        let tuning = all_facts.first().map_or("", |facts| facts.3).parse()?;
        let hub = all_facts.iter().position(|facts| facts.0);
        let pace = Pace::new(near.len(), union(masks));
        let stages_parts = fastest < COPIED_MBPS;
        Ok(Self { tuning, pace, hub, features: all_features, stages_parts })
    }
}

/// Slower devices take longer to move a part than a CPU takes to copy it.
const COPIED_MBPS: i32 = 100_000;

const VERSION: &str = "ironrail-group 13";

/// Identifies the machine.
fn host() -> String {
    let read = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    read.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// The CPUs that this thread may use, in the kernel's notation: hexadecimal words, the lowest last.
fn cpus() -> String {
    let status = Status::of_this_thread().ok();
    let mask = status.as_ref().and_then(|status| status.field("Cpus_allowed"));
    mask.unwrap_or("1").to_owned()
}

/// The number of CPUs in the union of these masks.
fn union<'a>(masks: impl Iterator<Item = &'a str>) -> usize {
    let mut all: Vec<u8> = Vec::new();
    for mask in masks {
        let digits = mask.chars().rev().filter_map(|digit| digit.to_digit(16));
        for (place, digit) in digits.enumerate() {
            if all.len() <= place {
                all.push(0);
            }
            all[place] |= u8::try_from(digit).unwrap_or(0);
        }
    }
    all.iter().map(|digit| digit.count_ones() as usize).sum()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::atomic::Ordering;
    use std::thread;
    use std::time::Instant;

    use rustix::process::{Resource, Rlimit, Uid, getuid, setrlimit};
    use rustix::thread::set_thread_uid;

    use super::*;
    use crate::bootstrap::Interrupt;
    use crate::fork::in_child;
    use crate::start::Start;
    use crate::support::{WAIT, buffering, library};

    #[test]
    fn parts_are_staged_only_where_every_device_is_slower_than_a_copy() {
        let facts = |rank: usize, speed: i32| {
            let tuning = Tuning::default();
            let tuning = (rank == 0).then_some(&tuning);
            let (host, cpus) = ("h".to_owned(), "1".to_owned());
            RankFacts { speed, hub: false, features: 0, host, cpus, tuning }.to_text()
        };
        let stages = |speeds: [i32; 2]| {
            let texts = [0, 1].map(|rank| facts(rank, speeds[rank]));
            let agreed = [0, 1].map(|rank| Agreement::of(&texts, rank).unwrap().stages_parts);
            assert_eq!(agreed[0], agreed[1]);
            agreed[0]
        };
        assert!(stages([0, 0]), "plugins that know no speed");
        assert!(stages([10_000, 50_000]));
        assert!(!stages([10_000, 200_000]) && !stages([200_000, 10_000]));
    }

    #[test]
    fn a_rank_0_that_is_interrupted_as_its_group_comes_about_waits_for_no_other_to_leave() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let join = move |rank, interrupt: &Interrupt| {
            let start = Start::at(&free.to_string(), rank, 2, None).unwrap();
            let (place, hub) = start.join_unless(WAIT, interrupt).unwrap();
            Builder::new(&library()).timeout(WAIT).join_with(place, hub).unwrap()
        };
        let (interrupt, has_gone) = (Interrupt::default(), Arc::<AtomicBool>::default());
        let other = {
            let has_gone = Arc::clone(&has_gone);
            thread::spawn(move || {
                let group = join(1, &Interrupt::default());
                let end = Instant::now() + WAIT / 3;
                while !has_gone.load(Ordering::Acquire) && Instant::now() < end {
                    thread::yield_now();
                }
                drop(group);
                has_gone.load(Ordering::Acquire)
            })
        };
        let group = join(0, &interrupt);
        interrupt.set();
        drop(group);
        TcpListener::bind(free).unwrap();
        has_gone.store(true, Ordering::Release);
        assert!(other.join().unwrap(), "the interrupted rank waits for the other rank");
    }

    #[test]
    fn a_rank_that_can_start_no_thread_says_so_and_the_others_learn_it() {
        let hub = Hub::start("127.0.0.1:0".parse().unwrap(), 2, WAIT).unwrap();
        let (builder, meeting) = (Builder::new(&buffering()).timeout(WAIT), hub.meeting(0));
        let other = {
            let builder = builder.clone();
            thread::spawn(move || builder.join(Remote::join(meeting, WAIT)?)?.barrier())
        };
        let join = || {
            let place = Remote::join(hub.meeting(1), WAIT).unwrap();
            // Root has no limit of threads.
            if getuid().is_root() {
                set_thread_uid(Uid::from_raw(65534)).unwrap();
            }
            let none = Some(0);
            setrlimit(Resource::Nproc, Rlimit { current: none, maximum: none }).unwrap();
            let refused = builder.clone().join(place).map(drop);
            let is_known = matches!(refused, Err(GroupError::System { what: LACKING, .. }));
            assert!(is_known, "{refused:?}");
        };
        assert!(in_child(join));
        match other.join().unwrap() {
            Err(GroupError::PeerLost { rank: 1, why }) => assert!(why.contains(LACKING), "{why}"),
            ended => panic!("{ended:?}"),
        }
    }

    /// What the system refuses in that case.
    const LACKING: &str = "starting a thread";

    #[test]
    fn cpus_that_ranks_share_count_once() {
        assert_eq!(union(["3", "3"].into_iter()), 2);
        assert_eq!(union(["1", "2", "00000001,00000000"].into_iter()), 3);
        assert_eq!(union(["ff,ffffffff"].into_iter()), 40);
    }
}
