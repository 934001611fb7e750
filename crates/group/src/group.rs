//! A group: ranks that exchange messages and call collectives.

use std::any::Any;
use std::fs;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use proc_status::Status;

use crate::bootstrap::{Bootstrap, Hub, Remote};
use crate::collective::{Session, Work};
use crate::devices::DeviceMatrix;
use crate::error::GroupError;
use crate::loader::{Buffer, Element, Library, Net};
use crate::memory::Registered;
use crate::mesh::{Connector, Mesh, Moved, OpId, Parts};
use crate::messages::Entry;
use crate::objects::Schemas;
use crate::tuning::Tuning;

/// How a group is made.
#[derive(Clone, Debug)]
pub struct Builder {
    library: Arc<Library>,
    device: Option<usize>,
    timeout: Duration,
    progress_thread: bool,
    tuning: Tuning,
    matrix: Option<DeviceMatrix>,
}

impl Builder {
    /// A group over an open plugin.
    pub fn new(library: &Arc<Library>) -> Self {
        Self {
            library: Arc::clone(library),
            device: None,
            timeout: TIMEOUT,
            progress_thread: false,
            tuning: Tuning::default(),
            matrix: None,
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

    /// Joins the group that meets at `place`. All its ranks call it. It makes no connections: each is made when it is first used.
    ///
    /// # Errors
    ///
    /// Errors of the rendezvous ([`GroupError::Bootstrap`], [`GroupError::Timeout`] with the ranks that did not come) and of the plugin,
    /// and [`GroupError::Usage`] for a device that does not exist.
    pub fn join(self, place: Remote) -> Result<Group, GroupError> {
        self.join_with(place, None)
    }

    /// The same in the process that holds the rendezvous, which is kept until every rank has left.
    ///
    /// # Errors
    ///
    /// As [`Builder::join`].
    pub fn join_with(self, mut place: Remote, hub: Option<Hub>) -> Result<Group, GroupError> {
        let (rank, size) = (place.rank(), place.size());
        let started = self.start(&mut place, hub.is_some());
        let connector = Arc::<Connector>::default();
        let (mesh, tuning) = match started {
            Ok((net, device, devices, here)) => {
                let parts = Parts {
                    net,
                    device,
                    devices,
                    place,
                    connector: Arc::clone(&connector),
                    timeout: self.timeout,
                    crowd: here.crowd,
                    hub: here.hub,
                    aborted: Arc::default(),
                };
                (parts, here.tuning)
            }
            Err(why) => {
                place.give_up(&why);
                return Err(why);
            }
        };
        let aborted = Arc::clone(&mesh.aborted);
        let state = State {
            mesh: Mesh::new(mesh),
            work: Work::default(),
            blocks: Vec::new(),
            kept: Vec::new(),
            schemas: Schemas::default(),
        };
        let wakers = Arc::<Wakers>::default();
        let state = Arc::new(Mutex::new(state));
        let moving = if self.progress_thread { BRISK } else { CALM };
        let mover = Some(Mover::start(&state, connector, &wakers, moving)?);
        let scopes = AtomicU32::new(1);
        let (timeout, process) = (self.timeout, process::id());
        let shared =
            Shared { mover, state, wakers, tuning, aborted, scopes, timeout, hub, process };
        let shared = Arc::new(shared);
        Ok(Group::new(shared, 0, (0..size).collect(), rank))
    }

    fn start(
        &self,
        place: &mut Remote,
        has_hub: bool,
    ) -> Result<(Arc<Net>, usize, Vec<usize>, Here), GroupError> {
        let net = Net::init(&self.library, place.identity())?;
        let devices = net.devices()?;
        if devices == 0 {
            return Err(GroupError::Load("the plugin has no device".to_owned()));
        }
        let device = self.device.unwrap_or_else(|| place.rank() % devices);
        if device >= devices {
            return Err(GroupError::Usage(format!(
                "device {device} was asked for, there are {devices}"
            )));
        }
        let by_peer = match &self.matrix {
            None => vec![device; place.size()],
            Some(matrix) if matrix.size() != place.size() => {
                let (rows, size) = (matrix.size(), place.size());
                return Err(GroupError::Usage(format!(
                    "a device matrix of {rows} rows for {size} ranks"
                )));
            }
            Some(matrix) => {
                let names: Result<Vec<_>, _> =
                    (0..devices).map(|device| Ok(net.properties(device)?.name)).collect();
                matrix.devices(place.rank(), &names.map_err(|error: GroupError| error)?)?
            }
        };
        let own = RankFacts { hub: has_hub, host: host(), cpus: cpus(), tuning: &self.tuning };
        let all = place.all_gather(own.to_text().as_bytes(), self.timeout)?;
        let texts: Vec<_> = all.iter().map(|text| String::from_utf8_lossy(text)).collect();
        Ok((net, device, by_peer, Here::of(&texts, place.rank())?))
    }
}

/// Default of [`Builder::timeout`].
const TIMEOUT: Duration = Duration::from_secs(60);

/// The first message between ranks, as lines.
struct RankFacts<'a> {
    hub: bool,
    host: String,
    cpus: String,
    tuning: &'a Tuning,
}

impl RankFacts<'_> {
    fn to_text(&self) -> String {
        let Self { hub, host, cpus, tuning } = self;
        format!("{VERSION}\n{}\n{host}\n{cpus}\n{tuning}", u8::from(*hub))
    }
}

