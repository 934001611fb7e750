//! A group: ranks that exchange messages and call collectives.

mod joining;
mod progress;

use std::any::Any;
use std::mem::{self, ManuallyDrop};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::bootstrap::{Bootstrap, Hub};
use crate::collective::{Session, Work};
use crate::error::GroupError;
use crate::loader::{Buffer, Element, Net, forks};
use crate::memory::Registered;
use crate::mesh::{Call, Mesh, OpId, Space, What};
use crate::messages::entry::Entry;
use crate::objects::{Receive, Schemas};
use crate::tuning::Tuning;
pub use joining::Builder;
use progress::{Mover, Wakers};

/// A rank's membership in a group: messages between two ranks, and collectives.
///
/// A `Group` is a handle: clones are the same membership. Progress is made inside calls of this group or of any group split from it, and
/// between calls by a thread that polls every 2 ms: a rank that computes delays the ranks that send it long messages. With
/// [`Builder::progress_thread`] the thread polls every 50 µs while anything moves.
///
/// **Threads.** Calls of one thread are in order. Calls for messages, objects, exchanges and halos release the lock of the group while they
/// wait, so several threads may make them at once. A collective of elements holds the lock until it has ended: calls of other threads wait
/// meanwhile, a send too, and a collective that cannot end before such a call runs ends in [`GroupError::Timeout`]. Groups that were split
/// from each other share the lock, and the parts of their collectives one order for each peer. So collectives, whichever of these groups
/// they belong to, must be called by one thread at a time, and in the same order on all ranks that take part.
///
/// **Failure.** A rank that dies is [`GroupError::PeerLost`] on all others; one that stops is [`GroupError::Timeout`] with its rank after
/// [`Builder::timeout`]; [`Group::abort`] is [`GroupError::Aborted`]. The group has failed then: its connections are closed, no call uses
/// its memory any more, and every later call returns the first cause. A rank that stops and goes on later may still write to registered
/// memory of calls that it took part in: the log says so, as the plugin's deregMr fails, and that memory is never freed. No call panics,
/// aborts the process or hangs; if one panics all the same, as a logger may, the group has failed too. Groups that were split from each
/// other fail together, so these errors have ranks of the first group.
///
/// A rank that drops its last handle leaves: what it has sent still arrives, and only ranks that need it notice. A message or an object to it
/// or from it is [`GroupError::PeerLost`] for that call alone. A collective of elements that needs it fails the group, because its ranks are
/// no longer in step: all ranks get [`GroupError::PeerLost`] with the rank that left. The drop waits until long messages that this rank has
/// sent are received, for [`Builder::timeout`] at most. Then it waits for an answer of all others, which takes milliseconds; if one of them is
/// stopped, it waits a quarter of the timeout, 10 s at most.
#[derive(Clone, Debug)]
pub struct Group {
    pub(crate) shared: Arc<Shared>,
    pub(crate) scope: u32,
    /// Ranks in the mesh, by rank in this group.
    pub(crate) members: Arc<[usize]>,
    rank: usize,
    pub(crate) counts: Arc<Counts>,
}

/// Shared by the handles of one group, and dropped with the last one.
#[derive(Debug)]
pub(crate) struct Counts {
    /// The number of collectives so far.
    calls: AtomicU32,
    /// The number of collectives of objects so far.
    pub(crate) objects: AtomicU32,
    /// The last broadcast of an object of which this rank is the root.
    pub(crate) rooted: Mutex<Option<Space>>,
    /// The number of exchanges so far.
    pub(crate) exchanges: AtomicU32,
    /// The next stream of exchanges; 0 is the one of [`Group::exchange`].
    pub(crate) streams: AtomicU32,
    scope: u32,
    shared: Arc<Shared>,
}

impl Drop for Counts {
    /// Ends messages of this rank to itself. Requests have handles too, so no request receives them any more; and other groups may last
    /// long.
    fn drop(&mut self) {
        let Some(mut state) = self.shared.lock_here() else { return };
        state.mesh.drop_own(self.scope);
        let ended = state.take_ended();
        drop(state);
        drop(ended);
    }
}

/// Shared by all handles.
#[derive(Debug)]
pub(crate) struct Shared {
    presence: Mutex<Presence>,
    /// Signalled when this rank has left.
    has_left: Condvar,
    state: Arc<Mutex<State>>,
    pub(crate) wakers: Arc<Wakers>,
    tuning: Tuning,
    /// By rank in the mesh.
    features: Vec<u32>,
    aborted: Arc<AtomicBool>,
    /// The lowest scope that no group of this rank uses.
    scopes: AtomicU32,
    timeout: Duration,
    device: usize,
    net: Arc<Net>,
    /// As [`forks`] counted them in the process that joined.
    forks: u32,
}

