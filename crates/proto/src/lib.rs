//! The protocol of Ironrail: events in, actions out. `docs/protocol.md` is its contract.
//!
//! ```text
//!  calls ──▶ Flow (SendFlow, ReceiveFlow) ──frames──▶ Channel (Shadow) ──packets──▶ the peer's inbox
//!                 ▲                                                                      │
//!                 └──────────────frames── Channel (Inbox) ◀──────────────────────────────┘
//!            ProgressLoop: drives them, over an implementation of Perform
//!            setup::Peers: listeners, and the handshake of two endpoints
//! ```
//!
//! No I/O, no thread, no clock, no unsafe code, no dependency. Memory that a peer writes is read through
//! [`InboxMemory`]; memory that packets are written from is filled through [`ShadowMemory`]. A flow allocates only when
//! it is made.

#![forbid(unsafe_code)]

pub mod account;
pub mod arrival_times;
mod bits;
pub mod bound;
pub mod budget;
pub mod capabilities;
pub mod channel;
pub mod codec;
pub mod connection;
pub mod counts;
pub mod credit;
pub mod data_rails;
pub mod delivery_rates;
pub mod fault;
pub mod flow;
pub mod frame;
pub mod ids;
pub mod immediate;
pub mod letter;
pub mod limits;
pub mod line;
pub mod memory;
pub mod message;
pub mod packet;
pub mod parking;
pub mod polled;
pub mod progress;
pub mod rail_set;
pub mod rails;
pub mod receive;
mod rest;
pub mod send;
pub mod sendrecv;
pub mod setup;
pub mod speeds;
pub mod split;
pub mod stall;
pub mod terms;
pub mod unadvertised;
pub mod window;

pub use account::Account;
pub use capabilities::{Capabilities, ImmediateWidth};
pub use channel::{Cause, Channel};
pub use connection::{Connection, Standing, Submit, Urgency, Which};
pub use fault::{Breach, Fault, Violation};
pub use flow::{Action, Flow};
pub use frame::{Frame, Malformed};
pub use ids::{Epoch, Generation, ListenerId, Moment, Name, Nonce, PacketNumber, Slot};
pub use immediate::Immediate;
pub use line::Line;
pub use memory::{InboxMemory, Payload, ShadowMemory};
pub use message::{Cut, MessageId, Source};
pub use progress::{ChannelId, Event, Outcome, Perform, ProgressLoop, SubmitError};
pub use rail_set::RailSet;
pub use receive::{Posting, Receive, ReceiveFlow, ReceivePoll, Target};
pub use send::{Outgoing, PartWrite, SendFlow, SendPoll};
pub use terms::{COPIED_AT_MOST, InlineLimits, Terms};