/// What a rank derives from it.
struct Here {
    tuning: Tuning,
    crowd: (usize, usize),
    hub: Option<usize>,
}

impl Here {
    fn of(texts: &[impl AsRef<str>], rank: usize) -> Result<Self, GroupError> {
        let mut all_facts = Vec::new();
        for (other, text) in texts.iter().enumerate() {
            let fields: Vec<_> = text.as_ref().splitn(5, '\n').collect();
            let [VERSION, hub, host, cpus, tuning] = fields[..] else {
                let theirs = fields.first().copied().unwrap_or_default();
                return Err(GroupError::Bootstrap(format!(
                    "rank {other} says {theirs:?}, rank {rank} {VERSION:?}: two versions of this library"
                )));
            };
            all_facts.push((hub == "1", host, cpus, tuning));
        }
        let own = all_facts.get(rank).map_or("", |facts| facts.1);
        let near: Vec<_> = all_facts.iter().filter(|facts| facts.1 == own).collect();
        let masks = near.iter().map(|facts| facts.2);
        let tuning = all_facts.first().map_or("", |facts| facts.3).parse()?;
        let hub = all_facts.iter().position(|facts| facts.0);
        Ok(Self { tuning, crowd: (near.len(), union(masks)), hub })
    }
}

const VERSION: &str = "ironrail-group 4";

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

/// The thread that makes progress between calls, and connections at all times.
#[derive(Debug)]
struct Mover {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Mover {
    fn start(
        state: &Arc<Mutex<State>>,
        connector: Arc<Connector>,
        wakers: &Arc<Wakers>,
        moving: Duration,
    ) -> Result<Self, GroupError> {
        let stop = Arc::<AtomicBool>::default();
        let (ours, state, wakers) = (Arc::clone(&stop), Arc::clone(state), Arc::clone(wakers));
        let run = move || {
            let mut rest = moving;
            connector.settle();
            while !ours.load(Ordering::Acquire) {
                let connects = connector.step();
                let (moved, seen) = match try_lock(&state) {
                    // A waiting thread makes progress itself, and may have moved what a future waits for.
                    None => (false, false),
                    Some(mut state) => {
                        let polled = state.mesh.poll(None);
                        // Any thread's poll may have ended them.
                        let ended = state.take_ended();
                        state.mesh.sweep();
                        drop(state);
                        ended.into_iter().for_each(|(_, memory)| contained(|| drop(memory)));
                        match polled {
                            Ok(moved) => (moved != Moved::Nothing, true),
                            Err(_) => return wakers.wake(),
                        }
                    }
                };
                rest = if moved { moving } else { (rest * 2).min(CALM) };
                let waits = wakers.progress(moved || !seen);
                // Unparked where a connect begins.
                thread::park_timeout(if connects || waits { BRISK } else { rest });
            }
        };
        let thread = thread::Builder::new()
            .name("progress".to_owned())
            .spawn(run)
            .map_err(|error| GroupError::System { what: "starting a thread", error })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

/// Runs foreign code, of a waker or of memory's owner. A panic in it is reported by its hook, and must not end the thread that makes progress.
fn contained(run: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(run));
}

/// Futures that wait for the group.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    list: Mutex<(Vec<Waker>, Option<Instant>)>,
}

impl Wakers {
    /// Wakes `waker` when it should poll again.
    pub(crate) fn add(&self, waker: &Waker) {
        let (list, _) = &mut *self.lock();
        if !list.iter().any(|other| other.will_wake(waker)) {
            list.push(waker.clone());
        }
    }

