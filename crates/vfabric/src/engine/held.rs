//! A write whose bytes have landed, but are not all visible yet.

use std::ffi::c_int;

use super::{Endpoint, Id, Region};

/// One write, landed in part.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) endpoint: Id<Endpoint>,
    pub(super) nic: usize,
    pub(super) region: Id<Region>,
    pub(super) marked: bool,
    /// The device whose memory it is: only a read of that memory makes it visible.
    pub(super) device: Option<c_int>,
    /// The lines; a line that is visible is None.
    pub(super) lines: Vec<Option<Line>>,
}

#[derive(Debug)]
pub(super) struct Line {
    pub(super) address: u64,
    pub(super) bytes: Vec<u8>,
}

impl Line {
    /// Whether any of its bytes are among these.
    pub(super) fn meets(&self, address: u64, len: u64) -> bool {
        self.address < address + len && address < self.address + self.bytes.len() as u64
    }
}
