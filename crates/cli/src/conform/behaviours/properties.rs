//! The properties that getProperties must return.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use net_loader::raw::{self, Before, Net, Receive};

use super::super::behaviour::{Behaviour, one};
use super::super::case::{COMMUNICATOR, Case, Outcome, fail, hold, skip};
use super::super::link::Link;
use super::super::traffic::{GUARD_BYTES, arena, check, clear, pattern};
use super::properties;

pub(in super::super) const ALL: &[Behaviour] = &[
    one(
        "properties-write-every-field",
        "every field is written: NCCL passes an uninitialised struct",
        "NCCL src/plugin/net.cc:140-163, 220",
        properties_write_every_field,
    ),
    one(
        "properties-name-each-device-once",
        "name is there and differs from device to device: it is the key of the topology's node",
        "NCCL src/graph/xml.cc:1098 (ncclTopoFillNet)",
        properties_name_each_device_once,
    ),
    one(
        "properties-stay-the-same",
        "a device's properties do not change from call to call, nor from communicator to communicator",
        "NCCL src/plugin/net.cc:140-163; the proxies call getProperties again (NCCL src/transport/net.cc)",
        properties_stay_the_same,
    ),
    one(
        "properties-strings-live-on",
        "name and pciPath stay readable as long as the library is open, after finalize too",
        "NCCL src/plugin/net/net_vN.cc (the wrapper keeps the pointers)",
        properties_strings_live_on,
    ),
    one(
        "properties-pci-path-is-real",
        "pciPath is null or a canonical directory of sysfs without a slash at its end",
        "NCCL src/graph/xml.cc:1122",
        properties_pci_path_is_real,
    ),
    one(
        "properties-host-memory",
        "ptrSupport has the bit of host memory, and no bit that NCCL does not know",
        "NCCL src/include/plugin/nccl_net.h (NCCL_PTR_HOST 1, CUDA 2, DMABUF 4)",
        properties_host_memory,
    ),
    one(
        "properties-speed-and-latency",
        "speed is positive, latency a number of microseconds, port not negative",
        "NCCL src/graph/topo.cc:418, 1644; NCCL src/graph/tuning.cc:389",
        properties_speed_and_latency,
    ),
    one(
        "properties-counts",
        "maxRecvs is 1..64 and maxComms positive",
        "NCCL src/include/proxy.h:58 (NCCL_PROXY_MAX_SUBS)",
        properties_counts,
    ),
    one(
        "properties-ports-differ",
        "two devices with one guid and port are one port to NCCL, used once",
        "NCCL src/graph/search.cc:748",
        properties_ports_differ,
    ),
    one(
        "properties-device-type",
        "netDeviceType is HOST, or UNPACK with its version",
        "NCCL src/plugin/net.cc:140-163, 220",
        properties_device_type,
    )
    .since(7),
    one(
        "properties-flags",
        "regIsGlobal and forceFlush are 0 or 1",
        "NCCL plugins/net/README.md; NCCL src/graph/paths.cc:572-597",
        properties_flags,
    )
    .since(8),
    one(
        "properties-size-limits",
        "maxP2pBytes is 1 to 1 TiB, or setup fails",
        "NCCL src/transport/net.cc:760-767",
        properties_size_limits,
    )
    .since(9),
    one(
        "properties-parts",
        "vProps names the device itself, or physical devices that exist: wrappers loop over ndevs unchecked",
        "NCCL src/graph/topo.cc:1738-1748; NCCL src/plugin/net/net_v11.cc",
        properties_parts,
    )
    .since(9),
    one(
        "properties-requests-in-one",
        "maxMultiRequestSize is 1 at least",
        "NCCL src/include/plugin/net (net_v11.h)",
        properties_requests_in_one,
    )
    .since(11),
    one(
        "properties-rail-and-plane",
        "railId and planeId are -1 for unknown, or not negative: 0 is a rail like any other",
        "NCCL src/graph/search.cc:597-607 (NCCL_NET_ID_UNDEF)",
        properties_rail_and_plane,
    )
    .since(12),
    one(
        "properties-global-regions-are-global",
        "with regIsGlobal a region made on one comm serves another comm of the device",
        "NCCL plugins/net/README.md (regIsGlobal)",
        properties_global_regions_are_global,
    )
    .since(8),
    one(
        "properties-dmabuf-has-its-call",
        "ptrSupport with the DMA-BUF bit means that regMrDmaBuf is there",
        "NCCL src/init.cc:402-424",
        properties_dmabuf_has_its_call,
    ),
];

