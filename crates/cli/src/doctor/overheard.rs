//! What a child writes to standard error, read in a thread while it runs.

use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What was read so far.
#[derive(Debug)]
pub(super) struct Overheard {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Overheard {
    /// Reads to the end of a pipe, and keeps the first [`MOST`] bytes.
    pub(super) fn from(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let ours = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(read @ 1..) = pipe.read(&mut piece) {
                let mut bytes = ours.lock().unwrap_or_else(PoisonError::into_inner);
                let room = MOST - bytes.len();
                bytes.extend(&piece[..read.min(room)]);
            }
        });
        Self { bytes, reader }
    }

    /// The text, once the child has ended: what it has started, such as the master of a shared ssh connection, may keep the pipe open.
    pub(super) fn text(self) -> String {
        let begun = Instant::now();
        while !self.reader.is_finished() && begun.elapsed() < LAST_WORDS {
            thread::sleep(WATCH);
        }
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A log of libfabric at its level info is far shorter.
const MOST: usize = 16 << 20;
const LAST_WORDS: Duration = Duration::from_secs(1);
const WATCH: Duration = Duration::from_millis(3);
