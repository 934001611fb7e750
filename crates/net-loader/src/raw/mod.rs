//! The same tables, for tests of a plugin's contract: every output argument can be poisoned, nothing is closed implicitly, and errors name
//! the call.
//!
//! The plugin's pointers come from its own results only, and none is used after the close, the deregistration or the "done" that ends it.
//! Memory is never freed ([`Arena`]), so requests that never complete can access nothing else. A plugin may still crash: use this in a
//! process that may die.

mod comm;
mod memory;
mod properties;

pub use comm::{Before, ListenComm, Receive, ReceiveComm, Region, Request, SendComm, Tested};
pub use memory::{Arena, HandlePlace};
pub use properties::{Field, Strings};

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use net_abi::{CommAttr, CommConfig, NetAttr, ResultCode, UNDEFINED};

use crate::calls::{Calls, TooLong};
use crate::{Library, logger};

/// The plugin's error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A call returned an error.
    Code { call: &'static str, code: ResultCode, said: Option<String> },
    /// A call succeeded and violated the contract.
    Contract(String),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code { call, code, said: None } => write!(f, "{call} returned {code}"),
            Self::Code { call, code, said: Some(said) } => {
                write!(f, "{call} returned {code}; it said: {said}")
            }
            Self::Contract(why) => f.write_str(why),
        }
    }
}

/// An initialised plugin, as one communicator has it. Its shares may be used from several threads, as in NCCL.
#[derive(Clone, Debug)]
pub struct Net(Arc<Context>);

#[derive(Debug)]
struct Context {
    library: Arc<Library>,
    raw: *mut c_void,
    open: AtomicBool,
}

// SAFETY: NCCL hands one context to its init, service and progress threads at once, so a plugin must bear that.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Net {
    /// Calls `init`, since v11 with a poisoned output argument for the context; up to v10 once per library.
    pub fn init(library: &Arc<Library>, communicator: u64) -> Result<Self, Wrong> {
        let context = library.init(communicator, stale()).map_err(|code| refused("init", code))?;
        if library.version() >= 11 && context == stale() {
            return Err(Wrong::Contract("init left the context as it was".to_owned()));
        }
        let (library, open) = (Arc::clone(library), AtomicBool::new(true));
        Ok(Self(Arc::new(Context { library, raw: context, open })))
    }

    pub fn version(&self) -> u32 {
        self.0.library.version()
    }

    /// Calls `finalize`, which exists since v11. Comms that are still open must not be used any more.
    pub fn finalize(self) -> Result<(), Wrong> {
        let calls = self.0.calls()?;
        if !calls.has_contexts() {
            return Ok(());
        }
        self.0.open.store(false, Ordering::SeqCst);
        // SAFETY: the context of this `init`, finalized once: it is not open any more.
        check_once("finalize", unsafe { calls.finalize(self.0.raw) })
    }

    /// The number of devices that the plugin reports.
    pub fn devices(&self) -> Result<c_int, Wrong> {
        let calls = self.0.calls()?;
        let mut count = UNWRITTEN;
        // SAFETY: the place lives through the call.
        check_once("devices", unsafe { calls.devices(&raw mut count) })?;
        if count == UNWRITTEN {
            return Err(Wrong::Contract("devices left the count as it was".to_owned()));
        }
        Ok(count)
    }

    /// A listener and its handle, with guards around the handle.
    pub fn listen(&self, device: c_int) -> Result<(ListenComm, HandlePlace), Wrong> {
        let mut handle = HandlePlace::new();
        let mut comm = stale();
        let place = handle.as_mut_ptr();
        let calls = self.0.calls()?;
        // SAFETY: the context is what `init` gave, the handle has the size of the contract, and both places live through the call.
        let code = unsafe { calls.listen(self.0.raw, device, place, &raw mut comm) };
        check_once("listen", code)?;
        match comm::opened(&self.0, "listen", comm)? {
            Some(comm) => Ok((ListenComm(comm), handle)),
            None => Err(Wrong::Contract("listen succeeded without a comm".to_owned())),
        }
    }

    /// Closes the comms of a connection that did not come about, as NCCL's bootstrap does.
    pub fn close_nothing(&self) -> Result<(), Wrong> {
        let calls = self.0.calls()?;
        // SAFETY: there is nothing to close.
        check_once("closeSend", unsafe { calls.close_send(ptr::null_mut()) })?;
        // SAFETY: as above.
        check_once("closeRecv", unsafe { calls.close_recv(ptr::null_mut()) })?;
        // SAFETY: as above.
        check_once("closeListen", unsafe { calls.close_listen(ptr::null_mut()) })
    }

    /// One attempt. `bare` passes null for the device handle, as NCCL's probes do, instead of the address of a null.
    pub fn connect(
        &self,
        device: c_int,
        handle: &mut HandlePlace,
        bare: bool,
    ) -> Result<Option<SendComm>, Wrong> {
        let mut comm = stale();
        let mut device_comm = ptr::null_mut();
        let device_place = if bare { ptr::null_mut() } else { &raw mut device_comm };
        let mut config = CommConfig { traffic_class: UNDEFINED };
        let place = handle.as_mut_ptr();
        let (calls, config, comm_place) = (self.0.calls()?, &raw mut config, &raw mut comm);
        // SAFETY: the context is what `init` gave, the handle has the size of the contract, and all places live through the call.
        let code =
            unsafe { calls.connect(self.0.raw, device, config, place, comm_place, device_place) };
        check("connect", code)?;
        Ok(comm::opened(&self.0, "connect", comm)?.map(SendComm))
    }

    /// Calls `setNetAttr` with hints of which half are undefined. `false`: the plugin has no such call.
    pub fn hint(&self) -> Result<bool, Wrong> {
        let calls = self.0.calls()?;
        let side = CommAttr {
            max_concurrent_peers: 1,
            min_concurrent_peers: UNDEFINED,
            max_flows_per_peer: 2,
            min_flows_per_peer: UNDEFINED,
        };
        let mut hints =
            NetAttr { send_comm_attr: side, recv_comm_attr: side, op: 1, algo: u32::MAX, proto: 4 };
        // SAFETY: the context is what `init` gave, and the hints live through the call. NCCL ignores the answer.
        let answered = unsafe { calls.set_net_attr(self.0.raw, &raw mut hints) };
        Ok(answered.is_some())
    }
}

