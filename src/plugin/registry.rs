//! The endpoints of the process: which communicator owns which.
//!
//! The registry's own lock is taken before that of an entry of the table, and only to find an endpoint, to reserve an entry, or to take an
//! endpoint out: opening and draining happen outside of the registry's lock.

use std::collections::{HashMap, hash_map};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;
use std::time::Duration;

use fabric::{Guard, Lock};

use crate::endpoint::Endpoint;
use crate::endpoint::broken::PANICKED;
use crate::endpoint::ownership::Communicator;
use crate::endpoint::slots::Slots;
use crate::error::{Cause, Error, FabricError, Noun, Result, Table};
use crate::label::Label;
use crate::object_id::{ObjectId, ObjectKind};

use super::table::{ENTRIES, LockedEntry, entry, try_lock};
use super::{Owner, TrafficClass, dump, exit, keeper};

static REGISTRY: Lock<Option<Registry>> = Lock::new(None);
/// Held while an endpoint that lacked resources is opened for the second time. Taken before any other lock.
static RETRY: Lock<()> = Lock::new(());
/// Taken last, for one read or write.
static CLOSING: Lock<Closing> = Lock::new(Closing { open: 0, kept: Vec::new() });

/// When finalize, or the close of the last comm, tries again to take an endpoint that another thread uses.
const TAKE_AGAIN: Duration = Duration::from_millis(1);

thread_local! {
    /// Dropped as the thread ends.
    static ALIVE: Arc<()> = Arc::new(());
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Context {
        slot: u16,
        generation: u16,
    },
    /// A rail has one traffic class, so connects of one thread in different classes use different endpoints.
    Thread(ThreadId, Option<TrafficClass>),
}

impl Key {
    fn of(context: ObjectId) -> Self {
        Self::Context { slot: context.slot(), generation: context.generation() }
    }

    fn is_of(self, owner: ThreadId) -> bool {
        matches!(self, Self::Thread(thread, _) if thread == owner)
    }
}

#[derive(Debug)]
struct Registry {
    /// By owner, and by the device's number in the process.
    endpoints: HashMap<(Key, usize), Assignment>,
    /// The threads that own endpoints, each with a reference that is dead once the thread has ended.
    threads: HashMap<ThreadId, Weak<()>>,
    /// The number of the last communicator.
    communicator: u32,
    /// The open contexts, each with its communicator's traffic class.
    contexts: Slots<Option<TrafficClass>>,
}

/// A communicator's endpoint on a device. Communicators share an endpoint where a NIC has no resources for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Assignment {
    number: u16,
    communicator: Communicator,
    class: Option<TrafficClass>,
}

/// The endpoints of the process, for closing them in order.
#[derive(Debug)]
struct Closing {
    /// Endpoints that are open, or being opened.
    open: usize,
    /// Drained endpoints whose memory others may still have mapped: see [`Endpoint::is_mapped_by_peers`].
    #[expect(clippy::vec_box, reason = "they are in boxes already, and large")]
    kept: Vec<Box<Endpoint>>,
}

/// Opens a communicator context (v11 and newer). Also returns whether it is the only one.
pub(super) fn open_context(class: Option<TrafficClass>) -> Result<(ObjectId, bool)> {
    let mut registry = registry();
    let contexts = &mut registry.get_or_insert_with(Registry::new).contexts;
    let is_first = contexts.is_empty();
    let mut generation = 0;
    let slot = contexts.insert_with(|_, current| {
        generation = current;
        class
    });
    let full = Cause::Full { table: Table::Communicators, count: u16::MAX.into() };
    let slot = slot.ok_or(full)?;
    Ok((ObjectId::new(ObjectKind::Context, 0, generation, slot, 0), is_first))
}

