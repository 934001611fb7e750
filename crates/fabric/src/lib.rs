//! Safe, owning objects over libfabric. Every `unsafe` call into it, and every close, is in this crate.
//!
//! The crate is sound: safe code can neither make libfabric access freed memory, nor use an object from two threads at once.
//!
//! ```text
//! Library ── find ──▶ Info
//!                      │ open
//!                      ▼
//! Nic: domain ◀─┬─ data rail: endpoint, queue, peers ◀────┐
//!               ├─ control rail: endpoint, queue, peers ◀─┼─ registrations (where regions are bound, else ◀─ domain) ◀─ reference to Memory
//!               └─ contexts ◀──────────────────── operation table ── counts ──▶ registrations
//!
//! Region<K> ── names ──▶ registration;  PeerAddress ── names ──▶ peer (in the address vector of a rail)
//! ```
//!
//! A [`Nic`] owns everything that libfabric may access, and lends none of it out. A NIC may move to another thread, and threads cannot share
//! one (it is not `Sync`), so calls on one NIC never run at the same time, as FI_THREAD_DOMAIN requires. Users hold ids: a [`Region`] of a
//! registration, a [`PeerAddress`] of a peer. The NIC looks them up, and refuses those of another NIC.
//!
//! **Operations are values.** A post takes operands and a token: 64 bits of the caller's that libfabric never sees. The token is returned
//! once: in an [`Event`], or by [`Nic::fence`] for operations that end without a completion. Injected writes and sends have no token.
//! [`Nic::tokens_on`] lists the operations that use a region.
//!
//! **Memory stays valid.** The operation table names the registration that an operation uses, and the registration counts its operations.
//! So [`Nic::uses_of`] is one load, and a post needs no atomic operation. A registration holds a reference to its [`Memory`]: [`Pages`] of
//! ours, or a [`UserMemory`] whose creator has promised that the memory stays valid as long as the value. [`Nic::deregister`] refuses while
//! operations use the region. A region that was dropped is closed by the next call on its NIC after its last operation has ended. Pages
//! outlive their region until the rail closes, since writes that peers began before may still arrive.
//!
//! **Refusals.** -FI_EAGAIN is [`Post::Again`]; the caller repeats the post.
//!
//! **Closing.** [`Nic::fence`] closes one rail while the NIC stays open, which ends the operations in flight there. Dropping a NIC closes
//! everything in the order that its registration mode requires; memory and objects that libfabric could still access leak instead.
//!
//! Control memory is read and written in [`Pages`], by words and in order: peers change it at any time. Posts and empty polls neither wait,
//! nor retry, nor allocate.

mod address;
pub mod background;
mod census;
mod clock;
mod context;
mod copies;
mod error;
mod handle;
mod info;
mod keys;
mod kind;
mod library;
mod lock;
mod lockless;
mod memory;
mod nic;
mod nic_number;
mod options;
mod pages;
mod posts;
mod process;
mod provider;
mod query;
mod text;

/// The atomics that `lockless` uses.
mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
}

pub use address::{ip_address, shown_address};
pub use census::{Census, census};
pub use clock::monotonic_nanos;
pub use error::{FabricError, error_text};
pub use info::{Info, NicInfo, PciAddress, RegionMode};
pub use kind::{Control, Data, RailKind};
pub use libfabric_sys::{Attempt, LoadError};
pub use library::{Library, Version};
pub use lock::{Guard, Lock};
pub use lockless::after_polls;
pub use memory::{Dmabuf, Memory, MemoryKind, UserMemory};
pub use nic::{
    CompletionError, Delivery, Event, Failed, HostBytes, Leaked, LocalBytes, Nic, NicOptions,
    NotDeregistered, OperationPlace, PeerAddress, Polled, Post, Region, RemoteBytes, RemoteKey,
    Tags, Traffic, Write,
};
pub use options::{EndpointOption, OptionName};
pub use pages::{Pages, Words, file_bytes_max, is_unlocked, page_bytes, user_id};
pub use posts::Posts;
pub use process::{
    at_exit, away_from_streams, before_destructors, host_name, is_forked, is_usable, stop_use,
    watch_forks,
};
pub use provider::{
    Doc, INJECTING, LINES, NO_CUDA_CALLS, PROVIDER_OPTIONS, ProviderOption, Rails, core_provider,
};
pub use query::Query;
