//! Wire version 2, beside the old one until it takes its place: one channel per pair of endpoints, frames in packets.
//!
//! ```text
//!  calls ──▶ Connection ──frames──▶ channel (writer) ──packets──▶ the peer's inbox
//!                 ▲                                                    │
//!                 └─────────frames── channel (reader) ◀────────────────┘
//! ```

pub mod account;
pub mod bound;
pub mod budget;
pub mod channel;
pub mod connection;
pub mod counts;
pub mod credit;
pub mod endpoint;
pub mod fault;
pub mod flow;
pub mod frame;
pub mod ids;
pub mod immediate;
pub mod letter;
pub mod memory;
pub mod message;
pub mod packet;
pub mod parking;
pub mod receive;
pub mod send;
pub mod setup;
pub mod split;
pub mod terms;
pub mod unadvertised;
pub mod window;

pub use account::Account;
pub use channel::{Cause, Channel};
pub use connection::{Connection, Owes, Submit, Which};
pub use endpoint::{ChannelId, Endpoint, Event, Outcome, Perform, SubmitError};
pub use fault::{Breach, Fault, Violation};
pub use flow::{Action, Flow};
pub use frame::{Frame, Malformed};
pub use ids::{Epoch, Generation, ListenerId, Moment, Name, Nonce, PacketNumber, Slot};
pub use immediate::Immediate;
pub use memory::{InboxMemory, Payload, ShadowMemory};
pub use message::{Cut, MessageId, Source};
pub use receive::{Posting, Receive, ReceiveFlow, ReceivePoll, Target};
pub use send::{Outgoing, PartWrite, SendFlow, SendPoll};
pub use terms::{InlineLimits, Terms};
