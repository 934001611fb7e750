//! Devices that NCCL makes of several (makeVDevice): they have all rails of their parts, and all of them carry data.

use std::time::Duration;

use net_abi::ResultCode;

use crate::support::calls::{Net, Object};
use crate::support::link::{Link, SLOT, wait};
use crate::support::stage::play;
use crate::support::virtual_fabric::set;
use crate::world::{World, provider};

const PATIENCE: Duration = Duration::from_secs(60);
/// Each NIC of the fabric is a device: no rails are named, and the NICs' places are unknown.
const FOUND: i32 = 16;

fn link(net: Net, context: Object, device: i32) -> Link {
    let (mut handle, listener) = net.listen(context, device).expect("listen");
    let (mut send, mut receive) = (None, None);
    wait("connect and accept", || {
        send = send.or_else(|| net.connect(context, device, &mut handle).expect("connect"));
        receive = receive.or_else(|| net.accept(listener).expect("accept"));
        send.is_some() && receive.is_some()
    });
    net.close_listen(listener).expect("close");
    Link::of(net, send.expect("connected"), receive.expect("accepted"))
}

/// The bytes that NICs have moved.
fn moved(world: &World, nics: &[u32]) -> Vec<u64> {
    nics.iter().map(|nic| world.fabric.number(&format!("nic.{nic}.bytes"))).collect()
}

#[test]
fn a_fused_device_moves_data_on_all_its_rails_and_on_no_other() {
    play(&[provider()], PATIENCE, |part| {
        let world = World::open(part, "cxi", [0, 0]);
        let net = world.nets[0];
        let context = net.init().expect("init");
        assert_eq!(net.devices().expect("devices"), FOUND);
        let fused = net.make_device(&[1, 3, 4]).expect("makeVDevice");
        assert_eq!((fused, net.devices().expect("devices")), (FOUND, FOUND + 1));
        let properties = net.properties(fused).expect("getProperties");
        assert_eq!((properties.speed, properties.v_props.ndevs), (600_000, 3));
        assert_eq!(properties.v_props.devs[..3], [1, 3, 4]);
        let alone = net.properties(3).expect("getProperties");
        assert_eq!((alone.v_props.ndevs, alone.v_props.devs[0]), (1, 3));

        let mut link = link(net, context, fused);
        link.works();
        link.exchange(16, SLOT).expect("long messages");
        let (used, idle) = (moved(&world, &[1, 3, 4]), moved(&world, &[0, 2, 5]));
        assert!(used.iter().all(|bytes| *bytes > 16 * SLOT as u64 / 6), "{used:?}");
        assert_eq!(idle, [0, 0, 0], "what was not fused stays out of it");
        link.close();
        net.finalize(context).expect("finalize");
        world.fabric.is_clean();
    });
}

#[test]
fn rails_of_unequal_speed_are_fused_too() {
    play(&[provider()], PATIENCE, |part| {
        set("VFABRIC_SPEED", "200000,100000,25000,200000");
        let world = World::open(part, "efa", [0, 0]);
        let net = world.nets[0];
        let context = net.init().expect("init");
        let fused = net.make_device(&[0, 1, 2]).expect("makeVDevice");
        assert_eq!(net.properties(fused).expect("getProperties").speed, 325_000);
        let mut link = link(net, context, fused);
        link.works();
        link.exchange(16, SLOT).expect("long messages");
        assert!(moved(&world, &[0, 1, 2]).iter().all(|bytes| *bytes > 0));
        link.close();
        net.finalize(context).expect("finalize");
        world.fabric.is_clean();
    });
}

#[test]
fn fused_devices_are_forgotten_when_nccl_loads_the_plugin_anew() {
    play(&[provider()], PATIENCE, |part| {
        let world = World::open(part, "cxi", [0, 0]);
        let net = world.nets[0];
        let context = net.init().expect("init");
        let fused = net.make_device(&[0, 1]).expect("makeVDevice");
        // A second communicator is counted, as by NCCL.
        let second = net.init().expect("init");
        assert_eq!(net.devices().expect("devices"), FOUND + 1);
        net.finalize(second).expect("finalize");
        net.finalize(context).expect("finalize");
        let context = net.init().expect("init");
        assert_eq!(net.devices().expect("devices"), FOUND);
        assert_eq!(net.make_device(&[2, 3]).expect("makeVDevice"), fused);
        assert_eq!(net.properties(fused).expect("getProperties").v_props.devs[..2], [2, 3]);
        link(net, context, fused).close();
        net.finalize(context).expect("finalize");
        world.fabric.is_clean();
    });
}

#[test]
fn devices_that_cannot_be_made_are_refused_in_words() {
    play(&[provider()], PATIENCE, |part| {
        let world = World::open(part, "cxi", [0, 0]);
        let net = world.nets[0];
        let context = net.init().expect("init");
        for parts in [&[][..], &[0, 0], &[0, 99], &[0, -1]] {
            let refused = net.make_device(parts).expect_err("makeVDevice");
            assert_eq!(refused.code, ResultCode::INVALID_ARGUMENT, "{parts:?}");
            assert_eq!(refused.said.len(), 1, "{refused:?}");
        }
        assert_eq!(net.devices().expect("devices"), FOUND);
        net.finalize(context).expect("finalize");
    });
}

/// Up to v11 there are four places, and up to v10 no contexts: `init` is called once each time that NCCL loads the plugin.
#[test]
fn the_table_v10_fuses_up_to_four() {
    play(&[provider()], PATIENCE, |part| {
        let world = World::open(part, "efa", [0, 0]);
        let net = world.nets[0];
        net.init_v10().expect("init");
        assert_eq!(net.devices().expect("devices"), FOUND);
        let refused = net.make_device_v10([0, 1, 2, 3], 5).expect_err("there are four places");
        assert_eq!(refused.code, ResultCode::INVALID_ARGUMENT);
        let fused = net.make_device_v10([0, 1, 2, 3], 4).expect("makeVDevice");
        assert_eq!(net.properties(fused).expect("getProperties").v_props.ndevs, 4);
        let (mut handle, listener) = net.listen_v10(fused).expect("listen");
        let (mut send, mut receive) = (None, None);
        wait("connect and accept", || {
            send = send.or_else(|| net.connect_v10(fused, -1, &mut handle).expect("connect"));
            receive = receive.or_else(|| net.accept(listener).expect("accept"));
            send.is_some() && receive.is_some()
        });
        net.close_listen(listener).expect("close");
        let mut link = Link::of(net, send.expect("connected"), receive.expect("accepted"));
        link.exchange(16, SLOT).expect("long messages");
        assert!(moved(&world, &[0, 1, 2, 3]).iter().all(|bytes| *bytes > 0));
        link.close();
        world.fabric.is_clean();
        net.init_v10().expect("init");
        assert_eq!(net.devices().expect("devices"), FOUND, "loaded anew");
        // NCCL 2.24 to 2.26 does not make it anew.
        assert_eq!(net.properties(fused).expect("getProperties").v_props.ndevs, 4);
        let (_, listener) = net.listen_v10(fused).expect("listen");
        net.close_listen(listener).expect("close");
        world.fabric.is_clean();
    });
}
