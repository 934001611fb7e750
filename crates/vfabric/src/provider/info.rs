//! fi_getinfo(3): one fi_info per virtual NIC, if the profile has what the hints ask for.
//!
//! Libfabric frees everything in it. Hence structures come from fi_dupinfo(NULL), which allocates them as long as the loaded release has
//! them, and strings from strdup.

use std::ffi::{CString, c_char, c_int};
use std::ptr;

use libfabric_sys as sys;

use super::text::{duplicate, text};
use super::{NAME, library, nic};
use crate::engine::engine;
use crate::profile::Profile;
use crate::settings::{DeviceMemory, Settings};

/// What every profile can do.
const MESSAGES: u64 = sys::FI_MSG | sys::FI_TAGGED | sys::FI_SEND | sys::FI_RECV | SECONDARY;

/// What profiles with one-sided access can do as well.
const RMA: u64 =
    sys::FI_RMA | sys::FI_READ | sys::FI_WRITE | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;

/// What is granted without being asked for. There is no FI_REMOTE_COMM: processes do not reach each other.
const SECONDARY: u64 = sys::FI_SOURCE | DOMAIN;

/// Those of them that a domain has: fi_domain(3), `caps`.
const DOMAIN: u64 = sys::FI_LOCAL_COMM;

/// Capabilities, with those that restrict their direction. If none of these is asked for, all are meant (fi_getinfo(3), primary modifiers).
const DIRECTIONS: [(u64, u64); 2] = [
    (sys::FI_MSG | sys::FI_TAGGED, sys::FI_SEND | sys::FI_RECV),
    (sys::FI_RMA, sys::FI_READ | sys::FI_WRITE | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE),
];

/// The capabilities that apply to a transmit context: fi_endpoint(3), `caps`.
const TRANSMIT: u64 = sys::FI_MSG
    | sys::FI_TAGGED
    | sys::FI_RMA
    | sys::FI_SEND
    | sys::FI_READ
    | sys::FI_WRITE
    | sys::FI_HMEM;

/// The capabilities that apply to a receive context.
const RECEIVE: u64 = sys::FI_MSG
    | sys::FI_TAGGED
    | sys::FI_RMA
    | sys::FI_RECV
    | sys::FI_REMOTE_READ
    | sys::FI_REMOTE_WRITE
    | sys::FI_HMEM
    | sys::FI_SOURCE;

/// The default flags that a transmit context can have: fi_endpoint(3), OPERATION FLAGS.
const TRANSMIT_FLAGS: u64 = sys::FI_INJECT
    | sys::FI_COMPLETION
    | sys::FI_INJECT_COMPLETE
    | sys::FI_TRANSMIT_COMPLETE
    | sys::FI_DELIVERY_COMPLETE;

/// The default flags that a receive context can have.
const RECEIVE_FLAGS: u64 = sys::FI_COMPLETION;

/// The most pieces (iovecs) of an operation, local and remote.
const PIECES: usize = 1;

fn caps_of(profile: &Profile) -> u64 {
    if profile.rma { MESSAGES | RMA } else { MESSAGES }
}

/// Adds the directions that are meant where none is asked for.
fn directed(caps: u64) -> u64 {
    DIRECTIONS.iter().fold(caps, |caps, (primary, directions)| {
        let all = caps & primary != 0 && caps & directions == 0;
        if all { caps | directions } else { caps }
    })
}

/// The capabilities of a transmit context whose attributes ask for `own`, of an endpoint that has `caps`.
pub(super) fn transmit_caps(caps: u64, own: u64) -> u64 {
    context_caps(caps, own) & TRANSMIT
}

/// The same for a receive context.
pub(super) fn receive_caps(caps: u64, own: u64) -> u64 {
    context_caps(caps, own) & RECEIVE
}

/// With 0 in its attributes, a context has what its endpoint has: fi_endpoint(3).
fn context_caps(caps: u64, own: u64) -> u64 {
    if own == 0 { directed(caps) } else { directed(caps) & directed(own) }
}

const MR_BASIC: c_int = sys::FI_MR_BASIC.cast_signed();
/// What FI_MR_BASIC stands for: fi_mr(3).
const MR_BASIC_MODES: c_int = sys::FI_MR_VIRT_ADDR | sys::FI_MR_PROV_KEY | sys::FI_MR_ALLOCATED;

