//! The output of ranks, shown line by line.

use std::io::{self, BufRead, BufReader, PipeReader, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::ioctl_fionread;

/// Shows whole lines, each with its rank before it, while `show` can, until nothing has `pipe` open for writing, or until the other end of `over` is closed.
pub(super) fn relay(
    rank: usize,
    pipe: impl Read + AsFd + Send + 'static,
    over: &Arc<PipeReader>,
    show: impl Fn(&[u8]) -> bool + Send + 'static,
) -> JoinHandle<()> {
    let output = Output { pipe, over: Arc::clone(over), left: None };
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let whole = [format!("[{rank}] ").as_bytes(), &line, b"\n"].concat();
            if !show(&whole) {
                return;
            }
        }
    })
}

/// A pipe that ends where the job is over, too: then with what has been written by that time. A process that has left the rank's group may
/// keep it open.
struct Output<P> {
    pipe: P,
    over: Arc<PipeReader>,
    /// Bytes to the end, once the job is over.
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
