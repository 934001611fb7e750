//! The rendezvous of a group's ranks over TCP. The launcher runs one; idle, it costs no CPU.

mod connection;
mod door;
mod outbox;

use std::fmt;
use std::io;
use std::mem::{self, ManuallyDrop};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::frame::{Frame, News};
use super::meeting::Meeting;
use super::random;
use super::rounds::{Refusal, Rounds};
use super::watch::Watch;
use crate::error::GroupError;
use crate::loader::{Private, forks};
use crate::patience::deadline;
use door::{Strangers, accept, listeners};
use outbox::Outbox;

/// Serves a group until dropped, with three threads per rank: one blocks in `read` while the rank computes, one in rounds, one in `write`.
#[derive(Debug)]
pub struct Hub {
    shared: Arc<Shared>,
    /// At least one.
    acceptors: Vec<Acceptor>,
    /// As [`forks`] counted them in the process that started it.
    forks: u32,
}

/// A thread that lets ranks in.
#[derive(Debug)]
struct Acceptor {
    /// Where it listens.
    address: SocketAddr,
    /// The listener, which a shutdown of this ends.
    ends: Private<TcpStream>,
    thread: JoinHandle<()>,
}

struct Shared {
    /// The group whose ranks come now.
    group: Mutex<Arc<Served>>,
    /// Once a group is over, the ranks of the next one may come.
    serves_many: bool,
    secret: u64,
    closing: AtomicBool,
    /// No wait for ranks to leave is wanted any more.
    waits_no_more: AtomicBool,
    /// Connections without a greeting so far, and the number of refused ones.
    strangers: Strangers,
    refused: AtomicUsize,
}

/// Omits the secret, with which anyone could come as a rank.
impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Shared");
        text.field("group", &self.group).field("strangers", &self.strangers);
        text.field("refused", &self.refused).finish_non_exhaustive()
    }
}

/// One group. Its ranks' threads hold it: a rank that has left may still be connected while the next group meets.
#[derive(Debug)]
struct Served {
    rounds: Rounds,
    size: usize,
    wait: Duration,
    /// The frames that wait for each rank.
    outboxes: Vec<Outbox>,
    watch: Mutex<Watch>,
    /// Signalled when the watch changes.
    changed: Condvar,
}

impl Hub {
    /// Listens on `address` (port 0: any) for `size` ranks; a round may take `wait`. When all have left, they may come again, as another group.
    pub fn start(address: SocketAddr, size: usize, wait: Duration) -> Result<Self, GroupError> {
        Self::listen(&[address], size, wait, random(), true)
    }

    /// As [`Hub::start`], for one group whose ranks already have the secret, from a join token. Listens on all `addresses` that are this
    /// machine's.
    pub fn with_secret(
        addresses: &[SocketAddr],
        size: usize,
        wait: Duration,
        secret: u64,
    ) -> Result<Self, GroupError> {
        Self::listen(addresses, size, wait, secret, false)
    }

    fn listen(
        addresses: &[SocketAddr],
        size: usize,
        wait: Duration,
        secret: u64,
        serves_many: bool,
    ) -> Result<Self, GroupError> {
        let system = |what| move |error| GroupError::System { what, error };
        let listeners = listeners(addresses).map_err(system("listening for ranks"))?;
        let shared = Arc::new(Shared {
            group: Mutex::new(Arc::new(Served::new(size, wait))),
            serves_many,
            secret,
            closing: AtomicBool::new(false),
            waits_no_more: AtomicBool::new(false),
            strangers: Strangers::default(),
            refused: AtomicUsize::new(0),
        });
        // Dropped after an error, it ends the threads that there are.
        let mut hub = Self { shared, acceptors: Vec::new(), forks: forks() };
        for listener in listeners {
            let address = listener.local_addr().map_err(system("listening for ranks"))?;
            let copy = listener.try_clone().map_err(system("listening for ranks"))?;
            let ends = Private::new(TcpStream::from(OwnedFd::from(copy)));
            let ours = Arc::clone(&hub.shared);
            let accept = move || accept(&listener, &ours);
            let thread = thread::Builder::new().name("hub".to_owned());
            let thread = signals::blocked(|| thread.spawn(accept));
            let thread = thread.map_err(system("starting a thread"))?;
            hub.acceptors.push(Acceptor { address, ends, thread });
        }
        Ok(hub)
    }

    /// What `rank` needs to join.
    pub fn meeting(&self, rank: usize) -> Meeting {
        let Acceptor { address, .. } = self.acceptors[0];
        Meeting { address, secret: self.shared.secret, rank, size: self.shared.group().size }
    }

    /// Ends every wait of every rank with this reason.
    pub fn fail(&self, why: String) {
        self.shared.group().rounds.fail(why);
    }

    /// The reasons of ranks that gave up, the first cause first.
    pub fn causes(&self) -> Vec<String> {
        self.shared.group().rounds.causes()
    }

