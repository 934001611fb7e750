//! One cycle: what it opens, how far that gets, and how it ends.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::Cycles;
use crate::support::calls::{Buffer, Handle, Net, Object};
use crate::support::random::Random;
use crate::world;

/// The two ends, in one process. Their contexts last for some cycles.
pub(crate) struct Ends {
    ends: [End; 2],
    /// Whether new ends are connected before anything else.
    meet: bool,
}

#[derive(Clone, Copy)]
struct End {
    net: Net,
    /// With a listener to which no peer connects, used to poll the end.
    open: Option<world::End>,
    buffer: Memory,
}

/// Memory that an end sends from and receives into; the data is not checked.
#[derive(Clone, Copy)]
enum Memory {
    Host(Buffer),
    /// A GPU's, for the life of the process.
    Gpu(u64),
}

impl Memory {
    fn address(self) -> usize {
        match self {
            Self::Host(buffer) => buffer.address(),
            Self::Gpu(address) => usize::try_from(address).expect("64 bits"),
        }
    }

    fn register(self, net: Net, comm: Object, offset: usize, len: usize) -> Object {
        let region = match self {
            Self::Host(buffer) => net.register(comm, buffer.part(offset, len)),
            Self::Gpu(address) => net.register_gpu(comm, address + offset as u64, len),
        };
        region.expect("regMr")
    }
}

/// One connection, at any stage; the end `from` sends.
#[derive(Default)]
struct Comm {
    from: usize,
    listener: Option<Object>,
    send: Option<Object>,
    receive: Option<Object>,
    /// Of the send comm and of the receive comm.
    regions: [Vec<Object>; 2],
    requests: [VecDeque<Object>; 2],
    posts: usize,
}

impl Ends {
    pub(crate) fn new(nets: [Net; 2]) -> Self {
        let end = |net| End { net, open: None, buffer: Memory::Host(Buffer::new(BUFFER)) };
        Self { ends: nets.map(end), meet: false }
    }

    /// The same with GPU memory at these addresses.
    pub(crate) fn of_gpus(nets: [Net; 2], addresses: [u64; 2]) -> Self {
        let mut ends = Self::new(nets);
        for (end, address) in ends.ends.iter_mut().zip(addresses) {
            end.buffer = Memory::Gpu(address);
        }
        ends
    }

    /// The same, for a provider that loses the first messages of two ends if both send at once (docs/testing.md, known weaknesses).
    pub(crate) fn that_meet(nets: [Net; 2]) -> Self {
        Self { meet: true, ..Self::new(nets) }
    }

    /// The number of open contexts.
    pub(crate) fn open(&self) -> u64 {
        self.ends.iter().map(|end| u64::from(end.open.is_some())).sum()
    }

    /// One connection after the other, each with a message: one on each rail.
    fn meet(&self) {
        let ends = self.ends.map(|end| end.open.expect("a cycle has its contexts open"));
        let links = [(); 2].map(|()| {
            let (send, receive) = world::connect(&ends[0], &ends[1]);
            let [(net, out), (_, into)] = self.ends.map(|end| (end.net, end.buffer));
            let from = out.register(net, send, 0, BUFFER);
            let to = into.register(net, receive, 0, BUFFER);
            let received = net.irecv(receive, into.address(), 8, 0, to).expect("irecv");
            let mut sent = None;
            let done = (0..CALLS_MAX).any(|_| {
                if sent.is_none() {
                    sent = net.isend(send, out.address(), 8, 0, from).expect("isend");
                }
                ends[0].poll();
                net.test(received.expect("the window is empty")).expect("test").is_some()
            });
            assert!(done, "a message does not come");
            (net, (send, from), (receive, to))
        });
        for (net, (send, from), (receive, to)) in links {
            net.deregister(send, from).expect("deregMr");
            net.deregister(receive, to).expect("deregMr");
            net.close_send(send).expect("closeSend");
            net.close_recv(receive).expect("closeRecv");
        }
    }
}

