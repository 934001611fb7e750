//! Jobs in virtual time, where nothing fails but what a test makes fail: how far the loss of a link spreads, and what rails
//! carry that fail again and again.

use std::collections::{BTreeMap, BTreeSet};

use proto::ChannelId;

use crate::conversation::{Receiving, Side};
use crate::data::{Death, kill};
use crate::faults::Fault;
use crate::random::Random;
use crate::ranks::World;
use crate::trials::revive;

/// Long enough for a part on each of four rails.
const MESSAGE: u64 = 1000;
/// More rounds than anything takes here.
const ROUNDS_MAX: usize = 5000;
const MILLISECOND: u64 = 1_000_000;
/// How often a rank polls in a fair round.
const POLLS_PER_ROUND: usize = 8;

/// A job, and how its connections get on.
struct Job {
    world: World,
    /// Virtual time of a round, in nanoseconds.
    round: u64,
    /// By conversation: messages received, when the last one was, and the longest time between two.
    paces: Vec<(usize, u64, u64)>,
}

impl Job {
    /// Connections by sender and receiver, with so many messages each.
    fn new(
        (seed, round): (u64, u64),
        (nodes, links): (usize, usize),
        pairs: &[(usize, usize)],
        messages: usize,
    ) -> Self {
        let mut world = World::job(Random::new(seed), nodes, links, 2 * pairs.len());
        for (from, to) in pairs {
            world.connect_for([*from, *to], (messages, MESSAGE));
        }
        let mut job = Self { world, round, paces: vec![(0, 0, 0); pairs.len()] };
        job.run_until(Self::is_open);
        job
    }

    fn is_open(&self) -> bool {
        let open = |side: &Side| matches!(side, Side::Open(_));
        self.world.conversations.iter().all(|one| one.sides.iter().all(open))
    }

    fn run(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.world.fair_round(self.round).unwrap();
            let now = self.world.wire.now;
            for (one, pace) in self.world.conversations.iter().zip(&mut self.paces) {
                let (received, since, longest) = pace;
                let receives = &one.receives;
                let done = receives.iter().filter(|one| **one == Receiving::Done).count();
                if done > *received || done == receives.len() {
                    (*received, *since) = (done, now);
                }
                *longest = (*longest).max(now - *since);
            }
        }
    }

    fn run_until(&mut self, is_over: impl Fn(&Self) -> bool) {
        for _ in 0..ROUNDS_MAX {
            if is_over(self) {
                return;
            }
            self.run(1);
        }
        panic!("no end: {}", self.world.why());
    }

    /// Runs until all messages have arrived and all rails are back, and checks what must hold then.
    fn finish(&mut self) {
        self.run_until(|job| job.world.at_rest() && job.returned() == job.lost());
        let laws = self.world.final_laws();
        assert_eq!(laws, Ok(()), "{}", self.world.why());
        let received = |one: &Receiving| *one == Receiving::Done;
        let arrived = self.world.conversations.iter().all(|one| one.receives.iter().all(received));
        assert!(arrived, "{}", self.world.why());
        let mut outcomes = self.world.wire.nodes.iter().flat_map(|node| &node.outcomes);
        assert!(outcomes.all(Option::is_none), "a channel has ended");
    }

    /// How many rails channels have lost.
    fn lost(&self) -> usize {
        self.world.wire.data.losses.len()
    }

    fn returned(&self) -> usize {
        self.world.wire.faults.count(Fault::RailReturned) as usize
    }
}

/// What the loss of links costs.
struct Spread {
    /// By sender and receiver: the longest time between two messages, in milliseconds.
    delays: BTreeMap<(usize, usize), u64>,
    /// The ranks at the ends of the channels that have lost a rail.
    lost: BTreeSet<(usize, usize)>,
}

