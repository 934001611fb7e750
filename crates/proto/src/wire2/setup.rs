//! How two endpoints come to a channel, and two callers to a connection.
//!
//! ```text
//!  connect                                       listen, accept
//!  handle ──▶ HELLO (entry, proof) ───────────▶  a listener's secret proves it: a channel is made
//!             ◀─────────── HELLO (entry, proof)  both nonces are known now
//!             OPEN (proof) ───────────────────▶  queued at its listener
//!             ◀─────────────── OPENED, REFUSED   accept
//! ```
//!
//! HELLO is two-sided, repeated until it is echoed, and says all of itself each time: lost and crossing ones are no cases of
//! their own. What is not proven has no effect. OPEN, OPENED and REFUSED are frames of the channel. Messages of set-up
//! allocate, at most what their bounded length holds; nothing else does.

mod handle;
mod hello;
mod listener;
mod opening;
mod proof;
mod rails;
mod version;

pub use handle::{HANDLE_ADDRESS_BYTES, Handle, HandleError, SCRATCH_BYTES};
pub use hello::{Entries, Entry, Hello, Host, MAX_CHANNEL_BYTES, MAX_ENTRIES, MAX_HELLO_BYTES};
pub use listener::{Asked, ClosedListeners, Listener, QUEUE, REMEMBERED, refuse};
pub use opening::{BUSY_WAIT, BUSY_WAIT_MAX, COMPLAINT, Features, Opening, Outcome, Step, opened};
pub use proof::{EndpointId, Nonces, Proof, Prove, Role, Secret, open_words, verify};
pub use rails::{Pair, Rails, pair};
pub use version::{OLDEST_VERSION, OldRequest, VERSION, Versions, refuse_old, speaks_old};