pub(super) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    _service: *const c_char,
    _flags: u64,
    hints: *const sys::fi_info,
    info: *mut *mut sys::fi_info,
) -> c_int {
    let engine = engine();
    // A node's address does not select a NIC here; the domain's name does.
    if engine.misconfigured.is_some() || !node.is_null() {
        return -sys::FI_ENODATA;
    }
    // SAFETY: libfabric gives hints, or none.
    let wanted = unsafe { Wanted::of(hints, version) };
    let Some(granted) = wanted.granted(&engine.settings) else { return -sys::FI_ENODATA };
    let mut list = ptr::null_mut();
    for number in (0..engine.settings.nics).rev() {
        let lacks_hmem = wanted.caps & sys::FI_HMEM != 0
            && engine.settings.device_memory_of(number) == DeviceMemory::None;
        if lacks_hmem
            || wanted.domain_name.as_deref().is_some_and(|name| name != domain_name(number))
        {
            continue;
        }
        let Some(made) = make(&engine.settings, &granted, number) else {
            return -sys::FI_ENOMEM;
        };
        // SAFETY: it was made just now, and is ours alone.
        unsafe { (*made).next = list };
        list = made;
    }
    if list.is_null() {
        return -sys::FI_ENODATA;
    }
    // SAFETY: libfabric gives a valid place.
    unsafe { info.write(list) };
    0
}

/// The NIC of a domain's name.
///
/// # Safety
///
/// `name` must be null or a C string.
pub(super) unsafe fn nic_of(name: *const c_char) -> Option<usize> {
    // SAFETY: the caller's.
    let name = unsafe { text(name) }?;
    name.strip_prefix("vnic")?.parse().ok()
}

/// Replaces FI_MR_BASIC by the bits that it stands for.
pub(super) fn modes_in_force(modes: c_int) -> c_int {
    if modes == MR_BASIC { MR_BASIC_MODES } else { modes }
}

fn domain_name(nic: usize) -> String {
    format!("vnic{nic}")
}

/// What the hints ask for.
#[derive(Debug, Default)]
struct Wanted {
    caps: u64,
    /// Mode bits; None without hints.
    mode: Option<u64>,
    address_format: u32,
    endpoint: sys::fi_ep_attr,
    domain: Option<sys::fi_domain_attr>,
    transmit: sys::fi_tx_attr,
    receive: sys::fi_rx_attr,
    domain_name: Option<String>,
    fabric_name: Option<String>,
}

/// What the user gets.
#[derive(Debug)]
struct Granted {
    caps: u64,
    transmit_caps: u64,
    receive_caps: u64,
    modes: c_int,
    threading: sys::fi_threading,
    orders: u64,
    transmit_flags: u64,
    receive_flags: u64,
}

impl Wanted {
    /// # Safety
    ///
    /// `hints` must be null, or valid with all that it points to.
    unsafe fn of(hints: *const sys::fi_info, _version: u32) -> Self {
        // SAFETY: the caller's.
        let Some(hints) = (unsafe { hints.as_ref() }) else { return Self::default() };
        let mut wanted = Self {
            caps: hints.caps,
            mode: Some(hints.mode),
            address_format: hints.addr_format,
            ..Self::default()
        };
        // SAFETY: the caller's, and so below.
        if let Some(endpoint) = unsafe { hints.ep_attr.as_ref() } {
            wanted.endpoint = *endpoint;
        }
        // SAFETY: as above.
        if let Some(domain) = unsafe { hints.domain_attr.as_ref() } {
            wanted.domain = Some(*domain);
            // SAFETY: as above.
            wanted.domain_name = unsafe { text(domain.name) };
        }
        // SAFETY: as above.
        if let Some(fabric) = unsafe { hints.fabric_attr.as_ref() } {
            // SAFETY: as above.
            wanted.fabric_name = unsafe { text(fabric.name) };
        }
        // SAFETY: as above.
        if let Some(transmit) = unsafe { hints.tx_attr.as_ref() } {
            wanted.transmit = *transmit;
        }
        // SAFETY: as above.
        if let Some(receive) = unsafe { hints.rx_attr.as_ref() } {
            wanted.receive = *receive;
        }
        wanted
    }

