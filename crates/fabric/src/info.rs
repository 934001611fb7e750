//! A result of fi_getinfo(3): where rails can be opened, and the capabilities that the provider claims.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use libfabric_sys as sys;

use crate::error::{Call, FabricError};
use crate::library::Library;
use crate::text::{c_string, duplicate};

/// One result of [`Library::find`], owned. The claimed capabilities are not always true, which is why the plugin probes.
///
/// It keeps the library that it is of: only that one may read, copy or free it, or open anything with it.
pub struct Info {
    raw: NonNull<sys::fi_info>,
    library: Arc<Library>,
}

// SAFETY: an fi_info is memory that only its owner changes; freeing and copying it is thread safe (fi_getinfo(3)), and both
// calls stay valid as libfabric is never unloaded.
unsafe impl Send for Info {}
// SAFETY: as above; `&Info` only reads.
unsafe impl Sync for Info {}

impl Info {
    /// The library that it is of.
    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }

    /// The provider's name, such as `cxi` or `tcp;ofi_rxm`.
    pub fn provider(&self) -> &str {
        text(self.fabric().prov_name)
    }

    /// The provider's own version.
    pub fn provider_version(&self) -> crate::Version {
        let raw = self.fabric().prov_version;
        crate::Version::from_raw(raw)
    }

    /// The fabric's name: according to the provider, endpoints on fabrics with the same name reach each other.
    pub fn fabric_name(&self) -> &str {
        text(self.fabric().name)
    }

    /// The domain's name: the NIC or interface.
    pub fn domain_name(&self) -> &str {
        text(self.domain().name)
    }

    /// The local address, in the provider's format; empty if unknown.
    pub fn source_address(&self) -> &[u8] {
        let raw = self.raw();
        if raw.src_addr.is_null() {
            return &[];
        }
        // SAFETY: src_addr is src_addrlen bytes that live as long as the info (fi_getinfo(3)).
        unsafe { slice::from_raw_parts(raw.src_addr.cast::<u8>(), raw.src_addrlen) }
    }

    /// The format of addresses: FI_SOCKADDR_IN, FI_ADDR_CXI and so on (fi_getinfo(3)).
    pub fn address_format(&self) -> u32 {
        self.raw().addr_format
    }

    /// The wire protocol of endpoints, FI_PROTO_*: endpoints with different ones cannot communicate.
    pub fn protocol(&self) -> u32 {
        self.endpoint().protocol
    }

    /// The version of the wire protocol (fi_endpoint(3), `protocol_version`).
    pub fn protocol_version(&self) -> u32 {
        self.endpoint().protocol_version
    }

    /// The capabilities granted, as in fi_getinfo(3).
    pub fn capabilities(&self) -> u64 {
        self.raw().caps
    }

    /// The largest message or transfer in bytes.
    pub fn max_message(&self) -> u64 {
        self.endpoint().max_msg_size as u64
    }

    /// The largest injected message in bytes. Injected writes may have a smaller limit.
    pub fn inject_bytes(&self) -> usize {
        self.transmit().inject_size
    }

    /// How many operations may be outstanding in an endpoint's transmit queue.
    pub fn transmit_depth(&self) -> usize {
        self.transmit().size
    }

    /// How many receives may be posted on an endpoint.
    pub fn receive_depth(&self) -> usize {
        self.receive().size
    }

    /// The size of remote CQ data (`cq_data_size`). More than zero does not prove that immediates work: cxi reports 8 and refuses them.
    pub fn immediate_bytes(&self) -> usize {
        self.domain().cq_data_size
    }

    /// Whether the bytes of an operation are written to memory in order (FI_ORDER_DATA, fi_endpoint(3)).
    pub fn lands_in_order(&self) -> bool {
        self.receive().comp_order & sys::FI_ORDER_DATA != 0
    }

    /// The size of a region's key in bytes.
    pub fn key_bytes(&self) -> usize {
        self.domain().mr_key_size
    }

    /// The registration modes that the provider requires.
    pub fn region_mode(&self) -> RegionMode {
        RegionMode::of(self.domain().mr_mode, self.raw().mode)
    }

    /// Whether the domain can register device memory (FI_HMEM).
    pub fn device_memory(&self) -> bool {
        self.raw().caps & sys::FI_HMEM != 0
    }

    /// The NIC behind the domain, if the provider describes one; software providers do not.
    pub fn nic(&self) -> Option<NicInfo> {
        // SAFETY: a non-null nic is valid as long as the info (fi_nic(3)).
        let nic = unsafe { self.raw().nic.as_ref() }?;
        // SAFETY: as above, and so for the two below: each is null or valid.
        let device = unsafe { nic.device_attr.as_ref() };
        // SAFETY: as above.
        let bus = unsafe { nic.bus_attr.as_ref() };
        // SAFETY: as above.
        let link = unsafe { nic.link_attr.as_ref() };
        Some(NicInfo {
            device: device.and_then(|device| owned_text(device.name)),
            vendor: device.and_then(|device| owned_text(device.vendor_id)),
            model: device.and_then(|device| owned_text(device.device_id)),
            driver: device.and_then(|device| owned_text(device.driver)),
            firmware: device.and_then(|device| owned_text(device.firmware)),
            pci: bus.filter(|bus| bus.bus_type == sys::FI_BUS_PCI).map(PciAddress::of),
            link_bits_per_second: link.map(|link| link.speed as u64).filter(|speed| *speed > 0),
            mtu_bytes: link.map(|link| link.mtu).filter(|mtu| *mtu > 0),
            link_up: link.and_then(|link| match link.state {
                sys::FI_LINK_UP => Some(true),
                sys::FI_LINK_DOWN => Some(false),
                _ => None,
            }),
            network: link.and_then(|link| owned_text(link.network_type)),
        })
    }

    /// The traffic class that endpoints get, FI_TC_* (fi_endpoint(3)); none if the provider chooses.
    pub fn traffic_class(&self) -> Option<u32> {
        Some(self.transmit().tclass).filter(|class| *class != sys::FI_TC_UNSPEC)
    }

    /// Requests a traffic class, or leaves it to the provider. Opening the domain or endpoint fails if the provider refuses it.
    pub fn set_traffic_class(&mut self, class: Option<u32>) {
        let class = class.unwrap_or(sys::FI_TC_UNSPEC);
        self.transmit_mut().tclass = class;
        self.domain_mut().tclass = class;
    }

    /// A copy that requests a traffic class for endpoints only, on a domain that was opened with this info.
    #[must_use]
    pub(crate) fn in_class(&self, class: u32) -> Self {
        let mut made = self.clone();
        made.transmit_mut().tclass = class;
        made
    }

    /// A copy that requests no messages of endpoints, on a domain that was opened with this info.
    #[must_use]
    pub(crate) fn without_messages(&self) -> Self {
        const MESSAGES: u64 = sys::FI_MSG | sys::FI_TAGGED | sys::FI_SEND | sys::FI_RECV;
        let mut made = self.clone();
        made.raw_mut().caps &= !MESSAGES;
        made.transmit_mut().caps &= !MESSAGES;
        made.receive_mut().caps &= !MESSAGES;
        made
    }

    /// Whether two results name the same provider, fabric, domain and address, whatever capabilities and modes they have.
    pub fn is_at(&self, other: &Self) -> bool {
        self.provider() == other.provider()
            && self.fabric_name() == other.fabric_name()
            && self.domain_name() == other.domain_name()
            && self.source_address() == other.source_address()
            && self.protocol() == other.protocol()
    }

    /// [`is_at`](Self::is_at), and the registration modes are equal.
    pub(crate) fn is_at_with_modes(&self, other: &Self) -> bool {
        self.is_at(other) && self.domain().mr_mode == other.domain().mr_mode
    }

    /// Splits a list into its entries.
    ///
    /// # Safety
    ///
    /// `list` is null, or a list that `library` made and that nothing else frees.
    pub(crate) unsafe fn take_list(
        library: &Arc<Library>,
        mut list: *mut sys::fi_info,
    ) -> Vec<Self> {
        let mut found = Vec::new();
        while let Some(raw) = NonNull::new(list) {
            // SAFETY: the caller gave us the list, and an entry that leaves it ends its own list of one.
            list = unsafe { (*raw.as_ptr()).next };
            // SAFETY: as above.
            unsafe { (*raw.as_ptr()).next = ptr::null_mut() };
            // SAFETY: as above; nothing else has this entry now.
            found.extend(unsafe { Self::own(library, raw) });
        }
        found
    }

    /// An empty fi_info, for hints.
    pub(crate) fn empty(library: &Arc<Library>) -> Result<Self, FabricError> {
        // SAFETY: fi_dupinfo accepts null, and makes an empty fi_info.
        let raw = unsafe { (library.symbols().fi_dupinfo)(ptr::null()) };
        let raw = NonNull::new(raw).ok_or(FabricError::new(Call::fi_dupinfo, sys::FI_ENOMEM))?;
        // SAFETY: fi_dupinfo made it for us.
        unsafe { Self::own(library, raw) }.ok_or(FabricError::new(Call::fi_dupinfo, sys::FI_EOTHER))
    }

    /// Wraps one entry if all of its attributes are present; otherwise frees it.
    ///
    /// # Safety
    ///
    /// `raw` is an entry that `library` made, alone in its list, and nothing else frees it.
    unsafe fn own(library: &Arc<Library>, raw: NonNull<sys::fi_info>) -> Option<Self> {
        let info = Self { raw, library: Arc::clone(library) };
        let raw = info.raw();
        let whole = !(raw.tx_attr.is_null()
            || raw.rx_attr.is_null()
            || raw.ep_attr.is_null()
            || raw.domain_attr.is_null()
            || raw.fabric_attr.is_null());
        whole.then_some(info)
    }

    pub(crate) fn set_names(
        &mut self,
        provider: Option<&str>,
        domain: Option<&str>,
    ) -> Result<(), FabricError> {
        if let Some(provider) = provider {
            self.fabric_mut().prov_name = duplicate(&c_string(provider)?)?;
        }
        if let Some(domain) = domain {
            self.domain_mut().name = duplicate(&c_string(domain)?)?;
        }
        Ok(())
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::fi_info {
        self.raw.as_ptr()
    }

    pub(crate) fn fabric_ptr(&self) -> *mut sys::fi_fabric_attr {
        self.raw().fabric_attr
    }

    fn raw(&self) -> &sys::fi_info {
        // SAFETY: we own a valid fi_info.
        unsafe { self.raw.as_ref() }
    }

    pub(crate) fn raw_mut(&mut self) -> &mut sys::fi_info {
        // SAFETY: as above, and `&mut self` makes us its only user.
        unsafe { self.raw.as_mut() }
    }
}

