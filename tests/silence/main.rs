//! A process that is stopped right after `test` reported done: the other end needs nothing more from it.
//!
//! NCCL does not call a plugin while it has no outstanding request, perhaps for hours. So what was reported done must not be in a queue of
//! the plugin or the provider that only the next call empties. `tests/vfabric` shows the same over a provider that delays everything until
//! then.

#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use support::calls::{Net, Object};
use support::link::{Link, wait};
use support::stage::{Part, play};
use support::{say, sockets};

/// How long a play may take on a busy machine.
const BOUND: Duration = Duration::from_secs(240);
/// Connections that share the sockets, and messages on each: more than sockets hold.
const LINKS: usize = 8;
const MESSAGES: usize = 40;
/// Short enough that software buffers them behind a full socket, and completes them. Of consecutive ones many travel in one packet.
const LENGTHS: [usize; 8] = [8, 8 << 10, 8, 13, 16, 4 << 10, 64, 8];
/// Bytes between two messages in a buffer.
const STRIDE: usize = 8 << 10;
/// Every 53rd message stops its sender; so does the last.
const STOPS: usize = 53;
/// Polls in which adverts are sent, or in which a message that is done would be reported.
const POLLS: usize = 1000;
/// Bursts after each of which the receiver stops, and messages of each on every connection.
const ROUNDS: usize = 12;
const BURST: usize = 5;

#[test]
fn a_message_is_there_though_its_sender_is_stopped_over_net() {
    play(&settings("net"), BOUND, |part| {
        sender_is_stopped(part);
    });
}

#[test]
fn a_message_is_there_though_its_sender_is_stopped_over_rxm() {
    play(&settings("tcp;ofi_rxm"), BOUND, |part| {
        sender_is_stopped(part);
    });
}

#[test]
fn a_send_completes_though_its_receiver_is_stopped_over_net() {
    play(&settings("net"), BOUND, |part| {
        receiver_is_stopped(part);
    });
}

#[test]
fn a_send_completes_though_its_receiver_is_stopped_over_rxm() {
    play(&settings("tcp;ofi_rxm"), BOUND, |part| {
        receiver_is_stopped(part);
    });
}

/// With several rails a send is done once its receiver has said so, and a receiver that is stopped has no keeper either.
#[test]
fn a_send_over_two_rails_completes_though_its_receiver_is_stopped_over_net() {
    play(&two_rails("net"), BOUND, |part| {
        receiver_is_stopped(part);
    });
}

#[test]
fn a_send_over_two_rails_completes_though_its_receiver_is_stopped_over_rxm() {
    play(&two_rails("tcp;ofi_rxm"), BOUND, |part| {
        receiver_is_stopped(part);
    });
}

fn two_rails(provider: &'static str) -> [(&'static str, &'static str); 2] {
    [("PROVIDER", provider), ("RAILS", "127.0.0.1,127.0.0.2")]
}

/// One rail.
fn settings(provider: &'static str) -> [(&'static str, &'static str); 2] {
    [("PROVIDER", provider), ("RAILS", "127.0.0.1")]
}

/// As much as possible is sent before the receiver's caller reads anything, into small sockets. Then the receiver reads, and the sender
/// stops each time that a message is reported done.
fn sender_is_stopped(part: &Part) {
    let net = Net::open(&part.plugin());
    let context = net.init().expect("init");
    if part.name == "sender" {
        return sends(part, net, context);
    }
    let mut sender = part.cast("sender", &[]);
    let links = (0..LINKS).map(|_| Link::to_peer(net, context, &mut sender));
    let mut links: Vec<_> = links.collect();
    meet(&mut links);
    let post = |(link, message): (usize, usize)| {
        let Link { receive, input, .. } = &links[link];
        let address = input.buffer.address() + message * STRIDE;
        let request = net.irecv(*receive, address, STRIDE, 0, input.region).expect("irecv");
        Message { link, message, request: request.expect("the window has room"), done: false }
    };
    let mut messages: Vec<_> = all().map(post).collect();
    for _ in 0..POLLS {
        assert_eq!(net.test(messages[0].request), Ok(None), "nothing was sent yet");
    }
    // The acknowledgements of the sender find full sockets too: it reads nothing while it is stopped.
    sockets::squeeze();
    sender.say("posted");
    assert_eq!(sender.receive(), "sent");
    sender.say("reading");
    loop {
        let mut said = None;
        wait("a word of the sender's", || {
            // In order on each connection, as NCCL tests.
            for link in 0..LINKS {
                let next = messages.iter_mut().filter(|one| one.link == link).find(|one| !one.done);
                if let Some(one) = next {
                    one.test(net, &links);
                }
            }
            said = sender.try_receive();
            said.is_some()
        });
        let Ok(stop) = said.expect("just received").parse::<usize>() else { break };
        sender.wait_for_stop();
        let until = &mut messages[..=stop];
        wait("a message that was reported done to its sender", || {
            until.iter_mut().filter(|one| !one.done).for_each(|one| one.test(net, &links));
            until.iter().all(|one| one.done)
        });
        sender.resume();
    }
    close(net, context, links);
    sender.finish();
}

/// The provider connects its rails with the first message. A few short ones leave the sockets small.
fn meet(links: &mut [Link]) {
    for link in links {
        link.exchange(1, 8).expect("the link works");
    }
    sockets::keep_small();
}

/// One receive, and whether it is done.
struct Message {
    link: usize,
    message: usize,
    request: Object,
    done: bool,
}

