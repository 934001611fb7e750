//! Safe, owning objects over libfabric. Every `unsafe` call into it, every close and every volatile read is in this crate.
//!
//! It is sound: safe code can neither have libfabric touch memory that is gone, nor use an object from two threads at once.
//!
//! ```text
//! Library ── find ──▶ Info
//!                      │ open
//!                      ▼
//! Nic: domain ◀─┬─ data rail: endpoint, queue ◀────┐
//!               ├─ control rail: endpoint, queue ◀─┼─ registrations (where regions are bound, else ◀─ domain) ◀─ share of Memory
//!               ├─ peers (address vector)          │        ▲ counted by
//!               └─ contexts ◀───────────────── operation table
//!
//! Region<K> ── names ──▶ registration;  PeerAddress ── names ──▶ peer
//! ```
//!
//! A [`Nic`] owns all that libfabric may touch, and lends none of it out. Whatever calls libfabric takes `&mut Nic`, so that its calls
//! never run at the same time, which is what FI_THREAD_DOMAIN asks for; a NIC may change its thread. What users hold are names: a [`Region`] of a registration, a [`PeerAddress`] of a peer, a token of an operation. A post looks
//! its names up, and one of another NIC is refused.
//!
//! **Operations are values.** A post takes operands and a token of the caller's, 64 bits that libfabric never sees, and the token
//! comes back once: in an [`Event`], or from [`Nic::fence`] for what has no completion. Injected writes and sends have none.
//! [`Nic::tokens_on`] says what touches a region.
//!
//! **Memory stays.** The operation table names the registration that an operation touches, and the registration counts such
//! operations, in one entry per region of the NIC's own; so "is it in use" ([`Nic::uses_of`]) is one load, and a post costs no atomic
//! step. A registration holds a share of its [`Memory`]: [`Pages`] of ours, or a [`UserMemory`] whose maker has promised that it stays
//! as long as the value. [`Nic::deregister`] refuses while operations touch it; a region that is dropped is closed by the next user of
//! its NIC, once none does. Pages outlive their region until the rail closes, since what peers began before may still land there.
//!
//! **Refusals.** -FI_EAGAIN is [`Post::Again`], and the caller's to repeat.
//!
//! **The end.** [`Nic::fence`] closes one rail while the NIC lives on: what was in flight there is over. Dropped, a NIC closes
//! everything in the order that its regions ask for; what libfabric could still touch leaks instead.
//!
//! Control memory is read and written in [`Pages`], by words and in order: peers change it at any time. Nothing here
//! waits, retries or allocates in a post or an eventless poll.

pub mod background;
mod census;
mod clock;
mod context;
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
mod options;
mod pages;
mod posts;
mod process;
mod query;
mod scope;
mod text;

/// What `lockless` is made of.
mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
}

pub use census::{Census, census};
pub use clock::monotonic_nanos;
pub use error::{FabricError, What, error_text};
pub use info::{Info, NicInfo, PciAddress, RegionMode};
pub use kind::{Control, Data, RailKind};
pub use libfabric_sys::{Attempt, LoadError};
pub use library::{Library, Version};
pub use lock::{Guard, Lock};
pub use memory::{Dmabuf, Memory, MemoryKind, UserMemory};
pub use nic::{
    Carried, CompletionError, Delivery, Event, Failed, HostBytes, Kept, Leaked, LocalBytes, Nic,
    NicOptions, PeerAddress, Polled, Post, Region, RemoteBytes, RemoteKey, Tags, Write,
};
pub use options::{EndpointOption, OptionName, OptionValue};
pub use pages::{Pages, is_unlocked, page_bytes, user_id};
pub use posts::Posts;
pub use process::Process;
pub use query::Query;
