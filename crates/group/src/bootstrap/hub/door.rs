//! How ranks come to the rendezvous: it listens, and accepts connections that greet as a rank of its group.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::super::frame::{Frame, Hello};
use super::super::reads::ReadsUntil;
use super::{Refusal, Served, Shared, WRITE, no_room, serve};
use crate::loader::Private;

/// The error with the address; torchrun itself listens at that of its variables.
fn unavailable(address: SocketAddr, error: io::Error) -> io::Error {
    let next = match error.kind() {
        io::ErrorKind::AddrInUse => "; IRONRAIL_GROUP_COORDINATOR names another port",
        io::ErrorKind::AddrNotAvailable => "; rank 0 runs on the host that has this address",
        _ => "",
    };
    io::Error::new(error.kind(), format!("at {address}: {error}{next}"))
}

/// Listens on all addresses that are this machine's, since a rank may reach only some of them.
pub(super) fn listeners(addresses: &[SocketAddr]) -> io::Result<Vec<Private<TcpListener>>> {
    let (mut listeners, mut not_here) = (Vec::<Private<TcpListener>>::new(), None);
    for address in addresses {
        match TcpListener::bind(address).map_err(|error| unavailable(*address, error)) {
            Ok(listener) => listeners.push(Private::new(listener)),
            // The listener at all addresses of IPv6 takes these connections.
            Err(_) if address.ip().is_unspecified() && listeners.iter().any(takes_ipv4) => {}
            // Ranks might connect to another program that listens there.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error),
            Err(error) => not_here = not_here.or(Some(error)),
        }
    }
    match not_here {
        Some(error) if listeners.is_empty() => Err(error),
        _ => Ok(listeners),
    }
}

/// Whether a listener at all addresses of IPv6 also accepts IPv4; net.ipv6.bindv6only decides that for new sockets (ipv6(7)).
#[expect(
    deprecated,
    reason = "only the way to set it is without effect, and nothing else in the library reads it"
)]
fn takes_ipv4(listener: &Private<TcpListener>) -> bool {
    listener.only_v6().is_ok_and(|only| !only)
}

/// The most connections that may be waiting to greet.
const STRANGERS_MAX: usize = 64;
/// The time limit of a greeting.
const GREETING: Duration = Duration::from_secs(5);

/// Connections that have not greeted yet, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Strangers(Mutex<VecDeque<Arc<Private<TcpStream>>>>);

