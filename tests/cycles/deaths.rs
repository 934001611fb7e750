//! Cycles between two processes: one stays, the other is a new one each time, and ends in a random state: killed, stopped, or closing as
//! NCCL does while the first one closes too.
//!
//! Both draw the same connections from the seed. Then the one that stays aborts its side, and the time of that is measured.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use crate::Cycles;
use crate::cycle::{BUFFER, SLOT};
use crate::support::calls::{Buffer, Handle, Net, Object};
use crate::support::link::{Voice, descriptors, from_text, to_text, wait};
use crate::support::random::Random;
use crate::support::stage::Part;
use crate::world;

/// The process that stays.
pub(crate) struct Survivor<'part> {
    part: &'part Part,
    net: Net,
    open: Option<world::End>,
    buffer: Buffer,
    /// Open descriptors of a process without open objects.
    descriptors: usize,
}

/// One connection, as both processes draw it.
#[derive(Clone, Copy)]
struct Plan {
    /// Whether the process that ends is the sender.
    mortal_sends: bool,
    /// Whether it is connected completely.
    whole: bool,
    regions: usize,
}

/// How the other process ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Killed,
    Stopped,
    Aborts,
}

impl<'part> Survivor<'part> {
    pub(crate) fn new(part: &'part Part, net: Net) -> Self {
        net.finalize(net.init().expect("init")).expect("finalize");
        Self { part, net, open: None, buffer: Buffer::new(BUFFER), descriptors: descriptors() }
    }

    /// Every descriptor that was opened for connections is closed.
    pub(crate) fn is_clean(&self) {
        wait("the end of descriptors", || descriptors() <= self.descriptors);
    }
}

impl Cycles for Survivor<'_> {
    fn cycle(&mut self, seed: u64) -> (String, Duration) {
        let mut random = Random::new(seed);
        let plans = draw(&mut random);
        let open = *self.open.get_or_insert_with(|| world::End::open(self.net));
        let mut mortal = self.part.cast("mortal", &[]);
        mortal.say(&seed.to_string());
        let mut halves = make(open, self.buffer, &plans, false, &mut mortal);
        receive_line(&mut mortal, open);
        for _ in 0..random.up_to(200) {
            let index = random.below(halves.len());
            halves[index].step(self.net, self.buffer, &mut random);
        }
        let end = match random.up_to(7) {
            0..=3 => End::Killed,
            4 => End::Stopped,
            _ => End::Aborts,
        };
        let finalizes = random.up_to(3) == 0;
        let posts: Vec<usize> = halves.iter().map(|half| half.posts).collect();
        match end {
            End::Killed => mortal.kill(),
            End::Stopped => mortal.pause(),
            End::Aborts => mortal.say("abort"),
        }
        let start = Instant::now();
        abort(self.net, halves);
        if finalizes && let Some(open) = self.open.take() {
            open.close();
        }
        let took = start.elapsed();
        if matches!(end, End::Aborts) {
            while mortal.try_receive().is_none() {
                self.open.iter().for_each(world::End::poll);
                thread::yield_now();
            }
        }
        (format!("{posts:?} posts, it {end:?}, finalizes {finalizes}"), took)
    }

    fn are_closed(&self) -> bool {
        self.open.is_none()
    }

    fn finalize(&mut self) {
        self.open.take().into_iter().for_each(world::End::close);
    }
}

/// The other process: continues until it is killed, or gets the command to abort.
pub(crate) fn mortal(part: &Part, net: Net) {
    let seed: u64 = part.receive().parse().expect("a seed");
    let plans = draw(&mut Random::new(seed));
    let (open, buffer) = (world::End::open(net), Buffer::new(BUFFER));
    let mut halves = make(open, buffer, &plans, true, &mut { part });
    part.say("ready");
    // Not the random numbers of the other process.
    let mut random = Random::new(!seed);
    while part.try_receive().is_none() {
        let index = random.below(halves.len());
        halves[index].step(net, buffer, &mut random);
    }
    abort(net, halves);
    if random.up_to(1) == 0 {
        open.close();
    }
    part.say("gone");
}

fn draw(random: &mut Random) -> Vec<Plan> {
    let mut plans: Vec<Plan> = (0..=random.up_to(2))
        .map(|_| Plan {
            mortal_sends: random.up_to(1) == 0,
            whole: random.up_to(5) != 0,
            regions: random.below(3),
        })
        .collect();
    // net loses the first messages of two ends if both send at once (docs/testing.md): the new process begins.
    plans[0] = Plan { mortal_sends: true, whole: true, ..plans[0] };
    plans
}

