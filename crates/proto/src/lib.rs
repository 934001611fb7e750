//! The protocol of Ironrail: events in, actions out. `docs/protocol.md` is its contract.
//!
//! ```text
//!  sender                                             receiver
//!  SendFlow::submit   ◀── advert (mailbox) ─────────  ReceiveFlow::post, next_write, wrote
//!  parts::cut         ─── part + immediate ────────▶  ReceiveFlow::arrived
//!  SendFlow::written  ─── or part, then fin line ──▶  ReceiveFlow::read_fins
//!  SendFlow::observe  ◀── done, in adverts or alone   ReceiveFlow::lone_done
//!  SendFlow::poll                                     ReceiveFlow::poll
//!  SendFlow::pack_eagerly ── eager ring ──────────▶  ReceiveFlow::next_eager, copied
//!  SendFlow::hold, next_bundle ── bundle ring ────▶  ReceiveFlow::next_bundled, copied
//!  SendFlow::begun    ◀── withdraw, withdrawn ──────▶  ReceiveFlow::withdraw, exposed
//! ```
//!
//! No I/O, no thread, no clock, no unsafe code, no dependency; memory that a peer writes is read through
//! [`LineSource`], memory that travels is filled through [`LineSink`]. A flow allocates when it is made, never later.

#![forbid(unsafe_code)]

pub mod answered;
pub mod asking;
pub mod bundle;
pub mod capabilities;
pub mod codec;
pub mod eager;
pub mod error;
pub mod fence;
pub mod flow;
pub mod handle;
pub mod handshake;
pub mod ids;
pub mod immediate;
pub mod limits;
pub mod mailbox;
pub mod parts;
pub mod rails;
pub mod receive;
pub mod send;
pub mod window;
pub mod wire;
pub mod wire2;

mod bits;

pub use answered::{Answered, RequestMark, Standing};
pub use asking::Asking;
pub use capabilities::{Capabilities, ImmediateWidth};
pub use error::{ProtocolError, Violation};
pub use fence::Begun;
pub use flow::{FlowParameters, LineSink, LineSource, Path};
pub use handle::Handle;
pub use handshake::{
    Bye, Cease, Ceased, HandshakeError, Message as HandshakeMessage, Refusal, Reply, Request,
    Withdraw, Withdrawn,
};
pub use ids::{CommId, ConnectionId, Line};
pub use immediate::Immediate;
pub use parts::{Cut, Part, RailPlan};
pub use receive::{
    AdvertWrite, Arrival, Bundled, EagerArrival, LoneDone, PlainLook, PlainReceive, Receive,
    ReceiveFlow, ReceivePoll,
};
pub use send::{
    BundleWrite, EagerWrite, FailedFin, Message, PlainMessage, SendFlow, SendPoll, Submit,
    WriteOutcome,
};
pub use window::Window;
pub use wire::LineFormat;