impl Message {
    fn test(&mut self, net: Net, links: &[Link]) {
        let Some(len) = net.test(self.request).expect("a receive") else { return };
        assert_eq!(len, length(self.message));
        let bytes = links[self.link].input.buffer.read(self.message * STRIDE, len);
        assert!(
            bytes == vec![mark(self.link, self.message); len],
            "message {} is damaged",
            self.message
        );
        self.done = true;
    }
}

/// Messages of all connections alternately, in order on each connection.
fn all() -> impl Iterator<Item = (usize, usize)> {
    (0..MESSAGES).flat_map(|message| (0..LINKS).map(move |link| (link, message)))
}

/// The messages of a burst on every connection.
fn bursts(links: &[Link]) -> impl Iterator<Item = (&Link, usize)> {
    links.iter().flat_map(|link| (0..BURST).map(move |message| (link, message)))
}

fn length(message: usize) -> usize {
    LENGTHS[message % LENGTHS.len()]
}

fn mark(link: usize, message: usize) -> u8 {
    u8::try_from((message * LINKS + link) % 255).expect("a byte") + 1
}

fn sends(part: &Part, net: Net, context: Object) {
    let links = (0..LINKS).map(|_| Link::to_peer(net, context, &mut { part }));
    let mut links: Vec<_> = links.collect();
    meet(&mut links);
    assert_eq!(part.receive(), "posted");
    sockets::squeeze();
    let send = |(link, message): (usize, usize)| {
        let Link { send, out, .. } = &links[link];
        let (len, at) = (length(message), message * STRIDE);
        out.buffer.write(at, &vec![mark(link, message); len]);
        net.isend(*send, out.buffer.address() + at, len, 0, out.region).expect("isend")
    };
    let mut left = all().peekable();
    // None: it was reported done, since its bytes are in a socket, or were read by the receiver's keeper.
    let mut requests = Vec::new();
    let over = |request: &mut Option<Object>| {
        let is_over = |request| net.test(request).expect("a send").is_some();
        *request = request.filter(|request| !is_over(*request));
    };
    for _ in 0..POLLS {
        while let Some(request) = left.peek().and_then(|next| send(*next)) {
            requests.push(Some(request));
            left.next();
        }
        requests.iter_mut().for_each(over);
    }
    let (full, pending) = (sockets::full(), requests.iter().flatten().count());
    say(&format!("{full} sockets are full, {pending} of {} messages wait", requests.len()));
    part.say("sent");
    assert_eq!(part.receive(), "reading");
    for (index, next) in all().enumerate() {
        wait("an advert", || {
            if index == requests.len() {
                requests.extend(send(next).map(Some));
            }
            index < requests.len()
        });
        wait("the end of a send", || {
            over(&mut requests[index]);
            requests[index].is_none()
        });
        if index % STOPS == 0 || index + 1 == LINKS * MESSAGES {
            // From here on the plugin is not called.
            part.say(&index.to_string());
            part.stop();
        }
    }
    part.say("over");
    close(net, context, links);
}

/// A burst on each connection; the receiver stops when its last receive is reported done.
fn receiver_is_stopped(part: &Part) {
    let net = Net::open(&part.plugin());
    let context = net.init().expect("init");
    if part.name == "receiver" {
        return receives(part, net, context);
    }
    let mut receiver = part.cast("receiver", &[]);
    let links = (0..LINKS).map(|_| Link::to_peer(net, context, &mut receiver));
    let links: Vec<_> = links.collect();
    for round in 0..ROUNDS {
        let send = |(link, message): (&Link, usize)| {
            let (mut request, address) = (None, link.out.buffer.address() + message * STRIDE);
            let len = length(round + message);
            wait("an advert", || {
                let sent = net.isend(link.send, address, len, 0, link.out.region);
                request = sent.expect("isend");
                request.is_some()
            });
            request.expect("just sent")
        };
        let mut requests: Vec<_> = bursts(&links).map(send).collect();
        let mut stopped = false;
        wait("the end of a send to a receiver that is stopped", || {
            if !stopped && receiver.try_receive().is_some() {
                receiver.wait_for_stop();
                stopped = true;
            }
            requests.retain(|request| net.test(*request).expect("a send").is_none());
            stopped && requests.is_empty()
        });
        receiver.resume();
    }
    close(net, context, links);
    receiver.finish();
}

fn receives(part: &Part, net: Net, context: Object) {
    let links: Vec<_> = (0..LINKS).map(|_| Link::to_peer(net, context, &mut { part })).collect();
    for round in 0..ROUNDS {
        let post = |(link, message): (&Link, usize)| {
            let Link { receive, input, .. } = link;
            let address = input.buffer.address() + message * STRIDE;
            let posted = net.irecv(*receive, address, STRIDE, 0, input.region).expect("irecv");
            (posted.expect("the window has room"), length(round + message))
        };
        let mut requests: Vec<_> = bursts(&links).map(post).collect();
        wait("the messages", || {
            requests.retain(|(request, len)| {
                let size = net.test(*request).expect("a receive");
                size.inspect(|size| assert_eq!(size, len)).is_none()
            });
            requests.is_empty()
        });
        // From here on the plugin is not called.
        part.say("done");
        part.stop();
    }
    close(net, context, links);
}

fn close(net: Net, context: Object, links: Vec<Link>) {
    links.into_iter().for_each(Link::close);
    net.finalize(context).expect("finalize");
}