/// Ends a context's id, and closes what its communicator has open on endpoints that it shares. Returns its registrations there, which the
/// caller deregisters before it calls [`remove_context`].
pub(super) fn close_context(context: ObjectId) -> Result<Vec<ObjectId>> {
    let shared: Vec<_> = {
        let mut registry = registry();
        let registry = registry.get_or_insert_with(Registry::new);
        let key = registry.key(Owner::Context(context))?;
        registry.contexts.remove(context.slot(), context.generation());
        let owned = registry.endpoints.iter().filter(|((owner, _), _)| *owner == key);
        owned
            .map(|(_, assignment)| *assignment)
            .filter(|assignment| registry.owners(assignment.number) > 1)
            .collect()
    };
    let mut regions = Vec::new();
    for Assignment { number, communicator, .. } in shared {
        let close =
            |endpoint: &mut Endpoint| Result::<_>::Ok(endpoint.close_communicator(communicator));
        // An endpoint that was not opened, or that has panicked, has nothing to deregister.
        let left = under(&mut entry(number), Noun::Endpoint, close);
        regions.extend(left.unwrap_or_default());
    }
    Ok(regions)
}

/// Removes the assignments of a closed context, and closes the endpoints that no other communicator owns. Called after its regions are
/// deregistered: otherwise the last of two that finalize at the same time would close the endpoint while the other still waits for its
/// regions there.
pub(super) fn remove_context(context: ObjectId) {
    let key = Key::of(context);
    let unowned: Vec<_> = {
        let mut registry = registry();
        let Some(registry) = registry.as_mut() else { return };
        let owned: Vec<_> = registry.endpoints.extract_if(|(owner, _), _| *owner == key).collect();
        let numbers = owned.into_iter().map(|(_, assignment)| assignment.number);
        numbers.filter(|number| registry.owners(*number) == 0).collect()
    };
    // Outside the registry's lock: closing drains, and others must not wait for that.
    unowned.into_iter().filter_map(take_unowned).for_each(end);
}

/// Takes an endpoint that no communicator owns out of its entry.
fn take_unowned(number: u16) -> Option<Box<Endpoint>> {
    loop {
        if let Some(taken) = try_take_unowned(number) {
            return taken;
        }
        // Sleep between attempts: the endpoint's opening, or a deregMr on it, may take seconds.
        std::thread::sleep(TAKE_AGAIN);
    }
}

/// Takes the endpoint if it can be taken now; None if it cannot yet. `Some(None)`: there is no endpoint to take.
fn try_take_unowned(number: u16) -> Option<Option<Box<Endpoint>>> {
    let registry = registry();
    // An endpoint that did not open has left the number to another communicator.
    if registry.as_ref().is_none_or(|registry| registry.owners(number) > 0) {
        return Some(None);
    }
    // Try the entry's lock, with the registry's held: while an endpoint opens there, other threads must not wait for the registry.
    let mut entry = try_lock(number)?;
    let is_waited_on = entry.as_ref().is_some_and(|endpoint| endpoint.is_waited_on());
    (!is_waited_on).then(|| entry.take())
}

/// Closes an endpoint. With the last one, those that were kept for others are released.
fn end(mut endpoint: Box<Endpoint>) {
    if keeper::forget(endpoint.number()) {
        dump::end();
    }
    match catch_unwind(AssertUnwindSafe(|| endpoint.drain())) {
        Ok(report) => super::record(&report),
        Err(_) => endpoint.panicked(),
    }
    endpoint_closed(Some(endpoint));
}

/// An endpoint is no longer open. Releases the drained endpoints that need not be kept.
fn endpoint_closed(drained: Option<Box<Endpoint>>) {
    let last = {
        let mut closing = CLOSING.lock();
        closing.open -= 1;
        closing.kept.extend(drained);
        let is_last = closing.open == 0;
        let kept = closing.kept.extract_if(.., |kept| is_last || !kept.is_mapped_by_peers());
        kept.collect::<Vec<_>>()
    };
    for endpoint in last {
        // The panic hook has logged it.
        let _panicked = catch_unwind(AssertUnwindSafe(|| endpoint.release()));
    }
}

