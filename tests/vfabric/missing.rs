//! Communicators that open while a NIC cannot be opened: they use the others, with peers that have it and with peers that do not.

use std::time::{Duration, Instant};

use crate::link::Link;
use crate::support::calls::lines;
use crate::support::stage::{Part, play, play_each};
use crate::together::close_together;
use crate::world::{End, World, provider};

const BOUND: Duration = Duration::from_secs(120);
const WAIT: Duration = Duration::from_secs(30);
/// In parts on every rail.
const LEN: usize = 6000;
/// More NICs than control rails: where the first are missing, later ones carry control.
const RAILS: usize = 6;

fn world(part: &Part, profile: &str) -> World {
    crate::support::virtual_fabric::set("IRONRAIL_STRIPE_MIN", "128");
    crate::support::virtual_fabric::set("IRONRAIL_MAX_CONTROL_RAILS", "2");
    let world = World::open_and_say(part, profile, [RAILS, RAILS], "info");
    let immediates = if profile == "cxi" { "immediates=1" } else { "" };
    world.fabric.configure(&format!("profile={profile} nics=16 {immediates}"));
    world
}

/// Messages both of one part and of many, and which NICs have carried them.
fn carried(link: &Link) -> Vec<bool> {
    let moved = |nic: usize| link.fabric.number(&format!("nic.{nic}.bytes"));
    let before: Vec<u64> = (0..RAILS).map(moved).collect();
    for _ in 0..4 {
        link.into.write(0, &[0xee; LEN]);
        let received = link.irecv(0, LEN, 0);
        let start = Instant::now();
        let sent = loop {
            if let Some(sent) = link.isend(0, LEN, 0) {
                break sent;
            }
            link.poll();
            assert!(start.elapsed() < WAIT, "its receive is not advertised");
        };
        assert_eq!(link.finish(sent), LEN);
        assert_eq!(link.finish(received), LEN);
        assert!(link.has(0, 0, LEN));
    }
    (0..RAILS).map(|nic| moved(nic) > before[nic]).collect()
}

fn close(link: &Link) {
    link.close_comms();
    link.poll();
    close_together(link.ends);
}

fn logged(words: &str) -> usize {
    lines().iter().filter(|line| line.contains(words)).count()
}

#[test]
fn a_communicator_opens_without_the_nics_that_cannot_be_opened_and_the_next_one_with_them() {
    let cases = ["cxi 0,1,2", "efa 3", "tcp 0,5", "adversary 1"];
    play_each(&cases, &[provider()], BOUND, |part, case| {
        let (profile, missing) = case.split_once(' ').expect("two words");
        let missing: Vec<u32> =
            missing.split(',').map(|nic| nic.parse().expect("a number")).collect();
        let world = world(part, profile);
        // Which ends lack them: none, the one that sends, the one that receives, both, none again.
        for lacking in [[false; 2], [true, false], [false, true], [true; 2], [false; 2]] {
            let open = |lacks: bool| {
                let action = if lacks { "absent" } else { "present" };
                missing.iter().for_each(|nic| world.fabric.change(*nic, action));
                End::open(world.nets[0])
            };
            let ends = lacking.map(open);
            let link = Link::open(world, ends);
            let expected: Vec<bool> = (0..u32::try_from(RAILS).expect("few"))
                .map(|nic| lacking == [false; 2] || !missing.contains(&nic))
                .collect();
            link.warm();
            let used = carried(&link);
            // Where ends differ, NICs of one fabric pair by their order, and one end's last ones stay unused.
            if lacking[0] == lacking[1] {
                assert_eq!(used, expected, "{case}, {lacking:?}");
            }
            close(&link);
        }
        // Each time that it changed, and not with each communicator.
        for nic in &missing {
            let words = format!(
                "runs without vnic{nic} at vfabric://{nic}/, which cannot be opened: fi_enable"
            );
            assert_eq!(logged(&words), 2, "{case}: {:?}", lines());
            let again = format!("vnic{nic} at vfabric://{nic}/ can be opened again");
            assert_eq!(logged(&again), 2, "{case}: {:?}", lines());
        }
        assert_eq!(logged("runs without"), 2 * missing.len(), "{case}: {:?}", lines());
        // As many of the other end's rails have no partner. They are the same ones, whichever end lacks some.
        let unpaired = format!("{} of {RAILS} rails carry messages to it", RAILS - missing.len());
        assert_eq!(logged(&unpaired), missing.len(), "{case}: {:?}", lines());
        assert_eq!(logged("to pair with our rail"), missing.len(), "{case}: {:?}", lines());
        world.fabric.is_clean();
    });
}

#[test]
fn listen_fails_where_no_nic_can_be_opened() {
    play(&[provider()], BOUND, |part| {
        let world = world(part, "tcp");
        (0..6).for_each(|nic| world.fabric.change(nic, "absent"));
        let context = world.nets[0].init().expect("init");
        let failure = world.nets[0].listen(context, 0).expect_err("no NIC is there");
        assert!(failure.said[0].contains("cannot use vnic0: fi_enable"), "{failure:?}");
        assert_eq!(logged("runs without"), 0, "{:?}", lines());
        (0..6).for_each(|nic| world.fabric.change(nic, "present"));
        let (_, listener) = world.nets[0].listen(context, 0).expect("all are there");
        world.nets[0].close_listen(listener).expect("closeListen");
        world.nets[0].finalize(context).expect("finalize");
        world.fabric.is_clean();
    });
}