/// Whether a rank has left.
#[derive(Debug)]
enum Presence {
    Here {
        mover: Mover,
        hub: Option<Hub>,
    },
    /// A call leaves, and waits for this thread, which is the group's own.
    Leaving(Option<ThreadId>),
    Left,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) mesh: Mesh,
    work: Work,
    /// Lists of operations from earlier blocks, for reuse.
    pub(crate) blocks: Vec<Vec<Entry>>,
    /// Memory of operations that were dropped. It is freed after the mesh has closed.
    kept: Vec<(OpId, Box<dyn Any + Send>)>,
    /// Receives of objects that make progress also while their owners wait for something else.
    pub(crate) receives: Vec<Arc<Mutex<Receive>>>,
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

    /// Makes progress of receives whose owners wait for something else.
    fn advance_receives(&mut self) {
        // None is added or removed meanwhile: that takes the lock.
        let receives = mem::take(&mut self.receives);
        for receive in &receives {
            // Its owner may have it, to take what has come.
            if let Ok(mut receive) = receive.try_lock() {
                receive.advance_for_owner(self);
            }
        }
        self.receives = receives;
    }

    /// Takes out the memory of operations that have ended, or of all if the group has failed. The caller drops the memory without the lock,
    /// since that runs its owners' code.
    fn take_ended(&mut self) -> Vec<(OpId, Box<dyn Any + Send>)> {
        let Self { mesh, kept, .. } = self;
        kept.extract_if(.., |(op, _)| !mesh.is_open(*op)).collect()
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

/// The lock.
fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(after_panic)
}

/// The lock, if no other thread has it.
fn try_lock(state: &Mutex<State>) -> Option<MutexGuard<'_, State>> {
    match state.try_lock() {
        Ok(state) => Some(state),
        Err(TryLockError::Poisoned(poisoned)) => Some(after_panic(poisoned)),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The lock after a panic under it: the group fails before anything else happens. Operations of the call that panicked are still in
/// progress, although the memory that was lent to the call is its caller's again.
#[cold]
fn after_panic(poisoned: PoisonError<MutexGuard<'_, State>>) -> MutexGuard<'_, State> {
    let mut state = poisoned.into_inner();
    state.mesh.panicked();
    state
}

impl Shared {
    /// Whether this is a copy in a forked child of the process that joined. Connections, threads and the rendezvous belong to the parent,
    /// which continues.
    pub(crate) fn is_forked(&self) -> bool {
        self.forks != forks()
    }

    /// An error in a forked child.
    pub(crate) fn here(&self) -> Result<(), GroupError> {
        if self.is_forked() {
            let why = "this process was forked from the one that joined the group, and cannot use it: start processes by spawn, or before the first one joins";
            return Err(GroupError::Usage(why.to_owned()));
        }
        Ok(())
    }

    /// The lock, for a call. An error in a forked child, as [`Shared::lock_here`].
    pub(crate) fn enter(&self) -> Result<MutexGuard<'_, State>, GroupError> {
        self.here()?;
        Ok(self.lock())
    }

    /// The lock, for code that returns no error, such as a drop. None in a forked child: nothing would release the lock there if a thread
    /// of the parent held it at the fork, and operations belong to the parent, where they continue.
    pub(crate) fn lock_here(&self) -> Option<MutexGuard<'_, State>> {
        (!self.is_forked()).then(|| self.lock())
    }

    fn leave(&self) {
        let Some(mut state) = self.lock_here() else { return };
        let ended = state.mesh.close();
        let kept = state.take_ended();
        drop(state);
        drop(kept);
        if let Err(why) = ended {
            log::debug!("a group ends with an error: {why}");
        }
        let mut presence = self.presence();
        let Presence::Here { mover, .. } = &*presence else { return self.await_left(presence) };
        let leaving = Presence::Leaving(mover.thread());
        let here = mem::replace(&mut *presence, leaving);
        drop(presence);
        if let Presence::Here { mover, hub } = here {
            // After the close, because outstanding sends may need a connection. When the thread has ended, nothing calls the plugin any
            // more, and the process may end. Without the lock, because foreign code that runs on that thread may leave too.
            drop(mover);
            if let Some(hub) = hub {
                hub.wait_for_all_to_leave(self.timeout);
                // The next group may meet at its address, while something still holds a handle of this one.
                drop(hub);
            }
        }
        *self.presence() = Presence::Left;
        self.has_left.notify_all();
    }

    /// Waits until the leaving thread has left, within the time that it may take. Does not wait on the group's own thread, for which the
    /// leaving thread waits.
    fn await_left(&self, presence: MutexGuard<'_, Presence>) {
        let own = Some(thread::current().id());
        let leaves =
            |presence: &mut Presence| matches!(presence, Presence::Leaving(mover) if *mover != own);
        let within = self.timeout.saturating_mul(2);
        drop(self.has_left.wait_timeout_while(presence, within, leaves));
    }

    fn presence(&self) -> MutexGuard<'_, Presence> {
        self.presence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.is_forked() {
            let presence = self.presence.get_mut().unwrap_or_else(PoisonError::into_inner);
            let presence = mem::replace(presence, Presence::Left);
            let parents = (presence, Arc::clone(&self.state));
            let _never_dropped = ManuallyDrop::new(parents);
            return;
        }
        self.leave();
    }
}