/// Runs `body` on the endpoint that `owner` has on `device`, opened by `open` at the first use. Opens under the endpoint's own lock, so
/// that other endpoints can be opened at the same time.
pub(super) fn with_owned<R, E: From<Error>>(
    owner: Owner,
    device: usize,
    open: impl Fn(u16, Option<TrafficClass>) -> Result<Box<Endpoint>>,
    body: impl FnOnce(&mut Endpoint) -> Result<R, E>,
) -> Result<R, E> {
    let mut has_closed_abandoned = false;
    let (mut locked, communicator) = loop {
        let mut registry = registry();
        let known = registry.get_or_insert_with(Registry::new);
        let key = (known.key(owner)?, device);
        if let Some(assignment) = known.endpoints.get(&key).copied() {
            drop(registry);
            match owned(key, assignment) {
                Some(locked) => break (locked, assignment.communicator),
                None => std::thread::yield_now(),
            }
            continue;
        }
        if !std::mem::replace(&mut has_closed_abandoned, true) {
            // Abandoned endpoints may have the resources that a new one needs.
            drop(registry);
            close_abandoned();
            continue;
        }
        let (number, entry) = known.free_entry()?;
        // From now on a thread that finds this number waits for the entry's lock.
        let assignment = known.assign(key, number, known.class(owner));
        drop(registry);
        break open_in(entry, key, assignment, open)?;
    };
    under(&mut locked, Noun::Endpoint, |endpoint| {
        endpoint.check_intact()?;
        endpoint.set_calling_communicator(communicator);
        body(endpoint)
    })
}

/// The entry of an open endpoint that is assigned to `key`. None: the endpoint was closed since the assignment was read, and its number may
/// be another's; or another thread of the communicator failed to open it, and will either share another endpoint or remove the assignment.
fn owned(key: (Key, usize), assignment: Assignment) -> Option<LockedEntry> {
    let locked = entry(assignment.number);
    // Try the registry's lock, since it comes before an entry's. A thread that takes an endpoint out tries the entry's with it locked.
    let registry = REGISTRY.try_lock()?;
    let is_assigned = registry.as_ref()?.endpoints.get(&key) == Some(&assignment);
    (is_assigned && locked.is_some()).then_some(locked)
}

/// Opens an endpoint for `key` in its entry, or shares another if resources are lacking.
fn open_in(
    entry: LockedEntry,
    key: (Key, usize),
    assignment: Assignment,
    open: impl Fn(u16, Option<TrafficClass>) -> Result<Box<Endpoint>>,
) -> Result<(LockedEntry, Communicator)> {
    CLOSING.lock().open += 1;
    let opened = open_or_share(entry, key, assignment, &open).or_else(|error| {
        error.cause.lacks_resources().ok_or(error)?;
        // Endpoints that were opened at the same time may have competed for resources: try once more, alone.
        let _retrying = RETRY.lock();
        let (entry, assignment) = assign_again(key, assignment).ok_or(error)?;
        open_or_share(entry, key, assignment, &open)
    });
    let is_shared = opened.as_ref().map(|(_, is_own)| !is_own);
    if is_shared != Ok(false) {
        endpoint_closed(None);
    }
    opened
        .map(|(entry, _)| (entry, assignment.communicator))
        .inspect_err(|_| forget(key, assignment.communicator))
}

/// Assigns a free entry to `key` again. Its first entry may be another communicator's by now, since `key` was moved to an endpoint to
/// share, which then could not be shared. None if its context was closed meanwhile, or if all entries are in use.
fn assign_again(key: (Key, usize), before: Assignment) -> Option<(LockedEntry, Assignment)> {
    let mut registry = registry();
    let registry = registry.as_mut()?;
    let (number, entry) = registry.free_entry().ok()?;
    let assignment = match registry.endpoints.entry(key) {
        hash_map::Entry::Occupied(assigned) => assigned.into_mut(),
        // The shared endpoint was closed with all its owners, before this one used it.
        hash_map::Entry::Vacant(free) if matches!(key.0, Key::Thread(..)) => free.insert(before),
        hash_map::Entry::Vacant(_) => return None,
    };
    if assignment.communicator != before.communicator {
        return None;
    }
    assignment.number = number;
    Some((entry, *assignment))
}

