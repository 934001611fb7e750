//! Who owns which endpoint, and where a handle's endpoint is found.
//!
//! An endpoint sits in a cell that is never freed, behind the cell's lock: the one lock of the data path, held for the
//! length of one call. NCCL's service thread and its progress thread meet there. The registry's own lock is taken
//! first, and only to find or close an endpoint, or a cell for a new one.

use std::collections::HashMap;
use std::thread::ThreadId;

use fabric::{Guard, Lock};

use crate::endpoint::Endpoint;
use crate::endpoint::slots::Slots;
use crate::error::{Cause, Error, Noun, Result, Table};
use crate::handle::{Handle, HandleKind, Name};

use super::{Owner, TrafficClass};

/// Endpoints of one process: as many as a handle can name.
const CELLS: usize = 1 << 12;

static CELL: [Cell; CELLS] = [const { Lock::new(None) }; CELLS];
static REGISTRY: Lock<Option<Registry>> = Lock::new(None);
/// Taken last, and for no longer than a look.
static ENDING: Lock<Ending> = Lock::new(Ending { open: 0, kept: Vec::new() });

type Cell = Lock<Option<Box<Endpoint>>>;
/// An endpoint's cell, locked. A panic under the lock was answered with an error already; the endpoint's own state says
/// if it is broken.
pub(super) type Locked = Guard<'static, Option<Box<Endpoint>>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Context { slot: u16, generation: u16 },
    Thread(ThreadId),
}

#[derive(Debug)]
struct Registry {
    endpoints: HashMap<(Key, usize), u16>,
    /// Each with the traffic class that its communicator asked for.
    contexts: Slots<Option<TrafficClass>>,
}

/// The endpoints of the process, as they end.
#[derive(Debug)]
struct Ending {
    /// Those that are not closed, or about to be opened.
    open: usize,
    /// Those that are, but for what others may still reach: see [`Endpoint::close`].
    #[expect(clippy::vec_box, reason = "they are in boxes already, and large")]
    kept: Vec<Box<Endpoint>>,
}

/// A communicator context of its own, for v11 and newer.
pub(super) fn open_context(class: Option<TrafficClass>) -> Result<Handle> {
    let mut registry = registry();
    let contexts = &mut registry.get_or_insert_with(Registry::new).contexts;
    let mut generation = 0;
    let slot = contexts.insert_with(|_, current| {
        generation = current;
        class
    });
    let full = Cause::Full { table: Table::Communicators, count: u16::MAX.into() };
    let slot = slot.ok_or(full)?;
    Ok(Handle::new(HandleKind::Context, 0, generation, slot, 0))
}

/// Forgets the context, and closes the endpoints that it still owns.
pub(super) fn close_context(context: Handle) -> Result<()> {
    let numbers = {
        let mut registry = registry();
        let registry = registry.get_or_insert_with(Registry::new);
        let key = registry.key(Owner::Context(context))?;
        registry.contexts.remove(context.slot(), context.generation());
        let owned = registry.endpoints.extract_if(|(owner, _), _| *owner == key);
        owned.map(|(_, number)| number).collect::<Vec<_>>()
    };
    for number in numbers {
        let endpoint = cell(number).take();
        // Outside the registry's lock: closing drains, and others may go on meanwhile.
        if let Some(endpoint) = endpoint {
            end(endpoint);
        }
    }
    Ok(())
}

/// Closes an endpoint. The last one of all takes those along that were kept for the others.
fn end(endpoint: Box<Endpoint>) {
    let (report, kept) = endpoint.close();
    super::record(&report);
    one_less(kept);
}

/// An endpoint is open no longer, but for what is kept of it.
fn one_less(kept: Option<Box<Endpoint>>) {
    let last = {
        let mut ending = ENDING.lock();
        ending.open -= 1;
        ending.kept.extend(kept);
        if ending.open == 0 { std::mem::take(&mut ending.kept) } else { Vec::new() }
    };
    last.into_iter().for_each(Endpoint::release);
}

