//! Messages that say what they are: any type of serde's, encoded by postcard, with the fingerprint of its schema.
//!
//! ```text
//! packet   fingerprint │ encoding, short leaves, table of long leaves, schema the first time it goes to a peer
//! leaf …   elements, from where they are to where they stay
//! ```
//! A type's schema is finite, so decoding one cannot recurse deeper than the type does.

#[cfg(feature = "ndarray")]
mod array;
mod batch;
mod calls;
mod leaf;
mod numbers;
mod packet;
mod transfer;

#[cfg(feature = "ndarray")]
pub use array::Tensor;
pub use batch::ObjectBatch;
pub use calls::{ReceivingObject, SendingObject};
pub use leaf::Leaf;
pub use postcard_schema::Schema;
pub use transfer::Origin;
pub(crate) use transfer::Schemas;