    /// Wakes all if something moved, and periodically, so that they notice timeouts. Returns whether any waits.
    fn progress(&self, moved: bool) -> bool {
        let mut guard = self.lock();
        let (list, since) = &mut *guard;
        if list.is_empty() {
            *since = None;
            return false;
        }
        if moved || since.get_or_insert_with(Instant::now).elapsed() >= WAKE_EVERY {
            drop(guard);
            self.wake();
        }
        true
    }

    fn wake(&self) {
        let woken = {
            let (list, since) = &mut *self.lock();
            *since = None;
            std::mem::take(list)
        };
        // After the lock is released: a waker runs foreign code.
        woken.into_iter().for_each(|waker| contained(|| waker.wake()));
    }

    fn lock(&self) -> MutexGuard<'_, (Vec<Waker>, Option<Instant>)> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The longest sleep of a future.
const WAKE_EVERY: Duration = Duration::from_millis(5);

impl Drop for Mover {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The last handle of a group may go with a waker, or with memory that this thread frees: it ends by itself then.
        let is_other = |thread: &JoinHandle<()>| thread.thread().id() != thread::current().id();
        if let Some(thread) = self.thread.take().filter(is_other) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

const BRISK: Duration = Duration::from_micros(50);
const CALM: Duration = Duration::from_millis(2);

/// A rank's membership in a group: messages between two ranks, and collectives.
///
/// It is a handle: clones are the same membership. Progress is made inside calls of this group or of any group split from it, and by the
/// progress thread if enabled: a rank that computes between calls delays those that send it long messages.
///
/// **Threads.** Calls of one thread are in order. Calls for messages, objects, exchanges and halos release the lock of the group while they
/// wait, so several threads may make them at once. A collective of elements holds the lock until it has ended: calls of other threads wait
/// meanwhile, a send too, and a collective that cannot end before such a call runs ends in [`GroupError::Timeout`]. Groups that were split
/// from each other share the lock, and the parts of their collectives one order for each peer. So collectives, whichever of these groups
/// they belong to, must be called by one thread at a time, and in the same order on all ranks that take part.
///
/// **Failure.** A rank that dies is [`GroupError::PeerLost`] on all others; one that stops is [`GroupError::Timeout`] with its rank after
/// [`Builder::timeout`]; [`Group::abort`] is [`GroupError::Aborted`]. The group has failed then: its connections are closed, the memory of
/// every call is free, and every later call returns the first cause. No call panics, aborts the process or hangs. Groups that were split from
/// each other fail together, so these errors have ranks of the first group.
///
/// A rank that drops its last handle leaves: what it has sent still arrives, and only ranks that need it notice. A message or an object to it
/// or from it is [`GroupError::PeerLost`] for that call alone. A collective of elements that needs it fails the group, because its ranks are
/// no longer in step: all ranks get [`GroupError::PeerLost`] with the rank that left.
#[derive(Clone, Debug)]
pub struct Group {
    pub(crate) shared: Arc<Shared>,
    pub(crate) scope: u32,
    /// Ranks in the mesh, by rank in this group.
    pub(crate) members: Arc<[usize]>,
    rank: usize,
    /// The number of collectives so far.
    calls: Arc<AtomicU32>,
    /// The number of collectives of objects so far.
    pub(crate) objects: Arc<AtomicU32>,
    /// The number of exchanges so far.
    pub(crate) exchanges: Arc<AtomicU32>,
    /// The next stream of exchanges; 0 is the one of [`Group::exchange`].
    pub(crate) streams: Arc<AtomicU32>,
}

/// Shared by all handles.
#[derive(Debug)]
pub(crate) struct Shared {
    mover: Option<Mover>,
    state: Arc<Mutex<State>>,
    pub(crate) wakers: Arc<Wakers>,
    tuning: Tuning,
    aborted: Arc<AtomicBool>,
    /// The lowest scope that no group of this rank uses.
    scopes: AtomicU32,
    timeout: Duration,
    hub: Option<Hub>,
    /// The process that joined.
    process: u32,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) mesh: Mesh,
    work: Work,
    /// Lists of operations from earlier blocks, for reuse.
    pub(crate) blocks: Vec<Vec<Entry>>,
    /// Memory of operations that were dropped. It is freed after the mesh has closed.
    kept: Vec<(OpId, Box<dyn Any + Send>)>,
    pub(crate) schemas: Schemas,
}

impl State {
    /// Keeps memory until its operation has ended. Returns it if that has ended: the caller drops it without the lock.
    #[must_use = "its owner's code may take the lock"]
    pub(crate) fn keep<M: Any + Send>(&mut self, op: OpId, memory: M) -> Option<M> {
        if !self.mesh.is_open(op) {
            return Some(memory);
        }
        self.kept.push((op, Box::new(memory)));
        None
    }