/// Opens an endpoint in `entry`, which is empty, or shares another one. Returns the endpoint's entry, and whether it is `entry`.
fn open_or_share(
    mut entry: LockedEntry,
    key: (Key, usize),
    assignment: Assignment,
    open: &impl Fn(u16, Option<TrafficClass>) -> Result<Box<Endpoint>>,
) -> Result<(LockedEntry, bool)> {
    debug_assert!(entry.is_none(), "an open endpoint would be dropped without a drain");
    let error = match open(assignment.number, assignment.class) {
        Ok(mut endpoint) => {
            endpoint.set_first_communicator(assignment.communicator);
            *entry = Some(endpoint);
            exit::watch();
            keeper::watch(assignment.number);
            dump::watch();
            return Ok((entry, true));
        }
        Err(error) => error,
    };
    drop(entry);
    let (device, fault) = error.cause.lacks_resources().ok_or(error)?;
    let shared = share(key, assignment).ok_or(error)?;
    warn_of_sharing(device, fault);
    Ok((shared, false))
}

fn warn_of_sharing(device: Label, fault: FabricError) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.swap(true, Ordering::Relaxed) {
        log::warn!(
            "device {device} has no room for another endpoint ({fault}): this communicator shares one with others, as the next ones \
             will; they wait for each other's calls, and fail together"
        );
    }
}

/// The entry of the least loaded endpoint of the device, for `key` to share. As soon as this moves `key` to another endpoint, the number
/// that `key` had may become another communicator's.
fn share(key: (Key, usize), assignment: Assignment) -> Option<LockedEntry> {
    let mut passed_over = Vec::new();
    loop {
        let number = {
            let mut registry = registry();
            let registry = registry.as_mut()?;
            let number = registry.least_loaded(key.1, assignment, &passed_over)?;
            // None if its context was closed meanwhile.
            registry.endpoints.get_mut(&key)?.number = number;
            number
        };
        let entry = entry(number);
        if entry.as_ref().is_some_and(|endpoint| endpoint.check_intact().is_ok()) {
            return Some(entry);
        }
        // That endpoint's opening has failed meanwhile, or it has panicked.
        passed_over.push(number);
    }
}

/// Removes the assignment of `key`: nothing was opened, and nothing is shared.
fn forget(key: (Key, usize), communicator: Communicator) {
    let mut registry = registry();
    if let Some(registry) = registry.as_mut()
        && registry
            .endpoints
            .get(&key)
            .is_some_and(|assignment| assignment.communicator == communicator)
    {
        registry.endpoints.remove(&key);
    }
}

/// Advances the probe of endpoint `number`, unless another thread holds its lock.
pub(super) fn push_probe(number: u16) {
    if let Some(mut locked) = try_lock(number) {
        // A closed or broken endpoint has no probe to advance.
        let _gone = under(&mut locked, Noun::Endpoint, |endpoint| {
            endpoint.check_intact()?;
            endpoint.push_probe();
            Result::<()>::Ok(())
        });
    }
}

/// Runs `body` on the endpoint that `id` names, under its lock. After a panic in it the endpoint fails for good.
pub(super) fn with<R>(id: ObjectId, body: impl FnOnce(&mut Endpoint) -> Result<R>) -> Result<R> {
    with_any(id, |endpoint| {
        endpoint.check_intact()?;
        body(endpoint)
    })
}

/// As [`with`], but also on an endpoint that has failed after a panic: for the calls that close.
pub(super) fn with_any<R>(
    id: ObjectId,
    body: impl FnOnce(&mut Endpoint) -> Result<R>,
) -> Result<R> {
    under(&mut entry(id.endpoint()), Noun::Handle, body)
}

/// Catches panics under the lock, and marks the endpoint.
fn under<R, E: From<Error>>(
    locked: &mut LockedEntry,
    what: Noun,
    body: impl FnOnce(&mut Endpoint) -> Result<R, E>,
) -> Result<R, E> {
    let Some(endpoint) = locked.as_deref_mut() else {
        return Err(Error::from(Cause::Stale(what)).into());
    };
    catch_unwind(AssertUnwindSafe(|| body(endpoint))).unwrap_or_else(|_| {
        endpoint.panicked();
        Err(PANICKED.into())
    })
}

/// Closes endpoint `number` if threads own it and nothing is open on it.
pub(super) fn close_if_unused(number: u16) {
    close_if(number, |endpoint, _| endpoint.is_unused());
}