/// A weak handle to a rank's membership: see [`Group::downgrade`].
#[derive(Clone, Debug)]
pub struct WeakGroup(Weak<Shared>);

impl WeakGroup {
    /// Whether the last handle is gone.
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Leaves, as the drop of the last handle does: messages that were sent still arrive. Remaining handles return an error from now on.
    /// For the end of a process in which some handles may never be dropped.
    pub fn leave(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.leave();
        }
    }
}

impl Group {
    fn new(shared: Arc<Shared>, scope: u32, members: Arc<[usize]>, rank: usize) -> Self {
        let counts = Counts {
            calls: AtomicU32::new(0),
            objects: AtomicU32::new(0),
            rooted: Mutex::default(),
            exchanges: AtomicU32::new(0),
            streams: AtomicU32::new(1),
            scope,
            shared: Arc::clone(&shared),
        };
        Self { shared, scope, members, rank, counts: Arc::new(counts) }
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

    /// The value that a rank passed to [`Builder::features`]; 0 for a rank that does not exist.
    pub fn features(&self, rank: usize) -> u32 {
        let known = self.members.get(rank).and_then(|rank| self.shared.features.get(*rank));
        known.copied().unwrap_or(0)
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
        if let Some(mut state) = self.shared.lock_here() {
            state.mesh.add(buffer);
        }
    }

    /// The number of registrations on connections so far. It stops growing once every buffer was used with all of its peers, apart from long
    /// messages of exchanges and halos of any lengths, which may be registered while they move.
    pub fn registrations(&self) -> u64 {
        self.shared.lock_here().map_or(0, |state| state.mesh.registrations())
    }

    /// The plugin's device that this rank uses.
    pub fn device(&self) -> usize {
        self.shared.device
    }

    /// The plugin.
    pub fn net(&self) -> Arc<Net> {
        Arc::clone(&self.shared.net)
    }

    /// Ends the calls of every rank, in this and all groups split from the same one: they return [`GroupError::Aborted`] from now on. It
    /// does not wait for calls of other threads, and may be called while they wait.
    pub fn abort(&self) {
        if self.shared.is_forked() {
            return;
        }
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

    /// Exchanges small parts over the rendezvous instead of the network, for exchanges that should not be measured. All ranks of the first
    /// group call it, with at most [`crate::bootstrap::PART_BYTES_MAX`] bytes each.
    ///
    /// # Errors
    ///
    /// Those of the rendezvous, [`GroupError::PeerLost`] where a rank has left, for this call alone, and [`GroupError::Aborted`].
    pub fn meet(&self, part: &[u8]) -> Result<Vec<Vec<u8>>, GroupError> {
        // Without the lock, so that progress continues meanwhile.
        let round = self.shared.enter()?.mesh.place().begin_round(part, self.shared.timeout)?;
        round.wait().map_err(|error| match self.shared.lock().mesh.poll(None) {
            Err(aborted @ GroupError::Aborted { .. }) => aborted,
            _ => error,
        })
    }

    /// Reports to the rendezvous why this rank gives up, before it closes anything. Returns whether that was received.
    pub fn give_up(&self, why: &GroupError) -> bool {
        self.shared.lock_here().is_some_and(|mut state| state.mesh.place().give_up(why))
    }

    /// Checks that this rank exists.
    ///
    /// # Errors
    ///
    /// [`GroupError::InvalidArgument`] with the number of ranks.
    pub fn check_rank(&self, rank: usize) -> Result<(), GroupError> {
        self.rank_of(rank).map(drop)
    }

    /// The mesh's rank for `rank` of this group, if it exists.
    pub(crate) fn rank_of(&self, rank: usize) -> Result<usize, GroupError> {
        self.members.get(rank).copied().ok_or_else(|| {
            GroupError::InvalidArgument(format!("there is no rank {rank} among {}", self.size()))
        })
    }

    /// Runs a collective. A collective of no elements is counted too: otherwise a rank with elements would meet the next collective of a
    /// rank without.
    pub(crate) fn collective<T>(
        &self,
        what: What,
        run: impl FnOnce(&mut Session<'_>) -> Result<T, GroupError>,
    ) -> Result<T, GroupError> {
        let mut state = self.shared.enter()?;
        state.mesh.check()?;
        // Not an atomic addition: the lock is held.
        let number = self.counts.calls.load(Ordering::Relaxed);
        self.counts.calls.store(number.wrapping_add(1), Ordering::Relaxed);
        let call = Call { scope: self.scope, number, what };
        let State { mesh, work, .. } = &mut *state;
        let ended = run(&mut Session::new(mesh, work, &self.members, self.rank, call));
        ended.map_err(|error| mesh.collective_failed(error))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::{Wake, Waker};
    use std::time::Instant;

    use super::*;
    use crate::fork::in_child;
    use crate::halo::{FixedHalo1d, Halo1d};
    use crate::loader::Op;
    use crate::messages::Any;
    use crate::support::{WAIT, library, ranks, ranks_within};

    const LONG: usize = 8 << 20;

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
            assert!(Instant::now() < deadline, "the condition never holds");
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
                // Rank 1 receives nothing, and leaves.
                group.meet(&[]).unwrap();
            }
        });
    }