impl Cycles for Ends {
    fn cycle(&mut self, seed: u64) -> (String, Duration) {
        let mut is_new = false;
        for end in &mut self.ends {
            is_new |= end.open.is_none();
            end.open = Some(end.open.unwrap_or_else(|| world::End::open(end.net)));
        }
        if is_new && self.meet {
            self.meet();
        }
        let start = Instant::now();
        (self.run(&mut Random::new(seed)), start.elapsed())
    }

    fn are_closed(&self) -> bool {
        self.ends.iter().all(|end| end.open.is_none())
    }

    fn finalize(&mut self) {
        self.abort(&[], [true; 2], true, 0);
    }
}

impl Ends {
    /// Returns a description of what it did.
    fn run(&mut self, random: &mut Random) -> String {
        let mut said = String::new();
        let mut comms: Vec<_> = (0..=random.up_to(2)).map(|_| self.make(random)).collect();
        for _ in 0..random.up_to(120) {
            let index = random.below(comms.len());
            self.step(&mut comms[index], random);
        }
        for comm in &comms {
            let Comm { from, posts, .. } = comm;
            let made =
                [comm.listener, comm.send, comm.receive].map(|made| u8::from(made.is_some()));
            let regions = comm.regions.each_ref().map(Vec::len);
            write!(said, "{made:?} from {from}, {regions:?} regions, {posts} posts; ")
                .expect("text");
        }
        let at_once = random.up_to(7) != 0;
        // A wait for a peer that makes no calls is bounded; memory that such a peer may access is kept, and is no leak.
        let finalizes = [0, 1].map(|_| at_once && random.up_to(7) == 0);
        write!(said, "at once {at_once}, finalizes {finalizes:?}").expect("text");
        let paused = self.abort(&comms, finalizes, at_once, random.below(2));
        write!(said, ", paused {paused} ms").expect("text");
        said
    }

    fn make(&self, random: &mut Random) -> Comm {
        let from = random.below(2);
        let [sender, receiver] = [self.ends[from], self.ends[1 - from]];
        let (mut handle, listener) = receiver.net.listen(receiver.context(), 0).expect("listen");
        let mut comm = Comm { from, listener: Some(listener), ..Comm::default() };
        let stage = random.up_to(7);
        for _ in 0..if stage == 0 { 0 } else { CALLS_MAX } {
            comm.send = comm.send.or_else(|| sender.connect(&mut handle));
            if stage == 1 && random.up_to(3) == 0 {
                break;
            }
            if stage > 1 && comm.receive.is_none() {
                comm.receive = receiver.net.accept(listener).expect("accept");
            }
            if comm.receive.is_some() && (comm.send.is_some() || stage == 2) {
                break;
            }
        }
        assert!(stage < 2 || comm.receive.is_some(), "no connection after {CALLS_MAX} calls");
        if let (Some(send), Some(receive)) = (comm.send, comm.receive) {
            for (end, of, regions) in [(sender, send, 0), (receiver, receive, 1)] {
                for _ in 0..random.up_to(3) {
                    let at = random.below(4) * SLOT;
                    let region = end.buffer.register(end.net, of, at, BUFFER - 4 * SLOT);
                    comm.regions[regions].push(region);
                }
            }
            if random.up_to(1) == 0 {
                receiver.net.close_listen(listener).expect("closeListen");
                comm.listener = None;
            }
        }
        comm
    }

    /// One call with any result: the connection may have failed.
    fn step(&self, comm: &mut Comm, random: &mut Random) {
        let (Some(send), Some(receive)) = (comm.send, comm.receive) else { return };
        let [sender, receiver] = [self.ends[comm.from], self.ends[1 - comm.from]];
        let at = |end: End| end.buffer.address() + 4 * SLOT;
        match (random.up_to(5), comm.regions[0].first(), comm.regions[1].last()) {
            (0, Some(region), _) => {
                let most = if random.up_to(30) == 0 { 2 * SLOT } else { SLOT };
                let len = random.below(most);
                let sent = sender.net.isend(send, at(sender), len, 0, *region);
                comm.keep(0, sent.ok().flatten());
            }
            (1, _, Some(region)) => {
                let count = if random.up_to(3) == 0 {
                    1 + i32::try_from(random.below(8)).expect("small")
                } else {
                    1
                };
                let posted =
                    receiver.net.irecv_group(receive, count, at(receiver), SLOT, 0, *region);
                comm.keep(1, posted.ok().flatten());
            }
            (2, _, Some(region)) => {
                comm.keep(
                    1,
                    receiver.net.iflush(receive, at(receiver), SLOT, *region).ok().flatten(),
                );
            }
            (choice, ..) => {
                let (side, end) = if choice % 2 == 0 { (0, sender) } else { (1, receiver) };
                if let Some(request) = comm.requests[side].pop_front()
                    && end.net.test_flush(request) == Ok(false)
                {
                    comm.requests[side].push_front(request);
                }
            }
        }
    }