/// Closes the endpoints of threads that NCCL has abandoned after an abort ([`Endpoint::is_abandoned`]).
fn close_abandoned() {
    let numbers: Vec<(u16, bool)> = match registry().as_mut() {
        Some(registry) => {
            registry.forget_threads();
            let numbers = registry.endpoints.values().map(|assignment| assignment.number);
            numbers.map(|number| (number, registry.owners_have_ended(number))).collect()
        }
        None => return,
    };
    let is_abandoned = |(number, have_ended): &(u16, bool)| {
        // Try the lock: an endpoint that is opening, or in use, is not abandoned.
        let entry = try_lock(*number);
        entry.is_some_and(|entry| entry.as_ref().is_some_and(|open| open.is_abandoned(*have_ended)))
    };
    let abandoned = numbers.into_iter().filter(is_abandoned);
    abandoned.for_each(|(number, _)| close_if(number, Endpoint::is_abandoned));
}

/// Closes endpoint `number` if threads own it and `may_close` returns true for the endpoint and whether these threads have ended.
fn close_if(number: u16, may_close: impl Fn(&Endpoint, bool) -> bool) {
    loop {
        if let Some(taken) = try_take_if(number, &may_close) {
            return taken.into_iter().for_each(end);
        }
        // The entry is in a call, in the keeper's poll, or another communicator's by now, which may open there for seconds.
        std::thread::sleep(TAKE_AGAIN);
    }
}

/// Takes the endpoint if [`close_if`] may close it; None if its entry is locked. `Some(None)`: there is no such endpoint.
fn try_take_if(
    number: u16,
    may_close: impl Fn(&Endpoint, bool) -> bool,
) -> Option<Option<Box<Endpoint>>> {
    let mut registry = registry();
    let Some(registry) = registry.as_mut() else { return Some(None) };
    let owners = registry.endpoints.iter().filter(|(_, assignment)| assignment.number == number);
    let owners: Vec<_> = owners.map(|(key, _)| *key).collect();
    let by_threads = owners.iter().all(|(key, _)| matches!(key, Key::Thread(..)));
    if owners.is_empty() || !by_threads {
        return Some(None);
    }
    let have_ended = registry.owners_have_ended(number);
    // As in `try_take_unowned`.
    let mut locked = try_lock(number)?;
    if !locked.as_ref().is_some_and(|endpoint| may_close(endpoint, have_ended)) {
        return Some(None);
    }
    for key in owners {
        registry.endpoints.remove(&key);
    }
    Some(locked.take())
}

fn registry() -> Guard<'static, Option<Registry>> {
    REGISTRY.lock()
}

impl Registry {
    fn new() -> Self {
        let (endpoints, threads) = (HashMap::new(), HashMap::new());
        Self { endpoints, threads, communicator: 0, contexts: Slots::new(u16::MAX) }
    }

    fn key(&self, owner: Owner) -> Result<Key> {
        match owner {
            Owner::Thread(class) => Ok(Key::Thread(std::thread::current().id(), class)),
            Owner::Context(id) => {
                let (slot, generation) = (id.slot(), id.generation());
                let open =
                    id.is(ObjectKind::Context) && self.contexts.get(slot, generation).is_some();
                if open { Ok(Key::of(id)) } else { Err(Cause::Stale(Noun::Context).into()) }
            }
        }
    }

    /// The traffic class of a context, or of a call.
    fn class(&self, owner: Owner) -> Option<TrafficClass> {
        match owner {
            Owner::Thread(class) => class,
            Owner::Context(id) => *self.contexts.get(id.slot(), id.generation())?,
        }
    }

    /// Makes `number` the endpoint of `key`.
    fn assign(
        &mut self,
        key: (Key, usize),
        number: u16,
        class: Option<TrafficClass>,
    ) -> Assignment {
        self.communicator += 1;
        let assignment =
            Assignment { number, communicator: Communicator(self.communicator), class };
        self.endpoints.insert(key, assignment);
        if let (Key::Thread(thread, _), _) = key {
            // A thread that is already dropping its thread-locals counts as ended.
            let alive = ALIVE.try_with(Arc::downgrade).unwrap_or_default();
            self.threads.insert(thread, alive);
        }
        assignment
    }