fn properties_write_every_field(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for device in 0..net.devices()? {
        let (first, second) =
            (net.properties_over(device, 0xa5)?, net.properties_over(device, 0x5a)?);
        let unwritten = |at: usize| first[at] == 0xa5 && second[at] == 0x5a;
        let missed: Vec<&str> = net
            .property_fields()
            .iter()
            .filter(|field| (field.at..field.at + field.len).any(unwritten))
            .map(|field| field.name)
            .collect();
        hold!(missed.is_empty(), "device {device}: {} left as it was", missed.join(", "));
    }
    Ok(net.finalize()?)
}

fn properties_name_each_device_once(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let mut names = HashSet::new();
    for (device, found) in properties(&net)?.into_iter().enumerate() {
        hold!(!found.name.is_empty(), "device {device} has no name");
        let new = names.insert(found.name.clone());
        hold!(new, "two devices are named {}", found.name);
    }
    Ok(net.finalize()?)
}

fn properties_stay_the_same(case: &mut Case) -> Outcome {
    let library = case.library()?;
    let net = Net::init(&library, COMMUNICATOR)?;
    let first = properties(&net)?;
    for _ in 0..5 {
        hold!(properties(&net)? == first, "properties change from call to call");
    }
    let other = Net::init(&library, COMMUNICATOR + 1)?;
    hold!(properties(&other)? == first, "properties change from communicator to communicator");
    net.finalize()?;
    hold!(properties(&other)? == first, "properties change with another's finalize");
    Ok(other.finalize()?)
}

fn properties_strings_live_on(case: &mut Case) -> Outcome {
    let library = case.library()?;
    let net = Net::init(&library, COMMUNICATOR)?;
    let mut kept = Vec::new();
    for device in 0..net.devices()? {
        kept.push((net.properties(device)?, net.keep_strings(device)?));
    }
    net.finalize()?;
    if case.version() >= 11 {
        // Another communicator starts and ends, and the heap is used, in between.
        Net::init(&library, COMMUNICATOR + 1)?.finalize()?;
    }
    let churn: Vec<String> = (0..2000).map(|number| format!("{number:>40}")).collect();
    drop(churn);
    for (found, strings) in kept {
        let (name, path) = strings.read();
        hold!(name.as_ref() == Some(&found.name), "the name {} has become {name:?}", found.name);
        hold!(path == found.pci_path, "pciPath {:?} has become {path:?}", found.pci_path);
    }
    Ok(())
}

fn properties_pci_path_is_real(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for (device, found) in properties(&net)?.into_iter().enumerate() {
        let Some(path) = found.pci_path else { continue };
        hold!(path.starts_with("/sys/"), "device {device}: {path} is not in sysfs");
        hold!(Path::new(&path).is_dir(), "device {device}: {path} is no directory");
        let real = fs::canonicalize(&path)?;
        hold!(real.as_os_str() == path.as_str(), "device {device}: {path} is {}", real.display());
    }
    Ok(net.finalize()?)
}

fn properties_host_memory(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for (device, found) in properties(&net)?.into_iter().enumerate() {
        let kinds = found.memory_kinds;
        hold!(kinds & 1 == 1 && kinds & !7 == 0, "device {device}: ptrSupport is {kinds:#x}");
    }
    Ok(net.finalize()?)
}

fn properties_speed_and_latency(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for (device, found) in properties(&net)?.into_iter().enumerate() {
        hold!(found.speed_mbps > 0, "device {device}: speed is {}", found.speed_mbps);
        hold!(found.port >= 0, "device {device}: port is {}", found.port);
        let latency = found.latency_us;
        let sane = (0.0..1e6).contains(&latency);
        hold!(sane, "device {device}: latency is {latency} microseconds");
    }
    Ok(net.finalize()?)
}

fn properties_counts(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for (device, found) in properties(&net)?.into_iter().enumerate() {
        let group = found.group_max;
        hold!((1..=64).contains(&group), "device {device}: maxRecvs is {group}");
        hold!(found.comms_max > 0, "device {device}: maxComms is {}", found.comms_max);
    }
    Ok(net.finalize()?)
}

fn properties_ports_differ(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let all = properties(&net)?;
    if all.len() < 2 {
        return skip("there is one device");
    }
    let mut ports = HashSet::new();
    for found in all.iter().filter(|found| found.parts.len() < 2) {
        let new = ports.insert((found.guid, found.port));
        hold!(new, "{} shares guid {:#x} and port {}", found.name, found.guid, found.port);
    }
    Ok(net.finalize()?)
}

