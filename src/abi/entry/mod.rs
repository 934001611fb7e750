//! The newest form of each call, which is v12's. Older versions convert their arguments and call these.
//!
//! `connection`, `memory` and `transfer` hold what every form of a call shares.

pub(super) mod connection;
mod device;
pub(super) mod memory;
pub(super) mod transfer;

pub(super) use connection::{accept, close_listen, close_recv, close_send, connect, listen};
pub(super) use device::{
    devices, finalize, get_properties, init, make_of, make_v_device, properties_as, start,
};
pub(super) use memory::{dereg_mr, reg_mr, reg_mr_dma_buf};
pub(super) use transfer::{iflush, irecv, isend, test};
