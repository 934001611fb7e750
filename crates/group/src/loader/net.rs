//! An initialised plugin, as a communicator holds it.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use net_abi::{MAX_DEVICES, ResultCode};
use net_loader::calls::Calls;
use net_loader::{Library, Properties};

use crate::error::GroupError;

/// A plugin after `init`. `finalize` is called when the last share is dropped.
#[derive(Debug)]
pub struct Net {
    library: Arc<Library>,
    pub(super) context: *mut c_void,
}

// SAFETY: the context is the plugin's, and NCCL calls with one context from several threads.
unsafe impl Send for Net {}
// SAFETY: as above.
unsafe impl Sync for Net {}

impl Net {
    /// Calls `init`: for every communicator since v11, once per library before that.
    pub fn init(library: &Arc<Library>, communicator: u64) -> Result<Arc<Self>, GroupError> {
        let context =
            library.init(communicator, ptr::null_mut()).map_err(|code| refused("init", code))?;
        Ok(Arc::new(Self { library: Arc::clone(library), context }))
    }

    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }

    /// The number of devices.
    pub fn devices(&self) -> Result<usize, GroupError> {
        let mut count = -1;
        // SAFETY: the place lives through the call.
        check_once("devices", unsafe { self.calls().devices(&raw mut count) })?;
        let count = usize::try_from(count)
            .map_err(|_| GroupError::Contract(format!("devices answered {count}")))?;
        Ok(count.min(MAX_DEVICES))
    }

    /// The device of a rank: the wanted one, or else the rank modulo the number of devices.
    pub fn choose_device(&self, wanted: Option<usize>, rank: usize) -> Result<usize, GroupError> {
        let devices = self.devices()?;
        if devices == 0 {
            return Err(GroupError::Load("the plugin has no device".to_owned()));
        }
        let device = wanted.unwrap_or(rank % devices);
        if device >= devices {
            return Err(GroupError::Usage(format!(
                "device {device} was asked for, and the plugin has {devices}"
            )));
        }
        Ok(device)
    }

    pub fn properties(&self, device: usize) -> Result<Properties, GroupError> {
        let device = index(device)?;
        // SAFETY: the plugin is initialised.
        let found = unsafe { self.calls().get_properties(device) };
        let found = found.map_err(|code| refused("getProperties", code))?;
        net_loader::forget_last_warning();
        Ok(found)
    }

    pub(super) fn calls(&self) -> &Calls {
        self.library.calls()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // SAFETY: the context is from this `init`. Every comm holds a share of this object, so all are closed.
        let code = unsafe { self.calls().finalize(self.context) };
        if let Err(error) = check_once("finalize", code) {
            log::error!("{error}");
        }
    }
}

pub(super) fn check(call: &'static str, code: ResultCode) -> Result<(), GroupError> {
    if code.is_success() { Ok(()) } else { Err(refused(call, code)) }
}

/// As [`check`], for a call that is not repeated until something has moved.
pub(super) fn check_once(call: &'static str, code: ResultCode) -> Result<(), GroupError> {
    check(call, code).inspect(|()| net_loader::forget_last_warning())
}

fn refused(call: &'static str, code: ResultCode) -> GroupError {
    GroupError::Plugin { call, code, said: net_loader::take_last_warning() }
}

/// A device's number, as the plugin takes it.
pub(super) fn index(device: usize) -> Result<c_int, GroupError> {
    c_int::try_from(device).map_err(|_| GroupError::Usage(format!("there is no device {device}")))
}
