//! Reads that end at a time, for what must come soon.

use std::io::{self, Read};
use std::net::TcpStream;
use std::time::Instant;

/// Reads until a time, in however many pieces the bytes come.
pub(super) struct ReadsUntil<'a>(pub(super) &'a TcpStream, pub(super) Instant);

impl Read for ReadsUntil<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Self(stream, end) = self;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        // The kernel's word for it, EAGAIN, is also that for a lack of threads.
        stream.read(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        })
    }
}