    #[test]
    fn the_memory_of_a_send_to_oneself_that_was_dropped_is_freed_when_its_group_has_no_handle() {
        ranks(&library(), 1, |group| {
            let split = || group.split(Some(0), 0).unwrap().unwrap();
            let (first, second) = (split(), split());
            let data: Arc<[u8]> = vec![7; 8].into();
            for split in [&first, &second] {
                drop(split.isend(Arc::clone(&data), 0, 1).unwrap());
            }
            assert_eq!(Arc::strong_count(&data), 3);
            drop(first);
            assert_eq!(Arc::strong_count(&data), 2, "the other group's message can be received");
            assert_eq!(second.recv_vec::<u8>(Any, 1).unwrap().0, [7; 8]);
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
            // The error is only that call's.
            let mut came = [0_u8];
            group.sendrecv(&[7_u8], 0, &mut came, 0, 2).unwrap();
            assert_eq!(came, [7]);
        });
    }

    /// An owner of memory that waits for the other end before it is gone.
    struct Waits(mpsc::Receiver<()>);

    impl Drop for Waits {
        fn drop(&mut self) {
            let _ = self.0.recv_timeout(WAIT);
        }
    }

    #[test]
    fn a_thread_that_leaves_while_another_does_waits_for_it() {
        ranks(&library(), 1, |group| {
            // The group's own thread is held, and so is the first thread that leaves, which waits for the group's thread.
            let (lets_go, held) = mpsc::channel();
            let receiving = group.irecv(vec![0_u8], 0, 1).unwrap();
            assert!(group.shared.lock().keep(receiving.op().unwrap(), Waits(held)).is_none());
            drop(group.isend(vec![7_u8], 0, 1).unwrap());
            await_that(|| group.shared.lock().kept.is_empty());
            let leave = || {
                let weak = group.downgrade();
                thread::spawn(move || weak.leave())
            };
            let first = leave();
            await_that(|| !matches!(*group.shared.presence(), Presence::Here { .. }));
            let handles = || Arc::strong_count(&group.shared);
            let before = handles();
            let second = leave();
            await_that(|| handles() > before || second.is_finished());
            // Time for a thread to return too early.
            (0..1_000).for_each(|_| thread::yield_now());
            let returned_early = first.is_finished() || second.is_finished();
            lets_go.send(()).unwrap();
            second.join().unwrap();
            assert!(!returned_early && matches!(*group.shared.presence(), Presence::Left));
            first.join().unwrap();
            drop(receiving);
        });
    }