    /// Forgets the threads that own no endpoint any more.
    fn forget_threads(&mut self) {
        let Self { endpoints, threads, .. } = self;
        let owns = |thread| endpoints.keys().any(|(key, _)| key.is_of(thread));
        threads.retain(|thread, _| owns(*thread));
    }

    /// Whether the owners of an endpoint are threads, and all have ended.
    fn owners_have_ended(&self, number: u16) -> bool {
        let has_ended = |key: Key| match key {
            Key::Thread(thread, _) => {
                self.threads.get(&thread).is_none_or(|alive| alive.strong_count() == 0)
            }
            Key::Context { .. } => false,
        };
        let mut owned = self.endpoints.iter();
        owned.all(|((key, _), assignment)| assignment.number != number || has_ended(*key))
    }

    fn owners(&self, number: u16) -> usize {
        self.endpoints.values().filter(|assignment| assignment.number == number).count()
    }

    /// The endpoint of `device` with the fewest owners, preferably of the same traffic class; none of those passed over, and not that of
    /// `assignment` itself.
    fn least_loaded(
        &self,
        device: usize,
        assignment: Assignment,
        passed_over: &[u16],
    ) -> Option<u16> {
        let others = self.endpoints.iter().filter(|((_, of), other)| {
            *of == device
                && other.number != assignment.number
                && !passed_over.contains(&other.number)
        });
        let load = |other: &Assignment| {
            (other.class != assignment.class, self.owners(other.number), other.number)
        };
        others.map(|(_, other)| load(other)).min().map(|(_, _, number)| number)
    }

    /// An empty entry that is assigned to no communicator, and its number. Entries are assigned and locked only under the registry's lock,
    /// so that one communicator opens in each.
    fn free_entry(&self) -> Result<(u16, LockedEntry)> {
        let used: Vec<u16> = self.endpoints.values().map(|assignment| assignment.number).collect();
        let free = (0..ENTRIES)
            .filter_map(|number| u16::try_from(number).ok())
            .filter(|number| !used.contains(number))
            .filter_map(|number| Some((number, try_lock(number)?)))
            .find(|(_, entry)| entry.is_none());
        let full = || {
            let count = u32::try_from(ENTRIES).unwrap_or(u32::MAX);
            Cause::Full { table: Table::Endpoints, count }.into()
        };
        free.ok_or_else(full)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver, Sender};
    use std::sync::{Arc, PoisonError};
    use std::thread;
    use std::time::Instant;

    use fabric::Pages;

    use super::super::config::Config;
    use super::super::devices::DeviceTable;
    use super::super::discovery::discover;
    use super::super::opening::open_in_class;
    use super::super::table::NUMBERS;
    use super::*;

    /// Far more than a thread needs for its next step.
    const BOUND: Duration = Duration::from_secs(20);
    /// A device that no other test has.
    const DEVICE: usize = usize::MAX;
    const OTHER_DEVICE: usize = DEVICE - 1;

    /// A thread whose endpoint does not open.
    struct Opener {
        thread: ThreadId,
        /// The number of each attempt, as it begins.
        attempts: Receiver<u16>,
        /// Lets one attempt end. Once this is dropped no attempt waits.
        lets: Sender<()>,
        ended: Receiver<bool>,
    }

    impl Opener {
        /// A communicator of its own, whose endpoint lacks resources.
        fn start() -> Self {
            Self::of(Owner::Thread(None), DEVICE, lack)
        }

        fn of(owner: Owner, device: usize, fails: fn() -> Error) -> Self {
            let (attempt, attempts) = mpsc::channel();
            let (lets, may_end) = mpsc::channel();
            let (end, ended) = mpsc::channel();
            let open = move |number, _| {
                let _heard = attempt.send(number);
                let _dropped = may_end.recv();
                Err(fails())
            };
            let thread = thread::spawn(move || {
                let opened: Result<()> = with_owned(owner, device, open, |_| Ok(()));
                let _heard = end.send(opened.is_ok());
            });
            Self { thread: thread.thread().id(), attempts, lets, ended }
        }

