//! A device's properties for NCCL (ncclNetProperties), from its plan.

use std::ffi::{CStr, CString};
use std::fs;

use fabric::core_provider;

use super::DeviceProperties;
use super::hash::fnv1a;
use super::options;
use super::plan::{DevicePlan, RailPlan};
use crate::types::Protocol;

/// The properties of all devices.
pub(crate) fn of_all(plans: &[DevicePlan]) -> Vec<DeviceProperties> {
    let networks: Vec<_> = plans.iter().map(network).collect();
    let planes = planes(&networks);
    let of = |(index, plan): (usize, &DevicePlan)| DeviceProperties {
        plane: planes[index],
        ..of(index, plan)
    };
    plans.iter().enumerate().map(of).collect()
}

/// The properties of a device that NCCL has made of `parts`.
pub(super) fn of_made(
    index: usize,
    plan: &DevicePlan,
    parts: &[usize],
    part: impl Fn(usize) -> DeviceProperties,
) -> DeviceProperties {
    let properties: Vec<_> = parts.iter().map(|index| part(*index)).collect();
    let common = |of: fn(&DeviceProperties) -> Option<i16>| {
        let first = of(properties.first()?)?;
        properties.iter().all(|one| of(one) == Some(first)).then_some(first)
    };
    DeviceProperties {
        rail: common(|properties| properties.rail),
        plane: common(|properties| properties.plane),
        latency_us: properties.iter().map(|properties| properties.latency_us).fold(0.0, f32::max),
        parts: parts.to_vec(),
        ..of(index, plan)
    }
}

/// In whole microseconds, since NCCL truncates.
fn latency_us(plan: &DevicePlan) -> u16 {
    let of = |rail: &RailPlan| {
        let model = rail.info.nic().and_then(|nic| nic.model);
        let digits = model.as_deref().and_then(|model| model.strip_prefix("0x"));
        let device = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
        options::latency_us(core_provider(rail.info.provider()), device)
    };
    plan.rails.iter().map(of).max().unwrap_or(0)
}

/// The network of a device, if all its rails are on one.
fn network(plan: &DevicePlan) -> Option<&str> {
    let mut names = plan.rails.iter().map(|rail| rail.fabric_name.as_str());
    let first = names.next()?;
    names.all(|name| name == first).then_some(first)
}

/// The plane of each device: a number made only of its network's name, so that hosts with different networks agree on it. NCCL never
/// connects devices of different planes, and compares those of all hosts of one NVLink domain (NCCL src/graph/search.cc,
/// ncclTopoSearchCheckNet). A device has no plane if all devices are on one network; if it is on several networks; if another network has
/// the same number; or if its subnet is a single host or link, which only routers connect with others.
fn planes(networks: &[Option<&str>]) -> Vec<Option<i16>> {
    let of_a_link =
        |name: &str| ["/32", "/31", "/128", "/127"].iter().any(|end| name.ends_with(end));
    let networks: Vec<_> =
        networks.iter().map(|network| network.filter(|name| !of_a_link(name))).collect();
    let mut names: Vec<_> = networks.iter().flatten().copied().collect();
    names.sort_unstable();
    names.dedup();
    let plane = |network: &Option<&str>| {
        let number = plane_number((*network)?);
        let is_alone = names.iter().filter(|name| plane_number(name) == number).count() == 1;
        (names.len() > 1 && is_alone).then_some(number)
    };
    networks.iter().map(plane).collect()
}

/// 15 bits of the hash: a plane is not negative.
fn plane_number(network: &str) -> i16 {
    let hash = fnv1a(network.bytes());
    let folded = (hash ^ hash >> 15 ^ hash >> 30 ^ hash >> 45) & 0x7fff;
    i16::try_from(folded).unwrap_or(0)
}

/// The properties of one device, without its plane. Strings are leaked: NCCL keeps pointers to them, and there are few per process.
fn of(index: usize, plan: &DevicePlan) -> DeviceProperties {
    DeviceProperties {
        name: leak(&plan.name),
        pci_path: plan.rails.iter().find_map(|rail| rail.pci_path.as_deref()).map(leak),
        guid: plan.properties.guid.unwrap_or_else(|| guid(&host(), index, &plan.name)),
        speed_mbps: i32::try_from(plan.speed_mbps()).unwrap_or(i32::MAX),
        port: 1,
        latency_us: f32::from(latency_us(plan)),
        max_comms: MAX_COMMS,
        max_receives: MAX_RECEIVES,
        device_memory: plan.gpu_memory.is_direct(),
        dmabuf: plan.gpu_memory.supports_dmabuf(),
        regions_are_global: plan.regions_are_global(),
        max_point_to_point_bytes: match plan.protocol {
            Protocol::Rdma => BYTES_MAX,
            // A message is one tagged send on one rail.
            Protocol::Sendrecv => plan.rails.iter().map(largest).min().unwrap_or(BYTES_MAX),
        },
        max_collective_bytes: BYTES_MAX,
        rail: plan.properties.rail.and_then(|rail| i16::try_from(rail).ok()),
        plane: None,
        parts: vec![index],
    }
}

