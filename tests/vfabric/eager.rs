//! Messages that travel before their receives are posted.

use std::time::Duration;

use crate::link::{Link, TURNS};
use crate::support::calls::Object;
use crate::support::stage::play_each;
use crate::world::{End, World, provider};

const PROFILES: [&str; 4] = ["tcp", "cxi", "efa", "adversary"];
const BYTES: usize = 40;
const EAGER: (&str, &str) = ("EAGER_MAX_SIZE", "40");

#[test]
fn messages_without_receives_arrive_when_these_are_posted() {
    play_each(&PROFILES, &[provider(), EAGER], BOUND, |part, profile| {
        let world = World::open(part, profile, [2, 2]);
        world.fabric.configure(&format!("profile={profile} nics=16 eagain=200"));
        let link = Link::open(world, world.nets.map(End::open));
        // Where completions prove arrival, only an advert tells which places are free again.
        let rounds = if ["cxi", "efa"].contains(&profile) { 1 } else { 20 };
        for round in 0..rounds {
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
                .map(|index| (*index, link.irecv(*index * 64, BYTES, messages[*index].2)))
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

/// The bye may come first; the message is there for a receive that is posted after both.
#[test]
fn a_message_is_there_though_its_sender_has_closed() {
    play_each(&PROFILES, &[provider(), EAGER], BOUND, |part, profile| {
        let world = World::open(part, profile, [1, 1]);
        world.fabric.configure(&format!("profile={profile} nics=16"));
        let link = Link::open(world, world.nets.map(End::open));
        link.isend(64, BYTES, 3).expect("it may travel before its receive");
        link.net.close_send(link.send).expect("closeSend");
        link.turn();
        let received = link.irecv(0, BYTES, 3);
        assert_eq!(link.finish(received), BYTES, "{profile}");
        assert!(link.has(0, 64, BYTES), "{profile}");
        link.net.close_recv(link.receive).expect("closeRecv");
        link.close();
        world.fabric.is_clean();
    });
}

const BOUND: Duration = Duration::from_secs(60);