    /// Foreign code that records that it has run, and may panic.
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
    fn a_forked_child_leaves_requests_to_its_parent() {
        ranks(&library(), 2, |group| {
            let other = 1 - group.rank();
            let halo = FixedHalo1d::<u8>::new(&group, 8, 8).unwrap();
            let exchange = group.exchange::<u8>(&[other], &[other]).unwrap();
            // Rank 1 sends the object, and receives what rank 0 sends, after the fork.
            if group.rank() == 1 {
                group.meet(&[]).unwrap();
                group.broadcast_obj(Some(5_u8), 1).unwrap();
                assert_eq!(group.recv_vec::<u8>(0, 1).unwrap().0, [7; LONG]);
                assert_eq!(group.recv_obj::<Vec<u8>>(0, 1).unwrap().0, [8; LONG]);
                return group.send(&[9_u8], 0, 1).unwrap();
            }
            let mut requests = Some((
                group.isend(vec![7_u8; LONG], 1, 1).unwrap(),
                group.isend_obj(&vec![8_u8; LONG], 1, 1).unwrap(),
                group.irecv(vec![0_u8], 1, 1).unwrap(),
                group.ibroadcast_obj::<u8>(None, 1).unwrap(),
                (halo, exchange),
            ));
            // As another thread's call holds it.
            let state = group.shared.lock();
            assert!(in_child(|| drop(requests.take())), "a drop waits for a lock of the parent's");
            drop(state);
            group.meet(&[]).unwrap();
            let (sending, object, receiving, broadcast, rest) = requests.unwrap();
            sending.wait().unwrap();
            object.wait().unwrap();
            assert_eq!(broadcast.wait().unwrap(), 5);
            assert_eq!(receiving.wait().unwrap().0, [9]);
            drop(rest);
        });
    }

    #[test]
    fn each_call_in_a_forked_child_is_an_error_at_once() {
        ranks(&library(), 1, |group| {
            let exchange = group.exchange::<u8>(&[], &[]).unwrap();
            let mut halo = FixedHalo1d::<u8>::new(&group, 8, 8).unwrap();
            let mut ring = Halo1d::<u8>::ring(&group);
            let mut sending = group.isend(vec![7_u8], 0, 1).unwrap();
            let calls = || {
                let (own, mut came) = ([7_u8], [0_u8]);
                let all = [
                    group.barrier(),
                    group.broadcast(&mut came, 0),
                    group.all_reduce(&mut came, Op::Sum),
                    group.all_reduce_into(&own, &mut came, Op::Sum),
                    group.reduce(&own, Some(&mut came), Op::Sum, 0),
                    group.reduce_scatter(&own, &mut came, Op::Sum),
                    group.sendrecv(&own, 0, &mut came, 0, 1).map(drop),
                    group.isend(own.to_vec(), 0, 1).map(drop),
                    group.irecv(came.to_vec(), 0, 1).map(drop),
                    group.group(|_| Ok(())),
                    group.isend_obj(&7_u8, 0, 1).map(drop),
                    group.recv_obj::<u8>(Any, Any).map(drop),
                    group.gather_obj(&7_u8, 0).map(drop),
                    group.broadcast_obj(Some(7_u8), 0).map(drop),
                    group.split(None, 0).map(drop),
                    group.meet(&[]).map(drop),
                    group.exchange::<u8>(&[], &[]).map(drop),
                    sending.test().map(drop),
                    exchange.finish(),
                    exchange.wait(),
                    halo.round(|_, _| {}).map(drop),
                    ring.round(Some(own.to_vec()), None).map(drop),
                ];
                for (place, ended) in all.into_iter().enumerate() {
                    assert!(matches!(ended, Err(GroupError::Usage(_))), "{place}: {ended:?}");
                }
                group.abort();
                assert!(!group.give_up(&GroupError::Usage(String::new())));
                assert_eq!((group.device(), group.registrations()), (0, 0));
            };
            // As another thread's call holds it.
            let state = group.shared.lock();
            assert!(in_child(calls), "a call waits for a lock of the parent's, or goes on");
            drop(state);
            group.barrier().unwrap();
        });
    }

    #[test]
    fn a_reduction_or_a_ring_of_one_rank_that_has_aborted_is_an_error() {
        ranks(&library(), 1, |group| {
            let mut ring = Halo1d::<u8>::ring(&group);
            group.abort();
            let (own, mut came) = ([7_u8], [0_u8]);
            for ended in [
                group.all_reduce(&mut came, Op::Sum),
                group.reduce(&own, Some(&mut came), Op::Sum, 0),
                group.reduce_scatter(&own, &mut came, Op::Sum),
                ring.round(Some(own.to_vec()), None).map(drop),
            ] {
                assert!(matches!(ended, Err(GroupError::Aborted { .. })), "{ended:?}");
            }
            assert_eq!(came, [0]);
        });
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
}