    /// Returns for how many milliseconds an end was prevented from beginning or continuing, since the machine may be busy. An end that
    /// finalizes meanwhile sees a peer that does not answer, and after its timeout keeps the memory that the peer may access.
    fn abort(&mut self, comms: &[Comm], finalizes: [bool; 2], at_once: bool, first: usize) -> u32 {
        let ends = self.ends.map(|end| (end.net, end.open));
        // Ends that still have something to close; the other one continues meanwhile, perhaps with other connections.
        let (busy, paused) = (AtomicU32::new(2), AtomicU32::new(0));
        let (waiting, called) = (AtomicU32::new(2), Instant::now());
        let pause = |since: Instant| {
            let took = u32::try_from(since.elapsed().as_millis()).unwrap_or(u32::MAX);
            paused.fetch_max(took, Ordering::Relaxed);
        };
        let abort = |side: usize| {
            let (net, open) = ends[side];
            if at_once {
                // The thread may start late.
                waiting.fetch_sub(1, Ordering::Relaxed);
                while waiting.load(Ordering::Relaxed) > 0 {
                    thread::yield_now();
                }
                pause(called);
            }
            abort(net, side, comms);
            if at_once {
                if let Some(open) = open.filter(|_| finalizes[side]) {
                    open.close();
                }
                busy.fetch_sub(1, Ordering::Relaxed);
                while let Some(open) = open.filter(|_| !finalizes[side])
                    && busy.load(Ordering::Relaxed) > 0
                {
                    let start = Instant::now();
                    open.poll();
                    pause(start);
                }
            }
        };
        if at_once {
            thread::scope(|scope| {
                scope.spawn(|| abort(first));
                abort(1 - first);
            });
        } else {
            abort(first);
            abort(1 - first);
        }
        for (end, finalized) in self.ends.iter_mut().zip(finalizes) {
            end.open = end.open.filter(|_| !finalized);
        }
        paused.into_inner()
    }
}

impl End {
    fn context(self) -> Object {
        self.open.expect("a cycle has its contexts open").context
    }

    fn connect(self, handle: &mut Handle) -> Option<Object> {
        self.net.connect(self.context(), 0, handle).expect("connect")
    }
}

/// As NCCL does: the buffers of each comm, then the comm (NCCL src/transport/net.cc, sendProxyFree and recvProxyFree), then the listener.
/// deregMr may fail because a peer does not answer.
fn abort(net: Net, side: usize, comms: &[Comm]) {
    for comm in comms {
        let role = usize::from(comm.from != side);
        if let Some(of) = [comm.send, comm.receive][role] {
            for region in &comm.regions[role] {
                drop(net.deregister(of, *region));
            }
            let closed = if role == 0 { net.close_send(of) } else { net.close_recv(of) };
            closed.expect("close");
        }
        if let Some(listener) = comm.listener.filter(|_| role == 1) {
            net.close_listen(listener).expect("closeListen");
        }
    }
}

impl Comm {
    fn keep(&mut self, side: usize, request: Option<Object>) {
        self.posts += usize::from(request.is_some());
        self.requests[side].extend(request);
    }
}

/// Bytes of the buffer that an end sends from and receives into.
pub(crate) const BUFFER: usize = 1 << 20;
/// The longest message.
pub(crate) const SLOT: usize = 64 << 10;
/// More is a hang.
const CALLS_MAX: u32 = 1_000_000;
