//! The output of a child, read in threads while it runs, and its end.

use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The output that was read so far.
#[derive(Debug)]
pub(crate) struct Overheard {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Overheard {
    /// Reads to the end of a pipe, and keeps the first [`MOST`] bytes.
    ///
    /// # Errors
    ///
    /// The system has no more threads.
    pub(crate) fn from(mut pipe: impl Read + Send + 'static) -> io::Result<Self> {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let ours = Arc::clone(&bytes);
        let reader = thread::Builder::new().spawn(move || {
            let mut piece = [0; 4096];
            loop {
                let read = match pipe.read(&mut piece) {
                    Ok(read @ 1..) => read,
                    // By a handler that a preloaded library has, for instance.
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    _ => return,
                };
                let mut bytes = ours.lock().unwrap_or_else(PoisonError::into_inner);
                let room = MOST - bytes.len();
                bytes.extend(&piece[..read.min(room)]);
            }
        })?;
        Ok(Self { bytes, reader })
    }

    /// The text, once the child has ended. The wait for the end of the pipe is bounded: a process that the child has started, such as the
    /// master of a shared ssh connection, may keep the pipe open.
    pub(crate) fn text(self) -> String {
        let begun = Instant::now();
        while !self.reader.is_finished() && begun.elapsed() < LAST_WORDS {
            thread::sleep(WATCH);
        }
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The whole text of a pipe. None if it has more than [`MOST`] bytes: the rest is not read.
pub(crate) fn whole(pipe: impl Read) -> Option<String> {
    let mut bytes = Vec::new();
    let _ = pipe.take(MOST as u64 + 1).read_to_end(&mut bytes);
    (bytes.len() <= MOST).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// What a command has written to standard output and to standard error, and how it ended; None if it was killed, as by [`ended`].
pub(crate) fn output(
    command: &mut Command,
    limit: Duration,
) -> io::Result<(Option<ExitStatus>, [String; 2])> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let listen = |child: &mut Child| -> io::Result<_> {
        let output = child.stdout.take().map(Overheard::from).transpose()?;
        let errors = child.stderr.take().map(Overheard::from).transpose()?;
        Ok([output, errors])
    };
    let heard = listen(&mut child).inspect_err(|_| kill(&mut child))?;
    let status = ended(&mut child, limit);
    Ok((status, heard.map(|heard| heard.map_or_else(String::new, Overheard::text))))
}

/// Ends a child that the caller has no use for any more.
pub(crate) fn kill(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// How a child ended; None if it was killed, since it still ran after `limit` or could not be waited for.
pub(crate) fn ended(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if begun.elapsed() < limit => thread::sleep(WATCH),
            Ok(None) | Err(_) => {
                kill(child);
                return None;
            }
        }
    }
}

/// The most bytes that are kept of a pipe. A log of libfabric at its level info is far shorter.
pub(crate) const MOST: usize = 16 << 20;
const LAST_WORDS: Duration = Duration::from_secs(1);
const WATCH: Duration = Duration::from_millis(3);

#[cfg(test)]
mod tests {
    use super::*;

    /// Only a hang takes so long.
    const WAIT: Duration = Duration::from_secs(60);

    #[test]
    fn the_output_of_a_command_is_read_to_its_end() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo said; echo wrong >&2; exit 3"]);
        let (status, [said, errors]) = output(&mut command, WAIT).unwrap();
        assert_eq!(status.and_then(|status| status.code()), Some(3));
        assert_eq!((said.as_str(), errors.as_str()), ("said\n", "wrong\n"));
    }

    /// Each read before the end is interrupted by a signal first.
    struct Interrupted(bool, &'static [u8]);

    impl Read for Interrupted {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0 = !self.0;
            if self.0 { Err(io::ErrorKind::Interrupted.into()) } else { self.1.read(buffer) }
        }
    }

    #[test]
    fn the_output_is_read_on_though_signals_interrupt_the_reads() {
        let heard = Overheard::from(Interrupted(false, &[b'a'; 10_000])).unwrap();
        assert_eq!(heard.text().len(), 10_000);
    }

    #[test]
    fn a_command_that_does_not_end_is_killed_and_its_output_is_kept() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo said; kill -STOP $$"]);
        let (status, [said, _]) = output(&mut command, Duration::from_secs(1)).unwrap();
        assert_eq!((status, said.as_str()), (None, "said\n"));
    }
}