/// Accessors for the attributes of an fi_info, which `own` has checked to be present.
macro_rules! attributes {
    ($($get:ident $(, $get_mut:ident)? = $field:ident: $type:ty;)*) => {
        impl Info {$(
            fn $get(&self) -> &$type {
                let attributes = self.raw().$field;
                // SAFETY: `own` checked that it is there, and it lives as long as the info.
                unsafe { &*attributes }
            }

            $(pub(crate) fn $get_mut(&mut self) -> &mut $type {
                let attributes = self.raw().$field;
                // SAFETY: as above, and `&mut self` makes us its only user.
                unsafe { &mut *attributes }
            })?
        )*}
    };
}

attributes! {
    transmit, transmit_mut = tx_attr: sys::fi_tx_attr;
    receive, receive_mut = rx_attr: sys::fi_rx_attr;
    endpoint, endpoint_mut = ep_attr: sys::fi_ep_attr;
    domain, domain_mut = domain_attr: sys::fi_domain_attr;
    fabric, fabric_mut = fabric_attr: sys::fi_fabric_attr;
}

impl Clone for Info {
    /// # Panics
    ///
    /// When memory is exhausted, as `Box` does.
    fn clone(&self) -> Self {
        // SAFETY: we own a valid fi_info of this library, whose fi_dupinfo reads it.
        let raw = unsafe { (self.library.symbols().fi_dupinfo)(self.raw.as_ptr()) };
        let raw = NonNull::new(raw).expect("fi_dupinfo fails only without memory");
        Self { raw, library: Arc::clone(&self.library) }
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: we own it, this library made it, and it is freed once.
        unsafe { (self.library.symbols().fi_freeinfo)(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Info")
            .field("provider", &self.provider())
            .field("fabric", &self.fabric_name())
            .field("domain", &self.domain_name())
            .field("source", &self.source_address())
            .field("region_mode", &self.region_mode())
            .finish_non_exhaustive()
    }
}

/// The registration modes of a provider: fi_mr(3). Only this crate acts on them; they are public for logs and probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RegionMode {
    /// A region belongs to one endpoint: bind it, then enable it (FI_MR_ENDPOINT).
    pub bind_to_endpoint: bool,
    /// Peers name memory by its virtual address (FI_MR_VIRT_ADDR), otherwise by its offset in the region.
    pub virtual_addresses: bool,
    /// The provider chooses keys (FI_MR_PROV_KEY), otherwise we do.
    pub provider_keys: bool,
    /// Local buffers must be registered too (FI_MR_LOCAL).
    pub local: bool,
    /// Memory must be backed by pages when it is registered (FI_MR_ALLOCATED).
    pub allocated: bool,
    /// Device memory must be registered with its kind, for local use too (FI_MR_HMEM).
    pub device_memory: bool,
}

impl RegionMode {
    fn of(bits: c_int, mode: u64) -> Self {
        // FI_MR_BASIC alone stands for three of the newer mode bits, and the old mode FI_LOCAL_MR for FI_MR_LOCAL (fi_mr(3)).
        let bits = if bits == sys::FI_MR_BASIC.cast_signed() {
            sys::FI_MR_VIRT_ADDR | sys::FI_MR_ALLOCATED | sys::FI_MR_PROV_KEY
        } else {
            bits
        };
        Self {
            bind_to_endpoint: bits & sys::FI_MR_ENDPOINT != 0,
            virtual_addresses: bits & sys::FI_MR_VIRT_ADDR != 0,
            provider_keys: bits & sys::FI_MR_PROV_KEY != 0,
            local: bits & sys::FI_MR_LOCAL != 0 || mode & sys::FI_LOCAL_MR != 0,
            allocated: bits & sys::FI_MR_ALLOCATED != 0,
            device_memory: bits & sys::FI_MR_HMEM != 0,
        }
    }
}

/// A NIC, as its provider describes it: fi_nic(3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicInfo {
    /// The device's name, such as `mlx5_0` or `cxi0`.
    pub device: Option<String>,
    /// The vendor's id, as text.
    pub vendor: Option<String>,
    /// The device's id, as text.
    pub model: Option<String>,
    /// The kernel driver.
    pub driver: Option<String>,
    /// The firmware's version.
    pub firmware: Option<String>,
    /// Its address on the PCI bus.
    pub pci: Option<PciAddress>,
    /// The link's speed in bits per second.
    pub link_bits_per_second: Option<u64>,
    /// The link's largest frame in bytes.
    pub mtu_bytes: Option<usize>,
    /// Whether the link is up, if the provider reports it.
    pub link_up: Option<bool>,
    /// The kind of network, such as `Ethernet`, `InfiniBand` or `HPC Ethernet`.
    pub network: Option<String>,
}

