//! A process's or thread's membership in a rendezvous over TCP.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::frame::{Frame, Hello, News};
use super::interrupt::Interrupt;
use super::line::{Line, Stuck};
use super::mailbox::Mailbox;
use super::meeting::Meeting;
use super::reads::ReadsUntil;
use super::rounds::{late, left, too_long};
use super::{Bootstrap, PART_BYTES_MAX};
use crate::error::GroupError;
use crate::loader::Private;
use crate::patience::deadline;

/// A membership in a group, held by a connection to the hub.
#[derive(Debug)]
pub struct Remote {
    meeting: Meeting,
    line: Line,
    mailbox: Arc<Mailbox>,
    /// Set once this rank gave up: whether the hub received the reason.
    gave_up: Option<bool>,
    left: bool,
    /// The number of the next round.
    rounds: u32,
}

impl Remote {
    /// Joins as a rank, which only one caller may do. Until `wait` has passed, a hub that does not listen yet, or has too many new
    /// connections, is tried again.
    ///
    /// # Errors
    ///
    /// [`GroupError::Bootstrap`] with the hub's reason when it refuses: another token, another size, a rank that is here already.
    /// [`GroupError::System`] when there is no listener.
    pub fn join(meeting: Meeting, wait: Duration) -> Result<Self, GroupError> {
        Self::join_at_one_of(&[meeting.address], meeting, wait, &Interrupt::default())
    }

    /// As [`Remote::join`], if the hub listens at one or several of these addresses. `interrupt` ends the attempt.
    pub(crate) fn join_at_one_of(
        addresses: &[SocketAddr],
        meeting: Meeting,
        wait: Duration,
        interrupt: &Interrupt,
    ) -> Result<Self, GroupError> {
        let deadline = deadline(wait);
        let failed = |error: io::Error| {
            let shown: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
            let why = format!("at {}, where rank 0 listens: {error}", shown.join(" and "));
            let error = io::Error::new(error.kind(), why);
            GroupError::System { what: "joining the group", error }
        };
        let (begun, mut pause, mut is_said) = (Instant::now(), RETRY, false);
        let (stream, answer) = loop {
            let stream = connect(addresses, deadline, interrupt).map_err(failed)?;
            interrupt.watch(&stream).map_err(failed)?;
            let has_time = Instant::now() + pause < deadline;
            match greet(&stream, &meeting, wait) {
                // The hub closes connections without an answer while too many have not greeted yet, or while it can start no thread.
                Err(error) if is_end(&error) => {
                    if !has_time {
                        let closed = "it closes connections without an answer";
                        return Err(failed(io::Error::new(error.kind(), closed)));
                    }
                }
                Ok(Frame::Later { ranks }) => {
                    let awaited = before(&ranks);
                    if !has_time {
                        return Err(GroupError::Timeout { peers: ranks, awaited, limit: wait });
                    }
                    if !is_said && begun.elapsed() >= UNUSUAL {
                        log::warn!("rank {} waits for {awaited}", meeting.rank);
                        is_said = true;
                    }
                }
                answered => {
                    let answer = answered.map_err(|error| failed(no_answer_of_a_hub(error)))?;
                    break (stream, answer);
                }
            }
            thread::sleep(pause);
            pause = (2 * pause).min(RETRY_MAX);
        };
        match answer {
            Frame::Welcome => {}
            Frame::Failed(why) => return Err(GroupError::Bootstrap(why)),
            _ => return Err(invalid()),
        }
        let reads = Private::new(stream.try_clone().map_err(failed)?);
        Self::member(meeting, stream, reads)
    }

    /// A membership whose mail is read by a thread of its own, from `reads`.
    fn member(
        meeting: Meeting,
        stream: Private<TcpStream>,
        reads: Private<TcpStream>,
    ) -> Result<Self, GroupError> {
        let mailbox = Arc::new(Mailbox::default());
        let fills = Arc::clone(&mailbox);
        let reader = thread::Builder::new().name("mail".to_owned());
        let started = signals::blocked(|| reader.spawn(move || fills.fill(reads)));
        started.map_err(|error| GroupError::System { what: "starting a thread", error })?;
        Ok(Self {
            meeting,
            line: Line::new(stream),
            mailbox,
            gave_up: None,
            left: false,
            rounds: 0,
        })
    }

