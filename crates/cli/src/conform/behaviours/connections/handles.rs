//! What listen gives: the comm and its handle.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use net_loader::raw::HandlePlace;

use super::finish;
use crate::conform::behaviours::{few, talk};
use crate::conform::case::{Case, Outcome, fail, hold};
use crate::conform::link::{Link, Opening, place};
use crate::conform::pace::{at_once, soon};
use crate::conform::traffic::Manner;

pub(super) fn listen_returns_a_comm_at_once(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for device in 0..net.devices()? {
        // The first call on a device may take longer, to open it.
        let (first, _) = net.listen(device)?;
        let (listener, _) = at_once("listen", || Ok(net.listen(device)?))?;
        soon("closeListen", || Ok(listener.close()?))?;
        first.close()?;
    }
    Ok(net.finalize()?)
}

pub(super) fn handle_stays_within_128_bytes(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for device in 0..net.devices()? {
        let (listener, handle) = net.listen(device)?;
        hold!(handle.overrun() == 0, "listen wrote {} bytes outside the handle", handle.overrun());
        let mut copy = HandlePlace::of(handle.bytes());
        let mut opening = Opening::default();
        case.until("connect and accept", || {
            Ok(opening.step(&net, device, &mut copy, &listener, false)?.then_some(()))
        })?;
        let over = copy.overrun();
        hold!(over == 0, "connect wrote {over} bytes outside the handle");
        hold!(handle.overrun() == 0, "the listener's own handle is overrun");
        opening.link()?.close()?;
        listener.close()?;
    }
    Ok(net.finalize()?)
}

pub(super) fn handle_is_copied_bytes(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let (listener, mut original) = net.listen(0)?;
    let bytes = original.bytes();
    // The memory that listen wrote to is reused, and each attempt passes the same buffer to connect, as NCCL does.
    original.fill(0xdb);
    let mut copy = HandlePlace::of(bytes);
    let mut opening = Opening::default();
    case.until("connect from a copy of the handle", || {
        Ok(opening.step(&net, 0, &mut copy, &listener, false)?.then_some(()))
    })?;
    hold!(original.bytes() == [0xdb; 128], "the handle's first place was written after listen");
    finish(case, net, listener, opening)
}

pub(super) fn handles_differ(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let mut handles = HashSet::new();
    let mut listeners = Vec::new();
    for number in 0..32 {
        let (listener, handle) = net.listen(0)?;
        hold!(handles.insert(handle.bytes()), "listener {number} has another's handle");
        listeners.push(listener);
    }
    while !listeners.is_empty() {
        listeners.swap_remove(listeners.len() / 2).close()?;
    }
    Ok(net.finalize()?)
}

pub(super) fn listener_never_connected(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for round in 0..20 {
        let (listener, _) = net.listen(0)?;
        for _ in 0..round {
            hold!(listener.accept(false)?.is_none(), "accept gave a comm without a peer");
        }
        soon("closeListen", || Ok(listener.close()?))?;
    }
    Ok(net.finalize()?)
}

pub(super) fn foreign_handle_is_refused(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let mixed: Vec<u8> = (0..128u32).map(|byte| (byte * 151 % 251).to_le_bytes()[0]).collect();
    for bytes in [vec![0; 128], vec![0xff; 128], mixed] {
        let mut handle = place(&bytes)?;
        let end = Instant::now() + Duration::from_millis(150);
        case.stage("connect with a handle of another plugin");
        while Instant::now() < end {
            match at_once("connect", || Ok(net.connect(0, &mut handle, false).ok().flatten()))? {
                None => {}
                Some(_) => return fail("connect gave a comm"),
            }
        }
        hold!(handle.overrun() == 0, "connect wrote outside the handle");
    }
    let link = Link::open(case, &net)?;
    talk(case, &link, &few(), Manner::LIKE_NCCL)?;
    link.close()?;
    Ok(net.finalize()?)
}
