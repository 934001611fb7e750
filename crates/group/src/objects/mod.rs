//! Self-describing messages: objects of any type that serde encodes, encoded by postcard, with the fingerprint of the type's schema.
//!
//! ```text
//! packet   fingerprint │ short leaves, encoding, table of long leaves, schema the first time it goes to a peer
//! leaf …   elements, from memory to memory
//! ```
//! A type's schema is finite, so decoding cannot recurse deeper than the type does. The module `bounded` refuses a type whose decoding
//! could take longer than the bytes of the message allow.

#[cfg(feature = "ndarray")]
mod array;
mod batch;
mod blob;
mod block;
mod bounded;
mod calls;
mod collective;
mod elements;
mod few;
mod landing;
mod leaf;
mod numbers;
mod packet;
mod parts;
mod receiving;
mod rooms;
mod schemas;
mod sending;

#[cfg(feature = "ndarray")]
pub use array::Tensor;
pub use batch::ObjectBatch;
pub use blob::Blob;
pub use calls::{ReceivingObject, SendingObject};
pub use collective::{BroadcastingObject, GatheringObjects, ReducingObject};
pub use leaf::Leaf;
pub use postcard_schema::Schema;
pub use receiving::Origin;
pub(crate) use receiving::Receive;
pub(crate) use schemas::Schemas;
