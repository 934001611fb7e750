//! Queries of fi_getinfo(3), for endpoints with the capabilities that both kinds of rail need.
//!
//! FI_LOCAL_COMM and FI_REMOTE_COMM are not requested: they exclude shm, and loopback over tcp. Message order is not requested either,
//! since it may cost time. All registration modes are offered, and the modes that the provider returns are followed.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use crate::error::{Call, FabricError, check};
use crate::info::Info;
use crate::library::Library;
use crate::text::c_string;

/// A query. The default finds everything on which rails can be opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// The provider's name, such as `cxi` or `tcp;ofi_rxm`. None: any provider. FI_PROVIDER in the environment filters too.
    pub provider: Option<String>,
    /// The domain's name, such as `cxi0` or `eth1`. None: any domain.
    pub domain: Option<String>,
    /// The local address to use (a name or number that the provider resolves), instead of every interface's. Names of domain and fabric may
    /// then be generic.
    pub source: Option<String>,
    /// Offer only FI_MR_BASIC: virtual addresses and provider keys, as with efa and verbs, also on providers that do not require them.
    pub basic_regions: bool,
    /// Only results that support device memory (FI_HMEM).
    pub device_memory: bool,
    /// Tagged messages (FI_TAGGED) in place of one-sided access: for [`Nic::send_tagged`](crate::Nic::send_tagged).
    pub messages: bool,
}

impl Library {
    /// All results for `query`, in the library's order of preference. No result is not an error.
    ///
    /// # Errors
    ///
    /// What fi_getinfo(3) returned; -FI_EINVAL for a name with a NUL in it.
    pub fn find(self: &Arc<Self>, query: &Query) -> Result<Vec<Info>, FabricError> {
        let mut found = self.find_once(query, 0)?;
        // Some providers offer remote CQ data only if it is requested. If the first query requested it, providers without it would be
        // missing.
        if !query.messages && found.iter().any(|info| info.immediate_bytes() == 0) {
            let with_data = self.find_once(query, IMMEDIATE_BYTES_MIN)?;
            for info in found.iter_mut().filter(|info| info.immediate_bytes() == 0) {
                if let Some(better) = with_data.iter().find(|other| other.is_at_with_modes(info)) {
                    *info = better.clone();
                }
            }
        }
        Ok(found)
    }

    fn find_once(
        self: &Arc<Self>,
        query: &Query,
        immediate_bytes: usize,
    ) -> Result<Vec<Info>, FabricError> {
        let hints = self.hints(query, immediate_bytes)?;
        let source = query.source.as_deref().map(c_string).transpose()?;
        let (node, service, flags) = match &source {
            Some(node) => (node.as_ptr(), c"0".as_ptr(), sys::FI_SOURCE),
            None => (ptr::null(), ptr::null(), 0),
        };
        let mut list = ptr::null_mut();
        // SAFETY: the strings and the hints live until the call returns, and `list` is a valid place.
        let code = unsafe {
            (self.symbols().fi_getinfo)(
                self.api().raw(),
                node,
                service,
                flags,
                hints.as_ptr(),
                &raw mut list,
            )
        };
        if code == -sys::FI_ENODATA {
            return Ok(Vec::new());
        }
        check(Call::fi_getinfo, code)?;
        // SAFETY: fi_getinfo gave us this list to free.
        Ok(unsafe { Info::take_list(self, list) })
    }

    /// The hints of a query.
    fn hints(self: &Arc<Self>, query: &Query, immediate_bytes: usize) -> Result<Info, FabricError> {
        let mut hints = Info::empty(self)?;
        let mut caps = if query.messages { MESSAGES | sys::FI_TAGGED } else { MESSAGES | RMA };
        if query.device_memory {
            caps |= sys::FI_HMEM;
        }
        hints.set_names(query.provider.as_deref(), query.domain.as_deref())?;
        let raw = hints.raw_mut();
        raw.caps = caps;
        raw.mode = sys::FI_CONTEXT | sys::FI_CONTEXT2;
        hints.endpoint_mut().type_ = sys::FI_EP_RDM;
        let domain = hints.domain_mut();
        // With FI_THREAD_COMPLETION, tcp of libfabric 2.x opens another domain for each queue, with a progress engine and a copy of every
        // region, and leaks those and a copy of this fi_info.
        domain.threading = sys::FI_THREAD_DOMAIN;
        domain.control_progress = sys::FI_PROGRESS_MANUAL;
        domain.data_progress = sys::FI_PROGRESS_MANUAL;
        domain.av_type = sys::FI_AV_TABLE;
        domain.mr_mode =
            if query.basic_regions { sys::FI_MR_BASIC.cast_signed() } else { MR_MODES };
        domain.cq_data_size = immediate_bytes;
        Ok(hints)
    }
}

/// Messages, both ways, which every rail needs.
const MESSAGES: u64 = sys::FI_MSG | sys::FI_SEND | sys::FI_RECV;

/// One-sided access, both ways.
const RMA: u64 =
    sys::FI_RMA | sys::FI_READ | sys::FI_WRITE | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;

/// The registration modes that we support: all but FI_MR_RAW and those of newer features (fi_mr(3)).
const MR_MODES: c_int = sys::FI_MR_LOCAL
    | sys::FI_MR_VIRT_ADDR
    | sys::FI_MR_ALLOCATED
    | sys::FI_MR_PROV_KEY
    | sys::FI_MR_ENDPOINT
    | sys::FI_MR_HMEM;

/// The least useful size of remote CQ data: that of efa and verbs.
const IMMEDIATE_BYTES_MIN: usize = 4;
