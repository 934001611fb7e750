//! The frames that wait to be sent to one rank, so that a rank that reads slowly delays no other.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::super::frame::{Frame, News, before_parts};
use super::PARTS_MAX;
use crate::loader::Private;

/// Filled by the threads of all ranks, emptied by a thread of its own rank.
#[derive(Default)]
pub(super) struct Outbox {
    queue: Mutex<Queue>,
    /// Signalled when the queue has more, or is over.
    changed: Condvar,
}

/// Omits the frames: some have handles, with which anyone could connect.
impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("bytes", &self.lock().bytes).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Queue {
    connection: Connection,
    entries: VecDeque<Entry>,
    /// The bytes of the entries, without parts that are shared with other ranks' entries.
    bytes: usize,
    /// The rounds that the entries answer.
    answers: usize,
}

#[derive(Default)]
enum Connection {
    #[default]
    Awaited,
    Open(Arc<Private<TcpStream>>),
    /// The rank has left, or accepts no data any more.
    Over,
}

enum Entry {
    Frame(Arc<[u8]>),
    /// All parts of a round.
    All {
        round: u32,
        parts: Arc<[u8]>,
    },
    /// Ranks that have left since the previous entry. Usually all leave together: then one frame replaces many.
    Left(Vec<usize>),
}

impl Outbox {
    /// From here on the rank gets frames, beginning with `first`.
    pub(super) fn open(&self, stream: Arc<Private<TcpStream>>, first: &Frame) -> io::Result<()> {
        let first = first.encode()?.into();
        self.lock().connection = Connection::Open(stream);
        self.push(Entry::Frame(first))
    }

    /// Queues a frame. An error if the rank gets no frames yet, or none any more.
    pub(super) fn send(&self, frame: &Frame) -> io::Result<()> {
        self.send_encoded(frame.encode()?.into())
    }

    pub(super) fn send_encoded(&self, frame: Arc<[u8]>) -> io::Result<()> {
        self.push(Entry::Frame(frame))
    }

    /// Answers a round with all parts.
    pub(super) fn send_parts(&self, round: u32, parts: Arc<[u8]>) -> io::Result<()> {
        self.push(Entry::All { round, parts })
    }

    /// `rank` has left.
    pub(super) fn send_left(&self, rank: usize) -> io::Result<()> {
        self.push(Entry::Left(vec![rank]))
    }

    fn push(&self, entry: Entry) -> io::Result<()> {
        let mut queue = self.lock();
        if !matches!(queue.connection, Connection::Open(_)) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        queue.bytes += entry.own_bytes();
        queue.answers += usize::from(entry.is_answer());
        match (queue.entries.back_mut(), entry) {
            (Some(Entry::Left(ranks)), Entry::Left(more)) => ranks.extend(more),
            (_, entry) => queue.entries.push_back(entry),
        }
        // A rank that waits for more rounds than allowed reads no answers.
        let is_slow = queue.bytes > BACKLOG_BYTES_MAX || queue.answers > PARTS_MAX;
        drop(queue);
        if is_slow {
            self.close();
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.changed.notify_one();
        Ok(())
    }

    /// Nothing more is sent. The thread that reads from the rank sees the end of the connection.
    pub(super) fn close(&self) {
        let mut queue = self.lock();
        if let Connection::Open(stream) = &queue.connection {
            let _ = stream.shutdown(Shutdown::Both);
        }
        *queue = Queue { connection: Connection::Over, ..Queue::default() };
        drop(queue);
        self.changed.notify_one();
    }

    /// Sends queued frames until the outbox is closed.
    pub(super) fn write(&self) {
        while let Some((stream, entry)) = self.next() {
            // After an error a part of the frame may have been sent, so nothing can follow.
            if entry.write(&mut &**stream).is_err() {
                self.close();
            }
        }
    }

    fn next(&self) -> Option<(Arc<Private<TcpStream>>, Entry)> {
        let mut queue = self.lock();
        loop {
            if let Connection::Over = queue.connection {
                return None;
            }
            if let Connection::Open(stream) = &queue.connection {
                let stream = Arc::clone(stream);
                if let Some(entry) = queue.entries.pop_front() {
                    queue.bytes -= entry.own_bytes();
                    queue.answers -= usize::from(entry.is_answer());
                    return Some((stream, entry));
                }
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn is_answer(&self) -> bool {
        matches!(self, Self::All { .. })
    }

    fn own_bytes(&self) -> usize {
        match self {
            Self::Frame(bytes) => bytes.len(),
            Self::All { .. } => 0,
            Self::Left(ranks) => size_of_val(&**ranks),
        }
    }

    fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Frame(bytes) => stream.write_all(bytes),
            Self::All { round, parts } => {
                stream.write_all(&before_parts(*round))?;
                stream.write_all(parts)
            }
            Self::Left(ranks) => Frame::News(News::Left { ranks: ranks.clone() }).write(stream),
        }
    }
}

/// A rank with more bytes waiting for it counts as lost: the bytes are in this process's memory.
const BACKLOG_BYTES_MAX: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn ranks_that_leave_while_one_reads_nothing_are_one_frame_for_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut rank = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let outbox = Outbox::default();
        outbox.open(Arc::new(Private::new(stream)), &Frame::Welcome).unwrap();
        (1..64).for_each(|left| outbox.send_left(left).unwrap());
        // News after an echo must not come before it.
        outbox.send(&Frame::Echo(9)).unwrap();
        outbox.send_left(64).unwrap();
        let left = |ranks| Frame::News(News::Left { ranks });
        let expected = [Frame::Welcome, left((1..64).collect()), Frame::Echo(9), left(vec![64])];
        thread::scope(|scope| {
            scope.spawn(|| outbox.write());
            let came = expected.each_ref().map(|_| Frame::read(&mut rank).unwrap());
            outbox.close();
            assert_eq!(came, expected);
        });
    }
}
