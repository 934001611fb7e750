//! Descriptors that forked children do not get. The kernel has no such flag: it knows only those that execve(2) closes.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

/// A socket of this process alone. In a forked child its number is that of an ended pipe: if children had the socket too, its connection
/// would last, and its port would stay in use, until the last of them has ended.
#[derive(Debug)]
pub(crate) struct Private<S> {
    socket: S,
    place: &'static AtomicI32,
}

impl<S: AsRawFd> Private<S> {
    pub(crate) fn new(socket: S) -> Self {
        watch();
        let place = FIRST.take(socket.as_raw_fd());
        Self { socket, place }
    }
}

impl<S> Deref for Private<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.socket
    }
}

impl<S> Drop for Private<S> {
    fn drop(&mut self) {
        // Before the close, after which another file may get the number.
        self.place.store(FREE, Ordering::Release);
    }
}

/// Numbers of private descriptors. It never shrinks, and is read without a lock: a thread that does not exist in the child may have held it.
struct Numbers {
    places: [AtomicI32; 64],
    more: OnceLock<Box<Self>>,
}

/// A place without a number.
const FREE: RawFd = -1;

static FIRST: Numbers = Numbers::new();

impl Numbers {
    const fn new() -> Self {
        Self { places: [const { AtomicI32::new(FREE) }; 64], more: OnceLock::new() }
    }

    fn take(&'static self, number: RawFd) -> &'static AtomicI32 {
        let mut numbers = self;
        loop {
            let is_taken = |place: &&AtomicI32| {
                let how = (Ordering::AcqRel, Ordering::Relaxed);
                place.compare_exchange(FREE, number, how.0, how.1).is_ok()
            };
            if let Some(place) = numbers.places.iter().find(is_taken) {
                return place;
            }
            numbers = numbers.more.get_or_init(|| Box::new(Self::new()));
        }
    }

    fn each(&self, mut call: impl FnMut(RawFd)) {
        let mut numbers = Some(self);
        while let Some(Self { places, more }) = numbers {
            let taken = places.iter().map(|place| place.load(Ordering::Acquire));
            taken.filter(|number| *number != FREE).for_each(&mut call);
            numbers = more.get().map(Box::as_ref);
        }
    }
}

/// The number of the ended pipe, which stays open. Not behind a lock: in a child that is forked meanwhile it would stay locked.
static ENDED: AtomicI32 = AtomicI32::new(FREE);

/// Makes the ended pipe, and the handler that puts it in place of private descriptors. Without a descriptor left for the pipe children get
/// the sockets.
fn watch() {
    extern "C" fn replace() {
        let ended = ENDED.load(Ordering::Acquire);
        // Without a pipe the call fails.
        // SAFETY: dup3(2) is async-signal-safe, and each number is that of a descriptor whose owner in this process is a copy.
        FIRST.each(|number| unsafe {
            libc::dup3(ended, number, libc::O_CLOEXEC);
        });
    }
    if ENDED.load(Ordering::Acquire) != FREE {
        return;
    }
    let Ok((ended, _)) = io::pipe() else { return };
    // First, for a fork in between. Two threads may both register it, and then it runs twice, which changes nothing.
    // SAFETY: the handler is async-signal-safe, and libc forgets it when this code is unloaded. It fails without memory only.
    let _refused = unsafe { libc::pthread_atfork(None, None, Some(replace)) };
    let how = (Ordering::AcqRel, Ordering::Relaxed);
    if ENDED.compare_exchange(FREE, ended.as_raw_fd(), how.0, how.1).is_ok() {
        let _stays_open = ended.into_raw_fd();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::fork::in_child;

    #[test]
    fn a_forked_child_has_ended_pipes_in_place_of_private_sockets_however_many_there_are() {
        let pairs: Vec<_> = (0..150).map(|_| UnixStream::pair().unwrap()).collect();
        let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let ours: Vec<_> = ours.into_iter().map(Private::new).collect();
        for theirs in &theirs {
            (&*theirs).write_all(b"a").unwrap();
        }
        assert!(in_child(|| {
            for socket in &ours {
                let mut socket: &UnixStream = socket;
                assert!(socket.read(&mut [0]).is_err() && socket.write(b"b").is_err());
            }
        }));
        for socket in &ours {
            let (mut socket, mut byte): (&UnixStream, _) = (socket, [0]);
            socket.read_exact(&mut byte).unwrap();
            assert_eq!(byte, *b"a");
        }
    }

    #[test]
    fn a_number_that_is_private_no_more_is_inherited() {
        let (socket, mut other) = UnixStream::pair().unwrap();
        let kept = socket.try_clone().unwrap();
        drop(Private::new(socket));
        assert!(in_child(|| (&kept).write_all(b"c").unwrap()));
        let mut byte = [0];
        other.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"c");
    }
}
