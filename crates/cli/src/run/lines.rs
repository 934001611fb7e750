//! The output of ranks, shown line by line.

use std::io::{self, BufRead, BufReader, PipeReader, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::ioctl_fionread;

/// Shows whole lines, each after its rank, until `show` returns false, or no process has `pipe` open for writing, or the other end of
/// `over` is closed. A line longer than [`LINE_BYTES_MAX`] is shown in parts, as lines.
///
/// # Errors
///
/// The system has no more threads.
pub(super) fn relay(
    rank: usize,
    pipe: impl Read + AsFd + Send + 'static,
    over: &Arc<PipeReader>,
    show: impl Fn(&[u8]) -> bool + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let output = Output { pipe, over: Arc::clone(over), left: None };
    thread::Builder::new().spawn(move || {
        let (mut output, begin) = (BufReader::new(output), format!("[{rank}] ").into_bytes());
        let (mut line, mut is_cut) = (begin.clone(), false);
        loop {
            line.truncate(begin.len());
            let part = (&mut output).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
            let Ok(bytes @ 1..) = part else { return };
            let was_cut = std::mem::replace(&mut is_cut, !line.ends_with(b"\n"));
            if was_cut && bytes == 1 && !is_cut {
                continue; // Only the end of a line that is already shown.
            }
            if is_cut {
                line.push(b'\n');
            }
            if !show(&line) {
                return;
            }
        }
    })
}

/// The longest line: a rank that does not end a line must not fill this process's memory.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// A pipe that also ends when the job is over, after the bytes that were written by that time. A process that has left the rank's group may
/// keep the pipe itself open.
struct Output<P> {
    pipe: P,
    over: Arc<PipeReader>,
    /// The bytes up to the end, once the job is over.
    left: Option<u64>,
}

impl<P: Read + AsFd> Read for Output<P> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left.is_none() {
            let mut ends = [
                PollFd::new(&self.pipe, PollFlags::IN),
                PollFd::new(&self.over, PollFlags::empty()), // POLLHUP is always reported
            ];
            poll(&mut ends, None)?;
            if !ends[1].revents().is_empty() {
                self.left = Some(ioctl_fionread(&self.pipe)?);
            }
        }
        let Some(left) = &mut self.left else { return self.pipe.read(buffer) };
        let count = (&mut self.pipe).take(*left).read(buffer)?;
        *left -= count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// Only a hang takes so long.
    const WAIT: Duration = Duration::from_secs(20);

    #[test]
    fn a_line_that_never_ends_is_shown_in_parts() {
        let ((from, mut to), (until, _over)) = (io::pipe().unwrap(), io::pipe().unwrap());
        let (shows, shown) = mpsc::channel();
        let show = move |line: &[u8]| shows.send(line.to_vec()).is_ok();
        let relay = relay(3, from, &Arc::new(until), show).unwrap();
        let next = || shown.recv_timeout(WAIT).expect("a long line is not kept until its end");
        let longest = vec![b'a'; usize::try_from(LINE_BYTES_MAX).unwrap()];
        for more in [0, 1] {
            to.write_all(&longest).unwrap();
            to.write_all(&longest[..more]).unwrap();
            assert_eq!(next(), [&b"[3] "[..], &longest, b"\n"].concat());
            // The end of a line is no line.
            to.write_all(b"\nb\n").unwrap();
            if more > 0 {
                assert_eq!(next(), b"[3] a\n");
            }
            assert_eq!(next(), b"[3] b\n");
        }
        to.write_all(b"\nc").unwrap();
        drop(to);
        assert_eq!((next(), next()), (b"[3] \n".to_vec(), b"[3] c\n".to_vec()));
        relay.join().unwrap();
    }
}