/// An address on the PCI bus. It prints as sysfs writes it: `0000:3b:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// The PCI domain.
    pub domain: u16,
    /// The bus.
    pub bus: u8,
    /// The device on the bus.
    pub device: u8,
    /// The function of the device.
    pub function: u8,
}

impl PciAddress {
    fn of(bus: &sys::fi_bus_attr) -> Self {
        // SAFETY: the caller checked that bus_type is FI_BUS_PCI, and the union has no other member.
        let pci = unsafe { bus.attr.pci };
        Self {
            domain: pci.domain_id,
            bus: pci.bus_id,
            device: pci.device_id,
            function: pci.function_id,
        }
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// A string of libfabric's; empty if it is null or not UTF-8. Names are ASCII in every provider.
fn text<'info>(raw: *const c_char) -> &'info str {
    if raw.is_null() {
        return "";
    }
    // SAFETY: a C string that lives as long as the info; the callers tie the result to it.
    unsafe { CStr::from_ptr(raw) }.to_str().unwrap_or("")
}

fn owned_text(raw: *const c_char) -> Option<String> {
    Some(text(raw)).filter(|text| !text.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn basic_regions_are_three_of_the_newer_modes() {
        let mode = RegionMode::of(sys::FI_MR_BASIC.cast_signed(), 0);
        let expected = RegionMode {
            virtual_addresses: true,
            provider_keys: true,
            allocated: true,
            ..RegionMode::default()
        };
        assert_eq!(mode, expected);
        assert_eq!(RegionMode::of(0, 0), RegionMode::default());
        assert!(RegionMode::of(sys::FI_MR_ENDPOINT, 0).bind_to_endpoint);
        assert!(RegionMode::of(0, sys::FI_LOCAL_MR).local);
    }

    #[test]
    fn pci_addresses_print_as_sysfs_writes_them() {
        let address = PciAddress { domain: 0, bus: 0x3b, device: 1, function: 2 };
        assert_eq!(address.to_string(), "0000:3b:01.2");
    }
}
