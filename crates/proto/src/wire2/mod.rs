//! Wire version 2, beside the old one until it takes its place: one channel per pair of endpoints, frames in packets.
//!
//! ```text
//!  calls ──▶ Connection ──frames──▶ channel (writer) ──packets──▶ the peer's inbox
//!                 ▲                                                    │
//!                 └─────────frames── channel (reader) ◀────────────────┘
//! ```

pub mod account;
pub mod connection;
pub mod frame;
pub mod ids;
pub mod memory;

pub use account::Account;
pub use connection::{Connection, Owes, Submit, Which};
pub use frame::{Frame, Malformed};
pub use ids::{Epoch, Generation, ListenerId, Moment, Name, Nonce, PacketNumber, Slot};
pub use memory::{InboxMemory, Payload, ShadowMemory};