impl Strangers {
    /// Adds a connection. If there are too many, shuts down the oldest: ranks greet at once, so it is probably not a rank's.
    pub(super) fn add(&self, stream: Private<TcpStream>) -> Arc<Private<TcpStream>> {
        let stream = Arc::new(stream);
        let mut all = self.lock();
        if all.len() == STRANGERS_MAX
            && let Some(oldest) = all.pop_front()
        {
            // Its thread sees the end.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        all.push_back(Arc::clone(&stream));
        stream
    }

    /// Removes a connection. Returns whether it was not shut down before.
    fn remove(&self, stream: &Arc<Private<TcpStream>>) -> bool {
        let mut all = self.lock();
        let found = all.iter().position(|other| Arc::ptr_eq(other, stream));
        found.and_then(|index| all.remove(index)).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Private<TcpStream>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut fails = None;
    for stream in listener.incoming() {
        if shared.closing.load(Ordering::Acquire) {
            return;
        }
        let stream = match stream {
            Ok(stream) => Private::new(stream),
            Err(error) => {
                cannot_accept(&error, &mut fails, Instant::now(), shared);
                thread::sleep(Duration::from_millis(10));
                continue;
            }
        };
        let stream = shared.strangers.add(stream);
        let (ours, greets) = (Arc::clone(shared), Arc::clone(&stream));
        match thread::Builder::new().spawn(move || receive(&greets, &ours)) {
            Ok(_) => fails = None,
            Err(error) => {
                shared.strangers.remove(&stream);
                cannot_accept(&error, &mut fails, Instant::now(), shared);
            }
        }
    }
}

/// A time in which no connection can be accepted.
struct Fails {
    since: Instant,
    last: Instant,
}

/// No connection can be accepted, most likely for lack of descriptors or threads. If that lasts, the ranks that are here get an error.
fn cannot_accept(error: &io::Error, fails: &mut Option<Fails>, now: Instant, shared: &Shared) {
    let new = || {
        log::warn!("the rendezvous accepts no connection for now: {error}");
        Fails { since: now, last: now }
    };
    // If the last failure is long ago, there may have been descriptors in between.
    let goes_on = fails.take().filter(|fails| now.saturating_duration_since(fails.last) < PASSES);
    let Fails { since, .. } = goes_on.unwrap_or_else(new);
    *fails = Some(Fails { since, last: now });
    let rounds = &shared.group().rounds;
    if now.saturating_duration_since(since) >= PASSES
        && let Some(rank) = rounds.first_awaited()
    {
        rounds.give_up(no_room(rank, error));
    }
}

/// How long the rendezvous may lack descriptors or threads.
const PASSES: Duration = Duration::from_secs(5);

/// Serves a connection to its end.
pub(super) fn receive(stream: &Arc<Private<TcpStream>>, shared: &Arc<Shared>) {
    let greeted = greet(stream, shared);
    shared.strangers.remove(stream);
    match greeted {
        Ok((group, rank)) => serve(stream, &group, rank),
        Err(error) => {
            let before = shared.refused.fetch_add(1, Ordering::Relaxed);
            // Strangers can make any number of them.
            let level = match is_worth_a_look(&error) && before < WARNINGS_MAX {
                true => log::Level::Warn,
                false => log::Level::Debug,
            };
            log::log!(level, "a connection to the rendezvous was refused: {error}");
        }
    }
}

/// The rank that greets, and the group that it has entered. From here on the rank is lost if its connection fails.
fn greet(stream: &Arc<Private<TcpStream>>, shared: &Shared) -> io::Result<(Arc<Served>, usize)> {
    stream.set_write_timeout(Some(WRITE))?;
    stream.set_nodelay(true)?;
    let refuse = |why: String| {
        let _ = Frame::Failed(why.clone()).write(&mut &***stream);
        io::Error::new(io::ErrorKind::InvalidData, why)
    };
    let hello = match Hello::read(&mut ReadsUntil(stream, Instant::now() + GREETING)) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            return Err(refuse(error.to_string()));
        }
        hello => hello?,
    };
    if !shared.strangers.remove(stream) {
        return Err(io::Error::other("too many others connected before it greeted"));
    }
    let (rank, size) = (hello.rank as usize, hello.size as usize);
    if hello.secret != shared.secret {
        return Err(refuse(format!("rank {rank} has another join token than this group")));
    }
    let here = shared.group().size;
    if size != here || rank >= here {
        return Err(refuse(format!("rank {rank} of {size} comes to a group of {here}")));
    }
    match shared.enter(rank) {
        Ok(group) => Ok((group, rank)),
        Err(Refusal::For(why)) => Err(refuse(why)),
        Err(Refusal::Until(ranks)) => {
            let why = format!("rank {rank} comes again before ranks {ranks:?} have left");
            let _ = Frame::Later { ranks }.write(&mut &***stream);
            Err(io::Error::other(why))
        }
    }
}