/// Sixteen ranks, each of which sends to the next one and to the fifth after it, lose link 0 between these pairs of ranks
/// for a second. Checks that no message is lost and each rail comes back.
fn without_links(death: Death, links: &[(usize, usize)]) -> Spread {
    let to = |from: usize| [(from, (from + 1) % 16), (from, (from + 5) % 16)];
    let pairs: Vec<(usize, usize)> = (0..16).flat_map(to).collect();
    let mut job = Job::new((1, 2 * MILLISECOND), (16, 2), &pairs, 1000);
    job.run(50);
    job.paces.iter_mut().for_each(|pace| pace.2 = 0);
    links.iter().for_each(|link| kill(&mut job.world.wire, *link, 0, death));
    job.run(500);
    links.iter().for_each(|link| revive(&mut job.world.wire, *link, 0));
    job.finish();
    let delays = job.paces.iter().map(|(_, _, longest)| longest / MILLISECOND);
    let data = &job.world.wire.data;
    let far = |node: usize, id: ChannelId| data.channels[node][id.0 as usize].far;
    let lost = data.losses.iter().map(|(node, channel, _)| (*node, far(*node, *channel)));
    Spread { delays: pairs.into_iter().zip(delays).collect(), lost: lost.collect() }
}

/// What only a close can fence is closed. The other ranks' channels to these two lose that rail in order, and no time.
#[test]
fn a_link_that_fails_between_two_of_sixteen_ranks_delays_only_what_these_send_each_other() {
    for death in [Death::Loud, Death::Silent, Death::Refusing] {
        let Spread { delays, lost } = without_links(death, &[(0, 1)]);
        for (pair, delay) in delays {
            assert!(delay < if pair == (0, 1) { 700 } else { 50 }, "{pair:?}: {delay} ms");
        }
        assert!(lost.iter().all(|(one, other)| *one < 2 || *other < 2), "{lost:?}");
        assert_eq!(lost.len() > 2, death != Death::Refusing, "nothing was closed: {lost:?}");
    }
}

/// Its peers close their endpoints of that rail where parts of it are missing, and their other channels lose it in order.
#[test]
fn a_nic_that_fails_at_one_of_sixteen_ranks_delays_only_what_this_one_sends_and_receives() {
    let links: Vec<(usize, usize)> = (1..16).map(|other| (0, other)).collect();
    for death in [Death::Loud, Death::Silent] {
        for ((from, to), delay) in without_links(death, &links).delays {
            assert!(
                delay < if from == 0 || to == 0 { 1000 } else { 50 },
                "{from} to {to}: {delay} ms"
            );
        }
    }
}

/// Between two checks of its timers a channel on which nothing arrives costs a poll one look into its inbox.
#[test]
fn a_poll_of_fifteen_idle_channels_looks_into_each_inbox_once() {
    const ROUNDS: usize = 100;
    let pairs: Vec<(usize, usize)> = (1..16).map(|from| (from, 0)).collect();
    let mut job = Job::new((1, MILLISECOND), (16, 1), &pairs, 20);
    job.finish();
    // Until everything is acknowledged.
    job.run(20);
    job.round = 1000;
    let before = job.world.wire.nodes[0].inbox_uses;
    job.run(ROUNDS);
    let uses = job.world.wire.nodes[0].inbox_uses - before;
    let polls = ROUNDS * POLLS_PER_ROUND;
    assert!((polls * 15..polls * 15 + 2 * 15).contains(&uses), "{uses} in {polls} polls");
}

/// Rounds of a microsecond, while timers are checked every 250.
#[test]
fn messages_do_not_wait_for_timers() {
    let mut job = Job::new((1, 1000), (2, 1), &[(0, 1)], 400);
    let begin = job.world.wire.now;
    let received = |job: &Job| job.paces.iter().all(|(received, _, _)| *received == 400);
    job.run_until(received);
    let took = job.world.wire.now - begin;
    assert!(took < MILLISECOND / 5, "{took} ns");
}

/// Two links fail that have no end in common, while a rank at the end of each has a channel to the other one. Each closes a rail of
/// its own, one after the other.
#[test]
fn links_that_fail_soon_after_each_other_at_different_rails_fail_no_channel() {
    let pairs = [(0, 1), (1, 0), (0, 2), (2, 0), (1, 3), (3, 1)];
    for between in [5, 10, 20, 50, 100] {
        let mut job = Job::new((1, 2 * MILLISECOND), (4, 2), &pairs, 1000);
        job.run(50);
        kill(&mut job.world.wire, (0, 2), 0, Death::Silent);
        job.run(between);
        kill(&mut job.world.wire, (1, 3), 1, Death::Silent);
        job.run(500);
        let closed = job.world.wire.faults.count(Fault::RailLostElsewhere);
        assert!(closed > 0, "{between}: nothing was closed");
        revive(&mut job.world.wire, (0, 2), 0);
        revive(&mut job.world.wire, (1, 3), 1);
        job.finish();
    }
}