    /// Its waits for ranks to leave.
    pub(super) fn waits(&self) -> Waits {
        Waits(Arc::downgrade(&self.shared))
    }

    /// Waits at most `wait` until every rank has left or died. Returns whether they have.
    pub fn wait_for_all_to_leave(&self, wait: Duration) -> bool {
        let (deadline, group) = (deadline(wait), Arc::clone(&self.shared.group()));
        let mut watch = group.watch();
        while !watch.all_left() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.shared.waits_no_more.load(Ordering::Acquire) {
                return false;
            }
            let woken = group.changed.wait_timeout(watch, left);
            watch = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// The number of refused connections.
    pub fn refused(&self) -> usize {
        self.shared.refused.load(Ordering::Relaxed)
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        if self.forks != forks() {
            // The threads are the parent's, and one may have held a lock at the fork.
            let _never_dropped = ManuallyDrop::new(mem::take(&mut self.acceptors));
            return;
        }
        self.shared.closing.store(true, Ordering::Release);
        self.fail("the launcher left".to_owned());
        for Acceptor { ends, thread, .. } in self.acceptors.drain(..) {
            // The shutdown makes accept(2) return. A connection would do so too, but needs a descriptor, and there may be none.
            if ends.shutdown(Shutdown::Both).is_ok() {
                let _ = thread.join();
            }
        }
    }
}

/// A hub's waits for ranks to leave. Does not keep the hub alive.
#[derive(Debug)]
pub(super) struct Waits(Weak<Shared>);

impl Waits {
    pub(super) fn end(&self) {
        let Some(shared) = self.0.upgrade() else { return };
        let group = Arc::clone(&shared.group());
        // Under the lock, so that a wait sees it or is woken.
        let watch = group.watch();
        shared.waits_no_more.store(true, Ordering::Release);
        drop(watch);
        group.changed.notify_all();
    }
}

impl Shared {
    /// Enters `rank` into the group that it comes to, and returns the group.
    fn enter(&self, rank: usize) -> Result<Arc<Served>, Refusal> {
        let mut group = self.group();
        if self.serves_many && group.rounds.is_over_for(rank) {
            *group = Arc::new(Served::new(group.size, group.wait));
        }
        group.rounds.enter(rank)?;
        Ok(Arc::clone(&group))
    }

    fn group(&self) -> MutexGuard<'_, Arc<Served>> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Served {
    fn new(size: usize, wait: Duration) -> Self {
        Self {
            rounds: Rounds::new(size),
            size,
            wait,
            outboxes: (0..size).map(|_| Outbox::default()).collect(),
            watch: Mutex::new(Watch::new(size)),
            changed: Condvar::new(),
        }
    }

    /// Sends one frame to a rank. A rank that accepts no data for long, or has left, gets none.
    fn send(&self, rank: usize, frame: &Frame) -> io::Result<()> {
        self.outboxes[rank].send(frame)
    }

    fn send_to_all_but(&self, rank: Option<usize>, news: &News) {
        let frame = Frame::News(news.clone())
            .encode()
            .expect("a rank is a small number, and the reason is cut");
        let frame: Arc<[u8]> = frame.into();
        for other in (0..self.size).filter(|other| Some(*other) != rank) {
            let _ = self.outboxes[other].send_encoded(Arc::clone(&frame));
        }
    }

    fn send_left(&self, rank: usize) {
        for other in (0..self.size).filter(|other| *other != rank) {
            let _ = self.outboxes[other].send_left(rank);
        }
    }

    /// A rank has left, or its connection has broken.
    fn left(&self, rank: usize) {
        self.outboxes[rank].close();
        self.rounds.leave(rank);
        self.watch().left(rank);
        self.changed.notify_all();
    }

    fn lost(&self, rank: usize) {
        self.left(rank);
        self.rounds.fail(format!("rank {rank} left"));
        self.send_to_all_but(Some(rank), &News::Lost { rank, why: "it left".to_owned() });
    }

    /// Starts the threads that a rank needs here: one for its rounds, so that its other frames are read meanwhile, and one that writes.
    fn make_room(self: &Arc<Self>, rank: usize) -> io::Result<SyncSender<Part>> {
        let (parts, given) = mpsc::sync_channel(PARTS_MAX);
        let [reads, writes] = [(); 2].map(|()| Arc::clone(self));
        thread::Builder::new().spawn(move || reads.take_through(rank, &given))?;
        thread::Builder::new().spawn(move || writes.outboxes[rank].write())?;
        Ok(parts)
    }

    /// From here on `rank` gets frames.
    fn welcome(&self, rank: usize, stream: &Arc<Private<TcpStream>>) -> io::Result<()> {
        stream.set_read_timeout(None)?;
        // A process that is stopped or swapped out will read again.
        stream.set_write_timeout(Some(self.wait.max(WRITE)))?;
        self.outboxes[rank].open(Arc::clone(stream), &Frame::Welcome)
    }