    /// Reports that this rank has finished, so that its leaving fails no other rank.
    pub fn leave(mut self) {
        self.farewell();
    }

    /// Sends the farewell. False: it could not be sent, or was sent before.
    pub(crate) fn farewell(&mut self) -> bool {
        !std::mem::replace(&mut self.left, true) && self.line.send(&Frame::Bye).is_ok()
    }

    /// Whether the hub has notified all others of this rank's farewell, or never will. True once.
    pub(crate) fn has_notified_all(&self) -> bool {
        self.mailbox.is_closed() || self.mailbox.answer(None, Instant::now()).is_some()
    }

    /// Requests an echo from the hub, which comes after the news of all events that the hub knows by then.
    pub(crate) fn ask_for_echo(&mut self) -> Awaited {
        let mut echo = self.next_answer();
        echo.is_open = self.say(&Frame::Echo(echo.number)).is_ok();
        echo
    }

    /// The next number that the hub answers by.
    fn next_answer(&mut self) -> Awaited {
        let number = self.rounds;
        self.rounds = number.wrapping_add(1);
        Awaited { mailbox: Arc::clone(&self.mailbox), number, is_open: false }
    }

    /// Reports to the hub why ranks give up, the first cause first; returns whether it received everything. Ends the membership.
    pub fn report(&mut self, causes: &[String]) -> bool {
        causes.iter().all(|cause| self.send_cause(cause).is_some())
    }

    fn send_cause(&mut self, cause: &str) -> Option<()> {
        self.line.send(&Frame::Failed(cause.to_owned())).ok()?;
        let deadline = Instant::now() + GRACE;
        (self.mailbox.answer(None, deadline)? == Frame::Bye).then_some(())
    }

    /// Sends this rank's part of a round, which may take `wait`; [`Round::wait`] waits for the answer, and does not borrow this.
    pub(crate) fn begin_round(&mut self, part: &[u8], wait: Duration) -> Result<Round, GroupError> {
        if part.len() > PART_BYTES_MAX {
            return Err(too_long());
        }
        let (mut awaited, size) = (self.next_answer(), self.meeting.size);
        // Ranks that come from a wait of the same length are a little later.
        let wait = wait.saturating_add(GRACE);
        let within_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        self.say(&Frame::Part { round: awaited.number, within_ms, bytes: part.to_vec() })?;
        awaited.is_open = true;
        Ok(Round { awaited, size, wait })
    }

    /// Sends bytes to another rank by the hub. They arrive in order.
    ///
    /// # Errors
    ///
    /// [`GroupError::Bootstrap`] when the hub is gone, [`GroupError::Usage`] for more than [`PART_BYTES_MAX`] bytes.
    pub fn mail(&mut self, to: usize, bytes: &[u8]) -> Result<(), GroupError> {
        if bytes.len() > PART_BYTES_MAX {
            return Err(GroupError::Usage(
                "a letter longer than the rendezvous carries".to_owned(),
            ));
        }
        self.say(&Frame::Mail { peer: to, bytes: bytes.to_vec() })
    }

    /// Whether there is mail or news.
    #[inline]
    pub fn has_mail(&self) -> bool {
        self.mailbox.is_waiting()
    }

    /// The next bytes from another rank, and that rank.
    pub fn next_mail(&self) -> Option<(usize, Vec<u8>)> {
        self.mailbox.mail()
    }

    /// The next event of the group; each is returned once.
    pub fn next_news(&self) -> Option<News> {
        self.mailbox.news()
    }

    /// Reports that nothing has moved in a wait for long: after `within` the hub reports, by news, which ranks are silent, unless the
    /// report is dropped before.
    pub(crate) fn stuck(&self, within: Duration) -> Stuck {
        self.line.stuck(within)
    }

    /// Makes the hub end every rank's waits.
    pub(crate) fn abort(&mut self) -> Result<(), GroupError> {
        self.say(&Frame::News(News::Aborted { rank: self.meeting.rank }))
    }

    /// Reports to all other ranks that this one has lost a rank.
    pub(crate) fn accuse(&mut self, rank: usize, why: &str) -> Result<(), GroupError> {
        self.say(&Frame::News(News::Lost { rank, why: why.to_owned() }))
    }

