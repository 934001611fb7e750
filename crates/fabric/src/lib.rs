//! Safe, owning objects over libfabric. Every `unsafe` call into it, every close and every volatile read is in this crate.
//!
//! ```text
//! Library ── find ──▶ Info
//!    ▲
//! Fabric ◀── Domain ◀─┬─ CompletionQueue ◀─┐
//!                     ├─ AddressVector   ◀─┼─ Endpoint<K> ◀─ Region<K> (where regions are bound, else ◀─ Domain)
//!                     └────────────────────┘
//! ```
//!
//! An arrow is a share of a parent: a child closes first, in whatever order the owners let go.
//!
//! # What callers owe
//!
//! Domains ask for FI_THREAD_DOMAIN, so calls on a domain and on what was opened on it must not run at the same time: the plugin's
//! endpoint lock sees to that. Opening a fabric or a domain, `Library::find` and everything on [`Pages`] may run in any thread. Until an operation has completed, or its endpoint has closed, the caller keeps its [`Region`] and its
//! [`Contexts`]: the operation table holds a share. Nothing in this crate waits, retries or allocates in a post or an
//! eventless poll.

mod address;
mod census;
mod context;
mod domain;
mod endpoint;
mod error;
mod fabric;
mod handle;
mod info;
mod keys;
mod kind;
mod library;
mod lock;
mod lockless;
mod memory;
pub mod nic;
mod options;
mod pages;
mod post;
mod posts;
mod query;
mod queue;
mod region;
mod ring;
mod scope;
mod text;

/// What `lockless` is made of.
mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
}

pub use address::{AddressVector, PeerAddress};
pub use census::{Census, census};
pub use context::{Context, Contexts};
pub use domain::Domain;
pub use endpoint::Endpoint;
pub use error::{FabricError, error_text};
pub use fabric::Fabric;
pub use info::{Info, NicInfo, PciAddress, RegionMode};
pub use kind::{Control, Data, RailKind};
pub use libfabric_sys::{Attempt, LoadError};
pub use library::{Library, Version};
pub use lock::{Guard, Lock};
pub use memory::{Dmabuf, Memory, MemoryKind, UserMemory};
pub use options::{EndpointOption, OptionName, OptionValue};
pub use pages::{Pages, page_bytes};
pub use post::{Delivery, Post};
pub use posts::Posts;
pub use query::Query;
pub use queue::{Batch, Completion, CompletionError, CompletionQueue, CqPoll, Polled};
pub use region::{HostBytes, LocalBytes, Region, RemoteBytes, RemoteKey};
pub use ring::{CACHE_LINE_WORDS, Place, Ring};