    fn take_through(&self, rank: usize, parts: &Receiver<Part>) {
        for Part { round, within, bytes } in parts {
            let answer = match self.rounds.give(rank, bytes, within.min(self.wait)) {
                Ok(parts) => self.outboxes[rank].send_parts(round, parts),
                Err(error) => self.send(rank, &unanswered(round, error)),
            };
            if answer.is_err() {
                break;
            }
        }
        self.rounds.ends(rank);
    }

    fn stuck(self: &Arc<Self>, rank: usize, within: Duration) {
        if !self.watch().stuck(rank, Instant::now() + within) {
            return;
        }
        let ours = Arc::clone(self);
        if thread::Builder::new().spawn(move || ours.judge()).is_err() {
            self.judge();
        }
    }

    /// Waits until a rank that is still stuck has had its time, then names the ranks that neither wait nor have left.
    fn judge(&self) {
        let mut watch = self.watch();
        while let Some(deadline) = watch.deadline() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let ranks = watch.verdict();
                drop(watch);
                return self.send_to_all_but(None, &News::Silent { ranks });
            }
            let begun = Instant::now();
            let woken = self.changed.wait_timeout(watch, left);
            watch = woken.unwrap_or_else(PoisonError::into_inner).0;
            let late = begun.elapsed().saturating_sub(left);
            if late > STOPPED_MIN {
                watch.postpone(late);
            }
        }
    }

    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A rank's part of a round, and how long the rank waits for the answer.
struct Part {
    round: u32,
    within: Duration,
    bytes: Vec<u8>,
}

/// Represents `rank` in the rounds until it leaves.
fn serve(stream: &Arc<Private<TcpStream>>, group: &Arc<Served>, rank: usize) {
    let parts = match group.make_room(rank) {
        Ok(parts) => parts,
        Err(error) => {
            let why = no_room(rank, &error);
            // First, so that the rank's leaving counts as its consequence.
            group.rounds.give_up(why.clone());
            let _ = Frame::Failed(why).write(&mut &***stream);
            return group.lost(rank);
        }
    };
    match group.welcome(rank, stream) {
        Ok(()) => connection::serve(stream, group, rank, parts),
        Err(_) => group.lost(rank),
    }
}

/// The answer to a part of a round that has not completed.
fn unanswered(round: u32, error: GroupError) -> Frame {
    match error {
        GroupError::Timeout { peers: ranks, limit, .. } => {
            let after_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
            Frame::Late { round, ranks, after_ms }
        }
        GroupError::PeerLost { rank, .. } => Frame::Gone { round, rank },
        error => Frame::Missed { round, why: error.to_string() },
    }
}

fn no_room(rank: usize, error: &io::Error) -> String {
    format!("the rendezvous has no room for rank {rank}: {error}")
}

