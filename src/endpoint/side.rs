//! The side of a connection that a comm is.

use crate::object_id::{ObjectId, ObjectKind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Send,
    Receive,
}

/// The side of a comm's id, or of a request's.
pub(super) fn side_of(id: ObjectId) -> Side {
    let receives =
        [ObjectKind::Receiver, ObjectKind::ReceiveRequest, ObjectKind::OptionalReceiveRequest];
    if receives.iter().any(|kind| id.is(*kind)) { Side::Receive } else { Side::Send }
}