    /// None where the profile lacks what is asked for, or demands a mode that is not offered.
    fn granted(&self, settings: &Settings) -> Option<Granted> {
        let profile = &settings.profile;
        let Self { endpoint, transmit, receive, .. } = self;
        let domain = self.domain.unwrap_or_default();
        let caps = self.granted_caps(profile)?;
        let orders = transmit.msg_order | receive.msg_order;
        let fits = self.names_its_modes(profile)
            && (transmit.caps | receive.caps) & !caps == 0
            && domain.caps & !DOMAIN == 0
            && matches!(self.address_format, sys::FI_FORMAT_UNSPEC | sys::FI_ADDR_STR)
            && matches!(domain.av_type, sys::FI_AV_UNSPEC | sys::FI_AV_TABLE)
            && domain.mr_key_size <= profile.key_bytes
            && matches!(endpoint.type_, sys::FI_EP_UNSPEC | sys::FI_EP_RDM)
            && endpoint.max_msg_size as u64 <= profile.max_message
            && domain.cq_data_size <= profile.immediate_bytes
            && has_manual_progress(domain.control_progress)
            && has_manual_progress(domain.data_progress)
            && matches!(domain.resource_mgmt, sys::FI_RM_UNSPEC | sys::FI_RM_DISABLED)
            && transmit.inject_size <= profile.inject_bytes
            && transmit.size <= profile.transmit_depth
            && receive.size <= profile.receive_depth
            && transmit.iov_limit.max(transmit.rma_iov_limit).max(receive.iov_limit) <= PIECES
            && transmit.op_flags & !TRANSMIT_FLAGS == 0
            && receive.op_flags & !RECEIVE_FLAGS == 0
            && orders & !profile.orders == 0
            && transmit.comp_order == 0
            && receive.comp_order & !completion_order(profile) == 0
            && self.fabric_name.as_deref().is_none_or(|name| Ok(name) == NAME.to_str());
        if !fits {
            return None;
        }
        Some(Granted {
            caps,
            transmit_caps: transmit_caps(caps, transmit.caps),
            receive_caps: receive_caps(caps, receive.caps),
            modes: self.granted_modes(profile)?,
            threading: match domain.threading {
                sys::FI_THREAD_UNSPEC => sys::FI_THREAD_SAFE,
                other => other,
            },
            orders: orders | profile.always_ordered,
            transmit_flags: transmit.op_flags,
            receive_flags: receive.op_flags,
        })
    }

    /// None where the profile lacks one, or a direction is asked for without the capability that it restricts.
    fn granted_caps(&self, profile: &Profile) -> Option<u64> {
        let all = caps_of(profile);
        if self.caps == 0 {
            return Some(all);
        }
        let is_offered = self.caps & !(all | sys::FI_HMEM) == 0;
        let restricts = DIRECTIONS
            .iter()
            .all(|(primary, directions)| self.caps & directions == 0 || self.caps & primary != 0);
        (is_offered && restricts).then(|| directed(self.caps) | SECONDARY)
    }

    /// Whether each of the three places that can have mode bits has those that the profile needs. In a context's attributes, 0 stands for
    /// the mode of the whole: fi_endpoint(3).
    fn names_its_modes(&self, profile: &Profile) -> bool {
        let contexts =
            [self.transmit.mode, self.receive.mode].into_iter().filter(|mode| *mode != 0);
        self.mode.into_iter().chain(contexts).all(|mode| profile.mode & !mode == 0)
    }

    /// The user must offer every mode that the profile needs; other modes are cleared. No CPU can read device memory, so FI_HMEM needs
    /// FI_MR_HMEM: a descriptor for each operation.
    fn granted_modes(&self, profile: &Profile) -> Option<c_int> {
        let hmem = if self.caps & sys::FI_HMEM == 0 { 0 } else { sys::FI_MR_HMEM };
        let needed = profile.regions | hmem;
        match self.domain.map(|domain| domain.mr_mode) {
            None => Some(needed),
            Some(MR_BASIC) => (needed & !MR_BASIC_MODES == 0).then_some(MR_BASIC),
            Some(modes) => (needed & !modes == 0).then_some(needed),
        }
    }
}

