//! SENDRECV: the same protocol over tagged messages, for providers without RMA.
//!
//! ```text
//!                     RDMA                                 SENDRECV
//!  a packet, a cell   a write into the peer's inbox        a tagged message whose tag is its place in the inbox
//!  a part             a write, with an immediate           a tagged message, into a receive that was posted for its line
//!  an advert          memory that the peer may write to    a tagged receive that is posted at the provider
//! ```
//!
//! Channels, connections, lines, adverts, credit, ends and failures are the same: this module has only the differences.
//! Why it has no flows of its own: `docs/decisions/0018-sendrecv.md`.

mod letterbox;
mod posted;
mod tag;

pub use letterbox::{Letterbox, PLACE_BITS};
pub use posted::{Posted, Step};
pub use tag::{TAG_BITS, Tag};