        #[track_caller]
        fn attempt(&self) -> u16 {
            self.attempts.recv_timeout(BOUND).expect("an attempt to open")
        }

        /// Waits until this number is assigned to the thread.
        fn moves_to(&self, number: u16) {
            let key = (Key::Thread(self.thread, None), DEVICE);
            let assigned = || Some(registry().as_ref()?.endpoints.get(&key)?.number);
            let start = Instant::now();
            while assigned() != Some(number) {
                assert!(start.elapsed() < BOUND, "{:?} is assigned", assigned());
                thread::yield_now();
            }
        }
    }

    /// An endpoint on loopback.
    fn opened(number: u16, _: Option<TrafficClass>) -> Result<Box<Endpoint>> {
        let rails = ("IRONRAIL_RAILS".to_owned(), "127.0.0.1".to_owned());
        let config = Config::from_variables([rails]).expect("an address");
        let found = discover(&config).expect("a provider");
        let table = DeviceTable::new(found.devices, found.library, Arc::new(config));
        let device = &table.get(0)?.device;
        let (nics, capabilities) = open_in_class(device, None)?;
        let (facts, settings) = (device.facts(0), device.settings.of_endpoints());
        Endpoint::open(number, facts, settings, nics, capabilities).map(Box::new)
    }

    /// A lack of resources like a NIC's: here of address space.
    fn lack() -> Error {
        let fault = Pages::map(1 << 60).expect_err("more than an address space");
        let label = Label::of("a device without room");
        let cause = Cause::CannotUse { device: label, interface: label, fault };
        assert!(cause.lacks_resources().is_some(), "{fault}");
        cause.into()
    }

    #[test]
    fn a_communicator_that_found_no_endpoint_to_share_opens_none_under_anothers_number() {
        let _alone = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        let second = Opener::start();
        let shared = second.attempt();
        let first = Opener::start();
        let own = first.attempt();
        first.lets.send(()).expect("it waits");
        first.moves_to(shared);
        let third = Opener::start();
        assert_eq!(third.attempt(), own, "the number is free");
        second.lets.send(()).expect("it waits");
        // The second thread has failed as well, and the third is still opening: the first tries again.
        let again = first.attempt();
        assert!(![own, shared].contains(&again), "{again} is another's");
        // Each thread may wait for another's entry.
        let ended = [first, second, third].map(|Opener { ended, .. }| ended);
        for ended in ended {
            assert_eq!(ended.recv_timeout(BOUND), Ok(false), "there is no room for any");
        }
    }

    /// The order in which the two endpoints close is random.
    #[test]
    fn a_context_that_ends_while_its_endpoints_open_takes_no_other_communicators_endpoint() {
        let _alone = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..8 {
            let (context, _) = open_context(None).expect("a context");
            let open = |device| {
                let open = Opener::of(Owner::Context(context), device, || Cause::NoRandom.into());
                let number = open.attempt();
                (open, number)
            };
            // Opened one after the other: the first has the lower number, which is the next to be free.
            let [(first, number), (second, above)] = [DEVICE, OTHER_DEVICE].map(open);
            close_context(context).expect("it is open");
            let remover = thread::spawn(move || remove_context(context));
            let start = Instant::now();
            let owners = |number| registry().as_ref().map_or(0, |known| known.owners(number));
            while owners(number) + owners(above) > 0 {
                assert!(start.elapsed() < BOUND, "they still have an owner");
                thread::yield_now();
            }
            drop(first.lets);
            assert_eq!(first.ended.recv_timeout(BOUND), Ok(false));
            let others = with_owned(Owner::Thread(None), DEVICE, opened, |endpoint| {
                Result::<_>::Ok(endpoint.number())
            });
            assert_eq!(others, Ok(number), "the number is free");
            drop(second.lets);
            assert_eq!(second.ended.recv_timeout(BOUND), Ok(false));
            remover.join().expect("it only removes");
            assert!(entry(number).is_some(), "another communicator's endpoint was closed");
            close_if_unused(number);
        }
    }

