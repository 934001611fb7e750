//! The places of messages of one size in memory, for runs of the plugin and raw ones.

/// Messages rotate over as many slots as are outstanding, if memory allows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slots {
    pub(super) count: usize,
    /// The distance between slots, in the input and in the output.
    pub(super) send_stride: usize,
    pub(super) receive_stride: usize,
}

impl Slots {
    pub(super) fn of(bytes: usize, window: usize, recv_factor: usize) -> Self {
        let line = if bytes < PAGE_BYTES { LINE_BYTES } else { PAGE_BYTES };
        let send_stride = bytes.max(1).next_multiple_of(line);
        let receive_stride = (bytes * recv_factor).max(1).next_multiple_of(line);
        let count = (ROTATION_BYTES_MAX / receive_stride).clamp(1, window);
        Self { count, send_stride, receive_stride }
    }

    /// The bytes of all slots in the input.
    pub(super) fn send_bytes(&self) -> usize {
        self.count * self.send_stride
    }

    /// The bytes of all slots in the output.
    pub(super) fn receive_bytes(&self) -> usize {
        self.count * self.receive_stride
    }
}

const LINE_BYTES: usize = 128;
const PAGE_BYTES: usize = 4096;
const ROTATION_BYTES_MAX: usize = 256 << 20;