    /// Takes out the memory of operations that have ended: of all, if the group has failed. The caller drops it without the lock, for that
    /// runs its owners' code.
    fn take_ended(&mut self) -> Vec<(OpId, Box<dyn Any + Send>)> {
        let Self { mesh, kept, .. } = self;
        kept.extract_if(.., |(op, _)| !mesh.is_open(*op)).collect()
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lock, if no other thread has it. A panic under it has broken nothing.
fn try_lock(state: &Mutex<State>) -> Option<MutexGuard<'_, State>> {
    match state.try_lock() {
        Ok(state) => Some(state),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Shared {
    /// Whether this is a copy in a child of the process that joined. Connections, threads and the rendezvous are the parent's, which goes on.
    fn is_forked(&self) -> bool {
        self.process != process::id()
    }

    fn leave(&self) {
        if self.is_forked() {
            return;
        }
        let mut state = self.lock();
        let ended = state.mesh.close();
        let kept = state.take_ended();
        drop(state);
        drop(kept);
        if let Err(why) = ended {
            log::debug!("a group ends with an error: {why}");
        }
        if let Some(hub) = &self.hub {
            hub.wait_for_all_to_leave(self.timeout);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.is_forked() {
            let parents = (self.mover.take(), self.hub.take(), Arc::clone(&self.state));
            let _never_dropped = ManuallyDrop::new(parents);
            return;
        }
        self.leave();
        // Last, because outstanding sends may need a connection.
        self.mover = None;
    }
}

/// A rank's membership, which this does not prolong; see [`Group::downgrade`].
#[derive(Clone, Debug)]
pub struct WeakGroup(Weak<Shared>);

impl WeakGroup {
    /// Whether the last handle is gone.
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Leaves as the drop of the last handle does: what was sent still arrives. Handles that are left return an error from now on. For the
    /// end of a process, in which some may never be dropped.
    pub fn leave(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.leave();
        }
    }
}

impl Group {
    fn new(shared: Arc<Shared>, scope: u32, members: Arc<[usize]>, rank: usize) -> Self {
        let (calls, objects, exchanges) = (Arc::default(), Arc::default(), Arc::default());
        let streams = Arc::new(AtomicU32::new(1));
        Self { shared, scope, members, rank, calls, objects, exchanges, streams }
    }

    /// This rank's membership in the first group and in all that were split from it.
    pub fn downgrade(&self) -> WeakGroup {
        WeakGroup(Arc::downgrade(&self.shared))
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// The table of algorithms, which is rank 0's.
    pub fn tuning(&self) -> &Tuning {
        &self.shared.tuning
    }

    /// The bound of a wait.
    pub fn timeout(&self) -> Duration {
        self.shared.timeout
    }

    /// Zeroed memory of `count` elements that the plugin can read and write directly. It is registered on a peer's connection when it is
    /// first used there.
    ///
    /// # Errors
    ///
    /// [`GroupError::InvalidArgument`] for more than an address space, [`GroupError::System`] where the system has no memory.
    pub fn buffer<T: Element>(&self, count: usize) -> Result<Registered<T>, GroupError> {
        let bytes = count
            .checked_mul(size_of::<T>())
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(|| {
                GroupError::InvalidArgument(format!("{count} elements do not fit memory"))
            })?;
        let buffer = Buffer::new(bytes)?;
        self.register(&buffer);
        Ok(Registered::new(buffer, count))
    }

    /// Makes slices of a buffer be sent and received without a copy, like those of [`Group::buffer`].
    pub fn register(&self, buffer: &Buffer) {
        self.shared.lock().mesh.add(buffer);
    }

    /// The number of registrations on connections so far. It stops growing once every buffer was used with all of its peers.
    pub fn registrations(&self) -> u64 {
        self.shared.lock().mesh.registrations()
    }

    /// The plugin's device that this rank uses.
    pub fn device(&self) -> usize {
        self.shared.lock().mesh.device()
    }

    /// The plugin.
    pub fn net(&self) -> Arc<Net> {
        Arc::clone(self.shared.lock().mesh.net())
    }

    /// Ends the calls of every rank, in this and all groups split from the same one: they return [`GroupError::Aborted`] from now on. It
    /// does not wait for calls of other threads, and may be called while they wait.
    pub fn abort(&self) {
        self.shared.aborted.store(true, Ordering::Release);
        // A waiting thread sees the flag and informs the other ranks.
        if let Some(mut state) = try_lock(&self.shared.state) {
            let _ = state.mesh.check();
        }
    }

    /// Makes groups of the ranks with the same color, ranked by key, then by rank here. A rank without a color gets no group. All ranks
    /// call it.
    ///
    /// # Errors
    ///
    /// As a collective's.
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>, GroupError> {
        let own = [
            color.map_or(-1, i64::from),
            key,
            i64::from(self.shared.scopes.load(Ordering::Relaxed)),
        ];
        let mut all = vec![0_i64; 3 * self.size()];
        self.all_gather(&own, &mut all)?;
        let rows: Vec<_> = all.chunks(3).map(|row| (row[0], row[1], row[2])).collect();
        let first = rows.iter().map(|row| row.2).max().unwrap_or(0);
        let mut colors: Vec<_> = rows.iter().map(|row| row.0).filter(|color| *color >= 0).collect();
        colors.sort_unstable();
        colors.dedup();
        let scope = |number: usize| {
            let number = i64::try_from(number).unwrap_or(i64::MAX).saturating_add(first);
            u32::try_from(number)
                .map_err(|_| GroupError::InvalidArgument("too many groups".to_owned()))
        };
        self.shared.scopes.store(scope(colors.len())?, Ordering::Relaxed);
        let Some(color) = color.map(i64::from) else { return Ok(None) };
        let mut ranks: Vec<_> = (0..rows.len()).filter(|rank| rows[*rank].0 == color).collect();
        ranks.sort_by_key(|rank| (rows[*rank].1, *rank));
        let rank = ranks.iter().position(|rank| *rank == self.rank).unwrap_or(0);
        let number = colors.iter().position(|other| *other == color).unwrap_or(0);
        let members = ranks.into_iter().map(|rank| self.members[rank]).collect();
        Ok(Some(Self::new(Arc::clone(&self.shared), scope(number)?, members, rank)))
    }

    /// Exchanges small parts over the rendezvous instead of the network: for what should not be measured. All ranks of the first group call
    /// it; at most [`crate::bootstrap::PART_BYTES_MAX`] bytes each.
    ///
    /// # Errors
    ///
    /// Those of the rendezvous, and [`GroupError::Aborted`].
    pub fn meet(&self, part: &[u8]) -> Result<Vec<Vec<u8>>, GroupError> {
        // Without the lock, so that progress continues meanwhile.
        let round = self.shared.lock().mesh.place().begin_round(part, self.shared.timeout)?;
        round.wait().map_err(|error| match self.shared.lock().mesh.poll(None) {
            Err(aborted @ GroupError::Aborted { .. }) => aborted,
            _ => error,
        })
    }

    /// Reports to the rendezvous why this rank gives up, before it closes anything. Returns whether that was received.
    pub fn give_up(&self, why: &GroupError) -> bool {
        self.shared.lock().mesh.place().give_up(why)
    }

    /// The mesh's rank for `rank` of this group, if it exists.
    pub(crate) fn rank_of(&self, rank: usize) -> Result<usize, GroupError> {
        self.members.get(rank).copied().ok_or_else(|| {
            GroupError::InvalidArgument(format!("there is no rank {rank} among {}", self.size()))
        })
    }

    pub(crate) fn collective<T>(
        &self,
        run: impl FnOnce(&mut Session<'_>) -> Result<T, GroupError>,
    ) -> Result<T, GroupError> {
        let mut state = self.shared.lock();
        state.mesh.check()?;
        // Not an atomic addition: the lock is held.
        let number = self.calls.load(Ordering::Relaxed);
        self.calls.store(number.wrapping_add(1), Ordering::Relaxed);
        let name = (self.scope, number);
        let State { mesh, work, .. } = &mut *state;
        let ended = run(&mut Session::new(mesh, work, &self.members, self.rank, name));
        ended.map_err(|error| mesh.collective_failed(error))
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;
    use crate::support::{WAIT, library, ranks, ranks_within};

    #[test]
    fn the_memory_of_a_buffer_is_freed_when_it_is_dropped() {
        ranks(&library(), 2, |group| {
            let mut buffer = group.buffer::<u8>(100_000).unwrap();
            if group.rank() == 0 {
                group.send(&buffer, 1, 1).unwrap();
            } else {
                group.recv(&mut buffer, 0, 1).unwrap();
            }
            assert_eq!((group.registrations(), group.shared.lock().mesh.buffers()), (1, 1));
            drop(buffer);
            let deadline = Instant::now() + WAIT;
            while group.shared.lock().mesh.buffers() > 0 {
                assert!(Instant::now() < deadline, "it is kept");
                thread::yield_now();
            }
            group.meet(&[]).unwrap();
        });
    }

    /// Waits until `is_so`.
    fn await_that(is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + WAIT;
        while !is_so() {
            assert!(Instant::now() < deadline, "it never comes about");
            thread::yield_now();
        }
    }

    #[test]
    fn the_memory_of_a_send_that_was_dropped_is_freed_when_its_receiver_has_left() {
        ranks(&library(), 2, |group| {
            group.barrier().unwrap();
            let data: Arc<[u8]> = vec![7; 8 << 20].into();
            if group.rank() == 0 {
                drop(group.isend(Arc::clone(&data), 1, 1).unwrap());
                group.meet(&[]).unwrap();
                await_that(|| Arc::strong_count(&data) == 1);
            } else {
                // It receives nothing, and leaves.
                group.meet(&[]).unwrap();
            }
        });
    }

    #[test]
    fn a_rank_that_leaves_while_handles_are_left_says_farewell_and_its_calls_end() {
        ranks_within(&library(), 2, Duration::from_secs(5), |group| {
            group.barrier().unwrap();
            if group.rank() == 1 {
                let (weak, split) = (group.downgrade(), group.split(Some(0), 0).unwrap().unwrap());
                drop(group);
                let waiting = thread::spawn(move || split.recv(&mut [0_u8], 0, 1));
                weak.leave();
                let ended = waiting.join().unwrap();
                assert!(matches!(ended, Err(GroupError::Bootstrap(_))), "{ended:?}");
                return assert!(weak.is_gone());
            }
            group.split(Some(0), 0).unwrap();
            let ended = group.recv(&mut [0_u8], 1, 1);
            assert!(matches!(ended, Err(GroupError::PeerLost { rank: 1, .. })), "{ended:?}");
            // That call's alone.
            let mut came = [0_u8];
            group.sendrecv(&[7_u8], 0, &mut came, 0, 2).unwrap();
            assert_eq!(came, [7]);
        });
    }

    /// Foreign code that says when it runs, and may panic then.
    struct Foreign {
        ran: Arc<AtomicBool>,
        panics: bool,
    }

    impl Foreign {
        fn run(&self) {
            self.ran.store(true, Ordering::Release);
            assert!(!self.panics, "as this test wants it");
        }
    }

    impl Wake for Foreign {
        fn wake(self: Arc<Self>) {
            self.run();
        }
    }

    /// An owner of memory.
    struct Owner(Foreign);

    impl Drop for Owner {
        fn drop(&mut self) {
            self.0.run();
        }
    }

    #[test]
    fn foreign_code_that_panics_does_not_end_the_progress_between_calls() {
        ranks(&library(), 1, |group| {
            for panics in [true, true, false] {
                let ran = Arc::<AtomicBool>::default();
                let foreign = Foreign { ran: Arc::clone(&ran), panics };
                group.shared.wakers.add(&Waker::from(Arc::new(foreign)));
                await_that(|| ran.load(Ordering::Acquire));
                let ran = Arc::<AtomicBool>::default();
                let owner = Owner(Foreign { ran: Arc::clone(&ran), panics });
                let receiving = group.irecv(vec![0_u8], 0, 1).unwrap();
                assert!(group.shared.lock().keep(receiving.op().unwrap(), owner).is_none());
                drop(group.isend(vec![7_u8], 0, 1).unwrap());
                await_that(|| ran.load(Ordering::Acquire));
                drop(receiving);
            }
        });
    }

    #[test]
    fn cpus_that_ranks_share_count_once() {
        assert_eq!(union(["3", "3"].into_iter()), 2);
        assert_eq!(union(["1", "2", "00000001,00000000"].into_iter()), 3);
        assert_eq!(union(["ff,ffffffff"].into_iter()), 40);
    }
}
