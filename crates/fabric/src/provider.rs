//! What rails need by provider, whatever they carry: options of endpoints (fi_setopt in fi_endpoint(3)), and the provider's part of
//! [`NicOptions`].
//!
//! An option is set before the endpoint is enabled. One that the loaded libfabric or the provider does not support, or refuses, is skipped, unless
//! it is required. docs/providers.md is made from the tables here and in the plugin.

use libfabric_sys as sys;

use crate::info::Info;
use crate::kind::{RailKind, Role};
use crate::library::Version;
use crate::nic::NicOptions;
use crate::options::{EndpointOption, OptionName};

/// The core provider, without layers: `verbs` of `verbs;ofi_rxm`.
pub fn core_provider(provider: &str) -> &str {
    provider.split(';').next().unwrap_or(provider)
}

impl Info {
    /// The family of the NICs: the core provider, or the provider whose wire protocol it uses (fi_endpoint(3), `protocol`).
    pub fn family(&self) -> &str {
        match self.protocol() {
            sys::FI_PROTO_EFA => "efa",
            sys::FI_PROTO_CXI => "cxi",
            _ => core_provider(self.provider()),
        }
    }

    /// The options for rails of one kind.
    pub fn endpoint_options<K: RailKind>(&self) -> Vec<EndpointOption> {
        endpoint_options(self.family(), self.device_memory(), self.library().version(), K::ROLE)
    }
}

fn endpoint_options(
    family: &str,
    gpu_memory: bool,
    version: Version,
    role: Role,
) -> Vec<EndpointOption> {
    let fits = |row: &&ProviderOption| {
        row.provider.is_none_or(|named| named == family)
            && version >= row.option.name.since()
            && (gpu_memory || !row.with_gpu_memory)
            && (row.rails == Rails::Both || role == Role::Data)
    };
    PROVIDER_OPTIONS.iter().filter(fits).map(|row| row.option).collect()
}

impl NicOptions<'_> {
    /// What rails of this NIC need because of its provider, where the data rail has one-sided operations alone; no rail is named.
    pub fn of(info: &Info) -> Self {
        let is_one = |of: &[&str]| of.contains(&info.family());
        Self {
            one_sided_data: is_one(ONE_SIDED),
            injects_control: INJECTING.contains(&info.provider()),
            keeps_peers: is_one(FORGETFUL),
            uses_descriptors: is_one(LOOKING_UP),
            ..Self::default()
        }
    }
}

/// One option of a provider's.
#[derive(Clone, Copy, Debug)]
pub struct ProviderOption {
    /// The family of NICs (`efa`), or all.
    pub provider: Option<&'static str>,
    /// What is set.
    pub option: EndpointOption,
    /// Where it is set.
    pub rails: Rails,
    /// Only where the rail was opened for GPU memory (FI_HMEM).
    pub with_gpu_memory: bool,
    /// Why, for docs/providers.md.
    pub doc: Doc,
}

/// The texts for docs/providers.md.
#[derive(Clone, Copy, Debug)]
pub struct Doc {
    /// Its name in libfabric.
    pub name: &'static str,
    /// Why it is set.
    pub why: &'static str,
    /// The consequence of a refusal.
    pub refused: &'static str,
}

/// Which rails an option is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rails {
    /// Data rails.
    Data,
    /// Data rails and control rails.
    Both,
}

/// Forbids CUDA calls: the provider's progress runs in NCCL's threads, and a CUDA call there that waits for a kernel which waits for that
/// thread is a deadlock.
pub const NO_CUDA_CALLS: EndpointOption =
    EndpointOption { name: OptionName::CudaApiPermitted, value: false, required: true };

/// Aligned lines of 128 bytes are written in order, where the device can.
pub const LINES: EndpointOption = EndpointOption {
    name: OptionName::EfaWriteInOrderAligned128Bytes,
    value: true,
    required: true,
};