/// Runs `body` on the endpoint that `owner` has on `device`, opened by `open` when it is the first time: under its own lock, so that
/// others, of whom some may be opened at the same time, are not waited for.
pub(super) fn with_owned<R, E: From<Error>>(
    owner: Owner,
    device: usize,
    open: impl FnOnce(u16, Option<TrafficClass>) -> Result<Box<Endpoint>>,
    body: impl FnOnce(&mut Endpoint) -> Result<R, E>,
) -> Result<R, E> {
    let mut registry = registry();
    let known = registry.get_or_insert_with(Registry::new);
    let key = (known.key(owner)?, device);
    let mut place = match known.endpoints.get(&key).copied() {
        Some(number) => {
            drop(registry);
            cell(number)
        }
        None => {
            let (number, class) = (known.free_number()?, known.class(owner));
            known.endpoints.insert(key, number);
            // Whoever finds the number from now on waits here.
            let mut place = cell(number);
            drop(registry);
            ENDING.lock().open += 1;
            match open(number, class) {
                Ok(endpoint) => *place = Some(endpoint),
                Err(error) => {
                    drop(place);
                    forget(key, number);
                    one_less(None);
                    return Err(error.into());
                }
            }
            place
        }
    };
    match place.as_deref_mut() {
        Some(endpoint) => body(endpoint),
        None => Err(Error::from(Cause::Stale(Noun::Endpoint)).into()),
    }
}

/// Nothing was opened in the cell that was meant for `key`.
fn forget(key: (Key, usize), number: u16) {
    let mut registry = registry();
    if let Some(registry) = registry.as_mut()
        && registry.endpoints.get(&key) == Some(&number)
    {
        registry.endpoints.remove(&key);
    }
}

/// Pushes on what endpoint `number` does for others, unless its own caller is at it.
pub(super) fn push_probe(number: u16) {
    if let Some(mut place) = CELL[usize::from(number) % CELLS].try_lock()
        && let Some(endpoint) = place.as_deref_mut()
    {
        endpoint.push_probe();
    }
}

/// The cell that `name` leads to, if it names anything.
#[inline(always)]
pub(super) fn lock(name: Name) -> Locked {
    CELL[name.endpoint() % CELLS].lock()
}

/// The same; none while another thread has it.
#[inline(always)]
pub(super) fn try_lock(name: Name) -> Option<Locked> {
    CELL[name.endpoint() % CELLS].try_lock()
}

/// Runs `body` on the endpoint that `handle` names, under its lock.
#[inline(always)]
pub(super) fn with<R>(handle: Handle, body: impl FnOnce(&mut Endpoint) -> Result<R>) -> Result<R> {
    match cell(handle.endpoint()).as_deref_mut() {
        Some(endpoint) => body(endpoint),
        None => Err(Cause::Stale(Noun::Handle).into()),
    }
}

/// Closes the endpoint that `handle` names if a thread owns it and nothing is left on it.
pub(super) fn close_if_unused(handle: Handle) {
    let number = handle.endpoint();
    let endpoint = {
        let mut registry = registry();
        let Some(registry) = registry.as_mut() else { return };
        let by_thread = registry
            .endpoints
            .iter()
            .find(|((key, _), value)| matches!(key, Key::Thread(_)) && **value == number);
        let Some(key) = by_thread.map(|(key, _)| *key) else { return };
        let mut place = cell(number);
        if !place.as_ref().is_some_and(|endpoint| endpoint.is_unused()) {
            return;
        }
        registry.endpoints.remove(&key);
        place.take()
    };
    if let Some(endpoint) = endpoint {
        end(endpoint);
    }
}

#[inline(always)]
fn cell(number: u16) -> Locked {
    CELL[usize::from(number) % CELLS].lock()
}

fn registry() -> Guard<'static, Option<Registry>> {
    REGISTRY.lock()
}

impl Registry {
    fn new() -> Self {
        Self { endpoints: HashMap::new(), contexts: Slots::new(u16::MAX) }
    }

    fn key(&self, owner: Owner) -> Result<Key> {
        match owner {
            Owner::Thread => Ok(Key::Thread(std::thread::current().id())),
            Owner::Context(handle) => {
                let (slot, generation) = (handle.slot(), handle.generation());
                let open =
                    handle.is(HandleKind::Context) && self.contexts.get(slot, generation).is_some();
                if open {
                    Ok(Key::Context { slot, generation })
                } else {
                    Err(Cause::Stale(Noun::Context).into())
                }
            }
        }
    }

    /// The traffic class of a context. Up to v10 there is none when an endpoint opens.
    fn class(&self, owner: Owner) -> Option<TrafficClass> {
        match owner {
            Owner::Thread => None,
            Owner::Context(handle) => *self.contexts.get(handle.slot(), handle.generation())?,
        }
    }

    fn free_number(&self) -> Result<u16> {
        let used: Vec<u16> = self.endpoints.values().copied().collect();
        let free = (0..CELLS)
            .filter_map(|number| u16::try_from(number).ok())
            .find(|number| !used.contains(number) && cell(*number).is_none());
        let full = || {
            let count = u32::try_from(CELLS).unwrap_or(u32::MAX);
            Cause::Full { table: Table::Endpoints, count }.into()
        };
        free.ok_or_else(full)
    }
}