/// Whether the connection is not from a rank of this group: not one that ended early, and not a rank that comes again.
fn is_worth_a_look(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

/// The most warnings about refused connections.
const WARNINGS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::super::super::{Bootstrap, Hub, Meeting, Remote};
    use super::super::tests::{WAIT, hub};
    use super::*;

    /// The most connections that do not greet, all of them accepted.
    fn idle(hub: &Hub) -> Vec<TcpStream> {
        let connect = |_| TcpStream::connect(hub.meeting(0).address).unwrap();
        let strangers: Vec<_> = (0..STRANGERS_MAX).map(connect).collect();
        let begun = Instant::now();
        while hub.shared.strangers.lock().len() < STRANGERS_MAX {
            assert!(begun.elapsed() < GREETING / 2, "the connections are not accepted");
            thread::yield_now();
        }
        strangers
    }

    #[test]
    fn a_rank_comes_at_once_though_strangers_hold_all_places() {
        let hub = hub(1, WAIT);
        let mut strangers = idle(&hub);
        let mut stream = TcpStream::connect(hub.meeting(0).address).unwrap();
        let Meeting { secret, .. } = hub.meeting(0);
        Hello { secret, rank: 0, size: 1 }.write(&mut stream).unwrap();
        assert_eq!(Frame::read(&mut stream).unwrap(), Frame::Welcome);
        // The oldest one has made room for it.
        assert_eq!(strangers[0].read(&mut [0; 8]).unwrap(), 0);
        assert_eq!(hub.shared.strangers.lock().len(), STRANGERS_MAX - 1);
    }

    #[test]
    fn a_rank_that_comes_while_too_many_greet_comes_again() {
        let hub = hub(1, WAIT);
        let mut rank = TcpStream::connect(hub.meeting(0).address).unwrap();
        let others = idle(&hub);
        // As when a rank's greeting takes longer than all the connections took.
        assert_eq!(rank.read(&mut [0; 8]).unwrap(), 0);
        drop(others);
        let closes_first = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = closes_first.local_addr().unwrap();
        let answers = thread::spawn(move || {
            drop(closes_first.accept().unwrap());
            let (mut again, _) = closes_first.accept().unwrap();
            Hello::read(&mut again).unwrap();
            Frame::Welcome.write(&mut again).unwrap();
        });
        let joined = Remote::join(Meeting { address, ..hub.meeting(0) }, WAIT).map(Remote::leave);
        assert!(joined.is_ok(), "{joined:?}");
        answers.join().unwrap();
    }

    /// What the hubs of all tests warn of.
    #[derive(Debug)]
    struct Warnings(Mutex<Vec<String>>);

    static WARNINGS: Warnings = Warnings(Mutex::new(Vec::new()));

    impl log::Log for Warnings {
        fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
            metadata.level() <= log::Level::Warn
        }

        fn log(&self, record: &log::Record<'_>) {
            if self.enabled(record.metadata()) {
                self.0.lock().unwrap().push(record.args().to_string());
            }
        }

        fn flush(&self) {}
    }

    #[test]
    fn the_reason_for_refusing_a_rank_is_sent_to_it_and_logged() {
        log::set_logger(&WARNINGS).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
        let hub = hub(1, WAIT);
        let meeting = Meeting { size: 739, ..hub.meeting(0) };
        let size = Remote::join(meeting, WAIT).unwrap_err().to_string();
        assert_eq!(size, "rank 0 of 739 comes to a group of 1");
        let mut stream = TcpStream::connect(hub.meeting(0).address).unwrap();
        stream.write_all(b"IRONGRP\x03................").unwrap();
        let answer = Frame::read(&mut stream).unwrap();
        let Frame::Failed(version) = answer else { panic!("{answer:?}") };
        assert_eq!(version, "a rank of version 3 of the rendezvous comes to one of version 6");
        let begun = Instant::now();
        for why in [size, version] {
            while !WARNINGS.0.lock().unwrap().iter().any(|said| said.ends_with(&why)) {
                assert!(begun.elapsed() < WAIT, "{why}");
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn ranks_that_are_here_get_an_error_if_no_other_can_be_accepted_for_long() {
        let hub = hub(2, WAIT);
        let mut here = Remote::join(hub.meeting(0), WAIT).unwrap();
        let waits = thread::spawn(move || here.barrier(WAIT).unwrap_err().to_string());
        let (mut fails, begun) = (None, Instant::now());
        let mut fail_at = |after: Duration| {
            let lacks = io::Error::from_raw_os_error(24); // EMFILE
            cannot_accept(&lacks, &mut fails, begun + after, &hub.shared);
            hub.causes().len()
        };
        // The second failure comes long after the first.
        assert_eq!([Duration::ZERO, 2 * PASSES].map(&mut fail_at), [0, 0]);
        assert_eq!([5, 6].map(|halves| fail_at(halves * PASSES / 2)), [0, 1]);
        let why = waits.join().unwrap();
        assert!(why.starts_with("the rendezvous has no room for rank 1: "), "{why}");
    }

    #[test]
    fn a_greeting_that_trickles_in_is_refused() {
        let hub = hub(1, WAIT);
        let mut stranger = TcpStream::connect(hub.meeting(0).address).unwrap();
        let Meeting { secret, .. } = hub.meeting(0);
        let mut greeting = Vec::new();
        Hello { secret, rank: 0, size: 1 }.write(&mut greeting).unwrap();
        for byte in greeting {
            // Each byte comes soon, but all of them only after the limit.
            thread::sleep(GREETING / 16);
            // The hub may have closed the connection.
            let _ = stranger.write_all(&[byte]);
        }
        let answer = Frame::read(&mut stranger);
        assert!(answer.is_err(), "{answer:?}");
        assert_eq!(hub.refused(), 1);
    }

    #[test]
    fn strangers_are_turned_away_and_the_group_goes_on() {
        let hub = hub(1, WAIT);
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n........"[..], &[0xFF; 64], b""] {
            let mut stream = TcpStream::connect(hub.meeting(0).address).unwrap();
            // The hub may have closed the connection before the last byte was written.
            let _ = stream.write_all(garbage);
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read(&mut [0; 8]);
        }
        let mut wrong = hub.meeting(0);
        wrong.secret ^= 1;
        assert!(Remote::join(wrong, WAIT).and_then(|mut place| place.barrier(WAIT)).is_err());
        let mut place = Remote::join(hub.meeting(0), WAIT).unwrap();
        assert_eq!(place.all_gather(b"me", WAIT).unwrap(), [b"me".to_vec()]);
        // Each is counted after its answer.
        let begun = Instant::now();
        while hub.refused() < 4 {
            assert!(begun.elapsed() < WAIT, "{}", hub.refused());
            thread::sleep(Duration::from_millis(1));
        }
    }
}