    #[test]
    fn an_endpoint_that_was_closed_is_not_mistaken_for_the_one_that_has_its_number() {
        let _alone = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = (Key::Thread(thread::current().id(), None), OTHER_DEVICE);
        let assigned = || registry().as_ref().and_then(|known| known.endpoints.get(&mine).copied());
        with_owned(Owner::Thread(None), OTHER_DEVICE, opened, |_| Result::<()>::Ok(()))
            .expect("it opens");
        let assignment = assigned().expect("it is assigned");
        let others = (Key::Thread(another_thread(), None), OTHER_DEVICE);
        let before = Assignment { communicator: Communicator(0), ..assignment };
        // `owned` does not wait for the registry's lock, which another test may hold.
        let start = Instant::now();
        while owned(mine, assignment).is_none() {
            assert!(start.elapsed() < BOUND, "its owner has it");
            thread::yield_now();
        }
        assert!(owned(others, before).is_none(), "its owner has no endpoint any more");
        assert!(owned(mine, before).is_none(), "its owner has another endpoint");
        close_if_unused(assignment.number);
        assert!(owned(mine, assignment).is_none() && assigned().is_none());
    }

    #[test]
    fn no_endpoint_is_closed_while_a_deregmr_waits_there() {
        let _alone = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        let on_mine = |body: fn(&mut Endpoint)| {
            let number = with_owned(Owner::Thread(None), OTHER_DEVICE, opened, |endpoint| {
                body(endpoint);
                Result::<_>::Ok(endpoint.number())
            });
            number.expect("it opens")
        };
        let number = on_mine(Endpoint::begin_wait);
        close_if_unused(number);
        assert!(entry(number).is_some(), "by the last close");
        let key = (Key::Thread(thread::current().id(), None), OTHER_DEVICE);
        let assignment = registry().as_mut().and_then(|known| known.endpoints.remove(&key));
        assert!(try_take_unowned(number).is_none() && entry(number).is_some(), "by finalize");
        registry().as_mut().expect("made").endpoints.insert(key, assignment.expect("assigned"));
        on_mine(Endpoint::end_wait);
        close_if_unused(number);
        assert!(entry(number).is_none());
    }

    #[test]
    fn a_communicator_whose_shared_endpoint_was_closed_meanwhile_gets_an_entry_again() {
        let _alone = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = (Key::Thread(thread::current().id(), None), OTHER_DEVICE);
        with_owned(Owner::Thread(None), OTHER_DEVICE, opened, |_| Result::<()>::Ok(()))
            .expect("it opens");
        let before = registry().as_ref().and_then(|known| known.endpoints.get(&mine).copied());
        let before = before.expect("it is assigned");
        close_if_unused(before.number);
        let (entry, again) = assign_again(mine, before).expect("its thread has not ended it");
        assert_eq!(again.communicator, before.communicator);
        assert!(entry.is_none());
        drop(entry);
        let others = Assignment { communicator: Communicator(0), ..before };
        assert!(assign_again(mine, others).is_none(), "another communicator's");
        forget(mine, before.communicator);
    }

    /// The endpoint may be one that another communicator opens at the same number, for seconds.
    #[test]
    fn a_close_that_waits_for_an_endpoint_in_use_keeps_no_other_thread_waiting() {
        let _alone = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        let number = with_owned(Owner::Thread(None), OTHER_DEVICE, opened, |endpoint| {
            Result::<_>::Ok(endpoint.number())
        });
        let number = number.expect("it opens");
        let in_use = entry(number);
        let closer = thread::spawn(move || close_if_unused(number));
        let (end, ended) = mpsc::channel();
        thread::spawn(move || {
            for _ in 0..1000 {
                drop(registry());
                thread::yield_now();
            }
            end.send(()).expect("the test waits");
        });
        ended.recv_timeout(BOUND).expect("the registry is free");
        assert!(!closer.is_finished(), "its endpoint is in use");
        drop(in_use);
        closer.join().expect("it only closes");
        assert!(entry(number).is_none());
    }

    /// The id of a thread that owns nothing.
    fn another_thread() -> ThreadId {
        thread::spawn(|| thread::current().id()).join().expect("it does nothing else")
    }
}
