//! Messages that travel before their receives are posted.

use std::time::Duration;

use crate::support::calls::{Buffer, Net, Object};
use crate::support::stage::play;
use crate::world::{End, World, connect, provider};

const PROFILES: [&str; 4] = ["tcp", "cxi", "efa", "adversary"];
const BYTES: usize = 40;
const EAGER: (&str, &str) = ("EAGER_MAX_SIZE", "40");

/// Both ends of a connection in one process, with memory at each.
struct Link {
    net: Net,
    ends: [End; 2],
    send: Object,
    receive: Object,
    out: Buffer,
    into: Buffer,
    from: Object,
    to: Object,
}

impl Link {
    fn open(world: World, ends: [End; 2]) -> Self {
        let mut turn = false;
        let (send, receive) = connect(&ends[0], &ends[1], || {
            turn = !turn;
            turn
        });
        let net = world.nets[0];
        let (out, into) = (Buffer::new(4096), Buffer::new(4096));
        out.write(0, &(0..4096).map(byte).collect::<Vec<u8>>());
        let from = net.register(send, out).expect("regMr");
        let to = net.register(receive, into).expect("regMr");
        Self { net, ends, send, receive, out, into, from, to }
    }

    fn isend(&self, at: usize, len: usize, tag: i32) -> Option<Object> {
        let address = self.out.address() + at;
        self.net.isend(self.send, address, len, tag, self.from).expect("isend")
    }

    fn irecv(&self, at: usize, tag: i32) -> Object {
        let address = self.into.address() + at;
        let received = self.net.irecv(self.receive, address, BYTES, tag, self.to).expect("irecv");
        received.expect("the window has room")
    }

    fn turn(&self) {
        (0..TURNS).for_each(|_| self.ends.iter().for_each(End::turn));
    }

    fn finish(&self, request: Object) -> usize {
        let mut tests = 0..TURNS;
        let found = tests.find_map(|_| {
            self.ends.iter().for_each(End::turn);
            self.net.test(request).expect("test")
        });
        found.expect("it ends")
    }

    fn has(&self, at: usize, from: usize, len: usize) -> bool {
        self.into.read(at, len) == (from..from + len).map(byte).collect::<Vec<u8>>()
    }

    fn close(self) {
        self.turn();
        self.ends.into_iter().for_each(End::close);
    }
}

fn byte(at: usize) -> u8 {
    u8::try_from(at * 7 % 251).expect("below 251")
}

#[test]
fn messages_without_receives_arrive_when_these_are_posted() {
    for profile in PROFILES {
        play(&[provider(), EAGER], BOUND, |part| {
            let world = World::open(part, profile, [2, 2]);
            world.fabric.configure(&format!("profile={profile} nics=16 eagain=200"));
            let link = Link::open(world, world.nets.map(End::open));
            for round in 0..20 {
                // More than may travel so, of two tags; the last waits for its receive.
                let messages: Vec<(usize, usize, i32)> = (0..9)
                    .map(|index| (round + index * BYTES, index * 5, i32::from(index % 2 == 1)))
                    .collect();
                let mut sent: Vec<Object> = Vec::new();
                for (at, len, tag) in &messages[..8] {
                    let mut tries = 0..TURNS;
                    let request = tries.find_map(|_| link.isend(*at, *len, *tag));
                    sent.push(request.expect("it may travel before its receive"));
                }
                assert_eq!(link.isend(messages[8].0, 40, 0), None, "the ring is full");
                // In another order than they were sent.
                let order: Vec<usize> = (1..9).step_by(2).chain((0..9).step_by(2)).collect();
                let order = &order[..];
                let received: Vec<(usize, Object)> = order
                    .iter()
                    .map(|index| (*index, link.irecv(*index * 64, messages[*index].2)))
                    .collect();
                let mut last = None;
                for (index, request) in received {
                    if index == 8 {
                        let mut tries = 0..TURNS;
                        last = tries.find_map(|_| link.isend(messages[8].0, 40, 0));
                    }
                    assert_eq!(link.finish(request), messages[index].1, "{profile}, {index}");
                    assert!(link.has(index * 64, messages[index].0, messages[index].1), "{index}");
                }
                for request in sent.into_iter().chain(last) {
                    link.finish(request);
                }
            }
            link.net.close_send(link.send).expect("closeSend");
            link.net.close_recv(link.receive).expect("closeRecv");
            link.close();
            world.fabric.is_clean();
        });
    }
}

/// The bye may come first; the message is there for a receive that is posted after both.
#[test]
fn a_message_is_there_though_its_sender_has_closed() {
    for profile in PROFILES {
        play(&[provider(), EAGER], BOUND, |part| {
            let world = World::open(part, profile, [1, 1]);
            world.fabric.configure(&format!("profile={profile} nics=16"));
            let link = Link::open(world, world.nets.map(End::open));
            link.isend(64, BYTES, 3).expect("it may travel before its receive");
            link.net.close_send(link.send).expect("closeSend");
            link.turn();
            let received = link.irecv(0, 3);
            assert_eq!(link.finish(received), BYTES, "{profile}");
            assert!(link.has(0, 64, BYTES), "{profile}");
            link.net.close_recv(link.receive).expect("closeRecv");
            link.close();
            world.fabric.is_clean();
        });
    }
}

const BOUND: Duration = Duration::from_secs(60);
const TURNS: u32 = 500;