/// The most rounds that a rank may wait for at the same time: each of its threads may wait for one, and a round that it gave up is answered
/// later.
const PARTS_MAX: usize = 64;
/// If a sleep lasts this much longer than it should, the process was stopped meanwhile.
const STOPPED_MIN: Duration = Duration::from_secs(1);
/// How long the answer to a greeting may take to send, and at least any other frame.
const WRITE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;

    use net_abi::HANDLE_MAX_BYTES;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::super::PART_BYTES_MAX;
    use super::super::frame::Hello;
    use super::super::remote::Awaited;
    use super::super::{Bootstrap, Remote};
    use super::door::receive;
    use super::*;
    use crate::fork::{in_child, start_child};
    use crate::launch::MEETING_VARIABLE;
    use crate::loader::Handle;
    use crate::start::Start;

    pub(super) const WAIT: Duration = Duration::from_secs(10);

    pub(super) fn hub(size: usize, wait: Duration) -> Hub {
        Hub::start(SocketAddr::from(([127, 0, 0, 1], 0)), size, wait).unwrap()
    }

    #[test]
    fn ranks_exchange_parts_over_tcp() {
        let hub = hub(4, WAIT);
        let ranks: Vec<_> = (0..4)
            .map(|rank| {
                let meeting: Meeting = hub.meeting(rank).to_string().parse().unwrap();
                thread::spawn(move || {
                    let mut place = Remote::join(meeting, WAIT).unwrap();
                    for round in 0..50 {
                        let all =
                            place.all_gather(&[u8::try_from(rank).unwrap(), round], WAIT).unwrap();
                        assert_eq!(all, (0..4).map(|rank| vec![rank, round]).collect::<Vec<_>>());
                    }
                    place.barrier(WAIT).unwrap();
                    place.leave();
                })
            })
            .collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    }

    /// Sends the farewell, and waits until the hub knows of it. Stays connected.
    fn part(place: &mut Remote) {
        place.farewell();
        let begun = Instant::now();
        while !place.has_notified_all() {
            assert!(begun.elapsed() < WAIT, "its farewell is not answered");
            thread::yield_now();
        }
    }

    fn meet_and_part(meeting: Meeting) -> Remote {
        let mut place = Remote::join(meeting, WAIT).unwrap();
        place.barrier(WAIT).unwrap();
        part(&mut place);
        place
    }

    #[test]
    fn ranks_that_have_left_meet_again_as_another_group_when_all_have() {
        let hub = hub(2, WAIT);
        let mut late = Remote::join(hub.meeting(0), WAIT).unwrap();
        let meeting = hub.meeting(1);
        let early = thread::spawn(move || [meet_and_part(meeting), meet_and_part(meeting)]);
        late.barrier(WAIT).unwrap();
        // The rank has left, and comes again.
        let begun = Instant::now();
        while hub.refused() == 0 && !early.is_finished() {
            assert!(begun.elapsed() < WAIT / 2, "the rank does not come again");
            thread::sleep(Duration::from_millis(1));
        }
        part(&mut late);
        let again = meet_and_part(hub.meeting(0));
        let both = early.join().unwrap();
        assert!(hub.wait_for_all_to_leave(WAIT));
        drop((late, again, both));
    }

    #[test]
    fn a_hub_that_ends_listens_no_more_though_no_descriptor_is_left() {
        let ends = || {
            let hub = hub(2, WAIT);
            let Meeting { address, .. } = hub.meeting(0);
            let before = getrlimit(Resource::Nofile);
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).unwrap();
            drop(hub);
            setrlimit(Resource::Nofile, before).unwrap();
            TcpListener::bind(address).unwrap();
        };
        assert!(in_child(ends));
    }

    /// Runs `body` in a process that dies at its end, and leaves a child with all of its files, which lives until the result is dropped.
    fn dies_before_its_child(body: impl FnOnce()) -> io::PipeWriter {
        // In no other thread while this one forks: the child would wait for its end.
        forks();
        let (mut until, over) = io::pipe().unwrap();
        let (mut begun, mut begins) = io::pipe().unwrap();
        let mut over = Some(over);
        assert!(in_child(|| {
            body();
            start_child(|| {
                over = None;
                begins.write_all(&[0]).unwrap();
                let _ = until.read(&mut [0]);
            });
            begun.read_exact(&mut [0]).unwrap();
        }));
        over.unwrap()
    }

    #[test]
    fn a_rank_that_dies_before_a_child_that_it_has_forked_fails_the_others_at_once() {
        let hub = hub(2, WAIT);
        let mut here = Remote::join(hub.meeting(0), WAIT).unwrap();
        let meeting = hub.meeting(1);
        let child = dies_before_its_child(|| {
            let _never_dropped = ManuallyDrop::new(Remote::join(meeting, WAIT).unwrap());
        });
        assert_eq!(here.barrier(WAIT).unwrap_err().to_string(), "rank 1 left");
        drop(child);
    }

    #[test]
    fn a_hub_that_dies_before_a_child_that_it_has_forked_leaves_its_address_and_its_ranks() {
        let (said, mut says) = io::pipe().unwrap();
        let (mut joined, mut joins) = io::pipe().unwrap();
        let mut said = BufReader::new(said).lines();
        let rank = thread::spawn(move || {
            let meeting: Meeting = said.next().unwrap().unwrap().parse().unwrap();
            let mut place = Remote::join(meeting, WAIT).unwrap();
            joins.write_all(&[0]).unwrap();
            (meeting.address, place.barrier(WAIT).unwrap_err().to_string())
        });
        let child = dies_before_its_child(|| {
            let hub = ManuallyDrop::new(hub(2, WAIT));
            writeln!(says, "{}", hub.meeting(0)).unwrap();
            joined.read_exact(&mut [0]).unwrap();
        });
        let (address, ended) = rank.join().unwrap();
        TcpListener::bind(address).unwrap();
        assert!(ended.starts_with("the rendezvous broke: "), "{ended}");
        drop(child);
    }

    #[test]
    fn a_hub_that_is_dropped_in_a_forked_child_goes_on_in_its_parent() {
        let hub = hub(1, WAIT);
        let mut hub = Some(hub);
        assert!(in_child(|| drop(hub.take())));
        let hub = hub.unwrap();
        let mut place = Remote::join(hub.meeting(0), WAIT).unwrap();
        assert_eq!(place.all_gather(b"me", WAIT).unwrap(), [b"me"]);
        place.leave();
    }

    #[test]
    fn a_rank_that_dies_fails_the_others_at_once() {
        let hub = hub(2, WAIT);
        let mut here = Remote::join(hub.meeting(0), WAIT).unwrap();
        drop(Remote::join(hub.meeting(1), WAIT).unwrap());
        assert_eq!(here.barrier(WAIT).unwrap_err().to_string(), "rank 1 left");
    }

    #[test]
    fn the_hub_knows_the_first_cause_before_its_consequence_can_be_seen() {
        for round in 0..20 {
            let hub = hub(3, WAIT);
            let [mut first, mut second, mut third] =
                [0, 1, 2].map(|rank| Remote::join(hub.meeting(rank), WAIT).unwrap());
            let waits = thread::spawn(move || {
                let ended = third.barrier(WAIT).unwrap_err();
                assert_eq!(ended.to_string(), "rank 0: the cause");
                third.give_up(&ended)
            });
            assert!(first.give_up(&GroupError::Contract("the cause".to_owned())));
            drop(first);
            assert!(second.give_up(&GroupError::Contract("the peer is gone".to_owned())));
            assert!(waits.join().unwrap());
            assert_eq!(hub.causes(), ["rank 0: the cause", "rank 1: the peer is gone"], "{round}");
        }
    }

    #[test]
    fn mail_and_news_of_a_rank_that_waits_in_a_round_are_passed_on() {
        let hub = hub(3, WAIT);
        let [mut first, second, third] =
            [0, 1, 2].map(|rank| Remote::join(hub.meeting(rank), WAIT).unwrap());
        let round = first.begin_round(b"part", WAIT).unwrap();
        first.mail(1, b"letter").unwrap();
        first.abort().unwrap();
        let deadline = Instant::now() + WAIT / 2;
        let wait_for = |arrived: &dyn Fn() -> bool| {
            while !arrived() {
                assert!(Instant::now() < deadline, "the hub passes nothing on");
                thread::sleep(Duration::from_millis(1));
            }
        };
        wait_for(&|| second.next_mail() == Some((0, b"letter".to_vec())));
        wait_for(&|| third.next_news() == Some(News::Aborted { rank: 0 }));
        drop(first);
        wait_for(&|| matches!(third.next_news(), Some(News::Lost { rank: 0, .. })));
        drop((round, second, third));
    }

    #[test]
    fn the_hub_names_the_ranks_that_do_not_come() {
        let hub = hub(3, Duration::from_millis(50));
        let mut here = Remote::join(hub.meeting(1), WAIT).unwrap();
        let ended = here.barrier(WAIT);
        assert!(
            matches!(&ended, Err(GroupError::Timeout { peers, .. }) if *peers == [0, 2]),
            "{ended:?}"
        );
    }

    #[test]
    fn a_rank_with_a_shorter_wait_learns_which_ranks_are_missing_and_may_try_again() {
        let hub = hub(2, WAIT);
        let [mut first, mut second] =
            [0, 1].map(|rank| Remote::join(hub.meeting(rank), WAIT).unwrap());
        let why = first.all_gather(b"early", Duration::from_millis(50)).unwrap_err().to_string();
        assert!(why.contains("ranks [1]"), "{why}");
        let other = thread::spawn(move || (second.all_gather(b"other", WAIT).unwrap(), second));
        let all = first.all_gather(b"again", WAIT).unwrap();
        assert_eq!(all, [b"again", b"other"]);
        let (theirs, second) = other.join().unwrap();
        assert_eq!(theirs, all);
        drop((first, second));
    }

    #[test]
    fn a_round_that_a_rank_has_left_without_names_it() {
        let hub = hub(3, WAIT);
        let [mut first, mut second, mut third] =
            [0, 1, 2].map(|rank| Remote::join(hub.meeting(rank), WAIT).unwrap());
        // What it gave before it left counts.
        let last = second.begin_round(b"last", WAIT).unwrap();
        second.farewell();
        let one = first.begin_round(b"one", WAIT).unwrap();
        let all = third.all_gather(b"two", WAIT).unwrap();
        assert_eq!(all, [&b"one"[..], b"last", b"two"]);
        assert_eq!(one.wait().unwrap(), all);
        drop(last);
        for place in [&mut first, &mut third] {
            let ended = place.barrier(WAIT);
            assert!(matches!(ended, Err(GroupError::PeerLost { rank: 1, .. })), "{ended:?}");
        }
        for place in [first, second, third] {
            place.leave();
        }
    }

    #[test]
    fn the_answer_of_a_round_that_is_not_waited_for_is_not_taken_for_another_rounds() {
        let hub = hub(2, WAIT);
        let [mut first, mut second] =
            [0, 1].map(|rank| Remote::join(hub.meeting(rank), WAIT).unwrap());
        for came in [false, true] {
            let round = first.begin_round(b"left", WAIT).unwrap();
            if came {
                assert_eq!(second.all_gather(b"other", WAIT).unwrap(), [&b"left"[..], b"other"]);
                drop(round);
            } else {
                drop(round);
                assert_eq!(second.all_gather(b"other", WAIT).unwrap(), [&b"left"[..], b"other"]);
            }
            let round = first.begin_round(b"next", WAIT).unwrap();
            assert_eq!(second.all_gather(b"last", WAIT).unwrap(), [b"next", b"last"]);
            assert_eq!(round.wait().unwrap(), [b"next", b"last"]);
        }
        drop((first, second));
    }

    #[test]
    fn a_rank_that_is_stuck_later_has_its_whole_time() {
        let hub = hub(3, WAIT);
        let [first, second, third] =
            [0, 1, 2].map(|rank| Remote::join(hub.meeting(rank), WAIT).unwrap());
        let within = Duration::from_millis(400);
        let moves = first.stuck(within);
        thread::sleep(within / 2);
        let begun = Instant::now();
        let stays = second.stuck(within);
        drop(moves);
        let news = loop {
            if let Some(news) = third.next_news() {
                break news;
            }
            assert!(begun.elapsed() < WAIT, "the hub does not decide");
            thread::sleep(Duration::from_millis(1));
        };
        assert!(begun.elapsed() >= within, "{:?}", begun.elapsed());
        assert_eq!(news, News::Silent { ranks: vec![0, 2] });
        drop(stays);
        for place in [first, second, third] {
            place.leave();
        }
    }

    #[test]
    fn a_rank_moves_only_when_none_of_its_waits_is_stuck() {
        let hub = hub(2, WAIT);
        let [first, second] = [0, 1].map(|rank| Remote::join(hub.meeting(rank), WAIT).unwrap());
        let within = Duration::from_millis(400);
        let begun = Instant::now();
        let moves = first.stuck(within);
        thread::sleep(within / 2);
        let stays = first.stuck(within);
        drop(moves);
        while second.next_news().is_none() {
            assert!(begun.elapsed() < WAIT, "the hub does not decide");
            thread::sleep(Duration::from_millis(1));
        }
        assert!(begun.elapsed() >= within / 2 * 3, "{:?}", begun.elapsed());
        drop(stays);
        for place in [first, second] {
            place.leave();
        }
    }

    /// The connection of rank 1 of `size` ranks, which has greeted.
    fn second_of(size: u32, hub: &Hub) -> TcpStream {
        let mut stream = TcpStream::connect(hub.meeting(0).address).unwrap();
        let Meeting { secret, .. } = hub.meeting(1);
        Hello { secret, rank: 1, size }.write(&mut stream).unwrap();
        assert_eq!(Frame::read(&mut stream).unwrap(), Frame::Welcome);
        stream
    }

    #[test]
    fn a_rank_whose_connection_breaks_before_its_welcome_is_lost() {
        let hub = hub(2, WAIT);
        let mut first = Remote::join(hub.meeting(0), WAIT).unwrap();
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let mut second = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let Meeting { secret, .. } = hub.meeting(1);
        Hello { secret, rank: 1, size: 2 }.write(&mut second).unwrap();
        let (stream, _) = listener.accept().unwrap();
        // As after a reset: the greeting can be read, and nothing can be sent.
        stream.shutdown(Shutdown::Write).unwrap();
        receive(&hub.shared.strangers.add(Private::new(stream)), &hub.shared);
        assert_eq!(first.barrier(WAIT).unwrap_err().to_string(), "rank 1 left");
        assert!(matches!(first.next_news(), Some(News::Lost { rank: 1, .. })));
    }

    #[test]
    fn ranks_of_a_failed_group_meet_again_when_all_that_had_come_have_left() {
        // One gives up, one dies, one does not notice for a while, and one never came.
        let hub = hub(4, WAIT);
        let [mut first, second, mut third] =
            [0, 1, 2].map(|rank| Remote::join(hub.meeting(rank), WAIT).unwrap());
        assert!(first.give_up(&GroupError::Usage("the cause".to_owned())));
        drop(second);
        let again = [0, 1].map(|rank| {
            let meeting = hub.meeting(rank);
            thread::spawn(move || meet_and_part(meeting))
        });
        let begun = Instant::now();
        while hub.refused() < 2 {
            assert!(begun.elapsed() < WAIT / 2, "they do not come again");
            assert!(!again.iter().any(JoinHandle::is_finished));
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(third.barrier(WAIT).unwrap_err().to_string(), "rank 0: the cause");
        let old = Arc::clone(&hub.shared.group());
        drop(third);
        while Arc::ptr_eq(&old, &hub.shared.group()) {
            assert!(begun.elapsed() < WAIT / 2, "the group is not over");
            thread::sleep(Duration::from_millis(1));
        }
        let rest = [2, 3].map(|rank| {
            let meeting = hub.meeting(rank);
            thread::spawn(move || meet_and_part(meeting))
        });
        let all = again.into_iter().chain(rest).map(|rank| rank.join().unwrap());
        drop((all.collect::<Vec<_>>(), first));
    }

    #[test]
    fn a_rank_that_comes_again_in_vain_names_those_that_have_not_left() {
        let hub = hub(3, WAIT);
        let [first, mut second, third] =
            [0, 1, 2].map(|rank| Remote::join(hub.meeting(rank), WAIT).unwrap());
        part(&mut second);
        let again = Remote::join(hub.meeting(1), Duration::from_millis(200));
        let Err(GroupError::Timeout { peers, awaited, .. }) = &again else { panic!("{again:?}") };
        assert_eq!(
            (&peers[..], &**awaited),
            (&[0, 2][..], "ranks [0, 2] to leave the previous group")
        );
        drop((first, second, third));
    }

    #[test]
    fn a_rank_that_comes_after_its_group_has_failed_learns_why() {
        let hub = hub(2, WAIT);
        let mut first = Remote::join(hub.meeting(0), WAIT).unwrap();
        assert!(first.give_up(&GroupError::Usage("the cause".to_owned())));
        drop(first);
        let mut second = Remote::join(hub.meeting(1), WAIT).unwrap();
        assert_eq!(second.barrier(WAIT).unwrap_err().to_string(), "rank 0: the cause");
    }

    #[test]
    fn a_rank_that_reads_nothing_is_lost_and_holds_up_no_other() {
        let hub = hub(2, WAIT);
        let _reads_nothing = second_of(2, &hub);
        let mut first = Remote::join(hub.meeting(0), WAIT).unwrap();
        let begun = Instant::now();
        // More than sockets buffer.
        for _ in 0..400 {
            first.mail(1, &[0; PART_BYTES_MAX]).unwrap();
            assert!(begun.elapsed() < WAIT / 2, "each letter is waited for");
        }
        while !matches!(first.next_news(), Some(News::Lost { rank: 1, .. })) {
            assert!(begun.elapsed() < WAIT / 2, "the hub goes on with it");
            thread::sleep(Duration::from_millis(1));
        }
        first.leave();
    }

    /// Rank 1 gives its part of a round whose answer it does not read, and the other ranks give theirs.
    fn unread_round(
        mut reads_late: &TcpStream,
        others: &mut [Remote],
        round: u32,
    ) -> Result<Vec<Vec<u8>>, GroupError> {
        let part = Frame::Part { round, within_ms: u32::MAX, bytes: PART.to_vec() };
        // The hub may have closed the connection.
        let _ = part.write(&mut reads_late);
        let rounds: Vec<_> = others.iter_mut().map(|rank| rank.begin_round(PART, WAIT)).collect();
        let answers = rounds.into_iter().map(|round| round?.wait());
        answers.collect::<Result<Vec<_>, _>>().map(|mut all| all.remove(0))
    }

    const PART: &[u8] = &[7; PART_BYTES_MAX];

    #[test]
    fn a_rank_that_reads_its_answers_late_ends_no_round() {
        // As many rounds as a rank may wait for: more bytes than sockets buffer, and than an outbox may have of one rank's own.
        let rounds = 0..u32::try_from(PARTS_MAX).unwrap();
        let hub = hub(4, 10 * WAIT);
        let mut reads_late = second_of(4, &hub);
        let mut others = [0, 2, 3].map(|rank| Remote::join(hub.meeting(rank), WAIT).unwrap());
        let all = vec![PART.to_vec(); 4];
        for round in rounds.clone() {
            assert!(unread_round(&reads_late, &mut others, round).unwrap() == all, "{round}");
        }
        for round in rounds {
            let answer = Frame::read(&mut reads_late).unwrap();
            assert!(answer == Frame::All { round, parts: all.clone() }, "{round}");
        }
        others.into_iter().for_each(Remote::leave);
    }

    #[test]
    fn a_rank_that_reads_no_answers_is_lost() {
        let hub = hub(2, WAIT);
        let reads_nothing = second_of(2, &hub);
        let mut first = [Remote::join(hub.meeting(0), WAIT).unwrap()];
        // More than sockets buffer.
        let ended =
            (0..400).find_map(|round| unread_round(&reads_nothing, &mut first, round).err());
        // By its round, or by the news that comes before it.
        let said = ended.expect("its answers are kept").to_string();
        assert!(["rank 1 left", "rank 1 is lost: it has left"].contains(&&*said), "{said}");
    }

    #[test]
    fn a_rank_that_reports_failures_without_end_is_heard_once() {
        let hub = hub(2, WAIT);
        let mut endless = second_of(2, &hub);
        let mut first = Remote::join(hub.meeting(0), WAIT).unwrap();
        let ended = (0..10_000).any(|number| {
            let cause = format!("rank 1: {number} {}", "and so on ".repeat(400));
            Frame::Failed(cause).write(&mut endless).is_err()
        });
        assert!(ended, "it is heard without end");
        assert!(hub.causes().iter().map(String::len).sum::<usize>() <= PART_BYTES_MAX);
        answered(&mut first.ask_for_echo());
        let news: Vec<_> = std::iter::from_fn(|| first.next_news()).collect();
        assert!(matches!(news[..], [News::Lost { rank: 1, .. }]), "{} news", news.len());
        first.leave();
    }

    fn answered(echo: &mut Awaited) {
        let begun = Instant::now();
        while !echo.is_over() {
            assert!(begun.elapsed() < WAIT, "the hub does not answer");
            thread::yield_now();
        }
    }

    #[test]
    fn a_rank_that_sends_letters_without_end_is_lost_to_one_that_reads_none() {
        let hub = hub(2, WAIT);
        let mut endless = second_of(2, &hub);
        let mut first = Remote::join(hub.meeting(0), WAIT).unwrap();
        // 16 MiB, of which the hub never keeps much: it has passed on all before the next ones.
        for number in 0..16 {
            for _ in 0..16 {
                let bytes = vec![0; PART_BYTES_MAX];
                Frame::Mail { peer: 0, bytes }.write(&mut endless).unwrap();
            }
            Frame::Echo(number).write(&mut endless).unwrap();
            assert_eq!(Frame::read(&mut endless).unwrap(), Frame::Echo(number));
            answered(&mut first.ask_for_echo());
        }
        let news = first.next_news();
        assert!(matches!(news, Some(News::Lost { rank: 1, .. })), "{news:?}");
        assert_eq!(first.next_news(), None);
        let kept: usize =
            std::iter::from_fn(|| first.next_mail()).map(|(_, mail)| mail.len()).sum();
        assert!(kept > 0 && kept <= 8 << 20, "{kept} bytes are kept");
        first.leave();
    }

    #[test]
    fn a_rank_that_loses_ranks_without_end_is_lost() {
        let hub = hub(2, WAIT);
        let mut endless = second_of(2, &hub);
        let mut first = Remote::join(hub.meeting(0), WAIT).unwrap();
        for number in 0..10 {
            let lost = News::Lost { rank: 0, why: number.to_string() };
            // The hub may have closed the connection before the last one.
            let _ = Frame::News(lost).write(&mut endless);
        }
        let why = first.barrier(WAIT).unwrap_err().to_string();
        assert_eq!(why, "rank 1 reports more lost ranks than there are");
        let (begun, mut passed_on) = (Instant::now(), 0);
        loop {
            match first.next_news() {
                Some(News::Lost { rank: 1, .. }) => break,
                news => passed_on += usize::from(news.is_some()),
            }
            assert!(begun.elapsed() < WAIT / 2, "the hub goes on with it");
            thread::yield_now();
        }
        assert!(passed_on <= 2, "{passed_on} pieces of news");
        first.leave();
    }

    #[test]
    fn a_rank_that_waits_for_rounds_without_end_is_lost() {
        let hub = hub(2, WAIT);
        let mut endless = second_of(2, &hub);
        let mut first = Remote::join(hub.meeting(0), WAIT).unwrap();
        // One is in progress.
        for round in 0..u32::try_from(PARTS_MAX + 2).unwrap() {
            let part = Frame::Part { round, within_ms: u32::MAX, bytes: vec![] };
            // The hub may have closed the connection before the last one.
            let _ = part.write(&mut endless);
        }
        let begun = Instant::now();
        while !matches!(first.next_news(), Some(News::Lost { rank: 1, .. })) {
            assert!(begun.elapsed() < WAIT / 2, "its parts are kept");
            thread::sleep(Duration::from_millis(1));
        }
        let why = first.barrier(WAIT).unwrap_err().to_string();
        assert_eq!(why, "rank 1 waits for more than 64 rounds");
    }

    #[test]
    fn no_debug_text_has_a_secret() {
        const SECRET: u64 = 0x1234_5678_9abc_def0;
        const HANDLE: [u8; 16] = [167; 16];
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let hub = Hub::with_secret(&[loopback], 2, WAIT, SECRET).unwrap();
        let [mut first, second] = [0, 1].map(|rank| Remote::join(hub.meeting(rank), WAIT).unwrap());
        let round = first.begin_round(&HANDLE, WAIT).unwrap();
        first.mail(1, &HANDLE).unwrap();
        let begun = Instant::now();
        // The hub has read the part before.
        while !second.has_mail() {
            assert!(begun.elapsed() < WAIT, "no mail comes");
            thread::yield_now();
        }
        let meeting = hub.meeting(0);
        let wrong: Result<Meeting, _> = meeting.to_string().replace('/', ";").parse();
        let handle = Handle([167; HANDLE_MAX_BYTES]);
        let start =
            Start::from_variables(|name| (name == MEETING_VARIABLE).then(|| meeting.to_string()));
        let text = format!("{start:?} {first:?} {second:?} {hub:?} {handle:?} {wrong:?}");
        let numbers = [SECRET.to_string(), format!("{SECRET:x}"), "167, 167".to_owned()];
        let found = numbers.iter().find(|number| text.contains(number.as_str()));
        assert_eq!(found, None, "{text}");
        drop(round);
        [first, second].into_iter().for_each(Remote::leave);
    }

    #[test]
    fn a_rank_that_sends_a_frame_that_only_the_hub_may_send_is_lost() {
        let hub = hub(2, WAIT);
        let mut wrong = second_of(2, &hub);
        let first = Remote::join(hub.meeting(0), WAIT).unwrap();
        Frame::Welcome.write(&mut wrong).unwrap();
        let begun = Instant::now();
        while !matches!(first.next_news(), Some(News::Lost { rank: 1, .. })) {
            assert!(begun.elapsed() < WAIT / 2, "no rank gets the news");
            thread::sleep(Duration::from_millis(1));
        }
        first.leave();
    }
}
