//! What libfabric's pointers point to: a `fid` of the kind, then our own data.
//!
//! A closed object's memory stays for a while, marked as closed, so that a second close or a late call is a broken rule instead of
//! undefined behaviour.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use libfabric_sys as sys;

use crate::calls;
use crate::engine::{Domain, Endpoint, EventQueue, Fabric, Id, Queue, Region, Vector, engine};
use crate::ledger::Rule;
use crate::serial::{Mark, Serial};

/// Whether libfabric cleans up.
static CLEANS_UP: AtomicBool = AtomicBool::new(false);

/// Libfabric cleans up: no call may follow.
pub(super) fn begin_cleanup() {
    CLEANS_UP.store(true, Ordering::Relaxed);
}

/// A structure of libfabric's that begins with a `fid`.
///
/// # Safety
///
/// The type must be `repr(C)`, and start with a `fid`.
pub(super) unsafe trait Fid: Sized + 'static {
    const NAME: &'static str;
    /// What the engine has of it.
    type Inner;
}

macro_rules! fids {
    ($($name:ident = $of:ty, $text:literal;)*) => {$(
        // SAFETY: as rdma/*.h declare it.
        unsafe impl Fid for sys::$name {
            const NAME: &'static str = $text;
            type Inner = $of;
        }
    )*};
}

fids! {
    fid_fabric = Fabric, "fabric";
    fid_domain = Domain, "domain";
    fid_ep = Endpoint, "endpoint";
    fid_cq = Queue, "completion queue";
    fid_eq = EventQueue, "event queue";
    fid_av = Vector, "address vector";
    fid_mr = Region, "region";
}

/// An object that libfabric and its user hold by the address of its `fid`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Object<F: Fid> {
    fid: UnsafeCell<F>,
    /// Its number in the engine.
    pub(super) id: Id<F::Inner>,
    /// Whether the user promised to serialise calls (FI_THREAD_COMPLETION and stricter).
    pub(super) serialised: bool,
    /// The serialised groups to which its calls belong: the domain's with FI_THREAD_DOMAIN, else those of its queues, of which an endpoint
    /// may have two.
    groups: [OnceLock<Arc<Serial>>; 2],
    closed: AtomicBool,
}

impl<F: Fid> Object<F> {
    pub(super) fn new(fid: F, id: Id<F::Inner>, serialised: bool) -> Self {
        Self {
            fid: UnsafeCell::new(fid),
            id,
            serialised,
            groups: [const { OnceLock::new() }; 2],
            closed: AtomicBool::new(false),
        }
    }

    /// Gives the object to libfabric, until its close.
    pub(super) fn publish(self) -> *mut F {
        Box::into_raw(Box::new(self)).cast()
    }

    /// The object behind a pointer of libfabric's; None after its close, which is recorded as a broken rule.
    ///
    /// # Safety
    ///
    /// `raw` must come from `publish` of this type, be it closed or not.
    pub(super) unsafe fn of<'a>(raw: *mut F) -> Option<&'a Self> {
        calls::count();
        // SAFETY: the caller's; closed objects stay where they are long enough.
        let object = unsafe { raw.cast::<Self>().as_ref() }?;
        if CLEANS_UP.load(Ordering::Relaxed) {
            let id = object.id;
            engine().broken(Rule::AfterCleanup, || {
                format!("{} {id} is used while libfabric cleans up", F::NAME)
            });
        }
        if object.closed.load(Ordering::Acquire) {
            let id = object.id;
            engine().broken(Rule::Closed, || format!("{} {id} is used after its close", F::NAME));
            return None;
        }
        Some(object)
    }

    /// The `fid` itself.
    pub(super) fn fid(&self) -> *mut F {
        self.fid.get()
    }

    /// Adds it to a group.
    pub(super) fn join(&self, group: &Arc<Serial>) {
        let known = |other: &OnceLock<Arc<Serial>>| {
            other.get().is_some_and(|other| Arc::ptr_eq(other, group))
        };
        if self.groups.iter().any(known) {
            return;
        }
        for slot in &self.groups {
            if slot.set(Arc::clone(group)).is_ok() {
                return;
            }
        }
    }

    /// Whether it is in a group already.
    pub(super) fn is_grouped(&self) -> bool {
        self.groups[0].get().is_some()
    }

    /// Adds it to the groups of another object.
    pub(super) fn join_groups_of<G: Fid>(&self, other: &Object<G>) {
        for group in other.groups.iter().filter_map(OnceLock::get) {
            self.join(group);
        }
    }

    /// Marks a call on it while the call lasts, and records a call that is under way at the same time.
    pub(super) fn enter(&self, call: &str) -> [Option<Mark<'_>>; 2] {
        let marks = [0, 1].map(|index| {
            let group = self.groups[index].get().filter(|_| self.serialised);
            group.map(|group| group.enter())
        });
        if marks.iter().flatten().any(|mark| mark.clash) {
            engine().broken(Rule::Threads, || {
                format!(
                    "{call} on {} {} while another call is on objects that are serialised with it",
                    F::NAME,
                    self.id
                )
            });
        }
        marks
    }

    /// Keeps the memory of a closed object, and frees the oldest of those kept.
    pub(super) fn bury(&self) {
        self.closed.store(true, Ordering::Release);
        let grave = Grave { object: self.fid.get().cast(), free: free::<F> };
        let mut graves = GRAVES.lock().unwrap_or_else(PoisonError::into_inner);
        graves.push_back(grave);
        if graves.len() > GRAVES_MAX
            && let Some(Grave { object, free }) = graves.pop_front()
        {
            // SAFETY: it was published by the type whose `free` this is, and nothing has used it for long.
            unsafe { free(object) };
        }
    }
}

/// # Safety
///
/// `raw` must come from `publish` of this type, and not be used again.
unsafe fn free<F: Fid>(raw: *mut c_void) {
    // SAFETY: the caller's.
    drop(unsafe { Box::from_raw(raw.cast::<Object<F>>()) });
}

struct Grave {
    object: *mut c_void,
    free: unsafe fn(*mut c_void),
}

// SAFETY: a closed object is used only to see that it is closed.
unsafe impl Send for Grave {}

static GRAVES: Mutex<VecDeque<Grave>> = Mutex::new(VecDeque::new());

/// How many closed objects are kept.
const GRAVES_MAX: usize = 4096;