    fn say(&mut self, frame: &Frame) -> Result<(), GroupError> {
        self.line
            .send(frame)
            .map_err(|error| GroupError::Bootstrap(format!("the rendezvous broke: {error}")))
    }
}

/// An answer of the hub that is awaited. If this is dropped, the answer is ignored.
pub(crate) struct Awaited {
    mailbox: Arc<Mailbox>,
    number: u32,
    /// The answer was requested, and has not come.
    is_open: bool,
}

impl Awaited {
    fn answer(&mut self, deadline: Instant) -> Option<Frame> {
        let answer = self.mailbox.answer(Some(self.number), deadline);
        self.is_open &= answer.is_none();
        answer
    }

    /// Whether the answer has come, or never will.
    pub(crate) fn is_over(&mut self) -> bool {
        !self.is_open || self.answer(Instant::now()).is_some() || self.mailbox.is_closed()
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        if self.is_open {
            self.mailbox.forget(self.number);
        }
    }
}

/// A round for which this rank has sent its part.
pub(crate) struct Round {
    awaited: Awaited,
    size: usize,
    wait: Duration,
}

impl Round {
    /// Waits for every rank's part.
    pub(crate) fn wait(mut self) -> Result<Vec<Vec<u8>>, GroupError> {
        // The hub's wait ends first, and the hub knows which ranks are missing.
        let deadline = deadline(self.wait.saturating_add(GRACE));
        match self.awaited.answer(deadline) {
            Some(Frame::All { parts, .. }) if parts.len() == self.size => Ok(parts),
            Some(Frame::Gone { rank, .. }) => Err(left(rank)),
            Some(Frame::Missed { why, .. }) => Err(GroupError::Bootstrap(why)),
            Some(Frame::Late { ranks, after_ms, .. }) => {
                Err(late(ranks, Duration::from_millis(after_ms.into())))
            }
            Some(_) => Err(invalid()),
            None => Err(GroupError::Bootstrap("the rendezvous broke: no answer".to_owned())),
        }
    }
}

impl Bootstrap for Remote {
    fn rank(&self) -> usize {
        self.meeting.rank
    }

    fn size(&self) -> usize {
        self.meeting.size
    }

    fn identity(&self) -> u64 {
        self.meeting.secret
    }

    fn all_gather(&mut self, part: &[u8], wait: Duration) -> Result<Vec<Vec<u8>>, GroupError> {
        self.begin_round(part, wait)?.wait()
    }

    fn give_up(&mut self, why: &GroupError) -> bool {
        if let Some(received) = self.gave_up {
            return received;
        }
        let received = self.report(&[format!("rank {}: {why}", self.meeting.rank)]);
        *self.gave_up.insert(received)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // The reading thread holds the socket too: without this the hub would not see the connection end.
        let how = if self.left { Shutdown::Write } else { Shutdown::Both };
        self.line.shutdown(how);
    }
}

/// What a rank waits for between two groups: that `ranks` leave the first one.
fn before(ranks: &[usize]) -> String {
    match ranks {
        [] => "the rendezvous of the previous group to end".to_owned(),
        _ => format!("ranks {ranks:?} to leave the previous group"),
    }
}

fn invalid() -> GroupError {
    GroupError::Bootstrap("the hub sent an invalid frame".to_owned())
}

/// The error of a greeting that something else than a hub has accepted, in words for a user.
fn no_answer_of_a_hub(error: io::Error) -> io::Error {
    let why = match error.kind() {
        io::ErrorKind::InvalidData => "what answers there is no rendezvous of this version",
        io::ErrorKind::TimedOut => "it accepts connections, and does not answer",
        _ => return error,
    };
    io::Error::new(error.kind(), why)
}

/// Whether the other end has closed the connection.
fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

/// Sends the greeting of a rank. Returns the hub's answer.
fn greet(mut stream: &TcpStream, meeting: &Meeting, wait: Duration) -> io::Result<Frame> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITE))?;
    let small = |number| u32::try_from(number).map_err(|_| io::ErrorKind::InvalidInput);
    let (rank, size) = (small(meeting.rank)?, small(meeting.size)?);
    Hello { secret: meeting.secret, rank, size }.write(&mut stream)?;
    let answer = Frame::read(&mut ReadsUntil(stream, deadline(wait.max(GRACE))))?;
    stream.set_read_timeout(None)?;
    Ok(answer)
}

