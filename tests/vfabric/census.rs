//! How many libfabric objects the plugin makes for what it is asked, by the books of the provider.

use std::time::Duration;

use crate::support::calls::Buffer;
use crate::support::stage::play;
use crate::world::{End, World, connect, provider};

const BOUND: Duration = Duration::from_secs(60);
const RAILS: usize = 4;
/// Connections that one slab of control memory serves: a mailbox each at the one end, two rings at the other.
const CONNECTIONS: usize = 16;

/// Four data and four control rails, where every region is bound to one endpoint.
#[test]
fn only_a_buffer_costs_regions_and_only_one_per_data_rail() {
    play(&[provider()], BOUND, |part| {
        let World { nets, fabric } = World::open(part, "cxi", [RAILS, RAILS]);
        let opened = |kind: &str| fabric.number(&format!("opened.{kind}"));
        let open = |kind: &str| fabric.number(&format!("open.{kind}"));
        fabric.configure("profile=cxi nics=16");
        let ends = nets.map(End::open);
        let mut turn = false;
        let mut next = || {
            turn = !turn;
            turn
        };
        let first = connect(&ends[0], &ends[1], &mut next);
        // Per end, and per rail: an endpoint for data and one for control; regions for the landing page, for messages and
        // for one slab of rings.
        assert_eq!(open("endpoints"), 2 * 2 * RAILS as u64);
        assert_eq!(open("regions"), 2 * 3 * RAILS as u64);

        let (net, buffer) = (nets[0], Buffer::new(1 << 20));
        let region = net.register(first.0, buffer).expect("regMr");
        assert_eq!(open("regions"), 2 * 3 * RAILS as u64 + RAILS as u64);

        // The same buffer again, and a piece of it: the registration that is held.
        let (before, calls) = (opened("regions"), fabric.number("counter.calls"));
        let again = net.register(first.0, buffer).expect("regMr");
        let piece = net.register(first.0, buffer.part(4096, 8192)).expect("regMr");
        assert_eq!(opened("regions"), before);
        assert_eq!(fabric.number("counter.calls"), calls, "the provider was called");
        for region in [region, again, piece] {
            net.deregister(first.0, region).expect("deregMr");
        }
        assert_eq!(open("regions"), 2 * 3 * RAILS as u64);

        // One more connection costs nothing as long as the slab lasts, nor does what travels on it.
        let (regions, endpoints) = (opened("regions"), opened("endpoints"));
        let more: Vec<_> =
            (1..CONNECTIONS).map(|_| connect(&ends[0], &ends[1], &mut next)).collect();
        assert_eq!(opened("regions"), regions);
        assert_eq!(opened("endpoints"), endpoints);

        for (send, receive) in more.into_iter().chain([first]) {
            net.close_send(send).expect("closeSend");
            net.close_recv(receive).expect("closeRecv");
        }
        for _ in 0..TURNS {
            ends.iter().for_each(End::turn);
        }
        ends.into_iter().for_each(End::close);
        fabric.is_clean();
    });
}

/// Enough for the ends to hear each other's farewells.
const TURNS: u32 = 500;
