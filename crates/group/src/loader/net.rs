//! An initialised plugin: what a communicator holds of it.

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;
use std::rc::Rc;
use std::sync::{Arc, PoisonError};

use net_abi::{
    CommConfig, HANDLE_MAX_BYTES, MAX_DEVICES, PropertiesV6, PropertiesV7, PropertiesV8,
    PropertiesV9, PropertiesV11, PropertiesV12, ResultCode, UNDEFINED,
};

use super::calls::{Calls, Connect, GetProperties, Init, Listen};
use super::comm::{Comm, Handle, ListenComm, Side};
use super::{Library, Properties, SendComm, logger};
use crate::error::GroupError;

/// A plugin after `init`. Belongs to one thread, as a communicator's calls do; `finalize` comes when the last share goes.
#[derive(Debug)]
pub struct Net {
    library: Arc<Library>,
    context: *mut c_void,
}

impl Net {
    /// Calls `init`: for every communicator since v11, once per library before that.
    pub fn init(library: &Arc<Library>, communicator: u64) -> Result<Rc<Self>, GroupError> {
        let mut context = ptr::null_mut();
        let mut config = CommConfig { traffic_class: UNDEFINED };
        let logger = logger::callback();
        let mut initialised = library.initialised.lock().unwrap_or_else(PoisonError::into_inner);
        let code = match library.calls().init {
            Init::V6(_) | Init::V10(_) if *initialised => ResultCode::SUCCESS,
            // SAFETY: the table's own call, with the arguments of its version; the same for those below.
            Init::V6(Some(init)) => unsafe { init(logger) },
            // SAFETY: as above.
            Init::V10(Some(init)) => unsafe { init(logger, None) },
            Init::V11(Some(init)) => {
                let (context, config) = (&raw mut context, &raw mut config);
                // SAFETY: as above, and both places live through the call.
                unsafe { init(context, communicator, config, logger, None) }
            }
            _ => return Err(missing("init")),
        };
        check("init", code)?;
        *initialised = true;
        drop(initialised);
        Ok(Rc::new(Self { library: Arc::clone(library), context }))
    }

    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }

    /// How many devices there are.
    pub fn devices(&self) -> Result<usize, GroupError> {
        let mut count = -1;
        let devices = self.calls().devices.ok_or_else(|| missing("devices"))?;
        // SAFETY: the place lives through the call.
        check("devices", unsafe { devices(&raw mut count) })?;
        let count = usize::try_from(count)
            .map_err(|_| GroupError::Contract(format!("devices answered {count}")))?;
        Ok(count.min(MAX_DEVICES))
    }

    pub fn properties(&self, device: usize) -> Result<Properties, GroupError> {
        let device = index(device)?;
        macro_rules! fetch {
            ($get:ident, $type:ident, $from:ident) => {{
                // SAFETY: all-zero bits are a value of this plain struct.
                let mut raw: $type = unsafe { mem::zeroed() };
                // SAFETY: the place lives through the call.
                check("getProperties", unsafe { $get(device, &raw mut raw) })?;
                // SAFETY: a plugin's strings live as long as it is loaded.
                unsafe { Properties::$from(&raw) }
            }};
        }
        Ok(match self.calls().properties {
            GetProperties::V6(Some(get)) => fetch!(get, PropertiesV6, from_v6),
            GetProperties::V7(Some(get)) => fetch!(get, PropertiesV7, from_v7),
            GetProperties::V8(Some(get)) => fetch!(get, PropertiesV8, from_v8),
            GetProperties::V9(Some(get)) => fetch!(get, PropertiesV9, from_v9),
            GetProperties::V11(Some(get)) => fetch!(get, PropertiesV11, from_v11),
            GetProperties::V12(Some(get)) => fetch!(get, PropertiesV12, from_v12),
            _ => return Err(missing("getProperties")),
        })
    }

    /// Opens a listener, and the handle that a peer connects with.
    pub fn listen(self: &Rc<Self>, device: usize) -> Result<(ListenComm, Handle), GroupError> {
        let device = index(device)?;
        let mut handle = Handle([0; HANDLE_MAX_BYTES]);
        let mut comm = ptr::null_mut();
        let place = (&raw mut handle.0).cast();
        let code = match self.calls().listen {
            // SAFETY: the handle has the size of the contract, and both places live through the call.
            Listen::V6(Some(listen)) => unsafe { listen(device, place, &raw mut comm) },
            // SAFETY: as above, and the context is what `init` gave.
            Listen::V11(Some(listen)) => unsafe {
                listen(self.context, device, place, &raw mut comm)
            },
            _ => return Err(missing("listen")),
        };
        check("listen", code)?;
        let comm = Comm::new(self, Side::Listen, comm)
            .ok_or_else(|| GroupError::Contract("listen succeeded without a comm".to_owned()))?;
        Ok((ListenComm::new(comm), handle))
    }

    /// One try to connect. `None`: not yet, call again with the same handle, which the plugin may write to.
    pub fn connect(
        self: &Rc<Self>,
        device: usize,
        handle: &mut Handle,
    ) -> Result<Option<SendComm>, GroupError> {
        let device = index(device)?;
        let mut comm = ptr::null_mut();
        let mut device_comm = ptr::null_mut();
        let place = (&raw mut handle.0).cast();
        let mut config = CommConfig { traffic_class: UNDEFINED };
        let code = match self.calls().connect {
            // SAFETY: the handle has the size of the contract, and all places live through the call.
            Connect::V6(Some(connect)) => unsafe { connect(device, place, &raw mut comm) },
            // SAFETY: as above.
            Connect::V7(Some(connect)) => unsafe {
                connect(device, place, &raw mut comm, &raw mut device_comm)
            },
            // SAFETY: as above.
            Connect::V10(Some(connect)) => unsafe {
                connect(device, &raw mut config, place, &raw mut comm, &raw mut device_comm)
            },
            // SAFETY: as above, and the context is what `init` gave.
            Connect::V11(Some(connect)) => unsafe {
                connect(self.context, device, place, &raw mut comm, &raw mut device_comm)
            },
            _ => return Err(missing("connect")),
        };
        check("connect", code)?;
        Ok(Comm::new(self, Side::Send, comm).map(SendComm::new))
    }

    pub(super) fn calls(&self) -> &Calls {
        self.library.calls()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if let Some(finalize) = self.calls().finalize {
            // SAFETY: the context of this `init`; every comm held a share of us, so all are closed.
            let code = unsafe { finalize(self.context) };
            if let Err(error) = check("finalize", code) {
                log::error!("{error}");
            }
        }
    }
}

pub(super) fn check(call: &'static str, code: ResultCode) -> Result<(), GroupError> {
    if code.is_success() {
        return Ok(());
    }
    Err(GroupError::Plugin { call, code, said: logger::take_last_warning() })
}

pub(super) fn missing(call: &'static str) -> GroupError {
    GroupError::Contract(format!("the table has no {call}"))
}

fn index(device: usize) -> Result<c_int, GroupError> {
    c_int::try_from(device).map_err(|_| GroupError::Usage(format!("there is no device {device}")))
}