/// What is missing by either rail can only be fenced by closing it, and each is the last one of the other channel.
#[test]
fn two_links_of_one_rank_that_fail_at_different_rails_fail_no_channel() {
    let pairs = [(0, 1), (1, 0), (0, 2), (2, 0)];
    let mut job = Job::new((1, 2 * MILLISECOND), (3, 2), &pairs, 1000);
    job.run(50);
    kill(&mut job.world.wire, (0, 1), 1, Death::Silent);
    kill(&mut job.world.wire, (0, 2), 0, Death::Silent);
    job.run(2000);
    revive(&mut job.world.wire, (0, 1), 1);
    revive(&mut job.world.wire, (0, 2), 0);
    job.finish();
}

/// Rank 0 closes its endpoint of that rail each time, which has another channel.
#[test]
fn a_link_that_flaps_takes_its_rail_from_no_other_channel_of_its_ranks_for_long() {
    const FLAPS: usize = 15;
    const ROUNDS: usize = 200;
    let pairs = [(0, 1), (1, 0), (0, 2), (2, 0)];
    let mut job = Job::new((1, 10 * MILLISECOND), (3, 2), &pairs, FLAPS * ROUNDS + 1);
    let ends = [0, 2].map(|node| {
        let channels = job.world.wire.data.channels[node].iter().zip((0..).map(ChannelId));
        let mut between = channels.filter(|(joined, _)| [node, joined.far] != [0, 1]);
        (node, between.next().unwrap().1)
    });
    let (mut open, mut until) = (0, 0);
    for _ in 0..FLAPS {
        for round in 0..ROUNDS {
            match round {
                0 => kill(&mut job.world.wire, (0, 1), 0, Death::Silent),
                70 => revive(&mut job.world.wire, (0, 1), 0),
                _ => {}
            }
            until += 1;
            job.world.conversations.iter_mut().for_each(|one| one.until = until);
            job.run(1);
            let is_open = |(node, id): &(usize, ChannelId)| {
                job.world.ranks[*node].endpoint.account(*id).unwrap().loads.is_open(0)
            };
            open += usize::from(ends.iter().all(is_open));
        }
    }
    let closed = job.world.wire.faults.count(Fault::RailLostElsewhere);
    let all = FLAPS * ROUNDS;
    assert!(closed >= 5, "closed {closed} times");
    assert!(10 * open >= 8 * all, "open in {open} rounds of {all}, closed {closed} times");
    job.world.conversations.iter_mut().for_each(|one| one.until = usize::MAX);
    job.finish();
}

/// Both applications make no calls any more. While nothing is under way their keepers poll once a second.
#[test]
fn a_rail_comes_back_between_endpoints_that_only_their_keepers_poll() {
    let mut job = Job::new((1, 10 * MILLISECOND), (2, 2), &[(0, 1), (1, 0)], 100);
    job.run(2);
    kill(&mut job.world.wire, (0, 1), 0, Death::Silent);
    job.run_until(|job| job.lost() == 2 && job.world.at_rest());
    job.world.ranks.iter_mut().for_each(|rank| rank.calling = false);
    job.run(1000);
    assert_eq!(job.returned(), 0);
    revive(&mut job.world.wire, (0, 1), 0);
    job.finish();
}

