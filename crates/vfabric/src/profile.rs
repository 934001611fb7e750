//! What a kind of fabric promises and demands, as data.

use std::ffi::c_int;

use libfabric_sys as sys;

/// One kind of fabric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profile {
    pub(crate) name: &'static str,
    /// FI_MR_* bits that registration demands; FI_HMEM also demands FI_MR_HMEM.
    pub(crate) regions: c_int,
    /// Whether it has one-sided access (FI_RMA).
    pub(crate) rma: bool,
    /// Mode bits that the user must offer, such as FI_CONTEXT2.
    pub(crate) mode: u64,
    pub(crate) key_bytes: usize,
    /// `cq_data_size`.
    pub(crate) immediate_bytes: usize,
    /// Whether writes with immediates really work.
    pub(crate) immediates: bool,
    /// Whether the completion of a remote write has its true length and address.
    pub(crate) true_lengths: bool,
    pub(crate) arrival_context: ArrivalContext,
    pub(crate) inject_bytes: usize,
    /// The value of FI_OPT_INJECT_RMA_SIZE, and the largest injected write, where the library has the option.
    pub(crate) inject_rma_bytes: usize,
    pub(crate) transmit_depth: usize,
    pub(crate) receive_depth: usize,
    pub(crate) max_message: u64,
    /// The longest write that is one piece, where an immediate arrives with each piece (libfabric prov/efa/src/rdm/efa_rdm_ope.c).
    pub(crate) max_piece: u64,
    pub(crate) endpoints_per_nic: usize,
    /// Whether several endpoints can be bound to one address vector, at the same time or one after the other. If not, an address is
    /// inserted by the endpoint, which has to be open (libfabric 1.17 to 2.1, prov/efa/src/efa_base_ep.c and efa_av.c).
    pub(crate) shares_vectors: bool,
    /// Whether the removal of an address also removes this end's state of the peer, such as the number of the next message, while the peer
    /// goes on counting (libfabric prov/efa/src/efa_conn.c, rdm/efa_rdm_peer.c): then the peer takes new messages for repetitions.
    pub(crate) forgets_peers: bool,
    /// Whether an endpoint with FI_HMEM has CUDA pin its buffers, unless FI_CXI_DISABLE_HOST_REGISTER is 1, whatever
    /// FI_OPT_CUDA_API_PERMITTED says (libfabric prov/cxi/src/cxip_ptelist_buf.c).
    pub(crate) has_cuda_pin: bool,
    /// How many writes with immediates may arrive on an endpoint between two polls of it; 0: as many as its queue holds.
    pub(crate) arrivals: usize,
    /// Whether fabrics have event queues. An error of an endpoint goes there; without one the process would be aborted.
    pub(crate) has_events: bool,
    /// FI_ORDER_* bits that it keeps when asked to.
    pub(crate) orders: u64,
    /// FI_ORDER_* bits that it always keeps.
    pub(crate) always_ordered: u64,
    /// How far completions and bytes may overtake each other, in polls.
    pub(crate) reorder: u64,
    /// Whether landed bytes may stay invisible for a while, torn at cache lines.
    pub(crate) hold: bool,
    pub(crate) progress: Progress,
    /// FI_PROTO_*.
    pub(crate) protocol: u32,
    pub(crate) protocol_version: u32,
    /// The traffic classes in which an endpoint can be opened.
    pub(crate) classes: Classes,
    /// The MTU in bytes and the link type, for fi_info.nic.
    pub(crate) mtu: usize,
    pub(crate) network: &'static str,
}

/// What a remote write's completion has in `op_context`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArrivalContext {
    Null,
    /// The region's context, as on cxi.
    Region,
    /// The context of some other operation in flight, if there is one: it exposes a user that relies on it.
    Misleading,
}

/// Traffic classes, FI_TC_* of fi_endpoint(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Classes {
    Any,
    /// FI_TC_BEST_EFFORT to FI_TC_SCAVENGER (libfabric prov/cxi/src/cxip_ep.c, cxip_set_tclass).
    Labels,
    None,
}

impl Classes {
    /// Whether an endpoint can be opened in this class.
    pub(crate) fn has(self, class: u32) -> bool {
        let is_label = (sys::FI_TC_LABEL..=sys::FI_TC_SCAVENGER).contains(&class);
        class == sys::FI_TC_UNSPEC || self == Self::Any || self == Self::Labels && is_label
    }
}

/// Which calls move data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The NIC moves RMA by itself; messages wait for a poll of the target.
    Hardware,
    /// Polls of both ends move everything. An operation completes at its post; its bytes leave when the sender polls again after reading
    /// the completion, and land when the target polls. Posts get -FI_EAGAIN until the connection is up.
    Software,
}

