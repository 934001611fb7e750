//! The traffic class that a communicator asks for reaches its rails, and no others.

use std::time::Duration;

use crate::support::calls::warnings;
use crate::support::stage::play;
use crate::world::{World, provider};

/// Not defined, in NCCL's words.
const NONE: i32 = -1;
const CLASS: i32 = 104;
/// A data rail and a control rail on each of two NICs.
const ENDPOINTS: u64 = 4;

#[test]
fn a_communicators_traffic_class_reaches_its_rails() {
    play(&[provider()], Duration::from_secs(60), |part| {
        let world = World::open(part, "efa", [2, 2]);
        let net = world.nets[0];
        let mut in_class = 0;
        for (asked, rails) in [(NONE, 0), (CLASS, ENDPOINTS), (0, ENDPOINTS), (NONE, 0), (256, 0)] {
            let context = net.init_in_class(asked).expect("init");
            let (_, listener) = net.listen(context, 0).expect("listen");
            in_class += rails;
            assert_eq!(
                world.fabric.number("counter.endpoints.in_class"),
                in_class,
                "class {asked}"
            );
            net.close_listen(listener).expect("closeListen");
            net.finalize(context).expect("finalize");
        }
        assert_eq!(warnings().len(), 1, "only 256 is no class: {:?}", warnings());
        world.fabric.is_clean();
    });
}