/// The longest message that one operation of a rail can carry.
fn largest(rail: &RailPlan) -> usize {
    usize::try_from(rail.info.max_message()).unwrap_or(usize::MAX).min(BYTES_MAX)
}

/// NCCL takes devices with the same guid and port for one physical port, also across the processes of a host.
fn guid(host: &str, index: usize, device: &str) -> u64 {
    fnv1a(host.bytes().chain([0]).chain(index.to_le_bytes()).chain(device.bytes()))
}

/// The host's name, as in this container, and the id of its boot or of the machine, since names repeat. A sandbox may hide /proc/sys.
fn host() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let id = boot.or_else(|_| fs::read_to_string("/etc/machine-id"));
    fabric::host_name() + &id.unwrap_or_default()
}

fn leak(text: &str) -> &'static CStr {
    let text = CString::new(text.replace('\0', "")).expect("no NUL is left in it");
    Box::leak(text.into_boxed_c_str())
}

/// The largest group of receives. Tables before v9 report 1 instead.
const MAX_RECEIVES: i32 = 8;
const _: () = assert!(MAX_RECEIVES as usize == proto::limits::MAX_GROUP);
/// A comm's id has 14 bits in an immediate (docs/protocol.md, section 10).
const MAX_COMMS: i32 = 1 << 14;
/// 1 TiB, NCCL's maximum: we have no bound of our own.
const BYTES_MAX: usize = 1 << 40;

#[cfg(test)]
mod tests {
    use super::super::config::Config;
    use super::super::discovery::discover;
    use super::*;

    #[test]
    fn guids_differ_by_host_and_by_device() {
        assert_eq!(guid("a", 0, "eth0"), guid("a", 0, "eth0"));
        assert_ne!(guid("a", 0, "eth0"), guid("a", 0, "eth1"));
        assert_ne!(guid("a", 0, "eth0"), guid("a", 1, "eth0"));
        assert_ne!(guid("a", 0, "eth0"), guid("b", 0, "eth0"));
    }

    #[test]
    fn several_networks_are_planes() {
        let found = planes(&[Some("b"), Some("a"), Some("b"), None]);
        assert!(found[..3].iter().all(|plane| plane.is_some_and(|plane| plane >= 0)), "{found:?}");
        assert_eq!((found[0], found[3]), (found[2], None));
        assert_ne!(found[0], found[1]);
        assert_eq!(planes(&[Some("a"), Some("a")]), [None, None]);
        assert_eq!(planes(&[None, Some("a")]), [None, None]);
        assert_eq!(planes(&[Some("10.1.0.2/32"), Some("10.2.0.2/32")]), [None, None]);
        assert_eq!(planes(&[Some("10.1.0.0/31"), Some("fd00::2/127")]), [None, None]);
    }

    #[test]
    fn a_host_that_lacks_a_plane_gives_the_others_the_same_numbers() {
        let all: Vec<String> = (0..8).map(|number| format!("10.{number}.0.0/16")).collect();
        let whole = planes(&all.iter().map(|name| Some(name.as_str())).collect::<Vec<_>>());
        for lacking in 0..all.len() {
            let rest = |place: usize| place + usize::from(place >= lacking);
            let names: Vec<_> =
                (0..all.len() - 1).map(|place| Some(all[rest(place)].as_str())).collect();
            for (place, plane) in planes(&names).iter().enumerate() {
                assert_eq!(
                    *plane,
                    whole[rest(place)],
                    "{} without {}",
                    all[rest(place)],
                    all[lacking]
                );
            }
        }
    }

    #[test]
    fn two_networks_of_one_number_are_no_planes() {
        let mut seen = std::collections::BTreeMap::new();
        let mut names = (0..=u16::MAX).map(|number| format!("IB-{number:#x}"));
        let twins = names.find_map(|name| {
            let other = seen.insert(plane_number(&name), name.clone())?;
            Some((name, other))
        });
        let (one, other) = twins.expect("more names than numbers");
        let found = planes(&[Some(&one), Some(&other), Some("another")]);
        assert_eq!(found, [None, None, Some(plane_number("another"))]);
    }

    #[test]
    fn a_real_device_is_described_as_nccl_expects() {
        let rails = ("IRONRAIL_RAILS".to_owned(), "127.0.0.1,127.0.0.2".to_owned());
        let found = discover(&Config::from_variables([rails]).unwrap()).unwrap();
        let properties = of(0, &found.devices[0]);
        let name = properties.name.to_str().unwrap();
        assert_eq!(name, "127.0.0.1+127.0.0.2");
        assert_eq!(properties.speed_mbps, 20_000, "two rails of unknown speed");
        assert_eq!(properties.pci_path, None, "loopback is on no bus");
        assert_eq!(properties.latency_us.fract(), 0.0, "NCCL truncates");
        assert!(properties.regions_are_global);
        assert!(!properties.device_memory && !properties.dmabuf);
        assert_eq!((properties.rail, properties.plane), (None, None), "interfaces have none");
    }
}