/// All options that are set.
pub const PROVIDER_OPTIONS: &[ProviderOption] = &[
    ProviderOption {
        provider: None,
        option: NO_CUDA_CALLS,
        rails: Rails::Both,
        with_gpu_memory: true,
        doc: Doc {
            name: "FI_OPT_CUDA_API_PERMITTED = false",
            why: "So that the provider makes no CUDA calls in NCCL's threads. ¹",
            refused: "NCCL copies through host memory. ¹",
        },
    },
    ProviderOption {
        provider: Some("efa"),
        option: EndpointOption { required: false, ..LINES },
        rails: Rails::Data,
        with_gpu_memory: false,
        doc: Doc {
            name: "FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES = true",
            why: "NCCL's protocols LL and LL128 need it. ²",
            refused: "NCCL uses its protocol Simple. ²",
        },
    },
    ProviderOption {
        provider: Some("efa"),
        option: EndpointOption {
            name: OptionName::SharedMemoryPermitted,
            value: false,
            required: false,
        },
        rails: Rails::Both,
        with_gpu_memory: false,
        doc: Doc {
            name: "FI_OPT_SHARED_MEMORY_PERMITTED = false",
            why: "So that peers on one host use the NIC, as all others do. ³",
            refused: "Completions prove no arrival. ³",
        },
    },
];

/// Providers whose control rails inject short writes: packets, and acknowledgements. Only there is a copy faster than what they do otherwise.
pub const INJECTING: &[&str] = &["tcp", "net"];

/// Families of NICs that begin anew with a peer whose address was removed and inserted again, while the peer goes on: efa numbers messages
/// from 0, which the peer takes for repetitions, and aborts; and it awaits a handshake that was sent already (libfabric 1.17 to 2.6, in 2.6
/// prov/efa/src/efa_conn.c, rdm/efa_rdm_peer.c, rdm/efa_rdm_pke_rtm.c).
const FORGETFUL: &[&str] = &["efa"];

/// Families of NICs whose data rails are opened without messages, which only control rails have: cxi keeps 36 MiB of buffers for messages
/// that come before their receive, on each endpoint that can receive (libfabric 1.21 to 2.6, prov/cxi/src/cxip_rxc.c, cxip_ptelist_buf.c).
const ONE_SIDED: &[&str] = &["cxi"];

/// Families of NICs that use descriptors of operations only where the user asks for it (cxi, `enable_hybrid_mr_desc`): else each write
/// looks its buffer up, with a call of CUDA's where GPU memory is not found.
const LOOKING_UP: &[&str] = &["cxi"];

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: Version = Version::new(2, 5);

    fn names(provider: &str, gpu: bool, version: Version, role: Role) -> Vec<OptionName> {
        endpoint_options(provider, gpu, version, role).iter().map(|option| option.name).collect()
    }

    #[test]
    fn each_provider_gets_its_own_options_only() {
        use OptionName::{CudaApiPermitted, EfaWriteInOrderAligned128Bytes, SharedMemoryPermitted};
        assert_eq!(
            names("efa", true, NEW, Role::Data),
            [CudaApiPermitted, EfaWriteInOrderAligned128Bytes, SharedMemoryPermitted]
        );
        assert_eq!(
            names("efa", true, NEW, Role::Control),
            [CudaApiPermitted, SharedMemoryPermitted],
            "control rails carry nothing that NCCL polls"
        );
        assert_eq!(names("cxi", true, NEW, Role::Data), [CudaApiPermitted]);
        for provider in ["cxi", "tcp", "tcp;ofi_rxm", "verbs;ofi_rxm", "net"] {
            assert!(names(provider, false, NEW, Role::Data).is_empty(), "{provider}");
        }
    }

    #[test]
    fn an_older_libfabric_gets_fewer_options() {
        let at = |major, minor| names("efa", true, Version::new(major, minor), Role::Data).len();
        assert_eq!((at(1, 17), at(1, 18), at(1, 20), at(1, 21)), (0, 2, 2, 3));
    }

    #[test]
    fn only_what_was_tried_at_the_start_is_required() {
        for row in PROVIDER_OPTIONS {
            let tried = row.option.name == OptionName::CudaApiPermitted;
            assert_eq!(row.option.required, tried, "{:?}", row.option);
        }
    }

    #[test]
    fn only_providers_that_gain_by_it_inject_and_no_layer_over_them() {
        assert_eq!(INJECTING, ["tcp", "net"]);
    }
}