/// All profiles.
pub(crate) const PROFILES: &[Profile] = &[
    Profile {
        name: "cxi",
        regions: sys::FI_MR_ENDPOINT | sys::FI_MR_PROV_KEY | sys::FI_MR_ALLOCATED,
        rma: true,
        mode: 0,
        key_bytes: 8,
        immediate_bytes: 8,
        immediates: false,
        true_lengths: true,
        arrival_context: ArrivalContext::Region,
        inject_bytes: 192,
        inject_rma_bytes: 192,
        transmit_depth: 1024,
        receive_depth: 1024,
        max_message: (1 << 32) - 1,
        max_piece: u64::MAX,
        endpoints_per_nic: 32,
        shares_vectors: true,
        forgets_peers: false,
        has_cuda_pin: true,
        arrivals: 1024,
        has_events: false,
        orders: sys::FI_ORDER_SAS | sys::FI_ORDER_WAW | sys::FI_ORDER_RAR,
        always_ordered: 0,
        reorder: 4,
        hold: true,
        progress: Progress::Hardware,
        protocol: sys::FI_PROTO_CXI,
        protocol_version: 1,
        classes: Classes::Labels,
        mtu: 9000,
        network: "HPC Ethernet",
    },
    Profile {
        name: "efa",
        regions: sys::FI_MR_VIRT_ADDR
            | sys::FI_MR_PROV_KEY
            | sys::FI_MR_LOCAL
            | sys::FI_MR_ALLOCATED,
        rma: true,
        mode: 0,
        key_bytes: 8,
        immediate_bytes: 4,
        immediates: true,
        true_lengths: true,
        arrival_context: ArrivalContext::Null,
        inject_bytes: 32,
        inject_rma_bytes: 0,
        transmit_depth: 512,
        receive_depth: 512,
        max_message: u64::MAX,
        max_piece: 1 << 30,
        endpoints_per_nic: 1024,
        shares_vectors: false,
        forgets_peers: true,
        has_cuda_pin: false,
        arrivals: 0,
        has_events: true,
        orders: sys::FI_ORDER_SAS,
        always_ordered: 0,
        reorder: 24,
        hold: true,
        progress: Progress::Hardware,
        protocol: sys::FI_PROTO_EFA,
        protocol_version: 4,
        classes: Classes::Any,
        mtu: 8760,
        network: "Ethernet",
    },
    Profile {
        name: "tcp",
        regions: 0,
        rma: true,
        mode: 0,
        key_bytes: 8,
        immediate_bytes: 8,
        immediates: true,
        true_lengths: false,
        arrival_context: ArrivalContext::Null,
        inject_bytes: 128,
        inject_rma_bytes: 128,
        transmit_depth: 256,
        receive_depth: 256,
        max_message: u64::MAX,
        max_piece: u64::MAX,
        endpoints_per_nic: 1024,
        shares_vectors: true,
        forgets_peers: false,
        has_cuda_pin: false,
        arrivals: 0,
        has_events: false,
        orders: EVERY_ORDER,
        always_ordered: EVERY_ORDER,
        reorder: 0,
        hold: false,
        progress: Progress::Software,
        protocol: sys::FI_PROTO_XNET,
        protocol_version: 0,
        classes: Classes::Any,
        mtu: 1500,
        network: "Ethernet",
    },
    Profile {
        name: "adversary",
        regions: sys::FI_MR_ENDPOINT | sys::FI_MR_LOCAL | sys::FI_MR_VIRT_ADDR,
        rma: true,
        mode: sys::FI_CONTEXT2,
        key_bytes: 2,
        immediate_bytes: 4,
        immediates: true,
        true_lengths: false,
        arrival_context: ArrivalContext::Misleading,
        inject_bytes: 64,
        inject_rma_bytes: 64,
        transmit_depth: 16,
        receive_depth: 64,
        max_message: 64 << 10,
        max_piece: u64::MAX,
        endpoints_per_nic: 32,
        shares_vectors: false,
        forgets_peers: false,
        has_cuda_pin: false,
        arrivals: 0,
        has_events: false,
        orders: sys::FI_ORDER_SAS,
        always_ordered: 0,
        reorder: 48,
        hold: true,
        progress: Progress::Hardware,
        protocol: FI_PROTO_VFABRIC,
        protocol_version: 1,
        classes: Classes::Any,
        mtu: 4096,
        network: "None",
    },
    Profile {
        name: "messages",
        regions: sys::FI_MR_ENDPOINT | sys::FI_MR_PROV_KEY | sys::FI_MR_LOCAL,
        rma: false,
        mode: 0,
        key_bytes: 8,
        immediate_bytes: 0,
        immediates: false,
        true_lengths: false,
        arrival_context: ArrivalContext::Null,
        inject_bytes: 64,
        inject_rma_bytes: 0,
        transmit_depth: 128,
        receive_depth: 256,
        max_message: 1 << 30,
        max_piece: u64::MAX,
        endpoints_per_nic: 64,
        shares_vectors: true,
        forgets_peers: false,
        has_cuda_pin: false,
        arrivals: 0,
        has_events: false,
        orders: sys::FI_ORDER_SAS,
        always_ordered: 0,
        reorder: 24,
        hold: false,
        progress: Progress::Hardware,
        protocol: FI_PROTO_VFABRIC + 1,
        protocol_version: 1,
        classes: Classes::Any,
        mtu: 4096,
        network: "None",
    },
];

const EVERY_ORDER: u64 = sys::FI_ORDER_RAR
    | sys::FI_ORDER_RAW
    | sys::FI_ORDER_RAS
    | sys::FI_ORDER_WAW
    | sys::FI_ORDER_WAS
    | sys::FI_ORDER_SAW
    | sys::FI_ORDER_SAS;

/// Protocols with the highest bit are a provider's own: rdma/fabric.h, FI_PROV_SPECIFIC.
const FI_PROTO_VFABRIC: u32 = sys::FI_PROV_SPECIFIC | 0x5646;

/// The profile of this name.
pub(crate) fn named(name: &str) -> Option<Profile> {
    PROFILES.iter().find(|profile| profile.name == name).copied()
}
