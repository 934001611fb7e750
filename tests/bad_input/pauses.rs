//! A stopped peer receives no data and answers nothing: it is waited for up to IRONRAIL_PEER_TIMEOUT_MS, and no longer.

use harness::Test;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use net_abi::ResultCode;

use crate::support::calls::{Answer, Buffer, Net, Object};
use crate::support::link::{Link, from_text, to_text, wait};
use crate::support::say;
use crate::support::stage::{Part, play};
use crate::{BOUND, DEADLINE, SETTINGS, SLACK, open};

/// Long enough that four of them fill every queue of the kernel.
const LONG: usize = 8 << 20;
const OUTSTANDING: usize = 4;
/// Much less than the bound in the first test, and twice the bound in the second.
const PAUSE: Duration = Duration::from_secs(4);
/// Calls by which connect and accept have begun to wait.
const CALLS: u32 = 100;

/// Long messages in one direction, with a full window.
struct Stream {
    net: Net,
    comm: Object,
    buffer: Buffer,
    region: Object,
    sends: bool,
    requests: VecDeque<Object>,
    posted: usize,
    done: usize,
}

impl Stream {
    fn new(net: Net, comm: Object, sends: bool) -> Self {
        let buffer = Buffer::new(OUTSTANDING * LONG);
        let region = net.register(comm, buffer).expect("regMr");
        Self { net, comm, buffer, region, sends, requests: VecDeque::new(), posted: 0, done: 0 }
    }

    /// An error ends the test.
    fn step(&mut self) {
        self.try_step().expect("the peer lives");
    }

    /// One or two calls.
    fn try_step(&mut self) -> Answer<()> {
        if self.requests.len() < OUTSTANDING {
            let at = self.buffer.address() + self.posted % OUTSTANDING * LONG;
            let request = if self.sends {
                self.net.isend(self.comm, at, LONG, 0, self.region)
            } else {
                self.net.irecv(self.comm, at, LONG, 0, self.region)
            };
            let request = request?;
            self.posted += usize::from(request.is_some());
            self.requests.extend(request);
        }
        if let Some(oldest) = self.requests.front()
            && self.net.test(*oldest)?.is_some()
        {
            self.requests.pop_front();
            self.done += 1;
        }
        std::thread::yield_now();
        Ok(())
    }

    fn until_done(&mut self, count: usize) {
        let start = Instant::now();
        while self.done < count {
            self.step();
            assert!(start.elapsed() < SLACK, "{} of {count} messages are through", self.done);
        }
    }
}

/// Receives messages until it is killed.
fn receives(part: &Part, net: Net, context: Object) {
    let link = Link::to_peer(net, context, &mut { part });
    let mut stream = Stream::new(net, link.receive, false);
    part.say("ready");
    loop {
        stream.step();
    }
}

fn a_peer_that_is_stopped_for_less_than_the_bound_is_waited_for() {
    let settings = [SETTINGS, &[("PEER_TIMEOUT_MS", "60000")]].concat();
    play(&settings, BOUND, |part| {
        let (net, context) = open(part);
        if part.name == "receiver" {
            return receives(part, net, context);
        }
        let mut peer = part.cast("receiver", &[]);
        let link = Link::to_peer(net, context, &mut peer);
        let mut stream = Stream::new(net, link.send, true);
        assert_eq!(peer.receive(), "ready");
        stream.until_done(OUTSTANDING);
        peer.pause();
        let (mut done, mut since) = (stream.done, Instant::now());
        while since.elapsed() < PAUSE {
            stream.step();
            if stream.done > done {
                (done, since) = (stream.done, Instant::now());
            }
        }
        say(&format!("{done} messages, then nothing for {PAUSE:?}"));
        assert!(!stream.requests.is_empty(), "a message is in the middle");
        peer.resume();
        stream.until_done(done + 2 * OUTSTANDING);
    });
}

fn a_peer_that_is_stopped_for_longer_is_an_error_that_says_so() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        if part.name == "receiver" {
            return receives(part, net, context);
        }
        let mut peer = part.cast("receiver", &[]);
        let link = Link::to_peer(net, context, &mut peer);
        let mut stream = Stream::new(net, link.send, true);
        assert_eq!(peer.receive(), "ready");
        stream.until_done(OUTSTANDING);
        peer.pause();
        let start = Instant::now();
        let failure = loop {
            assert!(start.elapsed() < 2 * SLACK, "no error comes");
            if let Err(failure) = stream.try_step() {
                break failure;
            }
        };
        assert_eq!(failure.code, ResultCode::REMOTE_ERROR, "{failure:?}");
        let peer_name = format!("sending to process {} on ", peer.process());
        let said = failure.errors()[0];
        assert!(said.contains(&peer_name) && said.contains("IRONRAIL_PEER_TIMEOUT_MS"), "{said}");
        peer.kill();
        net.finalize(context).expect("finalize");
    });
}

/// As by Slurm, which suspends jobs. The time does not count as a wait.
fn a_process_that_is_stopped_for_longer_than_connect_may_take_still_connects() {
    play(SETTINGS, BOUND, |part| {
        let (net, context) = open(part);
        let (handle, listener) = net.listen(context, 0).expect("listen");
        let (mut send, mut receive) = (None, None);
        if part.name == "stopped" {
            part.say(&to_text(&handle));
            let mut theirs = from_text(&part.receive());
            let mut calls = 0;
            wait("the connections", || {
                send = send.or_else(|| net.connect(context, 0, &mut theirs).expect("connect"));
                receive = receive.or_else(|| net.accept(listener).expect("accept"));
                calls += 1;
                if calls == CALLS {
                    part.say("waits");
                }
                send.is_some() && receive.is_some()
            });
            part.say("connected");
            part.receive();
            return;
        }
        let mut peer = part.cast("stopped", &[]);
        peer.say(&to_text(&handle));
        let mut theirs = from_text(&peer.receive());
        assert_eq!(peer.receive(), "waits");
        peer.pause();
        std::thread::sleep(DEADLINE + PAUSE);
        peer.resume();
        wait("the connections", || {
            send = send.or_else(|| net.connect(context, 0, &mut theirs).expect("connect"));
            receive = receive.or_else(|| net.accept(listener).expect("accept"));
            send.is_some() && receive.is_some()
        });
        assert_eq!(peer.receive(), "connected");
        peer.say("end");
        peer.finish();
    });
}

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(a_process_that_is_stopped_for_longer_than_connect_may_take_still_connects),
        Test::new(a_peer_that_is_stopped_for_less_than_the_bound_is_waited_for),
        Test::new(a_peer_that_is_stopped_for_longer_is_an_error_that_says_so),
    ]
}