/// A connection to the first address that accepts one. The hub may not be listening yet: ranks are started in any order.
fn connect(
    addresses: &[SocketAddr],
    deadline: Instant,
    interrupt: &Interrupt,
) -> io::Result<Private<TcpStream>> {
    loop {
        // An error after which a retry may succeed takes precedence.
        let mut failed: Option<io::Error> = None;
        for address in addresses {
            interrupt.check()?;
            let left = deadline.saturating_duration_since(Instant::now()).max(RETRY);
            match TcpStream::connect_timeout(address, left.min(ATTEMPT)) {
                Ok(stream) if !is_own(&stream)? => return Ok(Private::new(stream)),
                Ok(_) => failed = Some(io::ErrorKind::ConnectionRefused.into()),
                Err(error) if may_listen_later(&error) => failed = Some(error),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let failed = failed.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into());
        if !may_listen_later(&failed) || Instant::now() + RETRY >= deadline {
            return Err(failed);
        }
        thread::sleep(RETRY);
    }
}

/// Whether the hub may accept later: its process may not listen yet, or its host may not be up.
fn may_listen_later(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut};
    matches!(error.kind(), ConnectionRefused | TimedOut | HostUnreachable | NetworkUnreachable)
}

/// Whether a socket is connected to itself: while no socket listens at a port of this machine, the system may give that port to a client.
fn is_own(stream: &TcpStream) -> io::Result<bool> {
    Ok(stream.local_addr()? == stream.peer_addr()?)
}

const GRACE: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(20);
/// The longest pause between two attempts, if the hub turns a rank away repeatedly.
const RETRY_MAX: Duration = Duration::from_millis(320);
/// A rank that waits for longer logs the reason.
const UNUSUAL: Duration = Duration::from_secs(5);
/// How long an address may leave a connection without an answer before the next attempt.
const ATTEMPT: Duration = Duration::from_secs(2);
/// A hub that accepts no data for this long counts as dead.
const WRITE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;
    use crate::support::WAIT;

    #[test]
    fn a_host_that_is_not_up_yet_is_tried_again() {
        // ENETUNREACH, EHOSTUNREACH and ETIMEDOUT; not EACCES and EADDRNOTAVAIL.
        let is_tried = |code| may_listen_later(&io::Error::from_raw_os_error(code));
        assert_eq!([101, 113, 110, 13, 99].map(is_tried), [true, true, true, false, false]);
    }

    #[test]
    fn an_answer_that_comes_byte_by_byte_is_not_waited_for() {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let trickles = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut answer = Vec::new();
            Frame::Failed("a long reason".repeat(3)).write(&mut answer).unwrap();
            for byte in answer {
                // Each byte comes soon, but all of them only after the limit.
                thread::sleep(GRACE / 16);
                // The rank may have closed the connection.
                let _ = stream.write_all(&[byte]);
            }
        });
        let meeting = Meeting { address, secret: 0, rank: 0, size: 1 };
        let refused = Remote::join(meeting, GRACE).unwrap_err();
        assert!(matches!(refused, GroupError::System { .. }), "{refused}");
        trickles.join().unwrap();
    }

    #[test]
    fn a_rank_says_that_something_else_listens_where_it_looks_for_the_hub() {
        for (said, why) in [
            (&b"HTTP/1.1 400 Bad Request\r\n"[..], "what answers there is no rendezvous"),
            (b"\x15\x03\x01", "what answers there is no rendezvous"),
            (b"", "it accepts connections, and does not answer"),
        ] {
            let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
            let address = listener.local_addr().unwrap();
            let other = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(said).unwrap();
                stream
            });
            let meeting = Meeting { address, secret: 0, rank: 0, size: 1 };
            let refused = Remote::join(meeting, GRACE).unwrap_err().to_string();
            assert!(refused.contains(&format!("where rank 0 listens: {why}")), "{refused}");
            other.join().unwrap();
        }
    }

    #[test]
    fn a_socket_that_is_connected_to_itself_has_found_no_hub() {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(!is_own(&client).unwrap());
        // A port that clients get, and at which no socket listens.
        let address = client.local_addr().unwrap();
        drop((client, listener));
        let end = Instant::now() + WAIT;
        let own = loop {
            match TcpStream::connect(address) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
        };
        assert!(is_own(&own).unwrap());
    }
}