impl Context {
    fn calls(&self) -> Result<&Calls, Wrong> {
        if self.open.load(Ordering::SeqCst) {
            return Ok(self.library.calls());
        }
        Err(Wrong::Contract("the context is finalized".to_owned()))
    }
}

/// The address of the table in use.
pub fn table_address(library: &Library) -> Option<usize> {
    library.table().map(|table| table.as_ptr().addr())
}

/// Whether the table has an entry for DMA-BUF.
pub fn takes_dmabuf(library: &Library) -> bool {
    library.calls().takes_dmabuf()
}

/// The number of warnings that plugins have logged in this process.
pub fn warnings() -> u64 {
    logger::warnings()
}

/// Forks a child that exits at once, as data loaders do. False: it could not be made, or did not exit.
pub fn fork_once() -> bool {
    // SAFETY: the child does nothing but leave, which is async-signal-safe.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child without destructors of this program's.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the place lives through the call, and the child is ours.
    child > 0 && unsafe { libc::waitpid(child, &raw mut status, 0) } == child && status == 0
}

/// The content of a poisoned output: an address that no plugin returns.
fn stale() -> *mut c_void {
    ptr::from_ref(&STALE).cast_mut().cast()
}

static STALE: u64 = 0;

fn check(call: &'static str, code: ResultCode) -> Result<(), Wrong> {
    if code.is_success() { Ok(()) } else { Err(refused(call, code)) }
}

/// As [`check`], for a call that is not repeated until something has moved.
fn check_once(call: &'static str, code: ResultCode) -> Result<(), Wrong> {
    check(call, code).inspect(|()| logger::forget_last_warning())
}

fn refused(call: &'static str, code: ResultCode) -> Wrong {
    Wrong::Code { call, code, said: logger::take_last_warning() }
}

impl From<TooLong> for Wrong {
    fn from(error: TooLong) -> Self {
        Self::Contract(error.to_string())
    }
}

fn missing(call: &'static str) -> Wrong {
    Wrong::Contract(format!("the table has no {call}"))
}

const UNWRITTEN: c_int = c_int::MIN + 77;
