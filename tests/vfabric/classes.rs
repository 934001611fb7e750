//! The traffic class of a communicator is used on its data rails only; control rails request low latency.

use std::time::Duration;

use crate::support::calls::{Net, lines, warnings};
use crate::support::link::{Link, wait};
use crate::support::stage::play;
use crate::support::virtual_fabric::set;
use crate::world::{World, provider};

/// NCCL's value for an undefined class.
const NONE: i32 = -1;
const CLASS: i32 = 104;
/// Rails of each kind.
const RAILS: u64 = 2;

#[test]
fn a_communicators_traffic_class_reaches_its_rails() {
    play(&[provider()], Duration::from_secs(60), |part| {
        let world = World::open(part, "efa", [2, 2]);
        let net = world.nets[0];
        let number = |name: &str| world.fabric.number(&format!("counter.endpoints.{name}"));
        let (mut in_class, mut low_latency) = (0, number("low_latency"));
        for (asked, rails) in [(NONE, 0), (CLASS, RAILS), (0, RAILS), (NONE, 0), (256, 0)] {
            let context = net.init_in_class(asked).expect("init");
            let (_, listener) = net.listen(context, 0).expect("listen");
            in_class += rails;
            low_latency += RAILS;
            assert_eq!(number("in_class"), in_class, "class {asked}");
            assert_eq!(number("low_latency"), low_latency, "control rails, beside class {asked}");
            net.close_listen(listener).expect("closeListen");
            net.finalize(context).expect("finalize");
        }
        assert_eq!(warnings().len(), 1, "only 256 is no class: {:?}", warnings());
        world.fabric.is_clean();
    });
}

/// cxi supports labels only, and refuses a DSCP.
#[test]
fn a_provider_of_labels_gets_the_label_for_the_class() {
    play(&[provider()], Duration::from_secs(60), |part| {
        let world = World::open(part, "cxi", [2, 2]);
        let net = world.nets[0];
        let context = net.init_in_class(CLASS).expect("init");
        let (_, listener) = net.listen(context, 0).expect("listen");
        assert_eq!(world.fabric.number("counter.endpoints.in_class"), RAILS);
        assert_eq!(world.fabric.number("counter.endpoints.class_refused"), 0);
        assert_eq!(warnings(), Vec::<String>::new());
        net.close_listen(listener).expect("closeListen");
        net.finalize(context).expect("finalize");
        world.fabric.is_clean();
    });
}

#[test]
fn a_class_that_is_refused_is_one_line_and_the_rails_open_without() {
    play(&[provider()], Duration::from_secs(60), |part| {
        let world = World::open_and_say(part, "efa", [2, 2], "info");
        world.fabric.configure("profile=efa nics=16 classes=none");
        let net = world.nets[0];
        for _ in 0..2 {
            let context = net.init_in_class(CLASS).expect("init");
            let mut link = Link::to_self(net, context);
            link.works();
            link.close();
            net.finalize(context).expect("finalize");
        }
        assert_eq!(world.fabric.number("counter.endpoints.in_class"), 0);
        assert_eq!(world.fabric.number("counter.endpoints.low_latency"), 0);
        assert!(world.fabric.number("counter.endpoints.class_refused") > 0);
        let said = |words: &str| lines().iter().filter(|line| line.contains(words)).count();
        assert_eq!(said("the traffic class of the communicator"), 1, "of data rails");
        assert_eq!(said("without the low-latency traffic class"), 1, "of control rails");
        world.fabric.is_clean();
    });
}

/// The providers of sockets, and verbs, take every class.
#[test]
fn a_class_that_a_provider_takes_and_ignores_is_one_line() {
    play(&[], Duration::from_secs(60), |part| {
        for (name, value) in [("IRONRAIL_PROVIDER", "net"), ("IRONRAIL_RAILS", "127.0.0.1")] {
            set(name, value);
        }
        let net = Net::open(&part.plugin());
        for asked in [0, CLASS, CLASS] {
            let context = net.init_in_class(asked).expect("init");
            let (_, listener) = net.listen(context, 0).expect("listen");
            let expected = usize::from(asked != 0);
            let said = warnings();
            assert_eq!(said.len(), expected, "{said:?}");
            assert!(said.iter().all(|line| line.contains("(DSCP 26) is not used: net ignores")));
            net.close_listen(listener).expect("closeListen");
            net.finalize(context).expect("finalize");
        }
    });
}

#[test]
fn only_data_rails_of_connects_are_in_a_class_by_the_table_v10() {
    play(&[provider()], Duration::from_secs(60), |part| {
        let world = World::open(part, "efa", [2, 2]);
        let net = world.nets[0];
        net.init_v10().expect("init");
        let number = || world.fabric.number("counter.endpoints.in_class");
        let (mut handle, listener) = net.listen_v10(0).expect("listen");
        assert_eq!(number(), 0, "listen has no class");
        let (mut send, mut receive) = (None, None);
        wait("connect and accept", || {
            send = send.or_else(|| net.connect_v10(0, CLASS, &mut handle).expect("connect"));
            receive = receive.or_else(|| net.accept(listener).expect("accept"));
            send.is_some() && receive.is_some()
        });
        assert_eq!(number(), RAILS, "the data rails that connect");
        net.close_listen(listener).expect("closeListen");
        let mut link = Link::of(net, send.expect("connected"), receive.expect("accepted"));
        link.works();
        link.close();
        let (mut handle, listener) = net.listen_v10(0).expect("listen");
        let (mut send, mut receive) = (None, None);
        wait("connect and accept", || {
            send = send.or_else(|| net.connect_v10(0, NONE, &mut handle).expect("connect"));
            receive = receive.or_else(|| net.accept(listener).expect("accept"));
            send.is_some() && receive.is_some()
        });
        assert_eq!(number(), RAILS, "no class is requested");
        net.close_listen(listener).expect("closeListen");
        Link::of(net, send.expect("connected"), receive.expect("accepted")).close();
        world.fabric.is_clean();
    });
}