/// This process's ends of the connections, after an exchange of handles.
fn make(
    open: world::End,
    buffer: Buffer,
    plans: &[Plan],
    is_mortal: bool,
    peer: &mut impl Voice,
) -> Vec<Half> {
    let net = open.net;
    let listen = |plan: &Plan| {
        let receives = plan.mortal_sends != is_mortal;
        receives.then(|| net.listen(open.context, 0).expect("listen"))
    };
    let listening: Vec<Option<(Handle, Object)>> = plans.iter().map(listen).collect();
    let texts: Vec<String> =
        listening.iter().flatten().map(|(handle, _)| to_text(handle)).collect();
    peer.send_line(&format!("handles {}", texts.join(" ")));
    let line = receive_line(peer, open);
    let mut theirs: VecDeque<Handle> =
        line.split(' ').skip(1).filter(|text| !text.is_empty()).map(from_text).collect();
    let mut halves: Vec<Half> = Vec::new();
    for (plan, listening) in plans.iter().zip(listening) {
        let handle = if listening.is_none() { theirs.pop_front() } else { None };
        halves.push(Half::new(listening.map(|(_, listener)| listener), handle));
        let newest = halves.last_mut().expect("just pushed");
        if plan.whole {
            wait("a connection", || newest.connect(open));
        } else if newest.handle.is_some() {
            newest.connect(open);
        }
        if let Some(comm) = newest.comm {
            for index in 0..plan.regions {
                let part = buffer.part(index * SLOT, BUFFER - 4 * SLOT);
                newest.regions.push(net.register(comm, part).expect("regMr"));
            }
        }
    }
    halves
}

/// A line of the peer; `open` is polled meanwhile.
fn receive_line(peer: &mut impl Voice, open: world::End) -> String {
    let mut line = None;
    wait("a line", || {
        open.poll();
        line = peer.listen();
        line.is_some()
    });
    line.expect("just received")
}

/// One end of a connection, at any stage.
struct Half {
    /// Set if this end receives.
    listener: Option<Object>,
    /// Set if it sends: the state of its connect.
    handle: Option<Handle>,
    comm: Option<Object>,
    regions: Vec<Object>,
    requests: VecDeque<Object>,
    posts: usize,
}

impl Half {
    fn new(listener: Option<Object>, handle: Option<Handle>) -> Self {
        let (regions, requests) = (Vec::new(), VecDeque::new());
        Self { listener, handle, comm: None, regions, requests, posts: 0 }
    }

    /// Returns whether it is connected.
    fn connect(&mut self, open: world::End) -> bool {
        let net = open.net;
        self.comm = match (&mut self.handle, self.listener) {
            (Some(handle), _) => net.connect(open.context, 0, handle).expect("connect"),
            (None, Some(listener)) => net.accept(listener).expect("accept"),
            (None, None) => None,
        };
        self.comm.is_some()
    }

    /// One call with any result: the peer may be gone.
    fn step(&mut self, net: Net, buffer: Buffer, random: &mut Random) {
        let (Some(comm), Some(region)) = (self.comm, self.regions.first()) else { return };
        let at = buffer.address() + 4 * SLOT;
        let posted = match random.up_to(4) {
            0 | 1 if self.handle.is_some() => net.isend(comm, at, random.below(SLOT), 0, *region),
            0 => net.irecv(comm, at, SLOT, 0, *region),
            1 => {
                let count = i32::try_from(random.below(8)).expect("small") + 1;
                net.irecv_group(comm, count, at, SLOT, 0, *region)
            }
            _ => {
                if let Some(request) = self.requests.pop_front()
                    && net.test_flush(request) == Ok(false)
                {
                    self.requests.push_front(request);
                }
                return;
            }
        };
        let posted = posted.ok().flatten();
        self.posts += usize::from(posted.is_some());
        self.requests.extend(posted);
    }
}

/// As NCCL does: the buffers of each comm, then the comm, then the listener. deregMr may fail because a peer does not answer.
fn abort(net: Net, halves: Vec<Half>) {
    for half in halves {
        if let Some(comm) = half.comm {
            for region in half.regions {
                drop(net.deregister(comm, region));
            }
            let sends = half.handle.is_some();
            let closed = if sends { net.close_send(comm) } else { net.close_recv(comm) };
            closed.expect("close");
        }
        if let Some(listener) = half.listener {
            net.close_listen(listener).expect("closeListen");
        }
    }
}
