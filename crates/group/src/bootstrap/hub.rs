//! Where the ranks of a group meet over TCP. The launcher runs one; idle, it costs no CPU.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::frame::{Frame, Hello};
use super::random;
use super::remote::Meeting;
use super::rounds::Rounds;
use crate::error::GroupError;

/// Serves one group until dropped. A thread per rank: they sleep in `read` while ranks compute.
#[derive(Debug)]
pub struct Hub {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    rounds: Rounds,
    size: usize,
    secret: u64,
    wait: Duration,
    closing: AtomicBool,
    /// Connections that have not greeted yet, and those turned away.
    strangers: AtomicUsize,
    refused: AtomicUsize,
}

impl Hub {
    /// Listens on `address` (port 0: any) for `size` ranks; a round may take `wait`.
    pub fn start(address: SocketAddr, size: usize, wait: Duration) -> Result<Self, GroupError> {
        let system = |what| move |error| GroupError::System { what, error };
        let listener = TcpListener::bind(address).map_err(system("listening for ranks"))?;
        let address = listener.local_addr().map_err(system("listening for ranks"))?;
        let shared = Arc::new(Shared {
            rounds: Rounds::new(size),
            size,
            secret: random(),
            wait,
            closing: AtomicBool::new(false),
            strangers: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
        });
        let ours = Arc::clone(&shared);
        let accept = move || accept(&listener, &ours);
        let acceptor = thread::Builder::new().name("hub".to_owned()).spawn(accept);
        let acceptor = Some(acceptor.map_err(system("starting a thread"))?);
        Ok(Self { shared, address, acceptor })
    }

    /// What `rank` needs to come here.
    pub fn meeting(&self, rank: usize) -> Meeting {
        Meeting { address: self.address, secret: self.shared.secret, rank, size: self.shared.size }
    }

    /// Ends every wait of every rank, with this reason.
    pub fn fail(&self, why: String) {
        self.shared.rounds.fail(why);
    }

    /// Why ranks gave up, the first cause first.
    pub fn causes(&self) -> Vec<String> {
        self.shared.rounds.causes()
    }

    /// Connections that were turned away.
    pub fn refused(&self) -> usize {
        self.shared.refused.load(Ordering::Relaxed)
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        self.fail("the launcher left".to_owned());
        // accept(2) returns only for a connection, so make one.
        let woken = TcpStream::connect_timeout(&self.address, Duration::from_secs(1)).is_ok();
        if let Some(acceptor) = self.acceptor.take()
            && woken
        {
            let _ = acceptor.join();
        }
    }
}

/// Connections that may be waiting for their greeting at once.
const STRANGERS_MAX: usize = 64;
/// How long a greeting may take.
const GREETING: Duration = Duration::from_secs(5);

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.closing.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else {
            thread::sleep(Duration::from_millis(10)); // Out of descriptors, most likely.
            continue;
        };
        if shared.strangers.fetch_add(1, Ordering::Relaxed) >= STRANGERS_MAX {
            shared.strangers.fetch_sub(1, Ordering::Relaxed);
            shared.refused.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let ours = Arc::clone(shared);
        let serve = move || {
            let greeted = greet(&stream, &ours);
            ours.strangers.fetch_sub(1, Ordering::Relaxed);
            match greeted {
                Ok(rank) => serve(stream, &ours, rank),
                Err(error) => {
                    ours.refused.fetch_add(1, Ordering::Relaxed);
                    log::debug!("a connection to the rendezvous was refused: {error}");
                }
            }
        };
        if thread::Builder::new().spawn(serve).is_err() {
            shared.strangers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn greet(mut stream: &TcpStream, shared: &Shared) -> io::Result<usize> {
    stream.set_read_timeout(Some(GREETING))?;
    stream.set_nodelay(true)?;
    let refuse = |why| io::Error::new(io::ErrorKind::InvalidData, why);
    let hello = Hello::read(&mut stream)?;
    let rank = hello.rank as usize;
    if hello.secret != shared.secret || hello.size as usize != shared.size || rank >= shared.size {
        return Err(refuse("of another group"));
    }
    if !shared.rounds.enter(rank) {
        return Err(refuse("a rank that is here already"));
    }
    stream.set_read_timeout(None)?;
    Ok(rank)
}

/// Stands for `rank` in the rounds, until it leaves.
fn serve(mut stream: TcpStream, shared: &Shared, rank: usize) {
    let mut gone = false;
    loop {
        let part = match Frame::read(&mut stream) {
            Ok(Frame::Part(part)) => part,
            Ok(Frame::Bye) => return,
            Ok(Frame::Failed(cause)) => {
                gone = true;
                shared.rounds.give_up(cause);
                if Frame::Bye.write(&mut stream).is_err() {
                    return;
                }
                continue;
            }
            Err(_) if gone => return,
            Ok(_) => return shared.rounds.fail(format!("rank {rank} sent what only the hub may")),
            Err(_) => return shared.rounds.fail(format!("rank {rank} left")),
        };
        let answer = match shared.rounds.give(rank, part, shared.wait) {
            Ok(all) => Frame::All(all.to_vec()),
            Err(error) => Frame::Failed(error.to_string()),
        };
        if answer.write(&mut stream).is_err() {
            return shared.rounds.fail(format!("rank {rank} left"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::super::{Bootstrap, Remote};
    use super::*;

    const WAIT: Duration = Duration::from_secs(10);

    fn hub(size: usize, wait: Duration) -> Hub {
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
    fn the_hub_names_who_does_not_come() {
        let hub = hub(3, Duration::from_millis(50));
        let mut here = Remote::join(hub.meeting(1), WAIT).unwrap();
        let why = here.barrier(WAIT).unwrap_err().to_string();
        assert!(why.contains("ranks [0, 2]"), "{why}");
    }

    #[test]
    fn strangers_are_turned_away_and_the_group_goes_on() {
        let hub = hub(1, WAIT);
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n........"[..], &[0xFF; 64], b""] {
            let mut stream = TcpStream::connect(hub.address).unwrap();
            // The hub may have turned it away before the last byte was written.
            let _ = stream.write_all(garbage);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read(&mut [0; 8]);
        }
        let mut wrong = hub.meeting(0);
        wrong.secret ^= 1;
        assert!(Remote::join(wrong, WAIT).and_then(|mut place| place.barrier(WAIT)).is_err());
        let mut place = Remote::join(hub.meeting(0), WAIT).unwrap();
        assert_eq!(place.all_gather(b"me", WAIT).unwrap(), [b"me".to_vec()]);
        assert!(hub.refused() >= 4);
    }
}
