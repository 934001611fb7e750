//! Both ends of a connection in one process, with memory at each.

use std::time::{Duration, Instant};

use crate::support::calls::{Buffer, Net, Object};
use crate::support::stage::Part;
use crate::support::virtual_fabric::VirtualFabric;
use crate::together::close_together;
use crate::world::{End, World, connect};

pub(crate) struct Link {
    pub(crate) fabric: VirtualFabric,
    pub(crate) net: Net,
    pub(crate) ends: [End; 2],
    pub(crate) send: Object,
    pub(crate) receive: Object,
    pub(crate) out: Buffer,
    pub(crate) into: Buffer,
    pub(crate) from: Object,
    pub(crate) to: Object,
}

/// More polls than it takes until nothing moves any more.
pub(crate) const POLLS: u32 = 500;
/// How long something may take that ends: it may wait for a timer of the plugin's.
const PATIENCE: Duration = Duration::from_secs(20);
const BUFFER: usize = 8192;

impl Link {
    /// Between two new ends with `rails` rails, of a fabric with more settings than its profile.
    pub(crate) fn between_ends(part: &Part, profile: &str, rails: usize, more: &str) -> Self {
        let world = World::open(part, profile, [rails, rails]);
        world.fabric.configure(&format!("profile={profile} nics=16 {more}"));
        Self::open(world, world.nets.map(End::open))
    }

    pub(crate) fn open(world: World, ends: [End; 2]) -> Self {
        let (send, receive) = connect(&ends[0], &ends[1]);
        let net = world.nets[0];
        let (out, into) = (Buffer::new(BUFFER), Buffer::new(BUFFER));
        out.write(0, &(0..BUFFER).map(byte).collect::<Vec<u8>>());
        let from = net.register(send, out).expect("regMr");
        let to = net.register(receive, into).expect("regMr");
        Self { fabric: world.fabric, net, ends, send, receive, out, into, from, to }
    }

    pub(crate) fn isend(&self, at: usize, len: usize, tag: i32) -> Option<Object> {
        let address = self.out.address() + at;
        self.net.isend(self.send, address, len, tag, self.from).expect("isend")
    }

    pub(crate) fn irecv(&self, at: usize, len: usize, tag: i32) -> Object {
        let address = self.into.address() + at;
        let received = self.net.irecv(self.receive, address, len, tag, self.to).expect("irecv");
        received.expect("the window has room")
    }

    /// A message whose post may be refused, or whose advert is in flight.
    #[track_caller]
    pub(crate) fn isend_at_last(&self, at: usize, len: usize, tag: i32) -> Object {
        self.at_last(|| self.isend(at, len, tag))
    }

    /// A first message: some providers refuse the first post to a peer.
    pub(crate) fn warm(&self) {
        let received = self.irecv(0, 100, 0);
        let sent = self.isend_at_last(0, 100, 0);
        self.finish(received);
        self.finish(sent);
    }

    pub(crate) fn poll(&self) {
        (0..POLLS).for_each(|_| self.ends.iter().for_each(End::poll));
    }

    /// Until the next operation is the test's own.
    pub(crate) fn settle(&self) {
        self.fabric.settle(|| self.ends.iter().for_each(End::poll));
    }

    #[track_caller]
    pub(crate) fn finish(&self, request: Object) -> usize {
        self.at_last(|| self.net.test(request).expect("test"))
    }

    /// Calls both ends until `test` returns a value.
    #[track_caller]
    fn at_last<T>(&self, mut test: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(answer) = test() {
                return answer;
            }
            self.ends.iter().for_each(End::poll);
            assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}");
        }
    }

    /// Whether the bytes at `at` are those that were sent from `from`.
    pub(crate) fn has(&self, at: usize, from: usize, len: usize) -> bool {
        self.into.read(at, len) == (from..from + len).map(byte).collect::<Vec<u8>>()
    }

    pub(crate) fn close_comms(&self) {
        self.net.close_send(self.send).expect("closeSend");
        self.net.close_recv(self.receive).expect("closeRecv");
    }

    /// Closes the ends, whose comms are closed: no rule was broken, and nothing is left.
    #[track_caller]
    pub(crate) fn close(self) {
        self.close_ends();
        self.fabric.is_clean();
    }

    pub(crate) fn close_ends(&self) {
        self.poll();
        close_together(self.ends);
    }

    #[track_caller]
    pub(crate) fn close_all(self) {
        self.close_comms();
        self.close();
    }
}

fn byte(at: usize) -> u8 {
    u8::try_from(at * 7 % 251).expect("below 251")
}