fn properties_device_type(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for (device, found) in properties(&net)?.into_iter().enumerate() {
        let (kind, version) = (found.device_type, found.device_version);
        hold!(
            kind == 0 || (kind == 1 && version > 0),
            "device {device}: netDeviceType {kind}, version {version}"
        );
    }
    Ok(net.finalize()?)
}

fn properties_flags(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for device in 0..net.devices()? {
        let bytes = net.properties_over(device, 0xa5)?;
        for field in net.property_fields() {
            if field.name == "regIsGlobal" || field.name == "forceFlush" {
                let value = &bytes[field.at..field.at + field.len];
                let fits = value[0] <= 1 && value[1..].iter().all(|byte| *byte == 0);
                hold!(fits, "device {device}: {} is {value:02x?}", field.name);
            }
        }
    }
    Ok(net.finalize()?)
}

fn properties_size_limits(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for (device, found) in properties(&net)?.into_iter().enumerate() {
        let bytes = found.point_to_point_bytes_max;
        hold!((1..=1 << 40).contains(&bytes), "device {device}: maxP2pBytes is {bytes}");
    }
    Ok(net.finalize()?)
}

fn properties_parts(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let count = net.devices()?;
    let most = if case.version() >= 12 { 8 } else { 4 };
    for device in 0..count {
        let bytes = net.properties_over(device, 0xa5)?;
        let fields = net.property_fields();
        let Some(field) = fields.iter().find(|field| field.name == "vProps.ndevs") else {
            return fail("there is no vProps");
        };
        let ndevs = i32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[field.at + byte]));
        hold!((1..=most).contains(&ndevs), "device {device}: vProps.ndevs is {ndevs}");
        let parts = net.properties(device)?.parts;
        let known = parts.iter().all(|part| (0..count).contains(part));
        hold!(known, "device {device}: vProps names {parts:?} of {count} devices");
        hold!(ndevs > 1 || parts == [device], "device {device}: vProps names {parts:?}");
    }
    Ok(net.finalize()?)
}

fn properties_requests_in_one(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for (device, found) in properties(&net)?.into_iter().enumerate() {
        let most = found.multi_request_max;
        hold!((1..=1 << 20).contains(&most), "device {device}: maxMultiRequestSize is {most}");
    }
    Ok(net.finalize()?)
}

fn properties_rail_and_plane(case: &mut Case) -> Outcome {
    let net = case.net()?;
    for (device, found) in properties(&net)?.into_iter().enumerate() {
        let fits = |id: Option<i16>| id.is_none_or(|id| id >= 0);
        hold!(
            fits(found.rail) && fits(found.plane),
            "device {device}: railId {:?}, planeId {:?}",
            found.rail,
            found.plane
        );
    }
    Ok(net.finalize()?)
}

fn properties_global_regions_are_global(case: &mut Case) -> Outcome {
    let net = case.net()?;
    if !net.properties(0)?.regions_are_global {
        net.finalize()?;
        return skip("regIsGlobal is 0");
    }
    let (one, other) = (Link::open(case, &net)?, Link::open(case, &net)?);
    let memory = arena(3 * 4096)?;
    let out = one.send.register(memory, 0, 4096)?;
    let into = one.receive.register(memory, 4096, 8192)?;
    let bytes = pattern(1, 1, 1000);
    memory.write(0, &bytes);
    let at = 4096 + GUARD_BYTES;
    clear(memory, at, 1000);
    let part = Receive { arena: memory, at, len: 1000, tag: 0, region: &into };
    let mut receive = case.until("post a receive with another comm's region", || {
        Ok(other.receive.irecv(&[part], Before::Null, true)?)
    })?;
    let mut send = case.until("post a send with another comm's region", || {
        Ok(other.send.isend((memory, 0, 1000), 0, &out, Before::Null)?)
    })?;
    let (mut sent, mut came) = (false, false);
    case.until("move a message with another comm's regions", || {
        sent = sent || send.test()?.done;
        came = came || receive.test()?.done;
        Ok((sent && came).then_some(()))
    })?;
    if let Err(why) = check(memory, at, &bytes, 1000) {
        return fail(why);
    }
    out.deregister()?;
    into.deregister()?;
    one.close()?;
    other.close()?;
    Ok(net.finalize()?)
}

fn properties_dmabuf_has_its_call(case: &mut Case) -> Outcome {
    let net = case.net()?;
    let takes = raw::takes_dmabuf(&*case.library()?);
    for (device, found) in properties(&net)?.into_iter().enumerate() {
        hold!(
            takes || found.memory_kinds & 4 == 0,
            "device {device} has the DMA-BUF bit, and the table no regMrDmaBuf"
        );
    }
    Ok(net.finalize()?)
}