/// Messages go both ways while one of four links fails, in each way, and works again.
#[test]
fn a_thousand_flaps_lose_and_change_no_byte() {
    for seed in 0..10 {
        let mut job = Job::new((seed, 10 * MILLISECOND), (2, 4), &[(0, 1), (1, 0)], 1200);
        for flap in 0..100 {
            job.world.conversations.iter_mut().for_each(|one| one.until = 12 * (flap + 1));
            job.run(2);
            let random = &mut job.world.wire.random;
            let link = random.below(4) as u8;
            let death = random.pick(&[Death::Loud, Death::Silent, Death::Refusing]);
            kill(&mut job.world.wire, (0, 1), link, death);
            job.run_until(|job| job.lost() == 2 * (flap + 1));
            revive(&mut job.world.wire, (0, 1), link);
            let arrived = |(received, _, _): &(usize, u64, u64)| *received == 12 * (flap + 1);
            job.run_until(|job| job.returned() == 2 * (flap + 1) && job.paces.iter().all(arrived));
            // A rail that is lost again within a minute pauses longer.
            job.world.wire.now += 61_000 * MILLISECOND;
        }
        job.finish();
    }
}

/// A part is lost in silence, and its rail works again at once, while another connection of the channel exchanges short
/// messages all the time. Only a STATUS shows what is missing.
#[test]
fn a_part_that_is_lost_in_silence_is_found_while_short_messages_go_on() {
    let world = World::job_with(512, Random::new(1), (2, 2), 8);
    let mut job = Job { world, round: 2 * MILLISECOND, paces: vec![(0, 0, 0); 2] };
    job.world.connect_for([0, 1], (200, MESSAGE));
    job.world.connect_for([0, 1], (4000, 8));
    job.world.conversations[1].go_inline();
    job.run_until(Job::is_open);
    (job.world.conversations[0].until, job.world.conversations[1].until) = (20, 1);
    job.run(20);
    kill(&mut job.world.wire, (0, 1), 0, Death::Silent);
    job.world.conversations[0].until = 200;
    let mut found = None;
    for round in 0..1000 {
        job.world.conversations[1].until += 1;
        job.run(1);
        if round == 1 {
            revive(&mut job.world.wire, (0, 1), 0);
        }
        if found.is_none() && job.lost() > 0 {
            found = Some(2 * round);
        }
    }
    let received: Vec<usize> = job.paces.iter().map(|pace| pace.0).collect();
    assert!(found.is_some_and(|ms| ms < 800), "found after {found:?} ms, received {received:?}");
    assert_eq!(received[0], 200);
    assert!(received[1] > 900, "there were no short messages: {received:?}");
}

/// Writes complete at any time, so that only the receiver knows when parts have arrived. In equal shares one link of a quarter of
/// the speed would have all of them carry 125 messages in that time.
#[test]
fn links_of_unequal_speed_carry_their_sum_although_completions_prove_nothing() {
    let mut job = Job::new((1, MILLISECOND), (2, 4), &[(0, 1)], 4000);
    job.world.wire.data.paces[..4].copy_from_slice(&[2, 2, 8, 2].map(|pace| pace * MILLISECOND));
    job.run(500);
    let before = job.paces[0].0;
    job.run(1000);
    let carried = job.paces[0].0 - before;
    // Four parts a message.
    let could = 1000 * (3 * 4 + 1) / (8 * 4);
    assert!(100 * carried >= 93 * could, "{carried} messages of {could}");
    job.world.wire.data.paces = [0; 16];
    job.finish();
}

#[test]
fn a_refused_part_of_one_channel_makes_no_poll_visit_the_others() {
    let looks = |refusing: bool| {
        let pairs: Vec<(usize, usize)> = (1..16).map(|to| (0, to)).collect();
        let mut job = Job::new((1, MILLISECOND), (16, 1), &pairs, 40);
        job.world.conversations.iter_mut().for_each(|one| one.until = 20);
        job.run(200);
        if refusing {
            kill(&mut job.world.wire, (0, 1), 0, Death::Refusing);
            job.world.conversations[0].until = 40;
            job.run(5);
        }
        job.round = 1000;
        let before = job.world.wire.nodes[0].inbox_uses;
        job.run(100);
        (job.world.wire.nodes[0].inbox_uses - before) / (100 * POLLS_PER_ROUND)
    };
    let (idle, refused) = (looks(false), looks(true));
    assert!(refused <= idle + 2, "{refused} looks into inboxes per poll, {idle} when idle");
}
