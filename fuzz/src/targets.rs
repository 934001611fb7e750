//! The targets: each takes an input in place of a peer's bytes. Nothing may panic, and the assertions about the bytes must hold.

/// A target by its name.
pub(crate) type Target = fn(&[u8]);

pub(crate) const TARGETS: &[(&str, Target)] = &[
    ("frame", channel::frame),
    ("packet", channel::packet),
    ("channel", channel::channel),
    ("handle", connection::handle),
    ("hello", connection::hello),
    ("connection", connection::connection),
];

#[path = "channel.rs"]
mod channel;
#[path = "connection.rs"]
mod connection;

/// An input, taken piece by piece. Past its end there are zeros.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn small(&mut self, bound: u32) -> u32 {
        u32::from(self.byte().unwrap_or(0)) % bound
    }

    fn word(&mut self) -> u64 {
        let mut word = [0; 8];
        for place in &mut word {
            *place = self.byte().unwrap_or(0);
        }
        u64::from_le_bytes(word)
    }
}