/// Makes one fi_info.
fn make(settings: &Settings, granted: &Granted, number: usize) -> Option<*mut sys::fi_info> {
    let library = library()?;
    // SAFETY: of nothing, it makes an empty one.
    let made = unsafe { (library.fi_dupinfo)(ptr::null()) };
    // SAFETY: null or valid, and ours alone.
    let info = unsafe { made.as_mut() }?;
    let profile = &settings.profile;
    info.caps = granted.caps;
    info.mode = profile.mode;
    info.addr_format = sys::FI_ADDR_STR;
    let address = CString::new(format!("vfabric://{number}/")).ok()?;
    info.src_addrlen = address.as_bytes_with_nul().len();
    info.src_addr = duplicate(&address).cast();
    info.nic = nic::make(settings, number, &domain_name(number));
    // SAFETY: an info that is made has all of its parts, and so for the four below.
    fill_endpoint(unsafe { info.ep_attr.as_mut() }?, profile);
    // SAFETY: as above.
    let domain = unsafe { info.domain_attr.as_mut() }?;
    domain.name = duplicate(&CString::new(domain_name(number)).ok()?);
    fill_domain(domain, profile, granted);
    // SAFETY: as above.
    let fabric = unsafe { info.fabric_attr.as_mut() }?;
    fabric.name = duplicate(NAME);
    fabric.prov_version = sys::version(0, 1);
    // SAFETY: as above.
    let transmit = unsafe { info.tx_attr.as_mut() }?;
    transmit.caps = granted.transmit_caps;
    transmit.mode = profile.mode;
    transmit.op_flags = granted.transmit_flags;
    transmit.msg_order = granted.orders;
    transmit.inject_size = profile.inject_bytes;
    transmit.size = profile.transmit_depth;
    transmit.iov_limit = PIECES;
    transmit.rma_iov_limit = PIECES;
    // SAFETY: as above.
    let receive = unsafe { info.rx_attr.as_mut() }?;
    receive.caps = granted.receive_caps;
    receive.mode = profile.mode;
    receive.op_flags = granted.receive_flags;
    receive.msg_order = granted.orders;
    receive.comp_order = completion_order(profile);
    receive.size = profile.receive_depth;
    receive.iov_limit = PIECES;
    Some(made)
}

/// Whether bytes are written to memory in order: fi_endpoint(3), `comp_order` of a receive context.
fn completion_order(profile: &Profile) -> u64 {
    if profile.hold { 0 } else { sys::FI_ORDER_DATA }
}

/// Whether a hint permits that only polls make progress.
fn has_manual_progress(asked: sys::fi_progress) -> bool {
    matches!(asked, sys::FI_PROGRESS_UNSPEC | sys::FI_PROGRESS_MANUAL)
}

fn fill_endpoint(endpoint: &mut sys::fi_ep_attr, profile: &Profile) {
    endpoint.type_ = sys::FI_EP_RDM;
    endpoint.protocol = profile.protocol;
    endpoint.protocol_version = profile.protocol_version;
    endpoint.max_msg_size = crate::memory::bits(profile.max_message);
    endpoint.tx_ctx_cnt = 1;
    endpoint.rx_ctx_cnt = 1;
}

fn fill_domain(domain: &mut sys::fi_domain_attr, profile: &Profile, granted: &Granted) {
    domain.threading = granted.threading;
    domain.control_progress = sys::FI_PROGRESS_MANUAL;
    domain.data_progress = sys::FI_PROGRESS_MANUAL;
    // Nothing protects a completion queue: its overrun is a broken rule.
    domain.resource_mgmt = sys::FI_RM_DISABLED;
    domain.av_type = sys::FI_AV_TABLE;
    domain.mr_mode = granted.modes;
    domain.mr_key_size = profile.key_bytes;
    domain.cq_data_size = profile.immediate_bytes;
    domain.cq_cnt = 1024;
    domain.ep_cnt = profile.endpoints_per_nic;
    domain.tx_ctx_cnt = 1;
    domain.rx_ctx_cnt = 1;
    domain.max_ep_tx_ctx = 1;
    domain.max_ep_rx_ctx = 1;
    domain.mr_iov_limit = 1;
    domain.caps = DOMAIN;
    domain.mr_cnt = 1 << 16;
}
