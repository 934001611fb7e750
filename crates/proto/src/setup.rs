//! Set-up: the handshake by which two endpoints get a channel, and connect and accept get a connection.
//!
//! ```text
//!  connect                                       listen, accept
//!  handle ──▶ HELLO (entry, proof) ───────────▶  a listener's secret proves it: a channel is made
//!             ◀── HELLO (entry, proof, an inbox)  a channel is made
//!             HELLO (…, an inbox, the echo) ──▶
//!             OPEN (proof) ───────────────────▶  queued at its listener
//!             ◀─────────────── OPENED, REFUSED   accept
//! ```
//!
//! HELLO is a two-sided message. It is repeated until it is echoed and is complete each time, so lost and crossing
//! HELLOs need no special treatment. An unproven HELLO has no effect. OPEN, OPENED and REFUSED are frames of the
//! channel. Only messages of set-up allocate, within their bounded length.
//!
//! # The sequence
//!
//! An endpoint has one [`ProgressLoop<Flow>`](super::ProgressLoop), one [`Peers`] and one implementation of
//! [`Perform`](super::Perform), all used under one lock. A refused post needs no treatment in any step: what was not
//! posted is sent again.
//!
//! **Each poll**, the keeper's too: [`ProgressLoop::progress`](super::ProgressLoop::progress), and
//! [`ProgressLoop::entries_freed`](super::ProgressLoop::entries_freed) is returned to the budget. Before it, while
//! [`Peers::hello_to`] has one for the peer of a connect, insert its control address on its rail and send it by that;
//! if the provider accepts it, [`Peers::hello_posted`], else [`Peers::hello_refused`]. For each two-sided message that has arrived, [`Peers::heard`]:
//!
//! | [`Heard`] | do |
//! |---|---|
//! | `Meets { peer, letter }` | insert the addresses of [`Peers::rails`] in pairs of [`Agreement::rails`]; [`ProgressLoop::add_channel`](super::ProgressLoop::add_channel) with [`Peers::parameters`]; [`Peers::join`]; then the letter, if there is one, as [`Event::Letter`](super::Event::Letter) with `proven: true`. |
//! | `Letter { .. }` | the same [`Event::Letter`](super::Event::Letter) |
//! | `Nothing` | count it; log `NoRail` |
//!
//! **Perform.** [`send`](super::Perform::send) posts [`Peers::message`] to the peer's address on that control rail.
//! [`open_requested`](super::Perform::open_requested) returns what [`Peers::open_arrived`] returns.
//! [`ended`](super::Perform::ended) calls [`Peers::ended`]. Every `rail` of the channel, its letters, parts and
//! arrivals is an index into [`Pairing::control`] or [`Pairing::data`] of that channel; [`RailPair`] and [`Pairing::data_of`]
//! translate. An immediate becomes [`Event::Arrived`](super::Event::Arrived).
//!
//! **listen:** [`Peers::listen`], with a random secret; [`Handle::encode`] returns what NCCL gets.
//!
//! **connect**, called until it has an answer, polling each time:
//! 1. first call: [`Handle::decode`], [`Peers::meet`];
//! 2. once [`Peers::channel`] has the channel: if that has failed, an error; else
//!    [`ProgressLoop::vacant`](super::ProgressLoop::vacant) names a slot, [`Peers::connecting`] makes the flow,
//!    [`ProgressLoop::connect`](super::ProgressLoop::connect) puts it there. The loop sends OPEN, and repeats it after "busy";
//! 3. then [`Flow::answer`](super::Flow::answer): `Opened`: the flow is a sender now, and connect returns its comm;
//!    `Refused` and `Failed` are errors; for a closed listener the answer stays `Pending`.
//!
//! A caller that gives up calls [`Flow::close`](super::Flow::close), and waits as with any close.
//!
//! **accept**, called until it has one, polling each time:
//! 1. if [`ProgressLoop::vacant`](super::ProgressLoop::vacant) names a slot and [`Peers::accept`] has an OPEN:
//!    [`Peers::accepting`] makes the flow, which sends OPENED, [`ProgressLoop::connect`](super::ProgressLoop::connect) puts it
//!    into the slot. If either is impossible, [`ProgressLoop::refuse`](super::ProgressLoop::refuse) with [`refuse`] and the
//!    cause;
//! 2. once [`ProgressLoop::has_left`](super::ProgressLoop::has_left), accept returns the comm. If its flow has a fault before,
//!    an error.
//!
//! **Data:** [`ProgressLoop::submit`](super::ProgressLoop::submit) and [`SendFlow::poll`](super::SendFlow::poll);
//! [`ReceiveFlow::post`](super::ReceiveFlow::post), after [`Budget::take`](super::budget::Budget::take), and
//! [`ReceiveFlow::poll`](super::ReceiveFlow::poll), through [`ProgressLoop::with`](super::ProgressLoop::with).
//!
//! **closeListen:** [`Peers::close`], and [`ProgressLoop::refuse`](super::ProgressLoop::refuse) for each OPEN that it returns.
//!
//! **Closing a comm:** [`Budget::forget`](super::budget::Budget::forget), also for a failed comm, since the budget is
//! kept for a connection that waits; [`Flow::close`](super::Flow::close) through `with`; poll, bounded, until
//! [`Flow::is_over`](super::Flow::is_over); then [`ProgressLoop::disconnect`](super::ProgressLoop::disconnect), and a
//! receiver's [`entries_held`](super::ReceiveFlow::entries_held) are returned to the budget. After the bound the slot
//! stays taken, and the memory of its receives registered, until the endpoint closes.
//!
//! **Closing the endpoint:** close its comms and listeners; [`ProgressLoop::end`](super::ProgressLoop::end) for each channel;
//! poll, bounded, until each has [`ended`](super::Perform::ended); then close the rails, data rails first. END from a
//! peer ends the channel on this side, too; messages that have arrived by then can still be received. HELLOs of new
//! peers are dropped meanwhile.

mod agreement;
mod connecting;
mod handle;
mod hello;
mod listener;
mod meeting;
mod message;
mod opening;
mod pairing;
mod peers;
mod presence;
mod proof;
mod version;

pub use agreement::Agreement;
pub use connecting::{Answer, Connecting};
pub use handle::{ControlAddresses, HANDLE_ADDRESS_BYTES, Handle, HandleError, SCRATCH_BYTES};
pub use hello::{Entries, Entry, Hello, MAX_CHANNEL_BYTES, MAX_ENTRIES, MAX_HELLO_BYTES};
pub use listener::{ClosedListeners, Listener, QUEUE, QueuedOpen, REMEMBERED, refuse};
pub use message::Message;
pub use opening::{BUSY_WAIT, BUSY_WAIT_MAX, Features, Opening, opened};
pub use pairing::{Apart, Pairing, RailPair};
pub use peers::{FirstHello, Heard, Ignored, PeerId, Peers};
pub use presence::{Host, Offers, Presence};
pub use proof::{EndpointId, Nonces, Proof, Prove, Role, Secret, open_words, verify};
pub use version::{OLDEST_VERSION, VERSION, Versions};
